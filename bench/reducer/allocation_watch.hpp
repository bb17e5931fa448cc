#pragma once
/// @file
/// Counts what this program takes from the heap, in every thread that is not left out. Included by the one source file
/// of a program.

#include <execinfo.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>

// The C library's own, which stay reachable by these names.
extern "C" {
void* __libc_malloc(std::size_t bytes);
void* __libc_calloc(std::size_t count, std::size_t bytes);
void* __libc_realloc(void* memory, std::size_t bytes);
void* __libc_memalign(std::size_t alignment, std::size_t bytes);
}

namespace bench {

/// One for the process. Threads: all.
class AllocationWatch {
 public:
  /// @param trace keep where the first few came from
  static void begin(bool trace) {
    std::array<void*, 2> frames{};
    ::backtrace(frames.data(), frames.size());  // the first call allocates
    tracing().store(trace);
    count().store(0);
    counting().store(true);
  }

  static void leave_out_this_thread() noexcept { is_left_out() = true; }

  /// @returns how many there were
  static std::size_t end() {
    counting().store(false);
    return count().load();
  }

  /// Writes to stderr where they came from; addr2line knows the lines.
  static void print_traces() {
    const std::size_t kept = std::min(count().load(), traces().size());
    for (std::size_t i = 0; i < kept; ++i) {
      static_cast<void>(::write(STDERR_FILENO, "allocation:\n", 12) + 0);
      ::backtrace_symbols_fd(traces()[i].frames.data(), traces()[i].size, STDERR_FILENO);
    }
  }

  static void note() {
    if (!counting().load(std::memory_order_relaxed) || is_left_out()) {
      return;
    }
    const std::size_t index = count().fetch_add(1);
    if (tracing().load() && index < traces().size()) {
      Trace& trace = traces()[index];
      trace.size = ::backtrace(trace.frames.data(), static_cast<int>(trace.frames.size()));
    }
  }

 private:
  struct Trace {
    std::array<void*, 24> frames{};
    int size = 0;
  };

  static bool& is_left_out() noexcept {
    static constinit thread_local bool value = false;
    return value;
  }
  static std::atomic<bool>& counting() {
    static constinit std::atomic<bool> value{false};
    return value;
  }
  static std::atomic<bool>& tracing() {
    static constinit std::atomic<bool> value{false};
    return value;
  }
  static std::atomic<std::size_t>& count() {
    static constinit std::atomic<std::size_t> value{0};
    return value;
  }
  static std::array<Trace, 16>& traces() {
    static constinit std::array<Trace, 16> value{};
    return value;
  }
};

}  // namespace bench

// operator new comes here too.
extern "C" {
void* malloc(std::size_t bytes) {
  bench::AllocationWatch::note();
  return __libc_malloc(bytes);
}
void* calloc(std::size_t count, std::size_t bytes) {
  bench::AllocationWatch::note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, std::size_t bytes) {
  bench::AllocationWatch::note();
  return __libc_realloc(memory, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) {
  bench::AllocationWatch::note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) {
  bench::AllocationWatch::note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, std::size_t alignment, std::size_t bytes) {
  bench::AllocationWatch::note();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}
