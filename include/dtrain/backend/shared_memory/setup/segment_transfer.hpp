#pragma once
/// @file
/// Segment transfer: rank 0 sends the descriptor of a segment to another process by a Unix socket.

#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/backend/shared_memory/segment.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto/random.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/net/unix_socket.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Under ThreadSanitizer, which cannot relate two mappings of one memory, passes a mapping to another thread of the
/// same process. The message carries the address of an InProcessTransfer on the heap, which the receiver then owns. (A
/// receiver that fails before it reads the message leaks it.) In other builds, every rank maps the segment itself.
struct InProcessTransfer {
  std::shared_ptr<Segment> segment;
  std::atomic<bool> ready{false};  ///< orders the two threads; in C++'s memory model a socket does not

  static std::uint64_t give(const std::shared_ptr<Segment>& segment) {
    auto transfer = std::make_unique<InProcessTransfer>();
    transfer->segment = segment;
    transfer->ready.store(true, std::memory_order_release);
    return reinterpret_cast<std::uintptr_t>(transfer.release());
  }
  static std::shared_ptr<Segment> take(std::uint64_t address) {
    const std::unique_ptr<InProcessTransfer> transfer(
        reinterpret_cast<InProcessTransfer*>(static_cast<std::uintptr_t>(address)));
    return transfer->ready.load(std::memory_order_acquire) ? std::move(transfer->segment) : nullptr;
  }
};

/// The message beside the descriptor. Processes outside the job do not know the token.
struct SegmentMessage {
  char token[32]{};
  std::uint64_t address = 0;  ///< of an InProcessTransfer, for a thread of the same process
};

/// Receives one segment. Listens under a random name, which leaves nothing in the file system.
class SegmentReceiver {
 public:
  /// @throws Error (posix)
  SegmentReceiver() : listener_(name_) {}

  /// "NAME TOKEN", for rank 0.
  std::string address() const { return format_text("{} {}", {name_, token_}); }

  /// The segment that rank 0 has sent. Closes connections of other processes. Blocking: no.
  /// @throws Error (timeout) if rank 0 has sent none; as Segment::adopt
  std::shared_ptr<Segment> receive(std::size_t bytes, Deadline deadline) {
    const Deadline now = Deadline::after({});
    for (;;) {
      net::UnixConnection connection = listener_.accept(now);
      net::ReceivedDescriptor received;
      try {
        received = connection.receive_descriptor(now);
      } catch (const Error&) {
        // another process's: rank 0 has sent its message already
      }
      SegmentMessage message;
      if (received.bytes.size() == sizeof message) {
        std::memcpy(&message, received.bytes.data(), sizeof message);
      }
      if (token_ == std::string_view(message.token, sizeof message.token)) {
        if (DTRAIN_THREAD_SANITIZER && message.address != 0) {
          return InProcessTransfer::take(message.address);
        }
        return Segment::adopt(std::move(received.descriptor), bytes);
      }
      if (deadline.passed()) {
        throw_error(Errc::timeout, "the Unix socket '{}' gets messages of other processes only", {name_});
      }
    }
  }

 private:
  const std::string name_ = "dtrain-" + random_job_id();
  const std::string token_ = random_job_id();
  net::UnixListener listener_;
};

/// Rank 0's half. @param address SegmentReceiver::address() of the receiver
/// @throws Error (protocol) for a malformed address; (refused) for another user's process; (timeout, posix)
inline void send_segment(const std::string& address, const std::shared_ptr<Segment>& segment, Deadline deadline) {
  SegmentMessage message;
  const std::size_t space = address.find(' ');
  if (space == 0 || space == std::string::npos || address.size() - space - 1 != sizeof message.token) {
    throw_error(Errc::protocol, "its socket's address came as {}", {in_quotes(address)});
  }
  address.copy(message.token, sizeof message.token, space + 1);
  net::UnixConnection connection = net::UnixConnection::connect(address.substr(0, space), deadline);
  const net::PeerCredentials peer = connection.peer_credentials();
  if (peer.uid != ::geteuid()) {
    throw_error(Errc::refused, "it runs as user {} and this rank as user {}; start all ranks of a host as one user",
                {peer.uid, ::geteuid()});
  }
  if (DTRAIN_THREAD_SANITIZER && peer.pid == ::getpid()) {
    message.address = InProcessTransfer::give(segment);
  }
  try {
    connection.send_descriptor(segment->descriptor(), std::as_bytes(std::span(&message, 1)), deadline);
  } catch (...) {
    if (DTRAIN_THREAD_SANITIZER && message.address != 0) {
      InProcessTransfer::take(message.address);
    }
    throw;
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
