#pragma once
/// @file
/// handshake(): the client's half of the handshake with a job's store; both sides prove that they know its secret.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/rendezvous/session/session.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Address of a store, and the parameters of a handshake with it.
struct StoreAddress {
  std::string host;
  std::uint16_t port = 0;
  std::uint16_t ports = 1;  ///< number of ports, from `port` on, at one of which the store listens
  ClientRole role = ClientRole::rank;
  std::uint64_t attempt = 0;
  std::optional<Secret> secret{};

  std::string text() const { return format_text("{}:{}", {host, port}); }
};

/// The connection closed, or the deadline passed, before the store accepted or rejected this rank.
struct HandshakeError {
  std::string reason;  ///< what is at the address: "what listens there closed the connection without an answer (...)"
  bool timed_out = false;
  bool request_sent = false;  ///< the store may have acted on the request
};

/// A try that the deadline cuts short within this time explains less than one before it.
inline constexpr std::chrono::seconds telling_silence{1};

/// The Error of a client whose deadline has passed. @param why what is at the store's address
inline Error late_error(const std::string& doing, const std::string& why) {
  return {Errc::timeout, format_text("{}: the deadline passed; {}; check that MASTER_ADDR and MASTER_PORT are those of "
                                     "this job's store",
                                     {doing, why})};
}

using HandshakeResult = std::variant<Accepted, Refused, Failure, HandshakeError>;

namespace detail {

/// Frames of the client's side of a handshake, without I/O. Lifetime: the arguments outlive it.
class ClientHandshake {
 public:
  ClientHandshake(const StoreAddress& address, Frame request, std::string_view doing)
      : address_(address),
        request_(std::move(request)),
        doing_(doing),
        frame_(rendezvous::encode(
            Hello{version_text, address.role, address.attempt, random_bytes<16>(), address.secret.has_value()})) {
    transcript_.add(frame_);
  }

  /// The frame to send: the Hello, then the request.
  const Frame& frame() const noexcept { return frame_; }
  bool sends_hello() const noexcept { return sends_hello_; }

  /// Takes the results of sending frame() and of reading the reply. @returns whether result() is final
  bool finish_step(const net::IoResult& sent, const net::FrameResult& reply) {
    if (!sent.ok() || !reply.ok()) {
      const bool timed_out = sent.status == net::IoStatus::timed_out || reply.status == net::FrameStatus::timed_out;
      const bool is_other_program = reply.status == net::FrameStatus::too_long;  // its bytes are no frame of dtrain's
      result_ = HandshakeError{is_other_program ? "what answers there is another program, and no store of dtrain's"
                               : timed_out      ? silence()
                                                : format_text("what listens there closed the connection without an "
                                                                   "answer ({})",
                                                              {sent.ok() ? reply.reason : sent.reason()}),
                               timed_out, !sends_hello_};
      return true;
    }
    std::optional<HandshakeReply> message = rendezvous::decode<HandshakeReply>(reply.payload);
    if (Refused* refused = message ? std::get_if<Refused>(&*message) : nullptr) {
      result_ = std::move(*refused);
      return true;
    }
    if (sends_hello_) {
      answer_challenge(message ? std::get_if<Challenge>(&*message) : nullptr, reply.payload);
      return false;
    }
    if (Failure* failure = message ? std::get_if<Failure>(&*message) : nullptr) {
      result_ = std::move(*failure);
      return true;
    }
    const Accepted* accepted = message ? std::get_if<Accepted>(&*message) : nullptr;
    if (accepted == nullptr) {
      throw_no_store();
    }
    if (address_.secret && !transcript_.is_proved(ProofSide::store, *address_.secret, reply.payload)) {
      throw_error(Errc::refused,
                  "{}: what listens there does not know the job's secret; check MASTER_ADDR and MASTER_PORT", {doing_});
    }
    result_ = *accepted;
    return true;
  }

  HandshakeResult& result() noexcept { return result_; }

 private:
  std::string silence() const {
    return sends_hello_ ? "what listens there took the connection and does not answer: it is another program, or a "
                          "store of dtrain's whose process is stopped"
                        : "the store took the connection but does not answer";
  }

  void answer_challenge(const Challenge* challenge, const Frame& frame) {
    if (challenge == nullptr) {
      throw_no_store();
    }
    if (address_.secret && !challenge->asks_secret) {
      throw_error(Errc::refused,
                  "{}: this process has the job's secret, and the store requires none: it is another job's store, or "
                  "was given no secret; check MASTER_ADDR and MASTER_PORT, and DTRAIN_SECRET on rank 0",
                  {doing_});
    }
    sends_hello_ = false;
    transcript_.add(frame);
    frame_ = std::move(request_);
    if (address_.secret) {
      transcript_.prove(ProofSide::rank, *address_.secret, frame_);
    }
    transcript_.add(frame_);
  }

  [[noreturn]] void throw_no_store() const {
    throw_error(Errc::protocol, "{}: what listens there is no store of dtrain's; check MASTER_ADDR and MASTER_PORT",
                {doing_});
  }

  const StoreAddress& address_;
  Frame request_;
  std::string_view doing_;
  Transcript transcript_;
  Frame frame_;
  bool sends_hello_ = true;
  HandshakeResult result_;
};

}  // namespace detail

/// Sends a Hello, receives the Challenge, sends the request and receives the reply. Lifetime: the arguments outlive it.
/// @param request the encoded Join of a rank or a launcher, or Announce of a worker; its last bytes are for a proof
/// @param doing begins the error sentences: "joining the job at a:1 as rank 2"
/// @param deadline of the first reply
/// @param reply_deadline of the reply to `request`, on which a store that received it may already act
/// @throws Error (protocol) if the peer is no store of dtrain; Error (refused) if the store does not know the secret,
/// or requires no secret though this rank has one: the store may be another job's
inline async::Task<HandshakeResult> handshake(Session& session, const StoreAddress& address, Frame request,
                                              std::string_view doing, Deadline deadline, Deadline reply_deadline) {
  detail::ClientHandshake client(address, std::move(request), doing);
  for (bool is_over = false; !is_over;) {
    const Deadline by = client.sends_hello() ? deadline : reply_deadline;
    const net::IoResult sent = co_await session.write_frame(client.frame(), by);
    net::FrameResult reply;
    if (sent.ok()) {
      reply = co_await session.read_frame(by);
    }
    is_over = client.finish_step(sent, reply);
  }
  co_return std::move(client.result());
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
