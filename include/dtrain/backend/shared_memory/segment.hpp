#pragma once
/// @file
/// Segment: a mapped memfd that a host's ranks share. SegmentSetup: rank 0 sends its descriptor by Unix sockets; every
/// rank maps it, or none.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/net/unix_socket.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

/// A mapped memfd, owned jointly by its users: no file anywhere, freed with the last process that maps it. Forked
/// processes do not have the mapping, because they would write to memory that the ranks read. Pages exist once they are
/// reserved: if memory is exhausted, reserve() throws; touching an unreserved page would raise SIGBUS.
class Segment {
 public:
  /// A new memfd of `bytes`, sealed against resizing, without pages yet. @param needed bytes that will be reserved
  /// @throws Error (out_of_memory, posix)
  static std::shared_ptr<Segment> create(std::size_t bytes, std::size_t needed) {
    const std::uint64_t available = available_memory_bytes();
    if (needed > available) {
      throw_out_of_memory(needed, available);
    }
    Descriptor memory(::memfd_create("dtrain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory) {
      throw errno_error("creating " + std::to_string(bytes) + " bytes of shared memory");
    }
    int result = 0;
    const BlockedWriteSignals no_signal;
    do {
      result = ::ftruncate(memory.get(), static_cast<off_t>(bytes));
    } while (result != 0 && errno == EINTR);
    if (result != 0) {
      throw errno_error("sizing a shared memory of " + std::to_string(bytes) + " bytes");
    }
    if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      throw errno_error("sealing a shared memory against shrinking");
    }
    return std::shared_ptr<Segment>(new Segment(std::move(memory), bytes));
  }

  /// Maps a memfd that another process made. @throws Error (protocol) unless it is sealed and of that size; (posix)
  static std::shared_ptr<Segment> adopt(Descriptor memory, std::size_t bytes) {
    const int seals = ::fcntl(memory.get(), F_GET_SEALS);
    const off_t end = ::lseek(memory.get(), 0, SEEK_END);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || end < 0 || static_cast<std::uint64_t>(end) != bytes) {
      throw_error(Errc::protocol, "the shared memory that rank 0 sent is not sealed, or not of {} bytes", {bytes});
    }
    return std::shared_ptr<Segment>(new Segment(std::move(memory), bytes));
  }

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() {
    if (process_.is_current()) {  // a forked process may have another mapping there
      unmap();
    }
  }

  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// The memfd, to send to other processes; -1 after close_descriptor().
  int descriptor() const noexcept { return memory_.get(); }

  /// Reserves zeroed pages on this thread's NUMA node. @throws Error (out_of_memory, posix)
  void reserve(std::size_t offset, std::size_t count) const {
    if (count == 0) {
      return;  // posix_fallocate rejects 0 bytes
    }
    if (bytes_ >= huge_page_bytes) {
      // Reserving through the descriptor gives small pages; writing through the advised mapping gives huge ones where
      // the system allows. If the advice fails (old kernel, no memory), the reservation below decides.
      static_cast<void>(::madvise(base_ + offset, count, populate_write));
    }
    // A signal interrupts a reservation, and Linux before 6.9 then undoes it. Hence each call reserves so little that
    // it ends between two signals of a profiler.
    int result = 0;
    const BlockedWriteSignals no_signal;
    for (std::size_t done = 0; done < count && result == 0;) {
      const std::size_t piece = std::min(count - done, huge_page_bytes);
      result = ::posix_fallocate(memory_.get(), static_cast<off_t>(offset + done), static_cast<off_t>(piece));
      if (result == 0) {
        done += piece;
      } else if (result == EINTR) {
        result = 0;
      }
    }
    if (result == ENOSPC || result == ENOMEM) {
      throw_out_of_memory(count, available_memory_bytes());
    }
    if (result != 0) {
      throw posix_error(result, "reserving " + std::to_string(count) + " bytes of shared memory");
    }
  }

  /// Keeps the mapping. Once every rank has mapped the memfd, no rank needs the descriptor.
  void close_descriptor() noexcept { memory_.reset(); }

 private:
  static constexpr int populate_write = 23;  ///< MADV_POPULATE_WRITE, which older C libraries do not name

  /// Aligns the base to huge pages if the segment is large enough for one.
  Segment(Descriptor memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {
    const std::size_t slack = bytes >= huge_page_bytes ? huge_page_bytes : 0;
    void* range = ::mmap(nullptr, bytes + slack, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
      throw errno_error("finding " + std::to_string(bytes) + " bytes of address space");
    }
    const auto start = reinterpret_cast<std::uintptr_t>(range);
    const std::size_t skipped = slack == 0 ? 0 : round_up(start, huge_page_bytes) - start;
    base_ = static_cast<std::byte*>(range) + skipped;
    void* mapped = ::mmap(base_, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_.get(), 0);
    const int error = errno;
    if (skipped > 0) {
      static_cast<void>(::munmap(range, skipped));
    }
    if (slack > skipped) {
      const std::size_t page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
      const std::size_t tail = round_up(bytes, page);
      static_cast<void>(::munmap(base_ + tail, round_up(bytes + slack, page) - skipped - tail));
    }
    if (mapped == MAP_FAILED) {
      unmap();
      throw posix_error(error, "mapping " + std::to_string(bytes) + " bytes of shared memory");
    }
    if (::madvise(base_, bytes, MADV_DONTFORK) != 0) {
      const Error refused = errno_error("keeping a shared memory out of processes that this one forks");
      unmap();
      throw refused;
    }
    if (slack > 0) {
      static_cast<void>(::madvise(base_, bytes, MADV_HUGEPAGE));  // advice: without it pages are small
    }
  }

  void unmap() const noexcept { static_cast<void>(::munmap(base_, bytes_)); }

  [[noreturn]] static void throw_out_of_memory(std::size_t bytes, std::uint64_t available) {
    throw_error(Errc::out_of_memory,
                "allocating {} bytes of shared memory: about {} bytes are available on this host; use fewer ranks or a "
                "smaller model, or give the container more memory",
                {bytes, available});
  }

  const OwningProcess process_;
  Descriptor memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

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

/// The message that accompanies the descriptor. Processes outside the job do not know the token.
struct SegmentMessage {
  char token[32]{};
  std::uint64_t address = 0;  ///< address of an InProcessTransfer, for a thread of the same process
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
        // another process's connection: rank 0 has sent its message already
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

/// A segment, and the nonce that rank 0 drew for it.
struct MappedSegment {
  std::shared_ptr<Segment> segment;
  std::size_t stride = 0;  ///< bytes from one rank's memory to the next
  std::uint64_t nonce = 0;
};

/// One setup. Ends the same way on every rank:
/// - every rank states a size and its socket; rank 0 compares the sizes and sends every rank the segment's descriptor;
/// - every rank maps the segment and reserves its pages, or all ranks throw the error of one rank.
class SegmentSetup {
 public:
  /// @param number of the setup on this channel: 1, 2, ...
  /// @param check see StoreRank
  SegmentSetup(const ChannelContext& context, std::uint64_t number, std::size_t bytes, Deadline deadline,
               std::function<void()> check = {})
      : self_(
            StoreRank::of(context, deadline, format_text("setting up shared memory for channel '{}'", {context.name}))),
        failure_(context.failure),
        name_(format_text("{}/memory-{}", {context.name, number})),
        bytes_(bytes) {
    self_.check = std::move(check);
    const std::size_t unit = bytes >= huge_page_bytes ? huge_page_bytes : static_cast<std::size_t>(::getpagesize());
    shared_.stride = round_up(std::max<std::size_t>(bytes, 1), unit);
  }

  /// Collective, blocking. @throws JobFailed; Error, the same on every rank that can still be reached: disagreement if
  /// sizes differ (naming both), out_of_memory, timeout
  MappedSegment run() {
    const std::string nonce = store_gather(
        self_, name_ + "/offer", [this] { return request(); },
        [this](const std::vector<std::string>& requests) { return offer(requests); });
    shared_.nonce = std::strtoull(nonce.c_str(), nullptr, 10);
    const auto map = [this] {
      map_and_reserve();
      return std::string();
    };
    // Under ThreadSanitizer, ranks that are threads of one process share the Segment: rank 0 closes the descriptor
    // first.
    const auto close = [this](const auto&) {
      shared_.segment->close_descriptor();
      return std::string();
    };
    store_gather(self_, name_ + "/mapped", map, close);
    if (self_.rank != 0) {
      shared_.segment->close_descriptor();
    }
    return std::move(shared_);
  }

 private:
  /// "BYTES NAME TOKEN"; rank 0 has no socket.
  std::string request() {
    if (self_.rank == 0) {
      return std::to_string(bytes_);
    }
    receiver_.emplace();
    return format_text("{} {}", {bytes_, receiver_->address()});
  }

  /// On rank 0. @returns the nonce
  std::string offer(const std::vector<std::string>& requests) {
    for (int peer = 1; peer < self_.ranks; ++peer) {
      const std::string& request = requests[static_cast<std::size_t>(peer)];
      const std::string bytes = request.substr(0, request.find(' '));
      if (bytes != requests[0]) {
        throw_error(Errc::disagreement,
                    "{} allocates {} bytes of shared memory and {} allocates {}; every rank asks for the same size",
                    {self_.name_of_rank(0), requests[0], self_.name_of_rank(peer), sanitize(bytes)});
      }
    }
    const auto ranks = static_cast<std::size_t>(self_.ranks);
    if (bytes_ > (std::size_t{1} << 56) / ranks) {
      throw_error(Errc::out_of_memory,
                  "allocating {} bytes of shared memory for each of {} ranks: no machine has an address space for that",
                  {bytes_, ranks});
    }
    shared_.segment = Segment::create(ranks * shared_.stride, ranks * bytes_);
    for (int peer = 1; peer < self_.ranks; ++peer) {
      const std::string& request = requests[static_cast<std::size_t>(peer)];
      try {
        send_segment(request.substr(std::min(requests[0].size() + 1, request.size())), shared_.segment, self_.deadline);
      } catch (const Error& error) {
        // A launcher's store posts the loss of a peer after StoreJobOptions::loss_grace, 500 ms, at the latest.
        if (failure_->block_until_failed(Deadline::after(std::chrono::milliseconds(700)))) {
          failure_->throw_if_failed(self_.job_rank);
        }
        throw Error(error.code(), format_text("{} with {}: {}", {self_.doing, self_.name_of_rank(peer), error.what()}));
      }
    }
    std::uint64_t nonce = 0;
    const auto random = random_bytes<sizeof(nonce)>();
    std::memcpy(&nonce, random.data(), sizeof(nonce));
    return std::to_string(nonce);
  }

  void map_and_reserve() {
    try {
      if (receiver_) {
        shared_.segment = receiver_->receive(static_cast<std::size_t>(self_.ranks) * shared_.stride, self_.deadline);
        receiver_.reset();
      }
      shared_.segment->reserve(static_cast<std::size_t>(self_.rank) * shared_.stride, bytes_);
    } catch (const Error& error) {
      throw Error(error.code(), self_.rank == 0
                                    ? error.what()
                                    : format_text("on {}: {}", {self_.name_of_rank(self_.rank), error.what()}));
    }
  }

  StoreRank self_;
  const std::shared_ptr<FailureLatch> failure_;
  const std::string name_;  ///< prefix of the keys in the store
  const std::size_t bytes_;
  MappedSegment shared_;
  std::optional<SegmentReceiver> receiver_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
