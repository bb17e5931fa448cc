// A store's handshake over real connections, with a peer that knows the job's secret and a peer that does not: only
// a peer that proves the secret is admitted, whatever else it sends, and no peer leaves anything behind.
// clang 14 rejects coroutines with the sanitizers address and undefined together.
// fuzz: SANITIZERS address

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "dtrain/core/serializer.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"
#include "fuzz/codec_invariants.hpp"

namespace {

using namespace dtrain::rendezvous;

const Secret& job_secret() {
  static const Secret secret = Secret::of("a secret of the fuzzer's", "fuzz");
  return secret;
}

/// What the input's bytes mean. Each step is one byte; `raw` is followed by a length and that many bytes.
enum Step : std::uint8_t { hello, plain_hello, join, wrong_join, replay, shut, raw, steps };

class Visit {
 public:
  Visit() : server_(loop_, listen(), ServerOptions{job_secret(), limits()}) {}

  void play(std::span<const std::byte> script) {
    StoreJobOptions options;
    options.world_size = 2;
    JobServer& job = server_.open(std::move(options));
    connect();
    while (!script.empty()) {
      step(script);
      pump();
      read();
      fuzz::require(job.sessions() <= 1, "one connection is one session");
      fuzz::require(job.sessions() == 0 || proved_, "only who proves the secret gets in");
      fuzz::require(server_.pending_connections() <= 1, "one connection is one pending connection");
    }
    fuzz::require(received_ <= 65536, "the store says little to somebody who says little");
    socket_.reset();
    for (int i = 0; i < 100 && server_.pending_connections() + job.sessions() > 0; ++i) {
      pump();
    }
    fuzz::require(server_.pending_connections() + job.sessions() == 0, "who is gone leaves nothing behind");
  }

 private:
  static Limits limits() {
    Limits limits;
    limits.rejoin = std::chrono::milliseconds(0);  // nobody joins again
    return limits;
  }

  dtrain::net::Listener listen() {
    return dtrain::net::Listener::bind(loop_, dtrain::net::SocketAddress::loopback_v4(0));
  }

  void connect() {
    socket_ = dtrain::Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server_.local().port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const linger reset{1, 0};  // no port stays behind for a minute
    const bool set = ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset) == 0;
    const bool connected = ::connect(socket_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    fuzz::require(set && connected, "the fuzzer can connect");
    transcript_ = Transcript();
    said_ = 0;
    received_ = 0;
    challenged_ = false;
    greeted_well_ = false;
    proved_ = false;
    parser_ = dtrain::net::FrameParser(max_frame_bytes);
    pump();
  }

  /// Lets the store do what there is to do.
  void pump() {
    const auto turns = [this]() -> dtrain::async::Task<void> {
      for (int i = 0; i < 6; ++i) {
        co_await loop_.sleep_for(std::chrono::milliseconds(0));
      }
    };
    loop_.run_until(turns(), dtrain::Deadline::after(std::chrono::seconds(60)));
  }

  void read() {
    std::array<std::byte, 16384> buffer;
    ssize_t count = 0;
    while ((count = ::recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0) {
      received_ += static_cast<std::size_t>(count);
      parser_.feed(std::span(buffer).first(static_cast<std::size_t>(count)));
    }
    fuzz::require(!parser_.malformed(), "the store keeps to the bound of frames");
    while (const auto frame = parser_.next()) {
      const auto answer = decode<HandshakeReply>(*frame);
      fuzz::require(answer.has_value() || decode<ToRank>(*frame) || is_heartbeat(*frame), "the store says messages");
      if (answer && std::holds_alternative<Challenge>(*answer)) {
        fuzz::require(!challenged_, "there is one challenge");
        challenged_ = true;
        transcript_.add(*frame);
      } else if (answer && std::holds_alternative<Accepted>(*answer)) {
        fuzz::require(proved_, "only who proves the secret is accepted");
        fuzz::require(transcript_.is_proved(ProofSide::store, job_secret(), *frame), "the store proves it too");
      }
    }
  }

  void send(Frame payload) {
    dtrain::Serializer writer;
    auto size = static_cast<std::uint32_t>(payload.size());
    writer.number(size);
    writer.bytes(payload);
    send_bytes(writer.take());
  }
  void send_bytes(std::span<const std::byte> bytes) {
    static_cast<void>(::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT));
    said_ += bytes.empty() ? 0 : 1;
  }

  void step(std::span<const std::byte>& script) {
    const auto what = static_cast<Step>(std::to_integer<unsigned>(script.front()) % steps);
    script = script.subspan(1);
    switch (what) {
      case hello:
      case plain_hello: return greet(what == hello);
      case join:
      case wrong_join: return request(what == join);
      case replay: return send(last_join_);
      case shut: static_cast<void>(::shutdown(socket_.get(), SHUT_WR)); return;
      default: return send_raw(script);
    }
  }

  void greet(bool with_secret) {
    Hello greeting;
    greeting.version = dtrain::version_text;
    greeting.has_secret = with_secret;
    const Frame frame = encode(greeting);
    if (said_ == 0) {
      transcript_.add(frame);
      greeted_well_ = with_secret;
    }
    send(frame);
  }

  void request(bool with_proof) {
    Join call;
    call.info.host = call.info.host_id = "fuzz";
    call.world_size = 2;
    call.join_timeout_ms = 60000;
    Frame frame = encode(call);
    if (with_proof) {
      const Proof proof = transcript_.proof_for(ProofSide::rank, job_secret(), frame);
      std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
      last_join_ = frame;
      if (said_ == 1 && greeted_well_ && challenged_) {
        proved_ = true;
        transcript_.add(frame);
      }
    }
    send(frame);
  }

  void send_raw(std::span<const std::byte>& script) {
    const std::size_t wanted = script.empty() ? 0 : std::to_integer<std::size_t>(script.front());
    script = script.subspan(script.empty() ? 0 : 1);
    const std::size_t length = std::min(wanted, script.size());
    send_bytes(script.first(length));
    script = script.subspan(length);
  }

  dtrain::async::EventLoop loop_;
  StoreServer server_;
  dtrain::Descriptor socket_;
  dtrain::net::FrameParser parser_{max_frame_bytes};
  Transcript transcript_;
  Frame last_join_;  ///< of any visit: a proof that was right once
  int said_ = 0;
  std::size_t received_ = 0;
  bool challenged_ = false;
  bool greeted_well_ = false;
  bool proved_ = false;  ///< the second thing said was a join with a proof, the first a hello
};

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const std::string leave(1, static_cast<char>(MessageKind::leave));
  const std::string length("\x01\0\0\0", 4);
  return {std::string("\0\x02", 2),
          std::string("\0\x02\x06\x05", 4) + length + leave,
          std::string("\0\x03", 2),
          std::string("\x01\x02", 2),
          std::string("\0\x04", 2),
          std::string("\0\0\x02\x05", 4),
          std::string("\x06\x04\xff\xff\xff\xff\0\x02", 8)};
}

/// A script of steps.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Visit visit;
  visit.play(std::as_bytes(std::span(data, std::min<std::size_t>(size, 512))));
  return 0;
}
