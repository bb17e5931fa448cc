#include "unit/gloo/prelude.hpp"
#if DTRAIN_WITH_GLOO
#include <netinet/in.h>
#include <sys/socket.h>

#include "dtrain/backend/gloo/transport.hpp"
#include "dtrain/core/serializer.hpp"
#include "support/captured_stderr.hpp"
#include "support/channel_context.hpp"
#include "support/expect_error.hpp"

namespace {

using dtrain::Deadline;
using dtrain::Descriptor;
using dtrain::backend::gloo::PeerInfo;
using dtrain::backend::gloo::Transport;
using support::FakeJob;

/// A socket at the loopback address to which nobody can connect: its queue is full. Whoever tries waits, as behind a
/// firewall that drops packets.
class UnreachablePort {
 public:
  UnreachablePort() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    auto* const any = reinterpret_cast<sockaddr*>(&address_);
    reinterpret_cast<sockaddr_in*>(any)->sin_family = AF_INET;
    reinterpret_cast<sockaddr_in*>(any)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(sockaddr_in);
    REQUIRE(::bind(listener_.get(), any, size) == 0);
    REQUIRE(::getsockname(listener_.get(), any, &size) == 0);
    REQUIRE(::listen(listener_.get(), 0) == 0);
    for (Descriptor& each : queue_) {
      each = Descriptor(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      static_cast<void>(::connect(each.get(), any, size));
    }
  }

  std::string text() const {
    const auto* const system = reinterpret_cast<const sockaddr*>(&address_);
    return to_string(*dtrain::net::SocketAddress::from_system(system, sizeof(sockaddr_in)));
  }

  /// What rank 1 publishes that listens there for rank 0.
  PeerInfo peer(const std::string& outward) const {
    const std::vector<char> bytes = ::gloo::transport::tcp::Address(address_, 0).bytes();
    return {1, "host-1", "127.0.0.1", outward, bytes.size(), std::string(bytes.begin(), bytes.end())};
  }

 private:
  sockaddr_storage address_{};
  Descriptor listener_;
  std::array<Descriptor, 4> queue_;
};

/// The error of rank 0, whose peer cannot be reached.
std::string error_with(const PeerInfo& peer) {
  const auto job = std::make_shared<FakeJob>(2);
  dtrain::backend::ChannelContext context = support::channel_context(job, 0, 2);
  context.notice_after = std::chrono::milliseconds(100);
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(600));
  context.store.set_blocking("group/gloo-1", dtrain::to_bytes(peer), deadline);
  return support::error_of([&] { const Transport transport(context, {0, 1}, deadline); }).what();
}

TEST_CASE("a rank that cannot be reached is named with its host and address, in the log and in the error") {
  const UnreachablePort port;
  support::CapturedStderr captured;
  const std::string problem = "rank 0 on host host-0 has not connected with rank 1 on host host-1 at " + port.text() +
                              " (does a firewall forbid this host's processes to connect with one another?)";
  CHECK(error_with(port.peer("")) == "connecting channel 'group' over Gloo: by the deadline " + problem);
  CHECK_CONTAINS(captured.text(),
                 "dtrain: rank 0: still waits in connecting channel 'group' over Gloo, after 0.1 s; " + problem);
}

TEST_CASE("a peer of this host's id whose host has other addresses is on another host: DTRAIN_HOST_ID is named") {
  CHECK_CONTAINS(
      error_with(UnreachablePort().peer("192.0.2.7")),
      "(this host's id is also rank 1's, whose host has the address 192.0.2.7, which this one has not: if they are "
      "two hosts, such as copies of one virtual machine, set another DTRAIN_HOST_ID on each)");
}

TEST_CASE("a rank that publishes no address is named") {
  const auto job = std::make_shared<FakeJob>(2);
  const dtrain::backend::ChannelContext context = support::channel_context(job, 0, 2);
  const Deadline deadline = Deadline::after(std::chrono::milliseconds(100));
  CHECK(support::error_of([&] {
          const Transport transport(context, {0, 1}, deadline);
        }).what() ==
        std::string("connecting channel 'group' over Gloo: the deadline passed; rank 1 has not come so far"));
}

}  // namespace

#endif
