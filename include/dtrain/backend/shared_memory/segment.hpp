#pragma once
/// @file
/// Segment: owner of one mapping of shared memory (a memfd). SegmentSetup makes it, Channel keeps it.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/process/control_groups.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"

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
      return;  // posix_fallocate refuses 0 bytes
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

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
