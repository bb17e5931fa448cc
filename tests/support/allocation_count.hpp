#pragma once
/// @file
/// Counts every operator new of the program, and its bytes. Included by exactly one source file of a test program.

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace support {

inline std::atomic<std::size_t> allocations{0};
inline std::atomic<std::size_t> allocated_bytes{0};
inline thread_local std::size_t allocations_of_this_thread = 0;
/// What is allocated while it says true of the calling thread is not counted. Null: everything is counted.
inline std::atomic<bool (*)() noexcept> is_uncounted{nullptr};

inline void count(std::size_t bytes) noexcept {
  const auto uncounted = is_uncounted.load(std::memory_order_relaxed);
  if (uncounted != nullptr && uncounted()) return;
  allocations.fetch_add(1, std::memory_order_relaxed);
  ++allocations_of_this_thread;
  allocated_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

inline void* counted_or_null(std::size_t bytes, std::size_t alignment) noexcept {
  count(bytes);
  const std::size_t whole = (bytes + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
}

inline void* counted(std::size_t bytes, std::size_t alignment) {
  void* const memory = counted_or_null(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace support

// Not inlined: g++ would see free() beside a new-expression and warn of a mismatch.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return support::counted(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes) {
  return support::counted(bytes, alignof(std::max_align_t));
}
// The forms that do not throw are replaced too: AddressSanitizer's own would not fit the operator delete below.
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return support::counted_or_null(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return support::counted_or_null(bytes, alignof(std::max_align_t));
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return support::counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return support::counted(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}
