// dtrain 0.1.0: distributed data-parallel training for any C++ model, in one header.
// Made of include/dtrain by single_include/amalgamate.py; change it there.
//
// MIT License
//
// Copyright (c) dtrain contributors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.

#pragma once

#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <limits.h>
#include <linux/futex.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <climits>
#include <concepts>
#include <condition_variable>
#include <coroutine>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <exception>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// ---- dtrain/core/config.hpp

/// @file
/// The one reader of compiler macros: every other file asks here what the compiler can do.

#if !defined(__linux__)
#error "dtrain: Linux is the only system it runs on (epoll, memfd and futexes carry it)"
#endif

#if !defined(__cplusplus) || __cplusplus < 202002L
#error "dtrain: C++20 is needed; compile with -std=c++20 (g++ >= 12, clang >= 14, nvcc >= 12.4)"
#endif

/// 1 where ThreadSanitizer watches: deadlines get slack and fences it cannot see are avoided.
#if defined(__SANITIZE_THREAD__)
#define DTRAIN_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define DTRAIN_THREAD_SANITIZER 1
#endif
#endif
#ifndef DTRAIN_THREAD_SANITIZER
#define DTRAIN_THREAD_SANITIZER 0
#endif

/// The processor, for the one instruction that a spinning wait wants.
#if defined(__x86_64__) || defined(__i386__)
#define DTRAIN_X86 1
#else
#define DTRAIN_X86 0
#endif
#if defined(__aarch64__)
#define DTRAIN_ARM64 1
#else
#define DTRAIN_ARM64 0
#endif
#if defined(__x86_64__)
#define DTRAIN_X86_64 1
#else
#define DTRAIN_X86_64 0
#endif

/// Inlined at -O0 too: for the pieces that an inner loop is put together from.
#define DTRAIN_ALWAYS_INLINE inline __attribute__((always_inline))

#if defined(__clang__)
/// For an inner loop that is to be fast in an unoptimised program too. clang has no such attribute.
#define DTRAIN_OPTIMIZED
/// A helper with instructions that the including program may not be compiled for. clang refuses to inline it always
/// into a template without the same attribute, and inlines it all the same.
#define DTRAIN_TARGET_HELPER(isa) inline __attribute__((target(isa)))
#else
#define DTRAIN_OPTIMIZED __attribute__((optimize("O3")))
#define DTRAIN_TARGET_HELPER(isa) inline __attribute__((always_inline))
#endif

/// Opens a block whose floating-point arithmetic is done as written, whatever -ffast-math allows; where there is no
/// such pragma (g++; clang 14 on other processors), the code keeps its results apart by other means.
#if defined(__clang__) && DTRAIN_X86_64
#define DTRAIN_PRECISE_PRAGMA 1
#define DTRAIN_PRECISE_ARITHMETIC _Pragma("float_control(precise, on)")
#else
#define DTRAIN_PRECISE_PRAGMA 0
#define DTRAIN_PRECISE_ARITHMETIC
#endif

// ---- dtrain/core/version.hpp

/// @file
/// The version: CMake and the package files read these three numbers from here.

#define DTRAIN_VERSION_MAJOR 0
#define DTRAIN_VERSION_MINOR 1
#define DTRAIN_VERSION_PATCH 0

#define DTRAIN_DETAIL_JOIN_EXPANDED(a, b, c, d) a##b##c##d
#define DTRAIN_DETAIL_JOIN(a, b, c, d) DTRAIN_DETAIL_JOIN_EXPANDED(a, b, c, d)

/// What every file opens: `namespace DTRAIN_NAMESPACE::async {`. The inline namespace carries the version and nothing
/// else, so objects compiled with different options link, and objects of different versions do not mix silently.
#define DTRAIN_NAMESPACE dtrain::inline DTRAIN_DETAIL_JOIN(v, DTRAIN_VERSION_MAJOR, _, DTRAIN_VERSION_MINOR)

namespace DTRAIN_NAMESPACE {

struct Version {
  int major;
  int minor;
  int patch;

  friend constexpr bool operator==(const Version&, const Version&) = default;
};

inline constexpr Version version{DTRAIN_VERSION_MAJOR, DTRAIN_VERSION_MINOR, DTRAIN_VERSION_PATCH};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/deadline.hpp

/// @file
/// A point in time after which a wait gives up; every wait in dtrain has one.

namespace DTRAIN_NAMESPACE {

/// A steady-clock instant. There is no "never": a caller who means long says how long.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  /// A timeout beyond what the clock can tell ends with the clock.
  static Deadline after(Clock::duration timeout) {
    const Clock::time_point now = Clock::now();
    return Deadline(timeout < Clock::time_point::max() - now ? now + timeout : Clock::time_point::max());
  }
  static constexpr Deadline at(Clock::time_point instant) { return Deadline(instant); }

  bool passed() const { return Clock::now() >= instant_; }

  /// What is left, never negative.
  Clock::duration remaining() const { return std::max(Clock::duration::zero(), instant_ - Clock::now()); }

  constexpr Clock::time_point instant() const { return instant_; }

  /// The one that comes first.
  friend constexpr Deadline earlier(Deadline a, Deadline b) { return a.instant_ < b.instant_ ? a : b; }

 private:
  explicit constexpr Deadline(Clock::time_point instant) : instant_(instant) {}

  Clock::time_point instant_;
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/block_until.hpp

/// @file
/// Waiting on a condition variable until a deadline, in a form that ThreadSanitizer follows.

namespace DTRAIN_NAMESPACE {

/// Blocking: until `ready()` holds or the deadline passes; `lock` is held when it is asked. @returns the last
/// `ready()`.
template <class Ready>
bool block_until(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Deadline deadline, Ready ready) {
  while (!ready() && !deadline.passed()) {
    if constexpr (DTRAIN_THREAD_SANITIZER != 0) {  // g++ 12's does not know the wait on the steady clock
      changed.wait_until(lock, std::chrono::system_clock::now() + deadline.remaining());
    } else {
      changed.wait_until(lock, deadline.instant());
    }
  }
  return ready();
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/device.hpp

/// @file
/// Where memory lives and streams run.

namespace DTRAIN_NAMESPACE {

enum class DeviceKind : std::uint8_t { host = 1, cuda };

struct Device {
  DeviceKind kind = DeviceKind::host;
  std::int32_t index = 0;

  friend constexpr bool operator==(const Device&, const Device&) = default;
};

inline std::string to_string(Device device) {
  return device.kind == DeviceKind::host ? std::string("host") : "cuda:" + std::to_string(device.index);
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/dtype.hpp

/// @file
/// The element types that gradients and collectives come in.

namespace DTRAIN_NAMESPACE {

enum class DType : std::uint8_t { f64 = 1, f32, f16, bf16, i64, i32, u8 };

constexpr std::size_t size_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64:
    case DType::i64: return 8;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f16:
    case DType::bf16: return 2;
    case DType::u8: return 1;
  }
  return 0;
}

constexpr const char* name(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return "f64";
    case DType::f32: return "f32";
    case DType::f16: return "f16";
    case DType::bf16: return "bf16";
    case DType::i64: return "i64";
    case DType::i32: return "i32";
    case DType::u8: return "u8";
  }
  return "unknown dtype";
}

template <class T>
struct dtype_of;
template <>
struct dtype_of<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct dtype_of<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct dtype_of<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct dtype_of<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct dtype_of<std::uint8_t> : std::integral_constant<DType, DType::u8> {};

/// A C++ type that dtrain knows the DType of.
template <class T>
concept Element = requires {
  dtype_of<T>::value;
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/bfloat16.hpp

/// @file
/// The upper half of a float, as gradients are stored: no arithmetic, exact conversions.

namespace DTRAIN_NAMESPACE {

/// For programs without a bfloat16 of their own; float16.hpp says how another type (c10::BFloat16, __nv_bfloat16,
/// Eigen::bfloat16) is made known to dtrain.
struct bfloat16 {
  std::uint16_t bits = 0;

  constexpr bfloat16() noexcept = default;

  /// Rounds to nearest even; beyond the largest finite value to infinity. Every NaN becomes 0x7fc0.
  constexpr explicit bfloat16(float value) noexcept : bits(rounded(std::bit_cast<std::uint32_t>(value))) {}

  static constexpr bfloat16 from_bits(std::uint16_t bits) noexcept {
    bfloat16 value;
    value.bits = bits;
    return value;
  }

  /// Exact.
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(std::uint32_t{bits} << 16U); }

 private:
  static constexpr std::uint16_t rounded(std::uint32_t value) noexcept {
    if ((value & 0x7fffffffU) > 0x7f800000U) {
      return 0x7fc0;
    }
    return static_cast<std::uint16_t>((value + 0x7fffU + (value >> 16U & 1U)) >> 16U);
  }
};

template <>
struct dtype_of<bfloat16> : std::integral_constant<DType, DType::bf16> {};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/buffer_view.hpp

/// @file
/// A flat run of elements that somebody else owns: what a collective reads and writes.

namespace DTRAIN_NAMESPACE {

/// `count` elements of `dtype` at `data`, to write. Lifetime: the memory outlives every operation enqueued on it.
struct BufferView {
  std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
};

/// The same, to read.
struct ConstBufferView {
  const std::byte* data = nullptr;
  std::size_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  constexpr ConstBufferView() noexcept = default;
  constexpr ConstBufferView(const std::byte* source, std::size_t elements, DType type, Device where = {}) noexcept
      : data(source), count(elements), dtype(type), device(where) {}
  // NOLINTNEXTLINE(google-explicit-constructor): what may be written may be read.
  constexpr ConstBufferView(const BufferView& view) noexcept
      : data(view.data), count(view.count), dtype(view.dtype), device(view.device) {}

  constexpr std::size_t bytes() const noexcept { return count * size_bytes(dtype); }
};

/// The elements of a span of host memory.
template <Element T>
BufferView buffer_view(std::span<T> values) noexcept {
  return {reinterpret_cast<std::byte*>(values.data()), values.size(), dtype_of<T>::value, {}};
}

template <Element T>
ConstBufferView buffer_view(std::span<const T> values) noexcept {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size(), dtype_of<T>::value, {}};
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/float16.hpp

/// @file
/// IEEE 754's 16-bit float, as gradients are stored: no arithmetic, exact conversions.

namespace DTRAIN_NAMESPACE {

/// For programs without a half type of their own. One with another (c10::Half, __half, Eigen::half, _Float16) says once
///
///   template <> struct dtrain::dtype_of<c10::Half> : std::integral_constant<dtrain::DType, dtrain::DType::f16> {};
///
/// and passes spans of it; the type must hold the 16 bits and nothing else. The conversions are made of integers, so
/// that they are the same at compile time, under -ffast-math and where subnormals are flushed.
struct float16 {
  std::uint16_t bits = 0;

  constexpr float16() noexcept = default;

  /// Rounds to nearest even; beyond the largest finite value (65504) to infinity. Every NaN becomes 0x7e00.
  constexpr explicit float16(float value) noexcept : bits(rounded(std::bit_cast<std::uint32_t>(value))) {}

  static constexpr float16 from_bits(std::uint16_t bits) noexcept {
    float16 value;
    value.bits = bits;
    return value;
  }

  /// Exact.
  constexpr explicit operator float() const noexcept { return std::bit_cast<float>(widened(bits)); }

 private:
  static constexpr std::uint16_t rounded(std::uint32_t value) noexcept {
    const std::uint32_t sign = value >> 16U & 0x8000U;
    const std::uint32_t magnitude = value & 0x7fffffffU;
    const std::uint32_t exponent = magnitude >> 23U;
    if (magnitude > 0x7f800000U) {
      return 0x7e00;
    }
    std::uint32_t result = 0;
    if (exponent >= 143) {  // 2^16 and more
      result = 0x7c00U;
    } else if (exponent >= 113) {  // normal; a carry out of the digits raises the exponent, as it must
      result = shifted(magnitude - (112U << 23U), 13);
    } else if (exponent >= 102) {  // a multiple of 2^-24
      result = shifted((magnitude & 0x7fffffU) | 0x800000U, 126 - exponent);
    }
    return static_cast<std::uint16_t>(sign | result);
  }

  /// value / 2^digits, to nearest even.
  static constexpr std::uint32_t shifted(std::uint32_t value, std::uint32_t digits) noexcept {
    const std::uint32_t below_half = (1U << (digits - 1U)) - 1U;
    return (value + below_half + (value >> digits & 1U)) >> digits;
  }

  static constexpr std::uint32_t widened(std::uint32_t half) noexcept {
    const std::uint32_t sign = (half & 0x8000U) << 16U;
    const std::uint32_t exponent = half >> 10U & 0x1fU;
    const std::uint32_t digits = half & 0x3ffU;
    if (exponent == 0x1f) {
      return sign | 0x7f800000U | digits << 13U;
    }
    if (exponent != 0) {
      return sign | (exponent + 112U) << 23U | digits << 13U;
    }
    if (digits == 0) {
      return sign;
    }
    const auto shift = static_cast<std::uint32_t>(std::countl_zero(digits)) - 21U;  // to bit 10, the implicit one
    return sign | (113U - shift) << 23U | (digits << shift & 0x3ffU) << 13U;
  }
};

template <>
struct dtype_of<float16> : std::integral_constant<DType, DType::f16> {};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/futex.hpp

/// @file
/// Waiting on a 32-bit word with a deadline, inside a process or across processes (raw futexes).

namespace DTRAIN_NAMESPACE {

static_assert(sizeof(std::atomic<std::uint32_t>) == 4 && std::atomic<std::uint32_t>::is_always_lock_free,
              "dtrain: a futex needs a lock-free 32-bit atomic");

/// Who can wait on a word: threads of one process, or every process that has mapped it. std::atomic::wait knows only
/// the first kind: it never wakes another process.
enum class FutexScope : int { process = FUTEX_PRIVATE_FLAG, shared = 0 };

/// `awake` says nothing about why: the caller looks at its condition again.
enum class FutexResult { awake, timed_out };

/// Blocking: sleeps while `word` equals `expected`, until somebody wakes the word or the deadline passes. Signals of
/// the operating system do not end the wait. Returns at once where the word differs.
inline FutexResult futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t expected, Deadline deadline,
                              FutexScope scope) noexcept {
  using std::chrono::nanoseconds;
  // FUTEX_WAIT_BITSET takes an absolute time of CLOCK_MONOTONIC, which is the steady clock: a retry costs no
  // arithmetic.
  const auto instant = std::chrono::duration_cast<nanoseconds>(deadline.instant().time_since_epoch()).count();
  timespec until{};
  until.tv_sec = static_cast<time_t>(instant > 0 ? instant / 1'000'000'000 : 0);
  until.tv_nsec = static_cast<long>(instant > 0 ? instant % 1'000'000'000 : 0);
  const int operation = FUTEX_WAIT_BITSET | static_cast<int>(scope);
  while (::syscall(SYS_futex, &word, operation, expected, &until, nullptr, FUTEX_BITSET_MATCH_ANY) != 0) {
    if (errno != EINTR) {
      return errno == ETIMEDOUT ? FutexResult::timed_out : FutexResult::awake;  // EAGAIN: the word differs
    }
  }
  return FutexResult::awake;
}

/// Wakes up to `count` sleepers of the word. The word need not be alive: a stray address wakes nobody.
/// @returns how many were woken.
inline int futex_wake(const std::atomic<std::uint32_t>& word, int count, FutexScope scope) noexcept {
  const long woken = ::syscall(SYS_futex, &word, FUTEX_WAKE | static_cast<int>(scope), count, nullptr, nullptr, 0);
  return woken > 0 ? static_cast<int>(woken) : 0;
}

inline int futex_wake_all(const std::atomic<std::uint32_t>& word, FutexScope scope) noexcept {
  return futex_wake(word, INT_MAX, scope);
}

/// Tells the processor that this is a spinning wait.
inline void spin_pause() noexcept {
#if DTRAIN_X86
  __asm__ __volatile__("pause");
#elif DTRAIN_ARM64
  __asm__ __volatile__("yield");
#endif
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/log.hpp

/// @file
/// Lines to stderr, each in one write, from a level that DTRAIN_LOG sets.

namespace DTRAIN_NAMESPACE {

enum class LogLevel : int { off = 0, error, warning, info, debug };

/// The level that DTRAIN_LOG names; warning where it is unset or names none.
inline LogLevel log_level_of(const char* text) noexcept {
  const std::string_view name = text == nullptr ? "" : text;
  if (name == "off") return LogLevel::off;
  if (name == "error") return LogLevel::error;
  if (name == "info") return LogLevel::info;
  if (name == "debug") return LogLevel::debug;
  return LogLevel::warning;
}

/// Whether `name` is a level: what DTRAIN_LOG may be set to.
inline bool is_log_level(std::string_view name) noexcept {
  return name == "off" || name == "error" || name == "warning" || name == "info" || name == "debug";
}

/// Writes "dtrain: text\n" to stderr if `level` is wanted. A full or closed stderr is not an error of the job.
inline void log(LogLevel level, std::string_view text) {
  static const LogLevel wanted = log_level_of(std::getenv("DTRAIN_LOG"));
  if (level > wanted || level == LogLevel::off) {
    return;
  }
  std::string line = "dtrain: ";
  line.append(text).push_back('\n');
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  static_cast<void>(written);
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/printable.hpp

/// @file
/// Texts from elsewhere, made fit for a terminal or a log.

namespace DTRAIN_NAMESPACE {

namespace detail {

/// How many bytes of `text` are its first character in UTF-8, where it is one that may be shown; else 0.
/// Not shown are control characters (C0, DEL, C1), what changes the direction of the text that follows, line and
/// paragraph separators, and what is no UTF-8 (overlong forms and surrogates included).
inline std::size_t shown_character(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) {
    return first >= 0x20 && first != 0x7f ? 1 : 0;
  }
  const std::size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  constexpr std::uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
  if (first < 0xc0 || first > 0xf4 || text.size() < length) {
    return 0;
  }
  std::uint32_t code = first & (0x7fU >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0U) != 0x80U) {
      return 0;
    }
    code = (code << 6) | (byte(i) & 0x3fU);
  }
  const bool hidden = code < smallest[length] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) || code < 0xa0 ||
                      (code >= 0x200e && code <= 0x200f) || (code >= 0x2028 && code <= 0x202e) ||
                      (code >= 0x2066 && code <= 0x2069);
  return hidden ? 0 : length;
}

}  // namespace detail

/// The text with everything that a terminal would not show as itself written as \n, \r, \t or \x1b (one for each byte).
/// What comes from another process goes through here before it becomes part of a sentence: it can then neither move the
/// cursor nor begin a line of its own. A printable text stays as it is.
inline std::string printable(std::string_view text) {
  constexpr char digits[] = "0123456789abcdef";
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const std::size_t length = detail::shown_character(text);
    if (length > 0) {
      shown += text.substr(0, length);
      text.remove_prefix(length);
      continue;
    }
    const auto byte = static_cast<unsigned char>(text.front());
    text.remove_prefix(1);
    if (byte == '\n' || byte == '\r' || byte == '\t') {
      shown += byte == '\n' ? "\\n" : byte == '\r' ? "\\r" : "\\t";
    } else {
      shown += {'\\', 'x', digits[byte >> 4], digits[byte & 0xf]};
    }
  }
  return shown;
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/reduce_op.hpp

/// @file
/// The operations that a reduction combines ranks with.

namespace DTRAIN_NAMESPACE {

/// `average` is the sum divided by the number of ranks, in one pass where the backend can.
enum class ReduceOp : std::uint8_t { sum = 1, average, min, max, product };

constexpr const char* name(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::average: return "average";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
  }
  return "unknown reduction";
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/seconds_text.hpp

/// @file
/// Durations for sentences.

namespace DTRAIN_NAMESPACE {

/// "0.3 s", "600.0 s".
inline std::string seconds_text(Deadline::Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/sha256.hpp

/// @file
/// SHA-256 as FIPS 180-4 specifies it, fed piece by piece.

namespace DTRAIN_NAMESPACE {

/// The 32 bytes of a SHA-256 digest, in the order that they are written.
using Sha256Digest = std::array<std::byte, 32>;

/// Two lower-case digits a byte, the first byte first.
inline std::string hex(std::span<const std::byte> bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte value : bytes) {
    text.push_back(digits[std::to_integer<std::size_t>(value >> 4)]);
    text.push_back(digits[std::to_integer<std::size_t>(value & std::byte{15})]);
  }
  return text;
}

/// A digest under way. A copy continues on its own, so a common beginning (an HMAC's padded key) is hashed once.
/// Threads: none but the one that uses it.
class Sha256 {
 public:
  static constexpr std::size_t block_bytes = 64;

  /// Appends `bytes` to the message; the digest does not depend on how the message was cut.
  Sha256& update(std::span<const std::byte> bytes) noexcept {
    message_bytes_ += bytes.size();
    if (pending_ > 0) {
      const std::size_t taken = bytes.size() < block_bytes - pending_ ? bytes.size() : block_bytes - pending_;
      copy(bytes.first(taken));
      bytes = bytes.subspan(taken);
      if (pending_ < block_bytes) return *this;
      compress(block_.data());
      pending_ = 0;
    }
    for (; bytes.size() >= block_bytes; bytes = bytes.subspan(block_bytes)) {
      compress(bytes.data());
    }
    copy(bytes);
    return *this;
  }

  Sha256& update(std::string_view text) noexcept { return update(std::as_bytes(std::span(text))); }

  /// The digest of what came so far; the message may go on afterwards.
  Sha256Digest digest() const noexcept {
    Sha256 last = *this;
    last.finish();
    Sha256Digest bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>(last.state_[i / 4] >> (24 - 8 * (i % 4)));
    }
    return bytes;
  }

 private:
  /// Section 5.1.1: a 1 bit, zeros, and the message's length in bits as 64 of them, to the end of a block.
  void finish() noexcept {
    const std::uint64_t bits = message_bytes_ * 8;
    std::array<std::byte, 2 * block_bytes> padding{};
    padding[0] = std::byte{0x80};
    const std::size_t zeros_end = (pending_ < 56 ? 56 : 120) - pending_;
    for (std::size_t i = 0; i < 8; ++i) {
      padding[zeros_end + i] = static_cast<std::byte>(bits >> (56 - 8 * i));
    }
    update(std::span(padding).first(zeros_end + 8));
  }

  void copy(std::span<const std::byte> bytes) noexcept {
    if (bytes.empty()) return;  // memcpy from a null address is undefined even for no bytes
    std::memcpy(block_.data() + pending_, bytes.data(), bytes.size());
    pending_ += bytes.size();
  }

  /// Section 6.2.2, one block of 64 bytes.
  void compress(const std::byte* block) noexcept {
    std::array<std::uint32_t, 64> w;
    for (std::size_t t = 0; t < 16; ++t) {
      w[t] = std::to_integer<std::uint32_t>(block[4 * t]) << 24 |
             std::to_integer<std::uint32_t>(block[4 * t + 1]) << 16 |
             std::to_integer<std::uint32_t>(block[4 * t + 2]) << 8 | std::to_integer<std::uint32_t>(block[4 * t + 3]);
    }
    for (std::size_t t = 16; t < 64; ++t) {
      const std::uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ w[t - 15] >> 3;
      const std::uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ w[t - 2] >> 10;
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) + ((e & f) ^ (~e & g)) +
                               round_constants[t] + w[t];
      const std::uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> added{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < state_.size(); ++i) {
      state_[i] += added[i];
    }
  }

  /// Section 4.2.2: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
  static constexpr std::array<std::uint32_t, 64> round_constants{
      0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
      0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
      0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
      0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
      0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
      0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
      0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
      0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

  /// Section 5.3.3: the same of the square roots of the first eight primes.
  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, block_bytes> block_{};
  std::size_t pending_ = 0;
  std::uint64_t message_bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/hmac.hpp

/// @file
/// HMAC-SHA256 as RFC 2104 specifies it.

namespace DTRAIN_NAMESPACE {

/// A keyed digest under way: who does not know the key can neither make nor check it. A copy continues on its own.
/// Threads: none but the one that uses it.
class HmacSha256 {
 public:
  explicit HmacSha256(std::span<const std::byte> key) noexcept {
    std::array<std::byte, Sha256::block_bytes> block{};
    const Sha256Digest hashed = key.size() > block.size() ? Sha256().update(key).digest() : Sha256Digest{};
    const std::span<const std::byte> used = key.size() > block.size() ? std::span<const std::byte>(hashed) : key;
    for (std::size_t i = 0; i < used.size(); ++i) {
      block[i] = used[i];
    }
    inner_.update(xored(block, std::byte{0x36}));
    outer_.update(xored(block, std::byte{0x5c}));
  }

  HmacSha256& update(std::span<const std::byte> bytes) noexcept {
    inner_.update(bytes);
    return *this;
  }
  HmacSha256& update(std::string_view text) noexcept { return update(std::as_bytes(std::span(text))); }

  /// The digest of what came so far; the message may go on afterwards.
  Sha256Digest digest() const noexcept {
    const Sha256Digest inner = inner_.digest();
    return Sha256(outer_).update(inner).digest();
  }

 private:
  static std::array<std::byte, Sha256::block_bytes> xored(std::array<std::byte, Sha256::block_bytes> block,
                                                          std::byte pad) noexcept {
    for (std::byte& each : block) {
      each ^= pad;
    }
    return block;
  }

  Sha256 inner_;
  Sha256 outer_;
};

/// Whether two digests are equal, in a time that does not tell where they differ.
inline bool equal_in_constant_time(const Sha256Digest& a, const Sha256Digest& b) noexcept {
  volatile std::uint8_t difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = static_cast<std::uint8_t>(difference | std::to_integer<unsigned>(a[i] ^ b[i]));
  }
  return difference == 0;
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/source_location.hpp

/// @file
/// A place in the source; clang 14 with libstdc++ 12 has no std::source_location.

namespace DTRAIN_NAMESPACE {

struct SourceLocation {
  const char* file = "";
  const char* function = "";
  unsigned line = 0;

  static constexpr SourceLocation current(const char* file = __builtin_FILE(),
                                          const char* function = __builtin_FUNCTION(),
                                          unsigned line = __builtin_LINE()) noexcept {
    return {file, function, line};
  }
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/error.hpp

/// @file
/// dtrain::Error: what was being done, what went wrong, what to do, and where.

namespace DTRAIN_NAMESPACE {

/// The codes of dtrain's own category. Codes of the system, CUDA, NCCL, MPI and Gloo keep their own categories.
enum class Errc : int {
  invalid_argument = 1,  ///< a caller broke a documented precondition
  usage,                 ///< a command line that cannot be followed
  identity,              ///< the environment does not say who this process is
  timeout,               ///< a deadline passed
  cancelled,             ///< the operation was given up by its owner
  closed,                ///< the other side closed the connection
  refused,               ///< the other side said no, and said why
  protocol,              ///< bytes from outside that do not follow the protocol
  limit,                 ///< a stated bound would be exceeded
  disagreement,          ///< ranks differ in what must be the same
  missing_gradient,      ///< a parameter got no gradient in a step
  unsupported,           ///< this backend cannot do it
  out_of_memory,         ///< shared or device memory could not be had
  job_failed,            ///< another rank failed first; the cause says how
  peer_lost,             ///< another rank's process went away
};

/// The category of Errc, named "dtrain".
inline const std::error_category& dtrain_category() noexcept {
  struct Category final : std::error_category {
    const char* name() const noexcept override { return "dtrain"; }
    std::string message(int code) const override {
      switch (static_cast<Errc>(code)) {
        case Errc::invalid_argument: return "invalid argument";
        case Errc::usage: return "usage error";
        case Errc::identity: return "identity error";
        case Errc::timeout: return "deadline passed";
        case Errc::cancelled: return "cancelled";
        case Errc::closed: return "connection closed";
        case Errc::refused: return "refused";
        case Errc::protocol: return "protocol violation";
        case Errc::limit: return "limit exceeded";
        case Errc::disagreement: return "ranks disagree";
        case Errc::missing_gradient: return "parameter without a gradient";
        case Errc::unsupported: return "unsupported";
        case Errc::out_of_memory: return "out of memory";
        case Errc::job_failed: return "job failed";
        case Errc::peer_lost: return "peer lost";
      }
      return "unknown dtrain error";
    }
  };
  static const Category category;
  return category;
}

inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), dtrain_category()};
}

/// Every exception that dtrain throws. `what()` is the sentence alone; `code()` has the category and number.
class Error : public std::system_error {
 public:
  Error(std::error_code code, std::string sentence, SourceLocation where = SourceLocation::current())
      : std::system_error(code), sentence_(std::move(sentence)), where_(where) {}

  Error(Errc code, std::string sentence, SourceLocation where = SourceLocation::current())
      : Error(make_error_code(code), std::move(sentence), where) {}

  const char* what() const noexcept override { return sentence_.c_str(); }

  /// Where in dtrain (or in the user's code, for a precondition) it was noticed.
  const SourceLocation& where() const noexcept { return where_; }

  /// The rank of the process that threw, once it knew one.
  std::optional<int> rank() const noexcept { return rank_; }

  Error& with_rank(int rank) noexcept {
    rank_ = rank;
    return *this;
  }

 private:
  std::string sentence_;
  SourceLocation where_;
  std::optional<int> rank_;
};

/// An Error of the posix category: "doing: strerror(number)", with what to do where the caller knows it.
[[nodiscard]] inline Error posix_error(int number, const std::string& doing, const std::string& remedy = {},
                                       SourceLocation where = SourceLocation::current()) {
  const std::error_code code(number, std::generic_category());
  return {code, doing + ": " + code.message() + (remedy.empty() ? "" : "; " + remedy), where};
}

/// posix_error of the present errno.
[[nodiscard]] inline Error errno_error(const std::string& doing, const std::string& remedy = {},
                                       SourceLocation where = SourceLocation::current()) {
  return posix_error(errno, doing, remedy, where);
}

}  // namespace DTRAIN_NAMESPACE

template <>
struct std::is_error_code_enum<dtrain::Errc> : std::true_type {};

// ---- dtrain/core/cause.hpp

/// @file
/// The first cause of a job's failure, as every rank reports it.

namespace DTRAIN_NAMESPACE {

enum class CauseKind : std::uint8_t {
  lost = 1,      ///< a rank's connection closed without leave(ok): killed, crashed, or left before the end
  exception,     ///< an exception left user code or a step on a rank
  timeout,       ///< a deadline passed
  disagreement,  ///< ranks differ in what must be the same
  stopped,       ///< the launcher was told to stop
};

/// Posted once for a job; the first one wins. `rank` is -1 where no rank is to blame.
struct Cause {
  CauseKind kind = CauseKind::lost;
  int rank = -1;
  std::string host;
  std::string text;  ///< what it was doing, the exception's text, or the difference

  /// "rank 1 on host gpu-a was lost: ..." in one sentence.
  std::string sentence() const {
    const std::string who =
        rank < 0 ? std::string("the job") : "rank " + std::to_string(rank) + (host.empty() ? "" : " on host " + host);
    switch (kind) {
      case CauseKind::lost: return who + " was lost: " + text;
      case CauseKind::exception: return who + " failed: " + text;
      case CauseKind::timeout: return who + " waited in vain: " + text;
      case CauseKind::disagreement: return "ranks disagree: " + text;
      case CauseKind::stopped: return who + " was stopped: " + text;
    }
    return who + ": " + text;
  }
};

/// Thrown on a rank that fell only because the job failed elsewhere first.
class JobFailed : public Error {
 public:
  explicit JobFailed(Cause cause, SourceLocation where = SourceLocation::current())
      : JobFailed(Errc::job_failed, std::move(cause), where) {}

  const Cause& cause() const noexcept { return cause_; }

 protected:
  JobFailed(Errc code, Cause cause, SourceLocation where)
      : Error(code, cause.sentence(), where), cause_(std::move(cause)) {}

 private:
  Cause cause_;
};

/// A JobFailed whose cause is that a rank's process went away.
class PeerLost : public JobFailed {
 public:
  explicit PeerLost(Cause cause, SourceLocation where = SourceLocation::current())
      : JobFailed(Errc::peer_lost, std::move(cause), where) {}

  /// The lost rank, and the host it ran on.
  int lost_rank() const noexcept { return cause().rank; }
  const std::string& host() const noexcept { return cause().host; }
};

/// @throws PeerLost where the cause is a lost rank, JobFailed for every other cause.
[[noreturn]] inline void throw_cause(const Cause& cause, SourceLocation where = SourceLocation::current()) {
  if (cause.kind == CauseKind::lost) {
    throw PeerLost(cause, where);
  }
  throw JobFailed(cause, where);
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/failure_latch.hpp

/// @file
/// The place where a rank keeps the job's first cause, and from which everything that waits is woken.

namespace DTRAIN_NAMESPACE {

/// Set once, read by every thread of the rank. Threads: all members may be called concurrently.
///
/// Two ways lead in: `set` by the control plane, which knows the job's first cause, and `report` by whoever on this
/// rank noticed something. A report goes to the reporter that the group installed (it asks the store, which answers
/// every rank with the cause that came first); without one it is set at once.
class FailureLatch : public std::enable_shared_from_this<FailureLatch> {
 public:
  using Listener = std::function<void(const Cause&)>;
  using Reporter = std::function<void(const Cause&)>;

  /// Owns a listener's place: after its destruction the listener is not running and will not be called.
  /// A listener must not destroy its own Subscription.
  class Subscription {
   public:
    Subscription() noexcept = default;
    Subscription(Subscription&& other) noexcept
        : latch_(std::move(other.latch_)), place_(std::exchange(other.place_, {})) {}
    Subscription& operator=(Subscription&& other) noexcept {
      if (this != &other) {
        reset();
        latch_ = std::move(other.latch_);
        place_ = std::exchange(other.place_, {});
      }
      return *this;
    }
    ~Subscription() { reset(); }

    void reset() noexcept {
      if (const std::shared_ptr<FailureLatch> latch = std::exchange(latch_, nullptr)) {
        const std::lock_guard lock(latch->mutex_);
        latch->listeners_.erase(place_);
      }
    }

   private:
    friend class FailureLatch;
    Subscription(std::shared_ptr<FailureLatch> latch, std::list<Listener>::iterator place) noexcept
        : latch_(std::move(latch)), place_(place) {}

    std::shared_ptr<FailureLatch> latch_;
    std::list<Listener>::iterator place_{};
  };

  bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }

  /// The first cause; nothing while the job is well.
  std::optional<Cause> cause() const {
    if (!failed()) {
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Keeps `cause` if it is the first and calls every listener with it, in this thread, before it returns.
  /// @returns whether it was the first.
  bool set(const Cause& cause) {
    const std::lock_guard lock(mutex_);
    if (failed()) {
      return false;
    }
    cause_ = cause;
    failed_.store(true, std::memory_order_release);
    for (const Listener& listener : listeners_) {
      listener(*cause_);
    }
    changed_.notify_all();
    return true;
  }

  /// Blocking: until the job has failed or the deadline passes. @returns whether it has failed.
  bool block_until_failed(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return failed(); });
  }

  /// Tells the job of a failure noticed on this rank. The job's first cause may be another one.
  void report(const Cause& cause) {
    Reporter reporter;
    {
      const std::lock_guard lock(mutex_);
      reporter = reporter_;
    }
    if (reporter) {
      reporter(cause);
    } else {
      set(cause);
    }
  }

  /// Installs who takes reports to the store; an empty one takes it out again.
  void set_reporter(Reporter reporter) {
    const std::lock_guard lock(mutex_);
    reporter_ = std::move(reporter);
  }

  /// Calls `listener` once: when the job fails, or now if it has. It must not block, throw or touch this latch.
  [[nodiscard]] Subscription subscribe(Listener listener) {
    const std::lock_guard lock(mutex_);
    const auto place = listeners_.insert(listeners_.end(), std::move(listener));
    if (failed()) {
      (*place)(*cause_);
    }
    return {shared_from_this(), place};
  }

  /// @throws PeerLost, JobFailed: the job's first cause, on a rank that is not its origin; Error on the origin itself.
  void throw_if_failed(int own_rank) const {
    const std::optional<Cause> found = cause();
    if (!found) {
      return;
    }
    if (found->rank != own_rank || found->kind == CauseKind::lost) {
      throw_cause(*found);
    }
    const Errc code = found->kind == CauseKind::timeout        ? Errc::timeout
                      : found->kind == CauseKind::disagreement ? Errc::disagreement
                                                               : Errc::job_failed;
    throw Error(code, found->sentence()).with_rank(own_rank);
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::atomic<bool> failed_{false};
  std::optional<Cause> cause_;
  std::list<Listener> listeners_;
  Reporter reporter_;
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/stream_handle.hpp

/// @file
/// A stream of any kind, by its device and its native handle, for calls that user code makes without templates.

namespace DTRAIN_NAMESPACE {

/// Names the stream that produced a gradient. For the host `native` is null: the work is already done when the handle
/// is passed. For CUDA it is the cudaStream_t. Lifetime: the stream outlives the step it is passed to.
struct StreamHandle {
  Device device{};
  void* native = nullptr;
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/core/tensor_view.hpp

/// @file
/// A contiguous tensor that somebody else owns: address, shape, element type, device.

namespace DTRAIN_NAMESPACE {

/// Up to eight extents, in elements, outermost first. A shape without extents is one element.
class Shape {
 public:
  static constexpr std::size_t max_rank = 8;

  constexpr Shape() noexcept = default;

  /// @throws Error (invalid_argument) for more than eight extents, a negative one, or a product beyond 2^60: its
  /// bytes still fit a size_t.
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}

  explicit Shape(std::span<const std::int64_t> extents) {
    if (extents.size() > max_rank) {
      throw Error(Errc::invalid_argument,
                  "a shape has " + std::to_string(extents.size()) + " extents; at most 8 are possible");
    }
    for (const std::int64_t extent : extents) {
      if (extent < 0 || (extent > 0 && element_count_ > (std::int64_t{1} << 60) / extent)) {
        throw Error(Errc::invalid_argument,
                    "extent " + std::to_string(extent) + " of a shape is negative or makes it too large");
      }
      extents_[rank_++] = extent;
      element_count_ *= extent;
    }
  }

  constexpr std::span<const std::int64_t> extents() const noexcept { return {extents_.data(), rank_}; }
  constexpr std::size_t element_count() const noexcept { return static_cast<std::size_t>(element_count_); }

  friend constexpr bool operator==(const Shape&, const Shape&) = default;

 private:
  std::array<std::int64_t, max_rank> extents_{};
  std::size_t rank_ = 0;
  std::int64_t element_count_ = 1;
};

/// "[784, 256]".
inline std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape.extents()) {
    text += (text.size() > 1 ? ", " : "") + std::to_string(extent);
  }
  return text + "]";
}

/// Row-major and contiguous. Lifetime: the memory outlives the view's last use.
struct TensorView {
  std::byte* data = nullptr;
  Shape shape{};
  DType dtype = DType::f32;
  Device device{};

  constexpr BufferView flat() const noexcept { return {data, shape.element_count(), dtype, device}; }
  constexpr std::size_t bytes() const noexcept { return flat().bytes(); }

  /// The elements, for host code that knows the type.
  /// @throws Error (invalid_argument) if T is not the view's element type or the memory is not the host's.
  template <Element T>
  std::span<T> as() const {
    if (dtype_of<T>::value != dtype || device.kind != DeviceKind::host) {
      throw Error(Errc::invalid_argument, std::string("a view of ") + name(dtype) + " on " + to_string(device) +
                                              " was read as " + name(dtype_of<T>::value) + " on host");
    }
    return {reinterpret_cast<T*>(data), shape.element_count()};
  }
};

/// A view of host memory: `tensor_view(weights.data(), {784, 256})`.
template <Element T>
TensorView tensor_view(T* data, Shape shape) noexcept {
  return {reinterpret_cast<std::byte*>(data), shape, dtype_of<T>::value, {}};
}

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/kernels/float_environment.hpp

/// @file
/// The rounding and the subnormals of IEEE 754 for a scope, whatever the caller's thread has set.

#if !DTRAIN_X86_64 && !DTRAIN_ARM64
#include <cfenv>
#endif

namespace DTRAIN_NAMESPACE::kernels {

/// A program linked with -ffast-math starts with subnormals flushed to zero (crtfastmath.o), and a user may have set
/// another rounding or trap on inexact results. Where all is as a program finds it, nothing is written; then the flags
/// that record exceptions may be raised, as by any arithmetic.
class DefaultFloatEnvironment {
 public:
#if DTRAIN_X86_64
  DefaultFloatEnvironment() noexcept {
    asm volatile("stmxcsr %0" : "=m"(saved_)::"memory");
    set_ = (saved_ & ~recorded_exceptions) != standard;
    if (set_) {
      const std::uint32_t value = standard;
      asm volatile("ldmxcsr %0" ::"m"(value) : "memory");
    }
  }
  ~DefaultFloatEnvironment() {
    if (set_) {
      asm volatile("ldmxcsr %0" ::"m"(saved_) : "memory");
    }
  }
#elif DTRAIN_ARM64
  DefaultFloatEnvironment() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_)::"memory");
    set_ = saved_ != standard;
    if (set_) {
      asm volatile("msr fpcr, %0" ::"r"(standard) : "memory");
    }
  }
  ~DefaultFloatEnvironment() {
    if (set_) {
      asm volatile("msr fpcr, %0" ::"r"(saved_) : "memory");
    }
  }
#else
  DefaultFloatEnvironment() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatEnvironment() {
    std::fesetenv(&saved_);
  }
#endif
  DefaultFloatEnvironment(const DefaultFloatEnvironment&) = delete;
  DefaultFloatEnvironment& operator=(const DefaultFloatEnvironment&) = delete;

 private:
#if DTRAIN_X86_64
  static constexpr std::uint32_t standard = 0x1f80;  // all exceptions masked, to nearest, subnormals kept
  static constexpr std::uint32_t recorded_exceptions = 0x3f;
  std::uint32_t saved_ = 0;
  bool set_ = false;
#elif DTRAIN_ARM64
  static constexpr std::uint64_t standard = 0;
  std::uint64_t saved_ = 0;
  bool set_ = false;
#else
  std::fenv_t saved_{};
#endif
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/isa.hpp

/// @file
/// Which of a processor's vector instructions a kernel is compiled for.

namespace DTRAIN_NAMESPACE::kernels {

/// In ascending order: a processor that runs one runs those before it. All give the same bits.
enum class Isa : std::uint8_t {
  baseline,  ///< generic vector code: every processor that the program itself runs on
  avx2,      ///< AVX2 and F16C
  avx512,    ///< AVX-512 F, BW, VL and DQ
};

constexpr const char* name(Isa isa) noexcept {
  switch (isa) {
    case Isa::baseline: return "baseline";
    case Isa::avx2: return "avx2";
    case Isa::avx512: return "avx512";
  }
  return "unknown instructions";
}

#if DTRAIN_X86_64
/// What the instruction `cpuid` answers.
struct ProcessorAnswer {
  std::uint32_t a, b, c, d;
};

inline ProcessorAnswer ask_processor(std::uint32_t leaf) noexcept {
  ProcessorAnswer answer{leaf, 0, 0, 0};
  asm volatile("cpuid" : "+a"(answer.a), "=b"(answer.b), "+c"(answer.c), "=d"(answer.d));
  return answer;
}

/// The registers that the operating system saves when it switches threads; meaningful only with OSXSAVE.
inline std::uint32_t registers_saved_by_system() noexcept {
  std::uint32_t low = 0;
  asm volatile("xgetbv" : "=a"(low) : "c"(0) : "edx");
  return low;
}

/// Source of the bits: Intel's Software Developer's Manual, volume 2, CPUID; volume 1, chapter 13 (XCR0).
inline Isa isa_of_processor() noexcept {
  if (ask_processor(0).a < 7) {
    return Isa::baseline;
  }
  const auto all = [](std::uint32_t word, std::uint32_t bits) { return (word & bits) == bits; };
  constexpr std::uint32_t osxsave_avx_f16c = 1U << 27 | 1U << 28 | 1U << 29;
  const ProcessorAnswer features = ask_processor(1);
  const ProcessorAnswer extended = ask_processor(7);
  constexpr std::uint32_t ymm = 1U << 1 | 1U << 2;
  constexpr std::uint32_t avx2 = 1U << 5;
  if (!all(features.c, osxsave_avx_f16c) || !all(registers_saved_by_system(), ymm) || !all(extended.b, avx2)) {
    return Isa::baseline;
  }
  constexpr std::uint32_t zmm = 1U << 5 | 1U << 6 | 1U << 7;
  constexpr std::uint32_t f_dq_bw_vl = 1U << 16 | 1U << 17 | 1U << 30 | 1U << 31;
  return all(registers_saved_by_system(), zmm) && all(extended.b, f_dq_bw_vl) ? Isa::avx512 : Isa::avx2;
}
#else
inline Isa isa_of_processor() noexcept {
  return Isa::baseline;
}
#endif

/// The fastest that this machine runs. Asked once: in a virtual machine `cpuid` takes microseconds.
inline Isa best_isa() noexcept {
  static const Isa best = isa_of_processor();
  return best;
}

inline bool runs_on_this_machine(Isa isa) noexcept {
  return isa <= best_isa();
}

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/vector.hpp

/// @file
/// Vectors of any width, which the compiler makes from what the calling function's target has.

namespace DTRAIN_NAMESPACE::kernels {

template <class Lane, std::size_t Width>
struct VectorOf {
  typedef Lane type __attribute__((vector_size(Width)));
};

/// `Width` bytes of lanes. Passed by reference everywhere: by value a wide one has another ABI in every target.
template <class Lane, std::size_t Width>
using Vector = typename VectorOf<Lane, Width>::type;

/// At any alignment.
template <class V>
DTRAIN_ALWAYS_INLINE void load(V& to, const std::byte* from) noexcept {
  std::memcpy(&to, from, sizeof(V));
}

template <class V>
DTRAIN_ALWAYS_INLINE void store(std::byte* to, const V& from) noexcept {
  std::memcpy(to, &from, sizeof(V));
}

/// Puts `chosen` where the mask's lanes are all ones. Integer lanes.
template <class V>
DTRAIN_ALWAYS_INLINE void replace_where(V& value, const V& mask, const V& chosen) noexcept {
  value = (value & ~mask) | (chosen & mask);
}

/// The same value in every lane.
template <class Lane, std::size_t Width>
DTRAIN_ALWAYS_INLINE void fill(Vector<Lane, Width>& to, Lane value) noexcept {
  to = Vector<Lane, Width>{} + value;
}

/// The integers as wide as a floating-point lane, and its bit patterns.
template <class Float>
struct BitsOf;
template <>
struct BitsOf<float> {
  using Lane = std::int32_t;
  static constexpr Lane magnitude = 0x7fffffff;
  static constexpr Lane infinity = 0x7f800000;
  static constexpr Lane nan = 0x7fc00000;
};
template <>
struct BitsOf<double> {
  using Lane = std::int64_t;
  static constexpr Lane magnitude = 0x7fffffffffffffff;
  static constexpr Lane infinity = 0x7ff0000000000000;
  static constexpr Lane nan = 0x7ff8000000000000;
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/arithmetic.hpp

/// @file
/// The floating-point instructions of the kernels: one rounding each, in the order they are written.
///
/// -ffast-math may add in another order, fuse a product into a sum, and take NaN for impossible. clang on x86 is
/// told by a pragma; others by an empty asm that needs each result in a register before the next step.
/// NaN is compared as an integer: no flag can fold that.

namespace DTRAIN_NAMESPACE::kernels {

/// What the compiler does not look through.
template <class V>
DTRAIN_ALWAYS_INLINE void keep_as_computed([[maybe_unused]] V& value) noexcept {
#if DTRAIN_PRECISE_PRAGMA
#elif DTRAIN_X86_64
  asm("" : "+v"(value));
#elif DTRAIN_ARM64
  if constexpr (sizeof(V) <= 16) {
    asm("" : "+w"(value));
  } else {
    asm("" : "+m"(value));
  }
#else
  asm("" : "+m"(value));
#endif
}

template <class V>
DTRAIN_ALWAYS_INLINE void add(V& to, const V& value) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  to = to + value;
  keep_as_computed(to);
}

template <class V>
DTRAIN_ALWAYS_INLINE void subtract(V& from, const V& value) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  from = from - value;
  keep_as_computed(from);
}

template <class V>
DTRAIN_ALWAYS_INLINE void multiply(V& to, const V& value) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  to = to * value;
  keep_as_computed(to);
}

/// 1 / count, rounded to nearest. Converted to float it is float's rounded reciprocal: double has more than twice
/// float's digits. Its caller has set the default rounding.
inline double reciprocal(std::size_t count) noexcept {
  DTRAIN_PRECISE_ARITHMETIC
  double one = 1;
  keep_as_computed(one);
  double quotient = one / static_cast<double>(count);
  keep_as_computed(quotient);
  return quotient;
}

/// One NaN for all: which of two a sum takes its bits from, and its sign, differs between instructions.
template <class Float, std::size_t Width>
DTRAIN_ALWAYS_INLINE void make_nan_canonical(Vector<Float, Width>& value) noexcept {
  using Bits = BitsOf<Float>;
  using Integers = Vector<typename Bits::Lane, Width>;
  Integers bits = (Integers)value;
  Integers canonical;
  fill<typename Bits::Lane, Width>(canonical, Bits::nan);
  replace_where(bits, (Integers)((bits & Bits::magnitude) > Bits::infinity), canonical);
  value = (Vector<Float, Width>)bits;
}

/// The same for two 16-bit floats in each word, whose magnitude is NaN's beyond `infinity`.
template <std::size_t Width, class V>
DTRAIN_ALWAYS_INLINE void make_halves_canonical(V& words, std::int16_t infinity, std::int16_t nan) noexcept {
  using Halves = Vector<std::int16_t, Width>;
  Halves halves = (Halves)words;
  Halves magnitude, limit, canonical;
  fill<std::int16_t, Width>(magnitude, 0x7fff);
  fill<std::int16_t, Width>(limit, infinity);
  fill<std::int16_t, Width>(canonical, nan);
  replace_where(halves, (Halves)((halves & magnitude) > limit), canonical);
  words = (V)halves;
}

struct Add {
  template <class V>
  DTRAIN_ALWAYS_INLINE static void apply(V& to, const V& value) noexcept {
    add(to, value);
  }
};

struct Multiply {
  template <class V>
  DTRAIN_ALWAYS_INLINE static void apply(V& to, const V& value) noexcept {
    multiply(to, value);
  }
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/copy.hpp

/// @file
/// Copies bytes at the same speed wherever they lie.

namespace DTRAIN_NAMESPACE::kernels {

/// As std::memcpy. Not std::memcpy, because glibc 2.36 copies 2 KiB to 1 MiB with `rep movsb`, which on AMD's Zen takes
/// 15 times as long where the target begins a few bytes later in its page than the source in its own: so does a large
/// vector (16 bytes) beside a mapping (0). Measured: 64 KiB in 21 us, here 1.4 us.
DTRAIN_OPTIMIZED inline void copy_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
  using Block = Vector<std::uint64_t, 16>;
  constexpr std::size_t width = sizeof(Block);
  std::size_t i = 0;
  for (; i + 4 * width <= bytes; i += 4 * width) {
    Block first, second, third, fourth;
    load(first, from + i);
    load(second, from + i + width);
    load(third, from + i + 2 * width);
    load(fourth, from + i + 3 * width);
    store(to + i, first);
    store(to + i + width, second);
    store(to + i + 2 * width, third);
    store(to + i + 3 * width, fourth);
  }
  if (i < bytes) {
    std::memcpy(to + i, from + i, bytes - i);
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/f16_instructions.hpp

/// @file
/// f16 through the processor's own conversions.

namespace DTRAIN_NAMESPACE::kernels {

#if DTRAIN_X86_64
/// Halves become two vectors of f32, of the whole width each. An asm and not an intrinsic: <immintrin.h> costs every
/// user compile time. The immediate 0 rounds to nearest even whatever MXCSR says; subnormals are exact both ways. The
/// operand is the memory itself: a load before it costs as much as the conversion. (ThreadSanitizer does not see these
/// reads; it sees the stores, and those of all other kernels.)
struct F16c {
  static constexpr std::size_t width = 32;
  using Floats = Vector<float, width>;
  using Half = Vector<std::uint16_t, width / 2>;
  using Packed = Vector<std::uint16_t, width>;
  DTRAIN_TARGET_HELPER("avx2,f16c") static void widen(Floats& to, const std::byte* from) noexcept {
    asm("{vcvtph2ps %1, %0|vcvtph2ps %0, %1}" : "=x"(to) : "m"(*reinterpret_cast<const std::byte(*)[16]>(from)));
  }
  DTRAIN_TARGET_HELPER("avx2,f16c")
  static void narrow(Packed& to, const Floats& first, const Floats& second) noexcept {
    [[maybe_unused]] Half upper;
    asm("{vcvtps2ph $0, %2, %x0|vcvtps2ph %x0, %2, 0}\n\t"
        "{vcvtps2ph $0, %3, %1|vcvtps2ph %1, %3, 0}\n\t"
        "{vinserti128 $1, %1, %0, %0|vinserti128 %0, %0, %1, 1}"
        : "=&x"(to), "=&x"(upper)
        : "x"(first), "x"(second));
  }
};

struct F16Avx512 {
  static constexpr std::size_t width = 64;
  using Floats = Vector<float, width>;
  using Half = Vector<std::uint16_t, width / 2>;
  using Packed = Vector<std::uint16_t, width>;
  DTRAIN_TARGET_HELPER("avx512f") static void widen(Floats& to, const std::byte* from) noexcept {
    asm("{vcvtph2ps %1, %0|vcvtph2ps %0, %1}" : "=v"(to) : "m"(*reinterpret_cast<const std::byte(*)[32]>(from)));
  }
  DTRAIN_TARGET_HELPER("avx512f")
  static void narrow(Packed& to, const Floats& first, const Floats& second) noexcept {
    [[maybe_unused]] Half upper;
    asm("{vcvtps2ph $0, %2, %t0|vcvtps2ph %t0, %2, 0}\n\t"
        "{vcvtps2ph $0, %3, %1|vcvtps2ph %1, %3, 0}\n\t"
        "{vinserti64x4 $1, %1, %0, %0|vinserti64x4 %0, %0, %1, 1}"
        : "=&v"(to), "=&v"(upper)
        : "v"(first), "v"(second));
  }
};

/// A format for HalfArithmetic.
template <class Instructions>
struct F16Native {
  static constexpr std::size_t bytes = Instructions::width;
  using Floats = typename Instructions::Floats;
  using Packed = typename Instructions::Packed;

  DTRAIN_ALWAYS_INLINE static void widen(Floats& first, Floats& second, const std::byte* from) noexcept {
    Instructions::widen(first, from);
    Instructions::widen(second, from + bytes / 2);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& first, const Floats& second) noexcept {
    Instructions::narrow(packed, first, second);
    make_halves_canonical<bytes>(packed, 0x7c00, 0x7e00);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }
};
#endif

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/stream_copy.hpp

/// @file
/// Copies bytes past the caches, for somebody else to read.

namespace DTRAIN_NAMESPACE::kernels {

/// As copy_bytes, for memory that another core read last and reads next: an ordinary store first fetches the line from
/// that core's cache, and costs more than the detour through memory. Measured on two cores of a Zen 3 whose level-3
/// cache they did not share: staging 64 KiB took 0.2 of the time; on cores that share it, about as long. What was
/// written is visible to whoever sees a later release of this thread.
DTRAIN_OPTIMIZED inline void stream_bytes(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
#if DTRAIN_X86_64 && !DTRAIN_THREAD_SANITIZER
  using Block = Vector<std::uint64_t, 16>;
  constexpr std::size_t width = sizeof(Block);
  constexpr std::size_t line = 64;
  const std::size_t head = std::min(bytes, (line - reinterpret_cast<std::uintptr_t>(to) % line) % line);
  copy_bytes(to, from, head);
  std::size_t i = head;
  for (; i + line <= bytes; i += line) {
    Block blocks[4];
    for (std::size_t part = 0; part < 4; ++part) {
      load(blocks[part], from + i + part * width);
    }
    for (std::size_t part = 0; part < 4; ++part) {
      Block& target = *reinterpret_cast<Block*>(to + i + part * width);
      __asm__ volatile("movntdq %1, %0" : "=m"(target) : "x"(blocks[part]));
    }
  }
  copy_bytes(to + i, from + i, bytes - i);
  __asm__ volatile("sfence" ::: "memory");  // these stores are not ordered by a release alone
#else
  copy_bytes(to, from, bytes);
#endif
}

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/work.hpp

/// @file
/// What a kernel is called with.

namespace DTRAIN_NAMESPACE::kernels {

/// The bits of which min and max make keys that are ordered as integers; see Extreme.
struct KeyBits {
  std::int64_t flip = 0;       ///< all ones for min: reverses the order
  std::int64_t magnitude = 0;  ///< the bits below a floating-point sign, 0 for integers
  std::int64_t infinity = 0;   ///< a magnitude beyond it is NaN
  std::int64_t greatest = 0;   ///< the result whose key is the greatest: NaN, or the integer at the end
};

constexpr KeyBits key_bits(DType dtype, bool minimum) noexcept {
  const auto float_key = [minimum](std::int64_t magnitude, std::int64_t infinity, std::int64_t nan) {
    return KeyBits{minimum ? -1 : 0, magnitude, infinity, nan};
  };
  const auto integer_key = [minimum](std::int64_t greatest, std::int64_t base) {
    const std::int64_t flip = minimum ? ~base : base;
    return KeyBits{flip, 0, greatest, greatest ^ flip};
  };
  switch (dtype) {
    case DType::f64: return float_key(0x7fffffffffffffff, 0x7ff0000000000000, 0x7ff8000000000000);
    case DType::f32: return float_key(0x7fffffff, 0x7f800000, 0x7fc00000);
    case DType::f16: return float_key(0x7fff, 0x7c00, 0x7e00);
    case DType::bf16: return float_key(0x7fff, 0x7f80, 0x7fc0);
    case DType::i64: return integer_key(0x7fffffffffffffff, 0);
    case DType::i32: return integer_key(0x7fffffff, 0);
    case DType::u8: return integer_key(0x7f, -0x80);
  }
  return {};
}

/// One reduction, checked: there are sources and targets, and `bytes` is a multiple of `granularity`.
struct Work {
  static constexpr std::size_t granularity = 256;  ///< a multiple of what any kernel takes at a time

  const std::byte* const* sources = nullptr;
  std::size_t source_count = 0;
  std::byte* const* targets = nullptr;
  std::size_t target_count = 0;
  std::size_t bytes = 0;
  double factor = 1;  ///< what a floating-point result is multiplied by
  KeyBits key;
};

using Kernel = void (*)(const Work&) noexcept;

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/extreme.hpp

/// @file
/// Minimum and maximum of every element type, by comparing integers.

namespace DTRAIN_NAMESPACE::kernels {

/// Keys are ordered as signed integers: a negative floating-point value has the bits below its sign inverted, so that
/// -0 < +0; NaN is the greatest key; for min all keys but NaN's are inverted. So one loop does min and max, and f16
/// and bf16 share it without being converted. What differs is in Work::key. This is minimum and maximum of IEEE
/// 754-2019. An unsigned integer becomes signed by inverting its highest bit.
template <class Lane, std::size_t Width>
class Extreme {
 public:
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Lane, Width>;
  using Result = Partial;

  DTRAIN_ALWAYS_INLINE explicit Extreme(const Work& work) noexcept {
    fill<Lane, Width>(flip_, static_cast<Lane>(work.key.flip));
    fill<Lane, Width>(magnitude_, static_cast<Lane>(work.key.magnitude));
    fill<Lane, Width>(infinity_, static_cast<Lane>(work.key.infinity));
    fill<Lane, Width>(greatest_, static_cast<Lane>(work.key.greatest));
    fill<Lane, Width>(greatest_key_, greatest_key);
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept {
    Partial value;
    load(value, from);
    partial = value ^ ((Partial)(value < Partial{}) & magnitude_) ^ flip_;
    replace_where(partial, (Partial)((value & greatest_key_) > infinity_), greatest_key_);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    Partial value;
    start(value, from);
    replace_where(partial, (Partial)(value > partial), value);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    result = partial ^ flip_;
    result = result ^ ((Partial)(result < Partial{}) & magnitude_);
    replace_where(result, (Partial)(partial == greatest_key_), greatest_);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }

 private:
  static constexpr Lane greatest_key = std::numeric_limits<Lane>::max();

  Partial flip_, magnitude_, infinity_, greatest_, greatest_key_;
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/float_arithmetic.hpp

/// @file
/// Sums, averages and products of f32 and f64.

namespace DTRAIN_NAMESPACE::kernels {

/// `Operation` is Add or Multiply. An average is the sum times the rounded reciprocal: a division for each element
/// costs more than reading it. A sum is multiplied by one, which changes nothing but a NaN, and saves a loop.
template <class Float, std::size_t Width, class Operation>
class FloatArithmetic {
 public:
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Float, Width>;
  using Result = Partial;

  DTRAIN_ALWAYS_INLINE explicit FloatArithmetic(const Work& work) noexcept {
    fill<Float, Width>(factor_, static_cast<Float>(work.factor));
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept { load(partial, from); }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    Partial value;
    load(value, from);
    Operation::apply(partial, value);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    multiply(partial, factor_);
    make_nan_canonical<Float, Width>(partial);
    result = partial;
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }

 private:
  Vector<Float, Width> factor_;
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/half_arithmetic.hpp

/// @file
/// Sums, averages and products of f16 and bf16: in f32 from the left, rounded once at the end.

namespace DTRAIN_NAMESPACE::kernels {

/// Elements of `Format::bytes` bytes as two vectors of f32. A `Format` has types Floats and Packed and
///   widen(Floats&, Floats&, from), narrow(Packed&, Floats const&, Floats const&), put(to, Packed const&)
template <class Format, class Operation>
class HalfArithmetic {
 public:
  static constexpr std::size_t bytes = Format::bytes;
  using Floats = typename Format::Floats;
  struct Partial {
    Floats first, second;
  };
  using Result = typename Format::Packed;

  DTRAIN_ALWAYS_INLINE explicit HalfArithmetic(const Work& work) noexcept {
    fill<float, sizeof(Floats)>(factor_, static_cast<float>(work.factor));
  }
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept {
    Format::widen(partial.first, partial.second, from);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    Partial value;
    Format::widen(value.first, value.second, from);
    Operation::apply(partial.first, value.first);
    Operation::apply(partial.second, value.second);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    multiply(partial.first, factor_);
    multiply(partial.second, factor_);
    Format::narrow(result, partial.first, partial.second);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { Format::put(to, result); }

 private:
  Floats factor_;
};

/// The lower and the upper halves of 32-bit words. Not `vcvtneps2bf16`: it takes subnormals for zero.
template <std::size_t Width>
struct Bf16Words {
  static constexpr std::size_t bytes = Width;
  using Floats = Vector<float, Width>;
  using Packed = Vector<std::uint32_t, Width>;

  DTRAIN_ALWAYS_INLINE static void widen(Floats& lower, Floats& upper, const std::byte* from) noexcept {
    Packed words;
    load(words, from);
    lower = (Floats)(words << 16U);
    upper = (Floats)(words & 0xffff0000U);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& lower, const Floats& upper) noexcept {
    Packed low, high;
    round(low, lower);
    round(high, upper);
    packed = (low >> 16U) | (high & 0xffff0000U);
    make_halves_canonical<Width>(packed, 0x7f80, 0x7fc0);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }

 private:
  /// To nearest even in the upper 16 bits; beyond the largest finite value the carry makes infinity.
  DTRAIN_ALWAYS_INLINE static void round(Packed& to, const Floats& value) noexcept {
    const Packed bits = (Packed)value;
    to = bits + 0x7fffU + ((bits >> 16U) & 1U);
  }
};

/// The same for f16, by integers and one exact or once rounded addition: what the instructions of F16C give, bit for
/// bit. Source of the method: F. Giesen, "Float->half variants" (public domain), for subnormals as for all others.
template <std::size_t Width>
struct F16Words {
  static constexpr std::size_t bytes = Width;
  using Floats = Vector<float, Width>;
  using Packed = Vector<std::uint32_t, Width>;

  DTRAIN_ALWAYS_INLINE static void widen(Floats& lower, Floats& upper, const std::byte* from) noexcept {
    Packed words;
    load(words, from);
    widen(lower, words & 0xffffU);
    widen(upper, words >> 16U);
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& packed, const Floats& lower, const Floats& upper) noexcept {
    Packed low, high;
    narrow(low, lower);
    narrow(high, upper);
    packed = low | (high << 16U);
    make_halves_canonical<Width>(packed, 0x7c00, 0x7e00);
  }
  DTRAIN_ALWAYS_INLINE static void put(std::byte* to, const Packed& packed) noexcept { store(to, packed); }

 private:
  DTRAIN_ALWAYS_INLINE static void widen(Floats& to, const Packed& halves) noexcept {
    const Packed magnitude = (halves & 0x7fffU) << 13U;
    const Packed exponent = magnitude & 0x0f800000U;
    const Packed special = (Packed)(exponent == 0x0f800000U);  // infinity or NaN: the largest exponent again
    const Packed subnormal = (Packed)(exponent == Packed{});
    // A subnormal gets the exponent 2^-14 and an implicit one, which the subtraction takes away again.
    const Packed rebased = magnitude + (112U << 23U) + (special & (112U << 23U)) + (subnormal & (1U << 23U));
    Floats value = (Floats)rebased;
    subtract(value, (Floats)(subnormal & (113U << 23U)));
    to = (Floats)((Packed)value | ((halves & 0x8000U) << 16U));
  }
  DTRAIN_ALWAYS_INLINE static void narrow(Packed& to, const Floats& value) noexcept {
    using Signed = Vector<std::int32_t, Width>;  // what SSE2 can compare
    const Packed bits = (Packed)value;
    const Packed positive = bits & 0x7fffffffU;
    const Signed magnitude = (Signed)positive;
    // Added to a half, a value below 2^-14 leaves its multiple of 2^-24 in the lowest bits.
    Floats small = (Floats)positive;
    add(small, Floats{} + 0.5F);
    Packed half = (positive - (112U << 23U) + 0xfffU + ((positive >> 13U) & 1U)) >> 13U;
    replace_where(half, (Packed)(magnitude < (113 << 23)), (Packed)small - (126U << 23U));
    replace_where(half, (Packed)(magnitude >= (143 << 23)), Packed{} + 0x7c00U);
    replace_where(half, (Packed)(magnitude > (255 << 23)), Packed{} + 0x7e00U);
    to = half | ((bits & 0x80000000U) >> 16U);
  }
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/integer_arithmetic.hpp

/// @file
/// Sums, averages and products of integers.

namespace DTRAIN_NAMESPACE::kernels {

/// The sum modulo 2^bits: `Lane` is unsigned, and stands for the signed type too.
template <class Lane, std::size_t Width>
struct IntegerSum {
  static constexpr std::size_t bytes = Width;
  using Partial = Vector<Lane, Width>;
  using Result = Partial;

  DTRAIN_ALWAYS_INLINE explicit IntegerSum(const Work& /*nothing varies*/) noexcept {}
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept { load(partial, from); }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    Partial value;
    load(value, from);
    partial = partial + value;
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept { result = partial; }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept { store(to, result); }
};

/// At any alignment.
template <class T>
T element(const std::byte* from) noexcept {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}

/// The product modulo 2^bits, one element after the other: nobody trains with it.
template <class Unsigned>
DTRAIN_OPTIMIZED void integer_product(const Work& work) noexcept {
  for (std::size_t i = 0; i < work.bytes; i += sizeof(Unsigned)) {
    std::uint64_t product = 1;
    for (std::size_t rank = 0; rank < work.source_count; ++rank) {
      product *= element<Unsigned>(work.sources[rank] + i);
    }
    const auto result = static_cast<Unsigned>(product);
    for (std::size_t target = 0; target < work.target_count; ++target) {
      std::memcpy(work.targets[target] + i, &result, sizeof(result));
    }
  }
}

/// The exact sum, for which `Wide` has room, divided by the number of sources and truncated toward zero.
template <class Integer, class Wide>
DTRAIN_OPTIMIZED void integer_average(const Work& work) noexcept {
  for (std::size_t i = 0; i < work.bytes; i += sizeof(Integer)) {
    Wide sum = 0;
    for (std::size_t rank = 0; rank < work.source_count; ++rank) {
      sum += element<Integer>(work.sources[rank] + i);
    }
    const auto result = static_cast<Integer>(sum / static_cast<Wide>(work.source_count));
    for (std::size_t target = 0; target < work.target_count; ++target) {
      std::memcpy(work.targets[target] + i, &result, sizeof(result));
    }
  }
}

__extension__ typedef __int128 WideInteger;  // -Wpedantic calls it no standard type

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/strips.hpp

/// @file
/// The loop that all kernels share: strip after strip, from every source, through registers, to every target.

namespace DTRAIN_NAMESPACE::kernels {

/// An `Arithmetic` has types Partial and Result, `bytes` of elements that one of them stands for, and
///   start(Partial&, from)            the first source's elements
///   combine(Partial&, from)          and another's
///   finish(Result&, Partial&)        what is stored
///   put(to, Result const&)
/// Twice is one for twice the bytes. Named members and no array: g++ 12 leaves an array of vectors in memory.
template <class Arithmetic>
class Twice {
 public:
  static constexpr std::size_t bytes = 2 * Arithmetic::bytes;
  struct Partial {
    typename Arithmetic::Partial first, second;
  };
  struct Result {
    typename Arithmetic::Result first, second;
  };

  DTRAIN_ALWAYS_INLINE explicit Twice(const Work& work) noexcept : arithmetic_(work) {}
  DTRAIN_ALWAYS_INLINE void start(Partial& partial, const std::byte* from) const noexcept {
    arithmetic_.start(partial.first, from);
    arithmetic_.start(partial.second, from + Arithmetic::bytes);
  }
  DTRAIN_ALWAYS_INLINE void combine(Partial& partial, const std::byte* from) const noexcept {
    arithmetic_.combine(partial.first, from);
    arithmetic_.combine(partial.second, from + Arithmetic::bytes);
  }
  DTRAIN_ALWAYS_INLINE void finish(Result& result, Partial& partial) const noexcept {
    arithmetic_.finish(result.first, partial.first);
    arithmetic_.finish(result.second, partial.second);
  }
  DTRAIN_ALWAYS_INLINE void put(std::byte* to, const Result& result) const noexcept {
    arithmetic_.put(to, result.first);
    arithmetic_.put(to + Arithmetic::bytes, result.second);
  }

 private:
  Arithmetic arithmetic_;
};

/// What fills, and does not overflow, 16 registers: four vectors of partial results.
template <class Arithmetic>
using Strip = std::conditional_t<(sizeof(typename Arithmetic::Partial) > sizeof(typename Arithmetic::Result)),
                                 Twice<Arithmetic>, Twice<Twice<Arithmetic>>>;

/// Reduces whole strips. Everything of one is read before anything of it is written, so that a target may be a source.
template <class Arithmetic>
DTRAIN_ALWAYS_INLINE void reduce_strips(const Work& work) noexcept {
  static_assert(Work::granularity % Arithmetic::bytes == 0);
  const Arithmetic arithmetic(work);
  const std::byte* const* const sources = work.sources;
  const std::byte* const* const sources_end = sources + work.source_count;
  std::byte* const* const targets = work.targets;
  std::byte* const* const targets_end = targets + work.target_count;
  for (std::size_t i = 0; i < work.bytes; i += Arithmetic::bytes) {
    typename Arithmetic::Partial partial;
    arithmetic.start(partial, *sources + i);
    for (const std::byte* const* source = sources + 1; source != sources_end; ++source) {
      arithmetic.combine(partial, *source + i);
    }
    typename Arithmetic::Result result;
    arithmetic.finish(result, partial);
    for (std::byte* const* target = targets; target != targets_end; ++target) {
      arithmetic.put(*target + i, result);
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/avx2.hpp

/// @file
/// The kernels for AVX2 and F16C: what training asks for; the baseline has the rest.

namespace DTRAIN_NAMESPACE::kernels {

#if DTRAIN_X86_64
/// A function of its own with an explicit target: inlined into nothing that is compiled for less.
template <class Arithmetic>
DTRAIN_OPTIMIZED __attribute__((target("avx2,f16c"))) void avx2_kernel(const Work& work) noexcept {
  reduce_strips<Strip<Arithmetic>>(work);
}

/// Null where the baseline's is as good.
inline Kernel avx2_kernel_for(DType dtype, ReduceOp op) noexcept {
  if (op == ReduceOp::sum || op == ReduceOp::average) {
    switch (dtype) {
      case DType::f64: return &avx2_kernel<FloatArithmetic<double, 32, Add>>;
      case DType::f32: return &avx2_kernel<FloatArithmetic<float, 32, Add>>;
      case DType::f16: return &avx2_kernel<HalfArithmetic<F16Native<F16c>, Add>>;
      case DType::bf16: return &avx2_kernel<HalfArithmetic<Bf16Words<32>, Add>>;
      default: return nullptr;
    }
  }
  if (op == ReduceOp::product) {
    return nullptr;
  }
  switch (size_bytes(dtype)) {
    case 8: return &avx2_kernel<Extreme<std::int64_t, 32>>;
    case 4: return &avx2_kernel<Extreme<std::int32_t, 32>>;
    case 2: return &avx2_kernel<Extreme<std::int16_t, 32>>;
    default: return nullptr;
  }
}
#else
inline Kernel avx2_kernel_for(DType /*dtype*/, ReduceOp /*op*/) noexcept {
  return nullptr;
}
#endif

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/avx512.hpp

/// @file
/// The kernels for AVX-512: what training asks for; the baseline has the rest.

namespace DTRAIN_NAMESPACE::kernels {

#if DTRAIN_X86_64
/// A function of its own with an explicit target: inlined into nothing that is compiled for less.
template <class Arithmetic>
DTRAIN_OPTIMIZED __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void avx512_kernel(
    const Work& work) noexcept {
  reduce_strips<Strip<Arithmetic>>(work);
}

/// Null where the baseline's is as good.
inline Kernel avx512_kernel_for(DType dtype, ReduceOp op) noexcept {
  if (op == ReduceOp::sum || op == ReduceOp::average) {
    switch (dtype) {
      case DType::f64: return &avx512_kernel<FloatArithmetic<double, 64, Add>>;
      case DType::f32: return &avx512_kernel<FloatArithmetic<float, 64, Add>>;
      case DType::f16: return &avx512_kernel<HalfArithmetic<F16Native<F16Avx512>, Add>>;
      case DType::bf16: return &avx512_kernel<HalfArithmetic<Bf16Words<64>, Add>>;
      default: return nullptr;
    }
  }
  if (op == ReduceOp::product) {
    return nullptr;
  }
  switch (size_bytes(dtype)) {
    case 8: return &avx512_kernel<Extreme<std::int64_t, 64>>;
    case 4: return &avx512_kernel<Extreme<std::int32_t, 64>>;
    case 2: return &avx512_kernel<Extreme<std::int16_t, 64>>;
    default: return nullptr;
  }
}
#else
inline Kernel avx512_kernel_for(DType /*dtype*/, ReduceOp /*op*/) noexcept {
  return nullptr;
}
#endif

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/baseline.hpp

/// @file
/// The kernels for any processor: 16-byte vectors, which every 64-bit one has.

namespace DTRAIN_NAMESPACE::kernels {

template <class Arithmetic>
DTRAIN_OPTIMIZED void baseline_kernel(const Work& work) noexcept {
  reduce_strips<Strip<Arithmetic>>(work);
}

/// Sum and average of a floating-point type (Add), or the product (Multiply); null for integers.
template <class Operation>
Kernel baseline_float_kernel(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return &baseline_kernel<FloatArithmetic<double, 16, Operation>>;
    case DType::f32: return &baseline_kernel<FloatArithmetic<float, 16, Operation>>;
    case DType::f16: return &baseline_kernel<HalfArithmetic<F16Words<16>, Operation>>;
    case DType::bf16: return &baseline_kernel<HalfArithmetic<Bf16Words<16>, Operation>>;
    default: return nullptr;
  }
}

inline Kernel baseline_extreme_kernel(DType dtype) noexcept {
  switch (size_bytes(dtype)) {
    case 8: return &baseline_kernel<Extreme<std::int64_t, 16>>;
    case 4: return &baseline_kernel<Extreme<std::int32_t, 16>>;
    case 2: return &baseline_kernel<Extreme<std::int16_t, 16>>;
    default: return &baseline_kernel<Extreme<std::int8_t, 16>>;
  }
}

inline Kernel baseline_integer_kernel(DType dtype, ReduceOp op) noexcept {
  switch (dtype) {
    case DType::i64:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint64_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint64_t>
                                       : &integer_average<std::int64_t, WideInteger>;
    case DType::i32:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint32_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint32_t>
                                       : &integer_average<std::int32_t, std::int64_t>;
    default:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint8_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint8_t>
                                       : &integer_average<std::uint8_t, std::uint32_t>;
  }
}

constexpr bool is_float(DType dtype) noexcept {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16;
}

/// Never null.
inline Kernel baseline_kernel_for(DType dtype, ReduceOp op) noexcept {
  if (op == ReduceOp::min || op == ReduceOp::max) {
    return baseline_extreme_kernel(dtype);
  }
  if (!is_float(dtype)) {
    return baseline_integer_kernel(dtype, op);
  }
  return op == ReduceOp::product ? baseline_float_kernel<Multiply>(dtype) : baseline_float_kernel<Add>(dtype);
}

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/kernels/reduction.hpp

/// @file
/// Reduces the elements of many ranks in host memory, in rank order: the same bits on every processor.

namespace DTRAIN_NAMESPACE::kernels {

/// `sources[0][i] op sources[1][i] op ...`, evaluated from the left, stored to every target. Every element type has
/// every operation:
///
/// - f64, f32: one rounding for each step; an average is the sum times the rounded 1 / sources.
/// - f16, bf16: the same in f32, then rounded once to nearest even, beyond the largest finite value to infinity.
/// - min, max of these: a NaN on any rank gives NaN, and -0 < +0 (minimum and maximum of IEEE 754-2019).
/// - NaN in any result is the one positive quiet NaN without payload, so its bits depend on nothing.
/// - i64, i32, u8: sum and product modulo 2^bits; an average is the exact sum divided, truncated toward zero.
/// - One source is copied: nothing is reduced, and a NaN keeps its bits.
///
/// No flag of the including program and no setting of the calling thread changes a bit: not -ffast-math, not -mfma, not
/// flushed subnormals or another rounding, which are set to the default meanwhile.
class Reduction {
 public:
  static constexpr std::size_t max_sources = 256;

  /// `isa` is one that runs on this machine.
  static Reduction of(DType dtype, ReduceOp op, Isa isa = best_isa()) noexcept {
    Kernel kernel = nullptr;
    if (isa == Isa::avx512) {
      kernel = avx512_kernel_for(dtype, op);
    } else if (isa == Isa::avx2) {
      kernel = avx2_kernel_for(dtype, op);
    }
    return Reduction(dtype, op, kernel != nullptr ? kernel : baseline_kernel_for(dtype, op));
  }

  /// Reduces `count` elements of 1 to max_sources sources at any alignment. A target is one of the sources (the same
  /// address) or disjoint from all of them. Blocking: no longer than the reduction takes. Threads: any; a Reduction is
  /// a value without state.
  void operator()(std::span<const std::byte* const> sources, std::span<std::byte* const> targets,
                  std::size_t count) const noexcept {
    const std::size_t bytes = count * size_bytes(dtype_);
    if (sources.empty() || targets.empty() || bytes == 0) {
      return;
    }
    if (sources.size() == 1) {
      for (std::byte* const target : targets) {
        if (target != sources[0]) {
          copy_bytes(target, sources[0], bytes);
        }
      }
      return;
    }
    const DefaultFloatEnvironment environment;
    const std::size_t whole = bytes - bytes % Work::granularity;
    Work work{sources.data(), sources.size(), targets.data(), targets.size(), whole, 1, key_};
    if (op_ == ReduceOp::average) {
      work.factor = reciprocal(sources.size());
    }
    if (whole > 0) {
      kernel_(work);
    }
    if (whole < bytes) {
      reduce_rest(kernel_, work, bytes - whole);
    }
  }

 private:
  /// What is behind the last whole multiple, padded with zeros: the same instructions on every element, and nothing of
  /// it compiled into every kernel. A function of its own, because its memory is needed only here.
  __attribute__((noinline)) static void reduce_rest(Kernel kernel, Work work, std::size_t bytes) noexcept {
    std::byte padded[max_sources][Work::granularity];
    const std::byte* sources[max_sources];
    for (std::size_t source = 0; source < work.source_count; ++source) {
      std::memcpy(padded[source], work.sources[source] + work.bytes, bytes);
      std::memset(padded[source] + bytes, 0, Work::granularity - bytes);
      sources[source] = padded[source];
    }
    const std::size_t begin = work.bytes;
    std::byte* const* const targets = work.targets;
    const std::size_t target_count = work.target_count;
    std::byte* const result = padded[0];
    work.sources = sources;
    work.targets = &result;
    work.target_count = 1;
    work.bytes = Work::granularity;
    kernel(work);
    for (std::size_t target = 0; target < target_count; ++target) {
      std::memcpy(targets[target] + begin, result, bytes);
    }
  }

  Reduction(DType dtype, ReduceOp op, Kernel kernel) noexcept
      : kernel_(kernel), key_(key_bits(dtype, op == ReduceOp::min)), dtype_(dtype), op_(op) {}

  Kernel kernel_;
  KeyBits key_;
  DType dtype_;
  ReduceOp op_;
};

}  // namespace DTRAIN_NAMESPACE::kernels

// ---- dtrain/async/blocked_signals.hpp

/// @file
/// Threads of the library take no signals.

namespace DTRAIN_NAMESPACE::async {

/// Blocks every signal in this thread for a scope. A thread started inside inherits that, so handlers and signalfds of
/// the program work as without it.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    static_cast<void>(::sigfillset(&all));
    const int error = ::pthread_sigmask(SIG_SETMASK, &all, &before_);
    if (error != 0) {
      throw posix_error(error, "blocking signals to start a thread");
    }
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;
  ~BlockedSignals() { static_cast<void>(::pthread_sigmask(SIG_SETMASK, &before_, nullptr)); }

 private:
  sigset_t before_{};
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/descriptor.hpp

/// @file
/// A move-only owner of a file descriptor.

namespace DTRAIN_NAMESPACE::async {

/// Closes its descriptor when destroyed. Whoever creates one passes a close-on-exec flag to the system call, so that no
/// process that the user starts keeps a socket of this one open.
/// Lifetime: no coroutine waits for a descriptor (EventLoop::readable) while it is closed.
class Descriptor {
 public:
  Descriptor() noexcept = default;

  /// Takes over `fd`; a negative one owns nothing.
  explicit Descriptor(int fd) noexcept : fd_(fd < 0 ? -1 : fd) {}

  Descriptor(Descriptor&& other) noexcept : fd_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = other.release();
    }
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

  /// Gives the descriptor to the caller, who closes it.
  [[nodiscard]] int release() noexcept { return std::exchange(fd_, -1); }

  /// Closes it now. EINTR is not retried: on Linux the descriptor is gone all the same.
  void reset() noexcept {
    if (fd_ >= 0) {
      static_cast<void>(::close(std::exchange(fd_, -1)));
    }
  }

 private:
  int fd_ = -1;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/intrusive_list.hpp

/// @file
/// A doubly linked list whose links live in its elements, which can leave it at any time without knowing it.

namespace DTRAIN_NAMESPACE::async {

/// An element's links. Destroying an element takes it out of its list.
class ListNode {
 public:
  ListNode() noexcept = default;
  ListNode(const ListNode&) = delete;
  ListNode& operator=(const ListNode&) = delete;
  ~ListNode() { unlink(); }

  bool linked() const noexcept { return next_ != this; }

  void unlink() noexcept {
    previous_->next_ = next_;
    next_->previous_ = previous_;
    next_ = previous_ = this;
  }

 private:
  template <class>
  friend class IntrusiveList;

  ListNode* next_ = this;
  ListNode* previous_ = this;
};

/// Elements of T, which derives from ListNode; the list owns none of them. No operation allocates.
/// Lifetime: elements that are still linked when the list is destroyed are left unlinked.
template <class T>
class IntrusiveList {
 public:
  IntrusiveList() noexcept = default;
  IntrusiveList(const IntrusiveList&) = delete;
  IntrusiveList& operator=(const IntrusiveList&) = delete;
  ~IntrusiveList() {
    while (pop_front() != nullptr) {
    }
  }

  bool empty() const noexcept { return !ends_.linked(); }

  /// Appends an element, taking it out of the list it was in.
  void push_back(T& element) noexcept {
    ListNode& node = element;
    node.unlink();
    node.previous_ = ends_.previous_;
    node.next_ = &ends_;
    ends_.previous_->next_ = &node;
    ends_.previous_ = &node;
  }

  /// The first element, or nullptr.
  T* front() const noexcept { return empty() ? nullptr : static_cast<T*>(ends_.next_); }

  /// Takes the first element out; nullptr if there is none.
  T* pop_front() noexcept {
    T* element = front();
    if (element != nullptr) {
      static_cast<ListNode&>(*element).unlink();
    }
    return element;
  }

  /// Moves all elements of `other` to the end of this list, in constant time.
  void splice_back(IntrusiveList& other) noexcept {
    if (other.empty()) {
      return;
    }
    ListNode* first = other.ends_.next_;
    ListNode* last = other.ends_.previous_;
    other.ends_.next_ = other.ends_.previous_ = &other.ends_;
    first->previous_ = ends_.previous_;
    last->next_ = &ends_;
    ends_.previous_->next_ = first;
    ends_.previous_ = last;
  }

 private:
  ListNode ends_;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/post_queue.hpp

/// @file
/// Functions that other threads hand to an EventLoop, and the eventfd that wakes it.

namespace DTRAIN_NAMESPACE::async {

/// A function without parameters or result, move-only ones included.
class Posted {
 public:
  Posted() = default;
  Posted(const Posted&) = delete;
  Posted& operator=(const Posted&) = delete;
  virtual ~Posted() = default;
  virtual void run() = 0;
};

/// Threads: push, wake and close from any thread; the rest from the loop's.
class PostQueue {
 public:
  PostQueue() : wakeup_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!wakeup_) {
      throw errno_error("creating an eventfd", "raise the limit of open files (ulimit -n)");
    }
  }

  int descriptor() const noexcept { return wakeup_.get(); }

  /// Appends a function; false (and the function destroyed, in this thread) once the queue is closed.
  template <class F>
  bool push(F function) {
    struct Holder final : Posted {
      explicit Holder(F&& given) : held(std::move(given)) {}
      void run() override { held(); }
      F held;
    };
    std::unique_ptr<Posted> item = std::make_unique<Holder>(std::move(function));
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        return false;
      }
      items_.push_back(std::move(item));
      if (items_.size() > 1) {
        return true;  // whoever pushed the first one has woken the loop
      }
    }
    wake();
    return true;
  }

  /// Makes the eventfd readable.
  void wake() noexcept {
    const std::uint64_t one = 1;
    while (::write(wakeup_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  /// Makes the eventfd unreadable and runs what was pushed by now. What a function throws leaves at once; the rest
  /// stays for the next call.
  void run_all() {
    std::uint64_t count = 0;
    while (::read(wakeup_.get(), &count, sizeof count) < 0 && errno == EINTR) {
    }
    {
      const std::lock_guard lock(mutex_);
      while (!items_.empty()) {
        taken_.push_back(std::move(items_.front()));
        items_.pop_front();
      }
    }
    for (std::size_t left = taken_.size(); left > 0; --left) {
      const std::unique_ptr<Posted> item = std::move(taken_.front());
      taken_.pop_front();
      item->run();
    }
  }

  /// Whether an exception left functions behind.
  bool unfinished() const noexcept { return !taken_.empty(); }

  /// Refuses functions from now on and destroys those not yet run.
  void close() noexcept {
    std::deque<std::unique_ptr<Posted>> dropped;
    {
      const std::lock_guard lock(mutex_);
      closed_ = true;
      dropped.swap(items_);
    }
    dropped.clear();
    taken_.clear();
  }

 private:
  Descriptor wakeup_;
  std::mutex mutex_;
  std::deque<std::unique_ptr<Posted>> items_;
  std::deque<std::unique_ptr<Posted>> taken_;  ///< by the loop, and not yet run
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/ready.hpp

/// @file
/// How a wait of a coroutine ended.

namespace DTRAIN_NAMESPACE::async {

/// `ready` wins where both hold.
enum class Ready : std::uint8_t { ready = 1, timed_out };

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/task.hpp

/// @file
/// async::Task: a coroutine that starts when it is awaited and is cancelled by destroying it.

namespace DTRAIN_NAMESPACE::async {

template <class T>
class Task;

namespace detail {

/// What every Task's coroutine has: nothing runs before the first await, and completion resumes who awaits.
class TaskPromiseBase {
 public:
  struct FinalAwaiter {
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> finished) const noexcept {
      const std::coroutine_handle<> parent = finished.promise().continuation;
      return parent ? parent : std::noop_coroutine();
    }
    void await_resume() const noexcept {}
  };

  std::suspend_always initial_suspend() const noexcept { return {}; }
  FinalAwaiter final_suspend() const noexcept { return {}; }
  void unhandled_exception() noexcept { exception = std::current_exception(); }

  std::coroutine_handle<> continuation;
  std::exception_ptr exception;
};

template <class T>
class TaskPromise : public TaskPromiseBase {
 public:
  Task<T> get_return_object() noexcept;
  void return_value(T&& result) { value_.emplace(std::move(result)); }
  void return_value(const T& result) { value_.emplace(result); }
  T take() {
    if (exception) {
      std::rethrow_exception(exception);
    }
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
};

template <>
class TaskPromise<void> : public TaskPromiseBase {
 public:
  Task<void> get_return_object() noexcept;
  void return_void() const noexcept {}
  void take() const {
    if (exception) {
      std::rethrow_exception(exception);
    }
  }
};

}  // namespace detail

/// The result of a coroutine that has not started: `const T value = co_await std::move(task);`. T is void, a value, or
/// move-only. An exception that leaves the coroutine is thrown where it is awaited.
///
/// Cancellation is destruction. Destroying a Task that is suspended destroys its frame with all locals, hence the tasks
/// it awaits; every awaiter of this library takes itself out of the loop in its destructor. A coroutine therefore
/// cleans up with destructors and is never told that it was cancelled. A Task must not be destroyed by code that it
/// itself runs (Spawned allows it, by destroying a moment later).
///
/// A child that completes without suspending returns to its parent like a function: a loop of a million such awaits
/// uses no stack, with any compiler and flags. Tasks that await each other in depth n use n frames of the stack.
///
/// A local that cannot be copied is returned as `co_return std::move(local);`: nvcc does not move by itself.
///
/// Lifetime: a coroutine's reference parameters, and the captures of a coroutine lambda, outlive the Task.
/// Threads: a Task belongs to one thread (of its EventLoop) from its first resumption to its destruction.
template <class T = void>
class [[nodiscard]] Task {
  static_assert(!std::is_reference_v<T>, "dtrain: a Task returns a value; return a pointer instead of a reference");

 public:
  using promise_type = detail::TaskPromise<T>;
  using value_type = T;

  Task() noexcept = default;
  Task(Task&& other) noexcept : frame_(std::exchange(other.frame_, nullptr)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      destroy();
      frame_ = std::exchange(other.frame_, nullptr);
    }
    return *this;
  }
  ~Task() { destroy(); }

  /// Cancels and frees the coroutine now.
  void destroy() noexcept {
    if (frame_) {
      std::exchange(frame_, nullptr).destroy();
    }
  }

  explicit operator bool() const noexcept { return frame_ != nullptr; }

  /// Whether the coroutine has returned or thrown.
  bool done() const noexcept { return frame_ && frame_.done(); }

  /// For those who drive a task without awaiting it: the coroutine, to resume.
  std::coroutine_handle<> handle() const noexcept { return frame_; }

  /// The result of a task that is done, and frees the coroutine. @throws what the coroutine threw.
  T take() {
    const Task finished(std::move(*this));
    return finished.frame_.promise().take();
  }

  class Awaiter;
  Awaiter operator co_await() && noexcept { return Awaiter(*this); }

 private:
  friend promise_type;
  explicit Task(std::coroutine_handle<promise_type> frame) noexcept : frame_(frame) {}

  std::coroutine_handle<promise_type> frame_;
};

/// Runs the child inside await_suspend and suspends the parent only if the child did not finish at once.
template <class T>
class Task<T>::Awaiter {
 public:
  explicit Awaiter(Task& task) noexcept : task_(task) {}

  bool await_ready() const noexcept { return false; }
  bool await_suspend(std::coroutine_handle<> parent) {
    const std::coroutine_handle<promise_type> child = task_.frame_;
    if (!child) {
      throw Error(Errc::invalid_argument, "a task was awaited twice, or after it was moved from");
    }
    child.resume();
    if (child.done()) {
      return false;
    }
    child.promise().continuation = parent;
    return true;
  }
  T await_resume() { return task_.take(); }

 private:
  Task& task_;
};

namespace detail {

template <class T>
Task<T> TaskPromise<T>::get_return_object() noexcept {
  return Task<T>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}

inline Task<void> TaskPromise<void>::get_return_object() noexcept {
  return Task<void>(std::coroutine_handle<TaskPromise>::from_promise(*this));
}

}  // namespace detail
}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/outcome.hpp

/// @file
/// What a task came to, a value or an exception, kept where it is not awaited.

namespace DTRAIN_NAMESPACE::async {

/// Empty until store_outcome has run.
template <class T>
class Outcome {
 public:
  bool done() const noexcept { return value_.has_value() || exception_ != nullptr; }
  bool failed() const noexcept { return exception_ != nullptr; }
  void succeed(T value) { value_.emplace(std::move(value)); }
  void fail(std::exception_ptr exception) noexcept { exception_ = std::move(exception); }

  /// The value, once. @throws what the task threw.
  T take() {
    if (exception_) {
      std::rethrow_exception(std::exchange(exception_, nullptr));
    }
    return std::move(*value_);
  }

 private:
  std::optional<T> value_;
  std::exception_ptr exception_;
};

template <>
class Outcome<void> {
 public:
  bool done() const noexcept { return succeeded_ || exception_ != nullptr; }
  bool failed() const noexcept { return exception_ != nullptr; }
  void succeed() noexcept { succeeded_ = true; }
  void fail(std::exception_ptr exception) noexcept { exception_ = std::move(exception); }
  void take() {
    if (exception_) {
      std::rethrow_exception(std::exchange(exception_, nullptr));
    }
  }

 private:
  bool succeeded_ = false;
  std::exception_ptr exception_;
};

/// Runs `task` and stores what it comes to; the task's frame is gone when it does. Lifetime: `outcome` outlives it.
template <class T>
Task<void> store_outcome(Task<T> task, Outcome<T>& outcome) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(task);
      outcome.succeed();
    } else {
      T value = co_await std::move(task);
      outcome.succeed(std::move(value));
    }
  } catch (...) {
    outcome.fail(std::current_exception());
  }
}

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/timer_heap.hpp

/// @file
/// Timers in a binary heap: the earliest at once, insertion and removal in logarithmic time.

namespace DTRAIN_NAMESPACE::async {

/// One timer; it knows its place in the heap, so that a cancelled one leaves at once.
struct TimerNode {
  static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);

  Deadline::Clock::time_point instant{};
  std::uint64_t sequence = 0;
  std::size_t place = nowhere;
};

/// Timers ordered by instant, equal ones by insertion. Lifetime: a timer is removed before it is destroyed.
class TimerHeap {
 public:
  bool empty() const noexcept { return heap_.empty(); }
  std::size_t size() const noexcept { return heap_.size(); }

  /// Adds a timer that is in no heap.
  void insert(TimerNode& timer, Deadline deadline) {
    heap_.push_back(&timer);
    timer.instant = deadline.instant();
    timer.sequence = next_sequence_++;
    rise(heap_.size() - 1, timer);
  }

  /// Takes a timer out; one that is not in the heap stays as it is.
  void remove(TimerNode& timer) noexcept {
    if (timer.place == TimerNode::nowhere) {
      return;
    }
    const std::size_t hole = timer.place;
    timer.place = TimerNode::nowhere;
    TimerNode& last = *heap_.back();
    heap_.pop_back();
    if (hole == heap_.size()) {
      return;  // it was the last one itself
    }
    if (hole > 0 && before(last, *heap_[parent_of(hole)])) {
      rise(hole, last);
    } else {
      sink(hole, last);
    }
  }

  /// The earliest timer, or nullptr.
  TimerNode* earliest() const noexcept { return heap_.empty() ? nullptr : heap_.front(); }

 private:
  static std::size_t parent_of(std::size_t place) noexcept { return (place - 1) / 2; }

  static bool before(const TimerNode& a, const TimerNode& b) noexcept {
    return a.instant != b.instant ? a.instant < b.instant : a.sequence < b.sequence;
  }

  void put(std::size_t place, TimerNode& timer) noexcept {
    heap_[place] = &timer;
    timer.place = place;
  }

  void rise(std::size_t place, TimerNode& timer) noexcept {
    while (place > 0 && before(timer, *heap_[parent_of(place)])) {
      put(place, *heap_[parent_of(place)]);
      place = parent_of(place);
    }
    put(place, timer);
  }

  void sink(std::size_t place, TimerNode& timer) noexcept {
    for (std::size_t child = 2 * place + 1; child < heap_.size(); child = 2 * place + 1) {
      if (child + 1 < heap_.size() && before(*heap_[child + 1], *heap_[child])) {
        ++child;
      }
      if (!before(*heap_[child], timer)) {
        break;
      }
      put(place, *heap_[child]);
      place = child;
    }
    put(place, timer);
  }

  std::vector<TimerNode*> heap_;
  std::uint64_t next_sequence_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/waiter.hpp

/// @file
/// A suspended coroutine's place in an EventLoop: in one list, and in the timers.

namespace DTRAIN_NAMESPACE::async {

class TaskRoot;

/// The base of the awaiters. It lives in the coroutine's frame, so suspending allocates nothing (the timers' array may
/// grow). An awaiter calls Scheduler::leave in its destructor.
class Waiter : public ListNode, public TimerNode {
 public:
  std::coroutine_handle<> coroutine;
  TaskRoot* root = nullptr;  ///< the spawned task that the coroutine belongs to
  int descriptor = -1;       ///< the descriptor that it waits for, if any
  Ready outcome = Ready::ready;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/poller.hpp

/// @file
/// The epoll set of an EventLoop: which coroutines wait for which descriptors.

namespace DTRAIN_NAMESPACE::async {

enum class Interest : std::uint8_t { read = 1, write };

/// A descriptor is in the epoll set exactly while somebody waits for it, so whoever closes one that nobody waits for
/// has nothing to undo, and a forked copy of it wakes nobody. Events of an earlier registration of the same number are
/// told apart by a generation.
class Poller {
 public:
  /// `wakeup` is watched for reading as long as the poller lives.
  explicit Poller(int wakeup) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    if (!epoll_) {
      throw errno_error("creating an epoll set", "raise the limit of open files (ulimit -n)");
    }
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = wakeup_mark;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup, &event) != 0) {
      throw errno_error("adding the wake-up descriptor to an epoll set");
    }
  }

  /// Puts a waiter in line for a descriptor.
  /// @throws Error (posix) where epoll refuses it: a regular file (EPERM), a closed descriptor (EBADF).
  void add(Waiter& waiter, int descriptor, Interest interest) {
    if (descriptor < 0) {
      throw posix_error(EBADF, "waiting for a descriptor that is not open");
    }
    const auto index = static_cast<std::size_t>(descriptor);
    if (index >= entries_.size()) {
      entries_.resize(index + 1 + index / 2);
    }
    if (!entries_[index]) {
      entries_[index] = std::make_unique<Entry>();
    }
    Entry& entry = *entries_[index];
    (interest == Interest::read ? entry.readers : entry.writers).push_back(waiter);
    if (!apply(descriptor, entry, true)) {
      const int reason = errno;
      waiter.unlink();
      apply(descriptor, entry, false);
      throw posix_error(reason, "waiting for descriptor " + std::to_string(descriptor));
    }
    waiter.descriptor = descriptor;
  }

  /// Takes a waiter out of line; one that waits for no descriptor stays as it is.
  void remove(Waiter& waiter) noexcept {
    if (waiter.descriptor < 0) {
      return;
    }
    waiter.unlink();
    const int descriptor = std::exchange(waiter.descriptor, -1);
    apply(descriptor, *entries_[static_cast<std::size_t>(descriptor)], false);
  }

  /// Waits up to `timeout_ms` (-1: without end) and calls `wake(Waiter&)` for each whose descriptor is ready; they are
  /// out of line by then. Returns whether the wake-up descriptor is readable.
  template <class Wake>
  bool poll(int timeout_ms, Wake wake) {
    std::array<epoll_event, 64> events;
    const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    if (count < 0 && errno != EINTR) {
      throw errno_error("waiting for events");
    }
    bool woken = false;
    for (std::size_t i = 0; count > 0 && i < static_cast<std::size_t>(count); ++i) {
      const std::uint64_t mark = events[i].data.u64;
      if (mark == wakeup_mark) {
        woken = true;
        continue;
      }
      const auto descriptor = static_cast<int>(mark & 0xffffffffU);
      Entry& entry = *entries_[static_cast<std::size_t>(descriptor)];
      if (entry.generation == static_cast<std::uint32_t>(mark >> 32)) {
        dispatch(descriptor, entry, events[i].events, wake);
      }
    }
    return woken;
  }

  /// How many descriptors somebody waits for.
  std::size_t registered_count() const noexcept { return registered_count_; }

 private:
  static constexpr std::uint64_t wakeup_mark = ~std::uint64_t{0};

  struct Entry {
    IntrusiveList<Waiter> readers;
    IntrusiveList<Waiter> writers;
    std::uint32_t generation = 0;
    std::uint32_t registered = 0;
  };

  template <class Wake>
  void dispatch(int descriptor, Entry& entry, std::uint32_t events, Wake& wake) {
    const bool failed = (events & (EPOLLERR | EPOLLHUP)) != 0;
    if (failed || (events & (EPOLLIN | EPOLLRDHUP)) != 0) {
      wake_all(entry.readers, wake);
    }
    if (failed || (events & EPOLLOUT) != 0) {
      wake_all(entry.writers, wake);
    }
    apply(descriptor, entry, false);
  }

  template <class Wake>
  static void wake_all(IntrusiveList<Waiter>& waiters, Wake& wake) {
    while (Waiter* waiter = waiters.pop_front()) {
      waiter->descriptor = -1;
      wake(*waiter);
    }
  }

  /// Makes the epoll set agree with who waits. `fresh`: the number may be a new file since the last call, so the system
  /// is asked even where nothing seems to change.
  bool apply(int descriptor, Entry& entry, bool fresh) noexcept {
    const std::uint32_t wanted = (entry.readers.empty() ? 0U : std::uint32_t{EPOLLIN} | std::uint32_t{EPOLLRDHUP}) |
                                 (entry.writers.empty() ? 0U : std::uint32_t{EPOLLOUT});
    if (wanted == entry.registered && !fresh) {
      return true;
    }
    int result = 0;
    if (wanted == 0) {
      // A failure means that it was closed meanwhile, which has taken it out of the set.
      static_cast<void>(control(EPOLL_CTL_DEL, descriptor, entry, 0));
    } else {
      const bool anew = entry.registered == 0;
      result = control(anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, entry, wanted);
      if (result != 0 && errno == ENOENT) {
        result = control(EPOLL_CTL_ADD, descriptor, entry, wanted);  // closed and opened again meanwhile
      } else if (result != 0 && errno == EEXIST) {
        result = control(EPOLL_CTL_MOD, descriptor, entry, wanted);
      }
    }
    const std::uint32_t now = result == 0 ? wanted : 0;
    if ((now != 0) != (entry.registered != 0)) {
      now != 0 ? ++registered_count_ : --registered_count_;
    }
    entry.registered = now;
    return result == 0;
  }

  /// One change of the epoll set; an added file gets a generation of its own.
  int control(int operation, int descriptor, Entry& entry, std::uint32_t wanted) noexcept {
    entry.generation += operation == EPOLL_CTL_ADD ? 1 : 0;
    epoll_event event{};
    event.events = wanted;
    event.data.u64 = (std::uint64_t{entry.generation} << 32) | static_cast<std::uint32_t>(descriptor);
    return ::epoll_ctl(epoll_.get(), operation, descriptor, &event);
  }

  Descriptor epoll_;
  std::vector<std::unique_ptr<Entry>> entries_;
  std::size_t registered_count_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/spawned.hpp

/// @file
/// Spawned: the owner of a task that an EventLoop runs.

namespace DTRAIN_NAMESPACE::async {

/// Called on the loop's thread with what left a spawned task.
using ExceptionHandler = std::function<void(std::exception_ptr)>;

/// Called on the loop's thread once a spawned task's frame is destroyed, however it ended. It must not throw.
using GoneHandler = std::function<void()>;

/// The loop's record of a spawned task.
class TaskRoot : public ListNode {
 public:
  TaskRoot(Task<void> coroutine, ExceptionHandler handler, GoneHandler gone_handler)
      : task(std::move(coroutine)), on_exception(std::move(handler)), on_gone(std::move(gone_handler)) {}

  /// Destroys the coroutine, then the record if nobody owns it, then calls on_gone.
  void end() noexcept {
    unlink();
    start.unlink();
    ending = true;
    task.destroy();
    ending = false;
    gone = true;
    const GoneHandler handler = std::move(on_gone);
    if (!owned) {
      delete this;
    }
    if (handler) {
      handler();
    }
  }

  Task<void> task;
  ExceptionHandler on_exception;
  GoneHandler on_gone;
  Waiter start;
  bool gone = false;       ///< its frame has been destroyed
  bool running = false;    ///< its own code is what runs now
  bool owned = true;       ///< by a Spawned; otherwise by the loop
  bool ending = false;     ///< its frame is being destroyed
  bool abandoned = false;  ///< its Spawned was destroyed by the task itself
};

/// Owns a spawned task: destroying it cancels the task, which is then gone, with all its locals. Where the task itself
/// destroys its owner (a session that takes itself out of the map of sessions), it runs on to its next suspension and
/// is destroyed there.
/// Lifetime: may outlive the loop; the loop's end has cancelled the task.
/// Threads: the loop's thread, or any while no thread runs the loop.
class Spawned {
 public:
  Spawned() noexcept = default;
  explicit Spawned(TaskRoot* root) noexcept : root_(root) {}
  Spawned(Spawned&& other) noexcept : root_(std::exchange(other.root_, nullptr)) {}
  Spawned& operator=(Spawned&& other) noexcept {
    if (this != &other) {
      cancel();
      root_ = std::exchange(other.root_, nullptr);
    }
    return *this;
  }
  ~Spawned() { cancel(); }

  /// Whether the task has ended; also true where nothing is owned.
  bool done() const noexcept { return root_ == nullptr || root_->gone; }

  /// Destroys the task now; no effect on one that is done.
  void cancel() noexcept {
    TaskRoot* root = std::exchange(root_, nullptr);
    if (root == nullptr) {
      return;
    }
    if (root->gone) {
      delete root;
      return;
    }
    root->owned = false;
    if (root->ending || root->running) {
      root->abandoned = true;  // the task itself is the caller; the scheduler ends it when it suspends
    } else {
      root->end();
    }
  }

  /// Gives the task to the loop, which runs it to its end or to the loop's.
  void detach() noexcept {
    if (TaskRoot* root = std::exchange(root_, nullptr)) {
      if (root->gone) {
        delete root;
      } else {
        root->owned = false;
      }
    }
  }

 private:
  TaskRoot* root_ = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/scheduler.hpp

/// @file
/// Which coroutines of an EventLoop wait for what, and which runs next.

namespace DTRAIN_NAMESPACE::async {

/// The part of an EventLoop that awaiters talk to. Threads: the loop's.
class Scheduler {
 public:
  /// `wakeup` is readable when turn() is to return at once.
  explicit Scheduler(int wakeup) : poller_(wakeup) {}

  /// @name For awaiters
  /// @{

  /// Suspends `coroutine` at `waiter` until wake() or the deadline.
  void enter(Waiter& waiter, std::coroutine_handle<> coroutine, Deadline deadline) {
    waiter.coroutine = coroutine;
    waiter.root = current_;
    timers_.insert(waiter, deadline);
  }

  /// enter(), and also until the descriptor is ready. @throws Error (posix) where epoll refuses it.
  void enter(Waiter& waiter, std::coroutine_handle<> coroutine, Deadline deadline, int descriptor, Interest interest) {
    enter(waiter, coroutine, deadline);
    poller_.add(waiter, descriptor, interest);
  }

  /// Lets a waiter run in the next turn, or in this one where it has not come to its coroutines.
  void wake(Waiter& waiter, Ready outcome = Ready::ready) noexcept {
    leave(waiter);
    waiter.outcome = outcome;
    ready_.push_back(waiter);
  }

  /// Takes a waiter out of whatever it waits in.
  void leave(Waiter& waiter) noexcept {
    timers_.remove(waiter);
    poller_.remove(waiter);
    waiter.unlink();
  }
  /// @}

  /// Adds a record, which starts in the next turn.
  void start(TaskRoot& root) noexcept {
    root.start.coroutine = root.task.handle();
    root.start.root = &root;
    roots_.push_back(root);
    ready_.push_back(root.start);
  }

  /// Waits for something to do, at most until the next timer or not at all if `hurry`. Descriptors come before timers,
  /// so that what is ready wins over a deadline that has passed. Returns whether the wake-up descriptor is readable.
  bool poll(bool hurry) {
    const bool busy = hurry || !ready_.empty() || !batch_.empty();
    const bool woken = poller_.poll(busy ? 0 : patience_ms(), [this](Waiter& waiter) { wake(waiter); });
    const Deadline::Clock::time_point now = Deadline::Clock::now();
    for (TimerNode* timer = timers_.earliest(); timer != nullptr && timer->instant <= now; timer = timers_.earliest()) {
      wake(static_cast<Waiter&>(*timer), Ready::timed_out);
    }
    return woken;
  }

  /// Runs those that are ready. Those woken meanwhile wait for the next call, so that no chain starves the others.
  /// @throws what a task without a handler threw; the rest runs in the next call
  void resume_ready() {
    batch_.splice_back(ready_);
    while (Waiter* waiter = batch_.pop_front()) {
      resume(*waiter);
    }
  }

  /// Destroys all tasks.
  void end_all() noexcept {
    while (TaskRoot* root = roots_.front()) {
      root->end();
    }
  }

  std::size_t registered_descriptors() const noexcept { return poller_.registered_count(); }
  std::size_t pending_timers() const noexcept { return timers_.size(); }

 private:
  int patience_ms() const {
    if (timers_.empty()) {
      return -1;
    }
    const auto left = Deadline::at(timers_.earliest()->instant).remaining();
    const auto longest = std::chrono::milliseconds(std::chrono::hours(1));
    return static_cast<int>(std::min(std::chrono::ceil<std::chrono::milliseconds>(left), longest).count());
  }

  void resume(Waiter& waiter) {
    TaskRoot* root = waiter.root;
    if (root == nullptr) {
      waiter.coroutine.resume();
      return;
    }
    current_ = root;
    root->running = true;
    waiter.coroutine.resume();  // the waiter is in the coroutine's frame: it may be gone from here on
    root->running = false;
    current_ = nullptr;
    if (root->task.done() || root->abandoned) {
      retire(*root);
    }
  }

  static void retire(TaskRoot& root) {
    std::exception_ptr exception;
    root.ending = true;  // the frame's parameters may own the Spawned
    if (root.task.done()) {
      try {
        root.task.take();
      } catch (...) {
        exception = std::current_exception();
      }
    }
    const ExceptionHandler handler = std::move(root.on_exception);
    root.end();
    if (exception && !handler) {
      std::rethrow_exception(exception);
    }
    if (exception) {
      handler(exception);
    }
  }

  Poller poller_;
  TimerHeap timers_;
  IntrusiveList<TaskRoot> roots_;
  IntrusiveList<Waiter> ready_;
  IntrusiveList<Waiter> batch_;
  TaskRoot* current_ = nullptr;  ///< whose coroutine runs now
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/awaiters.hpp

/// @file
/// What a coroutine suspends in while it sleeps or waits for a descriptor.

namespace DTRAIN_NAMESPACE::async {

/// Ends at its deadline.
class [[nodiscard]] SleepAwaiter : public Waiter {
 public:
  SleepAwaiter(Scheduler& scheduler, Deadline deadline) noexcept : scheduler_(scheduler), deadline_(deadline) {}
  ~SleepAwaiter() { scheduler_.leave(*this); }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> parent) { scheduler_.enter(*this, parent, deadline_); }
  void await_resume() const noexcept {}

 private:
  Scheduler& scheduler_;
  Deadline deadline_;
};

/// Ends when its descriptor is ready or at its deadline.
class [[nodiscard]] DescriptorAwaiter : public Waiter {
 public:
  DescriptorAwaiter(Scheduler& scheduler, int fd, Interest interest, Deadline deadline) noexcept
      : scheduler_(scheduler), fd_(fd), interest_(interest), deadline_(deadline) {}
  ~DescriptorAwaiter() { scheduler_.leave(*this); }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> parent) { scheduler_.enter(*this, parent, deadline_, fd_, interest_); }
  Ready await_resume() const noexcept { return outcome; }

 private:
  Scheduler& scheduler_;
  int fd_;
  Interest interest_;
  Deadline deadline_;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/event_loop.hpp

/// @file
/// async::EventLoop: one thread that runs coroutines.

namespace DTRAIN_NAMESPACE::async {

/// Runs tasks in the thread that calls run() or run_until(). Others (LoopThread) talk to it through post().
/// Threads: post, stop and on_loop_thread from any thread; everything else on the thread that runs it, or on any while
/// none does.
/// Lifetime: outlives every awaiter, Event and socket made for it; destroying it destroys the tasks it still has.
class EventLoop {
 public:
  EventLoop() : scheduler_(posts_.descriptor()) {}
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop() { close(); }

  /// Adds a task; it starts in the loop's next turn, and its owner is the result (Spawned::detach gives it to the
  /// loop).
  /// @param on_exception gets what leaves the task; without it, the exception leaves run() or run_until()
  /// @param on_gone runs after the task's frame is destroyed, however it ended
  /// @throws Error (cancelled) once the loop is closed
  [[nodiscard]] Spawned spawn(Task<void> task, ExceptionHandler on_exception = {}, GoneHandler on_gone = {}) {
    if (closed_) {
      throw Error(Errc::cancelled, "starting a task: the event loop has ended");
    }
    if (!task) {
      throw Error(Errc::invalid_argument, "starting a task that was moved from");
    }
    auto root = std::make_unique<TaskRoot>(std::move(task), std::move(on_exception), std::move(on_gone));
    scheduler_.start(*root);
    return Spawned(root.release());
  }

  /// spawn, kept by the loop.
  void spawn_detached(Task<void> task, ExceptionHandler on_exception = {}) {
    spawn(std::move(task), std::move(on_exception)).detach();
  }

  /// Runs `function()` on the loop's thread, in order of posting. What it throws leaves run(). False, with the function
  /// destroyed unrun, once the loop is closed; what is posted and not run by then is destroyed unrun too.
  /// Threads: any. Costs an allocation, a short lock, and a system call where the queue was empty.
  template <class F>
  bool post(F function) {
    return posts_.push(std::move(function));
  }

  /// Runs until stop(). Blocking: without a deadline, because stop() ends it from any thread.
  /// @throws Error (invalid_argument) if the loop is running already; what a task without a handler or a posted
  /// function threw (the loop can then be run again)
  void run() {
    drive([] { return false; });
  }

  /// Makes run() return after the present turn; if it is not running, the next run() returns at once. Threads: any.
  void stop() noexcept {
    stop_asked_.store(true);
    posts_.wake();
  }

  /// Runs the loop in this thread until `task` has ended.
  /// Blocking: until the deadline, when the task is cancelled.
  /// @param doing begins the sentence of a timeout
  /// @throws what the task threw; Error (timeout); Error (cancelled) after stop(); and what run() throws
  template <class T>
  T run_until(Task<T> task, Deadline deadline, std::string_view doing = "running a task") {
    Outcome<T> outcome;
    Alarm alarm(scheduler_, deadline);
    Spawned owner = spawn(store_outcome(std::move(task), outcome));
    drive([&] { return owner.done() || deadline.passed(); });
    if (!owner.done()) {
      owner.cancel();
      const bool late = deadline.passed();
      throw Error(late ? Errc::timeout : Errc::cancelled,
                  std::string(doing) + (late ? ": the deadline passed" : ": the event loop was stopped"));
    }
    return outcome.take();
  }

  /// `co_await loop.sleep_until(deadline)`: always suspends, also for an instant that has passed.
  SleepAwaiter sleep_until(Deadline deadline) noexcept { return {scheduler_, deadline}; }
  SleepAwaiter sleep_for(Deadline::Clock::duration time) noexcept { return {scheduler_, Deadline::after(time)}; }

  /// `co_await loop.readable(fd, deadline)`: Ready::ready when a read would not block (also at its end and on errors),
  /// or Ready::timed_out. Several coroutines may wait for one descriptor. A deadline that has passed asks once.
  /// Lifetime: the descriptor stays open while a coroutine waits for it.
  /// @throws Error (posix) at the await where epoll refuses the descriptor
  DescriptorAwaiter readable(int descriptor, Deadline deadline) noexcept {
    return {scheduler_, descriptor, Interest::read, deadline};
  }
  DescriptorAwaiter writable(int descriptor, Deadline deadline) noexcept {
    return {scheduler_, descriptor, Interest::write, deadline};
  }

  /// Whether the caller is inside run() or run_until(). Threads: any.
  bool on_loop_thread() const noexcept {
    return running_.load() && ::pthread_equal(thread_.load(), ::pthread_self()) != 0;
  }

  /// Destroys all tasks and refuses new ones and posts; what the destructor does first. Not from inside run().
  void close() noexcept {
    closed_ = true;
    posts_.close();
    scheduler_.end_all();
  }

  /// How many descriptors and timers are waited for: for tests and diagnosis.
  std::size_t registered_descriptors() const noexcept { return scheduler_.registered_descriptors(); }
  std::size_t pending_timers() const noexcept { return scheduler_.pending_timers(); }

  /// For those who write awaiters.
  Scheduler& scheduler() noexcept { return scheduler_; }

 private:
  /// Wakes the loop at a deadline.
  struct Alarm : Waiter {
    Alarm(Scheduler& home, Deadline deadline) : scheduler(home) {
      scheduler.enter(*this, std::noop_coroutine(), deadline);
    }
    ~Alarm() { scheduler.leave(*this); }
    Scheduler& scheduler;
  };

  template <class Done>
  void drive(Done done) {
    if (running_.exchange(true)) {
      throw Error(Errc::invalid_argument, "running an event loop that is running already; await the task instead");
    }
    thread_.store(::pthread_self());
    struct Guard {
      ~Guard() { running.store(false); }
      std::atomic<bool>& running;
    } guard{running_};
    while (!done() && !stop_asked_.exchange(false)) {
      const bool posted = scheduler_.poll(posts_.unfinished());
      if (posted || posts_.unfinished()) {
        posts_.run_all();
      }
      scheduler_.resume_ready();
    }
  }

  PostQueue posts_;
  Scheduler scheduler_;
  std::atomic<bool> stop_asked_{false};
  std::atomic<bool> running_{false};
  std::atomic<pthread_t> thread_{};
  bool closed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/auto_reset_event.hpp

/// @file
/// async::AutoResetEvent: each set lets one coroutine pass.

namespace DTRAIN_NAMESPACE::async {

/// set() wakes the longest waiter, or, where nobody waits, lets the next one through; sets that nobody used count once.
/// A set given to a waiter that is destroyed before it runs goes to the next one. Lifetime: outlives its waiters.
/// Threads: the loop's.
class AutoResetEvent {
 public:
  class Awaiter;

  explicit AutoResetEvent(EventLoop& loop) noexcept : scheduler_(loop.scheduler()) {}

  inline void set() noexcept;
  bool is_set() const noexcept { return set_; }

  /// `co_await event.wait(deadline)`: Ready::ready for one who got a set, or Ready::timed_out.
  inline Awaiter wait(Deadline deadline) noexcept;

 private:
  Scheduler& scheduler_;
  IntrusiveList<Awaiter> waiters_;
  bool set_ = false;
};

class [[nodiscard]] AutoResetEvent::Awaiter : public Waiter {
 public:
  Awaiter(AutoResetEvent& event, Deadline deadline) noexcept : event_(event), deadline_(deadline) {}
  ~Awaiter() {
    event_.scheduler_.leave(*this);
    if (granted_) {
      event_.set();
    }
  }

  bool await_ready() noexcept { return std::exchange(event_.set_, false); }
  void await_suspend(std::coroutine_handle<> parent) {
    event_.scheduler_.enter(*this, parent, deadline_);
    event_.waiters_.push_back(*this);
  }
  Ready await_resume() noexcept {
    granted_ = false;
    return outcome;
  }

 private:
  friend AutoResetEvent;

  AutoResetEvent& event_;
  Deadline deadline_;
  bool granted_ = false;  ///< a set that has not been used
};

inline void AutoResetEvent::set() noexcept {
  if (Awaiter* waiter = waiters_.front()) {
    waiter->granted_ = true;
    scheduler_.wake(*waiter);
  } else {
    set_ = true;
  }
}

inline AutoResetEvent::Awaiter AutoResetEvent::wait(Deadline deadline) noexcept {
  return {*this, deadline};
}

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/blocking_call.hpp

/// @file
/// One task that a thread runs on another thread's EventLoop and waits for.

namespace DTRAIN_NAMESPACE::async {

/// Lives on the stack of the thread that waits. start(), then wait_until() or cancel() until one of them has said that
/// nothing on the loop's thread refers to it any more.
template <class T>
class BlockingCall {
 public:
  BlockingCall() = default;
  BlockingCall(const BlockingCall&) = delete;
  BlockingCall& operator=(const BlockingCall&) = delete;

  /// Posts the task. `make` outlives it.
  template <class Make>
  void start(EventLoop& loop, Make& make) {
    expect(1);
    loop.post([guard = Reference(*this), &loop, &make, this]() mutable { begin(loop, make, guard); });
  }

  /// Whether the task was gone by the deadline. Blocking: until then.
  bool wait_until(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return references_ == 0; });
  }

  /// Destroys the task on the loop's thread. Blocking: until that has happened, for as long as a coroutine or a posted
  /// function keeps that thread busy.
  void cancel(EventLoop& loop) {
    expect(1);
    loop.post([guard = Reference(*this), this] { owner_.cancel(); });
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return references_ == 0; });
  }

  bool done() const noexcept { return outcome_.done(); }
  T take() { return outcome_.take(); }

 private:
  /// What the loop holds while it may still touch the call.
  class Reference {
   public:
    explicit Reference(BlockingCall& call) noexcept : call_(&call) {}
    Reference(Reference&& other) noexcept : call_(std::exchange(other.call_, nullptr)) {}
    Reference& operator=(Reference&&) = delete;
    ~Reference() { release(); }
    BlockingCall* hand_over() noexcept { return std::exchange(call_, nullptr); }
    void release() noexcept {
      if (BlockingCall* call = hand_over()) {
        call->dropped();
      }
    }

   private:
    BlockingCall* call_;
  };

  void expect(int more) {
    const std::lock_guard lock(mutex_);
    references_ += more;
  }

  /// Notifies under the lock: the waiting thread destroys the call as soon as it sees zero.
  void dropped() noexcept {
    const std::lock_guard lock(mutex_);
    if (--references_ == 0) {
      changed_.notify_all();
    }
  }

  template <class Make>
  void begin(EventLoop& loop, Make& make, Reference& guard) {
    try {
      owner_ = loop.spawn(store_outcome(make(loop), outcome_), {}, [this] { gone(); });
      guard.hand_over();  // the task has it now; gone() drops it
    } catch (...) {
      outcome_.fail(std::current_exception());
    }
  }

  /// Runs on the loop's thread when the frame is destroyed.
  void gone() noexcept {
    owner_.detach();  // frees the record here, not on the waiting thread
    dropped();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int references_ = 0;  ///< guarded by mutex_
  Outcome<T> outcome_;  ///< the loop's thread writes it while it holds a reference
  Spawned owner_;       ///< the loop's thread only
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/event.hpp

/// @file
/// async::Event: a flag that coroutines of one loop wait for.

namespace DTRAIN_NAMESPACE::async {

/// Stays set, and wakes every waiter, until reset.
/// Lifetime: outlives its waiters; a waiter destroyed before takes itself out.
/// Threads: the loop's; from others, post a function that sets it.
class Event {
 public:
  class Awaiter;

  explicit Event(EventLoop& loop) noexcept : scheduler_(loop.scheduler()) {}

  /// Wakes all waiters, in the order of waiting, in the loop's next turn.
  void set() noexcept {
    set_ = true;
    while (Waiter* waiter = waiters_.front()) {
      scheduler_.wake(*waiter);
    }
  }
  void reset() noexcept { set_ = false; }
  bool is_set() const noexcept { return set_; }
  bool has_waiters() const noexcept { return !waiters_.empty(); }

  /// `co_await event.wait(deadline)`: Ready::ready once set (at once if it is), or Ready::timed_out.
  inline Awaiter wait(Deadline deadline) noexcept;

 private:
  Scheduler& scheduler_;
  IntrusiveList<Waiter> waiters_;
  bool set_ = false;
};

class [[nodiscard]] Event::Awaiter : public Waiter {
 public:
  Awaiter(Event& event, Deadline deadline) noexcept
      : event_(event), scheduler_(event.scheduler_), deadline_(deadline) {}
  ~Awaiter() { scheduler_.leave(*this); }

  bool await_ready() const noexcept { return event_.set_; }
  void await_suspend(std::coroutine_handle<> parent) {
    scheduler_.enter(*this, parent, deadline_);
    event_.waiters_.push_back(*this);
  }
  Ready await_resume() const noexcept { return outcome; }

 private:
  Event& event_;
  Scheduler& scheduler_;
  Deadline deadline_;
};

inline Event::Awaiter Event::wait(Deadline deadline) noexcept {
  return {*this, deadline};
}

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/loop_thread.hpp

/// @file
/// async::LoopThread: an EventLoop with a thread of its own, and the blocking way into it.

namespace DTRAIN_NAMESPACE::async {

/// Owns the loop and runs it until destroyed. Its thread takes no signals, so handlers and signalfds of the program
/// work as without it. If a task without a handler throws, the loop ends: every task is cancelled and every later call
/// throws. Threads: run_blocking from any thread but the loop's, several at once. Destroying it stops and joins (from
/// outside).
class LoopThread {
 public:
  LoopThread() {
    const BlockedSignals blocked;
    thread_ = std::jthread([this] { serve(); });
  }
  LoopThread(const LoopThread&) = delete;
  LoopThread& operator=(const LoopThread&) = delete;
  ~LoopThread() { loop_.stop(); }

  /// To post to; its other functions belong to the loop's thread.
  EventLoop& loop() noexcept { return loop_; }

  /// Whether the caller is the loop's thread, also while the loop ends. Threads: any.
  bool is_current() const noexcept { return std::this_thread::get_id() == thread_.get_id(); }

  /// Runs `co_await make(loop)` on the loop's thread and returns its value here.
  /// Blocking: until the task has ended. At the deadline the task is cancelled on the loop's thread, and this returns
  /// only when that has happened, so that `make` may capture the caller's locals by reference.
  /// @param make callable with EventLoop&, gives a Task; a coroutine lambda with captures is fine, since it stays alive
  /// @param doing begins the sentence of a timeout
  /// @throws what the task threw; Error (timeout); Error (cancelled) if the loop has ended; Error (invalid_argument)
  /// from the loop's own thread, which would wait for itself
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing = "running a task") {
    using T = typename std::remove_cvref_t<std::invoke_result_t<Make&, EventLoop&>>::value_type;
    if (loop_.on_loop_thread()) {
      throw Error(Errc::invalid_argument, std::string(doing) + ": called from the event loop's own thread, where it " +
                                              "would wait for itself; co_await the task instead");
    }
    BlockingCall<T> call;
    call.start(loop_, make);
    if (!call.wait_until(deadline)) {
      call.cancel(loop_);
    }
    if (!call.done()) {
      throw_unfinished(deadline, doing);
    }
    return call.take();
  }

 private:
  void serve() noexcept {
    try {
      loop_.run();
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      end_reason_ = error.what();
    } catch (...) {
      const std::lock_guard lock(mutex_);
      end_reason_ = "an exception that is not a std::exception";
    }
    loop_.close();
  }

  [[noreturn]] void throw_unfinished(Deadline deadline, std::string_view doing) {
    const std::lock_guard lock(mutex_);
    if (!end_reason_.empty()) {
      throw Error(Errc::cancelled, std::string(doing) + ": the event loop ended because of: " + end_reason_);
    }
    if (deadline.passed()) {
      throw Error(Errc::timeout, std::string(doing) + ": the deadline passed");
    }
    throw Error(Errc::cancelled, std::string(doing) + ": the event loop has ended");
  }

  EventLoop loop_;
  std::mutex mutex_;
  std::string end_reason_;  ///< guarded by mutex_: what ended the loop, if not stop()
  std::jthread thread_;     ///< last: joined before the rest is destroyed
};

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/when_all.hpp

/// @file
/// Several tasks at once.

namespace DTRAIN_NAMESPACE::async {

namespace detail {

/// What the children of one when_all share.
struct Join {
  explicit Join(EventLoop& loop) : over(loop) {}
  std::size_t pending = 0;
  std::exception_ptr first_exception;
  Event over;  ///< all are done, or one has failed
};

template <class T>
Task<void> join_one(Task<T> task, Outcome<T>& outcome, Join& join) {
  Task<void> stored = store_outcome(std::move(task), outcome);
  co_await std::move(stored);
  --join.pending;
  if (outcome.failed() || join.pending == 0) {
    join.over.set();
  }
}

template <class T>
void rethrow_failed(std::deque<Outcome<T>>& outcomes) {
  for (Outcome<T>& outcome : outcomes) {
    if (outcome.failed()) {
      outcome.take();
    }
  }
}

}  // namespace detail

/// Runs the tasks interleaved on one loop and returns their values in the order given (Task<void> for void ones). The
/// first exception cancels the others, which are destroyed before it is rethrown; of several in one turn of the loop,
/// that of the first task in order. A task that fails at its start keeps the later ones from starting.
/// @param deadline when it passes, the tasks are destroyed
/// @throws what a task threw; Error (timeout)
template <class T>
Task<std::conditional_t<std::is_void_v<T>, void, std::vector<std::conditional_t<std::is_void_v<T>, bool, T>>>> when_all(
    EventLoop& loop, std::vector<Task<T>> tasks, Deadline deadline) {
  detail::Join join(loop);
  std::deque<Outcome<T>> outcomes(tasks.size());
  {
    join.pending = tasks.size();
    std::vector<Task<void>> children;
    children.reserve(tasks.size());
    for (std::size_t i = 0; i < tasks.size() && !join.over.is_set(); ++i) {
      children.push_back(detail::join_one(std::move(tasks[i]), outcomes[i], join));
      children.back().handle().resume();
    }
    if (!tasks.empty() && co_await join.over.wait(deadline) == Ready::timed_out) {
      throw Error(Errc::timeout, "waiting for " + std::to_string(join.pending) + " of " + std::to_string(tasks.size()) +
                                     " tasks: the deadline passed");
    }
  }  // destroys the children that still wait
  detail::rethrow_failed(outcomes);
  if constexpr (!std::is_void_v<T>) {
    std::vector<T> values;
    values.reserve(outcomes.size());
    for (Outcome<T>& outcome : outcomes) {
      values.push_back(outcome.take());
    }
    co_return std::move(values);
  }
}

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/async/with_deadline.hpp

/// @file
/// A task that is given up at a deadline.

namespace DTRAIN_NAMESPACE::async {

namespace detail {

template <class T>
Task<void> store_and_set(Task<T> task, Outcome<T>& outcome, Event& done) {
  Task<void> stored = store_outcome(std::move(task), outcome);
  co_await std::move(stored);
  done.set();
}

}  // namespace detail

/// The task's value, or nothing when the deadline came first: the task is then destroyed. For Task<void>: whether it
/// ended in time. A task that ends in the same turn as the deadline has ended in time.
/// @throws what the task throws
template <class T>
Task<std::conditional_t<std::is_void_v<T>, bool, std::optional<std::conditional_t<std::is_void_v<T>, bool, T>>>>
with_deadline(EventLoop& loop, Task<T> task, Deadline deadline) {
  Outcome<T> outcome;
  Event done(loop);
  {
    const Task<void> child = detail::store_and_set(std::move(task), outcome, done);
    child.handle().resume();
    co_await done.wait(deadline);
  }  // destroys the child where it still waits
  if constexpr (std::is_void_v<T>) {
    const bool in_time = outcome.done();
    outcome.take();
    co_return in_time;
  } else {
    if (!outcome.done()) {
      co_return std::nullopt;
    }
    co_return std::optional<T>(outcome.take());
  }
}

}  // namespace DTRAIN_NAMESPACE::async

// ---- dtrain/net/address.hpp

/// @file
/// net::Endpoint: a numeric IPv4 or IPv6 address with a port.

namespace DTRAIN_NAMESPACE::net {

/// A port in decimal digits, 0..65535; nothing otherwise.
inline std::optional<std::uint16_t> parse_port(std::string_view text) noexcept {
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc{} || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return port;
}

/// A value: 28 bytes, compared by what it names.
class Endpoint {
 public:
  /// 0.0.0.0, port 0.
  Endpoint() noexcept { storage_.v4.sin_family = AF_INET; }

  static Endpoint any_v4(std::uint16_t port) noexcept { return v4(INADDR_ANY, port); }
  static Endpoint loopback_v4(std::uint16_t port) noexcept { return v4(INADDR_LOOPBACK, port); }
  static Endpoint any_v6(std::uint16_t port) noexcept { return v6(in6addr_any, port); }
  static Endpoint loopback_v6(std::uint16_t port) noexcept { return v6(in6addr_loopback, port); }

  /// Of "192.0.2.1", "2001:db8::1", "[2001:db8::1]" or "fe80::1%eth0"; nothing for a name or anything else.
  static std::optional<Endpoint> from_numeric(std::string_view host, std::uint16_t port) {
    if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
      host = host.substr(1, host.size() - 2);
      if (host.find(':') == std::string_view::npos) {
        return std::nullopt;
      }
    }
    const std::size_t percent = host.find('%');
    const std::string address(host.substr(0, percent));
    if (address.find('\0') != std::string::npos) {
      return std::nullopt;
    }
    in_addr four{};
    if (percent == std::string_view::npos && ::inet_pton(AF_INET, address.c_str(), &four) == 1) {
      return v4(ntohl(four.s_addr), port);
    }
    in6_addr six{};
    if (::inet_pton(AF_INET6, address.c_str(), &six) != 1) {
      return std::nullopt;
    }
    Endpoint endpoint = v6(six, port);
    if (percent != std::string_view::npos) {
      endpoint.storage_.v6.sin6_scope_id = ::if_nametoindex(std::string(host.substr(percent + 1)).c_str());
      if (endpoint.storage_.v6.sin6_scope_id == 0) {
        return std::nullopt;
      }
    }
    return endpoint;
  }

  /// Of "192.0.2.1:80" or "[2001:db8::1]:80".
  static std::optional<Endpoint> parse(std::string_view text) {
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || (text.find(':') != colon && text[colon - 1] != ']')) {
      return std::nullopt;
    }
    const std::optional<std::uint16_t> port = parse_port(text.substr(colon + 1));
    return port ? from_numeric(text.substr(0, colon), *port) : std::nullopt;
  }

  /// What the system returned; nothing for another family.
  static std::optional<Endpoint> from_system(const sockaddr* address, socklen_t size) noexcept {
    Endpoint endpoint;
    const bool is_v4 = size >= sizeof(sockaddr_in) && address->sa_family == AF_INET;
    const bool is_v6 = size >= sizeof(sockaddr_in6) && address->sa_family == AF_INET6;
    if (!is_v4 && !is_v6) {
      return std::nullopt;
    }
    std::memcpy(&endpoint.storage_, address, is_v4 ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    return endpoint;
  }

  bool is_v6() const noexcept { return storage_.any.sa_family == AF_INET6; }
  int family() const noexcept { return storage_.any.sa_family; }
  std::uint16_t port() const noexcept { return ntohs(is_v6() ? storage_.v6.sin6_port : storage_.v4.sin_port); }

  Endpoint with_port(std::uint16_t port) const noexcept {
    Endpoint changed = *this;
    (is_v6() ? changed.storage_.v6.sin6_port : changed.storage_.v4.sin_port) = htons(port);
    return changed;
  }

  /// The whole of 127.0.0.0/8, ::1, and the former written as IPv6.
  bool is_loopback() const noexcept {
    if (!is_v6()) {
      return (ntohl(storage_.v4.sin_addr.s_addr) >> 24) == 127;
    }
    const in6_addr& address = storage_.v6.sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) || (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }

  /// 0.0.0.0 or ::.
  bool is_any() const noexcept {
    return is_v6() ? IN6_IS_ADDR_UNSPECIFIED(&storage_.v6.sin6_addr) != 0 : storage_.v4.sin_addr.s_addr == INADDR_ANY;
  }

  /// The same endpoint as IPv4 where it is IPv4 written as IPv6 (::ffff:192.0.2.1), as a dual-stack socket sees peers.
  Endpoint unmapped() const noexcept {
    if (!is_v6() || !IN6_IS_ADDR_V4MAPPED(&storage_.v6.sin6_addr)) {
      return *this;
    }
    std::uint32_t address = 0;
    std::memcpy(&address, &storage_.v6.sin6_addr.s6_addr[12], sizeof address);
    return v4(ntohl(address), port());
  }

  /// "192.0.2.1", "2001:db8::1", "fe80::1%2".
  std::string host() const {
    char text[INET6_ADDRSTRLEN] = {};
    const void* address = is_v6() ? static_cast<const void*>(&storage_.v6.sin6_addr) : &storage_.v4.sin_addr;
    if (::inet_ntop(family(), address, text, sizeof text) == nullptr) {
      return "?";
    }
    const bool scoped = is_v6() && storage_.v6.sin6_scope_id != 0;
    return scoped ? std::string(text) + "%" + std::to_string(storage_.v6.sin6_scope_id) : std::string(text);
  }

  const sockaddr* data() const noexcept { return &storage_.any; }
  socklen_t size() const noexcept { return is_v6() ? sizeof(sockaddr_in6) : sizeof(sockaddr_in); }

  friend bool operator==(const Endpoint& a, const Endpoint& b) noexcept {
    if (a.family() != b.family() || a.port() != b.port()) {
      return false;
    }
    return a.is_v6() ? std::memcmp(&a.storage_.v6.sin6_addr, &b.storage_.v6.sin6_addr, sizeof(in6_addr)) == 0 &&
                           a.storage_.v6.sin6_scope_id == b.storage_.v6.sin6_scope_id
                     : a.storage_.v4.sin_addr.s_addr == b.storage_.v4.sin_addr.s_addr;
  }

 private:
  static Endpoint v4(std::uint32_t address, std::uint16_t port) noexcept {
    Endpoint endpoint;
    endpoint.storage_.v4.sin_addr.s_addr = htonl(address);
    endpoint.storage_.v4.sin_port = htons(port);
    return endpoint;
  }
  static Endpoint v6(const in6_addr& address, std::uint16_t port) noexcept {
    Endpoint endpoint;
    endpoint.storage_.v6.sin6_family = AF_INET6;
    endpoint.storage_.v6.sin6_addr = address;
    endpoint.storage_.v6.sin6_port = htons(port);
    return endpoint;
  }

  union {
    sockaddr any;
    sockaddr_in v4;
    sockaddr_in6 v6;
  } storage_{.v6 = {}};
};

/// "192.0.2.1:80", "[2001:db8::1]:80".
inline std::string to_string(const Endpoint& endpoint) {
  const std::string host = endpoint.is_v6() ? "[" + endpoint.host() + "]" : endpoint.host();
  return host + ":" + std::to_string(endpoint.port());
}

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/byte_reader.hpp

/// @file
/// Decoding of what ByteWriter wrote, from bytes that nobody vouches for.

namespace DTRAIN_NAMESPACE::net {

/// Reads in order. What is missing or beyond its bound makes ok() false for good; every later read gives zero or
/// nothing, so that a whole message can be read and checked once at its end: `if (!reader.finished()) ...`. Lifetime:
/// the bytes outlive the reader and the spans it gives out.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : left_(bytes) {}

  std::uint8_t u8() noexcept { return static_cast<std::uint8_t>(little_endian(1)); }
  std::uint16_t u16() noexcept { return static_cast<std::uint16_t>(little_endian(2)); }
  std::uint32_t u32() noexcept { return static_cast<std::uint32_t>(little_endian(4)); }
  std::uint64_t u64() noexcept { return little_endian(8); }
  std::int64_t i64() noexcept { return static_cast<std::int64_t>(little_endian(8)); }

  /// `count` bytes as they stand.
  std::span<const std::byte> raw(std::size_t count) noexcept {
    if (!ok_ || count > left_.size()) {
      fail();
      return {};
    }
    const std::span<const std::byte> taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }

  /// A length and that many bytes, at most `most`; nothing is allocated.
  std::span<const std::byte> bytes(std::size_t most) noexcept {
    const std::uint32_t count = u32();
    if (count > most) {
      fail();
      return {};
    }
    return raw(count);
  }

  /// A length and that many characters, at most `most`.
  std::string string(std::size_t most) {
    const std::span<const std::byte> content = bytes(most);
    return {reinterpret_cast<const char*>(content.data()), content.size()};
  }

  /// Marks the message as wrong: for a caller who finds a value that cannot be.
  void fail() noexcept {
    ok_ = false;
    left_ = {};
  }

  bool ok() const noexcept { return ok_; }
  std::size_t remaining() const noexcept { return left_.size(); }

  /// Whether all was read, and nothing is left over.
  bool finished() const noexcept { return ok_ && left_.empty(); }

 private:
  std::uint64_t little_endian(std::size_t count) noexcept {
    const std::span<const std::byte> encoded = raw(count);
    std::uint64_t value = 0;
    for (std::size_t i = encoded.size(); i > 0; --i) {
      value = (value << 8) | std::to_integer<std::uint64_t>(encoded[i - 1]);
    }
    return value;
  }

  std::span<const std::byte> left_;
  bool ok_ = true;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/byte_writer.hpp

/// @file
/// Encoding of little-endian integers and bounded strings.

namespace DTRAIN_NAMESPACE::net {

/// Appends to a growing array. The result does not depend on the machine's byte order.
class ByteWriter {
 public:
  ByteWriter& u8(std::uint8_t value) { return little_endian(value, 1); }
  ByteWriter& u16(std::uint16_t value) { return little_endian(value, 2); }
  ByteWriter& u32(std::uint32_t value) { return little_endian(value, 4); }
  ByteWriter& u64(std::uint64_t value) { return little_endian(value, 8); }
  ByteWriter& i64(std::int64_t value) { return u64(static_cast<std::uint64_t>(value)); }

  /// The bytes alone, without their number.
  ByteWriter& raw(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
    return *this;
  }

  /// A u32 with the number of bytes, then these. @throws Error (limit) beyond 2^32 - 1 bytes
  ByteWriter& bytes(std::span<const std::byte> content) {
    if (content.size() > std::numeric_limits<std::uint32_t>::max()) {
      throw Error(Errc::limit, "encoding " + std::to_string(content.size()) + " bytes; at most 2^32 - 1 are possible");
    }
    u32(static_cast<std::uint32_t>(content.size()));
    return raw(content);
  }
  ByteWriter& string(std::string_view text) { return bytes(std::as_bytes(std::span(text.data(), text.size()))); }

  std::span<const std::byte> view() const noexcept { return bytes_; }
  std::vector<std::byte> take() noexcept { return std::exchange(bytes_, {}); }
  /// Empty again, with its memory.
  void clear() noexcept { bytes_.clear(); }

 private:
  ByteWriter& little_endian(std::uint64_t value, int count) {
    for (int i = 0; i < count; ++i, value >>= 8) {
      bytes_.push_back(static_cast<std::byte>(value & 0xff));
    }
    return *this;
  }

  std::vector<std::byte> bytes_;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/descriptor.hpp

/// @file
/// The owner of a file descriptor, under the name that sockets use.

namespace DTRAIN_NAMESPACE::net {

using async::Descriptor;

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/frame_parser.hpp

/// @file
/// Frames in a stream of bytes: a little-endian u32 length, then so many bytes.

namespace DTRAIN_NAMESPACE::net {

inline constexpr std::size_t frame_header_bytes = 4;
inline constexpr std::size_t default_frame_bound = std::size_t{1} << 20;

/// Takes bytes in any pieces and gives whole frames. Its memory is what was received and not yet taken, so a length
/// that somebody claims costs nothing. A length above the bound spoils the stream for good.
class FrameParser {
 public:
  /// @param bound of a frame's payload, in bytes
  explicit FrameParser(std::size_t bound = default_frame_bound) noexcept : bound_(bound) {}

  /// From here on frames may be longer. A stream that is spoilt stays so.
  void raise_bound(std::size_t bound) noexcept { bound_ = bound; }

  /// Appends what was received; ignored once the stream is spoilt.
  void feed(std::span<const std::byte> bytes) {
    if (spoilt_) {
      return;
    }
    if (taken_ > 0 && taken_ >= buffer_.size() / 2) {
      buffer_.erase(buffer_.begin(), buffer_.begin() + static_cast<std::ptrdiff_t>(taken_));
      taken_ = 0;
    }
    buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
    check_length();
  }

  /// The next whole frame's payload, if there is one.
  std::optional<std::vector<std::byte>> next() {
    std::vector<std::byte> frame;
    return next(frame) ? std::optional(std::move(frame)) : std::nullopt;
  }

  /// The same in memory that is used again: small frames allocate nothing.
  bool next(std::vector<std::byte>& frame) {
    if (spoilt_ || buffered() < frame_header_bytes || buffered() - frame_header_bytes < length()) {
      return false;
    }
    const std::span<const std::byte> payload =
        std::span<const std::byte>(buffer_).subspan(taken_ + frame_header_bytes, length());
    if (frame.capacity() > kept_capacity) {
      std::vector<std::byte>().swap(frame);
    }
    frame.assign(payload.begin(), payload.end());
    taken_ += frame_header_bytes + frame.size();
    if (taken_ == buffer_.size()) {
      buffer_.clear();
      taken_ = 0;
      if (buffer_.capacity() > kept_capacity) {
        buffer_.shrink_to_fit();
      }
    }
    check_length();
    return true;
  }

  /// Whether a length above the bound has been seen, and which.
  bool spoilt() const noexcept { return spoilt_; }
  std::uint32_t refused_length() const noexcept { return refused_length_; }

  /// Bytes received and not yet given out; not zero at the end of the stream means a frame cut short.
  std::size_t buffered() const noexcept { return buffer_.size() - taken_; }
  std::size_t bound() const noexcept { return bound_; }

 private:
  static constexpr std::size_t kept_capacity = std::size_t{64} << 10;

  std::uint32_t length() const noexcept {
    std::uint32_t value = 0;
    for (std::size_t i = frame_header_bytes; i > 0; --i) {
      value = (value << 8) | std::to_integer<std::uint32_t>(buffer_[taken_ + i - 1]);
    }
    return value;
  }

  void check_length() {
    if (buffered() >= frame_header_bytes && length() > bound_) {
      spoilt_ = true;
      refused_length_ = length();
      std::vector<std::byte>().swap(buffer_);
      taken_ = 0;
    }
  }

  std::size_t bound_;
  std::vector<std::byte> buffer_;
  std::size_t taken_ = 0;  ///< bytes at the buffer's beginning that were given out
  bool spoilt_ = false;
  std::uint32_t refused_length_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/interfaces.hpp

/// @file
/// The addresses of this machine's network interfaces.

namespace DTRAIN_NAMESPACE::net {

struct InterfaceAddress {
  std::string interface;  ///< "eth0"
  Endpoint endpoint;      ///< port 0
};

/// All that have an IPv4 or IPv6 address, in the system's order. @throws Error (posix)
inline std::vector<InterfaceAddress> interface_addresses() {
  ::ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {
    throw errno_error("asking for the addresses of this machine's network interfaces");
  }
  const std::unique_ptr<::ifaddrs, void (*)(::ifaddrs*)> owner(list, &::freeifaddrs);
  std::vector<InterfaceAddress> all;
  for (const ::ifaddrs* each = list; each != nullptr; each = each->ifa_next) {
    const bool is_v6 = each->ifa_addr != nullptr && each->ifa_addr->sa_family == AF_INET6;
    const auto size = static_cast<socklen_t>(is_v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in));
    if (each->ifa_addr == nullptr) {
      continue;
    }
    if (const auto endpoint = Endpoint::from_system(each->ifa_addr, size)) {
      all.push_back({each->ifa_name, endpoint->with_port(0)});
    }
  }
  return all;
}

/// The address that this machine shows to others where nothing says which: the one of the route out, IPv4 before IPv6.
/// Nothing is sent. Nothing where there is no such route.
inline std::optional<Endpoint> address_of_default_route() {
  for (const char* const outside : {"192.0.2.1", "2001:db8::1"}) {  // documentation's: nobody's (RFC 5737, RFC 3849)
    const std::optional<Endpoint> target = Endpoint::from_numeric(outside, 9);
    const Descriptor socket(::socket(target->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    if (socket && ::connect(socket.get(), target->data(), target->size()) == 0 &&
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &size) == 0) {
      const auto own = Endpoint::from_system(reinterpret_cast<const sockaddr*>(&storage), size);
      if (own && !own->is_loopback() && !own->is_any()) {
        return own->with_port(0);
      }
    }
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/io_result.hpp

/// @file
/// How reading or writing ended: expected outcomes as values.

namespace DTRAIN_NAMESPACE::net {

enum class IoStatus : std::uint8_t {
  ok = 1,
  closed,     ///< the connection is gone: closed by the peer, reset, or given up by the system
  timed_out,  ///< the deadline came first
};

struct IoResult {
  IoStatus status = IoStatus::ok;
  std::size_t bytes = 0;  ///< moved, also where the status is not ok
  int error = 0;          ///< the errno that ended the connection; 0 where the peer closed it in order

  bool ok() const noexcept { return status == IoStatus::ok; }

  /// "connection closed by the peer", "Connection reset by peer", "the deadline passed".
  std::string reason() const {
    switch (status) {
      case IoStatus::ok: return "ok";
      case IoStatus::timed_out: return "the deadline passed";
      case IoStatus::closed: break;
    }
    return error == 0 ? "connection closed by the peer" : std::generic_category().message(error);
  }
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/connection.hpp

/// @file
/// net::Connection: a connected, non-blocking TCP socket on an EventLoop.

namespace DTRAIN_NAMESPACE::net {

/// Sends small messages at once (TCP_NODELAY), has keepalive on, and never raises SIGPIPE. One coroutine may read while
/// another writes.
/// Lifetime: outlives the tasks of its functions, and does not move while they run; the loop outlives it. Buffers
/// outlive the task that uses them. Threads: the loop's.
class Connection {
 public:
  /// Takes over a connected, non-blocking socket. @throws Error (posix) where an option is refused
  Connection(async::EventLoop& loop, Descriptor socket) : loop_(&loop), socket_(std::move(socket)) {
    set_option(IPPROTO_TCP, TCP_NODELAY, 1, "TCP_NODELAY");
    set_option(SOL_SOCKET, SO_KEEPALIVE, 1, "SO_KEEPALIVE");
  }

  /// Reads what is there without waiting; nothing where that would block.
  std::optional<IoResult> try_read(std::span<std::byte> buffer) {
    for (;;) {
      const ssize_t count = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
      if (count > 0 || buffer.empty()) {
        return IoResult{IoStatus::ok, static_cast<std::size_t>(std::max<ssize_t>(count, 0)), 0};
      }
      if (count == 0) {
        return IoResult{IoStatus::closed, 0, 0};
      }
      if (errno != EINTR) {
        return failure(errno, "reading from ");
      }
    }
  }

  /// Writes what fits without waiting; nothing where not a byte does.
  std::optional<IoResult> try_write(std::span<const std::byte> bytes) {
    for (;;) {
      const ssize_t count = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count >= 0) {
        return IoResult{IoStatus::ok, static_cast<std::size_t>(count), 0};
      }
      if (errno != EINTR) {
        return failure(errno, "writing to ");
      }
    }
  }

  /// Reads at least one byte, or finds the end. A read of nothing is ok at once.
  async::Task<IoResult> read_some(std::span<std::byte> buffer, Deadline deadline) {
    for (;;) {
      const std::optional<IoResult> result = try_read(buffer);
      if (result) {
        co_return *result;
      }
      const async::Ready ready = co_await readable(deadline);
      if (ready == async::Ready::timed_out) {
        co_return IoResult{IoStatus::timed_out, 0, 0};
      }
    }
  }

  /// Writes all of it, or says how much had gone when the deadline or the end of the connection came.
  async::Task<IoResult> write_all(std::span<const std::byte> bytes, Deadline deadline) {
    std::size_t done = 0;
    while (done < bytes.size()) {
      const std::optional<IoResult> result = try_write(bytes.subspan(done));
      if (result && !result->ok()) {
        co_return IoResult{result->status, done, result->error};
      }
      if (result) {
        done += result->bytes;
        continue;
      }
      const async::Ready ready = co_await loop_->writable(socket_.get(), deadline);
      if (ready == async::Ready::timed_out) {
        co_return IoResult{IoStatus::timed_out, done, 0};
      }
    }
    co_return IoResult{IoStatus::ok, done, 0};
  }

  /// `co_await connection.readable(deadline)`: as EventLoop::readable.
  async::DescriptorAwaiter readable(Deadline deadline) noexcept { return loop_->readable(socket_.get(), deadline); }
  async::DescriptorAwaiter writable(Deadline deadline) noexcept { return loop_->writable(socket_.get(), deadline); }

  /// Sends probes after `idle` of silence, every `interval`, and gives the connection up after `probes` without an
  /// answer.
  void set_keepalive(std::chrono::seconds idle, std::chrono::seconds interval, int probes) {
    set_option(IPPROTO_TCP, TCP_KEEPIDLE, static_cast<int>(idle.count()), "TCP_KEEPIDLE");
    set_option(IPPROTO_TCP, TCP_KEEPINTVL, static_cast<int>(interval.count()), "TCP_KEEPINTVL");
    set_option(IPPROTO_TCP, TCP_KEEPCNT, probes, "TCP_KEEPCNT");
  }

  /// Gives the connection up when sent data stays unacknowledged for so long (TCP_USER_TIMEOUT), 24 days at most.
  void set_user_timeout(std::chrono::milliseconds timeout) {
    const std::chrono::milliseconds longest(std::numeric_limits<int>::max());
    set_option(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(std::min(timeout, longest).count()), "TCP_USER_TIMEOUT");
  }

  /// The two ends, IPv4 as IPv4 also on a dual-stack socket. An end that is gone is 0.0.0.0:0.
  Endpoint peer() const noexcept { return endpoint(&::getpeername); }
  Endpoint local() const noexcept { return endpoint(&::getsockname); }

  /// The peer reads its end after what was written; reading goes on.
  void shutdown_write() noexcept { static_cast<void>(::shutdown(socket_.get(), SHUT_WR)); }

  /// Ends both directions; coroutines that wait on it see it closed.
  void shutdown() noexcept { static_cast<void>(::shutdown(socket_.get(), SHUT_RDWR)); }

  int descriptor() const noexcept { return socket_.get(); }
  async::EventLoop& loop() const noexcept { return *loop_; }

 private:
  /// Errors that the network or the peer can cause; anything else is a mistake in this program.
  static bool is_gone(int error) noexcept {
    switch (error) {
      case ECONNRESET:
      case ECONNABORTED:
      case ECONNREFUSED:
      case EPIPE:
      case ETIMEDOUT:
      case EHOSTUNREACH:
      case EHOSTDOWN:
      case ENETUNREACH:
      case ENETDOWN:
      case ENETRESET:
      case ENOTCONN: return true;
      default: return false;
    }
  }

  std::optional<IoResult> failure(int error, const char* doing) const {
    if (is_gone(error)) {
      return IoResult{IoStatus::closed, 0, error};
    }
    if (error != EAGAIN && error != EWOULDBLOCK) {
      throw posix_error(error, doing + to_string(peer()));
    }
    return std::nullopt;
  }

  void set_option(int level, int option, int value, const char* name) {
    if (::setsockopt(socket_.get(), level, option, &value, sizeof value) != 0) {
      throw errno_error(std::string("setting ") + name + " to " + std::to_string(value) + " on a connection");
    }
  }

  Endpoint endpoint(int (*ask)(int, sockaddr*, socklen_t*)) const noexcept {
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    if (ask(socket_.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
      return {};
    }
    return Endpoint::from_system(reinterpret_cast<const sockaddr*>(&storage), size).value_or(Endpoint{}).unmapped();
  }

  async::EventLoop* loop_;
  Descriptor socket_;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/frame.hpp

/// @file
/// Frames over a Connection.

namespace DTRAIN_NAMESPACE::net {

enum class FrameStatus : std::uint8_t {
  ok = 1,
  closed,     ///< at the end of a frame
  cut_short,  ///< the connection ended inside a frame
  timed_out,  ///< what was received so far is kept: reading may go on
  too_long,   ///< the peer announced more than the bound: the stream cannot be followed any more
};

struct FrameResult {
  FrameStatus status = FrameStatus::ok;
  std::vector<std::byte> payload{};
  std::string reason{};  ///< a clause for a sentence where the status is not ok

  bool ok() const noexcept { return status == FrameStatus::ok; }
};

/// Lifetime: the connection outlives it; neither moves while a task reads. One coroutine reads at a time.
class FrameReader {
 public:
  explicit FrameReader(Connection& connection, std::size_t bound = default_frame_bound) noexcept
      : connection_(&connection), parser_(bound) {}

  /// From here on frames may be longer: for a peer that has shown who it is.
  void raise_bound(std::size_t bound) noexcept { parser_.raise_bound(bound); }

  /// The next frame.
  async::Task<FrameResult> read_frame(Deadline deadline) {
    FrameResult result;
    while (!try_read_frame(result)) {
      const async::Ready ready = co_await connection_->readable(deadline);
      if (ready == async::Ready::timed_out) {
        end(result, IoResult{IoStatus::timed_out, 0, 0});
        break;
      }
    }
    co_return std::move(result);
  }

  /// The next frame, or the end of them, without waiting; false where nothing more is there. Uses the result's memory
  /// again: a line that beats allocates nothing.
  bool try_read_frame(FrameResult& result) {
    while (!parser_.next(result.payload)) {
      if (parser_.spoilt()) {
        result.status = FrameStatus::too_long;
        result.reason = "the peer announced a frame of " + std::to_string(parser_.refused_length()) +
                        " bytes; at most " + std::to_string(parser_.bound()) + " are taken";
        return true;
      }
      const IoResult io = receive();
      if (io.status == IoStatus::timed_out) {
        return false;
      }
      if (!io.ok()) {
        end(result, io);
        return true;
      }
    }
    return true;
  }

 private:
  void end(FrameResult& result, const IoResult& io) const {
    const bool inside = parser_.buffered() > 0;
    result.status = io.status == IoStatus::timed_out ? FrameStatus::timed_out
                    : inside                         ? FrameStatus::cut_short
                                                     : FrameStatus::closed;
    result.reason = io.reason() + (inside ? " inside a frame" : "");
  }

  /// Moves what has arrived into the parser. The buffer is on the stack, not in the frames of ten thousand coroutines.
  IoResult receive() {
    std::array<std::byte, 16384> buffer;
    const IoResult io = connection_->try_read(buffer).value_or(IoResult{IoStatus::timed_out, 0, 0});
    parser_.feed(std::span<const std::byte>(buffer).first(io.bytes));
    return io;
  }

  Connection* connection_;
  FrameParser parser_;
};

/// Queues frames and writes them together. Lifetime: as FrameReader. One coroutine flushes at a time; others may queue
/// meanwhile, and what they queue goes with the same flush.
class FrameWriter {
 public:
  static constexpr std::size_t default_queue_bound = std::size_t{64} << 20;

  explicit FrameWriter(Connection& connection, std::size_t bound = default_frame_bound,
                       std::size_t queue_bound = default_queue_bound) noexcept
      : connection_(&connection), bound_(bound), queue_bound_(queue_bound) {}

  /// Appends a frame. False, with nothing appended, where more than the queue's bound would wait: the peer does not
  /// read.
  /// @throws Error (limit) for a payload above the frame's bound
  [[nodiscard]] bool queue(std::span<const std::byte> payload) {
    if (payload.size() > bound_) {
      throw Error(Errc::limit, "sending a message of " + std::to_string(payload.size()) + " bytes; at most " +
                                   std::to_string(bound_) + " are possible");
    }
    if (queued_bytes() + frame_header_bytes + payload.size() > queue_bound_) {
      return false;
    }
    for (std::size_t i = 0; i < frame_header_bytes; ++i) {
      queue_.push_back(static_cast<std::byte>((payload.size() >> (8 * i)) & 0xff));
    }
    queue_.insert(queue_.end(), payload.begin(), payload.end());
    return true;
  }

  /// Writes what is queued. After a timeout the rest stays queued, and the next flush goes on with it.
  async::Task<IoResult> flush(Deadline deadline) {
    IoResult total = try_flush();
    while (total.status == IoStatus::timed_out) {
      const async::Ready ready = co_await connection_->writable(deadline);
      if (ready == async::Ready::timed_out) {
        break;
      }
      const IoResult more = try_flush();
      total = IoResult{more.status, total.bytes + more.bytes, more.error};
    }
    co_return total;
  }

  /// Writes what goes without waiting: timed_out where some of it does not. Allocates nothing.
  IoResult try_flush() {
    IoResult total;
    while (queued_bytes() > 0) {
      if (written_ == writing_.size()) {
        writing_.clear();
        written_ = 0;
        writing_.swap(queue_);
      }
      const IoResult io = connection_->try_write(std::span<const std::byte>(writing_).subspan(written_))
                              .value_or(IoResult{IoStatus::timed_out, 0, 0});
      written_ += io.bytes;
      total.bytes += io.bytes;
      if (!io.ok()) {
        total.status = io.status;
        total.error = io.error;
        break;
      }
    }
    return total;
  }

  /// queue and flush. @throws Error (limit) also where the queue is full
  async::Task<IoResult> write_frame(std::span<const std::byte> payload, Deadline deadline) {
    if (!queue(payload)) {
      throw Error(Errc::limit, "sending a message: " + std::to_string(queued_bytes()) + " bytes wait for a peer that " +
                                   "does not read");
    }
    const IoResult result = co_await flush(deadline);
    co_return result;
  }

  std::size_t queued_bytes() const noexcept { return queue_.size() + writing_.size() - written_; }

 private:
  Connection* connection_;
  std::size_t bound_;
  std::size_t queue_bound_;
  std::vector<std::byte> queue_;    ///< what waits for the next write
  std::vector<std::byte> writing_;  ///< what is being written, from written_ on
  std::size_t written_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/listener.hpp

/// @file
/// net::Listener: a TCP socket that accepts connections.

namespace DTRAIN_NAMESPACE::net {

/// Lifetime: outlives the tasks of accept(), and does not move while they run; the loop outlives it. Threads: the
/// loop's.
class Listener {
 public:
  /// Listens at an address of this machine; port 0 is one that the system chooses (see local()). SO_REUSEADDR is set.
  /// @throws Error (posix), whose sentence names the port and what to set
  static Listener bind(async::EventLoop& loop, const Endpoint& endpoint, int backlog = default_backlog) {
    return open(loop, endpoint, backlog, false);
  }

  /// Listens at every address, IPv4 and IPv6 on one socket; IPv4 alone on a machine without IPv6.
  static Listener bind_any(async::EventLoop& loop, std::uint16_t port, int backlog = default_backlog) {
    try {
      return open(loop, Endpoint::any_v6(port), backlog, true);
    } catch (const Error& error) {
      const int reason = error.code().value();
      if (reason != EAFNOSUPPORT && reason != EADDRNOTAVAIL && reason != EPROTONOSUPPORT) {
        throw;
      }
    }
    return open(loop, Endpoint::any_v4(port), backlog, false);
  }

  /// The next connection, or nothing at the deadline. A peer that is gone before it is accepted is passed over; where
  /// the process or the system is out of descriptors, it tries again every 20 ms.
  /// @throws Error (posix) for what is a mistake in this program
  async::Task<std::optional<Connection>> accept(Deadline deadline) {
    for (;;) {
      Descriptor socket(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const int error = errno;
      if (socket) {
        co_return Connection(*loop_, std::move(socket));
      }
      async::Ready ready = async::Ready::ready;
      if (error == EAGAIN || error == EWOULDBLOCK) {
        ready = co_await loop_->readable(socket_.get(), deadline);
      } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM) {
        co_await loop_->sleep_for(std::chrono::milliseconds(20));
        ready = deadline.passed() ? async::Ready::timed_out : async::Ready::ready;
      } else if (error == EBADF || error == EINVAL || error == ENOTSOCK || error == EFAULT || error == EOPNOTSUPP) {
        throw posix_error(error, "accepting a connection");
      }
      if (ready == async::Ready::timed_out) {
        co_return std::nullopt;
      }
    }
  }

  /// Where it listens, with the port that the system chose.
  Endpoint local() const noexcept { return local_; }
  std::uint16_t port() const noexcept { return local_.port(); }
  int descriptor() const noexcept { return socket_.get(); }

 private:
  static constexpr int default_backlog = 4096;  // the system lowers it to its own bound

  Listener(async::EventLoop& loop, Descriptor socket, const Endpoint& local)
      : loop_(&loop), socket_(std::move(socket)), local_(local) {}

  static Listener open(async::EventLoop& loop, const Endpoint& endpoint, int backlog, bool dual_stack) {
    const std::string doing =
        "listening at " +
        (dual_stack ? "port " + std::to_string(endpoint.port()) + " of every address" : to_string(endpoint));
    Descriptor socket(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
    if (!socket) {
      throw errno_error(doing);
    }
    const int on = 1;
    const int v6_only = dual_stack ? 0 : 1;
    if (::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (endpoint.is_v6() && ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only) != 0)) {
      throw errno_error(doing);
    }
    if (::bind(socket.get(), endpoint.data(), endpoint.size()) != 0 || ::listen(socket.get(), backlog) != 0) {
      throw errno_error(doing, remedy(errno));
    }
    sockaddr_storage storage{};
    socklen_t size = sizeof storage;
    if (::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&storage), &size) != 0) {
      throw errno_error(doing);
    }
    const auto local = Endpoint::from_system(reinterpret_cast<const sockaddr*>(&storage), size);
    return {loop, std::move(socket), local.value_or(endpoint)};
  }

  static const char* remedy(int error) noexcept {
    switch (error) {
      case EADDRINUSE: return "another program uses this port: choose another with MASTER_PORT or --master-port";
      case EADDRNOTAVAIL: return "the address is not one of this machine's: set MASTER_ADDR to one that is";
      case EACCES: return "ports below 1024 need privileges: choose another with MASTER_PORT or --master-port";
      default: return "";
    }
  }

  async::EventLoop* loop_;
  Descriptor socket_;
  Endpoint local_;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/poll_descriptor.hpp

/// @file
/// Blocking waits for a descriptor, with a deadline.

namespace DTRAIN_NAMESPACE::net {

/// Returns when `events` (POLLIN, POLLOUT), an error or the other side's end is there. A deadline that has passed asks
/// once. Blocking: until the deadline.
/// @param doing begins the sentence of an error
/// @throws Error (timeout, posix)
inline void wait_descriptor(int descriptor, short events, Deadline deadline, const std::string& doing) {
  for (;;) {
    const bool last = deadline.passed();
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
    pollfd entry{descriptor, events, 0};
    const int count = ::poll(&entry, 1, static_cast<int>(std::min(left, std::chrono::milliseconds(60'000)).count()));
    if (count > 0) {
      return;
    }
    if (count < 0 && errno != EINTR) {
      throw errno_error(doing);
    }
    if (count == 0 && last) {
      throw Error(Errc::timeout, doing + ": the deadline passed");
    }
  }
}

/// Sleeps a millisecond. @throws Error (timeout) if the deadline has passed, (posix)
inline void pause_before_retry(Deadline deadline, const std::string& doing) {
  if (deadline.passed()) {
    throw Error(Errc::timeout, doing + ": the deadline passed");
  }
  if (::poll(nullptr, 0, 1) < 0 && errno != EINTR) {
    throw errno_error(doing);
  }
}

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/resolve.hpp

/// @file
/// Names to addresses, with a deadline that getaddrinfo does not have.

namespace DTRAIN_NAMESPACE::net {

/// Addresses in the order to try them, or why there are none.
struct Resolution {
  std::vector<Endpoint> endpoints;
  std::string reason;  ///< empty where there are endpoints
};

/// The Error for a host that does not resolve.
inline Error unresolved_error(const std::string& host, const std::string& reason) {
  return {Errc::refused, "resolving host '" + host + "': " + reason +
                             "; set MASTER_ADDR (or --master-addr) to a name or address that this machine can reach"};
}

namespace detail {

/// What getaddrinfo says. Blocking: as long as the system's resolver likes.
inline Resolution ask_system(const std::string& host, std::uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* first = nullptr;
  const int result = ::getaddrinfo(host.c_str(), nullptr, &hints, &first);
  const int number = errno;
  Resolution resolution;
  if (result != 0) {
    resolution.reason = result == EAI_SYSTEM ? std::generic_category().message(number) : ::gai_strerror(result);
    return resolution;
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(first, &::freeaddrinfo);
  for (const addrinfo* entry = first; entry != nullptr; entry = entry->ai_next) {
    if (const auto endpoint = Endpoint::from_system(entry->ai_addr, entry->ai_addrlen)) {
      resolution.endpoints.push_back(endpoint->with_port(port));
    }
  }
  if (resolution.endpoints.empty()) {
    resolution.reason = "it has no IPv4 or IPv6 address";
  }
  return resolution;
}

/// What the helper thread and the waiting coroutine share; whichever is last frees it.
class Lookup {
 public:
  explicit Lookup(async::EventLoop& loop) : loop_(&loop), done_(loop) {}

  /// On the helper thread. The loop is alive while the coroutine has not abandoned the lookup.
  void deliver(const std::shared_ptr<Lookup>& self, Resolution found) {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) {
      found_ = std::move(found);
      loop_->post([self] { self->announce(); });
    }
  }

  /// On the loop's thread.
  void abandon() noexcept {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }
  async::Event& done() noexcept { return done_; }
  Resolution take() {
    const std::lock_guard lock(mutex_);
    return std::move(found_);
  }

 private:
  void announce() noexcept {
    const std::lock_guard lock(mutex_);
    if (loop_ != nullptr) {
      done_.set();
    }
  }

  std::mutex mutex_;
  async::EventLoop* loop_;  ///< guarded by mutex_; null once abandoned
  Resolution found_;        ///< guarded by mutex_
  async::Event done_;       ///< the loop's thread only
};

inline std::shared_ptr<Lookup> start_lookup(async::EventLoop& loop, std::string host, std::uint16_t port) {
  auto lookup = std::make_shared<Lookup>(loop);
  const async::BlockedSignals blocked;
  try {
    std::thread([lookup, host = std::move(host), port] {
      Resolution found;
      try {
        found = ask_system(host, port);
        lookup->deliver(lookup, std::move(found));
      } catch (...) {  // out of memory: the coroutine's deadline ends the wait
      }
    }).detach();
  } catch (const std::system_error& error) {
    throw Error(error.code(), std::string("starting a thread to resolve a host name: ") + error.what());
  }
  return lookup;
}

}  // namespace detail

/// The addresses of `host`. Numeric ones and "localhost" are known at once; others are asked of the system on a helper
/// thread, which is left to itself at the deadline or when the task is destroyed.
/// @throws Error (posix) if no thread can be started
inline async::Task<Resolution> resolve(async::EventLoop& loop, std::string host, std::uint16_t port,
                                       Deadline deadline) {
  Resolution resolution;
  if (const auto numeric = Endpoint::from_numeric(host, port)) {
    resolution.endpoints.push_back(*numeric);
    co_return std::move(resolution);
  }
  if (host == "localhost") {
    resolution.endpoints = {Endpoint::loopback_v4(port), Endpoint::loopback_v6(port)};
    co_return std::move(resolution);
  }
  if (host.empty() || host.size() > 255 || host.find('\0') != std::string::npos) {
    resolution.reason = "a host name has 1 to 255 characters";
    co_return std::move(resolution);
  }
  struct Abandon {
    ~Abandon() { lookup->abandon(); }
    std::shared_ptr<detail::Lookup> lookup;
  };
  const Abandon scope{detail::start_lookup(loop, std::move(host), port)};
  const async::Ready ready = co_await scope.lookup->done().wait(deadline);
  if (ready == async::Ready::ready) {
    co_return scope.lookup->take();
  }
  resolution.reason = "the name service did not answer in time";
  co_return std::move(resolution);
}

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/connect.hpp

/// @file
/// Connecting: one try to one address, and the patience that a rendezvous needs.

namespace DTRAIN_NAMESPACE::net {

/// A connection, or the errno that kept it from being (ETIMEDOUT at the deadline).
struct ConnectResult {
  std::optional<Connection> connection;
  int error = 0;
};

/// How connect_with_backoff waits between tries.
struct Backoff {
  std::chrono::milliseconds first{10};
  std::chrono::milliseconds longest{1000};
  std::chrono::milliseconds one_try{5000};         ///< for an address that does not answer at all
  std::chrono::milliseconds unresolved_for{5000};  ///< how long a name may stay unknown
};

/// One try. @throws Error (posix) if no socket can be made
inline async::Task<ConnectResult> connect(async::EventLoop& loop, Endpoint endpoint, Deadline deadline) {
  ConnectResult result;
  Descriptor socket(::socket(endpoint.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!socket) {
    result.error = errno;
    if (result.error != EAFNOSUPPORT) {
      throw posix_error(result.error, "making a socket to connect to " + to_string(endpoint));
    }
    co_return std::move(result);
  }
  result.error = ::connect(socket.get(), endpoint.data(), endpoint.size()) == 0 ? 0 : errno;
  if (result.error == EINPROGRESS || result.error == EINTR) {
    const async::Ready ready = co_await loop.writable(socket.get(), deadline);
    socklen_t size = sizeof result.error;
    if (ready == async::Ready::timed_out) {
      result.error = ETIMEDOUT;
    } else if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &result.error, &size) != 0) {
      result.error = errno;
    }
  }
  if (result.error == 0) {
    Connection connection(loop, std::move(socket));
    if (connection.local() == connection.peer()) {
      result.error = ECONNREFUSED;  // TCP's simultaneous open with itself, from a port that happened to be the same
    } else {
      result.connection.emplace(std::move(connection));
    }
  }
  co_return std::move(result);
}

namespace detail {

/// Reasons that the next moment may change: the server is not there yet, or the way to it.
inline bool worth_retrying(int error) noexcept {
  switch (error) {
    case ECONNREFUSED:
    case ECONNRESET:
    case ECONNABORTED:
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case EHOSTDOWN:
    case ENETUNREACH:
    case ENETDOWN:
    case EADDRNOTAVAIL:
    case EAFNOSUPPORT:
    case EAGAIN: return true;
    default: return false;
  }
}

}  // namespace detail

/// Connects to a host that may not listen yet: resolves it, tries its addresses in order, and begins again after a
/// growing delay, until the deadline.
/// @throws Error (refused) for a name that stays unknown; Error (posix), with the host, the port, the last reason and
/// the time spent, when the deadline passes or at once for what trying again cannot change
inline async::Task<Connection> connect_with_backoff(async::EventLoop& loop, std::string host, std::uint16_t port,
                                                    Deadline deadline, Backoff backoff = {}) {
  const Deadline::Clock::time_point begin = Deadline::Clock::now();
  const Deadline name_deadline = earlier(deadline, Deadline::at(begin + backoff.unresolved_for));
  int last_error = ETIMEDOUT;
  bool known = false;
  std::chrono::milliseconds delay = backoff.first;
  for (;; delay = std::min(2 * delay, backoff.longest)) {
    async::Task<Resolution> lookup = resolve(loop, host, port, known ? deadline : name_deadline);
    const Resolution resolution = co_await std::move(lookup);
    known = known || !resolution.endpoints.empty();
    if (!known && Deadline::Clock::now() + delay >= name_deadline.instant()) {
      throw unresolved_error(host, resolution.reason);
    }
    for (const Endpoint& endpoint : resolution.endpoints) {
      const Deadline try_deadline = earlier(deadline, Deadline::after(backoff.one_try));
      ConnectResult result = co_await connect(loop, endpoint, try_deadline);
      if (result.connection) {
        co_return std::move(*result.connection);
      }
      // "::1 is not there" says less about localhost than "127.0.0.1 refused"
      const bool telling = result.error != EADDRNOTAVAIL && result.error != EAFNOSUPPORT;
      last_error = telling || &endpoint == resolution.endpoints.data() ? result.error : last_error;
    }
    const bool hopeless = !resolution.endpoints.empty() && !detail::worth_retrying(last_error);
    if (hopeless || Deadline::Clock::now() + delay >= deadline.instant()) {
      const std::string spent = seconds_text(Deadline::Clock::now() - begin);
      throw posix_error(last_error, "connecting to " + host + " port " + std::to_string(port) + ", tried for " + spent,
                        "check that rank 0 or its launcher runs there, and MASTER_ADDR and MASTER_PORT");
    }
    co_await loop.sleep_for(delay);
  }
}

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/net/unix_socket.hpp

/// @file
/// Unix sockets in the abstract namespace, to hand descriptors to processes on the same host.

namespace DTRAIN_NAMESPACE::net {

/// Who is at the other end, as the kernel saw it when the connection was made.
struct PeerCredentials {
  pid_t pid = 0;
  uid_t uid = 0;
  gid_t gid = 0;
};

/// A message, and the descriptor that came with it, if any.
struct ReceivedDescriptor {
  Descriptor descriptor;
  std::vector<std::byte> bytes;
};

namespace detail {

/// A name of 1 to 107 bytes; its address has no file, and is gone with its socket.
struct AbstractAddress {
  explicit AbstractAddress(std::string_view name) {
    if (name.empty() || name.size() > sizeof address.sun_path - 1) {
      throw Error(Errc::invalid_argument,
                  "a Unix socket's name has 1 to 107 bytes, not " + std::to_string(name.size()));
    }
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  const sockaddr* data() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{};
  socklen_t size = 0;
};

inline Descriptor unix_socket(const std::string& doing) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) {
    throw errno_error(doing);
  }
  return socket;
}

}  // namespace detail

/// One end of a connection that keeps the boundaries of messages.
/// Blocking: every function with a deadline, up to it. Threads: one sends and one receives at a time.
class UnixConnection {
 public:
  static constexpr std::size_t max_message_bytes = 4096;

  explicit UnixConnection(Descriptor socket) noexcept : socket_(std::move(socket)) {}

  /// @throws Error (posix): ECONNREFUSED where nobody listens under that name
  static UnixConnection connect(std::string_view name, Deadline deadline) {
    const std::string doing = "connecting to the Unix socket '" + std::string(name) + "'";
    const detail::AbstractAddress address(name);
    Descriptor socket = detail::unix_socket(doing);
    while (::connect(socket.get(), address.data(), address.size) != 0) {
      if (errno != EAGAIN && errno != EINTR) {
        throw errno_error(doing, "the process that listens there must run on this host, in the same network namespace");
      }
      pause_before_retry(deadline, doing);  // its backlog is full
    }
    return UnixConnection(std::move(socket));
  }

  /// Sends a message with a descriptor; the receiver gets a copy of it. The caller keeps `descriptor`.
  /// @throws Error (timeout, closed, posix)
  void send_descriptor(int descriptor, std::span<const std::byte> bytes, Deadline deadline) {
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    send_message(message, bytes, deadline);
  }

  /// Sends a message alone: 1 to 4096 bytes. @throws Error (timeout, closed, posix)
  void send(std::span<const std::byte> bytes, Deadline deadline) {
    msghdr message{};
    send_message(message, bytes, deadline);
  }

  /// The next message and its descriptor, which is close-on-exec.
  /// @throws Error (timeout); Error (closed); Error (protocol) for a message without a descriptor, with more than one,
  /// or longer than 4096 bytes (what came with it is closed)
  ReceivedDescriptor receive_descriptor(Deadline deadline) {
    ReceivedDescriptor received = receive_message(deadline);
    if (!received.descriptor) {
      throw Error(Errc::protocol, "receiving a descriptor: the message came without one");
    }
    return received;
  }

  /// The next message alone. @throws as receive_descriptor, and Error (protocol) if a descriptor came with it
  std::vector<std::byte> receive(Deadline deadline) {
    ReceivedDescriptor received = receive_message(deadline);
    if (received.descriptor) {
      throw Error(Errc::protocol, "receiving a message: a descriptor came with it");
    }
    return std::move(received.bytes);
  }

  /// @throws Error (posix)
  PeerCredentials peer_credentials() const {
    ucred credentials{};
    socklen_t size = sizeof credentials;
    if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
      throw errno_error("asking who is at the other end of a Unix socket");
    }
    return {credentials.pid, credentials.uid, credentials.gid};
  }

  int descriptor() const noexcept { return socket_.get(); }

 private:
  void send_message(msghdr& message, std::span<const std::byte> bytes, Deadline deadline) {
    if (bytes.empty() || bytes.size() > max_message_bytes) {
      throw Error(Errc::invalid_argument,
                  "a Unix socket's message has 1 to 4096 bytes, not " + std::to_string(bytes.size()));
    }
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    while (::sendmsg(socket_.get(), &message, MSG_NOSIGNAL) < 0) {
      const int error = errno;
      if (error == EPIPE || error == ECONNRESET) {
        throw Error(Errc::closed, "sending to a process on this host: it has closed its Unix socket");
      }
      if (error == EAGAIN) {
        wait_descriptor(socket_.get(), POLLOUT, deadline, "sending to a process on this host");
      } else if (error != EINTR) {
        throw posix_error(error, "sending to a process on this host");
      }
    }
  }

  ReceivedDescriptor receive_message(Deadline deadline) {
    ReceivedDescriptor received;
    received.bytes.resize(max_message_bytes);
    std::vector<Descriptor> descriptors;
    descriptors.reserve(max_control_descriptors);
    iovec part{received.bytes.data(), received.bytes.size()};
    alignas(cmsghdr) char control[CMSG_SPACE(max_control_descriptors * sizeof(int))] = {};
    msghdr message{};
    ssize_t count = -1;
    bool was_reset = false;
    while (count < 0) {
      message = {};
      message.msg_iov = &part;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      count = ::recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
      const int error = errno;
      if (count < 0 && error == EAGAIN) {
        wait_descriptor(socket_.get(), POLLIN, deadline, "receiving from a process on this host");
      } else if (count < 0 && error == ECONNRESET && !was_reset) {
        was_reset = true;  // it closed without reading everything; what it sent before is still here
      } else if (count < 0 && error != EINTR && error != ECONNRESET) {
        throw posix_error(error, "receiving from a process on this host");
      } else if (count == 0 || (count < 0 && error == ECONNRESET)) {
        throw Error(Errc::closed, "receiving from a process on this host: it has closed its Unix socket");
      }
    }
    received.bytes.resize(static_cast<std::size_t>(count));
    adopt_descriptors(message, descriptors);  // first, so that none stays open
    if ((message.msg_flags & (MSG_CTRUNC | MSG_TRUNC)) != 0 || descriptors.size() > 1) {
      throw Error(Errc::protocol,
                  "receiving from a process on this host: the message is too long or carries more than "
                  "one descriptor");
    }
    if (!descriptors.empty()) {
      received.descriptor = std::move(descriptors.front());
    }
    return received;
  }

  /// Allocates nothing: no exception can come between a descriptor and its owner.
  static void adopt_descriptors(msghdr& message, std::vector<Descriptor>& descriptors) noexcept {
    for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
      if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
        continue;
      }
      const std::size_t number = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (std::size_t i = 0; i < number; ++i) {
        int descriptor = -1;
        std::memcpy(&descriptor, CMSG_DATA(header) + i * sizeof(int), sizeof descriptor);
        descriptors.emplace_back(descriptor);
      }
    }
  }

  static constexpr std::size_t max_control_descriptors = 8;

  Descriptor socket_;
};

/// Listens under a name that processes of this host (in one network namespace) can connect to.
class UnixListener {
 public:
  /// @throws Error (posix): EADDRINUSE where the name is taken
  explicit UnixListener(std::string_view name) {
    const std::string doing = "listening at the Unix socket '" + std::string(name) + "'";
    const detail::AbstractAddress address(name);
    socket_ = detail::unix_socket(doing);
    if (::bind(socket_.get(), address.data(), address.size) != 0 || ::listen(socket_.get(), 128) != 0) {
      throw errno_error(doing);
    }
  }

  /// The next connection. Blocking: until the deadline. @throws Error (timeout, posix)
  UnixConnection accept(Deadline deadline) {
    const std::string doing = "accepting a process on this host";
    for (;;) {
      Descriptor accepted(::accept4(socket_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (accepted) {
        return UnixConnection(std::move(accepted));
      }
      if (errno == EAGAIN) {
        wait_descriptor(socket_.get(), POLLIN, deadline, doing);
      } else if (errno != EINTR && errno != ECONNABORTED) {
        throw errno_error(doing);
      }
    }
  }

  int descriptor() const noexcept { return socket_.get(); }

 private:
  Descriptor socket_;
};

}  // namespace DTRAIN_NAMESPACE::net

// ---- dtrain/stream/host/progress.hpp

/// @file
/// Whether a helper thread drives communication while the user computes.

namespace DTRAIN_NAMESPACE::stream::host {

/// `thread` overlaps communication with computing; `inline_` runs it in the thread that waits for it. Waking a thread
/// for little, or where no core is free, costs more than it hides: `automatic` asks for a free core.
enum class Progress { automatic, thread, inline_ };

/// "automatic", "thread" or "inline". @throws Error (usage) for anything else.
inline Progress progress_from(std::string_view text) {
  if (text == "automatic") return Progress::automatic;
  if (text == "thread") return Progress::thread;
  if (text == "inline") return Progress::inline_;
  throw Error(Errc::usage, "progress \"" + std::string(text.substr(0, 64)) +
                               "\" is not known; possible are automatic, thread and inline");
}

constexpr const char* name(Progress progress) noexcept {
  switch (progress) {
    case Progress::automatic: return "automatic";
    case Progress::thread: return "thread";
    case Progress::inline_: return "inline";
  }
  return "unknown progress";
}

/// What `wanted` means for this many ranks on this host and cores that a rank may run on: `thread` or `inline_`.
constexpr Progress decide(Progress wanted, int cores, int local_world_size) noexcept {
  if (wanted != Progress::automatic) {
    return wanted;
  }
  return cores > local_world_size ? Progress::thread : Progress::inline_;
}

/// The cores that the calling thread may run on; 1 where the system does not say.
inline int cores_by_affinity() noexcept {
  cpu_set_t allowed[8];  // 8192 cores, the most that Linux can be built for; it refuses a set smaller than its own
  if (::sched_getaffinity(0, sizeof(allowed), allowed) != 0) {
    return 1;
  }
  const int cores = CPU_COUNT_S(sizeof(allowed), allowed);
  return cores > 0 ? cores : 1;
}

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/work_item.hpp

/// @file
/// One piece of queued work: a small callable stored in place.

namespace DTRAIN_NAMESPACE::stream::host {

/// Bytes that a callable may capture. More belongs behind a pointer.
inline constexpr std::size_t work_item_bytes = 112;

/// What a queue stores: no allocation, no exceptions, nothing to destroy. A callable that holds a reference to
/// something has `drop()` to give it up when it is never run.
template <class F>
concept Work = std::is_trivially_copyable_v<F> && std::is_nothrow_invocable_r_v<void, F&> &&
                   sizeof(F) <= work_item_bytes
               && alignof(F) <= alignof(std::max_align_t);

template <class F>
concept DroppableWork = Work<F> && requires(F& work) {
  { work.drop() }
  noexcept->std::same_as<void>;
};

/// A slot for work; two cache lines, so that neighbours in a ring share none.
class alignas(64) WorkItem {
 public:
  template <Work F>
  void store(const F& work) noexcept {
    ::new (static_cast<void*>(storage_)) F(work);
    act_ = [](std::byte* storage, bool run) noexcept {
      F& stored = *std::launder(reinterpret_cast<F*>(storage));
      if (run) {
        stored();
      } else if constexpr (DroppableWork<F>) {
        stored.drop();
      }
    };
  }

  void run() noexcept { act_(storage_, true); }
  void drop() noexcept { act_(storage_, false); }

 private:
  alignas(std::max_align_t) std::byte storage_[work_item_bytes];
  void (*act_)(std::byte*, bool) noexcept = nullptr;
};

static_assert(sizeof(WorkItem) == 128, "dtrain: a work item is two cache lines");

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/stream.hpp

/// @file
/// The concepts Event, ExternalEvent and Stream: ordered work, and the points in it that others wait for.

namespace DTRAIN_NAMESPACE::stream {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// How a blocking wait ended. A deadline that passes is an expected outcome, hence a value.
enum class WaitResult { complete, timed_out };

/// `is_complete()` asks without blocking, from any thread. An event never recorded is complete, as on CUDA.
template <class E>
concept CanPoll = requires(const E event) {
  { event.is_complete() } noexcept -> std::same_as<bool>;
};

/// Blocking: `block_until_complete(deadline)` waits in the calling thread (on a host stream it runs the queued work).
template <class E>
concept CanBlock = requires(E event, Deadline deadline) {
  { event.block_until_complete(deadline) } -> std::same_as<WaitResult>;
};

/// A point in a stream. Recording moves the point; reuse allocates nothing.
template <class E>
concept Event = std::movable<E> && CanPoll<E> && CanBlock<E>;

/// `signal()` completes the event from any host thread, without a stream; `reset()` makes it incomplete again.
template <class E>
concept CanSignal = requires(E event) {
  { event.signal() } noexcept -> std::same_as<void>;
  { event.reset() } noexcept -> std::same_as<void>;
};

/// An event that the host completes and streams wait for. Whoever is to signal it does so on failure too: a stream cannot
/// be left waiting. Pinned (streams keep its address): it outlives the work that waits for it.
template <class E>
concept ExternalEvent = CanPoll<E> && CanBlock<E> && CanSignal<E>;

template <class S>
concept HasEvent = requires { typename S::Event; } && Event<typename S::Event>;

/// `record(event)` enqueues: the event completes when all work enqueued before it has.
template <class S>
concept CanRecord = HasEvent<S> && requires(S stream, typename S::Event& event) {
  { stream.record(event) } -> std::same_as<void>;
};

/// `wait(event)` enqueues: later work of this stream starts after the event's latest record; the host does not block.
template <class S>
concept CanWaitEvent = HasEvent<S> && requires(S stream, const typename S::Event& event) {
  { stream.wait(event) } -> std::same_as<void>;
};

template <class S>
concept HasDevice = requires(const S stream) {
  { stream.device() } noexcept -> std::same_as<Device>;
};

/// Work in order. A model of Stream is a copyable reference; an owner outlives its references and all enqueued work.
/// Threads: one thread enqueues at a time; events may be polled and waited for by any.
template <class S>
concept Stream = std::copyable<S> && HasDevice<S> && CanRecord<S> && CanWaitEvent<S>;

/// An ability that not every device has: `wait(external, deadline)` enqueues a wait for a host's signal. If the deadline
/// passes first the event is signalled by the stream and says so (`timed_out()`); work behind it then runs.
template <class S>
concept CanWaitExternal = Stream<S> && requires { typename S::ExternalEvent; } &&
                          ExternalEvent<typename S::ExternalEvent> &&
                          requires(S stream, typename S::ExternalEvent& event, Deadline deadline) {
                            { stream.wait(event, deadline) } -> std::same_as<void>;
                            { event.timed_out() } noexcept -> std::same_as<bool>;
                          };
// clang-format on

}  // namespace DTRAIN_NAMESPACE::stream

// ---- dtrain/stream/host/external_event.hpp

/// @file
/// An event that the host completes and a host stream waits for.

namespace DTRAIN_NAMESPACE::stream::host {

/// Incomplete until signal(). Threads: all members from any thread. Lifetime: pinned; outlives the work that waits for
/// it. signal() does not touch the event after it has become complete, so whoever saw it complete may destroy it.
class ExternalEvent {
 public:
  ExternalEvent() = default;
  ExternalEvent(const ExternalEvent&) = delete;
  ExternalEvent& operator=(const ExternalEvent&) = delete;

  bool is_complete() const noexcept { return state_.load(std::memory_order_acquire) >= signalled; }

  /// Whether a stream's wait gave up at its deadline before anybody signalled.
  bool timed_out() const noexcept { return state_.load(std::memory_order_acquire) == expired; }

  void signal() noexcept { complete_as(signalled); }

  /// Makes it incomplete again. Not while somebody waits.
  void reset() noexcept { state_.store(idle, std::memory_order_release); }

  WaitResult block_until_complete(Deadline deadline) const noexcept {
    std::uint32_t state = state_.load(std::memory_order_acquire);
    while (state < signalled) {
      if (state == idle && !state_.compare_exchange_strong(state, awaited, std::memory_order_acquire)) {
        continue;
      }
      const FutexResult result = futex_wait(state_, awaited, deadline, FutexScope::process);
      state = state_.load(std::memory_order_acquire);
      if (result == FutexResult::timed_out && state < signalled) {
        return WaitResult::timed_out;
      }
    }
    return WaitResult::complete;
  }

 private:
  friend class StreamRef;
  enum State : std::uint32_t { idle, awaited, signalled, expired };

  void complete_as(State final_state) noexcept {
    std::uint32_t state = state_.load(std::memory_order_relaxed);
    while (state < signalled && !state_.compare_exchange_weak(state, final_state, std::memory_order_acq_rel)) {
    }
    if (state == awaited) {
      futex_wake_all(state_, FutexScope::process);
    }
  }

  mutable std::atomic<std::uint32_t> state_{idle};
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/queue.hpp

/// @file
/// The caller-runs queue: work in order, run by whoever waits for it.

namespace DTRAIN_NAMESPACE::stream::host {

class StreamRef;

/// Owns a ring of work. Work gets a ticket (1, 2, ...) when it is enqueued and runs in that order, one at a time, in a
/// thread that waits for it or in a HelperThread.
///
/// Between producers and the runner there is no lock: a producer writes an item and publishes its ticket (release), the
/// runner reads the ticket (acquire) and then the item. What the work reads must therefore be ordered before its
/// enqueue, and ThreadSanitizer sees it where it is not.
///
/// Threads: enqueue from any thread; wait and poll from any thread. Work must end by a deadline of its own.
/// Lifetime: pinned; outlives its references, events and HelperThread. Work not yet run at the end is dropped.
class Queue {
 public:
  /// Items that fit. Enqueueing to a full ring runs, or waits for, its oldest work instead of growing.
  static constexpr std::uint64_t capacity = 256;

  Queue() = default;
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;
  ~Queue() {
    for (std::uint64_t ticket = completed_.load(); ticket < published_.load(); ++ticket) {
      slot(ticket).drop();
    }
  }

  StreamRef ref() noexcept;

  /// Blocking: no, unless the ring is full. Wakes a parked HelperThread.
  /// @throws Error (limit) where the ring is full and the caller is itself work of this queue.
  template <Work F>
  void enqueue(const F& work) {
    while (!try_enqueue(work)) {
      block_until_complete(published() + 1 - capacity, Deadline::after(full_ring_patience));
    }
    wake_helper();
  }

  /// The ticket of the latest work.
  std::uint64_t published() const noexcept { return published_.load(std::memory_order_acquire); }

  bool is_complete(std::uint64_t ticket) const noexcept { return completed_.load(std::memory_order_acquire) >= ticket; }

  /// Whether there is work that no thread runs and no HelperThread will.
  bool is_left_alone() const noexcept {
    return completed_.load() < published_.load() && role_.load() == free_role && !has_helper_.load();
  }

  /// Blocking: runs the work up to `ticket` in this thread if no other thread runs it; else sleeps until it is done or
  /// the other thread stops running. The deadline is looked at between two pieces of work.
  /// @throws Error (invalid_argument) where the caller is itself work of this queue, which would wait for ever.
  WaitResult block_until_complete(std::uint64_t ticket, Deadline deadline) {
    while (!is_complete(ticket)) {
      if (run_up_to(ticket, [deadline] { return !deadline.passed(); })) {
        return is_complete(ticket) ? WaitResult::complete : WaitResult::timed_out;
      }
      if (runner_thread_.load(std::memory_order_relaxed) == std::this_thread::get_id()) {
        throw Error(
            Errc::invalid_argument,
            "work that runs on a host stream waited for later work of the same stream, which cannot start before "
            "it returns; enqueue instead of waiting, or use another stream");
      }
      if (sleep_until_progress(ticket, deadline) == FutexResult::timed_out) {
        return is_complete(ticket) ? WaitResult::complete : WaitResult::timed_out;
      }
    }
    return WaitResult::complete;
  }

 private:
  friend class HelperThread;
  friend class RescueThread;

  static constexpr std::uint64_t nobody_waits = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::chrono::minutes full_ring_patience{1};  // then it tries again: work ends by its own deadline
  enum Role : std::uint32_t { free_role, taken_role };
  enum HelperState : std::uint32_t { helper_awake, helper_parked };

  WorkItem& slot(std::uint64_t index) noexcept { return ring_[index % capacity]; }

  template <Work F>
  bool try_enqueue(const F& work) {
    const std::lock_guard gate(producers_);
    const std::uint64_t index = published_.load(std::memory_order_relaxed);
    if (index - completed_.load(std::memory_order_acquire) >= capacity) {
      return false;
    }
    slot(index).store(work);
    published_.store(index + 1);  // seq_cst, as are the other words here: see wake_helper and sleep_until_progress
    return true;
  }

  /// Runs work while there is some up to `ticket` and `may_continue()` says so. @returns false if another thread runs.
  template <class F>
  bool run_up_to(std::uint64_t ticket, F may_continue) noexcept {
    std::uint32_t expected = free_role;
    if (!role_.compare_exchange_strong(expected, taken_role)) {
      return false;
    }
    runner_thread_.store(std::this_thread::get_id(), std::memory_order_relaxed);
    std::uint64_t done = completed_.load(std::memory_order_relaxed);
    while (done < ticket && done < published() && may_continue()) {
      slot(done).run();
      completed_.store(++done);
      if (done >= wanted_.load()) {
        wake_waiters();
      }
    }
    runner_thread_.store(std::thread::id(), std::memory_order_relaxed);
    role_.store(free_role);
    if (wanted_.load() != nobody_waits) {
      wake_waiters();  // one of them takes over
    }
    if (done < published_.load()) {
      wake_helper();
    }
    return true;
  }

  /// Sleeps until `ticket` is complete or nobody runs; may return early. A waiter announces the ticket it wants, reads
  /// the words again and sleeps; the runner changes them and reads the announcement: in one total order one sees the
  /// other.
  FutexResult sleep_until_progress(std::uint64_t ticket, Deadline deadline) noexcept {
    const auto progressed = [&] { return completed_.load() >= ticket || role_.load() == free_role; };
    for (int spins = 0; spins < 200; ++spins) {
      if (progressed()) {
        return FutexResult::awake;
      }
      spin_pause();
    }
    const std::uint32_t seen = signal_.load();
    std::uint64_t lowest = wanted_.load();
    while (ticket < lowest && !wanted_.compare_exchange_weak(lowest, ticket)) {
    }
    return progressed() ? FutexResult::awake : futex_wait(signal_, seen, deadline, FutexScope::process);
  }

  void wake_waiters() noexcept {
    wanted_.store(nobody_waits);
    signal_.fetch_add(1);
    futex_wake_all(signal_, FutexScope::process);
  }

  /// One wake at most for each time the helper parked.
  void wake_helper() noexcept {
    std::uint32_t expected = helper_parked;
    if (helper_.load() == helper_parked && helper_.compare_exchange_strong(expected, helper_awake)) {
      futex_wake(helper_, 1, FutexScope::process);
    }
  }

  /// The helper's sleep: until there is work that nobody runs, or it is to stop.
  void park_helper() noexcept {
    helper_.store(helper_parked);
    const bool has_work = completed_.load() < published_.load() && role_.load() == free_role;
    if (!has_work && has_helper_.load()) {
      futex_wait(helper_, helper_parked, Deadline::after(std::chrono::seconds(10)), FutexScope::process);
    }
    helper_.store(helper_awake);
  }

  alignas(64) std::mutex producers_;
  std::atomic<std::uint64_t> published_{0};
  alignas(64) std::atomic<std::uint64_t> completed_{0};
  std::atomic<std::uint32_t> role_{free_role};
  std::atomic<std::thread::id> runner_thread_{};
  alignas(64) std::atomic<std::uint64_t> wanted_{nobody_waits};  ///< the lowest ticket that somebody sleeps for
  std::atomic<std::uint32_t> signal_{0};
  std::atomic<std::uint32_t> helper_{helper_awake};
  std::atomic<bool> has_helper_{false};  ///< false again where it is to stop
  std::array<WorkItem, capacity> ring_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/event.hpp

/// @file
/// A point in a host stream.

namespace DTRAIN_NAMESPACE::stream::host {

/// A queue and a ticket; an event never recorded is complete. Threads: polled and waited for by any thread; not while
/// another thread records it. Lifetime: the queue outlives it.
class Event {
 public:
  bool is_complete() const noexcept { return queue_ == nullptr || queue_->is_complete(ticket_); }

  /// Blocking: see Queue::block_until_complete. Each piece of work ends by a deadline of its own.
  WaitResult block_until_complete(Deadline deadline) const {
    return queue_ == nullptr ? WaitResult::complete : queue_->block_until_complete(ticket_, deadline);
  }

 private:
  friend class StreamRef;

  Queue* queue_ = nullptr;
  std::uint64_t ticket_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/helper_thread.hpp

/// @file
/// A thread that drains a host queue while the user computes.

namespace DTRAIN_NAMESPACE::stream::host {

/// Sleeps while there is nothing to run; an enqueue wakes it with one futex call, and only if it sleeps. One for each
/// queue. Destruction lets the work that runs end and leaves the rest to whoever waits. Lifetime: the queue outlives
/// it.
class HelperThread {
 public:
  /// @throws Error where the system gives no more threads.
  explicit HelperThread(Queue& queue) : queue_(queue) {
    queue_.has_helper_.store(true);
    // The user's signal handlers run in the user's threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::jthread([this] { main(); });
    } catch (const std::system_error& failure) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      queue_.has_helper_.store(false);
      throw Error(failure.code(), std::string("starting the communication helper thread: ") + failure.what() +
                                      "; progress = inline needs no thread");
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  HelperThread(const HelperThread&) = delete;
  HelperThread& operator=(const HelperThread&) = delete;
  ~HelperThread() {
    queue_.has_helper_.store(false);
    queue_.wake_helper();
  }

 private:
  void main() noexcept {
    const auto goes_on = [this] { return queue_.has_helper_.load(); };
    while (goes_on()) {
      queue_.run_up_to(Queue::nobody_waits, goes_on);
      queue_.park_helper();
    }
  }

  Queue& queue_;
  std::jthread thread_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/rescue_thread.hpp

/// @file
/// A thread that runs a host queue's work once, where somebody waits for it and nobody runs it.

namespace DTRAIN_NAMESPACE::stream::host {

/// Starts on demand and ends when the queue is empty; an idle one costs neither thread nor memory.
/// Lifetime: the queue outlives it. Threads: `run_if_left_alone` one at a time.
class RescueThread {
 public:
  explicit RescueThread(Queue& queue) noexcept : queue_(queue) {}
  RescueThread(const RescueThread&) = delete;
  RescueThread& operator=(const RescueThread&) = delete;

  /// Lets the work that runs end and leaves the rest. Blocking: for as long as that takes; work ends by a deadline of
  /// its own.
  ~RescueThread() { stops_.store(true); }

  /// Starts the thread where the queue has work that nobody runs. Blocking: no. Where no thread can be had the work
  /// stays for whoever waits, and who asks again is served again.
  void run_if_left_alone() noexcept {
    if (running_.load() || !queue_.is_left_alone()) {
      return;
    }
    running_.store(true);
    try {
      const async::BlockedSignals blocked;         // the user's signal handlers run in the user's threads
      thread_ = std::jthread([this] { main(); });  // the one before has ended
    } catch (...) {
      running_.store(false);
    }
  }

 private:
  void main() noexcept {
    queue_.run_up_to(Queue::nobody_waits, [this] { return !stops_.load(); });
    running_.store(false);
  }

  Queue& queue_;
  std::atomic<bool> running_{false};
  std::atomic<bool> stops_{false};
  std::jthread thread_;  ///< joined before what it uses goes
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/stream_ref.hpp

/// @file
/// The reference to a host queue that models Stream.

namespace DTRAIN_NAMESPACE::stream::host {

/// Borrows a Queue. Threads: as Queue. Lifetime: the queue outlives it and all work enqueued through it.
class StreamRef {
 public:
  using Event = host::Event;
  using ExternalEvent = host::ExternalEvent;

  explicit StreamRef(Queue& queue) noexcept : queue_(&queue) {}
  StreamRef(int) = delete;
  StreamRef(std::nullptr_t) = delete;

  Device device() const noexcept { return {}; }

  /// The event completes when all work enqueued so far has.
  void record(Event& event) const noexcept {
    event.queue_ = queue_;
    event.ticket_ = queue_->published();
  }

  /// Later work of this stream starts after the event's latest record. The work of the other stream is run by whoever
  /// runs this one, if nobody else does. Enqueued; the host does not block.
  void wait(const Event& event) const {
    if (event.queue_ == queue_ || event.is_complete()) {
      return;
    }
    const auto wait_for_other = [event]() noexcept {
      // Bounded, although it tries again: each piece of work of the other stream ends by a deadline of its own.
      while (event.block_until_complete(Deadline::after(std::chrono::minutes(1))) != WaitResult::complete) {
      }
    };
    queue_->enqueue(wait_for_other);
  }

  /// Later work starts after `event.signal()`, or at the deadline, which then completes the event with `timed_out()`.
  /// Enqueued; the host does not block. Lifetime: the event outlives this work.
  void wait(ExternalEvent& event, Deadline deadline) const {
    const auto wait_for_host = [target = &event, deadline]() noexcept {
      if (target->block_until_complete(deadline) == WaitResult::timed_out) {
        target->complete_as(ExternalEvent::expired);
      }
    };
    queue_->enqueue(wait_for_host);
  }

  /// Runs `work` after what is enqueued so far. Enqueued; see Queue::enqueue.
  template <Work F>
  void enqueue(const F& work) const {
    queue_->enqueue(work);
  }

  friend bool operator==(StreamRef, StreamRef) = default;

 private:
  Queue* queue_;
};

inline StreamRef Queue::ref() noexcept {
  return StreamRef(*this);
}

static_assert(stream::Stream<StreamRef>);
static_assert(CanWaitExternal<StreamRef>);

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/stream_set.hpp

/// @file
/// The communication streams of one rank, none of which may keep another waiting.

namespace DTRAIN_NAMESPACE::stream::host {

/// A caller-runs stream rests while its rank's thread waits inside another stream's operation. Where rank 0 waits in
/// channel A for rank 1, and rank 1 in channel B for rank 0, each has enqueued what the other waits for, and nobody
/// runs it. So whoever waits long calls `run_what_nobody_runs`, again and again while it waits.
///
/// Threads: all members from any thread. Owned together by the rank's group and its streams.
class StreamSet {
 public:
  /// A stream's place in the set, and the thread that runs it then. Pinned. Lifetime: the queue outlives it.
  /// Blocking: the end waits for the work that its thread runs; see RescueThread.
  class Place {
   public:
    Place(std::shared_ptr<StreamSet> set, Queue& queue) : set_(std::move(set)), rescue_(queue) { set_->add(rescue_); }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { set_->remove(rescue_); }

   private:
    std::shared_ptr<StreamSet> set_;
    RescueThread rescue_;
  };

  StreamSet() = default;
  StreamSet(const StreamSet&) = delete;
  StreamSet& operator=(const StreamSet&) = delete;

  /// Sees to it that a thread runs each stream that has work and no thread. Blocking: no. Allocates only where it
  /// starts a thread.
  void run_what_nobody_runs() noexcept {
    const std::lock_guard lock(mutex_);
    for (RescueThread* rescue : streams_) {
      rescue->run_if_left_alone();
    }
  }

 private:
  void add(RescueThread& rescue) {
    const std::lock_guard lock(mutex_);
    streams_.push_back(&rescue);
  }

  void remove(RescueThread& rescue) noexcept {
    const std::lock_guard lock(mutex_);
    streams_.erase(std::find(streams_.begin(), streams_.end(), &rescue));
  }

  std::mutex mutex_;
  std::vector<RescueThread*> streams_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/stream/host/communication_stream.hpp

/// @file
/// The host stream that a group or a DDP instance runs its communication on.

namespace DTRAIN_NAMESPACE::stream::host {

/// Owns a Queue and, once asked for, the thread that drains it. Movable; references stay valid.
/// Threads: one for each stream, besides what its references allow.
/// Lifetime: outlives its references; work not yet run is dropped at the end.
class CommunicationStream {
 public:
  CommunicationStream() : state_(std::make_unique<State>()) {}

  StreamRef ref() const noexcept { return state_->queue.ref(); }

  /// From now on a thread runs the work; a second call does nothing. @throws Error where no thread can be had.
  void start_helper() {
    if (!state_->helper) {
      state_->helper.emplace(state_->queue);
    }
  }

  /// Blocking: until the work that runs has ended. Whoever waits runs the rest.
  void stop_helper() noexcept { state_->helper.reset(); }

  /// One of the rank's streams from now on: its work is run in the background where the rank is stalled elsewhere.
  void enter(std::shared_ptr<StreamSet> set) { state_->place.emplace(std::move(set), state_->queue); }

  bool has_helper() const noexcept { return state_->helper.has_value(); }

 private:
  struct State {
    Queue queue;
    std::optional<StreamSet::Place> place;
    std::optional<HelperThread> helper;
  };

  std::unique_ptr<State> state_;
};

}  // namespace DTRAIN_NAMESPACE::stream::host

// ---- dtrain/identity/host_name.hpp

/// @file
/// Which bytes a host's name or address may have, in variables that others set.

namespace DTRAIN_NAMESPACE::identity {

constexpr bool is_host_name_byte(char byte) noexcept {
  return (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || byte == '-' ||
         byte == '.' || byte == '_';
}

/// A name's, or those of an IPv6 address, which may name an interface behind '%'.
constexpr bool is_host_byte(char byte) noexcept {
  return is_host_name_byte(byte) || byte == ':' || byte == '%';
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/identity_error.hpp

/// @file
/// What can be wrong with an environment that should say who a process is.

namespace DTRAIN_NAMESPACE::identity {

/// Each has a name that scripts rely on: `whoami` prints it as error_code.
enum class IdentityErrc : std::uint8_t {
  bad_integer = 1,
  bad_port,
  bad_hostlist,
  bad_tasks_per_node,
  ambiguous_address,
  conflict_rank,
  conflict_local_rank,
  rank_out_of_range,
  no_rank,
  no_world_size,
  no_master_addr,
  node_level_env,
  pmix_only,
  many_launchers,
  tf_malformed,
  tf_no_task,
  tf_not_trainer,
  tf_bad_index,
  sm_host,
  elastic_range,
  unknown_launcher,
};

constexpr std::string_view name(IdentityErrc code) noexcept {
  switch (code) {
    case IdentityErrc::bad_integer: return "bad-integer";
    case IdentityErrc::bad_port: return "bad-port";
    case IdentityErrc::bad_hostlist: return "bad-hostlist";
    case IdentityErrc::bad_tasks_per_node: return "bad-tasks-per-node";
    case IdentityErrc::ambiguous_address: return "ambiguous-address";
    case IdentityErrc::conflict_rank: return "conflict-rank";
    case IdentityErrc::conflict_local_rank: return "conflict-local-rank";
    case IdentityErrc::rank_out_of_range: return "rank-out-of-range";
    case IdentityErrc::no_rank: return "no-rank";
    case IdentityErrc::no_world_size: return "no-world-size";
    case IdentityErrc::no_master_addr: return "no-master-addr";
    case IdentityErrc::node_level_env: return "node-level-env";
    case IdentityErrc::pmix_only: return "pmix-only";
    case IdentityErrc::many_launchers: return "many-launchers";
    case IdentityErrc::tf_malformed: return "tf-malformed";
    case IdentityErrc::tf_no_task: return "tf-no-task";
    case IdentityErrc::tf_not_trainer: return "tf-not-trainer";
    case IdentityErrc::tf_bad_index: return "tf-bad-index";
    case IdentityErrc::sm_host: return "sm-host";
    case IdentityErrc::elastic_range: return "elastic-range";
    case IdentityErrc::unknown_launcher: return "unknown-launcher";
  }
  return "unknown";
}

/// The sentence says which variable, its value, and what to set.
class IdentityError : public Error {
 public:
  IdentityError(IdentityErrc reason, std::string sentence, SourceLocation where = SourceLocation::current())
      : Error(Errc::identity, std::move(sentence), where), reason_(reason) {}

  IdentityErrc reason() const noexcept { return reason_; }

 private:
  IdentityErrc reason_;
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/json.hpp

/// @file
/// A small strict reader of JSON (RFC 8259) for the variables that clusters set, bounded in size and depth.

namespace DTRAIN_NAMESPACE::identity {

struct Json {
  enum class Kind : std::uint8_t { null, boolean, number, string, array, object };

  Kind kind = Kind::null;
  std::string text;               ///< a string's bytes, or a number, true or false as it was written
  std::vector<Json> items;        ///< an array's, or an object's values
  std::vector<std::string> keys;  ///< an object's: keys[i] belongs to items[i]; all differ

  bool is(Kind wanted) const noexcept { return kind == wanted; }

  /// An object's value. @returns nullptr where there is none, or where this is no object
  const Json* find(std::string_view key) const noexcept {
    const auto found = std::find(keys.begin(), keys.end(), key);
    return found == keys.end() ? nullptr : &items[static_cast<std::size_t>(found - keys.begin())];
  }
};

/// Linux lets no variable be longer than half of this.
inline constexpr std::size_t longest_json = 256 * 1024;
inline constexpr int deepest_json = 32;

namespace detail {

inline void append_utf8(std::string& text, std::uint32_t point) {
  const auto put = [&text](std::uint32_t byte) { text += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xc0 | (point >> 6));
    put(0x80 | (point & 0x3f));
  } else if (point < 0x10000) {
    put(0xe0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3f));
    put(0x80 | (point & 0x3f));
  } else {
    put(0xf0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3f));
    put(0x80 | ((point >> 6) & 0x3f));
    put(0x80 | (point & 0x3f));
  }
}

/// Each step takes what its name says off the text, or answers false.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) noexcept : text_(text) {}

  bool document(Json& value) { return text_.size() <= longest_json && element(value, 0) && at_ == text_.size(); }

 private:
  bool element(Json& value, int depth) {
    skip_space();
    const bool read = this->value(value, depth);
    skip_space();
    return read;
  }

  bool value(Json& value, int depth) {
    const char first = peek();
    if (first == '{' || first == '[') {
      return depth < deepest_json && (first == '{' ? object(value, depth) : array(value, depth));
    }
    if (first == '"') {
      value.kind = Json::Kind::string;
      return string(value.text);
    }
    return word(value, "null", Json::Kind::null) || word(value, "true", Json::Kind::boolean) ||
           word(value, "false", Json::Kind::boolean) || number(value);
  }

  bool array(Json& value, int depth) {
    value.kind = Json::Kind::array;
    take('[');
    skip_space();
    if (take(']')) {
      return true;
    }
    do {
      if (!element(value.items.emplace_back(), depth + 1)) {
        return false;
      }
    } while (take(','));
    return take(']');
  }

  bool object(Json& value, int depth) {
    value.kind = Json::Kind::object;
    take('{');
    skip_space();
    if (take('}')) {
      return true;
    }
    do {
      skip_space();
      if (!string(value.keys.emplace_back())) {
        return false;
      }
      skip_space();
      if (!take(':') || !element(value.items.emplace_back(), depth + 1)) {
        return false;
      }
    } while (take(','));
    return take('}') && all_differ(value.keys);
  }

  /// A name given twice would mean the one or the other, depending on who reads it.
  static bool all_differ(const std::vector<std::string>& keys) {
    std::vector<std::string_view> sorted(keys.begin(), keys.end());
    std::sort(sorted.begin(), sorted.end());
    return std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  }

  bool string(std::string& text) {
    if (!take('"')) {
      return false;
    }
    while (at_ < text_.size() && peek() != '"') {
      const char byte = text_[at_++];
      if (static_cast<unsigned char>(byte) < 0x20 || (byte == '\\' && !escape(text))) {
        return false;
      }
      if (byte != '\\') {
        text += byte;
      }
    }
    return take('"');
  }

  bool escape(std::string& text) {
    constexpr std::string_view letters = "\"\\/bfnrt";
    constexpr std::string_view meant = "\"\\/\b\f\n\r\t";
    const std::size_t which = letters.find(peek());
    if (at_ < text_.size() && which != std::string_view::npos) {
      text += meant[which];
      ++at_;
      return true;
    }
    std::uint32_t point = 0;
    if (!take('u') || !four_digits(point)) {
      return false;
    }
    if (point >= 0xd800 && point < 0xe000) {  // UTF-16's way to write what needs more: a pair, high half first
      std::uint32_t low = 0;
      if (point >= 0xdc00 || !take('\\') || !take('u') || !four_digits(low) || low < 0xdc00 || low >= 0xe000) {
        return false;
      }
      point = 0x10000 + ((point - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(text, point);
    return true;
  }

  bool four_digits(std::uint32_t& number) {
    constexpr std::string_view digits = "0123456789abcdef0123456789ABCDEF";
    for (int i = 0; i < 4; ++i) {
      const std::size_t digit = digits.find(peek());
      if (at_ == text_.size() || digit == std::string_view::npos) {
        return false;
      }
      number = number * 16 + static_cast<std::uint32_t>(digit % 16);
      ++at_;
    }
    return true;
  }

  bool number(Json& value) {
    const std::size_t begin = at_;
    take('-');
    if (!take('0') && !digits()) {
      return false;
    }
    if (take('.') && !digits()) {
      return false;
    }
    if (take('e') || take('E')) {
      static_cast<void>(take('+') || take('-'));
      if (!digits()) {
        return false;
      }
    }
    value.kind = Json::Kind::number;
    value.text = text_.substr(begin, at_ - begin);
    return true;
  }

  bool digits() {
    const std::size_t begin = at_;
    while (peek() >= '0' && peek() <= '9') {
      ++at_;
    }
    return at_ != begin;
  }

  bool word(Json& value, std::string_view word, Json::Kind kind) {
    if (text_.substr(at_, word.size()) != word) {
      return false;
    }
    at_ += word.size();
    value.kind = kind;
    value.text = word;
    return true;
  }

  void skip_space() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) {
      ++at_;
    }
  }

  char peek() const noexcept { return at_ < text_.size() ? text_[at_] : '\0'; }

  bool take(char wanted) {
    const bool there = at_ < text_.size() && text_[at_] == wanted;
    at_ += there ? 1 : 0;
    return there;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace detail

/// Nothing for what is not one JSON document, has a name twice in an object, or is longer or deeper than the bounds.
inline std::optional<Json> parse_json(std::string_view text) {
  std::optional<Json> value(std::in_place);
  return detail::JsonReader(text).document(*value) ? std::move(value) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/process_identity.hpp

/// @file
/// Who a process is, as far as its environment tells.

namespace DTRAIN_NAMESPACE::identity {

/// Where nothing else gives a port.
inline constexpr int default_master_port = 29500;

/// What is not set is learnt by exchange after connecting; what `provisional` names is a guess that it confirms.
struct ProcessIdentity {
  int rank = 0;
  int world_size = 1;
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> node_count;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  int attempt = 0;                       ///< how often the launcher has started the job again
  std::optional<std::string> job;        ///< the job's name, where the launcher gives it one
  std::string launcher;                  ///< the source: "dtrain", "torch", ..., "single"
  std::vector<std::string> provisional;  ///< names of fields
  std::vector<std::string> warnings;     ///< sentences
  std::vector<std::string> ignored;      ///< other launchers, and variables, that are set but say something else

  bool is_provisional(std::string_view field) const {
    return std::find(provisional.begin(), provisional.end(), field) != provisional.end();
  }

  friend bool operator==(const ProcessIdentity&, const ProcessIdentity&) = default;
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/variables.hpp

/// @file
/// Typed, strict reading of environment variables out of a map.

namespace DTRAIN_NAMESPACE::identity {

/// A whole environment, as a value.
using Environment = std::map<std::string, std::string, std::less<>>;

/// `value` for a sentence of one line: control bytes replaced, at most `shown` bytes of it.
inline std::string printable(std::string_view value, std::size_t shown = 64) {
  std::string text;
  for (const char byte : value.substr(0, shown)) {
    text += byte >= ' ' && byte < '\x7f' ? byte : '?';
  }
  return value.size() > shown ? text + "..." : text;
}

/// `NAME='value'` for a sentence.
inline std::string quoted(std::string_view variable, std::string_view value) {
  return std::string(variable) + "='" + printable(value) + "'";
}

/// Decimal digits only, at most 2147483647; nothing for anything else.
inline std::optional<int> parse_integer(std::string_view text) noexcept {
  if (text.empty() || text.size() > 10) {
    return std::nullopt;
  }
  long long number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') {
      return std::nullopt;
    }
    number = number * 10 + (digit - '0');
  }
  return number > 2147483647 ? std::nullopt : std::optional<int>(static_cast<int>(number));
}

/// Decimal digits only, at most 18 of them, for a number that only takes part in a formula.
inline std::optional<std::uint64_t> parse_wide_integer(std::string_view text) noexcept {
  if (text.empty() || text.size() > 18) {
    return std::nullopt;
  }
  std::uint64_t number = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') {
      return std::nullopt;
    }
    number = number * 10 + static_cast<std::uint64_t>(digit - '0');
  }
  return number;
}

/// 1..65535 in decimal digits; nothing for anything else.
inline std::optional<int> parse_port(std::string_view text) noexcept {
  const std::optional<int> number = parse_integer(text);
  return number && *number >= 1 && *number <= 65535 ? number : std::nullopt;
}

/// Reads an Environment. An empty value counts as unset. Lifetime: the environment outlives it.
class Variables {
 public:
  explicit Variables(const Environment& environment) noexcept : environment_(&environment) {}

  std::optional<std::string> text(std::string_view variable) const {
    const auto found = environment_->find(variable);
    return found == environment_->end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  }

  bool has(std::string_view variable) const { return text(variable).has_value(); }

  /// @throws IdentityError (bad-integer) for a value that is not decimal digits, or above 2147483647.
  std::optional<int> integer(std::string_view variable) const { return number(variable, parse_integer); }

  /// A number of up to 18 digits. @throws IdentityError (bad-integer)
  std::optional<std::uint64_t> wide_integer(std::string_view variable) const {
    return number(variable, parse_wide_integer);
  }

  /// An integer that counts something, so at least 1. @throws IdentityError (bad-integer).
  std::optional<int> count(std::string_view variable) const {
    const std::optional<int> number = integer(variable);
    if (number && *number == 0) {
      throw IdentityError(IdentityErrc::bad_integer,
                          quoted(variable, *text(variable)) + " is not a count; set it to 1 or more");
    }
    return number;
  }

  /// @throws IdentityError (bad-port) for a value that is not in 1..65535.
  std::optional<int> port(std::string_view variable) const {
    const std::optional<std::string> value = text(variable);
    if (!value) {
      return std::nullopt;
    }
    const std::optional<int> port = parse_port(*value);
    if (!port) {
      throw IdentityError(IdentityErrc::bad_port,
                          quoted(variable, *value) + " is not a port; set it to a number from 1 to 65535");
    }
    return port;
  }

  /// Those of `names` that are set, for a sentence: "RANK='2', WORLD_SIZE='2'".
  std::string stated(std::initializer_list<std::string_view> names) const {
    std::string list;
    for (const std::string_view name : names) {
      if (const std::optional<std::string> value = text(name)) {
        list += (list.empty() ? "" : ", ") + quoted(name, *value);
      }
    }
    return list;
  }

 private:
  template <class Number>
  std::optional<Number> number(std::string_view variable,
                               std::optional<Number> (*parse)(std::string_view) noexcept) const {
    const std::optional<std::string> value = text(variable);
    if (!value) {
      return std::nullopt;
    }
    const std::optional<Number> parsed = parse(*value);
    if (!parsed) {
      throw IdentityError(IdentityErrc::bad_integer, quoted(variable, *value) +
                                                         " is not a non-negative integer; set it to decimal digits or "
                                                         "unset it");
    }
    return parsed;
  }

  const Environment* environment_;
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/cluster_spec.hpp

/// @file
/// A cluster in TensorFlow's JSON form, {"cluster": {ROLE: [ENTRY...]}, "task": {"type": ROLE, "index": N}}, read
/// strictly.

namespace DTRAIN_NAMESPACE::identity {

/// Which roles a variable's cluster may have.
struct ClusterRoles {
  const char* variable;
  std::span<const std::string_view> ranked;    ///< whose entries are the ranks, in this order
  std::span<const std::string_view> unranked;  ///< that take no part in training
  std::span<const std::string_view> alone;     ///< that have one entry at most, all together
};

/// The entries that are ranks, and which of them this process is.
struct ClusterTask {
  std::vector<std::string> entries;
  std::size_t rank = 0;
};

namespace detail {

inline bool is_one_of(std::string_view name, std::span<const std::string_view> names) noexcept {
  return std::find(names.begin(), names.end(), name) != names.end();
}

inline bool is_missing(const Json* value) noexcept {
  return value == nullptr || value->is(Json::Kind::null) ||
         ((value->is(Json::Kind::object) || value->is(Json::Kind::string)) && value->items.empty() &&
          value->text.empty());
}

/// Reads one variable's value; every failure is a sentence with both.
class ClusterReader {
 public:
  ClusterReader(const ClusterRoles& roles, std::string_view value) : roles_(roles), value_(value) {}

  ClusterTask read() const {
    const std::optional<Json> document = parse_json(value_);
    if (!document || !document->is(Json::Kind::object)) {
      fail(IdentityErrc::tf_malformed, "is not a JSON object; correct it or unset it");
    }
    if (document->find("sparseCluster") != nullptr) {
      fail(IdentityErrc::tf_malformed, "has a sparseCluster, which does not list all workers; set the whole cluster");
    }
    const Json* const cluster = document->find("cluster");
    check_cluster(cluster);
    return find_task(*cluster, document->find("task"));
  }

 private:
  void check_cluster(const Json* cluster) const {
    if (cluster == nullptr || !cluster->is(Json::Kind::object)) {
      fail(IdentityErrc::tf_malformed, "has no cluster of the form {ROLE: [HOST:PORT, ...]}; correct it or unset it");
    }
    std::size_t alone = 0;
    for (std::size_t i = 0; i < cluster->keys.size(); ++i) {
      const std::string& role = cluster->keys[i];
      const std::vector<Json>& entries = cluster->items[i].items;
      const bool strings =
          std::all_of(entries.begin(), entries.end(), [](const Json& e) { return e.is(Json::Kind::string); });
      if (!is_one_of(role, roles_.ranked) && !is_one_of(role, roles_.unranked)) {
        fail(IdentityErrc::tf_malformed, "has the unknown role " + quoted("cluster", role) + "; correct it");
      }
      if (!cluster->items[i].is(Json::Kind::array) || !strings) {
        fail(IdentityErrc::tf_malformed,
             "has under " + quoted("cluster", role) + " what is not a list of HOST:PORT; correct it");
      }
      alone += is_one_of(role, roles_.alone) ? entries.size() : 0;
    }
    if (alone > 1) {
      fail(IdentityErrc::tf_malformed, "has " + std::to_string(alone) + " chiefs; leave one, as chief or as master");
    }
  }

  ClusterTask find_task(const Json& cluster, const Json* task) const {
    if (is_missing(task)) {
      fail(IdentityErrc::tf_no_task, "has a cluster but no task; set task to {\"type\": ROLE, \"index\": N}");
    }
    const Json* const type = task->find("type");
    const Json* const index = task->find("index");
    if (!task->is(Json::Kind::object) || (!is_missing(type) && !type->is(Json::Kind::string))) {
      fail(IdentityErrc::tf_malformed, "has a task that is not {\"type\": ROLE, \"index\": N}; correct it");
    }
    if (is_missing(type) || is_missing(index)) {
      fail(IdentityErrc::tf_no_task, "has a task without type or index; set task to {\"type\": ROLE, \"index\": N}");
    }
    if (is_one_of(type->text, roles_.unranked)) {
      fail(IdentityErrc::tf_not_trainer, "says this is task '" + type->text + "'; only " + trainers() +
                                             " take part in training: start another program for it");
    }
    if (!is_one_of(type->text, roles_.ranked)) {
      fail(IdentityErrc::tf_malformed,
           "has a task of the unknown " + quoted("type", type->text) + "; set one of " + trainers());
    }
    return place(cluster, *type, *index);
  }

  ClusterTask place(const Json& cluster, const Json& type, const Json& index) const {
    ClusterTask task;
    for (const std::string_view role : roles_.ranked) {
      const Json* const entries = cluster.find(role);
      const std::size_t count = entries == nullptr ? 0 : entries->items.size();
      if (role == type.text) {
        const bool is_number = index.is(Json::Kind::number) || index.is(Json::Kind::string);
        const std::optional<int> number = is_number ? parse_integer(index.text) : std::nullopt;
        if (!number || static_cast<std::size_t>(*number) >= count) {
          fail(IdentityErrc::tf_bad_index, "has a task of " + quoted("type", type.text) + " and " +
                                               quoted("index", index.text) + ", but the cluster lists " +
                                               std::to_string(count) + " of them; set an index below that");
        }
        task.rank = task.entries.size() + static_cast<std::size_t>(*number);
      }
      for (std::size_t i = 0; i < count; ++i) {
        task.entries.push_back(entries->items[i].text);
      }
    }
    return task;
  }

  std::string trainers() const {
    std::string list;
    for (const std::string_view role : roles_.ranked) {
      list.append(list.empty() ? "" : "/").append(role);
    }
    return list;
  }

  [[noreturn]] void fail(IdentityErrc code, const std::string& problem) const {
    throw IdentityError(code, quoted(roles_.variable, value_) + " " + problem);
  }

  const ClusterRoles& roles_;
  std::string_view value_;
};

}  // namespace detail

/// Whether the variable says anything: no cluster, or an empty one, is as good as unset. What cannot be read is there.
inline bool has_cluster(const ClusterRoles& roles, const Variables& variables) {
  const std::optional<std::string> value = variables.text(roles.variable);
  const std::optional<Json> document = value ? parse_json(*value) : std::nullopt;
  if (!document || !document->is(Json::Kind::object) || document->find("sparseCluster") != nullptr) {
    return value.has_value();
  }
  return !detail::is_missing(document->find("cluster"));
}

/// @throws IdentityError: tf-malformed, tf-no-task, tf-not-trainer, tf-bad-index
inline ClusterTask read_cluster(const ClusterRoles& roles, const Variables& variables) {
  return detail::ClusterReader(roles, *variables.text(roles.variable)).read();
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/completion.hpp

/// @file
/// What every source does with the facts it read: complete them on one node, and check them.

namespace DTRAIN_NAMESPACE::identity {

inline constexpr const char* loopback_address = "127.0.0.1";

/// One node = local size equals world size, or node count is 1, or world size is 1.
inline bool on_one_node(const ProcessIdentity& who) noexcept {
  return who.world_size == 1 || who.node_count == 1 || who.local_world_size == who.world_size;
}

/// On one node: node rank 0 of 1, and a missing local size is the world size. A world size of 1 also gives local rank
/// 0. What it sets follows from certain facts, so sources call it before they guess.
inline void complete_one_node(ProcessIdentity& who) {
  if (!on_one_node(who)) {
    return;
  }
  who.node_rank = 0;
  who.node_count = 1;
  if (!who.local_world_size) {
    who.local_world_size = who.world_size;
  }
  if (who.world_size == 1 && !who.local_rank) {
    who.local_rank = 0;
  }
}

namespace detail {
/// `index` < `bound`, where both are known; no bound is 0.
inline void check_below(const char* index_name, std::optional<int> index, const char* bound_name,
                        std::optional<int> bound, const std::string& stated) {
  if (!index && bound == 0) {
    throw IdentityError(IdentityErrc::rank_out_of_range,
                        std::string(bound_name) + " is 0 (" + stated + "); set it to 1 or more, or unset it");
  }
  if (index && bound && *index >= *bound) {
    throw IdentityError(IdentityErrc::rank_out_of_range,
                        std::string(index_name) + " " + std::to_string(*index) + " is not below " + bound_name + " " +
                            std::to_string(*bound) + " (" + stated + "); set both for the same job, counting from 0");
  }
}
}  // namespace detail

/// @throws IdentityError (rank-out-of-range) for a rank that is not below its size, or a part larger than the whole.
/// @param stated the variables it was read from, as Variables::stated() gives them
inline void check_ranges(const ProcessIdentity& who, const std::string& stated) {
  detail::check_below("rank", who.rank, "world size", who.world_size, stated);
  detail::check_below("local rank", who.local_rank, "local world size", who.local_world_size, stated);
  detail::check_below("node rank", who.node_rank, "node count", who.node_count, stated);
  if (who.local_world_size && *who.local_world_size > who.world_size) {
    throw IdentityError(IdentityErrc::rank_out_of_range, "local world size " + std::to_string(*who.local_world_size) +
                                                             " is above world size " + std::to_string(who.world_size) +
                                                             " (" + stated + "); set both for the same job");
  }
}

/// The value of `variable`, else the loopback address on one node.
/// @throws IdentityError (no-master-addr), which says what to set.
inline std::string master_addr_or_loopback(const Variables& variables, const char* variable,
                                           const ProcessIdentity& who) {
  if (const std::optional<std::string> given = variables.text(variable)) {
    return *given;
  }
  if (on_one_node(who)) {
    return loopback_address;
  }
  throw IdentityError(IdentityErrc::no_master_addr, std::string(variable) + " is not set, and " + who.launcher +
                                                        " does not say that all " + std::to_string(who.world_size) +
                                                        " processes run on one node; set " + variable +
                                                        " on every process to the host of rank 0");
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/description.hpp

/// @file
/// An identity as one line for people.

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// "local rank 1 of 2"; a part that is not known is learnt, one that is a guess is confirmed.
inline std::string part_of_whole(const ProcessIdentity& who, std::string_view name, const std::optional<int>& part,
                                 const std::optional<int>& whole, bool guessed) {
  std::string text(name);
  if (!part) {
    return text + " learnt after connecting";
  }
  text +=
      " " + std::to_string(*part) + (whole ? " of " + std::to_string(*whole) : " of a number learnt after connecting");
  return text + (guessed && who.world_size > 1 ? " (a guess, confirmed after connecting)" : "");
}

inline std::string joined(const std::vector<std::string>& texts) {
  std::string list;
  for (const std::string& text : texts) {
    list += (list.empty() ? "" : ", ") + text;
  }
  return list;
}

}  // namespace detail

/// "identity from torch: rank 1 of 4, local rank 1 of 2, node 0 of 2, store at h0:29500; ignored: slurm", then the
/// warnings.
inline std::string to_string(const ProcessIdentity& who) {
  std::string line =
      "identity from " + who.launcher + ": rank " + std::to_string(who.rank) + " of " + std::to_string(who.world_size);
  line += ", " + detail::part_of_whole(who, "local rank", who.local_rank, who.local_world_size,
                                       who.is_provisional("local_rank") || who.is_provisional("local_world_size"));
  line += ", " + detail::part_of_whole(who, "node", who.node_rank, who.node_count,
                                       who.is_provisional("node_rank") || who.is_provisional("node_count"));
  constexpr std::size_t longest_name = 253;  // DNS has no longer ones
  const std::string address = printable(who.master_addr.value_or("an address not known yet"), longest_name);
  const bool brackets = address.find(':') != std::string::npos && address.front() != '[';
  line += ", store at " + (brackets ? "[" + address + "]" : address);
  line += who.master_port ? ":" + std::to_string(*who.master_port) : "";
  line += who.is_provisional("master_addr") ? " (a guess)" : "";
  line += who.attempt > 0 ? ", attempt " + std::to_string(who.attempt) : "";
  line += who.ignored.empty() ? "" : "; ignored: " + detail::joined(who.ignored);
  for (const std::string& warning : who.warnings) {
    line += "; " + warning;
  }
  return line;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/environment.hpp

/// @file
/// The one reader of the process's real environment.

namespace DTRAIN_NAMESPACE::identity {

/// A copy of ::environ. Entries without a name are left out; the first of two with one name counts, as for getenv.
/// Threads: no other thread may change the environment meanwhile. @throws Error (limit) beyond 65,536 variables.
inline Environment snapshot_environment() {
  constexpr std::size_t most = 65536;
  Environment environment;
  std::size_t seen = 0;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (++seen > most) {
      throw Error(Errc::limit, "reading the environment: it has more than 65536 variables; start with fewer");
    }
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/host_port.hpp

/// @file
/// "host", "host:port" and "[IPv6 address]:port", taken apart.

namespace DTRAIN_NAMESPACE::identity {

struct HostPort {
  std::string host;  ///< without brackets; nothing says that it can be resolved
  std::optional<int> port;
};

/// `entry` as it stands in the value of `variable`.
/// @throws IdentityError: ambiguous-address for an IPv6 address that is not [address]:port, bad-port, and `malformed`
/// for what is no host at all.
inline HostPort split_host_port(std::string_view variable, std::string_view entry, IdentityErrc malformed) {
  const auto fail = [&](IdentityErrc code, const char* problem) {
    throw IdentityError(code, "the entry " + quoted(variable, entry) + " " + problem);
  };
  const bool bracketed = !entry.empty() && entry.front() == '[';
  const auto colons = std::count(entry.begin(), entry.end(), ':');
  const std::size_t bracket = entry.find("]:");
  if (bracketed ? bracket == std::string_view::npos : colons > 1) {
    fail(IdentityErrc::ambiguous_address, "may be an IPv6 address with or without a port; write it as [address]:port");
  }
  const std::size_t colon = bracketed ? bracket + 1 : entry.find(':');
  const std::string_view host = bracketed ? entry.substr(1, bracket - 1) : entry.substr(0, colon);
  const bool is_address = bracketed && std::count(host.begin(), host.end(), ':') > 1;
  if (host.empty() || bracketed != is_address ||
      !(bracketed ? std::all_of(host.begin(), host.end(), is_host_byte)
                  : std::all_of(host.begin(), host.end(), is_host_name_byte))) {
    fail(malformed, "names no host; write it as host:port");
  }
  HostPort parts{std::string(host), std::nullopt};
  if (colon != std::string_view::npos) {
    parts.port = parse_port(entry.substr(colon + 1));
    if (!parts.port) {
      fail(IdentityErrc::bad_port, "has no port from 1 to 65535 behind its colon; write it as host:port");
    }
  }
  return parts;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/cluster_identity.hpp

/// @file
/// The identity of one entry in a list of a cluster's processes.

namespace DTRAIN_NAMESPACE::identity {

/// MASTER_ADDR has no say where a list names every process's host.
inline void ignore_master_addr(const Variables& variables, ProcessIdentity& who) {
  const std::optional<std::string> address = variables.text("MASTER_ADDR");
  if (address && address != who.master_addr) {
    who.ignored.push_back(quoted("MASTER_ADDR", *address));
  }
}

/// Hosts, in the order in which they are first seen, are the nodes: a guess, as one machine may have several names.
/// @throws IdentityError: ambiguous-address, bad-port, tf-malformed
inline ProcessIdentity identity_in_cluster(const ClusterTask& task, const char* launcher, const Variables& variables,
                                           const char* variable) {
  struct Node {
    int rank = 0;
    int entries = 0;
  };
  ProcessIdentity who;
  who.launcher = launcher;
  who.rank = static_cast<int>(task.rank);
  who.world_size = static_cast<int>(task.entries.size());
  std::map<std::string, Node, std::less<>> nodes;
  std::string own_host;
  for (std::size_t i = 0; i < task.entries.size(); ++i) {
    const HostPort entry = split_host_port(variable, task.entries[i], IdentityErrc::tf_malformed);
    Node& node = nodes.try_emplace(entry.host, Node{static_cast<int>(nodes.size()), 0}).first->second;
    if (i == task.rank) {
      own_host = entry.host;
      who.local_rank = node.entries;
      who.node_rank = node.rank;
    }
    ++node.entries;
    if (i == 0) {
      who.master_addr = entry.host;
      who.master_port = entry.port;
    }
  }
  who.local_world_size = nodes[own_host].entries;
  who.node_count = static_cast<int>(nodes.size());
  if (who.world_size == 1) {
    who.master_addr = loopback_address;
  } else {
    who.provisional = {"local_rank", "local_world_size", "node_rank", "node_count"};
  }
  const std::optional<int> port = variables.port("MASTER_PORT");
  who.master_port = port ? port : who.master_port.value_or(default_master_port);
  ignore_master_addr(variables, who);
  return who;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/incomplete.hpp

/// @file
/// Environments that say half of what is needed, and the sentences that help.

namespace DTRAIN_NAMESPACE::identity {

/// Called where no source counts. @throws IdentityError: node-level-env, pmix-only, no-rank, no-world-size.
inline void check_incomplete(const Variables& variables) {
  const std::optional<std::string> nodes = variables.text("PET_NNODES");
  const std::string per_node = variables.text("PET_NPROC_PER_NODE").value_or("1");
  if (nodes && !variables.has("RANK") && (*nodes != "1" || per_node != "1")) {
    throw IdentityError(IdentityErrc::node_level_env,
                        quoted("PET_NNODES", *nodes) + " with " + quoted("PET_NPROC_PER_NODE", per_node) +
                            " describes a node, not a process; start the program through the per-node launcher "
                            "(dtrain::launch::PerNode), or set RANK and WORLD_SIZE for every process");
  }
  const std::optional<std::string> pmix_rank = variables.text("PMIX_RANK");
  if (pmix_rank && !variables.has("WORLD_SIZE")) {
    throw IdentityError(IdentityErrc::pmix_only, quoted("PMIX_RANK", *pmix_rank) +
                                                     " is set but no variable gives the number of processes; set "
                                                     "DTRAIN_RANK and DTRAIN_WORLD_SIZE on every process");
  }
  const std::optional<int> size = variables.integer("WORLD_SIZE");
  const std::optional<std::string> rank = variables.text("RANK");
  if (size && *size > 1 && !rank) {
    throw IdentityError(IdentityErrc::no_rank, "WORLD_SIZE=" + std::to_string(*size) +
                                                   " is set but RANK is not; set RANK to 0.." +
                                                   std::to_string(*size - 1) + ", another on each process");
  }
  if (rank && !size) {
    throw IdentityError(
        IdentityErrc::no_world_size,
        quoted("RANK", *rank) + " is set but WORLD_SIZE is not; set WORLD_SIZE to the number of processes");
  }
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/launcher_variables.hpp

/// @file
/// The four variables that most launchers set for each process, under names of their own.

namespace DTRAIN_NAMESPACE::identity {

struct LauncherVariables {
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;

  bool give_both(const Variables& variables) const { return variables.has(rank) && variables.has(world_size); }

  std::string stated(const Variables& variables) const {
    return variables.stated({rank, world_size, local_rank, local_world_size});
  }

  /// The four facts, unchecked. @throws IdentityError (bad-integer)
  ProcessIdentity read(const Variables& variables, const char* launcher) const {
    ProcessIdentity who;
    who.launcher = launcher;
    who.rank = *variables.integer(rank);
    who.world_size = *variables.integer(world_size);
    who.local_rank = variables.integer(local_rank);
    who.local_world_size = variables.integer(local_world_size);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/local_rank_argument.hpp

/// @file
/// The argument that torch.distributed.launch adds to a program: --local_rank=N, in all its spellings.

namespace DTRAIN_NAMESPACE::identity {

/// A program's argv, the program's name included.
using Arguments = std::span<const char* const>;

namespace detail {
inline bool is_local_rank_flag(std::string_view text) noexcept {
  return text == "--local_rank" || text == "--local-rank";
}
}  // namespace detail

/// N of --local_rank=N, --local-rank=N, or either with a separate value; nothing after "--" is looked at.
/// @throws IdentityError (bad-integer; conflict-local-rank where it is given twice with different values).
inline std::optional<int> local_rank_argument(Arguments arguments) {
  std::optional<int> found;
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") {
      break;
    }
    const std::size_t equals = argument.find('=');
    const std::string_view flag = argument.substr(0, equals);
    if (!detail::is_local_rank_flag(flag)) {
      continue;
    }
    std::string_view value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      value = arguments[++i];
    }
    const std::optional<int> number = parse_integer(value);
    if (!number) {
      throw IdentityError(IdentityErrc::bad_integer, "the argument " + quoted(flag, value) +
                                                         " is not a non-negative integer; give it as --local_rank=N");
    }
    if (found && *found != *number) {
      throw IdentityError(IdentityErrc::conflict_local_rank, "the argument --local_rank is given twice, as " +
                                                                 std::to_string(*found) + " and " +
                                                                 std::to_string(*number) + "; give it once");
    }
    found = number;
  }
  return found;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/node_facts.hpp

/// @file
/// What a per-node launcher wants to know, and its flags as variables beside the environment's.

namespace DTRAIN_NAMESPACE::identity {

/// The launcher's flags as they were given, unread. A flag wins over the environment, field by field.
struct NodeFlags {
  std::optional<std::string> node_count;      ///< --nnodes
  std::optional<std::string> node_rank;       ///< --node-rank
  std::optional<std::string> master_addr;     ///< --master-addr
  std::optional<std::string> master_port;     ///< --master-port
  std::optional<std::string> nproc_per_node;  ///< --nproc-per-node
};

struct NodeIdentity {
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;             ///< nothing: the launcher binds port 0
  std::optional<std::string> nproc_per_node;  ///< decimal digits or "auto"
  std::string launcher;
  std::vector<std::string> provisional;
  std::vector<std::string> warnings;

  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

/// Rank and count as one source has them. A source that also knows where node 0 is says so, for several nodes.
struct NodeFacts {
  int node_rank = 0;
  int node_count = 1;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  bool master_is_guess = false;
  std::string launcher;
  std::vector<std::string> warnings;
};

/// `environment` with the flags in it under their own names, so that they are read, and named in sentences, like
/// variables.
inline Environment with_flags(const Environment& environment, const NodeFlags& flags) {
  Environment joined = environment;
  const auto put = [&joined](const char* flag, const std::optional<std::string>& value) {
    joined.erase(flag);
    if (value) {
      joined[flag] = *value;
    }
  };
  put("--nnodes", flags.node_count);
  put("--node-rank", flags.node_rank);
  put("--master-addr", flags.master_addr);
  put("--master-port", flags.master_port);
  put("--nproc-per-node", flags.nproc_per_node);
  return joined;
}

/// A number of nodes. @throws IdentityError: elastic-range for "1:4", bad-integer
inline std::optional<int> read_node_count(const Variables& variables, const char* variable) {
  const std::optional<std::string> value = variables.text(variable);
  if (value && value->find(':') != std::string::npos) {
    throw IdentityError(IdentityErrc::elastic_range,
                        quoted(variable, *value) + " is a range of nodes; a job has a fixed size here: set one number");
  }
  return variables.count(variable);
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/orte_uri.hpp

/// @file
/// The contact address of an Open MPI 4 daemon: "1571946496.0;tcp://192.0.2.2:54609;tcp6://[fd00::2]:35257".

namespace DTRAIN_NAMESPACE::identity {

struct OrteUri {
  std::uint64_t job = 0;     ///< the same for mpirun and all its daemons
  std::uint64_t daemon = 0;  ///< 0 is mpirun itself (the HNP)
  std::string host;          ///< the first address that other hosts can use; empty where there is none
};

namespace detail {

inline bool is_loopback(std::string_view address) noexcept {
  return address.substr(0, 4) == "127." || address == "::1" || address == "localhost";
}

/// The addresses of "tcp://A,B:port" or "tcp6://[A,B]:port": the first that is not a loopback one, or nothing.
inline std::string reachable_host(std::string_view contact) {
  const std::size_t begin = contact.find("://");
  const std::size_t end = contact.rfind(':');
  if (contact.substr(0, 3) != "tcp" || begin == std::string_view::npos || end <= begin) {
    return {};
  }
  std::string_view hosts = contact.substr(begin + 3, end - begin - 3);
  if (!hosts.empty() && hosts.front() == '[' && hosts.back() == ']') {
    hosts = hosts.substr(1, hosts.size() - 2);
  }
  while (!hosts.empty()) {
    const std::size_t comma = std::min(hosts.find(','), hosts.size());
    const std::string_view host = hosts.substr(0, comma);
    if (!host.empty() && !is_loopback(host) && std::all_of(host.begin(), host.end(), is_host_byte)) {
      return std::string(host);
    }
    hosts.remove_prefix(std::min(comma + 1, hosts.size()));
  }
  return {};
}

}  // namespace detail

/// Nothing for what does not begin "JOB.DAEMON": a daemon's address is a hint, never required.
inline std::optional<OrteUri> parse_orte_uri(std::string_view uri) {
  const std::size_t semicolon = std::min(uri.find(';'), uri.size());
  const std::string_view name = uri.substr(0, semicolon);
  const std::size_t dot = std::min(name.find('.'), name.size());
  const std::optional<std::uint64_t> job = parse_wide_integer(name.substr(0, dot));
  const std::optional<std::uint64_t> daemon = parse_wide_integer(name.substr(std::min(dot + 1, name.size())));
  if (!job || !daemon) {
    return std::nullopt;
  }
  OrteUri parsed{*job, *daemon, {}};
  std::string_view contacts = uri.substr(semicolon);
  while (!contacts.empty() && parsed.host.empty()) {
    contacts.remove_prefix(1);
    const std::size_t end = std::min(contacts.find(';'), contacts.size());
    parsed.host = detail::reachable_host(contacts.substr(0, end));
    contacts.remove_prefix(end);
  }
  return parsed;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/job_port.hpp

/// @file
/// The port of the store where nobody gives one: computed from a number that all of the job's processes see.

namespace DTRAIN_NAMESPACE::identity {

/// Which of Slurm's numbers belong to the job: a step's own, or the allocation's for an MPI inside it, or none.
enum class SlurmNumbers : std::uint8_t { none, allocation, step };

namespace detail {

/// N of PMIX_NAMESPACE="...-N@M", as PRRTE writes it; Slurm's and Open MPI 4's have another form.
inline std::optional<std::uint64_t> prrte_job(std::string_view name) {
  const std::size_t at = name.rfind('@');
  const std::size_t dash = name.substr(0, at).rfind('-');
  if (at == std::string_view::npos || dash == std::string_view::npos || !parse_wide_integer(name.substr(at + 1))) {
    return std::nullopt;
  }
  return parse_wide_integer(name.substr(dash + 1, at - dash - 1));
}

inline std::optional<std::uint64_t> job_number(const Variables& variables, SlurmNumbers slurm) {
  if (const auto hnp = parse_orte_uri(variables.text("OMPI_MCA_orte_hnp_uri").value_or(""))) {
    return hnp->job >> 16;
  }
  if (const auto job = prrte_job(variables.text("PMIX_NAMESPACE").value_or(""))) {
    return job;
  }
  if (slurm != SlurmNumbers::none) {
    if (const std::optional<std::uint64_t> job = variables.wide_integer("SLURM_JOB_ID")) {
      constexpr std::uint64_t between_steps = 257;
      const std::uint64_t step = variables.wide_integer("SLURM_STEP_ID").value_or(0);
      return *job + (slurm == SlurmNumbers::step ? between_steps * step : 0);
    }
  }
  return variables.wide_integer("LSB_JOBID");
}

}  // namespace detail

/// MASTER_PORT, else one above Linux's ephemeral range, so that two jobs on a machine seldom meet, else the default.
/// @throws IdentityError: bad-port, bad-integer
inline int job_port(const Variables& variables, SlurmNumbers slurm) {
  constexpr std::uint64_t first = 61440;
  constexpr std::uint64_t count = 4096;
  if (const std::optional<int> given = variables.port("MASTER_PORT")) {
    return *given;
  }
  const std::optional<std::uint64_t> job = detail::job_number(variables, slurm);
  return job ? static_cast<int>(first + *job % count) : default_master_port;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/place.hpp

/// @file
/// Rank and world size as some launcher states them, for comparing launchers.

namespace DTRAIN_NAMESPACE::identity {

struct Place {
  int rank = 0;
  int world_size = 1;

  friend bool operator==(const Place&, const Place&) = default;
};

/// Nothing unless both variables are numbers: for comparing with a launcher that is not asked for more.
inline std::optional<Place> stated_place(const Variables& variables, std::string_view rank, std::string_view size) {
  const std::optional<int> stated_rank = parse_integer(variables.text(rank).value_or(""));
  const std::optional<int> stated_size = parse_integer(variables.text(size).value_or(""));
  return stated_rank && stated_size ? std::optional(Place{*stated_rank, *stated_size}) : std::nullopt;
}

/// Both for the same job, in which they would be two ranks.
inline bool conflict(const Place& a, const Place& b) noexcept {
  return a.world_size == b.world_size && a.world_size > 1 && a.rank != b.rank;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/slurm_hostlist.hpp

/// @file
/// Slurm's compressed host lists, for example "node[001-003,007],gpu-a": all of one is checked, its first host is
/// given.

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

inline bool is_digit(char byte) noexcept {
  return byte >= '0' && byte <= '9';
}

/// Reads a list from its beginning to its end; each step takes what its name says or throws.
class HostListReader {
 public:
  HostListReader(std::string_view variable, std::string_view list) noexcept : variable_(variable), list_(list) {}

  std::string first_host() {
    std::string first = host();
    while (at_ != list_.size()) {
      take(',', "a comma between hosts");
      host();
    }
    return first;
  }

 private:
  /// One entry, with any number of brackets in it. @returns the first of the hosts it stands for
  std::string host() {
    std::string name;
    while (at_ != list_.size() && peek() != ',') {
      if (peek() == '[') {
        name += ranges();
      } else if (is_host_name_byte(peek())) {
        name += list_[at_++];
      } else {
        fail("a byte that no host's name has");
      }
    }
    if (name.empty()) {
      fail("an empty name");
    }
    return name;
  }

  std::string ranges() {
    take('[', "a '['");
    std::string first = range();
    while (peek() == ',') {
      ++at_;
      range();
    }
    take(']', "a ']'");
    return first;
  }

  /// "7", or "001-003". @returns its first number, with its zeros
  std::string range() {
    const std::string_view low = digits();
    if (peek() == '-') {
      ++at_;
      if (is_less(digits(), low)) {
        fail("a range that runs backwards");
      }
    }
    return std::string(low);
  }

  std::string_view digits() {
    const std::size_t begin = at_;
    while (is_digit(peek())) {
      ++at_;
    }
    if (at_ == begin) {
      fail("no number where one belongs");
    }
    return list_.substr(begin, at_ - begin);
  }

  /// Numbers of any length, leading zeros or not.
  static bool is_less(std::string_view a, std::string_view b) noexcept {
    a.remove_prefix(std::min(a.find_first_not_of('0'), a.size()));
    b.remove_prefix(std::min(b.find_first_not_of('0'), b.size()));
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  }

  char peek() const noexcept { return at_ < list_.size() ? list_[at_] : '\0'; }

  void take(char wanted, const char* what) {
    if (peek() != wanted || at_ == list_.size()) {
      fail((std::string("not ") + what).c_str());
    }
    ++at_;
  }

  [[noreturn]] void fail(const char* what) const {
    throw IdentityError(IdentityErrc::bad_hostlist, quoted(variable_, list_) + " is not a Slurm host list: at byte " +
                                                        std::to_string(at_) + " there is " + what +
                                                        "; correct it, or set MASTER_ADDR to the host of rank 0");
  }

  std::string_view variable_;
  std::string_view list_;
  std::size_t at_ = 0;
};

}  // namespace detail

/// The first host that `list`, the value of `variable`, stands for. Lists are not sorted; zero padding is kept.
/// @throws IdentityError (bad-hostlist) for anything that is not one, its end included.
inline std::string first_slurm_host(std::string_view variable, std::string_view list) {
  return detail::HostListReader(variable, list).first_host();
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/master.hpp

/// @file
/// Where rank 0 is, for launchers that do not say it outright: MPI's, and those like them.

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Azure ML's names for the host of rank 0, and its port, which is not the one in AZ_BATCH_MASTER_NODE.
inline bool find_azure_master(const Variables& variables, ProcessIdentity& who) {
  constexpr int azure_port = 6105;
  const std::optional<std::string> batch = variables.text("AZ_BATCH_MASTER_NODE");
  const std::optional<std::string> mpi = variables.text("AZ_BATCHAI_MPI_MASTER_NODE");
  const bool one_node = on_one_node(who);
  if (one_node ? !batch && !mpi : !batch) {
    return false;
  }
  who.master_addr = one_node ? mpi.value_or(loopback_address)
                             : split_host_port("AZ_BATCH_MASTER_NODE", *batch, IdentityErrc::no_master_addr).host;
  who.master_port = variables.port("MASTER_PORT").value_or(azure_port);
  return true;
}

/// Open MPI 4 tells everybody where mpirun runs, which usually is where rank 0 runs: a guess. Only rank 0 can tell:
/// its own daemon is mpirun itself, or it is not there.
/// @throws IdentityError (no-master-addr) on rank 0 where it is not.
inline bool guess_mpirun_host(const Variables& variables, ProcessIdentity& who) {
  const std::string uri = variables.text("OMPI_MCA_orte_hnp_uri").value_or("");
  const std::optional<OrteUri> mpirun = parse_orte_uri(uri);
  if (!mpirun || mpirun->host.empty()) {
    return false;
  }
  const std::string daemon_uri = variables.text("OMPI_MCA_orte_local_daemon_uri").value_or("");
  const std::optional<OrteUri> daemon = parse_orte_uri(daemon_uri);
  if (who.rank == 0 && daemon && (daemon->job != mpirun->job || daemon->daemon != mpirun->daemon)) {
    throw IdentityError(IdentityErrc::no_master_addr,
                        "MASTER_ADDR is not set, and mpirun ran on " + mpirun->host +
                            ", which is not the node of rank 0 (" + quoted("OMPI_MCA_orte_hnp_uri", uri) +
                            " is another daemon than " + quoted("OMPI_MCA_orte_local_daemon_uri", daemon_uri) +
                            "); pass mpirun -x MASTER_ADDR=HOST, the host of rank 0");
  }
  who.master_addr = mpirun->host;
  return true;
}

}  // namespace detail

/// How much of the environment an MPI-like source may ask for its master.
struct MasterHints {
  bool slurm_allocation = false;  ///< its processes are placed in the order of the allocation's nodes
  bool open_mpi = false;
  const char* how = "";  ///< how its users pass a variable to every process, for the sentence
};

/// Sets master_addr and master_port; a guess is named in `provisional`.
/// @param stated the variables that `who` was read from, as Variables::stated() gives them
/// @throws IdentityError: no-master-addr, bad-port, bad-hostlist, ambiguous-address
inline void find_master(const Variables& variables, const MasterHints& hints, const std::string& stated,
                        ProcessIdentity& who) {
  who.master_addr = variables.text("MASTER_ADDR");
  if (!who.master_addr && hints.open_mpi && detail::find_azure_master(variables, who)) {
    return;
  }
  who.master_port = job_port(variables, hints.slurm_allocation ? SlurmNumbers::allocation : SlurmNumbers::none);
  if (who.master_addr) {
    return;
  }
  if (on_one_node(who)) {
    who.master_addr = loopback_address;
    return;
  }
  const std::optional<std::string> nodes = variables.text("SLURM_JOB_NODELIST");
  if (hints.slurm_allocation && nodes) {
    who.master_addr = first_slurm_host("SLURM_JOB_NODELIST", *nodes);
  } else if (!hints.open_mpi || !detail::guess_mpirun_host(variables, who)) {
    throw IdentityError(IdentityErrc::no_master_addr,
                        who.launcher + ": MASTER_ADDR is not set, and the host of rank 0 is not in the environment (" +
                            stated + "); set MASTER_ADDR on every process to the host of rank 0" + hints.how);
  }
  who.provisional.emplace_back("master_addr");
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/slurm_tasks_per_node.hpp

/// @file
/// Slurm's counts of tasks on each node, for example "2(x3),1".

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

struct TasksOnNodes {
  int tasks = 0;
  int nodes = 1;
};

/// "2(x3)" or "1"; nothing for anything else.
inline std::optional<TasksOnNodes> parse_tasks_on_nodes(std::string_view entry) {
  TasksOnNodes parsed;
  const std::size_t bracket = entry.find('(');
  if (bracket != std::string_view::npos) {
    std::string_view repeat = entry.substr(bracket);
    if (repeat.size() < 4 || repeat.substr(0, 2) != "(x" || repeat.back() != ')') {
      return std::nullopt;
    }
    repeat.remove_prefix(2);
    repeat.remove_suffix(1);
    parsed.nodes = parse_integer(repeat).value_or(0);
  }
  parsed.tasks = parse_integer(entry.substr(0, bracket)).value_or(0);
  return parsed.tasks > 0 && parsed.nodes > 0 ? std::optional(parsed) : std::nullopt;
}

}  // namespace detail

/// How many tasks run on the node number `node`, by `list`, the value of `variable`. All of the list is checked.
/// @throws IdentityError (bad-tasks-per-node) for a list that is not one, or that ends before that node.
inline int slurm_tasks_on_node(std::string_view variable, std::string_view list, int node) {
  std::optional<int> found;
  long long nodes = 0;
  std::size_t begin = 0;
  while (begin <= list.size()) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    const std::optional<detail::TasksOnNodes> entry = detail::parse_tasks_on_nodes(list.substr(begin, end - begin));
    if (!entry) {
      throw IdentityError(
          IdentityErrc::bad_tasks_per_node,
          quoted(variable, list) + " is not a list of task counts such as 2(x3),1; correct it or unset it");
    }
    nodes += entry->nodes;
    if (!found && node < nodes) {
      found = entry->tasks;
    }
    begin = end + 1;
  }
  if (!found) {
    throw IdentityError(IdentityErrc::bad_tasks_per_node,
                        quoted(variable, list) + " counts the tasks of " + std::to_string(nodes) +
                            " nodes, but SLURM_NODEID='" + std::to_string(node) +
                            "' is beyond them; correct one of them, or unset " + std::string(variable));
  }
  return *found;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/slurm_step.hpp

/// @file
/// What a Slurm step says about one of its tasks.

namespace DTRAIN_NAMESPACE::identity {

/// The variable that gives a step's world size: SLURM_NTASKS is the allocation's, and only stands in for the step's.
inline const char* slurm_size_variable(const Variables& variables) {
  return variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
}

/// Whether this is a task of a step that srun started. The numbers 4294967290 to 4294967293 stand for steps that start
/// none (interactive, batch, extern, pending), and a batch script has SLURM_PROCID=0 without any step.
inline bool in_slurm_step(const Variables& variables) {
  constexpr std::uint64_t first_special = 4294967290;
  constexpr std::uint64_t last_special = 4294967293;
  if (!variables.has("SLURM_STEP_ID") || !variables.has("SLURM_PROCID") ||
      !variables.has(slurm_size_variable(variables))) {
    return false;
  }
  const std::uint64_t step = parse_wide_integer(*variables.text("SLURM_STEP_ID")).value_or(0);
  return step < first_special || step > last_special;
}

/// Rank and world size of a step's task.
inline std::optional<Place> slurm_step_place(const Variables& variables) {
  return in_slurm_step(variables) ? stated_place(variables, "SLURM_PROCID", slurm_size_variable(variables))
                                  : std::nullopt;
}

/// How many tasks of the step run on this node; nothing where Slurm does not say.
/// @throws IdentityError: bad-tasks-per-node, bad-integer
inline std::optional<int> slurm_local_size(const Variables& variables) {
  const std::optional<std::string> list = variables.text("SLURM_STEP_TASKS_PER_NODE");
  const std::optional<int> node = variables.integer("SLURM_NODEID");
  if (list && node) {
    return slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", *list, *node);
  }
  const std::optional<std::string> ranks = variables.text("SLURM_GTIDS");
  if (!ranks) {
    return std::nullopt;
  }
  const bool is_list =
      std::all_of(ranks->begin(), ranks->end(), [](char c) { return c == ',' || (c >= '0' && c <= '9'); });
  if (!is_list || ranks->front() == ',' || ranks->back() == ',' || ranks->find(",,") != std::string::npos) {
    throw IdentityError(IdentityErrc::bad_integer, quoted("SLURM_GTIDS", *ranks) +
                                                       " is not a list of task numbers such as 4,5; correct it or "
                                                       "unset it");
  }
  return 1 + static_cast<int>(std::count(ranks->begin(), ranks->end(), ','));
}

/// Fills what `who` lacks: local rank and size, node rank and count. @throws as slurm_local_size
inline void fill_from_slurm_step(const Variables& variables, ProcessIdentity& who) {
  who.local_rank = who.local_rank ? who.local_rank : variables.integer("SLURM_LOCALID");
  who.node_rank = who.node_rank ? who.node_rank : variables.integer("SLURM_NODEID");
  who.node_count = who.node_count ? who.node_count : variables.count("SLURM_STEP_NUM_NODES");
  who.local_world_size = who.local_world_size ? who.local_world_size : slurm_local_size(variables);
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/dtrain.hpp

/// @file
/// Source [dtrain]: the variables that the per-node launcher writes for its workers, taken whole.

namespace DTRAIN_NAMESPACE::identity {

struct DtrainSource {
  static constexpr const char* name = "dtrain";

  static bool present(const Variables& variables) {
    return variables.has("DTRAIN_RANK") && variables.has("DTRAIN_WORLD_SIZE");
  }

  /// Nothing else is consulted: a worker inherits whatever its launcher was started with.
  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("DTRAIN_RANK");
    who.world_size = *variables.integer("DTRAIN_WORLD_SIZE");
    who.local_rank = variables.integer("DTRAIN_LOCAL_RANK");
    who.local_world_size = variables.integer("DTRAIN_LOCAL_WORLD_SIZE");
    who.node_rank = variables.integer("DTRAIN_NODE_RANK");
    who.node_count = variables.count("DTRAIN_NODE_COUNT");
    who.attempt = variables.integer("DTRAIN_ATTEMPT").value_or(0);
    complete_one_node(who);
    check_ranges(who, variables.stated({"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "DTRAIN_LOCAL_RANK",
                                        "DTRAIN_LOCAL_WORLD_SIZE", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT"}));
    who.master_addr = master_addr_or_loopback(variables, "DTRAIN_MASTER_ADDR", who);
    who.master_port = variables.port("DTRAIN_MASTER_PORT").value_or(default_master_port);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/flux.hpp

/// @file
/// Source [flux]: a task of a Flux job.

namespace DTRAIN_NAMESPACE::identity {

/// Flux sets PMI_RANK too, and srun may have started its brokers: only these variables have the task's local facts.
struct FluxSource {
  static constexpr const char* name = "flux";

  static bool present(const Variables& variables) {
    return variables.has("FLUX_TASK_RANK") && variables.has("FLUX_JOB_SIZE");
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("FLUX_TASK_RANK");
    who.world_size = *variables.integer("FLUX_JOB_SIZE");
    who.local_rank = variables.integer("FLUX_TASK_LOCAL_ID");
    who.node_count = variables.count("FLUX_JOB_NNODES");
    const std::string stated =
        variables.stated({"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"});
    complete_one_node(who);
    check_ranges(who, stated);
    find_master(variables, MasterHints{}, stated, who);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/horovod.hpp

/// @file
/// Source [horovod]: horovodrun with its own (Gloo) start of processes.

namespace DTRAIN_NAMESPACE::identity {

/// HOROVOD_CROSS_RANK counts only the hosts that have this local rank, so on uneven hosts it is not the node's rank.
struct HorovodSource {
  static constexpr const char* name = "horovod";
  static constexpr LauncherVariables names{"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    complete_one_node(who);
    check_ranges(who, names.stated(variables));
    find_master(variables, MasterHints{}, names.stated(variables), who);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/jsrun.hpp

/// @file
/// Source [jsrun]: IBM's launcher for LSF.

namespace DTRAIN_NAMESPACE::identity {

struct JsrunSource {
  static constexpr const char* name = "jsrun";
  static constexpr LauncherVariables names{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
                                           "JSM_NAMESPACE_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    complete_one_node(who);
    check_ranges(who, names.stated(variables));
    find_master(variables, MasterHints{}, names.stated(variables), who);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/kubernetes.hpp

/// @file
/// Source [k8s]: a pod of an Indexed Job whose manifest adds WORLD_SIZE and MASTER_ADDR.

namespace DTRAIN_NAMESPACE::identity {

struct KubernetesSource {
  static constexpr const char* name = "k8s";

  /// An index without a size is not a distributed job.
  static bool present(const Variables& variables) {
    return variables.has("JOB_COMPLETION_INDEX") && !variables.has("RANK") && variables.has("WORLD_SIZE") &&
           variables.text("WORLD_SIZE") != "1";
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("JOB_COMPLETION_INDEX");
    who.world_size = *variables.integer("WORLD_SIZE");
    complete_one_node(who);
    check_ranges(who, variables.stated({"JOB_COMPLETION_INDEX", "WORLD_SIZE"}));
    who.master_addr = master_addr_or_loopback(variables, "MASTER_ADDR", who);
    who.master_port = variables.port("MASTER_PORT").value_or(default_master_port);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/mvapich.hpp

/// @file
/// Source [mvapich]: MVAPICH2's mpirun_rsh.

namespace DTRAIN_NAMESPACE::identity {

struct MvapichSource {
  static constexpr const char* name = "mvapich";
  static constexpr LauncherVariables names{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK",
                                           "MV2_COMM_WORLD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    complete_one_node(who);
    check_ranges(who, names.stated(variables));
    find_master(variables, MasterHints{.slurm_allocation = true}, names.stated(variables), who);
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/openmpi.hpp

/// @file
/// Source [openmpi]: a process that Open MPI's mpirun started.

namespace DTRAIN_NAMESPACE::identity {

/// OMPI_COMM_WORLD_NODE_RANK is this process's rank among those on its node, never the node's; OMPI_UNIVERSE_SIZE
/// counts slots; OMPI_MCA_* settings alone are no launch.
struct OpenMpiSource {
  static constexpr const char* name = "openmpi";
  static constexpr LauncherVariables names{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "OMPI_COMM_WORLD_LOCAL_SIZE"};

  static bool present(const Variables& variables) { return names.give_both(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who = names.read(variables, name);
    who.node_count = variables.count("OMPI_MCA_orte_num_nodes");
    who.node_count = who.node_count ? who.node_count : variables.count("AZUREML_NODE_COUNT");
    const std::string stated = variables.stated({names.rank, names.world_size, names.local_rank, names.local_world_size,
                                                 "OMPI_MCA_orte_num_nodes", "AZUREML_NODE_COUNT"});
    complete_one_node(who);
    check_ranges(who, stated);
    find_master(variables, {.slurm_allocation = true, .open_mpi = true, .how = ": mpirun -x MASTER_ADDR=HOST"}, stated,
                who);
    guess_node_rank(who);
    return who;
  }

 private:
  /// Right where mpirun filled node after node with equally many; nothing says that it did.
  static void guess_node_rank(ProcessIdentity& who) {
    const long long local_size = who.local_world_size.value_or(0);
    if (who.node_rank || !who.node_count || local_size == 0 || local_size * *who.node_count != who.world_size ||
        who.local_rank != static_cast<int>(who.rank % local_size)) {
      return;
    }
    who.node_rank = static_cast<int>(who.rank / local_size);
    who.provisional.emplace_back("node_rank");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/pmi.hpp

/// @file
/// Source [pmi]: a process that MPICH's, Intel MPI's or Cray PALS' mpiexec started.

namespace DTRAIN_NAMESPACE::identity {

struct PmiSource {
  static constexpr const char* name = "pmi";

  static bool present(const Variables& variables) { return variables.has("PMI_RANK") && variables.has("PMI_SIZE"); }

  /// Slurm serves PMI itself, and then has the local facts too.
  static bool yields_to_slurm(const Variables& variables) {
    const std::optional<Place> step = slurm_step_place(variables);
    return step && step == stated_place(variables, "PMI_RANK", "PMI_SIZE");
  }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("PMI_RANK");
    who.world_size = *variables.integer("PMI_SIZE");
    who.local_rank = first_of(variables, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID");
    who.local_world_size = first_of(variables, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE");
    who.node_rank = variables.integer("PALS_NODEID");
    const std::string stated =
        variables.stated({"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID",
                          "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE", "PALS_NODEID"});
    complete_one_node(who);
    check_ranges(who, stated);
    find_master(variables, {.slurm_allocation = true, .how = ": mpiexec -genv MASTER_ADDR HOST"}, stated, who);
    return who;
  }

 private:
  static std::optional<int> first_of(const Variables& variables, const char* a, const char* b, const char* c) {
    return variables.has(a) ? variables.integer(a) : variables.has(b) ? variables.integer(b) : variables.integer(c);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/sagemaker.hpp

/// @file
/// Source [sagemaker]: SM_HOSTS and SM_CURRENT_HOST of a SageMaker training job, one rank on each host.

namespace DTRAIN_NAMESPACE::identity {

struct SageMakerSource {
  static constexpr const char* name = "sagemaker";

  static bool present(const Variables& variables) {
    return variables.has("SM_HOSTS") && variables.has("SM_CURRENT_HOST");
  }

  /// The rank is the place in the list, which is sorted as text: algo-10 comes before algo-2.
  static ProcessIdentity read(const Variables& variables, Arguments) {
    constexpr int sagemaker_port = 7777;
    const std::string list = *variables.text("SM_HOSTS");
    const std::string own = *variables.text("SM_CURRENT_HOST");
    const std::vector<std::string> hosts = parse_hosts(list);
    const auto found = std::find(hosts.begin(), hosts.end(), own);
    if (found == hosts.end()) {
      throw IdentityError(IdentityErrc::sm_host, quoted("SM_CURRENT_HOST", own) + " is not in " +
                                                     quoted("SM_HOSTS", list) +
                                                     "; set SM_CURRENT_HOST to one of the list");
    }
    ProcessIdentity who;
    who.launcher = name;
    who.rank = static_cast<int>(found - hosts.begin());
    who.world_size = static_cast<int>(hosts.size());
    who.local_rank = 0;
    who.local_world_size = 1;
    who.node_rank = who.rank;
    who.node_count = who.world_size;
    who.master_addr = hosts.size() == 1 ? loopback_address : hosts.front();
    who.master_port = variables.port("MASTER_PORT").value_or(sagemaker_port);
    ignore_master_addr(variables, who);
    return who;
  }

 private:
  /// @throws IdentityError (sm-host) for what is not a JSON list of different names of hosts.
  static std::vector<std::string> parse_hosts(const std::string& list) {
    const std::optional<Json> parsed = parse_json(list);
    std::vector<std::string> hosts;
    if (parsed && parsed->is(Json::Kind::array)) {
      for (const Json& host : parsed->items) {
        const bool is_name =
            host.is(Json::Kind::string) && !host.text.empty() &&
            std::all_of(host.text.begin(), host.text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
        if (!is_name) {
          fail(list, "is not a JSON list of host names");
        }
        hosts.push_back(host.text);
      }
    }
    if (hosts.empty()) {
      fail(list, "is not a JSON list of host names");
    }
    std::vector<std::string> sorted = hosts;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      fail(list, "names a host twice");
    }
    return hosts;
  }

  [[noreturn]] static void fail(const std::string& list, const char* problem) {
    throw IdentityError(IdentityErrc::sm_host, quoted("SM_HOSTS", list) + " " + problem +
                                                   "; set it to a list such as [\"algo-1\", \"algo-2\"], or unset it");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/single.hpp

/// @file
/// Source [single]: rank 0 of 1, where nothing says otherwise.

namespace DTRAIN_NAMESPACE::identity {

struct SingleSource {
  static constexpr const char* name = "single";

  static bool present(const Variables&) { return true; }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    complete_one_node(who);
    who.master_addr = "127.0.0.1";
    who.master_port = variables.port("MASTER_PORT").value_or(default_master_port);
    // A batch script sees the allocation's variables but runs once: never wait for tasks that srun did not start.
    const std::optional<int> tasks = parse_integer(variables.text("SLURM_NTASKS").value_or(""));
    if (variables.has("SLURM_JOB_ID") && tasks && *tasks > 1) {
      who.warnings.push_back("Slurm job of " + std::to_string(*tasks) +
                             " tasks, not started with srun: this is one process; start the program with srun for all");
    }
    if (variables.has("SM_HOSTS") && !variables.has("SM_CURRENT_HOST")) {
      who.warnings.push_back(
          quoted("SM_HOSTS", *variables.text("SM_HOSTS")) +
          " is set without SM_CURRENT_HOST: this is one process; set SM_CURRENT_HOST to join the others");
    }
    return who;
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/slurm.hpp

/// @file
/// Source [slurm]: a task of a step that srun started.

namespace DTRAIN_NAMESPACE::identity {

struct SlurmSource {
  static constexpr const char* name = "slurm";

  static bool present(const Variables& variables) { return in_slurm_step(variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("SLURM_PROCID");
    who.world_size = *variables.integer(slurm_size_variable(variables));
    variables.wide_integer("SLURM_STEP_ID");
    who.attempt = variables.integer("SLURM_RESTART_COUNT").value_or(0);
    fill_from_slurm_step(variables, who);
    complete_one_node(who);
    check_ranges(who, stated(variables));
    who.master_addr = variables.text("MASTER_ADDR");
    if (!who.master_addr) {
      who.master_addr = on_one_node(who) ? loopback_address : first_host(variables);
    }
    who.master_port = job_port(variables, SlurmNumbers::step);
    return who;
  }

  static std::string stated(const Variables& variables) {
    return variables.stated({"SLURM_PROCID", slurm_size_variable(variables), "SLURM_LOCALID", "SLURM_NODEID",
                             "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE", "SLURM_GTIDS"});
  }

 private:
  /// Task 0 runs on the first node of the step's list, unless the user placed the tasks. SLURM_LAUNCH_NODE_IPADDR is
  /// where srun runs: never the master.
  static std::string first_host(const Variables& variables) {
    const std::string distribution = variables.text("SLURM_DISTRIBUTION").value_or("");
    const std::optional<std::string> nodes = variables.text("SLURM_STEP_NODELIST");
    const bool placed_by_hand = distribution.substr(0, distribution.find_first_of(",:")) == "arbitrary";
    if (nodes && !placed_by_hand) {
      return first_slurm_host("SLURM_STEP_NODELIST", *nodes);
    }
    throw IdentityError(IdentityErrc::no_master_addr,
                        (placed_by_hand ? "MASTER_ADDR is not set, and with " +
                                              quoted("SLURM_DISTRIBUTION", distribution) + " (srun -m arbitrary)"
                                        : "MASTER_ADDR is not set, and without SLURM_STEP_NODELIST") +
                            " the node of task 0 cannot be read from the environment (" + stated(variables) +
                            "); set MASTER_ADDR on every task to the host of task 0");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/tf_config.hpp

/// @file
/// Source [tf_config]: TF_CONFIG, as TensorFlow's jobs, Kubeflow and Vertex AI set it.

namespace DTRAIN_NAMESPACE::identity {

/// Ranks are the chief (or master), then the workers; parameter servers and evaluators are none.
struct TfConfigSource {
  static constexpr const char* name = "tf_config";
  static constexpr std::array<std::string_view, 3> ranked{"chief", "master", "worker"};
  static constexpr std::array<std::string_view, 2> unranked{"ps", "evaluator"};
  static constexpr std::array<std::string_view, 2> alone{"chief", "master"};
  static constexpr ClusterRoles roles{"TF_CONFIG", ranked, unranked, alone};

  static bool present(const Variables& variables) { return has_cluster(roles, variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    return identity_in_cluster(read_cluster(roles, variables), name, variables, roles.variable);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/torch.hpp

/// @file
/// Source [torch]: RANK and WORLD_SIZE, as torchrun, DeepSpeed, Azure ML, Kubeflow, Ray and hand-written scripts set
/// them.

namespace DTRAIN_NAMESPACE::identity {

/// Elastic (TORCHELASTIC_RUN_ID is set): torchrun made the environment for this process, and it is trusted. Else it may
/// have been exported before the processes were started, and what started them is asked.
struct TorchSource {
  static constexpr const char* name = "torch";

  static bool present(const Variables& variables) { return variables.has("RANK") && variables.has("WORLD_SIZE"); }

  static ProcessIdentity read(const Variables& variables, Arguments arguments) {
    ProcessIdentity who;
    who.launcher = name;
    who.rank = *variables.integer("RANK");
    who.world_size = *variables.integer("WORLD_SIZE");
    who.job = variables.text("TORCHELASTIC_RUN_ID");
    const bool elastic = who.job.has_value();
    who.attempt = elastic ? variables.integer("TORCHELASTIC_RESTART_COUNT").value_or(0) : 0;
    if (!elastic) {
      check_conflicts(variables, who);
    }
    const std::optional<int> argument = local_rank_argument(arguments);
    read_local(variables, argument, elastic, who);
    read_node(variables, elastic, who);
    if (!elastic) {
      fill_gaps(variables, who);
    }
    complete_one_node(who);
    guess_local_size(variables, who);
    check_ranges(who, stated(variables, argument));
    who.master_addr = master_addr_or_loopback(variables, "MASTER_ADDR", who);
    who.master_port = read_port(variables);
    return who;
  }

  /// torchrun listens on MASTER_PORT itself (bind gives EADDRINUSE) when its agent store is in use: the next one, then.
  static int read_port(const Variables& variables) {
    constexpr int last = 65535;
    constexpr int first_above_ephemeral = 61440;
    const int port = variables.port("MASTER_PORT").value_or(default_master_port);
    if (variables.text("TORCHELASTIC_USE_AGENT_STORE") != "True") {
      return port;
    }
    return port == last ? first_above_ephemeral : port + 1;
  }

 private:
  /// A batch script that exports RANK=$SLURM_PROCID gives every task RANK=0: all would be rank 0.
  static void check_conflicts(const Variables& variables, const ProcessIdentity& who) {
    check_conflict(variables, who, "SLURM_PROCID", slurm_step_place(variables));
    const LauncherVariables& mpi = OpenMpiSource::names;
    check_conflict(variables, who, mpi.rank, stated_place(variables, mpi.rank, mpi.world_size));
    check_conflict(variables, who, "PMI_RANK", stated_place(variables, "PMI_RANK", "PMI_SIZE"));
  }

  static void check_conflict(const Variables& variables, const ProcessIdentity& who, const char* variable,
                             const std::optional<Place>& other) {
    if (other && conflict(*other, Place{who.rank, who.world_size})) {
      throw IdentityError(IdentityErrc::conflict_rank,
                          variables.stated({"RANK"}) + " but " + variables.stated({variable}) + ", both for " +
                              std::to_string(who.world_size) +
                              " processes; was RANK exported before the processes were started? Unset RANK, or set "
                              "DTRAIN_RANK and DTRAIN_WORLD_SIZE");
    }
  }

  static void read_local(const Variables& variables, const std::optional<int>& argument, bool elastic,
                         ProcessIdentity& who) {
    const std::optional<int> variable = variables.integer("LOCAL_RANK");
    if (variable && argument && *variable != *argument) {
      throw IdentityError(IdentityErrc::conflict_local_rank,
                          "LOCAL_RANK=" + std::to_string(*variable) +
                              " but the argument --local_rank=" + std::to_string(*argument) + "; unset one of them");
    }
    who.local_rank = variable ? variable : argument;
    who.local_world_size = variables.integer("LOCAL_WORLD_SIZE");
    if (!who.local_world_size && variables.has("CROSS_SIZE")) {
      who.local_world_size = variables.integer("LOCAL_SIZE");  // DeepSpeed's names
    }
    if (!who.local_rank && !elastic) {
      read_pod(variables, who);
    }
  }

  /// Kubeflow's RANK is the pod's while its WORLD_SIZE counts processes (kubeflow/trainer issue 1790).
  static void read_pod(const Variables& variables, ProcessIdentity& who) {
    const std::optional<std::string> processes = variables.text("PET_NPROC_PER_NODE");
    if (!processes) {
      return;
    }
    if (*processes != "1") {
      throw IdentityError(IdentityErrc::node_level_env,
                          "RANK=" + std::to_string(who.rank) + " of WORLD_SIZE=" + std::to_string(who.world_size) +
                              " with " + quoted("PET_NPROC_PER_NODE", *processes) +
                              " describes a node, not a process; start the program through the per-node launcher "
                              "(dtrain::launch::PerNode), or set LOCAL_RANK for every process");
    }
    who.local_rank = 0;
    who.local_world_size = 1;
    who.node_rank = who.rank;
    who.node_count = who.world_size;
  }

  static void read_node(const Variables& variables, bool elastic, ProcessIdentity& who) {
    const auto fill = [&variables](std::optional<int>& field, const char* variable) {
      if (!field) {
        field = variables.integer(variable);
      }
    };
    if (elastic) {
      fill(who.node_rank, "GROUP_RANK");
      fill(who.node_count, "GROUP_WORLD_SIZE");
    }
    fill(who.node_rank, "NODE_RANK");
    if (variables.has("CROSS_SIZE")) {  // DeepSpeed's names
      fill(who.node_rank, "CROSS_RANK");
      fill(who.node_count, "CROSS_SIZE");
    }
    fill(who.node_count, "AZUREML_NODE_COUNT");
  }

  /// From a launcher that says the same rank and world size.
  static void fill_gaps(const Variables& variables, ProcessIdentity& who) {
    const Place own{who.rank, who.world_size};
    const LauncherVariables& mpi = OpenMpiSource::names;
    if (slurm_step_place(variables) == own) {
      fill_from_slurm_step(variables, who);
    }
    if (stated_place(variables, mpi.rank, mpi.world_size) == own) {
      who.local_rank = who.local_rank ? who.local_rank : variables.integer(mpi.local_rank);
      who.local_world_size = who.local_world_size ? who.local_world_size : variables.integer(mpi.local_world_size);
    }
  }

  /// Azure ML starts the same number of processes on each node, but does not say so: a guess.
  static void guess_local_size(const Variables& variables, ProcessIdentity& who) {
    const std::optional<int> nodes = variables.count("AZUREML_NODE_COUNT");
    if (!who.local_world_size && nodes && who.world_size % *nodes == 0) {
      who.local_world_size = who.world_size / *nodes;
      who.provisional.emplace_back("local_world_size");
    }
  }

  static std::string stated(const Variables& variables, const std::optional<int>& argument) {
    const LauncherVariables& mpi = OpenMpiSource::names;
    return variables.stated({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "LOCAL_SIZE", "GROUP_RANK",
                             "GROUP_WORLD_SIZE", "NODE_RANK", "CROSS_RANK", "CROSS_SIZE", "AZUREML_NODE_COUNT",
                             "SLURM_LOCALID", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_TASKS_PER_NODE",
                             mpi.local_rank, mpi.local_world_size}) +
           (argument ? ", the argument --local_rank=" + std::to_string(*argument) : "");
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/sources/vertex.hpp

/// @file
/// Source [vertex]: CLUSTER_SPEC, which Vertex AI sets for its custom jobs.

namespace DTRAIN_NAMESPACE::identity {

/// Ranks are worker pool 0, then worker pool 1; pools 2 and 3 are for parameter servers and evaluators.
struct VertexSource {
  static constexpr const char* name = "vertex";
  static constexpr std::array<std::string_view, 2> ranked{"workerpool0", "workerpool1"};
  static constexpr std::array<std::string_view, 2> unranked{"workerpool2", "workerpool3"};
  static constexpr ClusterRoles roles{"CLUSTER_SPEC", ranked, unranked, {}};

  static bool present(const Variables& variables) { return has_cluster(roles, variables); }

  static ProcessIdentity read(const Variables& variables, Arguments) {
    return identity_in_cluster(read_cluster(roles, variables), name, variables, roles.variable);
  }
};

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/resolve.hpp

/// @file
/// The order of the sources, and the pure function that turns an environment into a ProcessIdentity.

namespace DTRAIN_NAMESPACE::identity {

/// A launcher's traces: its name, whether they give both rank and world size, and what they say.
struct Source {
  std::string_view name;
  bool (*present)(const Variables&);
  ProcessIdentity (*read)(const Variables&, Arguments);
};

template <class S>
constexpr Source source_of() noexcept {
  return {S::name, &S::present, &S::read};
}

/// The first that is present wins. What starts processes comes before what only describes a cluster: mpirun may run
/// inside one. The last always is present.
inline constexpr std::array<Source, 14> sources{
    source_of<DtrainSource>(),     source_of<TorchSource>(),  source_of<HorovodSource>(),
    source_of<OpenMpiSource>(),    source_of<JsrunSource>(),  source_of<MvapichSource>(),
    source_of<FluxSource>(),       source_of<PmiSource>(),    source_of<SlurmSource>(),
    source_of<TfConfigSource>(),   source_of<VertexSource>(), source_of<SageMakerSource>(),
    source_of<KubernetesSource>(), source_of<SingleSource>(),
};

namespace detail {

/// @param there the names of what could be forced, each followed by ", "
[[noreturn]] inline void refuse_launcher(const std::string& wanted, const std::string& there) {
  throw IdentityError(IdentityErrc::unknown_launcher, quoted("DTRAIN_LAUNCHER", wanted) +
                                                          " names no launcher whose variables are set; there are: " +
                                                          there + "none; set one of them, or unset it");
}

inline std::string names_of_present(const Variables& variables) {
  std::string names;
  for (const Source& source : sources) {
    names += source.present(variables) ? std::string(source.name) + ", " : "";
  }
  return names;
}

/// The source that DTRAIN_LAUNCHER names. @throws IdentityError (unknown-launcher), which lists what is there.
inline const Source& forced_source(const Variables& variables, const std::string& wanted) {
  if (wanted == "none") {
    return sources.back();
  }
  for (const Source& source : sources) {
    if (source.name == wanted && source.present(variables)) {
      return source;
    }
  }
  refuse_launcher(wanted, names_of_present(variables));
}

inline const Source& first_source(const Variables& variables) {
  for (const Source& source : sources) {
    const bool yields = source.name == PmiSource::name && PmiSource::yields_to_slurm(variables);
    if (source.name != SingleSource::name && !yields && source.present(variables)) {
      return source;
    }
  }
  check_incomplete(variables);
  return sources.back();
}

/// Whether a launcher's variables, as far as they can be read, say the same as `who`.
inline bool agrees(const Source& source, const Variables& variables, Arguments arguments, const ProcessIdentity& who) {
  try {
    const ProcessIdentity other = source.read(variables, arguments);
    return other.rank == who.rank && other.world_size == who.world_size;
  } catch (const IdentityError&) {
    return false;
  }
}

/// Names what is set but was not followed, for the line that people read. Beside [dtrain] nothing is looked at.
inline void note_ignored(const Source& chosen, const Variables& variables, Arguments arguments, ProcessIdentity& who) {
  for (const Source& source : sources) {
    if (chosen.name != DtrainSource::name && source.name != chosen.name && source.name != SingleSource::name &&
        source.present(variables) && !agrees(source, variables, arguments, who)) {
      who.ignored.emplace_back(source.name);
    }
  }
  const bool half = variables.has("DTRAIN_RANK") != variables.has("DTRAIN_WORLD_SIZE");
  if (half) {
    who.warnings.emplace_back("only one of DTRAIN_RANK and DTRAIN_WORLD_SIZE is set: ignored");
  }
}

}  // namespace detail

/// Who the process with this environment and these arguments is. Pure: the same values give the same answer, whatever
/// the real environment.
/// @throws IdentityError where the environment contradicts itself or says only half.
inline ProcessIdentity process_identity(const Environment& environment, Arguments arguments = {}) {
  const Variables variables(environment);
  const std::optional<std::string> wanted = variables.text("DTRAIN_LAUNCHER");
  const Source& source = wanted ? detail::forced_source(variables, *wanted) : detail::first_source(variables);
  ProcessIdentity who = source.read(variables, arguments);
  detail::note_ignored(source, variables, arguments, who);
  return who;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/node_sources.hpp

/// @file
/// Where a per-node launcher's place can come from, in order: pairs that name nodes, then one launcher on each node
/// under mpirun or srun, then whatever describes a process, which is the node here.

namespace DTRAIN_NAMESPACE::identity {

/// A pair of variables that names a node.
struct NodePair {
  std::string_view launcher;
  const char* rank;
  const char* count;
};

inline constexpr std::array<NodePair, 4> node_pairs{{
    {"node", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT"},
    {"pet", "PET_NODE_RANK", "PET_NNODES"},
    {"node", "NODE_RANK", "AZUREML_NODE_COUNT"},
    {"node", "NODE_RANK", "NNODES"},
}};

namespace detail {

/// The first pair that is whole, a flag standing in for either half, and has the wanted name.
inline std::optional<NodeFacts> read_node_pair(const Variables& variables, const std::optional<std::string>& wanted) {
  for (const NodePair& pair : node_pairs) {
    const bool has_rank = variables.has(pair.rank);
    const bool has_count = variables.has(pair.count);
    const bool whole = (has_rank || variables.has("--node-rank")) && (has_count || variables.has("--nnodes"));
    if ((wanted && *wanted != pair.launcher) || !whole) {
      continue;
    }
    NodeFacts node;
    node.launcher = pair.launcher;
    node.node_rank = has_rank ? *variables.integer(pair.rank) : 0;  // the flag is put over it
    node.node_count = has_count ? *read_node_count(variables, pair.count) : 1;
    return node;
  }
  return std::nullopt;
}

/// A process's identity taken for the node's.
inline NodeFacts node_of(const ProcessIdentity& who) {
  NodeFacts node;
  node.launcher = who.launcher;
  node.node_rank = who.rank;
  node.node_count = who.world_size;
  node.master_addr = who.master_addr;
  node.master_port = who.master_port;
  node.master_is_guess = who.is_provisional("master_addr");
  return node;
}

[[noreturn]] inline void refuse_many(const std::string& launcher, const std::string& stated,
                                     const std::string& remedy) {
  throw IdentityError(IdentityErrc::many_launchers,
                      launcher + " started several launchers on one node (" + stated +
                          "); the per-node launcher wants one, and starts the node's ranks itself: " + remedy);
}

inline NodeFacts read_mpirun_node(const Variables& variables) {
  const std::optional<int> local_size = variables.integer(OpenMpiSource::names.local_world_size);
  if (local_size.value_or(1) > 1) {
    refuse_many("mpirun", OpenMpiSource::names.stated(variables),
                "mpirun -npernode 1 (Azure ML: process_count_per_node=1)");
  }
  return node_of(OpenMpiSource::read(variables, {}));
}

/// One task on each node, on all of them, or every launcher says that there are many.
inline NodeFacts read_srun_node(const Variables& variables) {
  const ProcessIdentity who = SlurmSource::read(variables, {});
  const std::optional<int> nodes = variables.count("SLURM_STEP_NUM_NODES");
  if (who.local_world_size.value_or(1) > 1 || (nodes && *nodes < who.world_size)) {
    refuse_many("srun", SlurmSource::stated(variables), "srun --ntasks-per-node=1");
  }
  NodeFacts node = node_of(who);
  node.node_rank = who.node_rank.value_or(who.rank);
  node.node_count = nodes.value_or(who.world_size);
  return node;
}

/// A launcher in a batch script sees the allocation's nodes but runs once.
inline std::vector<std::string> allocation_warnings(const Variables& variables) {
  const std::optional<int> nodes = parse_integer(variables.text("SLURM_JOB_NUM_NODES").value_or(""));
  if (!variables.has("SLURM_JOB_ID") || nodes.value_or(1) < 2) {
    return {};
  }
  return {"Slurm job of " + std::to_string(*nodes) +
          " nodes, not started with srun: this is one node; start it with srun --ntasks-per-node=1 for all"};
}

/// @throws IdentityError (unknown-launcher) where DTRAIN_LAUNCHER names a pair that is not whole.
inline void check_wanted_pair(const Variables& variables, const std::optional<std::string>& wanted) {
  if (wanted != "node" && wanted != "pet") {
    return;
  }
  std::string there;
  for (const NodePair& pair : node_pairs) {
    const bool whole = variables.has(pair.rank) && variables.has(pair.count);
    there += whole && there.find(pair.launcher) == std::string::npos ? std::string(pair.launcher) + ", " : "";
  }
  refuse_launcher(*wanted, there + names_of_present(variables));
}

/// What names the number of nodes but not this one's rank.
/// @throws IdentityError: no-rank, elastic-range
inline void check_lonely_count(const Variables& variables) {
  for (const auto& [count, rank] : {std::pair("--nnodes", "--node-rank"), std::pair("PET_NNODES", "PET_NODE_RANK"),
                                    std::pair("DTRAIN_NODE_COUNT", "DTRAIN_NODE_RANK")}) {
    const std::optional<int> nodes = read_node_count(variables, count);
    if (nodes.value_or(1) > 1 && !variables.has("--node-rank") && !variables.has(rank)) {
      throw IdentityError(IdentityErrc::no_rank, variables.stated({count}) + " nodes, but which of them this is, " +
                                                     rank + ", is not set; set it to 0.." + std::to_string(*nodes - 1) +
                                                     ", another on each node");
    }
  }
}

}  // namespace detail

/// This node's place by its environment; flags are not looked at, but for the master that they give.
/// @throws IdentityError where the environment contradicts itself or says only half.
inline NodeFacts node_facts(const Environment& environment, const Variables& variables) {
  const std::optional<std::string> wanted = variables.text("DTRAIN_LAUNCHER");
  if (const std::optional<NodeFacts> pair = detail::read_node_pair(variables, wanted)) {
    return *pair;
  }
  if (OpenMpiSource::present(variables) && wanted.value_or(OpenMpiSource::name) == OpenMpiSource::name) {
    return detail::read_mpirun_node(variables);
  }
  if (SlurmSource::present(variables) && wanted.value_or(SlurmSource::name) == SlurmSource::name) {
    return detail::read_srun_node(variables);
  }
  detail::check_wanted_pair(variables, wanted);
  Environment process = environment;
  process.erase("PET_NNODES");  // what describes a node is right here
  process.erase("PET_NPROC_PER_NODE");
  const ProcessIdentity who = process_identity(process);
  NodeFacts node = detail::node_of(who);
  if (who.launcher != SingleSource::name) {
    node.warnings = who.warnings;
  } else if (!wanted) {
    detail::check_lonely_count(variables);
    node.warnings = detail::allocation_warnings(variables);
  }
  return node;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/identity/node_identity.hpp

/// @file
/// Which node a per-node launcher runs on, among how many: a pure function of flags and environment.

namespace DTRAIN_NAMESPACE::identity {

namespace detail {

/// Rank and count, flags first. Whole flags make the environment's place of no interest.
inline NodeFacts place_of_node(const Environment& joined, const Variables& variables) {
  const std::optional<int> rank = variables.integer("--node-rank");
  const std::optional<int> count = read_node_count(variables, "--nnodes");
  NodeFacts node;
  node.launcher = "node";
  if (!(rank && count) && count != 1) {
    Environment with_master = joined;  // a master that is given is never guessed, nor missed
    for (const char* given : {"PET_MASTER_ADDR", "--master-addr"}) {
      if (const std::optional<std::string> address = variables.text(given)) {
        with_master["MASTER_ADDR"] = *address;
      }
    }
    node = node_facts(with_master, Variables(with_master));
  }
  node.node_rank = rank.value_or(node.node_rank);
  node.node_count = count.value_or(node.node_count);
  return node;
}

/// The address where launchers meet: given, else this node, else what the source found.
inline void find_node_master(const Variables& variables, const NodeFacts& facts, NodeIdentity& node) {
  const bool one_node = node.node_count == 1;
  std::optional<std::string> address;
  for (const char* variable : {"--master-addr", "PET_MASTER_ADDR", "MASTER_ADDR"}) {
    address = address ? address : variables.text(variable);
  }
  if (!address && !one_node && !facts.master_addr) {
    throw IdentityError(IdentityErrc::no_master_addr,
                        "MASTER_ADDR is not set for " + std::to_string(node.node_count) +
                            " nodes; give every launcher --master-addr=HOST, the host of node 0");
  }
  node.master_addr = address ? *address : one_node ? loopback_address : *facts.master_addr;
  if (!address && !one_node && facts.master_is_guess) {
    node.provisional.emplace_back("master_addr");
  }
  for (const char* variable : {"--master-port", "PET_MASTER_PORT"}) {
    node.master_port = node.master_port ? node.master_port : variables.port(variable);
  }
  const std::optional<int> port = variables.port("MASTER_PORT");
  if (!node.master_port && (port || !one_node)) {
    node.master_port = facts.master_port ? facts.master_port : port.value_or(default_master_port);
  }
}

/// An integer or "auto". @throws IdentityError (bad-integer)
inline std::optional<std::string> read_nproc_per_node(const Variables& variables) {
  std::optional<std::string> found;
  for (const char* variable : {"--nproc-per-node", "PET_NPROC_PER_NODE"}) {
    const std::optional<std::string> value = found ? std::nullopt : variables.text(variable);
    if (value && *value != "auto") {
      variables.count(variable);
    }
    found = found ? found : value;
  }
  return found;
}

}  // namespace detail

/// Which node the launcher with these flags and this environment is. Pure.
/// @throws IdentityError where they contradict themselves or say only half.
inline NodeIdentity node_identity(const Environment& environment, const NodeFlags& flags = {}) {
  const Environment joined = with_flags(environment, flags);
  const Variables variables(joined);
  const NodeFacts facts = detail::place_of_node(joined, variables);
  NodeIdentity node;
  node.node_rank = facts.node_rank;
  node.node_count = facts.node_count;
  node.launcher = facts.launcher;
  node.warnings = facts.warnings;
  if (node.node_rank >= node.node_count) {
    throw IdentityError(
        IdentityErrc::rank_out_of_range,
        "node rank " + std::to_string(node.node_rank) + " is not below node count " + std::to_string(node.node_count) +
            " (" +
            variables.stated({"--node-rank", "--nnodes", "DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT", "PET_NODE_RANK",
                              "PET_NNODES", "NODE_RANK", "AZUREML_NODE_COUNT", "NNODES"}) +
            "); set both (--node-rank, --nnodes), counting from 0");
  }
  detail::find_node_master(variables, facts, node);
  node.nproc_per_node = detail::read_nproc_per_node(variables);
  return node;
}

}  // namespace DTRAIN_NAMESPACE::identity

// ---- dtrain/rendezvous/agreed_terms.hpp

/// @file
/// What must be the same on all ranks, as a text that can be compared and explained: pure.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lines "name=value", in an order that all ranks share. Bounded by max_agreed_bytes.
class AgreedTerms {
 public:
  AgreedTerms& add(std::string_view name, std::string_view value) {
    text_.append(name).append("=").append(value).append("\n");
    return *this;
  }
  const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

namespace detail {

/// Takes the first line off, as a sentence may have it; "nothing" where there is none.
inline std::string take_line(std::string_view& text) {
  if (text.empty()) {
    return "nothing";
  }
  const std::size_t end = text.find('\n');
  const std::string line = printable(text.substr(0, end));
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace detail

/// The first lines that differ; nothing where all are equal.
inline std::optional<std::pair<std::string, std::string>> first_difference(std::string_view a, std::string_view b) {
  while (!a.empty() || !b.empty()) {
    std::string first = detail::take_line(a);
    std::string second = detail::take_line(b);
    if (first != second) {
      return std::make_pair(std::move(first), std::move(second));
    }
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/control.hpp

/// @file
/// The way from any thread to a rank's control loop, which ends safely before the loop does.

namespace DTRAIN_NAMESPACE::rendezvous {

/// The deadline of a blocking call around a task that keeps the given one itself, and then says what it waited for.
inline Deadline a_moment_after(Deadline deadline) {
  constexpr std::chrono::seconds moment(3);
  const bool has_room = deadline.instant() < Deadline::Clock::time_point::max() - moment;
  return has_room ? Deadline::at(deadline.instant() + moment) : deadline;
}

/// Shared by those who may outlive the loop's owner: after close(), they are told so instead of reaching a loop that is
/// gone. Threads: all members from any thread; close from none that is inside run_blocking.
class Control {
 public:
  explicit Control(async::LoopThread& thread) noexcept : thread_(&thread) {}

  /// LoopThread::run_blocking. @throws also Error (closed) after close()
  template <class Make>
  auto run_blocking(Make&& make, Deadline deadline, std::string_view doing) {
    const Visit visit(*this);
    if (visit.thread == nullptr) {
      throw Error(Errc::closed, std::string(doing) + ": this rank's process group has been destroyed");
    }
    return visit.thread->run_blocking(std::forward<Make>(make), deadline, doing);
  }

  /// EventLoop::post; false after close().
  template <class F>
  bool post(F function) {
    const Visit visit(*this);
    return visit.thread != nullptr && visit.thread->loop().post(std::move(function));
  }

  /// Whether the caller is on the loop's thread, where nothing may block; false after close().
  bool on_loop_thread() {
    const Visit visit(*this);
    return visit.thread != nullptr && visit.thread->is_current();
  }

  /// Refuses new calls and waits for those that run. Blocking: until they have returned; who closes has ended what they
  /// wait for.
  void close() {
    std::unique_lock lock(mutex_);
    thread_ = nullptr;
    changed_.wait(lock, [this] { return visitors_ == 0; });
  }

 private:
  struct Visit {
    explicit Visit(Control& home) : control(home) {
      const std::lock_guard lock(control.mutex_);
      thread = control.thread_;
      ++control.visitors_;
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    ~Visit() {
      const std::lock_guard lock(control.mutex_);
      if (--control.visitors_ == 0) {
        control.changed_.notify_all();
      }
    }
    Control& control;
    async::LoopThread* thread = nullptr;
  };

  std::mutex mutex_;
  std::condition_variable changed_;
  async::LoopThread* thread_;  ///< guarded by mutex_; null once closed
  int visitors_ = 0;           ///< guarded by mutex_
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/background_task.hpp

/// @file
/// rendezvous::BackgroundTask: the owner of a user's coroutine on a rank's control loop.

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// What the owner of a background task and the loop share.
template <class T>
class BackgroundState {
 public:
  explicit BackgroundState(async::EventLoop& loop) noexcept : stop(loop) {}

  void set_gone() noexcept {
    const std::lock_guard lock(mutex_);
    gone_ = true;
    changed_.notify_all();
  }
  bool gone() const {
    const std::lock_guard lock(mutex_);
    return gone_;
  }
  /// Blocking: until the coroutine's frame is destroyed or the deadline passes. @returns whether it is
  bool wait_until_gone(Deadline deadline) const {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return gone_; });
  }
  /// Blocking: for as long as a coroutine keeps the loop's thread busy.
  void wait_until_gone() const {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return gone_; });
  }

  async::Outcome<T> outcome;  ///< the loop's thread until it is gone, then the owner's
  async::Event stop;          ///< set when it is over, or to be ended: the loop's thread
  async::Spawned task;        ///< the loop's thread only
  bool cancelled = false;     ///< before it began: the loop's thread only

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool gone_ = false;  ///< guarded by mutex_
};

}  // namespace detail

/// Owns a coroutine that ProcessGroup::spawn has started: destroying it cancels the coroutine, which is then gone, with
/// all its locals. Lifetime: may outlive the group, whose end has ended the coroutine.
/// Blocking: its destructor, while another coroutine keeps the control loop busy. Threads: one at a time, the control
/// loop's included (there nothing waits: a coroutine that destroys its own owner ends at its next suspension).
template <class T>
class [[nodiscard]] BackgroundTask {
 public:
  BackgroundTask() noexcept = default;
  BackgroundTask(std::shared_ptr<detail::BackgroundState<T>> state, std::shared_ptr<Control> control) noexcept
      : state_(std::move(state)), control_(std::move(control)) {}
  BackgroundTask(BackgroundTask&& other) noexcept = default;
  BackgroundTask& operator=(BackgroundTask&& other) noexcept {
    if (this != &other) {
      cancel();
      state_ = std::move(other.state_);
      control_ = std::move(other.control_);
    }
    return *this;
  }
  ~BackgroundTask() { cancel(); }

  /// Whether the coroutine has ended, by itself or not; also true where nothing is owned.
  bool done() const { return state_ == nullptr || state_->gone(); }

  /// What the destructor does.
  void cancel() noexcept {
    const std::shared_ptr<detail::BackgroundState<T>> state = std::exchange(state_, nullptr);
    const std::shared_ptr<Control> control = std::exchange(control_, nullptr);
    if (!state || state->gone()) {
      return;
    }
    const auto end = [state] {
      state->cancelled = true;
      state->task.cancel();
    };
    if (control->on_loop_thread()) {
      return end();
    }
    control->post(end);  // where the loop takes no more, it has ended the coroutine or is about to
    state->wait_until_gone();
  }

  /// The coroutine's value, once. Blocking: until it has ended, at most until the deadline; it goes on then.
  /// @throws what the coroutine threw; the job's first cause if it has failed meanwhile; Error (timeout); Error
  /// (closed) if the rank has left the job; Error (invalid_argument) on the control loop's own thread, and where
  /// nothing is owned
  T wait_blocking(Deadline deadline) {
    if (!state_ || control_->on_loop_thread()) {
      throw Error(Errc::invalid_argument, std::string(waiting) + (state_ ? ": called on the control thread, which "
                                                                           "runs it; co_await the coroutine instead"
                                                                         : ": there is none"));
    }
    if (!state_->wait_until_gone(deadline)) {
      throw Error(Errc::timeout, std::string(waiting) + ": the deadline passed");
    }
    if (!state_->outcome.done()) {
      throw Error(Errc::closed, std::string(waiting) + ": it was ended, since this rank has left the job");
    }
    return state_->outcome.take();
  }

 private:
  static constexpr const char* waiting = "waiting for a coroutine on the control loop";

  std::shared_ptr<detail::BackgroundState<T>> state_;
  std::shared_ptr<Control> control_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/control_tasks.hpp

/// @file
/// rendezvous::ControlTasks: users' coroutines on a rank's control loop.

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

template <class T>
inline constexpr bool is_task = false;
template <class T>
inline constexpr bool is_task<async::Task<T>> = true;

/// make(loop), or make() where it does not want the loop.
template <class Make>
auto call_with_loop(Make& make, async::EventLoop& loop) {
  if constexpr (std::is_invocable_v<Make&, async::EventLoop&>) {
    return make(loop);
  } else {
    return make();
  }
}

template <class Make>
struct TaskOf {
  using type = decltype(call_with_loop(std::declval<Make&>(), std::declval<async::EventLoop&>()));
  static_assert(is_task<type>,
                "dtrain: run_blocking and spawn take a coroutine that returns dtrain::Task<T>; write "
                "'[&]() -> dtrain::Task<int> { ... }'");
};

/// What makes a coroutine. Not the user's type itself: nvcc's compiler warns of frames that hold types without linkage.
template <class T>
class Maker {
 public:
  Maker() = default;
  Maker(const Maker&) = delete;
  Maker& operator=(const Maker&) = delete;
  virtual ~Maker() = default;
  virtual async::Task<T> make(async::EventLoop& loop) = 0;
};

template <class T, class Make>
class HeldMaker final : public Maker<T> {
 public:
  explicit HeldMaker(Make make) : make_(std::move(make)) {}
  async::Task<T> make(async::EventLoop& loop) override { return call_with_loop(make_, loop); }

 private:
  Make make_;
};

/// What a coroutine made by Make comes to.
template <class Make>
using ValueOf = typename TaskOf<std::remove_reference_t<Make>>::type::value_type;

}  // namespace detail

/// Each coroutine ends by itself, by its owner, with the job's first cause, or when the rank leaves.
/// Lifetime: the thread outlives it. Threads: all members from any thread, but the destructor and close_blocking not
/// from the loop's.
class ControlTasks {
 public:
  ControlTasks(async::LoopThread& thread, std::shared_ptr<FailureLatch> failure, int rank)
      : thread_(thread),
        loop_(thread.loop()),
        control_(std::make_shared<Control>(thread)),
        failure_(std::move(failure)),
        rank_(rank),
        running_(std::make_shared<Running>(thread.loop())) {
    subscription_ = failure_->subscribe(
        [control = control_, running = running_](const Cause&) { control->post([running] { running->stop_all(); }); });
  }
  ControlTasks(const ControlTasks&) = delete;
  ControlTasks& operator=(const ControlTasks&) = delete;
  ~ControlTasks() { close_blocking(); }

  bool on_loop_thread() const noexcept { return thread_.is_current(); }

  /// Starts `make(loop)` or `make()` on the loop; `make` lives as long as the coroutine.
  /// @throws the job's first cause; Error (closed) after close_blocking
  template <class Make>
  auto start(Make make) const {
    using T = detail::ValueOf<Make>;
    failure_->throw_if_failed(rank_);
    auto state = std::make_shared<detail::BackgroundState<T>>(loop_);
    std::unique_ptr<detail::Maker<T>> maker = std::make_unique<detail::HeldMaker<T, Make>>(std::move(make));
    async::Task<T> task = drive<T>(loop_, failure_, rank_, state, std::move(maker));
    if (!control_->post(Start<T>(loop_, running_, state, std::move(task)))) {
      throw Error(Errc::closed, "starting a coroutine on the control loop: this rank has left the job");
    }
    return BackgroundTask<T>(std::move(state), control_);
  }

  /// Starts `make`, which outlives the call, and gives its value.
  /// Blocking: until it has ended; at the deadline it is cancelled, and is gone when this returns.
  /// @throws what BackgroundTask::wait_blocking throws
  template <class Make>
  auto run_blocking(Make& make, Deadline deadline) const {
    if (on_loop_thread()) {
      throw Error(Errc::invalid_argument,
                  "running a coroutine on the control loop: called on the control thread, "
                  "where it would wait for itself; co_await the coroutine instead");
    }
    auto task = start([&make](async::EventLoop& loop) { return detail::call_with_loop(make, loop); });
    return task.wait_blocking(deadline);
  }

  /// Ends all coroutines and starts no more. Blocking: until they are gone, for as long as they keep the loop busy.
  void close_blocking() noexcept {
    subscription_.reset();
    try {
      const auto drain = [this](async::EventLoop&) { return end_all(running_); };
      control_->run_blocking(drain, Deadline::after(std::chrono::seconds(60)), "ending the coroutines of this rank");
    } catch (...) {
      // Closed already, or the loop has ended, and with it every coroutine.
    }
    control_->close();
  }

 private:
  /// The coroutines that have not ended. Threads: the loop's.
  struct Running {
    explicit Running(async::EventLoop& loop) noexcept : empty(loop) {}
    void stop_all() noexcept {
      for (async::Event* stop : stops) {
        stop->set();
      }
    }
    std::set<async::Event*> stops;
    async::Event empty;  ///< set when there are none and will be none
    bool closed = false;
  };

  /// Posted to the loop. Run or not, its state is told when the coroutine is gone.
  template <class T>
  class Start {
   public:
    using State = std::shared_ptr<detail::BackgroundState<T>>;

    Start(async::EventLoop& loop, std::shared_ptr<Running> running, State state, async::Task<T> task)
        : loop_(loop), running_(std::move(running)), state_(std::move(state)), task_(std::move(task)) {}
    Start(Start&& other) noexcept = default;
    Start& operator=(Start&&) = delete;
    ~Start() {
      if (state_) {
        task_.destroy();
        state_->set_gone();
      }
    }

    void operator()() {
      if (state_->cancelled || running_->closed) {
        return;
      }
      running_->stops.insert(&state_->stop);
      state_->task = loop_.spawn(async::store_outcome(std::move(task_), state_->outcome), {},
                                 [running = running_, state = state_] { ended(*running, *state); });
      state_.reset();
    }

   private:
    async::EventLoop& loop_;
    std::shared_ptr<Running> running_;
    State state_;
    async::Task<T> task_;
  };

  /// The frame of the coroutine is destroyed.
  template <class T>
  static void ended(Running& running, detail::BackgroundState<T>& state) noexcept {
    state.task.detach();
    running.stops.erase(&state.stop);
    if (running.closed && running.stops.empty()) {
      running.empty.set();
    }
    state.set_gone();
  }

  /// Runs what `maker` makes until it has ended or `stop` is set: by the job's failure, or since the rank leaves.
  template <class T>
  static async::Task<T> drive(async::EventLoop& loop, std::shared_ptr<FailureLatch> failure, int rank,
                              std::shared_ptr<detail::BackgroundState<T>> state,
                              std::unique_ptr<detail::Maker<T>> maker) {
    failure->throw_if_failed(rank);
    async::Outcome<T> outcome;
    {
      async::Task<T> task = maker->make(loop);
      const async::Task<void> child = async::detail::store_and_set(std::move(task), outcome, state->stop);
      child.handle().resume();
      while (!state->stop.is_set()) {
        co_await state->stop.wait(Deadline::after(std::chrono::hours(24)));
      }
    }  // destroys the child where it still waits
    if (!outcome.done()) {
      failure->throw_if_failed(rank);
      throw Error(Errc::closed, "a coroutine on the control loop was ended, since this rank has left the job");
    }
    if constexpr (std::is_void_v<T>) {
      outcome.take();
    } else {
      T value = outcome.take();
      co_return std::move(value);
    }
  }

  static async::Task<void> end_all(std::shared_ptr<Running> running) {
    running->closed = true;
    running->stop_all();
    if (!running->stops.empty()) {
      co_await running->empty.wait(Deadline::after(std::chrono::seconds(60)));
    }
  }

  async::LoopThread& thread_;
  async::EventLoop& loop_;
  std::shared_ptr<Control> control_;
  std::shared_ptr<FailureLatch> failure_;
  int rank_;
  std::shared_ptr<Running> running_;
  FailureLatch::Subscription subscription_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/delete_off_loop.hpp

/// @file
/// A deleter for what owns a control thread, and may lose its last owner on that very thread.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Deletes in the thread that asks for it, except on the control thread: a coroutine there may hold the last handle,
/// and the owner waits for that thread to end. Then a thread of its own does it. @pre the owner has a ControlTasks
/// `tasks`
struct DeleteOffLoop {
  template <class Owner>
  void operator()(Owner* owner) const noexcept {
    if (owner->tasks.on_loop_thread()) {
      try {
        std::thread([owner] { delete owner; }).detach();
      } catch (...) {
        // No thread can be had: the owner stays, and the other ranks see the end of this process.
      }
    } else {
      delete owner;
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/limits.hpp

/// @file
/// The bounds of everything that the store keeps or accepts.

namespace DTRAIN_NAMESPACE::rendezvous {

/// @name Bounds of the protocol: both sides refuse what exceeds them.
/// @{
inline constexpr std::size_t max_key_bytes = 1024;
inline constexpr std::size_t max_value_bytes = std::size_t{1} << 20;
inline constexpr std::size_t max_keys_of_a_wait = 1024;
inline constexpr std::size_t max_sentence_bytes = 8192;  ///< texts of causes and refusals; longer ones are cut
inline constexpr std::size_t max_name_bytes = 256;       ///< host names, host identities, versions
inline constexpr std::size_t max_agreed_bytes = 1024;    ///< what the ranks compare when they join (agreed_terms.hpp)
inline constexpr int max_world_size = 1 << 20;
/// The largest frame that either side reads: a value with its key, or the keys of one wait.
inline constexpr std::size_t max_frame_bytes = max_value_bytes + (std::size_t{64} << 10);
/// The largest frame that is read from a connection that has not shown that it may join.
inline constexpr std::size_t max_door_bytes = std::size_t{4} << 10;
/// @}

/// What one server spends at most.
struct Limits {
  std::size_t keys = std::size_t{1} << 20;
  std::size_t store_bytes = std::size_t{256} << 20;    ///< of all keys and values
  std::size_t pending_requests = 1024;                 ///< of one session, not yet answered
  std::size_t waited_keys = 4096;                      ///< of one session, in all its waits
  std::size_t outgoing_bytes = std::size_t{64} << 20;  ///< of one session that does not read its answers
  std::size_t unjoined_connections = 1024;             ///< beyond it the oldest one is closed (unjoined_bound.hpp)
  std::chrono::milliseconds handshake{5000};           ///< from accepting a connection to its whole Join
  std::chrono::milliseconds send{60000};               ///< for one frame that a session does not take
  std::chrono::milliseconds liveness{5000};            ///< how long a session that says nothing counts as alive
  std::chrono::milliseconds grace{500};                ///< how long a session without a connection may come back
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/host_identity.hpp

/// @file
/// Which host a process runs on, told by what two containers on one machine do not share.

namespace DTRAIN_NAMESPACE::rendezvous {

struct HostIdentity {
  std::string id;    ///< equal on two ranks exactly where they share a host
  std::string name;  ///< for messages only: names repeat, and differ between views of one machine
};

/// The identity that follows from its two parts: what makes it testable without several machines.
inline std::string host_id_of(std::string_view boot_id, std::string_view network_namespace) {
  const std::size_t end = boot_id.find_last_not_of(" \t\r\n");
  std::string id(boot_id.substr(0, end == std::string_view::npos ? 0 : end + 1));
  id.append("/net:").append(network_namespace);
  return id;
}

namespace detail {

/// The first bytes of a small file of the kernel's; empty where it cannot be read.
inline std::string read_small_file(const char* path) {
  int fd = -1;
  do {
    fd = ::open(path, O_RDONLY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  if (fd < 0) {
    return {};
  }
  char text[128];
  ssize_t count = -1;
  do {
    count = ::read(fd, text, sizeof text);
  } while (count < 0 && errno == EINTR);
  static_cast<void>(::close(fd));  // read only: nothing can be lost
  return std::string(text, count > 0 ? static_cast<std::size_t>(count) : 0);
}

}  // namespace detail

/// The boot id, which all containers and namespaces of a machine share, with the inode of the network namespace, which
/// two containers do not. Where the system tells neither, the host's name stands in.
/// @param override_id DTRAIN_HOST_ID, where it is set: taken as it is; the caller reads the environment
/// @throws Error (posix) if the system does not tell its name; Error (invalid_argument) for an override that is too
/// long
inline HostIdentity host_identity(const std::optional<std::string>& override_id = std::nullopt) {
  struct ::utsname system {};
  if (::uname(&system) != 0) {
    throw errno_error("asking for the name of this host");
  }
  HostIdentity host;
  host.name = static_cast<const char*>(system.nodename);
  host.name.resize(std::min(host.name.size(), max_name_bytes));
  if (override_id && !override_id->empty()) {
    if (override_id->size() > max_name_bytes) {
      throw Error(Errc::invalid_argument, "DTRAIN_HOST_ID has " + std::to_string(override_id->size()) +
                                              " characters; at most " + std::to_string(max_name_bytes) +
                                              " are allowed");
    }
    host.id = *override_id;
    return host;
  }
  const std::string boot_id = detail::read_small_file("/proc/sys/kernel/random/boot_id");
  struct ::stat space {};
  const bool has_namespace = ::stat("/proc/self/ns/net", &space) == 0;
  host.id = host_id_of(boot_id.empty() ? "name:" + host.name : boot_id,
                       has_namespace ? std::to_string(space.st_ino) : "name:" + host.name);
  return host;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/link.hpp

/// @file
/// A connection between a rank and its store with its frames, at a place that does not move.

namespace DTRAIN_NAMESPACE::rendezvous {

struct Link {
  /// @param bound of the frames that are read at first
  explicit Link(net::Connection connected, std::size_t bound = max_frame_bytes)
      : connection(std::move(connected)), reader(connection, bound), writer(connection, max_frame_bytes) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Lets the system notice a host or a path that is gone: probes while nothing is sent, a bound while something is.
  void watch(std::chrono::milliseconds liveness) {
    connection.set_keepalive(std::chrono::seconds(10), std::chrono::seconds(5), 3);
    connection.set_user_timeout(liveness);
  }

  net::Connection connection;
  net::FrameReader reader;
  net::FrameWriter writer;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/membership.hpp

/// @file
/// Who a rank is among the others, once all have joined.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Complete: what the launcher left open was learnt when all ranks joined. A node is a host as its ranks' host
/// identities tell it (boot id and network namespace), not a host name.
struct Membership {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  int local_world_size = 1;
  int node_rank = 0;
  int node_count = 1;
  std::string host;  ///< this rank's host name, for messages
  std::string job;   ///< hexadecimal, drawn by the store for this job and generation; the same on every rank
  /// The first rank that is on another host than this one, and that host's name; -1 where all share this host.
  int other_host_rank = -1;
  std::string other_host;
  /// In a group that was split off: this rank's number in the job. `rank` and `world_size` are the group's then, all
  /// else is the job's.
  std::optional<int> job_rank{};

  /// What causes name, and what the job's failure is compared with.
  int rank_in_job() const noexcept { return job_rank.value_or(rank); }
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/node_groups.hpp

/// @file
/// From what all ranks said of themselves to who each is among the others: a pure function.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a rank knows of itself when it joins. What its launcher stated as certain is checked; what is open or a guess
/// of the launcher is left empty and learnt.
struct RankFacts {
  int rank = 0;
  std::string host_id;
  std::string host;  ///< its name, for messages
  std::optional<int> local_rank;
  std::optional<int> local_world_size;
  std::optional<int> node_rank;
  std::optional<int> node_count;
  std::string agreed;  ///< what must be the same on all ranks: lines "name=value" (agreed_terms.hpp)
};

namespace detail {

/// The sentence about one stated value that is wrong; nothing where it is right or was not stated.
inline std::optional<std::string> stated_wrong(const RankFacts& facts, std::string_view name, std::optional<int> stated,
                                               int computed, std::string_view why) {
  if (!stated || *stated == computed) {
    return std::nullopt;
  }
  std::string text = "rank " + std::to_string(facts.rank) + " on host " + facts.host + " was told ";
  text.append(name).append(" ").append(std::to_string(*stated)).append(" by its launcher, but it is ");
  text.append(std::to_string(computed)).append(": ").append(why);
  return text + "; correct the variable or flag that states it, or leave it out";
}

}  // namespace detail

/// Nodes are numbered in the order of their first ranks, and the ranks of a node in the order of their ranks.
/// @param ranks one entry for each rank, in order
/// @param job the name of the job that every rank gets
/// @returns a Membership for each rank, or the first disagreement between what a rank stated and what is so
inline std::variant<std::vector<Membership>, Cause> form_membership(const std::vector<RankFacts>& ranks,
                                                                    const std::string& job) {
  std::unordered_map<std::string_view, std::size_t> node_of_host;
  std::vector<std::vector<int>> nodes;
  std::vector<Membership> members(ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t node = node_of_host.emplace(ranks[i].host_id, nodes.size()).first->second;
    if (node == nodes.size()) {
      nodes.emplace_back();
    }
    members[i].local_rank = static_cast<int>(nodes[node].size());
    members[i].node_rank = static_cast<int>(node);
    nodes[node].push_back(ranks[i].rank);
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const RankFacts& facts = ranks[i];
    Membership& member = members[i];
    const std::vector<int>& own_node = nodes[static_cast<std::size_t>(member.node_rank)];
    member.rank = facts.rank;
    member.world_size = static_cast<int>(ranks.size());
    member.local_world_size = static_cast<int>(own_node.size());
    member.node_count = static_cast<int>(nodes.size());
    member.host = facts.host;
    member.job = job;
    if (nodes.size() > 1) {
      member.other_host_rank = nodes[member.node_rank == 0 ? 1 : 0].front();
      member.other_host = ranks[static_cast<std::size_t>(member.other_host_rank)].host;
    }
    const std::string shared = own_node.size() == 1 ? "no other rank shares its host"
                                                    : std::to_string(own_node.size()) + " ranks share its host";
    const std::string hosts = "the ranks run on " + std::to_string(nodes.size()) +
                              (nodes.size() == 1 ? " host" : " hosts") + ", numbered in the order of their first ranks";
    std::optional<std::string> wrong =
        detail::stated_wrong(facts, "local_world_size", facts.local_world_size, member.local_world_size, shared);
    if (!wrong) {
      wrong = detail::stated_wrong(facts, "local_rank", facts.local_rank, member.local_rank,
                                   shared + ", and their local ranks follow their ranks");
    }
    if (!wrong) {
      wrong = detail::stated_wrong(facts, "node_count", facts.node_count, member.node_count, hosts);
    }
    if (!wrong) {
      wrong = detail::stated_wrong(facts, "node_rank", facts.node_rank, member.node_rank, hosts);
    }
    if (wrong) {
      return Cause{CauseKind::disagreement, facts.rank, facts.host, *std::move(wrong)};
    }
  }
  return members;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/outbox.hpp

/// @file
/// The frames of one direction of a session, kept until the other side has them: a pure queue.

namespace DTRAIN_NAMESPACE::rendezvous {

using Frame = std::vector<std::byte>;

/// Frames are numbered from 0 in the order of push. First they wait; once taken they are kept for a peer that lost its
/// connection, as far as the bound goes: who misses more cannot go on.
class Outbox {
 public:
  /// @param most bytes that may wait @param kept bytes that are kept after they were taken
  Outbox(std::size_t most, std::size_t kept) noexcept : most_(most), kept_(kept) {}

  /// False, with nothing appended, where more than the bound would wait: the peer does not read.
  [[nodiscard]] bool push(Frame frame) {
    if (waiting_bytes_ + frame.size() > most_) {
      return false;
    }
    waiting_bytes_ += frame.size();
    frames_.push_back(std::move(frame));
    return true;
  }

  bool has_waiting() const noexcept { return taken_ < frames_.size(); }
  std::size_t waiting_bytes() const noexcept { return waiting_bytes_; }

  /// The next waiting frame, which counts as sent from now on. It stays valid until the next call. @pre has_waiting()
  const Frame& take() {
    drop_beyond_kept();
    const Frame& frame = frames_[taken_++];
    waiting_bytes_ -= frame.size();
    taken_bytes_ += frame.size();
    return frame;
  }

  /// The peer has the first `count` frames. False for a count that cannot be: it was never sent so many.
  bool acknowledge(std::uint64_t count) noexcept {
    if (count > first_ + taken_) {
      return false;
    }
    while (first_ < count) {
      drop_first();
    }
    return true;
  }

  /// Everything that the peer does not have waits again. False, with nothing changed, where it misses what is no longer
  /// kept, or claims what was never sent.
  bool rewind(std::uint64_t count) noexcept {
    if (count < first_ || !acknowledge(count)) {
      return false;
    }
    waiting_bytes_ += std::exchange(taken_bytes_, 0);
    taken_ = 0;
    return true;
  }

 private:
  void drop_first() noexcept {
    taken_bytes_ -= frames_.front().size();
    frames_.pop_front();
    --taken_;
    ++first_;
  }

  void drop_beyond_kept() noexcept {
    while (taken_bytes_ > kept_) {
      drop_first();
    }
  }

  std::size_t most_;
  std::size_t kept_;
  std::deque<Frame> frames_;  ///< those that were taken, then those that wait
  std::size_t taken_ = 0;
  std::uint64_t first_ = 0;  ///< the number of frames_.front()
  std::size_t taken_bytes_ = 0;
  std::size_t waiting_bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/party_barrier.hpp

/// @file
/// A barrier for some of a job's ranks, made of a store's other operations.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Counts who comes; the last of a round opens its gate, and takes away that of the round before, which all have
/// passed. At most four messages there and back for the last, two for any other. A rank is in a barrier of one name
/// once at a time, and one that timed out counts as having come. @param store a handle whose prefix only the parties
/// use
template <class Store>
async::Task<void> party_barrier(Store store, std::string name, std::int64_t parties, Deadline deadline) {
  const std::string prefix = "barrier/" + name + "/";
  async::Task<std::int64_t> arriving = store.add(prefix + "arrived", 1, deadline);
  const std::int64_t arrived = co_await std::move(arriving);
  const std::int64_t round = (arrived - 1) / parties;
  const std::string gate = prefix + std::to_string(round);
  if (arrived % parties != 0) {
    async::Task<void> waiting = store.wait(std::vector<std::string>{gate}, deadline);
    co_await std::move(waiting);
    co_return;
  }
  async::Task<void> opening = store.set(gate, "", deadline);
  co_await std::move(opening);
  if (round > 0) {
    async::Task<bool> erasing = store.erase(prefix + std::to_string(round - 1), deadline);
    static_cast<void>(co_await std::move(erasing));
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/random.hpp

/// @file
/// Bytes that nobody can guess: nonces, tickets, secrets and the names of jobs.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Blocking: only early in the boot of a machine. @throws Error (posix)
template <std::size_t N>
std::array<std::byte, N> random_bytes() {
  std::array<std::byte, N> bytes{};
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::getrandom(bytes.data() + done, bytes.size() - done, 0);
    if (count < 0 && errno != EINTR) {
      throw errno_error("asking the system for random bytes");
    }
    done += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  return bytes;
}

/// 32 hexadecimal digits.
inline std::string random_job_id() {
  return hex(random_bytes<16>());
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/rank_list.hpp

/// @file
/// Ranks in a sentence: "rank 3", "ranks 0-2 and 7".

namespace DTRAIN_NAMESPACE::rendezvous {

/// @param ranks ascending
/// Runs are joined; after `max_runs` of them the rest is counted, so that a sentence about 10,000 ranks can be read.
inline std::string rank_list(const std::vector<int>& ranks, std::size_t max_runs = 16) {
  if (ranks.empty()) {
    return "no rank";
  }
  std::vector<std::pair<int, int>> runs;
  for (const int rank : ranks) {
    if (!runs.empty() && runs.back().second + 1 == rank) {
      runs.back().second = rank;
    } else {
      runs.emplace_back(rank, rank);
    }
  }
  std::vector<std::string> parts;
  std::size_t named = 0;
  for (std::size_t i = 0; i < runs.size() && i < max_runs; ++i) {
    const auto& [first, last] = runs[i];
    named += static_cast<std::size_t>(last - first) + 1;
    parts.push_back(first == last ? std::to_string(first) : std::to_string(first) + "-" + std::to_string(last));
  }
  if (named < ranks.size()) {
    parts.push_back(std::to_string(ranks.size() - named) + " more");
  }
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/request.hpp

/// @file
/// What a rank may ask of the store of its job, and what it is answered: a part of the protocol (message.hpp).

namespace DTRAIN_NAMESPACE::rendezvous {

/// Of all keys and values of one request, or of one answer: so each fits into a frame.
inline constexpr std::size_t max_batch_bytes = max_value_bytes + max_key_bytes;

enum class Operation : std::uint8_t {
  set = 1,      ///< keys[0], value
  get,          ///< keys[0]: waits until it exists
  try_get,      ///< keys[0]
  add,          ///< keys[0], number
  wait,         ///< keys: waits until all exist at once
  barrier,      ///< keys[0]: its name
  compare_set,  ///< keys[0], expected, value: sets it where the key has the expected value, or is missing as expected
  erase,        ///< keys[0]
  append,       ///< keys[0], value: to the end of what the key has; a missing key counts as empty
  set_many,     ///< keys, and as many values: all or nothing
  get_many,     ///< keys: waits until all exist at once
};

/// Whether an operation is about several keys.
inline constexpr bool takes_many(Operation operation) noexcept {
  return operation == Operation::wait || operation == Operation::set_many || operation == Operation::get_many;
}

struct Request {
  std::uint64_t id = 0;  ///< ascending on a connection
  Operation operation = Operation::set;
  std::vector<std::string> keys;
  std::string value;
  std::int64_t number = 0;
  std::optional<std::string> expected{};
  std::vector<std::string> values{};
};

struct Cancel {
  std::uint64_t id = 0;
};

enum class Status : std::uint8_t {
  ok = 1,
  missing,  ///< try_get, erase, compare_set: the key does not exist
  refused,  ///< text says why
  gave_up,  ///< cancelled; text says what was waited for in vain
  failed,   ///< the job has failed; Failure has the cause
};

struct Response {
  std::uint64_t id = 0;
  Status status = Status::ok;
  std::string text;                   ///< a value, or a sentence
  std::int64_t number = 0;            ///< add: the sum; append: the length; compare_set: 1 if it was set
  std::vector<std::string> values{};  ///< get_many: in the order of the keys
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/key_waits.hpp

/// @file
/// Who waits for which keys: a pure state machine.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Names a request that awaits its answer: the session, and the number that the session gave the request.
struct RequestKey {
  std::uint64_t session = 0;
  std::uint64_t request = 0;

  friend auto operator<=>(const RequestKey&, const RequestKey&) = default;
};

/// A wait ends when all its keys exist at once: one that vanishes meanwhile is waited for again. Which keys exist is
/// the caller's to say: `exists(key)`, and appeared() and vanished() at each change.
class KeyWaits {
 public:
  using Instant = Deadline::Clock::time_point;

  /// A wait that ended because all its keys exist.
  struct Released {
    RequestKey who;
    Operation operation = Operation::wait;
    std::vector<std::string> keys;
  };

  /// A wait that was taken back.
  struct GivenUp {
    std::vector<std::string> missing;  ///< each once, in the order of asking
    std::size_t keys = 0;              ///< how many different ones were waited for
    Instant since;
  };

  /// Registers a wait, unless all keys exist: then there is nothing to wait for, and it is false.
  /// @param keys at least one; the same one several times counts once
  template <class Exists>
  bool add(RequestKey who, Operation operation, std::vector<std::string> keys, Instant now, const Exists& exists) {
    bool all = true;
    for (const std::string& key : keys) {
      all = all && exists(key);
    }
    if (all) {
      return false;
    }
    Wait& wait = waits_[who];
    for (const std::string& key : keys) {
      if (waiters_[key].insert(who).second) {
        ++wait.different;
        wait.missing += exists(key) ? 0 : 1;
      }
    }
    keys_of_[who.session] += keys.size();
    wait.operation = operation;
    wait.keys = std::move(keys);
    wait.since = now;
    return true;
  }

  /// A key came to be: the waits that lacked only it end, in the order of sessions and requests.
  void appeared(const std::string& key, std::vector<Released>& released) {
    const auto place = waiters_.find(key);
    if (place == waiters_.end()) {
      return;
    }
    const std::set<RequestKey> waiters = place->second;  // ending a wait changes it
    for (const RequestKey who : waiters) {
      const auto found = waits_.find(who);
      if (--found->second.missing == 0) {
        released.push_back({who, found->second.operation, found->second.keys});
        end(found);
      }
    }
  }

  /// A key was erased.
  void vanished(const std::string& key) {
    const auto place = waiters_.find(key);
    if (place != waiters_.end()) {
      for (const RequestKey who : place->second) {
        ++waits_.at(who).missing;
      }
    }
  }

  /// Takes a wait back; nothing if there is no such (any more).
  template <class Exists>
  std::optional<GivenUp> cancel(RequestKey who, const Exists& exists) {
    const auto found = waits_.find(who);
    if (found == waits_.end()) {
      return std::nullopt;
    }
    GivenUp result{{}, found->second.different, found->second.since};
    std::set<std::string> seen;
    for (const std::string& key : found->second.keys) {
      if (!exists(key) && seen.insert(key).second) {
        result.missing.push_back(key);
      }
    }
    end(found);
    return result;
  }

  /// Takes back all waits of a session.
  void forget(std::uint64_t session) {
    for (auto it = waits_.lower_bound({session, 0}); it != waits_.end() && it->first.session == session;) {
      end(it++);
    }
  }

  /// How many keys the waits of a session have in all, those included that exist by now, and each as often as it was
  /// named: what they take in memory.
  std::size_t keys_of(std::uint64_t session) const {
    const auto found = keys_of_.find(session);
    return found == keys_of_.end() ? 0 : found->second;
  }

  /// The first key that the oldest wait of a session lacks; nothing if it waits for none.
  template <class Exists>
  std::optional<std::string> lacked_by(std::uint64_t session, const Exists& exists) const {
    const auto found = waits_.lower_bound({session, 0});
    if (found == waits_.end() || found->first.session != session) {
      return std::nullopt;
    }
    for (const std::string& key : found->second.keys) {
      if (!exists(key)) {
        return key;
      }
    }
    return std::nullopt;
  }

  std::size_t size() const noexcept { return waits_.size(); }

 private:
  struct Wait {
    Operation operation = Operation::wait;
    std::vector<std::string> keys;
    std::size_t different = 0;
    std::size_t missing = 0;  ///< how many of the different ones do not exist
    Instant since;
  };

  void end(std::map<RequestKey, Wait>::iterator wait) {
    const RequestKey who = wait->first;
    for (const std::string& key : wait->second.keys) {
      const auto place = waiters_.find(key);
      if (place != waiters_.end() && place->second.erase(who) > 0 && place->second.empty()) {
        waiters_.erase(place);
      }
    }
    const auto count = keys_of_.find(who.session);
    count->second -= wait->second.keys.size();
    if (count->second == 0) {
      keys_of_.erase(count);
    }
    waits_.erase(wait);
  }

  std::map<RequestKey, Wait> waits_;
  std::unordered_map<std::string, std::set<RequestKey>> waiters_;  ///< for each key, who waits for it among others
  std::unordered_map<std::uint64_t, std::size_t> keys_of_;         ///< for each session, the sum of `keys`
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/barriers.hpp

/// @file
/// Who has arrived at which barrier: a pure state machine.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every rank passes each barrier once in a round. A completed barrier is forgotten, so that the next arrival at its
/// name opens the next round, and names that are no longer used cost nothing.
class Barriers {
 public:
  using Instant = KeyWaits::Instant;

  enum class Arrival : std::uint8_t { waiting = 1, completed, already_there };

  /// A barrier that somebody gave up: who came, and who did not.
  struct Unfinished {
    std::string name;
    std::vector<int> arrived;  ///< with the one who gives up now
    std::vector<int> missing;
    std::vector<int> gave_up;  ///< those who had arrived and gave up before; the round goes on without them
    Instant since;             ///< when the first one arrived
  };

  explicit Barriers(int world_size) : world_size_(world_size) {}

  /// @param released gets every request of the round when the last rank arrives, this one included
  Arrival arrive(const std::string& name, int rank, RequestKey who, Instant now, std::vector<RequestKey>& released) {
    const auto [place, is_new] = rounds_.try_emplace(name);
    Round& round = place->second;
    if (is_new) {
      round.since = now;
    }
    if (!round.arrived.emplace(rank, who).second) {
      return Arrival::already_there;
    }
    round.gave_up.erase(rank);
    if (round.arrived.size() < static_cast<std::size_t>(world_size_)) {
      places_.emplace(who, Place{name, rank});
      return Arrival::waiting;
    }
    for (const auto& [arrived_rank, request] : round.arrived) {
      released.push_back(request);
      places_.erase(request);
    }
    rounds_.erase(place);
    return Arrival::completed;
  }

  /// Takes an arrival back; nothing if there is no such (any more).
  std::optional<Unfinished> cancel(RequestKey who) {
    const auto found = places_.find(who);
    if (found == places_.end()) {
      return std::nullopt;
    }
    const Round& round = rounds_.at(found->second.name);
    Unfinished result{found->second.name, {}, {}, {round.gave_up.begin(), round.gave_up.end()}, round.since};
    for (int rank = 0; rank < world_size_; ++rank) {
      if (round.arrived.contains(rank)) {
        result.arrived.push_back(rank);
      } else if (!round.gave_up.contains(rank)) {
        result.missing.push_back(rank);
      }
    }
    take_back(found);
    return result;
  }

  /// The barrier that a session waits in; nothing if in none.
  std::optional<std::string> waited_by(std::uint64_t session) const {
    const auto found = places_.lower_bound({session, 0});
    if (found == places_.end() || found->first.session != session) {
      return std::nullopt;
    }
    return found->second.name;
  }

  /// Takes back all arrivals of a session.
  void forget(std::uint64_t session) {
    for (auto it = places_.lower_bound({session, 0}); it != places_.end() && it->first.session == session;) {
      take_back(it++);
    }
  }

  /// Takes back every arrival at every barrier. @returns the requests, with the names of their barriers
  std::vector<std::pair<RequestKey, std::string>> clear() {
    std::vector<std::pair<RequestKey, std::string>> all;
    for (auto& [who, place] : places_) {
      all.emplace_back(who, std::move(place.name));
    }
    places_.clear();
    rounds_.clear();
    return all;
  }

  std::size_t size() const noexcept { return rounds_.size(); }

 private:
  struct Round {
    Instant since;
    std::map<int, RequestKey> arrived;
    std::set<int> gave_up;
  };
  /// Where a request waits.
  struct Place {
    std::string name;
    int rank = 0;
  };

  /// A round that nobody waits in is forgotten.
  void take_back(std::map<RequestKey, Place>::iterator place) {
    const auto round = rounds_.find(place->second.name);
    round->second.arrived.erase(place->second.rank);
    round->second.gave_up.insert(place->second.rank);
    if (round->second.arrived.empty()) {
      rounds_.erase(round);
    }
    places_.erase(place);
  }

  int world_size_;
  std::map<std::string, Round> rounds_;
  std::map<RequestKey, Place> places_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/key_space.hpp

/// @file
/// The keys and values of a job: a pure state machine.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every change is whole or, with the sentence of a refusal, none. Those that add keys give whose waits they end.
class KeySpace {
 public:
  using Refusal = std::optional<std::string>;
  using Released = KeyWaits::Released;

  /// What add came to, or append's length in bytes.
  struct Count {
    std::int64_t value = 0;
    Refusal refusal;
  };

  explicit KeySpace(const Limits& limits) : limits_(limits) {}

  const std::string* find(const std::string& key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
  }

  /// Sets or replaces a value and releases those who waited for the key.
  Refusal set(const std::string& key, std::string value, std::vector<Released>& released) {
    const std::string* old = find(key);
    Refusal refusal =
        refuse(old == nullptr ? 1 : 0, old == nullptr ? 0 : key.size() + old->size(), key.size() + value.size());
    if (!refusal) {
      store(key, std::move(value), released);
    }
    return refusal;
  }

  /// As so many sets in this order; of a key that is there twice the last value counts. @pre as many values as keys
  Refusal set_many(const std::vector<std::string>& keys, std::vector<std::string> values,
                   std::vector<Released>& released) {
    std::map<std::string, std::size_t> last;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      last[keys[i]] = i;
    }
    std::size_t added = 0;
    std::size_t freed = 0;
    std::size_t taken = 0;
    for (const auto& [key, place] : last) {
      const std::string* old = find(key);
      added += old == nullptr ? 1 : 0;
      freed += old == nullptr ? 0 : key.size() + old->size();
      taken += key.size() + values[place].size();
    }
    Refusal refusal = refuse(added, freed, taken);
    if (!refusal) {
      for (const auto& [key, place] : last) {
        store(key, std::move(values[place]), released);
      }
    }
    return refusal;
  }

  /// Adds to the decimal integer that the key holds; a missing key counts as 0.
  Count add(const std::string& key, std::int64_t delta, std::vector<Released>& released) {
    std::int64_t present = 0;
    if (const std::string* text = find(key)) {
      const char* end = text->data() + text->size();
      const auto [stop, error] = std::from_chars(text->data(), end, present);
      if (error != std::errc() || stop != end) {
        return {0, "it holds no integer; add works on keys that add alone has written"};
      }
    }
    Count sum;
    if (__builtin_add_overflow(present, delta, &sum.value)) {
      return {0, "the sum does not fit into 64 bits"};
    }
    sum.refusal = set(key, std::to_string(sum.value), released);
    return sum;
  }

  /// Appends to the value; a missing key counts as empty.
  Count append(const std::string& key, const std::string& text, std::vector<Released>& released) {
    const std::string* old = find(key);
    if (old == nullptr) {
      return {static_cast<std::int64_t>(text.size()), set(key, text, released)};
    }
    const std::size_t length = old->size() + text.size();
    if (length > max_value_bytes) {
      return {0, "the value would have " + std::to_string(length) + " bytes; at most " +
                     std::to_string(max_value_bytes) + " are possible"};
    }
    Count count{static_cast<std::int64_t>(length), refuse(0, 0, text.size())};
    if (!count.refusal) {
      values_.at(key) += text;
      bytes_ += text.size();
    }
    return count;
  }

  /// Removes the key; who waits for it goes on waiting. @returns whether it existed
  bool erase(const std::string& key) {
    const auto found = values_.find(key);
    if (found == values_.end()) {
      return false;
    }
    bytes_ -= key.size() + found->second.size();
    values_.erase(found);
    waits_.vanished(key);
    return true;
  }

  /// Registers a wait for all of `keys`, unless they all exist: then it is over, and this false.
  bool wait(RequestKey who, Operation operation, std::vector<std::string> keys, KeyWaits::Instant now) {
    return waits_.add(who, operation, std::move(keys), now, Exists{values_});
  }

  /// Takes a wait back; nothing if there is no such (any more).
  std::optional<KeyWaits::GivenUp> cancel(RequestKey who) { return waits_.cancel(who, Exists{values_}); }

  /// Takes back all waits of a session.
  void forget(std::uint64_t session) { waits_.forget(session); }

  /// The first key that the oldest wait of a session lacks; nothing if it waits for none.
  std::optional<std::string> lacked_by(std::uint64_t session) const {
    return waits_.lacked_by(session, Exists{values_});
  }

  const KeyWaits& waits() const noexcept { return waits_; }
  std::size_t size() const noexcept { return values_.size(); }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  using Values = std::unordered_map<std::string, std::string>;

  /// For KeyWaits.
  struct Exists {
    bool operator()(const std::string& key) const { return values.contains(key); }
    const Values& values;
  };

  /// Why the store cannot take `added` more keys, and `taken` bytes in the place of `freed` ones.
  Refusal refuse(std::size_t added, std::size_t freed, std::size_t taken) const {
    if (values_.size() + added > limits_.keys && added > 0) {
      return "the store holds " + std::to_string(values_.size()) + " keys, its limit is " +
             std::to_string(limits_.keys) + "; erase keys or use them again";
    }
    if (bytes_ - freed + taken > limits_.store_bytes) {
      return "the store would exceed " + std::to_string(limits_.store_bytes) + " bytes, its limit; store less";
    }
    return std::nullopt;
  }

  void store(const std::string& key, std::string value, std::vector<Released>& released) {
    const auto [place, is_new] = values_.try_emplace(key);
    bytes_ += value.size() + (is_new ? key.size() : 0) - place->second.size();
    place->second = std::move(value);
    if (is_new) {
      waits_.appeared(key, released);
    }
  }

  Limits limits_;
  std::size_t bytes_ = 0;
  Values values_;
  KeyWaits waits_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/message.hpp

/// @file
/// The messages between a rank and the store of its job; this comment is the description of the protocol.
///
/// Both sides of a TCP connection send frames (net/frame.hpp: a length, then that many bytes); the first byte of a
/// frame is its MessageKind, the rest its fields in the order of the structs, integers little-endian, strings as a
/// 32-bit length and their bytes. Every length is bounded (limits.hpp), and a frame with bytes left over is malformed.
///
///   rank                                 store
///   Hello                        ->              who, of which attempt, with a secret or without; a nonce
///                                <-      Challenge   a nonce, and whether a secret is asked for
///   Join, with a proof           ->              within the handshake deadline
///                                <-      Accepted, with a proof, at once; or Refused, or Failure, and the end
///
/// From here on, a session: its frames are numbered on each side by counting them, Heartbeats left out.
///
///                                <-      Welcome once all ranks have joined: who this rank is
///                                 or     Failure the job's first cause
///   Request (id)                 ->
///                                <-      Response (id)   in any order; get, wait and barrier answer when they can
///   Cancel (id)                  ->              its deadline passed: answered by the Response, whichever it became
///   Report (cause)               ->
///                                <-      Failure         to every rank, once: the first cause of the job
///   Leave                        ->
///                                <-      Left            then the rank closes
///   Heartbeat                    <->             how many frames have come; the rank's every Accepted::heartbeat_ms,
///                                                the store's as the answer to it
///
/// Who hears nothing for the liveness time takes the other for lost. A connection that breaks without Leave is made
/// good by a new one within the grace: Hello and Challenge again, then Resume with the session's ticket instead of
/// Join, answered by Accepted; each side then sends what the other has not received. Otherwise the rank is lost.
///
/// A connection that closes before Accepted means nothing, and the rank tries again: a store that has too many
/// connections that say nothing closes the oldest. After a failure every request is answered Status::failed. What every
/// version keeps: the kind, magic, protocol and version of a Hello, and all of Refused; so two versions can tell each
/// other apart. The proofs are described in transcript.hpp.

namespace DTRAIN_NAMESPACE::rendezvous {

inline constexpr std::uint32_t protocol_magic = 0x4E525444;  // "DTRN"
inline constexpr std::uint16_t protocol_version = 2;

/// What begins a frame. Numbers are never given to another meaning.
enum class MessageKind : std::uint8_t {
  hello = 1,
  welcome = 2,
  refused = 3,
  failure = 4,
  request = 5,
  response = 6,
  cancel = 7,
  report = 8,
  leave = 9,
  left = 10,
  accepted = 11,
  challenge = 12,
  join = 13,
  resume = 14,
  heartbeat = 15,
};

/// Whose job a session is of: the ranks', or that of the launchers of all nodes, which have a job of their own.
enum class Role : std::uint8_t { rank = 1, launcher = 2 };

using Nonce = std::array<std::byte, 16>;

/// An HMAC-SHA256; zeros where there is no secret.
using Proof = std::array<std::byte, 32>;

/// @name At the door
/// @{
struct Hello {
  std::string version;  ///< of dtrain; the same on all ranks of a job
  Role role = Role::rank;
  std::uint64_t generation = 0;  ///< the attempt, counted from 0 by the launcher
  Nonce nonce{};
  bool has_secret = false;
};

struct Challenge {
  Nonce nonce{};
  bool asks_secret = false;
};

struct Join {
  RankFacts facts;
  int world_size = 1;
  std::string job;                ///< what the launcher calls the job; empty where it does not
  std::int64_t process = 0;       ///< its process id, for messages
  std::uint64_t patience_ms = 0;  ///< how long this rank waits for the others
  Proof proof{};
};

/// Names a session to the store that gave it out; nobody else can guess the key.
struct Ticket {
  std::uint64_t session = 0;
  Nonce key{};
};

struct Resume {
  Ticket ticket;
  std::uint64_t received = 0;  ///< frames of the session
  Proof proof{};
};

/// The rank sits in its place and waits for the others, or goes on with its session.
struct Accepted {
  Ticket ticket;
  std::uint64_t received = 0;  ///< frames of the session; 0 where it begins
  std::uint32_t heartbeat_ms = 0;
  std::uint32_t liveness_ms = 0;
  std::uint32_t grace_ms = 0;  ///< how long the store waits for a Resume
  Proof proof{};
};

struct Refused {
  std::string sentence;
  bool other_job = false;  ///< the store is another job's: this rank's own may be elsewhere
};
/// @}

/// @name In a session
/// @{
struct Heartbeat {
  std::uint64_t received = 0;
};

struct Welcome {
  Membership membership;
};

/// The first cause, to a rank; the same fields as a Report, which goes to the store.
struct Failure {
  Cause cause;
};

struct Report {
  Cause cause;
};

struct Leave {};
struct Left {};
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/seats.hpp

/// @file
/// The places of a job, one for each rank: who may sit down, who sits, who has got up. Pure.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Names a connection of the server's; never used twice.
using SessionId = std::uint64_t;

class Seats {
 public:
  enum class State : std::uint8_t { empty = 1, joined, left, lost };

  struct Seat {
    State state = State::empty;
    SessionId session = 0;
    RankFacts facts;
    std::int64_t process = 0;

    std::string who() const {
      return "rank " + std::to_string(facts.rank) + " on host " + facts.host + " (process " + std::to_string(process) +
             ")";
    }
  };

  /// @param owner says in sentences whose world size it is: "rank 0 on host a", "the launcher on host a"
  Seats(int world_size, std::string owner) : owner_(std::move(owner)), seats_(static_cast<std::size_t>(world_size)) {}

  int world_size() const noexcept { return static_cast<int>(seats_.size()); }
  const Seat& at(int rank) const { return seats_.at(static_cast<std::size_t>(rank)); }

  /// Nothing where the rank has sat down; Refused where only this one is wrong, as everyone is who comes when all seats
  /// are taken (another job's rank, with this one's address); a Cause where the job cannot be formed, as with different
  /// world sizes or terms.
  std::variant<std::monostate, Refused, Cause> sit(SessionId session, const Join& join) {
    const int rank = join.facts.rank;
    if (join.world_size != world_size()) {
      const std::string text = "rank " + std::to_string(rank) + " on host " + join.facts.host +
                               " says that the world has " + std::to_string(join.world_size) + " ranks, " + owner_ +
                               " that it has " + std::to_string(world_size());
      if (complete()) {
        return Refused{text + ", and all of them have joined; give each job a port of its own (MASTER_PORT)"};
      }
      return Cause{CauseKind::disagreement, rank, join.facts.host, text + "; start all ranks with one world size"};
    }
    if (rank < 0 || rank >= world_size()) {
      return Refused{"rank " + std::to_string(rank) + " is out of range in a world of " + std::to_string(world_size()) +
                     " ranks (0 to " + std::to_string(world_size() - 1) + "); correct the rank of this process"};
    }
    Seat& seat = seats_[static_cast<std::size_t>(rank)];
    if (seat.state != State::empty) {
      const char* state = seat.state == State::joined ? ""
                          : seat.state == State::left ? ", which has left"
                                                      : ", which was lost";
      return Refused{"rank " + std::to_string(rank) + " is taken: " + seat.who() + " has it" + state +
                     "; give each process its own rank"};
    }
    if (taken_ == 0) {
      agreed_ = join.facts.agreed;
      agreed_by_ = "rank " + std::to_string(rank) + " on host " + join.facts.host;
    } else if (const auto difference = first_difference(join.facts.agreed, agreed_)) {
      return Cause{CauseKind::disagreement, rank, join.facts.host,
                   "rank " + std::to_string(rank) + " on host " + join.facts.host + " has " + difference->first + ", " +
                       agreed_by_ + " has " + difference->second +
                       "; start all ranks with the same program and settings"};
    }
    seat = Seat{State::joined, session, join.facts, join.process};
    seat.facts.agreed.clear();  // ten thousand copies of one text
    ++taken_;
    ++present_;
    return std::monostate{};
  }

  /// The seat that the very process which says this sits in already; null where there is no such.
  const Seat* seat_of(const Join& join) const noexcept {
    const int rank = join.facts.rank;
    if (rank < 0 || rank >= world_size() || join.world_size != world_size()) {
      return nullptr;
    }
    const Seat& seat = seats_[static_cast<std::size_t>(rank)];
    const bool same = seat.facts.host_id == join.facts.host_id && seat.process == join.process;
    return seat.state == State::joined && same ? &seat : nullptr;
  }

  /// A rank that sits gets up. @param how left or lost
  void rise(int rank, State how) {
    seats_[static_cast<std::size_t>(rank)].state = how;
    --present_;
    left_ += how == State::left ? 1 : 0;
  }

  /// Whether every rank has sat down at some time.
  bool complete() const noexcept { return taken_ == seats_.size(); }

  /// How many sit now.
  std::size_t present() const noexcept { return present_; }

  bool anyone_left() const noexcept { return left_ > 0; }

  /// The ranks in a state, ascending.
  std::vector<int> in(State state) const {
    std::vector<int> ranks;
    for (int rank = 0; rank < world_size(); ++rank) {
      if (at(rank).state == state) {
        ranks.push_back(rank);
      }
    }
    return ranks;
  }

  /// What all said of themselves, in order of rank.
  std::vector<RankFacts> facts() const {
    std::vector<RankFacts> all;
    all.reserve(seats_.size());
    for (const Seat& seat : seats_) {
      all.push_back(seat.facts);
    }
    return all;
  }

 private:
  std::string owner_;
  std::string agreed_;     ///< what the first to sit down said
  std::string agreed_by_;  ///< who that was
  std::vector<Seat> seats_;
  std::size_t taken_ = 0;
  std::size_t present_ = 0;
  std::size_t left_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/effect.hpp

/// @file
/// What may be said to and by a rank that has joined, and what a Job wants its server to do.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a session is to be sent.
using ToRank = std::variant<Welcome, Failure, Response, Left>;

/// What a rank may send in its session.
using FromRank = std::variant<Request, Cancel, Report, Leave>;

/// @name Effects: what the server is to do, in order.
/// @{
struct Send {
  SessionId session = 0;
  ToRank message;
};
/// Not inlined: g++ 12 would follow the move of a message into alternatives that it does not hold, and warn of them.
[[gnu::noinline]] inline Send send_to(SessionId session, ToRank message) {
  return {session, std::move(message)};
}
/// Close the session once what was sent to it is out.
struct CloseAfterSending {
  SessionId session = 0;
};
struct Joined {
  int rank = 0;
  std::string host;
};
struct HasLeft {
  int rank = 0;
};
/// The job has its first cause.
struct HasFailed {
  Cause cause;
};
using Effect = std::variant<Send, CloseAfterSending, Joined, HasLeft, HasFailed>;
/// @}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/secret.hpp

/// @file
/// The secret of a job: who knows it may join.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Both sides prove that they know it without sending it (handshake.hpp). It guards the door, not the wire: what
/// follows is neither encrypted nor protected against somebody who can change what is on its way.
class Secret {
 public:
  static constexpr std::size_t fewest_characters = 16;
  static constexpr std::size_t most_characters = 4096;

  /// @param where it comes from, for the sentence: "DTRAIN_SECRET"
  /// @throws Error (usage) where it is too short to be one, or too long; the sentence does not quote it
  static Secret of(std::string text, std::string_view where) {
    if (text.size() < fewest_characters || text.size() > most_characters) {
      throw Error(Errc::usage, std::string(where) + " has " + std::to_string(text.size()) +
                                   " characters; a secret has " + std::to_string(fewest_characters) + " to " +
                                   std::to_string(most_characters) +
                                   ", for example those that `openssl rand -hex 32` prints");
    }
    return Secret(std::move(text));
  }

  /// 64 hexadecimal digits that nobody can guess. @throws Error (posix)
  static Secret drawn() { return Secret(hex(random_bytes<32>())); }

  /// What to pass on to those who are to join.
  const std::string& text() const noexcept { return text_; }
  std::span<const std::byte> bytes() const noexcept { return std::as_bytes(std::span(text_)); }

 private:
  explicit Secret(std::string text) : text_(std::move(text)) {}

  std::string text_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/job_options.hpp

/// @file
/// What a store is to know of a job before anybody joins.

namespace DTRAIN_NAMESPACE::rendezvous {

/// One job of a server's.
struct JobOptions {
  Role role = Role::rank;
  int world_size = 1;
  std::uint64_t generation = 0;  ///< the attempt: who belongs to an earlier one is refused
  std::string job{};             ///< what the launcher calls it; empty: every name is let in
  /// Whose world size it is, in sentences: "rank 0 on host a", "the launcher on host a".
  std::string owner = "the store";
  Deadline formation = Deadline::after(std::chrono::seconds(600));  ///< by when all ranks have joined

  /// @name Called on the loop's thread. They must not throw, nor destroy the server or open a job.
  /// @{
  std::function<void(const Cause&)> on_failure{};
  std::function<void(int rank, const std::string& host)> on_joined{};
  std::function<void(int rank)> on_left{};
  /// @}
};

/// What all jobs of a server share.
struct ServerOptions {
  std::optional<Secret> secret{};  ///< that everybody has to know
  Limits limits{};
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/text.hpp

/// @file
/// Texts for sentences: cut to a bound, quoted, the version.

namespace DTRAIN_NAMESPACE::rendezvous {

/// As much of a text as fits into `longest` bytes, not ending inside a character of UTF-8.
inline std::string_view cut(std::string_view text, std::size_t longest) {
  std::size_t length = std::min(text.size(), longest);
  while (length > 0 && length < text.size() && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) {
    --length;
  }
  return text.substr(0, length);
}

/// 'a key' as a sentence may have it, whatever its bytes are.
inline std::string in_quotes(std::string_view key) {
  constexpr std::size_t longest = 128;
  return "'" + std::string(cut(printable(key.substr(0, longest)), longest)) + (key.size() > longest ? "...'" : "'");
}

/// "0.1.0"
inline std::string version_text() {
  return std::to_string(version.major) + "." + std::to_string(version.minor) + "." + std::to_string(version.patch);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/fields.hpp

/// @file
/// FieldWriter and FieldReader: one description of a message's fields serves both directions.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Appends fields; a text that is too long for the other side is cut.
class FieldWriter {
 public:
  void number(std::uint16_t value) { out_.u16(value); }
  void number(std::uint32_t value) { out_.u32(value); }
  void number(std::uint64_t value) { out_.u64(value); }
  void number(std::int64_t value) { out_.i64(value); }

  /// An integer that is one of first..last.
  void number(int value, int, int) { out_.u32(static_cast<std::uint32_t>(value)); }
  void number(const std::optional<int>& value, int, int) { out_.u32(static_cast<std::uint32_t>(value.value_or(-1))); }

  template <class E>
  void choice(E value, E, E) {
    out_.u8(static_cast<std::uint8_t>(value));
  }
  void text(const std::string& value, std::size_t longest) { out_.string(cut(value, longest)); }
  void raw_text(const std::string& value, std::size_t longest) { text(value, longest); }
  void raw_texts(const std::vector<std::string>& values, std::size_t, std::size_t longest) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const std::string& value : values) {
      text(value, longest);
    }
  }
  void flag(bool value) { out_.u8(value ? 1 : 0); }
  template <std::size_t N>
  void bytes(const std::array<std::byte, N>& value) {
    out_.raw(value);
  }

  std::vector<std::byte> take() { return out_.take(); }
  std::span<const std::byte> view() const noexcept { return out_.view(); }
  void clear() noexcept { out_.clear(); }

 private:
  net::ByteWriter out_;
};

/// Reads fields from bytes that nobody vouches for; after the first one that cannot be, finished() is false for good.
class FieldReader {
 public:
  explicit FieldReader(std::span<const std::byte> bytes) : in_(bytes) {}

  void number(std::uint16_t& value) { value = in_.u16(); }
  void number(std::uint32_t& value) { value = in_.u32(); }
  void number(std::uint64_t& value) { value = in_.u64(); }
  void number(std::int64_t& value) { value = in_.i64(); }

  void number(int& value, int first, int last) {
    const auto found = static_cast<std::int32_t>(in_.u32());
    require(found >= first && found <= last);
    value = in_.ok() ? found : first;
  }
  void number(std::optional<int>& value, int first, int last) {
    const auto found = static_cast<std::int32_t>(in_.u32());
    require(found == -1 || (found >= first && found <= last));
    value = in_.ok() && found != -1 ? std::optional<int>(found) : std::nullopt;
  }

  template <class E>
  void choice(E& value, E first, E last) {
    const std::uint8_t found = in_.u8();
    require(found >= static_cast<std::uint8_t>(first) && found <= static_cast<std::uint8_t>(last));
    value = in_.ok() ? static_cast<E>(found) : first;
  }

  /// A name or a sentence, for people: printable, whatever the peer sent.
  void text(std::string& value, std::size_t longest) {
    value = printable(in_.string(longest));
    value.resize(cut(value, longest).size());
  }

  /// Any bytes: a key or a value. In a sentence they are in_quotes() or printable().
  void raw_text(std::string& value, std::size_t longest) { value = in_.string(longest); }

  /// At least one text and at most `most`. What is allocated follows what is there, not what is announced.
  void raw_texts(std::vector<std::string>& values, std::size_t most, std::size_t longest) {
    const std::uint32_t count = in_.u32();
    require(count >= 1 && count <= most);
    for (std::uint32_t i = 0; i < count && in_.ok(); ++i) {
      values.push_back(in_.string(longest));
    }
  }
  void flag(bool& value) {
    const std::uint8_t found = in_.u8();
    require(found <= 1);
    value = in_.ok() && found == 1;
  }
  template <std::size_t N>
  void bytes(std::array<std::byte, N>& value) {
    const std::span<const std::byte> found = in_.raw(N);
    std::copy(found.begin(), found.end(), value.begin());
  }

  bool ok() const noexcept { return in_.ok(); }
  bool finished() const noexcept { return in_.finished(); }

 private:
  void require(bool holds) {
    if (!holds) {
      in_.fail();
    }
  }

  net::ByteReader in_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/door_fields.hpp

/// @file
/// The fields of the messages at the door, for the codec.

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

inline constexpr int max_int = std::numeric_limits<int>::max();

/// @name The kind of each message, and its fields in their order on the wire. A proof comes last (transcript.hpp).
/// @{
inline constexpr MessageKind kind_of(const Challenge*) {
  return MessageKind::challenge;
}
inline constexpr MessageKind kind_of(const Join*) {
  return MessageKind::join;
}
inline constexpr MessageKind kind_of(const Resume*) {
  return MessageKind::resume;
}
inline constexpr MessageKind kind_of(const Accepted*) {
  return MessageKind::accepted;
}
inline constexpr MessageKind kind_of(const Refused*) {
  return MessageKind::refused;
}

/// What follows the kind, magic, protocol and version of a Hello.
template <class Fields>
void fields(Fields& of, Hello& message) {
  of.choice(message.role, Role::rank, Role::launcher);
  of.number(message.generation);
  of.bytes(message.nonce);
  of.flag(message.has_secret);
}

template <class Fields>
void fields(Fields& of, Challenge& message) {
  of.bytes(message.nonce);
  of.flag(message.asks_secret);
}

template <class Fields>
void fields(Fields& of, Join& message) {
  of.number(message.facts.rank, std::numeric_limits<int>::min(), max_int);  // out of range: refused with a sentence
  of.number(message.world_size, std::numeric_limits<int>::min(), max_int);
  of.text(message.facts.host_id, max_name_bytes);
  of.text(message.facts.host, max_name_bytes);
  of.number(message.facts.local_rank, 0, max_int);
  of.number(message.facts.local_world_size, 0, max_int);
  of.number(message.facts.node_rank, 0, max_int);
  of.number(message.facts.node_count, 0, max_int);
  of.raw_text(message.facts.agreed, max_agreed_bytes);
  of.text(message.job, max_name_bytes);
  of.number(message.process);
  of.number(message.patience_ms);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Ticket& ticket) {
  of.number(ticket.session);
  of.bytes(ticket.key);
}

template <class Fields>
void fields(Fields& of, Resume& message) {
  fields(of, message.ticket);
  of.number(message.received);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Accepted& message) {
  fields(of, message.ticket);
  of.number(message.received);
  of.number(message.heartbeat_ms);
  of.number(message.liveness_ms);
  of.number(message.grace_ms);
  of.bytes(message.proof);
}

template <class Fields>
void fields(Fields& of, Refused& message) {
  of.text(message.sentence, max_sentence_bytes);
  of.flag(message.other_job);
}
/// @}

}  // namespace detail

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/request_bounds.hpp

/// @file
/// What a rank may ask of the store at all, checked before anything is sent.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a request is doing, for the beginning of sentences: "setting key 'a' and 2 more". @pre it has a key
inline std::string doing_of(const Request& request) {
  const char* verb = "";
  switch (request.operation) {
    case Operation::set: verb = "setting key "; break;
    case Operation::get: verb = "waiting for key "; break;
    case Operation::try_get: verb = "looking for key "; break;
    case Operation::add: verb = "adding to key "; break;
    case Operation::wait: verb = "waiting for key "; break;
    case Operation::barrier: verb = "waiting in barrier "; break;
    case Operation::compare_set: verb = "comparing and setting key "; break;
    case Operation::erase: verb = "erasing key "; break;
    case Operation::append: verb = "appending to key "; break;
    case Operation::set_many: verb = "setting key "; break;
    case Operation::get_many: verb = "waiting for key "; break;
  }
  return verb + in_quotes(request.keys.front()) +
         (request.keys.size() > 1 ? " and " + std::to_string(request.keys.size() - 1) + " more" : "");
}

/// @throws Error (invalid_argument) for what is too long or too much, with the bound
inline void require_bounded(const Request& request, const std::string& doing) {
  const auto refuse = [&](const std::string& what, std::size_t bound, const char* rest = " are possible") {
    throw Error(Errc::invalid_argument, doing + ": " + what + "; at most " + std::to_string(bound) + rest);
  };
  const auto bytes = [](std::size_t count) { return std::to_string(count) + " bytes"; };
  if (request.keys.size() > max_keys_of_a_wait) {
    refuse("these are " + std::to_string(request.keys.size()) + " keys", max_keys_of_a_wait, " are possible at once");
  }
  std::size_t sum = request.value.size() + (request.expected ? request.expected->size() : 0);
  for (const std::string& key : request.keys) {
    sum += key.size();
    if (key.size() > max_key_bytes) {
      refuse("it has " + bytes(key.size()) + " with its prefix", max_key_bytes);
    }
  }
  for (const std::string& value : request.values) {
    sum += value.size();
    if (value.size() > max_value_bytes) {
      refuse("a value has " + bytes(value.size()), max_value_bytes);
    }
  }
  if (request.value.size() > max_value_bytes) {
    refuse("the value has " + bytes(request.value.size()), max_value_bytes);
  }
  if (sum > max_batch_bytes) {
    refuse("its keys and values have " + bytes(sum) + " together", max_batch_bytes, " are possible at once");
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/request_desk.hpp

/// @file
/// Where the requests of a job's ranks are served: a pure state machine, requests in, answers out.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Every request gets one answer, unless its session ends first. Threads: one. Bounded by its Limits.
class RequestDesk {
 public:
  /// @param effects gets the answers. Lifetime: outlives the desk
  RequestDesk(int world_size, const Limits& limits, std::vector<Effect>& effects)
      : limits_(limits), world_size_(world_size), effects_(effects), keys_(limits), barriers_(world_size) {}
  RequestDesk(const RequestDesk&) = delete;
  RequestDesk& operator=(const RequestDesk&) = delete;
  ~RequestDesk() = default;

  using Instant = KeyWaits::Instant;

  const KeySpace& keys() const noexcept { return keys_; }

  /// A session may ask from now on, as this rank.
  void open(SessionId session, int rank) { clients_.emplace(session, Client{rank, {}}); }

  /// Nobody waits for the session's answers any more.
  void close(SessionId session) {
    keys_.forget(session);
    barriers_.forget(session);
    clients_.erase(session);
  }

  /// Ends every request without an answer: the job has failed, and its ranks were told so.
  void fail() {
    for (auto& [session, client] : clients_) {
      keys_.forget(session);
      client.pending.clear();
    }
    barriers_.clear();
  }

  /// This rank has left the job: no barrier can complete any more.
  void refuse_barriers(int left) {
    left_.insert(left);
    const auto waiting = barriers_.clear();
    const std::string why = waiting.empty() ? std::string() : cannot_complete();
    for (const auto& [who, name] : waiting) {
      answer(who, Status::refused, why);
    }
  }

  /// What a rank is doing, as far as its requests tell.
  std::string doing(SessionId session) const {
    if (const std::optional<std::string> barrier = barriers_.waited_by(session)) {
      return "while it waited in barrier " + in_quotes(*barrier);
    }
    const std::optional<std::string> key = keys_.lacked_by(session);
    return key ? "while it waited for key " + in_quotes(*key) : "while it worked";
  }

  /// @pre the session is open, and the request came out of decode_from_rank
  void receive(SessionId session, Request& request, Instant now = Deadline::Clock::now()) {
    const RequestKey who{session, request.id};
    Client& client = clients_.at(session);
    if (client.pending.size() >= limits_.pending_requests) {
      return answer(who, Status::refused,
                    "this rank has " + std::to_string(client.pending.size()) +
                        " requests without an answer, the limit; await some first");
    }
    if (!client.pending.insert(request.id).second) {
      return;  // an id that is used twice: its first use will be answered
    }
    serve(who, client.rank, request, now);
  }

  /// The rank gives a request up; one that was answered meanwhile stays so.
  void receive(SessionId session, const Cancel& cancel, Instant now = Deadline::Clock::now()) {
    const RequestKey who{session, cancel.id};
    if (const std::optional<KeyWaits::GivenUp> wait = keys_.cancel(who)) {
      answer(who, Status::gave_up, sentence(*wait, now));
    } else if (const std::optional<Barriers::Unfinished> barrier = barriers_.cancel(who)) {
      answer(who, Status::gave_up, sentence(*barrier, now));
    }
  }

 private:
  struct Client {
    int rank = 0;
    std::set<std::uint64_t> pending;  ///< requests without an answer
  };

  static std::string sentence(const KeyWaits::GivenUp& wait, Instant now) {
    std::string text;
    for (std::size_t i = 0; i < wait.missing.size() && text.size() < max_sentence_bytes / 4; ++i) {
      text += (i == 0 ? "" : ", ") + in_quotes(wait.missing[i]);
    }
    if (wait.keys > 1) {
      text += " (" + std::to_string(wait.missing.size()) + " of " + std::to_string(wait.keys) + " keys)";
    }
    return "no rank set " + text + " in the " + seconds_text(now - wait.since) + " since this rank began to wait";
  }

  std::string sentence(const Barriers::Unfinished& barrier, Instant now) const {
    std::string text = std::to_string(barrier.arrived.size()) + " of " + std::to_string(world_size_) +
                       " ranks wait in it (" + rank_list(barrier.arrived) + ", the first came " +
                       seconds_text(now - barrier.since) + " ago)";
    if (!barrier.missing.empty()) {
      text += "; " + rank_list(barrier.missing) + " did not come";
    }
    if (!barrier.gave_up.empty()) {
      text += "; " + rank_list(barrier.gave_up) + " came and gave up";
    }
    return text;
  }

  void answer(Response response, SessionId session) {
    const auto found = clients_.find(session);
    if (found != clients_.end()) {
      found->second.pending.erase(response.id);
      effects_.emplace_back(send_to(session, std::move(response)));
    }
  }
  void answer(RequestKey who, Status status, std::string text = {}, std::int64_t number = 0) {
    answer(Response{who.request, status, std::move(text), number}, who.session);
  }
  void answer(RequestKey who, const KeySpace::Refusal& refusal, std::int64_t number = 0) {
    answer(who, refusal ? Status::refused : Status::ok, refusal.value_or(""), refusal ? 0 : number);
  }

  void serve(RequestKey who, int rank, Request& request, Instant now) {
    std::vector<KeyWaits::Released> released;
    const std::string& key = request.keys.front();
    switch (request.operation) {
      case Operation::set: answer(who, keys_.set(key, std::move(request.value), released)); break;
      case Operation::set_many: answer(who, keys_.set_many(request.keys, std::move(request.values), released)); break;
      case Operation::add: count(who, keys_.add(key, request.number, released)); break;
      case Operation::append: count(who, keys_.append(key, request.value, released)); break;
      case Operation::compare_set: compare_set(who, request, released); break;
      case Operation::erase: answer(who, keys_.erase(key) ? Status::ok : Status::missing); break;
      case Operation::try_get: {
        const std::string* value = keys_.find(key);
        answer(who, value != nullptr ? Status::ok : Status::missing, value != nullptr ? *value : std::string());
        break;
      }
      case Operation::get:
      case Operation::wait:
      case Operation::get_many: wait(who, request, now); break;
      case Operation::barrier: arrive(who, rank, key, now); break;
    }
    release(released);
  }

  void count(RequestKey who, const KeySpace::Count& count) { answer(who, count.refusal, count.value); }

  void compare_set(RequestKey who, Request& request, std::vector<KeyWaits::Released>& released) {
    const std::string& key = request.keys.front();
    const std::string* value = keys_.find(key);
    const bool as_expected = value == nullptr ? !request.expected : request.expected == *value;
    if (as_expected) {
      answer(who, keys_.set(key, std::move(request.value), released), 1);
    } else {
      answer(who, value == nullptr ? Status::missing : Status::ok, value == nullptr ? std::string() : *value);
    }
  }

  void wait(RequestKey who, Request& request, Instant now) {
    if (keys_.waits().keys_of(who.session) + request.keys.size() > limits_.waited_keys) {
      return answer(who, Status::refused,
                    "this rank would wait for more than " + std::to_string(limits_.waited_keys) + " keys, the limit");
    }
    if (!keys_.wait(who, request.operation, request.keys, now)) {
      answer(found(KeyWaits::Released{who, request.operation, std::move(request.keys)}), who.session);
    }
  }

  /// The answer to a wait whose keys all exist.
  Response found(const KeyWaits::Released& wait) const {
    Response response;
    response.id = wait.who.request;
    if (wait.operation == Operation::get) {
      response.text = *keys_.find(wait.keys.front());
    } else if (wait.operation == Operation::get_many) {
      std::size_t bytes = 0;
      for (const std::string& key : wait.keys) {
        bytes += keys_.find(key)->size();
      }
      if (bytes > max_batch_bytes) {
        return Response{wait.who.request, Status::refused,
                        "the values of these " + std::to_string(wait.keys.size()) + " keys have " +
                            std::to_string(bytes) + " bytes; at most " + std::to_string(max_batch_bytes) +
                            " are given at once; ask for fewer keys",
                        0};
      }
      for (const std::string& key : wait.keys) {
        response.values.push_back(*keys_.find(key));
      }
    }
    return response;
  }

  /// All that one change releases is answered at once, but no session gets more of it than may wait to be sent to it.
  void release(const std::vector<KeyWaits::Released>& released) {
    std::map<SessionId, std::size_t> bytes;
    for (const KeyWaits::Released& each : released) {
      Response response = found(each);
      std::size_t& sum = bytes[each.who.session];
      sum += response.text.size();
      for (const std::string& value : response.values) {
        sum += value.size();
      }
      if (sum > limits_.outgoing_bytes / 2) {
        response = Response{each.who.request, Status::refused,
                            "the answers that this rank waits for at once have more than " +
                                std::to_string(limits_.outgoing_bytes / 2) + " bytes; wait for fewer values at once",
                            0};
      }
      answer(std::move(response), each.who.session);
    }
  }

  void arrive(RequestKey who, int rank, const std::string& name, Instant now) {
    if (!left_.empty()) {
      return answer(who, Status::refused, cannot_complete());
    }
    std::vector<RequestKey> released;
    if (barriers_.arrive(name, rank, who, now, released) == Barriers::Arrival::already_there) {
      return answer(who, Status::refused, "this rank waits in it already; one thread of a rank passes it at a time");
    }
    for (const RequestKey each : released) {
      answer(each, Status::ok);
    }
  }

  std::string cannot_complete() const {
    return "it cannot complete: " + rank_list(std::vector<int>(left_.begin(), left_.end())) + " left the job";
  }

  Limits limits_;
  int world_size_;
  std::vector<Effect>& effects_;
  KeySpace keys_;
  Barriers barriers_;
  std::set<int> left_;  ///< the ranks without which no barrier can complete any more
  std::map<SessionId, Client> clients_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/job.hpp

/// @file
/// What the store knows of its job, as a state machine without sockets and clocks: messages in, effects out.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who sits where, the formation, the first cause and leaving; what the ranks ask is for the RequestDesk.
/// Threads: one. Bounded by its Limits whatever it is told.
class Job {
 public:
  /// @param id the name of the job that every rank gets
  Job(int world_size, std::string owner, std::string id, const Limits& limits)
      : id_(std::move(id)), seats_(world_size, std::move(owner)), desk_(world_size, limits, effects_) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() = default;

  /// The effects since the last call.
  std::vector<Effect> take_effects() { return std::exchange(effects_, {}); }

  const std::optional<Cause>& cause() const noexcept { return cause_; }
  bool formed() const noexcept { return formed_; }
  const Seats& seats() const noexcept { return seats_; }
  const KeySpace& keys() const noexcept { return desk_.keys(); }

  /// Nobody is left to serve: all ranks joined (or the job failed), and all of them have left or were lost.
  bool over() const noexcept { return (formed_ || cause_) && seats_.present() == 0; }

  bool has_joined(SessionId session) const { return ranks_.contains(session); }

  /// What became of somebody who wants to join: a session that has joined, or why not.
  using Verdict = std::variant<std::monostate, Refused, Failure>;

  /// Somebody who has shown that it may wants to join. @pre the session is new
  Verdict join(SessionId session, const Join& join) {
    if (cause_) {
      return Failure{*cause_};
    }
    auto verdict = seats_.sit(session, join);
    if (const Refused* refused = std::get_if<Refused>(&verdict)) {
      note_refusal(refused->sentence);
      return *refused;
    }
    if (const Cause* cause = std::get_if<Cause>(&verdict)) {
      post(*cause);
      return Failure{*cause};
    }
    ranks_.emplace(session, join.facts.rank);
    desk_.open(session, join.facts.rank);
    effects_.emplace_back(Joined{join.facts.rank, join.facts.host});
    if (seats_.complete()) {
      form();
    }
    return std::monostate{};
  }

  /// Somebody was refused. The sentence is kept for those who wait in vain for the rank it might have been.
  void note_refusal(std::string sentence) { last_refusal_ = std::move(sentence); }

  /// A rank sent a message in its session.
  void receive(SessionId session, FromRank message) {
    std::visit([&](auto& each) { on(session, each); }, message);
  }

  /// A session is gone. @returns the loss, for post, if it had joined and not left
  std::optional<Cause> closed(SessionId session, const std::string& how) {
    const auto found = ranks_.find(session);
    if (found == ranks_.end()) {
      return std::nullopt;
    }
    const int rank = found->second;
    const std::string doing = formed_ ? desk_.doing(session) : "while the ranks were joining";
    const Cause cause{CauseKind::lost, rank, seats_.at(rank).facts.host, how + " " + doing};
    remove(session, Seats::State::lost);
    return cause;
  }

  /// The first cause wins; it goes to every rank at once.
  void post(const Cause& cause) {
    if (cause_) {
      return;
    }
    cause_ = cause;
    effects_.emplace_back(HasFailed{cause});
    for (const auto& [session, rank] : ranks_) {
      send(session, Failure{cause});
    }
    desk_.fail();
  }

  /// Who has not joined yet.
  std::string missing() const { return rank_list(seats_.in(Seats::State::empty)); }

  /// The deadline of the formation has passed. @param patience says how long it was: "600 s"
  void formation_late(const std::string& patience) {
    if (formed_ || cause_) {
      return;
    }
    std::string text = "within " + patience + " only " + rank_list(seats_.in(Seats::State::joined)) + " of " +
                       std::to_string(seats_.world_size()) + " joined, " + missing() +
                       " did not; see whether they run and know the address of the store";
    if (!last_refusal_.empty()) {
      text += " (a process was refused: " + last_refusal_ + ")";
    }
    post(Cause{CauseKind::timeout, -1, {}, std::move(text)});
  }

 private:
  void send(SessionId session, ToRank message) { effects_.emplace_back(send_to(session, std::move(message))); }
  void close(SessionId session) { effects_.emplace_back(CloseAfterSending{session}); }

  void form() {
    auto formed = form_membership(seats_.facts(), id_);
    if (const Cause* cause = std::get_if<Cause>(&formed)) {
      return post(*cause);
    }
    formed_ = true;
    for (Membership& membership : std::get<std::vector<Membership>>(formed)) {
      const SessionId session = seats_.at(membership.rank).session;
      send(session, Welcome{std::move(membership)});
    }
  }

  void remove(SessionId session, Seats::State how) {
    seats_.rise(ranks_.at(session), how);
    desk_.close(session);
    ranks_.erase(session);
  }

  void on(SessionId session, Request& request) {
    if (cause_) {
      return send(session, Response{request.id, Status::failed, cause_->sentence(), 0});
    }
    if (!formed_) {
      return send(session, Response{request.id, Status::refused, "not all ranks have joined yet", 0});
    }
    desk_.receive(session, request);
  }

  void on(SessionId session, const Cancel& cancel) { desk_.receive(session, cancel); }

  void on(SessionId, const Report& report) { post(report.cause); }

  void on(SessionId session, const Leave&) {
    const int rank = ranks_.at(session);
    const std::string host = seats_.at(rank).facts.host;
    send(session, Left{});
    close(session);
    remove(session, Seats::State::left);
    effects_.emplace_back(HasLeft{rank});
    if (!formed_) {
      return post(Cause{CauseKind::lost, rank, host, "it left before all ranks had joined"});
    }
    desk_.refuse_barriers(rank);
  }

  std::string id_;
  Seats seats_;
  std::map<SessionId, int> ranks_;  ///< the sessions that have joined and not left, and whose they are
  std::optional<Cause> cause_;
  bool formed_ = false;
  std::string last_refusal_;
  std::vector<Effect> effects_;
  RequestDesk desk_;  ///< answers into effects_
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/formation_watch.hpp

/// @file
/// Waits until all ranks have joined, says whom it waits for, and ends the job when that takes too long.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop and the job outlive it. Threads: the loop's.
class FormationWatch {
 public:
  /// @param ended is called when it has failed the job
  FormationWatch(async::EventLoop& loop, Job& job, Deadline deadline, std::function<void()> ended)
      : job_(&job),
        began_(Deadline::Clock::now()),
        deadline_(deadline),
        ended_(std::move(ended)),
        changed_(loop),
        watching_(loop.spawn(watch())) {}
  FormationWatch(const FormationWatch&) = delete;
  FormationWatch& operator=(const FormationWatch&) = delete;

  /// A rank has joined. One that waits less long than the store ends the formation for all: without it there is no job.
  void joined(std::uint64_t patience_ms) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining());
    if (patience_ms < static_cast<std::uint64_t>(left.count())) {
      deadline_ = Deadline::after(std::chrono::milliseconds(patience_ms));
    }
    changed_.set();
  }

 private:
  /// How long users wait without a word; then as often again.
  static constexpr std::chrono::seconds patience{10};

  async::Task<void> watch() {
    Deadline notice = Deadline::after(patience);
    while (!job_->formed() && !job_->cause()) {
      co_await changed_.wait(earlier(notice, deadline_));
      const std::string so_far = seconds_text(Deadline::Clock::now() - began_);
      if (deadline_.passed()) {
        job_->formation_late(so_far);
        ended_();
      } else if (notice.passed() && !job_->formed() && !job_->cause()) {
        log(LogLevel::warning, "the job's store waits for " + job_->missing() + ", " + so_far + " so far");
        notice = Deadline::after(patience);
      }
    }
  }

  Job* job_;
  Deadline::Clock::time_point began_;
  Deadline deadline_;
  std::function<void()> ended_;
  async::AutoResetEvent changed_;
  async::Spawned watching_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/request_fields.hpp

/// @file
/// The fields of requests and their answers, in their order on the wire: for codec.hpp.

namespace DTRAIN_NAMESPACE::rendezvous::detail {

inline constexpr MessageKind kind_of(const Request*) {
  return MessageKind::request;
}
inline constexpr MessageKind kind_of(const Response*) {
  return MessageKind::response;
}
inline constexpr MessageKind kind_of(const Cancel*) {
  return MessageKind::cancel;
}

/// Exactly `count` values. @pre when writing, there are so many
template <class Fields>
void values_of(Fields& of, std::vector<std::string>& values, std::size_t count) {
  values.resize(count);
  for (std::string& value : values) {
    of.raw_text(value, max_value_bytes);
  }
}

template <class Fields>
void fields(Fields& of, Request& message) {
  of.number(message.id);
  of.choice(message.operation, Operation::set, Operation::get_many);
  of.raw_texts(message.keys, takes_many(message.operation) ? max_keys_of_a_wait : 1, max_key_bytes);
  switch (message.operation) {
    case Operation::compare_set: {
      int expects_one = message.expected ? 1 : 0;
      of.number(expects_one, 0, 1);
      if (expects_one == 1) {
        of.raw_text(message.expected.has_value() ? *message.expected : message.expected.emplace(), max_value_bytes);
      }
      of.raw_text(message.value, max_value_bytes);
      break;
    }
    case Operation::set:
    case Operation::append: of.raw_text(message.value, max_value_bytes); break;
    case Operation::add: of.number(message.number); break;
    case Operation::set_many: values_of(of, message.values, message.keys.size()); break;
    default: break;
  }
}

template <class Fields>
void fields(Fields& of, Response& message) {
  of.number(message.id);
  of.choice(message.status, Status::ok, Status::failed);
  of.raw_text(message.text, max_value_bytes);
  of.number(message.number);
  int count = static_cast<int>(message.values.size());
  of.number(count, 0, static_cast<int>(max_keys_of_a_wait));
  values_of(of, message.values, static_cast<std::size_t>(count));
}

template <class Fields>
void fields(Fields& of, Cancel& message) {
  of.number(message.id);
}

}  // namespace DTRAIN_NAMESPACE::rendezvous::detail

// ---- dtrain/rendezvous/codec.hpp

/// @file
/// The messages of a session to the bytes of a frame and back.

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

/// @name The kind of each message, and its fields in their order on the wire.
/// @{
inline constexpr MessageKind kind_of(const Heartbeat*) {
  return MessageKind::heartbeat;
}
inline constexpr MessageKind kind_of(const Welcome*) {
  return MessageKind::welcome;
}
inline constexpr MessageKind kind_of(const Failure*) {
  return MessageKind::failure;
}
inline constexpr MessageKind kind_of(const Report*) {
  return MessageKind::report;
}
inline constexpr MessageKind kind_of(const Leave*) {
  return MessageKind::leave;
}
inline constexpr MessageKind kind_of(const Left*) {
  return MessageKind::left;
}

template <class Fields>
void fields(Fields& of, Heartbeat& message) {
  of.number(message.received);
}

template <class Fields>
void fields(Fields& of, Welcome& message) {
  of.number(message.membership.rank, 0, max_world_size);
  of.number(message.membership.world_size, 1, max_world_size);
  of.number(message.membership.local_rank, 0, max_world_size);
  of.number(message.membership.local_world_size, 1, max_world_size);
  of.number(message.membership.node_rank, 0, max_world_size);
  of.number(message.membership.node_count, 1, max_world_size);
  of.text(message.membership.host, max_name_bytes);
  of.text(message.membership.job, max_name_bytes);
  of.number(message.membership.other_host_rank, -1, max_world_size);
  of.text(message.membership.other_host, max_name_bytes);
}

template <class Fields>
void fields(Fields& of, Cause& cause) {
  of.choice(cause.kind, CauseKind::lost, CauseKind::stopped);
  of.number(cause.rank, -1, max_int);
  of.text(cause.host, max_name_bytes);
  of.text(cause.text, max_sentence_bytes);
}

template <class Fields>
void fields(Fields& of, Failure& message) {
  fields(of, message.cause);
}

template <class Fields>
void fields(Fields& of, Report& message) {
  fields(of, message.cause);
}

template <class Fields>
void fields(Fields&, Leave&) {}

template <class Fields>
void fields(Fields&, Left&) {}
/// @}

template <class Message, class Any>
std::optional<Any> decode_as(FieldReader& reader) {
  Message message;
  fields(reader, message);
  std::optional<Any> decoded;
  if (reader.finished()) {
    decoded.emplace(std::move(message));
  }
  return decoded;
}

}  // namespace detail

/// The frame of a message, in the memory of `writer`, which is used again.
template <class Message>
std::span<const std::byte> encode(Message message, FieldWriter& writer) {
  writer.clear();
  const MessageKind kind = detail::kind_of(&message);
  writer.choice(kind, kind, kind);
  detail::fields(writer, message);
  return writer.view();
}

/// The frame of a message. @pre keys and values within their bounds: they would be cut
template <class Message>
Frame encode(Message message) {
  FieldWriter writer;
  static_cast<void>(encode(std::move(message), writer));
  return writer.take();
}

inline Frame encode(ToRank message) {
  return std::visit([](auto& each) { return encode(std::move(each)); }, message);
}

/// The frames that a heartbeat counts; nothing where the frame is no heartbeat. A malformed one is none.
inline std::optional<std::uint64_t> decode_heartbeat(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::heartbeat, MessageKind::heartbeat);
  const std::optional<Heartbeat> heartbeat = detail::decode_as<Heartbeat, Heartbeat>(reader);
  return heartbeat ? std::optional<std::uint64_t>(heartbeat->received) : std::nullopt;
}

/// What a store sent in a session; nothing if it does not follow the protocol.
inline std::optional<ToRank> decode_to_rank(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::welcome: return detail::decode_as<Welcome, ToRank>(reader);
    case MessageKind::failure: return detail::decode_as<Failure, ToRank>(reader);
    case MessageKind::response: return detail::decode_as<Response, ToRank>(reader);
    case MessageKind::left: return detail::decode_as<Left, ToRank>(reader);
    default: return std::nullopt;
  }
}

/// What a rank sent in a session; nothing if it does not follow the protocol.
inline std::optional<FromRank> decode_from_rank(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::request: return detail::decode_as<Request, FromRank>(reader);
    case MessageKind::cancel: return detail::decode_as<Cancel, FromRank>(reader);
    case MessageKind::report: return detail::decode_as<Report, FromRank>(reader);
    case MessageKind::leave: return detail::decode_as<Leave, FromRank>(reader);
    default: return std::nullopt;
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/door_codec.hpp

/// @file
/// The messages at the door, before a session begins, to the bytes of a frame and back.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a rank may say after its Hello.
using Knock = std::variant<Join, Resume>;

/// What a store may say at the door.
using DoorAnswer = std::variant<Challenge, Accepted, Refused, Failure>;

/// @param protocol another than this version's only in tests
inline Frame encode(Hello message, std::uint16_t protocol = protocol_version) {
  FieldWriter writer;
  writer.choice(MessageKind::hello, MessageKind::hello, MessageKind::hello);
  writer.number(protocol_magic);
  writer.number(protocol);
  writer.text(message.version, max_name_bytes);
  detail::fields(writer, message);
  return writer.take();
}

/// A Hello, or why it is refused; nothing if it is no Hello of any version: then there is nobody to explain it to.
/// @param version the store's version of dtrain
inline std::optional<std::variant<Hello, Refused>> decode_hello(std::span<const std::byte> frame,
                                                                const std::string& version) {
  FieldReader reader(frame);
  MessageKind kind{};
  std::uint32_t magic = 0;
  std::uint16_t protocol = 0;
  Hello hello;
  reader.choice(kind, MessageKind::hello, MessageKind::hello);
  reader.number(magic);
  reader.number(protocol);
  reader.text(hello.version, max_name_bytes);
  if (!reader.ok() || magic != protocol_magic) {
    return std::nullopt;
  }
  if (protocol != protocol_version || hello.version != version) {
    return Refused{"this process runs dtrain " + hello.version + " (protocol " + std::to_string(protocol) +
                   "), the job dtrain " + version + " (protocol " + std::to_string(protocol_version) +
                   "); run one build on all ranks"};
  }
  detail::fields(reader, hello);
  if (!reader.finished()) {
    return std::nullopt;
  }
  return hello;
}

/// What a rank said after its Hello; nothing if it does not follow the protocol.
inline std::optional<Knock> decode_knock(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::join: return detail::decode_as<Join, Knock>(reader);
    case MessageKind::resume: return detail::decode_as<Resume, Knock>(reader);
    default: return std::nullopt;
  }
}

/// What a store said at the door; nothing if it does not follow the protocol.
inline std::optional<DoorAnswer> decode_door_answer(std::span<const std::byte> frame) {
  FieldReader reader(frame);
  MessageKind kind{};
  reader.choice(kind, MessageKind::hello, MessageKind::heartbeat);
  switch (kind) {
    case MessageKind::challenge: return detail::decode_as<Challenge, DoorAnswer>(reader);
    case MessageKind::accepted: return detail::decode_as<Accepted, DoorAnswer>(reader);
    case MessageKind::refused: return detail::decode_as<Refused, DoorAnswer>(reader);
    case MessageKind::failure: return detail::decode_as<Failure, DoorAnswer>(reader);
    default: return std::nullopt;
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/line.hpp

/// @file
/// rendezvous::Line: one side of a session, which outlives the connections that carry it.

namespace DTRAIN_NAMESPACE::rendezvous {

struct LineOptions {
  std::size_t outgoing_bytes = std::size_t{64} << 20;  ///< that may wait for a peer that does not read
  std::chrono::milliseconds send{60000};               ///< for a peer that takes nothing
  bool is_store = false;  ///< answers heartbeats, and reads no further questions while many answers wait
};

/// Numbers, sends, keeps and receives the frames of a session. Lifetime: close() before the last owner lets go; the
/// loop outlives it. Threads: the loop's. Its handlers may close it.
class Line : public std::enable_shared_from_this<Line> {
 public:
  struct Handlers {
    /// A frame of the session has come. False where it does not follow the protocol: the connection ends.
    std::function<bool(std::span<const std::byte>)> on_frame;
    /// The connection has ended, and no other is attached. @param how a clause
    std::function<void(const std::string& how)> on_end;
  };

  Line(async::EventLoop& loop, const LineOptions& options, Handlers handlers)
      : loop_(loop),
        options_(options),
        handlers_(std::move(handlers)),
        outbox_(options.outgoing_bytes, kept_bytes),
        to_write_(loop),
        taken_(loop),
        last_heard_(Deadline::Clock::now()) {}
  Line(const Line&) = delete;
  Line& operator=(const Line&) = delete;
  ~Line() = default;

  /// Goes on over this connection, instead of any that it has. What the link's writer holds already goes first.
  /// @param has how many frames the peer has. False where it cannot go on from there: then nothing is changed
  bool attach(std::unique_ptr<Link> link, std::uint64_t has) {
    if (!outbox_.rewind(has)) {
      return false;
    }
    detach();
    link_ = std::move(link);
    last_heard_ = Deadline::Clock::now();
    reading_ = loop_.spawn(run(shared_from_this(), &Line::read_all));
    writing_ = loop_.spawn(run(shared_from_this(), &Line::write_all));
    return true;
  }

  bool attached() const noexcept { return link_ != nullptr; }

  /// False where the peer leaves too much unread.
  [[nodiscard]] bool send(Frame frame) {
    to_write_.set();
    return outbox_.push(std::move(frame));
  }

  /// Tells the peer how many frames have come; keeps a connection alive. No effect without one, nor where so much is
  /// under way that the peer hears anyway.
  void beat() {
    if (link_ && link_->writer.queued_bytes() < batch_bytes &&
        link_->writer.queue(encode(Heartbeat{received_}, heartbeat_))) {
      unacknowledged_bytes_ = 0;
      to_write_.set();
    }
  }

  /// Ends the connection once everything is sent. Without one, nothing is sent any more.
  void close_after_sending() {
    closing_ = true;
    to_write_.set();
  }

  /// Ends everything; no handler is called any more.
  void close() noexcept {
    handlers_ = {};
    detach();
  }

  std::uint64_t received() const noexcept { return received_; }
  Deadline::Clock::time_point last_heard() const noexcept { return last_heard_; }
  void forgive_silence() noexcept { last_heard_ = Deadline::Clock::now(); }
  std::size_t waiting_bytes() const noexcept { return outbox_.waiting_bytes(); }

 private:
  static constexpr std::size_t kept_bytes = std::size_t{4} << 20;
  static constexpr std::size_t batch_bytes = std::size_t{1} << 20;
  static constexpr std::size_t acknowledged_every = std::size_t{1} << 20;
  static constexpr std::chrono::milliseconds linger{1000};

  static constexpr std::chrono::milliseconds step{100};  ///< how often a peer that takes little is looked after

  static Deadline a_day() { return Deadline::after(std::chrono::hours(24)); }

  bool lacks_room() const noexcept {
    return options_.is_store && outbox_.waiting_bytes() > options_.outgoing_bytes / 16;
  }

  /// Waits while many frames wait to be sent, so that a rank reads answers before it asks for more. On one side only:
  /// two that waited so for each other would do so for good. A peer that is not read is alive while it takes bytes.
  async::Task<void> room() {
    while (lacks_room()) {
      is_crowded_ = true;
      co_await taken_.wait(a_day());
    }
    is_crowded_ = false;
  }

  /// Ends both directions and the connection.
  void detach() noexcept {
    reading_.cancel();
    writing_.cancel();
    link_.reset();
    taken_.set();
  }

  /// Runs one direction. Its end, or its exception, is the end of the connection.
  static async::Task<void> run(std::shared_ptr<Line> self, async::Task<std::string> (Line::*direction)(Link&)) {
    const Link* const link = self->link_.get();
    std::string how;
    try {
      how = co_await ((*self).*direction)(*self->link_);
    } catch (const std::exception& error) {
      how = error.what();
    }
    if (self->link_.get() == link) {
      self->detach();
      const std::function<void(const std::string&)> on_end = self->handlers_.on_end;
      if (on_end) {
        on_end(how);
      }
    }
  }

  async::Task<std::string> read_all(Link& link) {
    net::FrameResult frame;
    is_crowded_ = false;  // an earlier connection may have ended while it waited for room
    for (;;) {
      if (lacks_room()) {
        co_await room();
      }
      if (!link.reader.try_read_frame(frame)) {
        co_await link.connection.readable(a_day());
        continue;
      }
      if (!frame.ok()) {
        co_return frame.reason;
      }
      last_heard_ = Deadline::Clock::now();
      const bool understood = hear(frame.payload);
      if (link_.get() != &link) {
        co_return std::string();
      }
      if (!understood) {
        co_return "it sent bytes that do not follow the protocol";
      }
    }
  }

  bool hear(std::span<const std::byte> frame) {
    if (const std::optional<std::uint64_t> has = decode_heartbeat(frame)) {
      if (options_.is_store) {
        beat();
      }
      return outbox_.acknowledge(*has);
    }
    ++received_;
    unacknowledged_bytes_ += frame.size();
    if (unacknowledged_bytes_ > acknowledged_every) {
      beat();
    }
    const std::function<bool(std::span<const std::byte>)> on_frame = handlers_.on_frame;
    return !on_frame || on_frame(frame);
  }

  async::Task<std::string> write_all(Link& link) {
    Deadline::Clock::time_point last_taken = Deadline::Clock::now();
    for (;;) {
      while (outbox_.has_waiting() && link.writer.queued_bytes() < batch_bytes) {
        static_cast<void>(link.writer.queue(outbox_.take()));  // its own bound is far above a batch
      }
      if (link.writer.queued_bytes() > 0) {
        net::IoResult result = link.writer.try_flush();
        if (result.status == net::IoStatus::timed_out) {
          const std::size_t at_once = result.bytes;
          result = co_await link.writer.flush(Deadline::after(std::min(options_.send, step)));
          result.bytes += at_once;
        }
        taken_.set();
        if (result.status == net::IoStatus::closed) {
          co_return result.reason();
        }
        const Deadline::Clock::time_point now = Deadline::Clock::now();
        if (result.bytes > 0) {
          last_taken = now;
          last_heard_ = is_crowded_ ? now : last_heard_;
        } else if (now - last_taken >= options_.send) {
          co_return "it took nothing for " + seconds_text(options_.send);
        }
      } else if (closing_) {
        link.connection.shutdown_write();  // the peer reads all of it, and closes; who does not close is closed
        co_await loop_.sleep_for(linger);
        co_return "it was told to close";
      } else {
        co_await to_write_.wait(a_day());
        last_taken = Deadline::Clock::now();
      }
    }
  }

  async::EventLoop& loop_;
  LineOptions options_;
  Handlers handlers_;
  Outbox outbox_;
  std::unique_ptr<Link> link_;
  async::AutoResetEvent to_write_;
  async::AutoResetEvent taken_;
  Deadline::Clock::time_point last_heard_;
  std::uint64_t received_ = 0;
  std::size_t unacknowledged_bytes_ = 0;
  FieldWriter heartbeat_;
  bool is_crowded_ = false;  ///< too much waits to be sent, so nothing is read
  bool closing_ = false;
  async::Spawned reading_;
  async::Spawned writing_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/served_job.hpp

/// @file
/// rendezvous::ServedJob: a job with the sessions of its ranks.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Does what its Job wants done, and notices who is gone: whose session has had no connection for the grace, or has
/// said nothing for the liveness time. Lifetime: the loop outlives it; destroying it closes every session at once.
/// Threads: the loop's.
class ServedJob {
 public:
  /// @throws Error (posix) if the system gives no random bytes; Error (invalid_argument) for an impossible world size
  ServedJob(async::EventLoop& loop, JobOptions options, const Limits& limits)
      : loop_(loop),
        options_(checked(std::move(options))),
        limits_(limits),
        job_(options_.world_size, options_.owner, random_job_id(), limits_),
        over_(loop),
        formation_(loop, job_, options_.formation, [this] { apply(); }),
        listening_(loop_.spawn(watch_silence())) {}
  ServedJob(const ServedJob&) = delete;
  ServedJob& operator=(const ServedJob&) = delete;
  ~ServedJob() = default;

  const JobOptions& options() const noexcept { return options_; }

  /// Posts a failure that the store's own process noticed. The first cause of the job wins and goes to every rank.
  void post_failure(const Cause& cause) {
    job_.post(cause);
    apply();
  }

  /// The job's first cause; nothing while it is well.
  const std::optional<Cause>& cause() const noexcept { return job_.cause(); }

  /// Whether by the deadline every rank has left, or, after a failure, closed its connection.
  async::Task<bool> all_left(Deadline deadline) {
    const async::Ready ready = co_await over_.wait(deadline);
    co_return ready == async::Ready::ready;
  }

  std::size_t sessions() const noexcept { return members_.size(); }

  /// @name For the server's door
  /// @{
  /// Somebody who may wants to join, or to go on. After Accepted, carry() with the same session.
  std::variant<Accepted, Refused, Failure> admit(const Join& join) {
    const Seats::Seat* seat = job_.seats().seat_of(join);
    const Member* former = seat == nullptr ? nullptr : members_.at(seat->session).get();
    if (former != nullptr && !former->line->attached() && former->line->received() == 0) {
      return accept(seat->session, *former);  // its connection broke before it had heard that it is in
    }
    const SessionId id = ++last_id_;
    auto member = std::make_unique<Member>(Nonce(random_bytes<16>()), line_of(id));
    Member& added = *members_.emplace(id, std::move(member)).first->second;
    const Job::Verdict verdict = job_.join(id, join);
    if (std::holds_alternative<std::monostate>(verdict)) {
      formation_.joined(join.patience_ms);
      const Accepted accepted = accept(id, added);
      apply();
      return accepted;
    }
    members_.erase(id);
    apply();
    const Refused* refused = std::get_if<Refused>(&verdict);
    return refused != nullptr ? std::variant<Accepted, Refused, Failure>(*refused) : std::get<Failure>(verdict);
  }
  std::variant<Accepted, Refused, Failure> admit(const Resume& resume) {
    const auto found = members_.find(resume.ticket.session);
    if (found == members_.end() || found->second->key != resume.ticket.key) {
      if (job_.cause()) {
        return Failure{*job_.cause()};
      }
      return Refused{"this session is over: it was without a connection for too long, or it never was"};
    }
    return accept(found->first, *found->second);
  }
  /// The session goes on over this connection. @param has how many frames the rank has
  void carry(SessionId id, std::unique_ptr<Link> link, std::uint64_t has) {
    const auto found = members_.find(id);
    if (found == members_.end()) {
      return;
    }
    link->reader.raise_bound(max_frame_bytes);
    link->watch(limits_.liveness);
    if (found->second->line->attach(std::move(link), has)) {
      found->second->waiting.cancel();
    } else {
      gone(id, "it missed more than is kept for it");
    }
  }
  void note_refusal(std::string sentence) { job_.note_refusal(std::move(sentence)); }
  /// @}

 private:
  struct Member {
    Member(Nonce secret_key, std::shared_ptr<Line> conversation) : key(secret_key), line(std::move(conversation)) {}
    Member(const Member&) = delete;
    Member& operator=(const Member&) = delete;
    ~Member() { line->close(); }

    Nonce key;
    std::shared_ptr<Line> line;
    async::Spawned waiting;  ///< for a new connection
  };

  static JobOptions checked(JobOptions options) {
    if (options.world_size < 1 || options.world_size > max_world_size) {
      throw Error(Errc::invalid_argument, "opening the store of a job of " + std::to_string(options.world_size) +
                                              " ranks; 1 to " + std::to_string(max_world_size) + " are possible");
    }
    return options;
  }

  std::shared_ptr<Line> line_of(SessionId id) {
    Line::Handlers handlers;
    handlers.on_frame = [this, id](std::span<const std::byte> frame) { return hear(id, frame); };
    handlers.on_end = [this, id](const std::string& how) { disconnected(id, how); };
    const LineOptions line{limits_.outgoing_bytes, limits_.send, true};
    return std::make_shared<Line>(loop_, line, std::move(handlers));
  }

  /// Fewer heartbeats a rank where there are many ranks: ten thousand of them say 10,000 a second.
  std::chrono::milliseconds heartbeat() const {
    const std::chrono::milliseconds wanted(std::max(500, options_.world_size / 10));
    return std::max(std::chrono::milliseconds(1), std::min(wanted, limits_.liveness / 4));
  }

  Accepted accept(SessionId id, const Member& member) const {
    Accepted accepted;
    accepted.ticket = Ticket{id, member.key};
    accepted.received = member.line->received();
    accepted.heartbeat_ms = on_the_wire(heartbeat());
    accepted.liveness_ms = on_the_wire(limits_.liveness);
    accepted.grace_ms = on_the_wire(limits_.grace);
    return accepted;
  }
  static std::uint32_t on_the_wire(std::chrono::milliseconds time) noexcept {
    return static_cast<std::uint32_t>(std::min(time, std::chrono::milliseconds(0xffffffffU)).count());
  }

  bool hear(SessionId id, std::span<const std::byte> frame) {
    if (!job_.has_joined(id)) {
      return true;  // it has left: what it still says is read only so that its end is seen
    }
    std::optional<FromRank> message = decode_from_rank(frame);
    if (!message) {
      return false;
    }
    job_.receive(id, *std::move(message));
    apply();
    return true;
  }

  /// A session has no connection any more: it may come back for a while, unless it has left or the job is failing.
  void disconnected(SessionId id, const std::string& how) {
    const std::string text = "its connection ended without leave(ok) (" + how + ")";
    const auto found = members_.find(id);
    if (found == members_.end()) {
      return;
    }
    const bool may_come_back = job_.has_joined(id) && !job_.cause() && limits_.grace.count() > 0;
    if (may_come_back) {
      found->second->waiting = loop_.spawn(wait_for(id, text));
    } else {
      gone(id, text);
    }
  }

  async::Task<void> wait_for(SessionId id, std::string how) {
    co_await loop_.sleep_for(limits_.grace);
    gone(id, how);
  }

  /// A session is over.
  void gone(SessionId id, const std::string& how) {
    const std::optional<Cause> loss = job_.closed(id, how);
    members_.erase(id);
    if (loss) {
      job_.post(*loss);
    }
    apply();
  }

  /// Where the store's own process was stopped meanwhile, nobody is blamed for it.
  async::Task<void> watch_silence() {
    const std::chrono::milliseconds step = std::max(std::chrono::milliseconds(1), limits_.liveness / 8);
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(step);
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      const bool was_stopped = now - before > step + limits_.liveness / 2;
      std::vector<SessionId> silent;
      for (auto& [id, member] : members_) {
        if (was_stopped) {
          member->line->forgive_silence();
        } else if (member->line->attached() && now - member->line->last_heard() > limits_.liveness) {
          silent.push_back(id);
        }
      }
      for (const SessionId id : silent) {
        gone(id, "it has said nothing for " + seconds_text(limits_.liveness) +
                     " (it is stopped, or its host or the way to it is gone)");
      }
    }
  }

  /// Does what the job wants done. A handler may post a failure meanwhile: it is done after what came before.
  void apply() {
    if (std::exchange(applying_, true)) {
      return;
    }
    const std::unique_ptr<bool, void (*)(bool*)> guard(&applying_, [](bool* applying) { *applying = false; });
    std::vector<SessionId> unread;
    for (auto effects = job_.take_effects(); !effects.empty(); effects = job_.take_effects()) {
      for (Effect& effect : effects) {
        std::visit([&](auto& each) { perform(each, unread); }, effect);
      }
    }
    applying_ = false;
    if (job_.over()) {
      over_.set();
    }
    for (const SessionId id : unread) {
      gone(id, "it left more than " + std::to_string(limits_.outgoing_bytes) + " bytes of answers unread");
    }
  }

  void perform(Send& send, std::vector<SessionId>& unread) {
    const auto found = members_.find(send.session);
    if (found != members_.end() && !found->second->line->send(encode(std::move(send.message)))) {
      unread.push_back(send.session);
    }
  }
  void perform(const CloseAfterSending& close, std::vector<SessionId>&) {
    const auto found = members_.find(close.session);
    if (found != members_.end()) {
      found->second->line->close_after_sending();
    }
  }
  void perform(const Joined& joined, std::vector<SessionId>&) {
    if (options_.on_joined) {
      options_.on_joined(joined.rank, joined.host);
    }
  }
  void perform(const HasLeft& left, std::vector<SessionId>&) {
    if (options_.on_left) {
      options_.on_left(left.rank);
    }
  }
  void perform(const HasFailed& failed, std::vector<SessionId>&) {
    if (options_.on_failure) {
      options_.on_failure(failed.cause);
    }
  }

  async::EventLoop& loop_;
  JobOptions options_;
  Limits limits_;
  Job job_;
  async::Event over_;
  bool applying_ = false;
  SessionId last_id_ = 0;
  std::map<SessionId, std::unique_ptr<Member>> members_;
  FormationWatch formation_;  ///< the tasks come last: they are gone before what they use
  async::Spawned listening_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/transcript.hpp

/// @file
/// What was said at the door, and the proofs of the secret over it.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Whose proof it is. Each has a label of its own, so neither can be sent back as the other.
enum class Prover : std::uint8_t { rank, store };

/// The frames of one handshake in order, each with its length. A proof is the HMAC-SHA256 (RFC 2104) under the secret
/// of a label and the SHA-256 of these frames up to the place of the proof itself, which ends its frame. It is bound to
/// both nonces, so that none can be replayed; to the protocol's and dtrain's version, the role and the generation,
/// which are in the Hello; and to everything else that its frame says. The store's covers the rank's. Pure.
class Transcript {
 public:
  void add(std::span<const std::byte> frame) noexcept { append(said_, frame); }

  /// The proof for a frame whose proof is not filled in yet, without adding it.
  Proof proof_for(Prover prover, const Secret& secret, std::span<const std::byte> frame) const noexcept {
    Sha256 said = said_;
    append(said, frame.first(frame.size() - std::min(frame.size(), sizeof(Proof))));
    constexpr std::string_view rank_label = "dtrain: a rank's proof";
    constexpr std::string_view store_label = "dtrain: the store's proof";
    const std::string_view label = prover == Prover::rank ? rank_label : store_label;
    return HmacSha256(secret.bytes()).update(label).update(said.digest()).digest();
  }

  /// Whether a received frame ends with the right proof.
  bool is_proved(Prover prover, const Secret& secret, std::span<const std::byte> frame) const noexcept {
    if (frame.size() < sizeof(Proof)) {
      return false;
    }
    Proof given{};
    std::copy(frame.end() - sizeof(Proof), frame.end(), given.begin());
    return equal_in_constant_time(given, proof_for(prover, secret, frame));
  }

 private:
  static void append(Sha256& said, std::span<const std::byte> frame) noexcept {
    std::array<std::byte, 8> length{};
    for (std::size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<std::byte>((static_cast<std::uint64_t>(frame.size()) >> (8 * i)) & 0xffU);
    }
    said.update(length).update(frame);
  }

  Sha256 said_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/knock.hpp

/// @file
/// A rank's half of what is said at the door of a store.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Where a store is, and how to get in.
struct Address {
  std::string host;
  std::uint16_t port = 0;
  std::uint16_t ports = 1;  ///< at which of so many ports from there on the store may be
  Role role = Role::rank;
  std::uint64_t generation = 0;
  std::optional<Secret> secret{};

  std::string text() const { return host + ":" + std::to_string(port); }
};

/// The store closed, or the deadline passed, before it had said whether it lets this rank in.
struct NoAnswer {
  std::string reason;
  bool timed_out = false;
};

using KnockResult = std::variant<Accepted, Refused, Failure, NoAnswer>;

namespace detail {

inline Error no_store_error(const std::string& doing) {
  return Error(Errc::protocol,
               doing + ": what listens there is no store of dtrain's; check MASTER_ADDR and MASTER_PORT");
}

inline NoAnswer no_answer(const net::FrameResult& frame) {
  return {frame.reason, frame.status == net::FrameStatus::timed_out};
}

}  // namespace detail

/// @param call its proof is filled in here @param doing begins the sentences: "joining the job at a:1 as rank 2"
/// @param deadline of hearing anything @param settled of the answer to `call`: a store that took it may act on it
/// @throws Error (protocol) for what is no store; Error (refused) for one that does not know the secret, or asks for
/// none where this rank has one: it may be somebody else
inline async::Task<KnockResult> knock(Link& link, const Address& address, Knock call, std::string doing,
                                      Deadline deadline, Deadline settled) {
  Transcript transcript;
  const Frame hello =
      encode(Hello{version_text(), address.role, address.generation, random_bytes<16>(), address.secret.has_value()});
  transcript.add(hello);
  const net::IoResult greeted = co_await link.writer.write_frame(hello, deadline);
  if (!greeted.ok()) {
    co_return NoAnswer{greeted.reason(), greeted.status == net::IoStatus::timed_out};
  }
  const net::FrameResult first = co_await link.reader.read_frame(deadline);
  if (!first.ok()) {
    co_return detail::no_answer(first);
  }
  std::optional<DoorAnswer> answer = decode_door_answer(first.payload);
  if (answer && std::holds_alternative<Refused>(*answer)) {
    co_return std::get<Refused>(*std::move(answer));
  }
  const Challenge* challenge = answer ? std::get_if<Challenge>(&*answer) : nullptr;
  if (challenge == nullptr) {
    throw detail::no_store_error(doing);
  }
  if (address.secret && !challenge->asks_secret) {
    throw Error(Errc::refused, doing +
                                   ": this process has the job's secret, and the store asks for none: it is another "
                                   "job's, or nobody gave it the secret; check MASTER_ADDR and MASTER_PORT, and "
                                   "DTRAIN_SECRET on rank 0");
  }
  transcript.add(first.payload);
  Frame frame = std::visit([](auto& each) { return encode(each); }, call);
  if (address.secret) {
    const Proof proof = transcript.proof_for(Prover::rank, *address.secret, frame);
    std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
  }
  transcript.add(frame);
  const net::IoResult called = co_await link.writer.write_frame(frame, settled);
  if (!called.ok()) {
    co_return NoAnswer{called.reason(), called.status == net::IoStatus::timed_out};
  }
  const net::FrameResult second = co_await link.reader.read_frame(settled);
  if (!second.ok()) {
    co_return detail::no_answer(second);
  }
  answer = decode_door_answer(second.payload);
  if (!answer || std::holds_alternative<Challenge>(*answer)) {
    throw detail::no_store_error(doing);
  }
  if (Refused* refused = std::get_if<Refused>(&*answer)) {
    co_return std::move(*refused);
  }
  if (Failure* failure = std::get_if<Failure>(&*answer)) {
    co_return std::move(*failure);
  }
  if (address.secret && !transcript.is_proved(Prover::store, *address.secret, second.payload)) {
    throw Error(Errc::refused, doing +
                                   ": what listens there does not know the job's secret; check MASTER_ADDR and "
                                   "MASTER_PORT");
  }
  co_return std::get<Accepted>(*std::move(answer));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/entrance.hpp

/// @file
/// How a rank finds the store of its job and is let in.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who wants to join.
struct JoinRequest {
  RankFacts facts;
  int world_size = 1;
  std::string job{};  ///< what the launcher calls the job
};

/// A store that has let this rank in.
struct Entered {
  Address address;  ///< with the port that it was found at
  Accepted accepted;
  std::unique_ptr<Link> link;
};

/// Tries until the store is there. Where it may be at one of several ports, what is found at one is asked whether it is
/// this job's; who does not answer as a store of this job is passed over.
/// Lifetime: what it is given outlives its task. Threads: the loop's.
class Entrance {
 public:
  Entrance(async::EventLoop& loop, Address address, const JoinRequest& request, FailureLatch& failure,
           std::string doing, Deadline deadline)
      : loop_(&loop),
        address_(std::move(address)),
        request_(&request),
        failure_(&failure),
        doing_(std::move(doing)),
        deadline_(deadline) {}

  /// @throws Error (refused) with the store's sentence, or where one side does not know the other's secret; the job's
  /// first cause; Error (timeout); Error (protocol) for what is no store; and what connecting throws
  async::Task<Entered> enter() {
    const std::chrono::microseconds turn = turn_of(request_->facts.rank);
    if (turn.count() > 0) {
      co_await loop_->sleep_until(earlier(deadline_, Deadline::after(turn)));
    }
    const std::uint16_t first = address_.port;
    std::chrono::milliseconds delay{10};
    for (std::uint16_t place = 0;; place = static_cast<std::uint16_t>((place + 1) % address_.ports)) {
      address_.port = static_cast<std::uint16_t>(first + place);
      Entered entered;
      async::Task<bool> attempt = address_.ports == 1 ? try_once(entered, deadline_, deadline_) : try_place(entered);
      const bool in = co_await std::move(attempt);
      if (in) {
        entered.address = address_;
        co_return std::move(entered);
      }
      if (Deadline::Clock::now() + delay >= deadline_.instant()) {
        throw timed_out(in_vain_ + "; check that MASTER_ADDR and MASTER_PORT are those of this job's store");
      }
      if (place + 1 == address_.ports) {
        co_await loop_->sleep_for(delay);
        delay = std::min(2 * delay, std::chrono::milliseconds(1000));
      }
    }
  }

 private:
  /// How long one of several ports is tried before the next.
  static constexpr std::chrono::milliseconds one_place{500};
  /// And how long a store there may take to answer a Join: one that is slow has taken the rank in meanwhile.
  static constexpr std::chrono::milliseconds settling{5000};
  /// How long users wait without a word.
  static constexpr std::chrono::seconds silence{10};

  /// How long a rank waits before it calls. More calls at once than a listener's queue holds (4096 on most systems) are
  /// dropped, and TCP repeats them only a second later; so the many ranks of a large job come about as fast as a store
  /// takes them.
  static std::chrono::microseconds turn_of(int rank) noexcept {
    constexpr int at_once = 2000;
    constexpr int longest = 100000;
    return std::chrono::microseconds(60) * (std::clamp(rank, at_once, longest) - at_once);
  }

  Error timed_out(const std::string& what) const {
    return Error(Errc::timeout, doing_ + ": the deadline passed; " + what);
  }

  async::Task<bool> try_place(Entered& entered) {
    bool in = false;
    try {
      const Deadline moment = earlier(deadline_, Deadline::after(one_place));
      in = co_await try_once(entered, moment, earlier(deadline_, Deadline::after(settling)));
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      if (failure_->failed() || (error.code() == make_error_code(Errc::refused) && !is_elsewhere_)) {
        throw;
      }
      in_vain_ = error.what();
    }
    co_return in;
  }

  /// Connects and knocks. False, with `in_vain_` set, where it is worth another try.
  async::Task<bool> try_once(Entered& entered, Deadline deadline, Deadline settled) {
    is_elsewhere_ = true;
    net::Connection connection = co_await connect(deadline);
    entered.link = std::make_unique<Link>(std::move(connection));
    Knock call = make_join();
    KnockResult result = co_await knock(*entered.link, address_, std::move(call), doing_, deadline, settled);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      is_elsewhere_ = refused->other_job;
      throw Error(Errc::refused, doing_ + " was refused: " + refused->sentence).with_rank(request_->facts.rank);
    }
    if (const Failure* failed = std::get_if<Failure>(&result)) {
      failure_->set(failed->cause);
      failure_->throw_if_failed(request_->facts.rank);
    }
    const NoAnswer* none = std::get_if<NoAnswer>(&result);
    if (none != nullptr && none->timed_out) {
      throw timed_out("the store took the connection but does not answer");
    }
    if (none != nullptr) {
      in_vain_ = "what listens there closed the connection without an answer (" + none->reason + ")";
      co_return false;
    }
    entered.accepted = std::get<Accepted>(result);
    co_return true;
  }

  /// With a word to the user where it takes long.
  async::Task<net::Connection> connect(Deadline deadline) {
    const Deadline moment = earlier(deadline, Deadline::after(silence));
    std::string so_far;
    try {
      net::Connection connection = co_await net::connect_with_backoff(*loop_, address_.host, address_.port, moment);
      co_return std::move(connection);
    } catch (const Error& error) {
      constexpr std::chrono::milliseconds longest_delay(1100);  // it ends by so much before its deadline
      if (moment.remaining() > longest_delay || moment.instant() == deadline.instant()) {
        throw;
      }
      so_far = error.what();
    }
    log(LogLevel::warning, doing_ + ": still waiting; " + so_far);
    net::Connection connection = co_await net::connect_with_backoff(*loop_, address_.host, address_.port, deadline);
    co_return std::move(connection);
  }

  /// The store gives up a moment before this rank does, so that it has time to say which ranks are missing.
  Join make_join() const {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline_.remaining());
    const auto patience = left - std::min(left / 10, std::chrono::milliseconds(1000));
    Join join;
    join.facts = request_->facts;
    join.world_size = request_->world_size;
    join.job = request_->job;
    join.process = static_cast<std::int64_t>(::getpid());
    join.patience_ms = static_cast<std::uint64_t>(patience.count());
    return join;
  }

  async::EventLoop* loop_;
  Address address_;
  const JoinRequest* request_;
  FailureLatch* failure_;
  std::string doing_;
  Deadline deadline_;
  std::string in_vain_;
  bool is_elsewhere_ = true;  ///< what was found at the last place is not this job's store
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/lifeline.hpp

/// @file
/// rendezvous::Lifeline: a rank's side of its session: beats, and is made good after a break.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop outlives it. Threads: the loop's. Its handlers may end it.
class Lifeline {
 public:
  struct Handlers {
    std::function<bool(ToRank&)> on_message;              ///< false where it is out of place
    std::function<void(const std::string& how)> on_lost;  ///< the store is gone for good; a clause
  };

  Lifeline(async::EventLoop& loop, Address address, const Accepted& accepted, std::unique_ptr<Link> link,
           Handlers handlers)
      : loop_(loop),
        address_(std::move(address)),
        accepted_(accepted),
        handlers_(std::move(handlers)),
        line_(std::make_shared<Line>(loop, LineOptions{}, line_handlers())) {
    link->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    static_cast<void>(line_->attach(std::move(link), 0));  // a new line can go on from its beginning
    beating_ = loop_.spawn(beat());
  }
  Lifeline(const Lifeline&) = delete;
  Lifeline& operator=(const Lifeline&) = delete;
  ~Lifeline() { end(); }

  /// False where too much waits to be sent.
  [[nodiscard]] bool send(Frame frame) { return line_->send(std::move(frame)); }
  std::size_t waiting_bytes() const noexcept { return line_->waiting_bytes(); }

  /// Closes the connection; no handler is called any more.
  void end() noexcept {
    handlers_ = {};
    line_->close();
    beating_.cancel();
    resuming_.cancel();
  }

 private:
  Line::Handlers line_handlers() {
    Line::Handlers handlers;
    handlers.on_frame = [this](std::span<const std::byte> frame) {
      std::optional<ToRank> message = decode_to_rank(frame);
      const std::function<bool(ToRank&)> on_message = handlers_.on_message;
      return message && (!on_message || on_message(*message));
    };
    handlers.on_end = [this](const std::string& how) {
      if (accepted_.grace_ms == 0) {
        lose(how);
      } else {
        resuming_ = loop_.spawn(resume(how));
      }
    };
    return handlers;
  }

  void lose(const std::string& how) {
    const std::function<void(const std::string&)> on_lost = handlers_.on_lost;
    end();
    if (on_lost) {
      on_lost(how);
    }
  }

  /// Where this process itself was stopped meanwhile, the store is not blamed for it.
  async::Task<void> beat() {
    const std::chrono::milliseconds every(std::max(accepted_.heartbeat_ms, 1U));
    const std::chrono::milliseconds liveness(std::max(accepted_.liveness_ms, 1U));
    for (;;) {
      const Deadline::Clock::time_point before = Deadline::Clock::now();
      co_await loop_.sleep_for(every);
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      if (now - before > every + liveness / 2) {
        line_->forgive_silence();
      } else if (line_->attached() && now - line_->last_heard() > liveness) {
        lose("it has said nothing for " + seconds_text(liveness) +
             " (it is stopped, or its host or the way to it is gone)");
        co_return;
      }
      line_->beat();
    }
  }

  /// Makes the broken connection good within the grace. @param how it broke
  async::Task<void> resume(std::string how) {
    const Deadline deadline = Deadline::after(std::chrono::milliseconds(accepted_.grace_ms));
    std::string reason;
    bool done = false;
    try {
      while (!done && reason.empty() && !deadline.passed()) {
        done = co_await resume_once(reason, deadline);
        if (!done && reason.empty()) {
          co_await loop_.sleep_for(std::chrono::milliseconds(10));
        }
      }
    } catch (const std::exception& error) {
      reason = error.what();
    }
    if (!done) {
      lose(how + (reason.empty() ? "" : "; going on with the session failed: " + reason));
    }
  }

  /// @param reason set where trying again is in vain
  async::Task<bool> resume_once(std::string& reason, Deadline deadline) {
    net::Connection connection = co_await net::connect_with_backoff(loop_, address_.host, address_.port, deadline);
    auto link = std::make_unique<Link>(std::move(connection));
    Knock call = Resume{accepted_.ticket, line_->received(), {}};
    KnockResult result =
        co_await knock(*link, address_, std::move(call), "going on with the session", deadline, deadline);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      reason = refused->sentence;
    } else if (const Failure* failure = std::get_if<Failure>(&result)) {
      reason = failure->cause.sentence();
      ToRank message = *failure;
      const std::function<bool(ToRank&)> on_message = handlers_.on_message;
      static_cast<void>(!on_message || on_message(message));
    }
    const Accepted* accepted = std::get_if<Accepted>(&result);
    if (accepted == nullptr) {
      co_return false;
    }
    link->watch(std::chrono::milliseconds(accepted_.liveness_ms));
    const bool attached = line_->attach(std::move(link), accepted->received);
    reason = attached ? "" : "the store misses more than is kept for it";
    co_return attached;
  }

  async::EventLoop& loop_;
  Address address_;
  Accepted accepted_;
  Handlers handlers_;
  std::shared_ptr<Line> line_;
  async::Spawned beating_;
  async::Spawned resuming_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/exchange.hpp

/// @file
/// A rank's side of its session with the store: questions out, answers and the job's failure in.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Shared by the Session, which ends it, and the tasks that wait for answers.
/// Lifetime: the loop outlives it. Threads: the loop's.
class Exchange {
 public:
  /// What a question came to: an answer, or nothing in time.
  using Answer = std::optional<Response>;

  /// @param link on which the store has accepted this rank
  Exchange(async::EventLoop& loop, Address address, const Accepted& accepted, std::unique_ptr<Link> link, int rank,
           std::shared_ptr<FailureLatch> failure)
      : loop_(loop),
        rank_(rank),
        store_(address.text()),
        failure_(std::move(failure)),
        welcomed_(loop),
        left_(loop),
        told_(loop),
        line_(std::make_unique<Lifeline>(loop, std::move(address), accepted, std::move(link), handlers())) {}
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() { end("the session with the store ended"); }

  /// Waits until all ranks have joined: who this rank is; nothing where the deadline passed.
  /// @throws the job's first cause
  async::Task<std::optional<Membership>> welcome(Deadline deadline) {
    co_await welcomed_.wait(deadline);
    failure_->throw_if_failed(rank_);
    co_return std::move(membership_);
  }

  /// Sends a request and waits for its answer. After the deadline it takes the request back, and waits a moment for the
  /// store to say what was missing.
  /// @param doing begins every sentence: "waiting for key 'a' of the store"
  /// @throws the job's first cause; Error (closed) after leave or end; Error (limit) where too much waits to be sent
  async::Task<Answer> ask(Request request, const std::string& doing, Deadline deadline) {
    require_open(doing);
    Question question(*this, request.id = ++last_id_);
    post(encode(std::move(request)), doing);
    async::Ready ready = co_await question.over.wait(deadline);
    if (ready == async::Ready::timed_out) {
      question.take_back();
      ready = co_await question.over.wait(Deadline::after(last_word));
    }
    if (!question.answer || question.answer->status == Status::failed) {
      require_open(doing);
    }
    co_return std::move(question.answer);
  }

  /// Says leave(ok). @returns whether the store acknowledged it by the deadline. Every other wait ends.
  async::Task<bool> leave(Deadline deadline) {
    if (!open()) {
      co_return false;
    }
    leaving_ = true;
    post(encode(Leave{}), "leaving the job");
    const async::Ready ready = co_await left_.wait(deadline);
    const bool acknowledged = ready == async::Ready::ready && acknowledged_;
    end("this rank has left the job");
    co_return acknowledged;
  }

  /// Tells the store. Where it does not answer with the job's first cause soon, this one is taken for it.
  void report(const Cause& cause) {
    if (failure_->failed()) {
      return;
    }
    if (!open() || leaving_) {
      failure_->set(cause);
      return;
    }
    try {
      post(encode(Report{cause}), "reporting a failure");
      if (reporting_.done()) {
        reporting_ = loop_.spawn(insist(cause));
      }
    } catch (const Error&) {  // too much waits to be sent: the store takes nothing
      fail(cause);
    }
  }

  /// Closes the connection; every wait ends with `sentence`. Without leave, the job sees a lost rank.
  void end(std::string sentence) noexcept {
    if (open()) {
      end_sentence_ = std::move(sentence);
    }
    reporting_.cancel();
    line_.reset();
    wake_all();
  }

  int rank() const noexcept { return rank_; }
  FailureLatch& failure() const noexcept { return *failure_; }

 private:
  static constexpr std::chrono::milliseconds last_word{1000};

  /// A request that waits, in the frame of the coroutine that asked.
  struct Question {
    Question(Exchange& home, std::uint64_t number) : exchange(home), id(number), over(home.loop_) {
      exchange.questions_.emplace(id, this);
    }
    Question(const Question&) = delete;
    Question& operator=(const Question&) = delete;
    ~Question() {
      exchange.questions_.erase(id);
      take_back();
    }

    /// Tells the store that nobody waits any more.
    void take_back() noexcept {
      if (answer || taken_back || !exchange.open()) {
        return;
      }
      taken_back = true;
      try {
        exchange.post(encode(Cancel{id}), "taking a request back");
      } catch (...) {  // too much waits to be sent: the store keeps the request
      }
    }

    Exchange& exchange;
    std::uint64_t id;
    async::Event over;
    Answer answer;
    bool taken_back = false;
  };

  bool open() const noexcept { return line_ != nullptr; }

  Lifeline::Handlers handlers() {
    Lifeline::Handlers handlers;
    handlers.on_message = [this](ToRank& message) {
      std::visit([this](auto& each) { on(each); }, message);
      return true;
    };
    handlers.on_lost = [this](const std::string& how) { lose(how); };
    return handlers;
  }

  void require_open(const std::string& doing) const {
    failure_->throw_if_failed(rank_);
    if (!open() || leaving_) {
      throw Error(Errc::closed, doing + ": " + (open() ? "this rank is leaving the job" : end_sentence_))
          .with_rank(rank_);
    }
  }

  void post(Frame frame, const std::string& doing) {
    if (!line_->send(std::move(frame))) {
      throw Error(Errc::limit, doing + ": " + std::to_string(line_->waiting_bytes()) +
                                   " bytes wait to be sent to the store; await some requests first")
          .with_rank(rank_);
    }
  }

  void wake_all() noexcept {
    for (const auto& [id, question] : questions_) {
      question->over.set();
    }
    welcomed_.set();
    left_.set();
    told_.set();
  }

  async::Task<void> insist(Cause cause) {
    const async::Ready ready = co_await told_.wait(Deadline::after(last_word));
    if (ready == async::Ready::timed_out) {
      fail(cause);
    }
  }

  void on(Response& response) {
    const auto found = questions_.find(response.id);
    if (found != questions_.end()) {
      found->second->answer = std::move(response);
      found->second->over.set();
    }
  }
  void on(const Failure& failure) { fail(failure.cause); }
  void on(const Left&) {
    acknowledged_ = true;
    left_.set();
  }
  void on(Welcome& welcome) {
    membership_ = std::move(welcome.membership);
    welcomed_.set();
  }

  /// The job has failed: every wait ends with its cause.
  void fail(const Cause& cause) {
    failure_->set(cause);
    for (const auto& [id, question] : questions_) {
      question->over.set();
    }
    welcomed_.set();
    told_.set();
  }

  /// The session ended, and this rank did not mean it.
  void lose(const std::string& how) {
    if (!leaving_ && !failure_->failed()) {
      fail(Cause{CauseKind::lost,
                 -1,
                 {},
                 "the store of the job at " + store_ + " went away: rank 0 or its launcher ended (" + how + ")"});
    }
    wake_all();
  }

  async::EventLoop& loop_;
  int rank_;
  std::string store_;
  std::shared_ptr<FailureLatch> failure_;
  async::Event welcomed_;
  async::Event left_;
  async::Event told_;
  std::uint64_t last_id_ = 0;
  std::optional<Membership> membership_;
  std::map<std::uint64_t, Question*> questions_;
  bool leaving_ = false;
  bool acknowledged_ = false;
  std::string end_sentence_;
  async::Spawned reporting_;
  std::unique_ptr<Lifeline> line_;  ///< null once ended
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/listen.hpp

/// @file
/// Where a store listens for the others of its job.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What the user said about it.
struct ListenRules {
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: an interface's name, or an address
  bool has_secret = false;                  ///< then who reaches the port cannot join without it
};

namespace detail {

/// Nothing where the address is not one of this machine's. @throws Error (posix) with a sentence about the port
inline std::optional<net::Listener> try_listen(async::EventLoop& loop, const std::string& host,
                                               const net::Endpoint& endpoint) {
  try {
    return net::Listener::bind(loop, endpoint);
  } catch (const Error& error) {
    if (error.code().value() == EADDRNOTAVAIL) {
      return std::nullopt;
    }
    if (error.code().value() == EADDRINUSE) {
      throw Error(error.code(), "port " + std::to_string(endpoint.port()) + " on " + host +
                                    " is in use by another program, and the job's store is to listen there; choose "
                                    "another with MASTER_PORT or --master-port");
    }
    throw;
  }
}

/// The addresses of what DTRAIN_INTERFACE names. @throws Error (usage) where this machine has no such
inline std::vector<net::Endpoint> named_addresses(const std::string& name, std::uint16_t port) {
  if (const std::optional<net::Endpoint> address = net::Endpoint::from_numeric(name, port)) {
    return {*address};
  }
  std::vector<net::Endpoint> found;
  std::string there;
  for (const net::InterfaceAddress& each : net::interface_addresses()) {
    if (each.interface == name) {
      found.push_back(each.endpoint.with_port(port));
    }
    there += (there.empty() ? "" : ", ") + each.interface + " (" + each.endpoint.host() + ")";
  }
  if (found.empty()) {
    throw Error(Errc::usage, "DTRAIN_INTERFACE=" + name +
                                 " is neither an address nor an interface of this machine with "
                                 "one; there are: " +
                                 there);
  }
  return found;
}

inline bool is_written_as_loopback(const std::string& host, const net::Endpoint& resolved) {
  return host == "localhost" || (net::Endpoint::from_numeric(host, 0) && resolved.is_loopback());
}

/// Where to listen for a host that is none of this machine's outward addresses: its name may mean the loopback address
/// here and another one elsewhere (Debian's 127.0.1.1), or the address may be forwarded to this machine (a service's).
/// @throws Error (usage) where that would be every interface, for everybody
inline std::vector<net::Endpoint> behind_a_name(const std::string& host, const std::vector<net::Endpoint>& resolved,
                                                const std::optional<net::Endpoint>& outward) {
  std::vector<net::Endpoint> candidates;
  if (outward) {
    candidates.push_back(outward->with_port(resolved.front().port()));
  }
  std::copy_if(resolved.begin(), resolved.end(), std::back_inserter(candidates),
               [](const net::Endpoint& each) { return each.is_loopback(); });
  if (candidates.empty()) {
    throw Error(Errc::usage,
                "the job's store is to listen at " + host +
                    ", which is no address of this machine, and to listen at all of its addresses the job "
                    "needs a secret; set MASTER_ADDR to an address of this machine, or DTRAIN_INTERFACE, or "
                    "the same DTRAIN_SECRET for all of the job");
  }
  return candidates;
}

}  // namespace detail

/// Listens at `host` where that is this machine's: at the loopback address if it is written as one; else at the first
/// of its addresses that is local and not loopback. Where none is: at every address with a secret; without one at the
/// address of the default route, and at the loopback address that the name means here.
/// @throws Error (posix): "port 29500 on host-a is in use ..."; Error (refused) for a host that does not resolve; Error
/// (usage) where it would have to listen everywhere without a secret, or DTRAIN_INTERFACE is none of this machine's
inline async::Task<std::vector<net::Listener>> listen_for_ranks(async::EventLoop& loop, std::string host,
                                                                std::uint16_t port, Deadline deadline,
                                                                ListenRules rules) {
  std::vector<net::Listener> listeners;
  const auto listen = [&](const net::Endpoint& endpoint) {
    std::optional<net::Listener> listener = detail::try_listen(loop, host, endpoint);
    if (listener) {
      listeners.push_back(*std::move(listener));
    }
    return !listeners.empty();
  };
  if (rules.interface) {
    const std::vector<net::Endpoint> named = detail::named_addresses(*rules.interface, port);
    if (!std::any_of(named.begin(), named.end(), listen)) {
      throw Error(Errc::usage, "DTRAIN_INTERFACE=" + *rules.interface + " is no address of this machine");
    }
    co_return std::move(listeners);
  }
  const net::Resolution resolution = co_await net::resolve(loop, host, port, deadline);
  const std::vector<net::Endpoint>& resolved = resolution.endpoints;
  if (resolved.empty()) {
    throw net::unresolved_error(host, resolution.reason);
  }
  const bool loopback = detail::is_written_as_loopback(host, resolved.front());
  const bool found = std::any_of(resolved.begin(), resolved.end(), [&](const net::Endpoint& endpoint) {
    return (loopback || !endpoint.is_loopback()) && listen(endpoint);
  });
  if (!found && rules.has_secret) {
    listeners.push_back(net::Listener::bind_any(loop, port));
  } else if (!found) {
    const std::vector<net::Endpoint> candidates =
        detail::behind_a_name(host, resolved, net::address_of_default_route());
    std::for_each(candidates.begin(), candidates.end(), listen);
  }
  if (listeners.empty()) {
    throw Error(Errc::usage, "the job's store is to listen at " + host +
                                 ", which is no address of this machine; set "
                                 "MASTER_ADDR to one that is");
  }
  co_return std::move(listeners);
}

/// listen_for_ranks at the first port that is free of those where `address` may be.
inline async::Task<std::vector<net::Listener>> listen_at_one_of(async::EventLoop& loop, Address address,
                                                                Deadline deadline, ListenRules rules) {
  for (std::uint16_t place = 0;; ++place) {
    const auto port = static_cast<std::uint16_t>(address.port + place);
    try {
      std::vector<net::Listener> listeners = co_await listen_for_ranks(loop, address.host, port, deadline, rules);
      co_return std::move(listeners);
    } catch (const Error& error) {
      if (error.code().value() != EADDRINUSE || place + 1 >= address.ports) {
        throw;
      }
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/session.hpp

/// @file
/// rendezvous::Session: a rank's membership in its job, from joining to leaving.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Lifetime: the loop outlives it. Destroying it without leave closes the connection, which the job takes for the loss
/// of this rank. Threads: the loop's, destruction included.
class Session {
 public:
  /// Connects to the store, with patience for one that is not there yet, and waits until all ranks have joined.
  /// @param failure gets the job's first cause, now and for the session's life
  /// @throws Error (refused) with the store's sentence, or where one side does not know the other's secret; the job's
  /// first cause; Error (timeout); and what connecting throws
  static async::Task<std::unique_ptr<Session>> join(async::EventLoop& loop, Address address, JoinRequest request,
                                                    std::shared_ptr<FailureLatch> failure, Deadline deadline) {
    const std::string store = address.text();
    const int rank = request.facts.rank;
    const std::string doing = "joining the job at " + store + " as " +
                              (address.role == Role::rank ? "rank " : "node ") + std::to_string(rank);
    Entrance entrance(loop, std::move(address), request, *failure, doing, deadline);
    Entered entered = co_await entrance.enter();
    auto exchange = std::make_shared<Exchange>(loop, std::move(entered.address), entered.accepted,
                                               std::move(entered.link), rank, std::move(failure));
    std::optional<Membership> membership = co_await exchange->welcome(deadline);
    if (!membership) {
      throw Error(Errc::timeout, doing + ": the deadline passed; the store did not say which ranks are missing");
    }
    if (membership->rank != rank || membership->world_size != request.world_size) {
      throw Error(Errc::protocol, doing + ": the store answered for another rank");
    }
    co_return std::unique_ptr<Session>(new Session(*std::move(membership), std::move(exchange)));
  }

  /// Who this rank is among the others.
  const Membership& membership() const noexcept { return membership_; }

  /// Says leave(ok) and closes. @returns whether the store acknowledged it by the deadline
  async::Task<bool> leave(Deadline deadline) {
    const bool acknowledged = co_await exchange_->leave(deadline);
    co_return acknowledged;
  }

  /// Tells the job of a failure on this rank; the latch gets the job's first cause within about a second.
  void report(const Cause& cause) { exchange_->report(cause); }

  /// For Store, which may outlive the session.
  const std::shared_ptr<Exchange>& exchange() const noexcept { return exchange_; }

  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() { exchange_->end("the session with the store has ended"); }

 private:
  Session(Membership membership, std::shared_ptr<Exchange> exchange)
      : membership_(std::move(membership)), exchange_(std::move(exchange)) {}

  Membership membership_;
  std::shared_ptr<Exchange> exchange_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/store.hpp

/// @file
/// rendezvous::Store: the keys and barriers of a job, as a rank uses them.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What compare_set found and did.
struct CompareSet {
  bool swapped = false;
  std::optional<std::string> now{};  ///< the key's value afterwards; nothing where it does not exist
};

/// A handle: copies refer to the same session, and may outlive it; their calls then throw. Keys and names of barriers
/// are prefixed (with_prefix), have at most max_key_bytes with their prefix, and values at most max_value_bytes; all
/// keys and values of one call have at most max_batch_bytes. Each call is one message there and one back, whole or not
/// at all.
///
/// Blocking: the coroutine forms suspend, on the rank's control loop (ProcessGroup::run_blocking, ::spawn); the
/// ..._blocking forms block the calling thread, which is not the loop's. All until the deadline, or for timeout() where
/// none is given, or a moment longer (a second at most) for the store's last word. A Task that is destroyed takes its
/// request back. Threads: the coroutine forms on the loop; the others from any thread, several at once.
/// @throws Error (timeout) that names the key or barrier; the job's first cause (PeerLost, JobFailed) from every
/// pending and later call; Error (refused) with the store's sentence; Error (invalid_argument) for what is too long;
/// Error (closed) after the session
class Store {
 public:
  using OptionalDeadline = std::optional<Deadline>;
  template <class T>
  using Task = async::Task<T>;

  Store(std::weak_ptr<Exchange> exchange, std::shared_ptr<Control> control)
      : exchange_(std::move(exchange)), control_(std::move(control)) {}

  /// The same store, with `prefix` before every key, after the prefix of this handle.
  Store with_prefix(const std::string& prefix) const {
    Store store = *this;
    store.prefix_ += prefix;
    return store;
  }
  const std::string& prefix() const noexcept { return prefix_; }

  /// The same store, whose calls without a deadline take so long at most. ProcessGroup::store() has the group's.
  Store with_timeout(std::chrono::nanoseconds timeout) const {
    Store store = *this;
    store.timeout_ = timeout;
    return store;
  }
  std::chrono::nanoseconds timeout() const noexcept { return timeout_; }

  /// The same store, whose barriers are of so many ranks that know each other by the prefix, not of the whole job.
  Store with_parties(int parties) const {
    Store store = *this;
    store.parties_ = parties;
    return store;
  }

  /// Sets or replaces a value.
  Task<void> set(std::string key, std::string value, OptionalDeadline deadline = {}) const {
    return nothing_of(ask(with_value(Operation::set, std::move(key), std::move(value)), deadline));
  }
  void set_blocking(const std::string& key, const std::string& value, OptionalDeadline deadline = {}) const {
    block(set(key, value, by(deadline)), deadline, "setting a key in the store");
  }

  /// Sets or replaces all of these values, or none of them. Of a key that is there twice the last value counts.
  Task<void> set_many(std::vector<std::pair<std::string, std::string>> entries, OptionalDeadline deadline = {}) const {
    Request request = about_many(Operation::set_many, {});
    for (auto& [key, value] : entries) {
      request.keys.push_back(prefix_ + key);
      request.values.push_back(std::move(value));
    }
    return nothing_of(ask(std::move(request), deadline));
  }
  void set_many_blocking(const std::vector<std::pair<std::string, std::string>>& entries,
                         OptionalDeadline deadline = {}) const {
    block(set_many(entries, by(deadline)), deadline, "setting keys in the store");
  }

  /// Sets the key to `desired` if it has the value `expected`; nothing for `expected` means that it must not exist.
  Task<CompareSet> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                               OptionalDeadline deadline = {}) const {
    Request request = with_value(Operation::compare_set, std::move(key), desired);
    request.expected = std::move(expected);
    return compared(ask(std::move(request), deadline), std::move(desired));
  }
  CompareSet compare_set_blocking(const std::string& key, const std::optional<std::string>& expected,
                                  const std::string& desired, OptionalDeadline deadline = {}) const {
    return block(compare_set(key, expected, desired, by(deadline)), deadline, "comparing a key of the store");
  }

  /// The value; waits until some rank has set it.
  Task<std::string> get(std::string key, OptionalDeadline deadline = {}) const {
    return text_of(ask(about(Operation::get, std::move(key)), deadline));
  }
  std::string get_blocking(const std::string& key, OptionalDeadline deadline = {}) const {
    return block(get(key, by(deadline)), deadline, "waiting for a key of the store");
  }

  /// The values in the order of the keys; waits until all exist at once. At most max_keys_of_a_wait keys.
  Task<std::vector<std::string>> get_many(std::vector<std::string> keys, OptionalDeadline deadline = {}) const {
    const std::size_t count = keys.size();
    return values_of(ask(about_many(Operation::get_many, std::move(keys)), deadline), count);
  }
  std::vector<std::string> get_many_blocking(const std::vector<std::string>& keys,
                                             OptionalDeadline deadline = {}) const {
    return block(get_many(keys, by(deadline)), deadline, "waiting for keys of the store");
  }

  /// The value, or nothing where there is none yet.
  Task<std::optional<std::string>> try_get(std::string key, OptionalDeadline deadline = {}) const {
    return maybe_text_of(ask(about(Operation::try_get, std::move(key)), deadline));
  }
  std::optional<std::string> try_get_blocking(const std::string& key, OptionalDeadline deadline = {}) const {
    return block(try_get(key, by(deadline)), deadline, "looking for a key in the store");
  }

  /// Removes the key; who waits for it goes on waiting. Whether it existed.
  Task<bool> erase(std::string key, OptionalDeadline deadline = {}) const {
    return existed(ask(about(Operation::erase, std::move(key)), deadline));
  }
  bool erase_blocking(const std::string& key, OptionalDeadline deadline = {}) const {
    return block(erase(key, by(deadline)), deadline, "erasing a key of the store");
  }

  /// Adds to the decimal integer under the key (none counts as 0) and gives the sum. Each call counts once; one that
  /// timed out may have counted.
  Task<std::int64_t> add(std::string key, std::int64_t delta, OptionalDeadline deadline = {}) const {
    Request request = about(Operation::add, std::move(key));
    request.number = delta;
    return number_of(ask(std::move(request), deadline));
  }
  std::int64_t add_blocking(const std::string& key, std::int64_t delta, OptionalDeadline deadline = {}) const {
    return block(add(key, delta, by(deadline)), deadline, "adding to a key of the store");
  }

  /// Appends to the value (none counts as empty) and gives its new length in bytes.
  Task<std::int64_t> append(std::string key, std::string text, OptionalDeadline deadline = {}) const {
    return number_of(ask(with_value(Operation::append, std::move(key), std::move(text)), deadline));
  }
  std::int64_t append_blocking(const std::string& key, const std::string& text, OptionalDeadline deadline = {}) const {
    return block(append(key, text, by(deadline)), deadline, "appending to a key of the store");
  }

  /// Waits until all keys exist at once; at most max_keys_of_a_wait.
  Task<void> wait(std::vector<std::string> keys, OptionalDeadline deadline = {}) const {
    return nothing_of(ask(about_many(Operation::wait, std::move(keys)), deadline));
  }
  void wait_blocking(const std::vector<std::string>& keys, OptionalDeadline deadline = {}) const {
    block(wait(keys, by(deadline)), deadline, "waiting for keys of the store");
  }

  /// Collective: waits until every rank of the job (or all parties) has come to the barrier of this name; then the name
  /// is free for the next round. A rank is in a barrier of one name once at a time.
  Task<void> barrier(std::string name, OptionalDeadline deadline = {}) const {
    if (parties_ > 0) {
      return party_barrier(*this, std::move(name), parties_, by(deadline));
    }
    return nothing_of(ask(about(Operation::barrier, std::move(name)), deadline));
  }
  void barrier_blocking(const std::string& name, OptionalDeadline deadline = {}) const {
    block(barrier(name, by(deadline)), deadline, "waiting in a barrier of the store");
  }

 private:
  Request about(Operation operation, std::string key) const {
    Request request;
    request.operation = operation;
    request.keys.push_back(prefix_ + std::move(key));
    return request;
  }
  Request about_many(Operation operation, std::vector<std::string> keys) const {
    Request request;
    request.operation = operation;
    for (std::string& key : keys) {
      request.keys.push_back(prefix_ + key);
    }
    return request;
  }
  Request with_value(Operation operation, std::string key, std::string value) const {
    Request request = about(operation, std::move(key));
    request.value = std::move(value);
    return request;
  }

  Deadline by(const OptionalDeadline& deadline) const { return deadline ? *deadline : Deadline::after(timeout_); }

  Task<Response> ask(Request request, const OptionalDeadline& deadline) const {
    return ask(exchange_, std::move(request), by(deadline));
  }

  /// The answer that is ok or missing. @throws everything else
  static Task<Response> ask(std::weak_ptr<Exchange> handle, Request request, Deadline deadline) {
    if (request.keys.empty()) {
      co_return Response{};  // several keys, and there are none
    }
    const std::string doing = doing_of(request);
    require_bounded(request, doing);
    const std::shared_ptr<Exchange> exchange = handle.lock();
    if (!exchange) {
      throw Error(Errc::closed, doing + ": this rank's session with the store has ended");
    }
    Exchange::Answer answer = co_await exchange->ask(std::move(request), doing, deadline);
    if (!answer) {
      throw Error(Errc::timeout, doing + ": the deadline passed and the store does not answer")
          .with_rank(exchange->rank());
    }
    if (answer->status == Status::gave_up) {
      throw Error(Errc::timeout, doing + ": the deadline passed; " + printable(answer->text))
          .with_rank(exchange->rank());
    }
    if (answer->status != Status::ok && answer->status != Status::missing) {
      throw Error(Errc::refused, doing + ": " + printable(answer->text)).with_rank(exchange->rank());
    }
    co_return *std::move(answer);
  }

  static Task<void> nothing_of(Task<Response> answer) {
    const Response response = co_await std::move(answer);
    static_cast<void>(response);
  }
  static Task<std::string> text_of(Task<Response> answer) {
    Response response = co_await std::move(answer);
    co_return std::move(response.text);
  }
  static Task<std::optional<std::string>> maybe_text_of(Task<Response> answer) {
    Response response = co_await std::move(answer);
    if (response.status == Status::missing) {
      co_return std::nullopt;
    }
    co_return std::optional<std::string>(std::move(response.text));
  }
  static Task<std::vector<std::string>> values_of(Task<Response> answer, std::size_t count) {
    Response response = co_await std::move(answer);
    if (response.values.size() != count) {
      throw Error(Errc::protocol, "getting " + std::to_string(count) + " keys: the store answered with " +
                                      std::to_string(response.values.size()) + " values");
    }
    co_return std::move(response.values);
  }
  static Task<std::int64_t> number_of(Task<Response> answer) {
    const Response response = co_await std::move(answer);
    co_return response.number;
  }
  static Task<bool> existed(Task<Response> answer) {
    const Response response = co_await std::move(answer);
    co_return response.status == Status::ok;
  }
  static Task<CompareSet> compared(Task<Response> answer, std::string desired) {
    Response response = co_await std::move(answer);
    CompareSet result;
    result.swapped = response.number != 0;
    if (result.swapped) {
      result.now = std::move(desired);
    } else if (response.status == Status::ok) {
      result.now = std::move(response.text);
    }
    co_return std::move(result);
  }

  /// The task's own deadline comes first, and has the better sentence.
  template <class T>
  T block(Task<T> task, const OptionalDeadline& deadline, const char* doing) const {
    const auto make = [&](async::EventLoop&) { return std::move(task); };
    return control_->run_blocking(make, a_moment_after(by(deadline)), doing);
  }

  std::weak_ptr<Exchange> exchange_;
  std::shared_ptr<Control> control_;
  std::string prefix_;
  int parties_ = 0;  ///< 0: all ranks of the job
  std::chrono::nanoseconds timeout_ = std::chrono::seconds(600);
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/unjoined_bound.hpp

/// @file
/// How many connections that have not joined a server keeps open.

namespace DTRAIN_NAMESPACE::rendezvous {

/// What is wanted, but at most half of the files that this process may open: the rest is for those who join.
inline std::size_t unjoined_bound(std::size_t wanted) noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) {
    return wanted;
  }
  return std::min(wanted, std::max(static_cast<std::size_t>(files.rlim_cur / 2), std::size_t{1}));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/server.hpp

/// @file
/// rendezvous::Server: the door of a store: who may enter, and to which job.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Serves at most one job of each role, from its construction to its destruction, which closes every connection at
/// once. Lifetime: the loop outlives it. Threads: the loop's, construction and destruction included.
class Server {
 public:
  /// @param listeners at least one
  Server(async::EventLoop& loop, std::vector<net::Listener> listeners, ServerOptions options)
      : loop_(loop), listeners_(std::move(listeners)), options_(std::move(options)) {
    options_.limits.unjoined_connections = unjoined_bound(options_.limits.unjoined_connections);
    for (net::Listener& listener : listeners_) {
      accepting_.push_back(
          loop_.spawn(accept_all(listener), [this](const std::exception_ptr& reason) { broken(reason); }));
    }
  }
  Server(async::EventLoop& loop, net::Listener listener, ServerOptions options)
      : Server(loop, one(std::move(listener)), std::move(options)) {}
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;
  ~Server() = default;

  /// Where it listens; the first of its addresses.
  net::Endpoint local() const noexcept { return listeners_.front().local(); }

  /// Opens a job. A former one of its role ends: its sessions are closed, and who comes late is refused by name.
  /// Lifetime of the result: until the next job of its role, or the server's end. @throws as ServedJob
  ServedJob& open(JobOptions options) {
    auto job = std::make_unique<ServedJob>(loop_, std::move(options), options_.limits);
    std::unique_ptr<ServedJob>& place = jobs_[job->options().role];
    place = std::move(job);
    return *place;
  }

  /// How many connections have not joined: for tests and diagnosis.
  std::size_t visitors() const noexcept { return visitors_.size(); }

 private:
  /// A connection that has not joined.
  struct Visitor {
    std::unique_ptr<Link> link;
    bool has_greeted = false;
    async::Spawned task;  ///< gone before the link
  };
  using VisitorId = std::uint64_t;

  /// What somebody said at the door.
  struct Call {
    Hello hello;
    Knock knock;
    Transcript transcript;
  };

  static Deadline a_day() { return Deadline::after(std::chrono::hours(24)); }

  static std::vector<net::Listener> one(net::Listener listener) {
    std::vector<net::Listener> listeners;
    listeners.push_back(std::move(listener));
    return listeners;
  }

  async::Task<void> accept_all(net::Listener& listener) {
    for (std::size_t unheard = 1;; ++unheard) {
      std::optional<net::Connection> accepted = co_await listener.accept(a_day());
      if (accepted) {
        admit(std::move(*accepted));
      }
      if (unheard >= most_visitors() / 8) {  // they are heard before many others could push them out
        co_await loop_.sleep_for(std::chrono::milliseconds(0));
        unheard = 0;
      }
    }
  }

  /// Where all ranks of a large job come at once, there is room for each of them.
  std::size_t most_visitors() const noexcept {
    std::size_t most = options_.limits.unjoined_connections;
    for (const auto& [role, job] : jobs_) {
      const auto ranks = static_cast<std::size_t>(job->options().world_size);
      most += ranks - std::min(ranks, job->sessions());
    }
    return most;
  }

  void admit(net::Connection connection) {
    if (visitors_.size() >= most_visitors()) {
      visitors_.erase(least_welcome());
    }
    const VisitorId id = ++last_id_;
    try {
      Visitor& visitor = visitors_[id];
      visitor.link = std::make_unique<Link>(std::move(connection), max_door_bytes);
      visitor.link->watch(options_.limits.liveness);
      visitor.task = loop_.spawn(receive(id, *visitor.link));
    } catch (const std::exception&) {  // it is gone already, or there is no memory for it: the others are served on
      visitors_.erase(id);
    }
  }

  /// The oldest that has said nothing that makes sense, or else the oldest.
  std::map<VisitorId, Visitor>::iterator least_welcome() {
    for (auto visitor = visitors_.begin(); visitor != visitors_.end(); ++visitor) {
      if (!visitor->second.has_greeted) {
        return visitor;
      }
    }
    return visitors_.begin();
  }

  /// One visitor, from its first byte to its session or its end. What goes wrong with it ends it and nobody else.
  async::Task<void> receive(VisitorId id, Link& link) {
    try {
      const Deadline deadline = Deadline::after(options_.limits.handshake);
      std::variant<std::monostate, Refused, Call> heard = co_await hear(id, link, deadline);
      if (const Refused* refused = std::get_if<Refused>(&heard)) {
        co_await turn_away(link, encode(*refused));
      } else if (Call* call = std::get_if<Call>(&heard)) {
        const std::optional<Frame> no = let_in(id, *call);
        if (no) {
          co_await turn_away(link, *no);
        }
      }
    } catch (const std::exception&) {  // the connection broke, or there is no memory for it
    }
    visitors_.erase(id);
  }

  /// Hello, Challenge, and Join or Resume; nothing for what makes no sense or comes too late.
  async::Task<std::variant<std::monostate, Refused, Call>> hear(VisitorId id, Link& link, Deadline deadline) {
    Call call;
    const net::FrameResult first = co_await link.reader.read_frame(deadline);
    auto hello = first.ok() ? decode_hello(first.payload, version_text()) : std::nullopt;
    if (!hello) {
      co_return std::monostate();
    }
    if (Refused* refused = std::get_if<Refused>(&*hello)) {
      co_return std::move(*refused);
    }
    call.hello = std::get<Hello>(std::move(*hello));
    if (auto refused = wrong_secret(call.hello)) {
      co_return *std::move(refused);
    }
    visitors_.at(id).has_greeted = true;
    call.transcript.add(first.payload);
    const Frame challenge = encode(Challenge{random_bytes<16>(), options_.secret.has_value()});
    call.transcript.add(challenge);
    const net::IoResult sent = co_await link.writer.write_frame(challenge, deadline);
    if (!sent.ok()) {
      co_return std::monostate();
    }
    const net::FrameResult second = co_await link.reader.read_frame(deadline);
    std::optional<Knock> knock = second.ok() ? decode_knock(second.payload) : std::nullopt;
    if (!knock) {
      co_return std::monostate();
    }
    if (options_.secret && !call.transcript.is_proved(Prover::rank, *options_.secret, second.payload)) {
      co_return Refused{
          "its secret is not the job's; give all of the job the same DTRAIN_SECRET or DTRAIN_SECRET_FILE"};
    }
    call.transcript.add(second.payload);
    call.knock = *std::move(knock);
    co_return std::move(call);
  }

  std::optional<Refused> wrong_secret(const Hello& hello) const {
    if (options_.secret && !hello.has_secret) {
      return Refused{
          "the job has a secret and this process does not; give all of the job the same DTRAIN_SECRET or "
          "DTRAIN_SECRET_FILE"};
    }
    return std::nullopt;
  }

  /// The session takes the link over, and nothing is returned; or what to answer instead.
  std::optional<Frame> let_in(VisitorId id, Call& call) {
    const auto place = jobs_.find(call.hello.role);
    if (place == jobs_.end() && call.hello.role == Role::rank) {
      return Frame();  // not yet
    }
    if (place == jobs_.end()) {
      return encode(
          Refused{"launchers of other nodes meet at the launcher of node 0, and this store is not one's; "
                  "start this process with --nnodes=1, or correct the address"});
    }
    ServedJob& job = *place->second;
    const Join* join = std::get_if<Join>(&call.knock);
    if (call.hello.generation > job.options().generation) {
      return Frame();  // the store itself still belongs to the former attempt
    }
    if (auto refused = wrong_job(call.hello, join, job.options())) {
      job.note_refusal(refused->sentence);
      return encode(*std::move(refused));
    }
    std::variant<Accepted, Refused, Failure> answer =
        join != nullptr ? job.admit(*join) : job.admit(std::get<Resume>(call.knock));
    const Accepted* accepted = std::get_if<Accepted>(&answer);
    if (accepted == nullptr) {
      return std::visit([](auto& each) { return encode(each); }, answer);
    }
    Frame frame = encode(*accepted);
    if (options_.secret) {
      const Proof proof = call.transcript.proof_for(Prover::store, *options_.secret, frame);
      std::copy(proof.begin(), proof.end(), frame.end() - static_cast<std::ptrdiff_t>(proof.size()));
    }
    std::unique_ptr<Link> link = std::move(visitors_.at(id).link);
    static_cast<void>(link->writer.queue(frame));  // its queue is empty
    const std::uint64_t has = join != nullptr ? 0 : std::get<Resume>(call.knock).received;
    job.carry(accepted->ticket.session, std::move(link), has);
    return std::nullopt;
  }

  static std::optional<Refused> wrong_job(const Hello& hello, const Join* join, const JobOptions& job) {
    const std::string who = join == nullptr ? "a process"
                                            : "rank " + std::to_string(join->facts.rank) + " on host " +
                                                  join->facts.host + " (process " + std::to_string(join->process) + ")";
    if (hello.generation < job.generation) {
      return Refused{who + " belongs to attempt " + std::to_string(hello.generation) +
                     " of the job, which has been started again as attempt " + std::to_string(job.generation) +
                     "; end what is left of the earlier attempt"};
    }
    if (join != nullptr && !join->job.empty() && !job.job.empty() && join->job != job.job) {
      return Refused{who + " belongs to the job '" + join->job + "', and this is the store of '" + job.job +
                         "'; give each job a port of its own (MASTER_PORT)",
                     true};
    }
    return std::nullopt;
  }

  /// Sends the last word, and gives the other side a moment to read it and close. @param frame empty: nothing is said
  async::Task<void> turn_away(Link& link, Frame frame) {
    if (frame.empty()) {
      co_return;
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(1));
    const net::IoResult sent = co_await link.writer.write_frame(frame, deadline);
    if (!sent.ok()) {
      co_return;
    }
    link.connection.shutdown_write();
    for (bool open = true; open;) {
      const net::FrameResult rest = co_await link.reader.read_frame(deadline);
      open = rest.ok();
    }
  }

  /// The server itself cannot go on.
  void broken(const std::exception_ptr& reason) {
    std::string text = "an unknown exception";
    try {
      std::rethrow_exception(reason);
    } catch (const std::exception& error) {
      text = error.what();
    } catch (...) {
    }
    for (const auto& [role, job] : jobs_) {
      job->post_failure(Cause{CauseKind::exception, -1, {}, "the store cannot go on: " + text});
    }
  }

  async::EventLoop& loop_;
  std::vector<net::Listener> listeners_;
  ServerOptions options_;
  std::map<Role, std::unique_ptr<ServedJob>> jobs_;
  VisitorId last_id_ = 0;
  std::map<VisitorId, Visitor> visitors_;  ///< the oldest first
  std::vector<async::Spawned> accepting_;  ///< last: gone before what they use
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/rendezvous/participant.hpp

/// @file
/// rendezvous::Participant: a rank's whole control plane, for callers that block.

namespace DTRAIN_NAMESPACE::rendezvous {

/// Who this rank is, as far as it knows, and where its job meets.
struct ParticipantOptions {
  int rank = 0;
  int world_size = 1;
  /// @name What the launcher states as certain: checked, and an error where it is wrong. Guesses stay empty.
  /// @{
  std::optional<int> local_rank{};
  std::optional<int> local_world_size{};
  std::optional<int> node_rank{};
  std::optional<int> node_count{};
  /// @}
  std::string master_host = "127.0.0.1";
  std::uint16_t master_port = 0;
  /// At which of so many ports from there on the store is: the first that is free. More than 1 only with `job`, by
  /// which the ranks recognise it.
  std::uint16_t master_ports = 1;
  bool host_store = false;  ///< this rank opens the store at master_host:master_port
  std::chrono::milliseconds timeout{600000};
  std::optional<std::string> host_id{};     ///< DTRAIN_HOST_ID
  std::optional<std::string> interface {};  ///< DTRAIN_INTERFACE: where a store of this rank's listens
  std::optional<Secret> secret{};           ///< of the job, where it has one
  std::uint64_t generation = 0;             ///< the attempt
  std::string job{};                        ///< what the launcher calls it
  std::string agreed{};                     ///< what must be the same on all ranks (agreed_terms.hpp)
  Limits limits{};
};

/// Owns a thread with a loop, on which the rank's session lives, and the store where this rank hosts it.
/// Threads: construction, leave_blocking and destruction from one thread; the rest from any.
class Participant {
 public:
  /// Joins the job. A job of one rank that hosts its own store takes a port that the system chooses.
  /// Collective, blocking: until all ranks have joined, at most `timeout`.
  /// @throws what Session::join, listen_for_ranks and host_identity throw, with nothing left behind
  explicit Participant(const ParticipantOptions& options,
                       std::shared_ptr<FailureLatch> failure = std::make_shared<FailureLatch>())
      : failure_(std::move(failure)), control_(std::make_shared<Control>(thread_)) {
    const HostIdentity host = host_identity(options.host_id);
    const Deadline deadline = Deadline::after(options.timeout);
    const auto form = [&](async::EventLoop& loop) { return join(loop, options, host, deadline); };
    try {
      thread_.run_blocking(form, a_moment_after(deadline), "joining the job");
    } catch (...) {
      close();
      throw;
    }
    install_reporter();
  }
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  /// Without leave_blocking before it, the others see the loss of this rank. Blocking: a second at most, where this
  /// rank hosts the store, so that the others hear the cause from it.
  ~Participant() { close(); }

  const Membership& membership() const noexcept { return membership_; }
  Store store() const { return {exchange_, control_}; }
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return failure_; }

  /// The thread whose loop carries the session: for other parts of the rank's control plane.
  async::LoopThread& control_thread() noexcept { return thread_; }

  /// Says leave(ok); afterwards the store can no longer be used. The host of the store stays until all have left.
  /// Blocking: until the deadline at most. @returns whether all that was done by then
  bool leave_blocking(Deadline deadline) {
    failure_->set_reporter({});
    const auto leave = [&](async::EventLoop&) { return leave_all(deadline); };
    const bool left = thread_.run_blocking(leave, a_moment_after(deadline), "leaving the job");
    close();
    return left;
  }

 private:
  static constexpr std::chrono::milliseconds farewell{1000};

  async::Task<void> join(async::EventLoop& loop, const ParticipantOptions& options, const HostIdentity& host,
                         Deadline deadline) {
    JoinRequest request;
    request.facts = RankFacts{
        options.rank,       host.id,       host.name, options.local_rank, options.local_world_size, options.node_rank,
        options.node_count, options.agreed};
    request.world_size = options.world_size;
    request.job = options.job;
    const bool alone = options.world_size == 1 && options.host_store;
    Address address;
    address.host = alone ? "127.0.0.1" : options.master_host;
    address.port = alone ? std::uint16_t{0} : options.master_port;
    address.ports = alone ? std::uint16_t{1} : options.master_ports;
    address.generation = options.generation;
    address.secret = options.secret;
    if (options.host_store) {
      const ListenRules rules{alone ? std::nullopt : options.interface, options.secret.has_value()};
      std::vector<net::Listener> listeners = co_await listen_at_one_of(loop, address, deadline, rules);
      const net::Endpoint bound = listeners.front().local();
      address.host = bound.is_any() ? "localhost" : bound.host();
      address.port = bound.port();
      address.ports = 1;
      open_store(loop, std::move(listeners), options, host, deadline);
    }
    try {
      session_ = co_await Session::join(loop, address, std::move(request), failure_, deadline);
    } catch (const std::exception& error) {
      if (server_) {  // the others are to hear why their store goes away
        job_->post_failure(Cause{CauseKind::exception, options.rank, host.name, error.what()});
      }
      throw;
    }
    membership_ = session_->membership();
    exchange_ = session_->exchange();
  }

  void open_store(async::EventLoop& loop, std::vector<net::Listener> listeners, const ParticipantOptions& options,
                  const HostIdentity& host, Deadline formation) {
    server_.emplace(loop, std::move(listeners), ServerOptions{options.secret, options.limits});
    JobOptions job;
    job.world_size = options.world_size;
    job.generation = options.generation;
    job.job = options.job;
    job.owner = "rank " + std::to_string(options.rank) + " on host " + host.name;
    job.formation = formation;
    job_ = &server_->open(std::move(job));
  }

  async::Task<bool> leave_all(Deadline deadline) {
    bool left = session_ != nullptr;
    if (session_ != nullptr) {
      left = co_await session_->leave(deadline);
    }
    if (server_) {
      const bool all = co_await job_->all_left(deadline);
      left = left && all;
    }
    co_return left;
  }

  /// Ends the session, and lets the others of a store that this rank hosts hear of it.
  async::Task<void> bid_farewell() {
    session_.reset();
    if (server_) {
      co_await job_->all_left(Deadline::after(farewell));
    }
  }

  async::Task<void> drop() {
    session_.reset();
    server_.reset();
    co_return;
  }

  /// A report goes to the store; once there is no session any more, nobody else is to be told.
  void install_reporter() {
    const std::weak_ptr<FailureLatch> latch = failure_;
    failure_->set_reporter([control = control_, handle = exchange_, latch](const Cause& cause) {
      const bool posted = control->post([handle, latch, cause] {
        if (const std::shared_ptr<Exchange> exchange = handle.lock()) {
          exchange->report(cause);
        } else if (const std::shared_ptr<FailureLatch> own = latch.lock()) {
          own->set(cause);
        }
      });
      const std::shared_ptr<FailureLatch> own = latch.lock();
      if (!posted && own) {
        own->set(cause);
      }
    });
  }

  void close() noexcept {
    failure_->set_reporter({});
    const auto first = [this](async::EventLoop&) { return bid_farewell(); };
    const auto then = [this](async::EventLoop&) { return drop(); };
    for (const bool last : {false, true}) {
      try {
        const Deadline deadline = a_moment_after(Deadline::after(farewell));
        last ? thread_.run_blocking(then, deadline, "closing") : thread_.run_blocking(first, deadline, "closing");
      } catch (...) {  // the loop has ended, and with it every task
      }
    }
    control_->close();
  }

  std::shared_ptr<FailureLatch> failure_;
  async::LoopThread thread_;
  std::shared_ptr<Control> control_;
  Membership membership_;
  std::weak_ptr<Exchange> exchange_;
  /// The loop's thread only, until it has ended.
  std::optional<Server> server_;
  ServedJob* job_ = nullptr;  ///< the server's
  std::unique_ptr<Session> session_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous

// ---- dtrain/backend/arguments.hpp

/// @file
/// The preconditions of collectives, checked at the call, in one sentence each, for every backend.

namespace DTRAIN_NAMESPACE::backend {

namespace detail {

inline std::string amount(const ConstBufferView& view) {
  return std::to_string(view.count) + " " + name(view.dtype);
}

[[noreturn]] inline void refuse(const std::string& sentence) {
  throw Error(Errc::invalid_argument, sentence);
}

inline void check_memory(const char* operation, const ConstBufferView& view) {
  const std::size_t element = size_bytes(view.dtype);
  if (element == 0 || view.count > std::numeric_limits<std::size_t>::max() / 2 / element) {
    refuse(std::string(operation) + " of " + amount(view) + ": no memory is that long, or holds that type");
  }
  if (view.count != 0 && view.data == nullptr) {
    refuse(std::string(operation) + " of " + amount(view) + " was given a null address");
  }
}

inline bool overlap(const ConstBufferView& a, const ConstBufferView& b) noexcept {
  const std::less<const std::byte*> before;
  return before(a.data, b.data + b.bytes()) && before(b.data, a.data + a.bytes());
}

/// `whole` has one block of the size of `part` for each rank; in place `part` is the rank's own.
inline void check_blocks(const char* operation, const char* whole_is, const ConstBufferView& whole, const char* part_is,
                         const ConstBufferView& part, int rank, int size) {
  const std::size_t ranks = static_cast<std::size_t>(size);
  if (whole.dtype != part.dtype || whole.count % ranks != 0 || whole.count / ranks != part.count) {
    refuse(std::string(operation) + " on " + std::to_string(size) + " ranks with " + whole_is + " of " + amount(whole) +
           " and " + part_is + " of " + amount(part) + "; the first has a block like the second for each rank");
  }
  check_memory(operation, whole);
  check_memory(operation, part);
  if (overlap(whole, part) && part.data != whole.data + static_cast<std::size_t>(rank) * part.bytes()) {
    refuse("the input and output of " + std::string(operation) +
           " overlap; give disjoint memory, or this rank's block of the longer one as the shorter");
  }
}

}  // namespace detail

/// @throws Error (invalid_argument) unless both are alike, and the same memory or disjoint.
inline void check_all_reduce(const ConstBufferView& input, const ConstBufferView& output) {
  if (input.count != output.count || input.dtype != output.dtype) {
    detail::refuse("all_reduce of " + detail::amount(input) + " into " + detail::amount(output) +
                   "; both buffers have the same length and type");
  }
  detail::check_memory("all_reduce", input);
  detail::check_memory("all_reduce", output);
  if (input.data != output.data && detail::overlap(input, output)) {
    detail::refuse("the input and output of all_reduce overlap; give the same address for both, or disjoint memory");
  }
}

/// @throws Error (invalid_argument) unless `input` is `size` blocks as long as `output`.
inline void check_reduce_scatter(const ConstBufferView& input, const ConstBufferView& output, int rank, int size) {
  detail::check_blocks("reduce_scatter", "an input", input, "an output", output, rank, size);
}

/// @throws Error (invalid_argument) unless `output` is `size` blocks as long as `input`.
inline void check_all_gather(const ConstBufferView& input, const ConstBufferView& output, int rank, int size) {
  detail::check_blocks("all_gather", "an output", output, "an input", input, rank, size);
}

/// @throws Error (invalid_argument) for a root that is no rank of the channel, and memory that is not there.
inline void check_broadcast(const ConstBufferView& buffer, int root, int size) {
  if (root < 0 || root >= size) {
    detail::refuse("broadcast from rank " + std::to_string(root) + " of " + std::to_string(size) +
                   "; ranks are counted from 0");
  }
  detail::check_memory("broadcast", buffer);
}

/// @throws Error (invalid_argument) for a peer that is no other rank of the channel, and memory that is not there.
inline void check_message(const char* operation, const ConstBufferView& buffer, int peer, int rank, int size) {
  if (peer < 0 || peer >= size || peer == rank) {
    detail::refuse(std::string(operation) + " between rank " + std::to_string(rank) + " and rank " +
                   std::to_string(peer) + " of " + std::to_string(size) + "; a peer is another rank, counted from 0");
  }
  detail::check_memory(operation, buffer);
}

/// @throws Error (invalid_argument) for ranks that are not of the channel, and memory that is not there or overlaps.
inline void check_send_recv(const ConstBufferView& input, int to, const ConstBufferView& output, int from, int size) {
  if (to < 0 || to >= size || from < 0 || from >= size) {
    detail::refuse("send_recv to rank " + std::to_string(to) + " and from rank " + std::to_string(from) + " of " +
                   std::to_string(size) + "; ranks are counted from 0");
  }
  detail::check_memory("send_recv", input);
  detail::check_memory("send_recv", output);
  if (detail::overlap(input, output)) {
    detail::refuse("the input and output of send_recv overlap; give it disjoint memory");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/communicator.hpp

/// @file
/// The concept Communicator: what carries bytes between the ranks of one channel.

/// The contract of every operation that takes a stream. Collective: every rank of the channel calls the same operations
/// in the same order with the same counts, dtypes, roots and reductions; a backend that notices a difference reports
/// CauseKind::disagreement. Blocking: no; it enqueues and returns. Lifetime: buffers outlive the work. Threads: one
/// thread at a time for each communicator, abort() excepted. Errors: a precondition broken by the caller throws at the
/// call; what goes wrong while the work runs fails the communicator (`failure()`), and work enqueued behind it is
/// skipped.
namespace DTRAIN_NAMESPACE::backend {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// The stream type it enqueues on, its rank (0..size-1) and the number of ranks in the channel.
template <class C>
concept HasRanks = requires(const C c) {
  typename C::Stream;
  { c.rank() } noexcept -> std::same_as<int>;
  { c.size() } noexcept -> std::same_as<int>;
} && stream::Stream<typename C::Stream>;

/// Every rank's `output` gets the reduction of all `input`s; in place where both start at the same address, else disjoint.
template <class C>
concept CanAllReduce =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.all_reduce(input, output, op, stream) } -> std::same_as<void>;
    };

/// Every rank's `buffer` gets the content of rank `root`'s.
template <class C>
concept CanBroadcast = HasRanks<C> && requires(C c, BufferView buffer, int root, typename C::Stream stream) {
  { c.broadcast(buffer, root, stream) } -> std::same_as<void>;
};

/// The work completes when every rank's stream has come to it.
template <class C>
concept CanBarrier = HasRanks<C> && requires(C c, typename C::Stream stream) {
  { c.barrier(stream) } -> std::same_as<void>;
};

/// Rank r's `output` (count elements) gets block r of the reduction of all `input`s (size * count elements); in place
/// where `output` is that block of `input`, else disjoint.
template <class C>
concept CanReduceScatter =
    HasRanks<C> &&
    requires(C c, ConstBufferView input, BufferView output, ReduceOp op, typename C::Stream stream) {
      { c.reduce_scatter(input, output, op, stream) } -> std::same_as<void>;
    };

/// Block r of every rank's `output` (size * count elements) gets rank r's `input` (count elements); in place where
/// `input` is that block of `output`, else disjoint.
template <class C>
concept CanAllGather =
    HasRanks<C> && requires(C c, ConstBufferView input, BufferView output, typename C::Stream stream) {
      { c.all_gather(input, output, stream) } -> std::same_as<void>;
    };

/// Point to point: not collective, only the two ranks named call it. `peer` is another rank of the channel, `to` and
/// `from` may be the rank itself. The k-th send of rank a to b is what the k-th recv of b from a gets, send_recv counted as one of each; both
/// give the same count and dtype, else a disagreement. A send may complete before its recv was called, or not: code that
/// is right counts on neither. `send_recv` does both at once, so that a ring in which every rank sends to the next and
/// receives from the one before goes round whatever the size; with a send before a recv on every rank it would wait for
/// ever once messages exceed what the backend buffers. Input and output are disjoint.
template <class C>
concept CanSendRecv =
    HasRanks<C> && requires(C c, ConstBufferView input, BufferView output, int peer, int to, int from,
                            typename C::Stream stream) {
      { c.send(input, peer, stream) } -> std::same_as<void>;
      { c.recv(output, peer, stream) } -> std::same_as<void>;
      { c.send_recv(input, to, output, from, stream) } -> std::same_as<void>;
    };

/// Collective, blocking. A channel of its own for the ranks of one `color`, ordered by `key`, then by rank. Every rank
/// gives a color >= 0; a negative one is an invalid_argument.
template <class C>
concept CanSplit = HasRanks<C> && requires(C c, int color, int key, Deadline deadline) {
  { c.split_blocking(color, key, deadline) } -> std::same_as<C>;
};

/// Collective, blocking. Memory that the backend reduces without a copy: the same size on every rank, zeroed. The
/// Allocation owns it (`data()`, `bytes()`), may outlive the communicator, and is not handed out after an abort.
template <class C>
concept CanAllocate = HasRanks<C> && requires { typename C::Allocation; } && std::movable<typename C::Allocation> &&
                      requires(C c, std::size_t bytes, Deadline deadline, const typename C::Allocation memory) {
                        { c.allocate_blocking(bytes, deadline) } -> std::same_as<typename C::Allocation>;
                        { memory.data() } noexcept -> std::same_as<std::byte*>;
                        { memory.bytes() } noexcept -> std::same_as<std::size_t>;
                      };

/// From any thread, at any time: running and later work ends within milliseconds, without touching peers' memory again.
/// `failure()` tells why a communicator is out of service, nothing while it serves.
template <class C>
concept CanAbort = requires(C c, const C& view, const Cause& cause) {
  { c.abort(cause) } noexcept -> std::same_as<void>;
  { view.failure() } -> std::same_as<std::optional<Cause>>;
};

/// What DistributedDataParallel with topology::Flat needs. Reduce-scatter, all-gather, send/recv and split are further
/// abilities that other topologies ask for by name. A Communicator is a movable owner of its channel.
template <class C>
concept Communicator = std::movable<C> && HasRanks<C> && CanAllReduce<C> && CanBroadcast<C> && CanBarrier<C> &&
                       CanAllocate<C> && CanAbort<C>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/exchange.hpp

/// @file
/// Exchange: the part of a store that opening a channel needs.

namespace DTRAIN_NAMESPACE::backend {

/// A store with blocking set and get, as rendezvous::Store has them; a backend needs no more, and its tests no server.
template <class S>
concept ExchangesValues = std::copyable<S> &&
    requires(S store, const std::string& key, std::string value, Deadline deadline) {
  store.set_blocking(key, value, deadline);
  { store.get_blocking(key, deadline) } -> std::convertible_to<std::string>;
};

/// Copyable handle on a store of any type. Threads: as the store's.
class Exchange {
 public:
  template <class Store>
  requires(!std::same_as<Store, Exchange> && ExchangesValues<Store>)
      Exchange(Store store) {  // NOLINT(google-explicit-constructor): a store is one
    const auto shared = std::make_shared<Store>(std::move(store));
    set_ = [shared](const std::string& key, const std::string& value, Deadline deadline) {
      shared->set_blocking(key, value, deadline);
    };
    get_ = [shared](const std::string& key, Deadline deadline) -> std::string {
      return shared->get_blocking(key, deadline);
    };
  }

  /// Blocking: until the value is in the store. @throws Error (timeout), JobFailed
  void set_blocking(const std::string& key, const std::string& value, Deadline deadline) const {
    set_(key, value, deadline);
  }

  /// Blocking: until some rank has set the key. @throws Error (timeout), JobFailed
  std::string get_blocking(const std::string& key, Deadline deadline) const { return get_(key, deadline); }

 private:
  std::function<void(const std::string&, const std::string&, Deadline)> set_;
  std::function<std::string(const std::string&, Deadline)> get_;
};

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/channel_context.hpp

/// @file
/// What a group tells a backend about the channel to open.

namespace DTRAIN_NAMESPACE::backend {

/// One channel of one group. Every rank opens the same channels in the same order, so `name` is the same on all.
struct ChannelContext {
  rendezvous::Membership members;         ///< who and where this rank is, among whom
  std::string name;                       ///< unique in the job, e.g. "group/ddp-1"; a prefix for store keys
  Exchange store;                         ///< for exchanging what opening needs; takes a rendezvous::Store
  std::shared_ptr<FailureLatch> failure;  ///< aborts the channel; takes its reports
  std::chrono::nanoseconds timeout;       ///< of one collective, from the moment it begins to run
  /// Called by the thread that runs an operation once it has waited for a peer for about a millisecond, and again
  /// before each further sleep (tens of milliseconds at most): the peer may itself wait for work of this rank that lies
  /// on another stream and that nobody runs. Does not throw or block; may be empty. A split channel calls its parent's.
  std::function<void()> on_stall{};

  /// This rank's number in the job, which failures are reported under.
  int reporting_rank() const noexcept { return members.rank_in_job(); }
};

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/backend.hpp

/// @file
/// The concept Backend: the type a Policy names, which opens the channels of a group.

namespace DTRAIN_NAMESPACE::backend {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A name for messages and summaries.
template <class B>
concept HasName = requires {
  { B::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// Whether buffers on that kind of device can be handed to its communicators.
template <class B>
concept SaysDevices = requires(DeviceKind kind) {
  { B::supports(kind) } noexcept -> std::same_as<bool>;
};

/// Whether its communicators reduce elements of that type.
template <class B>
concept SaysDTypes = requires(DType dtype) {
  { B::reduces(dtype) } noexcept -> std::same_as<bool>;
};

/// The stream that a group or a DDP instance runs its communication on: an owner with `ref()`.
template <class B>
concept HasCommunicationStream = requires { typename B::StreamOwner; } && requires(typename B::StreamOwner owner) {
  { owner.ref() } -> std::same_as<typename B::Communicator::Stream>;
};

/// Collective, blocking. Opens the channel that the context describes; channels never wait for each other.
/// @throws Error (unsupported) on every rank where the ranks cannot reach each other by this backend.
template <class B>
concept CanOpen = requires { typename B::Communicator; } && Communicator<typename B::Communicator> &&
                  requires(const ChannelContext& context, Deadline deadline) {
                    { B::open_blocking(context, deadline) } -> std::same_as<typename B::Communicator>;
                  };

/// Has no state of its own: everything lives in the communicators it opens.
template <class B>
concept Backend = HasName<B> && SaysDevices<B> && SaysDTypes<B> && CanOpen<B> && HasCommunicationStream<B>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/shared_memory/available_memory.hpp

/// @file
/// How much memory this process may still take.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The beginning of a small file of the kernel's; empty where it cannot be read.
inline std::string read_start(const char* path) {
  const net::Descriptor file(::open(path, O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> text{};
  const ssize_t count = file ? ::read(file.get(), text.data(), text.size()) : -1;
  return count > 0 ? std::string(text.data(), static_cast<std::size_t>(count)) : std::string();
}

/// The number that follows `label` in `text`; `otherwise` where there is none.
inline std::uint64_t number_after(std::string_view text, std::string_view label, std::uint64_t otherwise) noexcept {
  const std::size_t place = text.find(label);
  if (place == std::string_view::npos) {
    return otherwise;
  }
  text.remove_prefix(place + label.size());
  text.remove_prefix(std::min(text.size(), text.find_first_not_of(' ')));
  std::uint64_t number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  return result.ec == std::errc() ? number : otherwise;
}

/// What the control group in `folder` may still take: its limit less what it uses, without files' pages, which the
/// kernel gives back. No bound where the folder has no limit, or does not exist.
/// @param files what the group's statistics call its files' pages, those of groups below included
inline std::uint64_t available_in_group(const std::string& folder, const char* limit, const char* usage,
                                        const std::string& files) {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t most = number_after(read_start((folder + limit).c_str()), "", unknown);
  if (most == unknown) {
    return unknown;
  }
  const std::uint64_t used = number_after(read_start((folder + usage).c_str()), "", 0);
  const std::string statistics = "\n" + read_start((folder + "/memory.stat").c_str());
  const std::uint64_t reclaimable = number_after(statistics, "\n" + files + "inactive_file ", 0) +
                                    number_after(statistics, "\n" + files + "active_file ", 0);
  const std::uint64_t held = used - std::min(used, reclaimable);
  return most - std::min(most, held);
}

/// The least of what this process's control group and those above it may still take, in both versions of the kernel's
/// interface. @param groups what /proc/self/cgroup says: "0::/path" or "4:memory:/path" a line
inline std::uint64_t available_in_groups(std::string_view groups, const std::string& root = "/sys/fs/cgroup") {
  std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
  while (!groups.empty()) {
    const std::size_t end = std::min(groups.find('\n'), groups.size());
    const std::string_view line = groups.substr(0, end);
    groups.remove_prefix(std::min(groups.size(), end + 1));
    const std::size_t name = line.find(':');
    const std::size_t path_at = name == std::string_view::npos ? name : line.find(':', name + 1);
    if (path_at == std::string_view::npos) {
      continue;
    }
    const bool first_version = line.substr(name + 1, path_at - name - 1) == "memory";
    if (!first_version && !line.starts_with("0::")) {
      continue;
    }
    // In a container the path may be the host's; the container's own root is looked at in any case.
    std::string path(line.substr(path_at + 1));
    for (;; path.erase(path.rfind('/'))) {
      const std::string folder = root + (first_version ? "/memory" : "") + (path == "/" ? "" : path);
      available = std::min(available, first_version ? available_in_group(folder, "/memory.limit_in_bytes",
                                                                         "/memory.usage_in_bytes", "total_")
                                                    : available_in_group(folder, "/memory.max", "/memory.current", ""));
      if (path.find('/') == std::string::npos) {
        break;
      }
    }
  }
  return available;
}

/// Bytes, as the kernel estimates them: what is free or can be freed on this host, and no more than the control groups
/// leave. Asked before memory is allocated: the kernel ends processes where a memfd grows beyond it. No bound where it
/// is unknown.
inline std::uint64_t available_memory_bytes() {
  constexpr std::uint64_t unknown = std::numeric_limits<std::uint64_t>::max();
  const std::uint64_t kibibytes = number_after(read_start("/proc/meminfo"), "MemAvailable:", unknown / 1024);
  return std::min(kibibytes > unknown / 1024 ? unknown : kibibytes * 1024,
                  available_in_groups(read_start("/proc/self/cgroup")));
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/doorbell.hpp

/// @file
/// A counter in shared memory that ranks sleep on until it changes.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Zeroed memory is a valid one. Whoever changes the count first writes what it announces; the change and the read of
/// the sleepers' number are sequentially consistent, as is what a sleeper does in the other order: one of both sees the
/// other.
struct Doorbell {
  std::atomic<std::uint32_t> count{0};     ///< the word that sleepers sleep on
  std::atomic<std::uint32_t> sleepers{0};  ///< nobody asleep, no wake

  void set(std::uint32_t value) noexcept {
    count.store(value);
    wake();
  }
  void ring() noexcept {
    count.fetch_add(1);
    wake();
  }
  /// Costs nothing where nobody sleeps.
  void wake() noexcept {
    if (sleepers.load() != 0) {
      futex_wake_all(count, FutexScope::shared);
    }
  }
};

/// The sleep of one rank's running thread, which any thread of that rank can end.
class Sleeper {
 public:
  /// Until the bell rings, wake() was called after `stop` was set, or the deadline has passed: short, so that a wake
  /// that just misses the sleeper, or a peer that was killed, costs no more. Returns at once unless `may_sleep()`,
  /// which is asked when every ring is noticed.
  template <class F>
  void sleep(Doorbell& bell, F may_sleep, const std::atomic<bool>& stop, Deadline deadline) noexcept {
    bell.sleepers.fetch_add(1);
    const std::uint32_t seen = bell.count.load();
    if (may_sleep()) {
      sleeping_on_.store(&bell.count);
      if (!stop.load()) {
        futex_wait(bell.count, seen, deadline, FutexScope::shared);
      }
      sleeping_on_.store(nullptr);
    }
    bell.sleepers.fetch_sub(1);
  }

  /// Threads: any.
  void wake() const noexcept {
    if (const std::atomic<std::uint32_t>* word = sleeping_on_.load()) {
      futex_wake_all(*word, FutexScope::shared);
    }
  }

 private:
  std::atomic<const std::atomic<std::uint32_t>*> sleeping_on_{nullptr};
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/message.hpp

/// @file
/// What ranks of one host tell each other over Unix sockets while they set memory up.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

enum class MessageKind : std::uint32_t {
  greeting = 1,  ///< peer to rank 0: rank, token
  request,       ///< peer to rank 0: bytes it wants
  offer,         ///< rank 0 to peer: bytes of the segment, nonce; an address, or else the descriptor follows
  ready,         ///< peer to rank 0: it has the memory, or code and text of why not
  verdict,       ///< rank 0 to peer: all have it, or code and text of why not
};

/// An error that another rank found and told: its sentence is whole.
struct ToldError : Error {
  ToldError(Errc code, std::string sentence) : Error(code, std::move(sentence)) {}
};

/// A fixed size: the same program runs at both ends.
struct Message {
  static constexpr std::uint64_t magic_number = 0x6474'7261'696e'0001;  // "dtrain", version of this exchange

  std::uint64_t magic = magic_number;
  MessageKind kind = MessageKind::greeting;
  std::int32_t rank = 0;
  std::uint64_t number = 0;  ///< of the exchange on this channel: 1, 2, ...
  std::uint64_t bytes = 0;
  std::uint64_t nonce = 0;
  std::uint64_t address = 0;  ///< in an offer to a thread of the same process
  std::int32_t code = 0;      ///< 0: well; else an Errc
  std::array<char, 64> token{};
  std::array<char, 1024> text{};

  std::span<const std::byte> as_bytes() const noexcept { return std::as_bytes(std::span(this, 1)); }

  std::string text_as_string() const { return {text.begin(), std::find(text.begin(), text.end(), '\0')}; }

  void set_error(const Error& error) noexcept {
    const bool own = error.code().category() == dtrain_category();
    code = own ? error.code().value() : static_cast<std::int32_t>(Errc::job_failed);
    const std::string_view sentence = error.what();
    std::memcpy(text.data(), sentence.data(), std::min(sentence.size(), text.size()));
  }

  /// @throws ToldError where an error was told.
  void throw_if_error() const {
    if (code != 0) {
      throw ToldError(static_cast<Errc>(code), text_as_string());
    }
  }
};
static_assert(std::is_trivially_copyable_v<Message>);

/// @throws Error (protocol) where the bytes are no message.
inline Message message_from(const std::vector<std::byte>& bytes) {
  Message message;
  if (bytes.size() == sizeof(Message)) {
    std::memcpy(&message, bytes.data(), sizeof(Message));
  }
  if (bytes.size() != sizeof(Message) || message.magic != Message::magic_number) {
    throw Error(Errc::protocol,
                "a message of another program, or of another version of this one, came instead of a rank's");
  }
  return message;
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/links.hpp

/// @file
/// The Unix connections between rank 0 and every other rank of a channel.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A connection, and whether a thread of this very process is at its other end. (ThreadSanitizer sees nothing through
/// two mappings of one memory: ranks that are threads share one.)
struct Link {
  net::UnixConnection connection;
  bool same_process = false;

  explicit Link(net::UnixConnection to) : connection(std::move(to)) {
    same_process = connection.peer_credentials().pid == ::getpid();
  }
};

/// A star around rank 0. Nothing remains of it in the file system, and nothing at all after the last process.
class Links {
 public:
  /// Collective, blocking. Rank 0 listens under a random name that it publishes in the store; a token that only the
  /// store knows keeps strangers out. @throws Error, JobFailed
  static Links open(const ChannelContext& context, Deadline deadline) {
    Links links(context);
    if (links.rank_ == 0 && links.size_ > 1) {
      links.accept_all_or_tell(context, deadline);
    } else if (links.rank_ != 0) {
      links.connect(context, deadline);
    }
    return links;
  }

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  /// On rank 0: to that peer. Elsewhere: to rank 0.
  Link& link(int peer) noexcept { return *links_[rank_ == 0 ? static_cast<std::size_t>(peer - 1) : 0]; }

  /// `check` throws when waiting has become pointless; it is asked every 20 ms.
  void set_check(std::function<void()> check) { check_ = std::move(check); }

  /// The message of that kind in the `number`-th exchange; what is left of earlier exchanges is passed over.
  /// Blocking. @throws Error (timeout, closed, protocol), the error that the other side tells instead, what the check
  /// throws
  Message receive(int peer, MessageKind kind, std::uint64_t number, Deadline deadline) {
    return with_context(peer, [&] {
      for (;;) {
        wait_readable(link(peer).connection.descriptor(), deadline);
        const Message message = message_from(link(peer).connection.receive(deadline));
        if (message.number < number) {
          continue;
        }
        if (message.number == number && message.kind == kind) {
          return message;
        }
        if (message.number == number && message.kind == MessageKind::verdict) {
          message.throw_if_error();
        }
        throw Error(Errc::protocol,
                    "another message came than was its turn; do all ranks open the same channels and "
                    "allocate the same memory in the same order?");
      }
    });
  }

  /// Blocking. @throws as receive
  net::Descriptor receive_descriptor(int peer, Deadline deadline) {
    return with_context(peer, [&] {
      wait_readable(link(peer).connection.descriptor(), deadline);
      return std::move(link(peer).connection.receive_descriptor(deadline).descriptor);
    });
  }

  /// Blocking: hardly; a message fits the socket. @throws Error
  void send(int peer, const Message& message, Deadline deadline) {
    with_context(peer, [&] { link(peer).connection.send(message.as_bytes(), deadline); });
  }

  /// To rank 0, whose answer is received next: where it has gone, what it said before tells more than that it went.
  void send_before_receiving(const Message& message, Deadline deadline) {
    try {
      link(0).connection.send(message.as_bytes(), deadline);
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::closed)) {
        throw;
      }
    }
  }

  /// @throws as send. The caller keeps `descriptor`.
  void send_descriptor(int peer, int descriptor, Deadline deadline) {
    const std::byte one{1};
    with_context(peer, [&] { link(peer).connection.send_descriptor(descriptor, std::span(&one, 1), deadline); });
  }

 private:
  explicit Links(const ChannelContext& context)
      : rank_(context.members.rank),
        size_(context.members.world_size),
        channel_(context.name),
        failure_(context.failure),
        check_([failure = context.failure, rank = context.reporting_rank()] { failure->throw_if_failed(rank); }) {}

  static std::string door_key(const ChannelContext& context) { return context.name + "/shared_memory"; }

  /// Those who have come learn why it failed, before they see a closed connection.
  void accept_all_or_tell(const ChannelContext& context, Deadline deadline) {
    try {
      accept_all(context, deadline);
    } catch (const Error& error) {
      Message verdict;
      verdict.kind = MessageKind::verdict;
      verdict.number = 1;
      verdict.set_error(error);
      for (std::optional<Link>& link : links_) {
        try {
          if (link) {
            link->connection.send(verdict.as_bytes(), Deadline::after(std::chrono::seconds(1)));
          }
        } catch (const Error&) {
          // It has gone, and has a reason of its own.
        }
      }
      throw;
    }
  }

  void accept_all(const ChannelContext& context, Deadline deadline) {
    const std::string name = "dtrain-" + rendezvous::random_job_id();
    const std::string token = rendezvous::random_job_id();
    std::optional<net::UnixListener> listener;
    try {
      listener.emplace(name);
    } catch (const Error& error) {
      context.store.set_blocking(door_key(context), std::string("error ") + error.what(), deadline);
      throw;
    }
    context.store.set_blocking(door_key(context), "open " + name + " " + token, deadline);
    links_.resize(static_cast<std::size_t>(size_ - 1));
    for (int arrived = 0; arrived < size_ - 1;) {
      wait_for_caller(*listener, deadline);
      Link link(listener->accept(deadline));
      const int peer = greeting_of(link, token, deadline);
      if (peer > 0 && peer < size_ && !links_[static_cast<std::size_t>(peer - 1)]) {
        links_[static_cast<std::size_t>(peer - 1)].emplace(std::move(link));
        ++arrived;
      }
    }
  }

  /// The rank that a connection says it is; -1 for a stranger, who may delay the others by a second, no more.
  int greeting_of(Link& link, const std::string& token, Deadline deadline) {
    try {
      if (link.connection.peer_credentials().uid != ::geteuid()) {
        return -1;
      }
      const Deadline patience = earlier(deadline, Deadline::after(std::chrono::seconds(1)));
      const Message greeting = message_from(link.connection.receive(patience));
      const bool known =
          greeting.kind == MessageKind::greeting && std::equal(token.begin(), token.end(), greeting.token.begin());
      return known ? greeting.rank : -1;
    } catch (const Error&) {
      return -1;
    }
  }

  void connect(const ChannelContext& context, Deadline deadline) {
    const std::string door = context.store.get_blocking(door_key(context), deadline);
    const std::size_t space = door.find(' ', 5);
    if (!door.starts_with("open ") || space == std::string::npos || door.size() - space - 1 > Message{}.token.size()) {
      throw Error(Errc::job_failed, "opening channel '" + context.name + "': rank 0 could not: " +
                                        printable(door.substr(std::min<std::size_t>(door.size(), 6))));
    }
    const std::string name = door.substr(5, space - 5);
    with_context(0, [&] { links_.emplace_back(std::in_place, net::UnixConnection::connect(name, deadline)); });
    Message greeting;
    greeting.rank = rank_;
    std::copy(door.begin() + static_cast<std::ptrdiff_t>(space) + 1, door.end(), greeting.token.begin());
    send(0, greeting, deadline);
  }

  void wait_for_caller(const net::UnixListener& listener, Deadline deadline) const {
    try {
      wait_readable(listener.descriptor(), deadline);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      throw Error(error.code(), doing() + ", waiting for rank " + missing() + ": " + error.what());
    }
  }

  /// Waits in slices, so that the check can end it. @throws what the check throws, Error (timeout, posix)
  void wait_readable(int descriptor, Deadline deadline) const {
    for (;;) {
      check_();
      const bool last = deadline.passed();
      pollfd entry{descriptor, POLLIN, 0};
      const int count = ::poll(&entry, 1, 20);
      if (count > 0) {
        return;
      }
      if (count < 0 && errno != EINTR) {
        throw errno_error("waiting for a Unix socket");
      }
      if (last) {
        throw Error(Errc::timeout, "the deadline passed");
      }
    }
  }

  std::string missing() const {
    std::string ranks;
    for (int peer = 1; peer < size_; ++peer) {
      if (!links_[static_cast<std::size_t>(peer - 1)]) {
        ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
      }
    }
    return ranks;
  }

  std::string doing() const { return "setting up shared memory for channel '" + channel_ + "'"; }

  /// A socket's error says what went wrong; this says with whom. What the job's first cause, or rank 0, says stays as
  /// it is.
  template <class F>
  auto with_context(int peer, F call) const -> decltype(call()) {
    try {
      return call();
    } catch (const JobFailed&) {
      throw;
    } catch (const ToldError&) {
      throw;
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) {
        failure_->block_until_failed(Deadline::after(std::chrono::milliseconds(500)));  // a peer that went has said why
      }
      check_();
      throw Error(error.code(), doing() + " with rank " + std::to_string(peer) + ": " + error.what());
    }
  }

  int rank_;
  int size_;
  std::string channel_;
  std::shared_ptr<FailureLatch> failure_;
  std::function<void()> check_;
  std::vector<std::optional<Link>> links_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/operation.hpp

/// @file
/// What a rank says about the operation it is in, so that a difference between ranks is an error and not a hang.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

enum class OperationKind : std::uint8_t {
  none = 0,
  all_reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  barrier,
  send,
  recv,
  send_recv,
};

/// Lies in shared memory: plain fields, the same in every process.
struct Operation {
  std::uint64_t sequence = 0;    ///< 1, 2, ... among a channel's collectives; 0 point to point
  std::uint64_t count = 0;       ///< elements: of the whole buffer, of one rank's block where it has blocks
  std::uint64_t allocation = 0;  ///< which allocation of the channel the buffer lies in; 0: in none, or out of place
  std::uint64_t offset = 0;      ///< bytes from the beginning of the rank's part
  std::int32_t root = 0;         ///< of a broadcast; point to point, the peer it goes to, or else comes from
  OperationKind kind = OperationKind::none;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;

  /// Whether both ranks called the same thing. Where their buffers lie is each rank's own business.
  bool agrees_with(const Operation& other) const noexcept {
    return sequence == other.sequence && count == other.count && root == other.root && kind == other.kind &&
           dtype == other.dtype && op == other.op;
  }
};

/// "all_reduce (sum) of 1024 f32"; "broadcast of 10 f64 from rank 0".
inline std::string to_string(const Operation& operation) {
  const std::string elements = " of " + std::to_string(operation.count) + " " + name(operation.dtype);
  const std::string reduced = std::string(" (") + name(operation.op) + ")";
  const std::string peer = " rank " + std::to_string(operation.root);
  switch (operation.kind) {
    case OperationKind::all_reduce: return "all_reduce" + reduced + elements;
    case OperationKind::broadcast: return "broadcast" + elements + " from" + peer;
    case OperationKind::reduce_scatter: return "reduce_scatter" + reduced + elements + " a rank";
    case OperationKind::all_gather: return "all_gather" + elements + " a rank";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send" + elements + " to" + peer;
    case OperationKind::recv: return "recv" + elements + " from" + peer;
    case OperationKind::send_recv: return "send_recv" + elements + " to" + peer;
    case OperationKind::none: break;
  }
  return "no operation";
}

/// "operation 5 of channel 'group'", or "on channel 'group'" point to point.
inline std::string place_of(const Operation& operation, const std::string& channel) {
  return (operation.sequence == 0 ? "on channel '"
                                  : "operation " + std::to_string(operation.sequence) + " of channel '") +
         channel + "'";
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/outbox_part.hpp

/// @file
/// One place of a rank's outbox: a piece of a message to one peer, until that peer takes it.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Pieces that a rank can have under way, and the bytes of one: two are filled while two are taken.
inline constexpr std::size_t outbox_parts = 4;
inline constexpr std::size_t outbox_part_bytes = std::size_t{32} << 10;

/// The sender writes it while it is free and then sets `owner`; that rank reads it and frees it. Zeroed memory is a
/// free one.
struct alignas(64) OutboxPart {
  std::atomic<std::uint32_t> owner{0};  ///< 1 + the rank that it is for; 0: free
  DType dtype = DType::f32;
  std::uint64_t message = 0;  ///< 1, 2, ... from this sender to that receiver
  std::uint64_t offset = 0;   ///< of the piece in the message, in bytes
  std::uint64_t count = 0;    ///< elements of the whole message
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/segment.hpp

/// @file
/// The owner of one mapping of shared memory.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

inline constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

/// A mapped memfd: no file anywhere, gone with the last process that maps it. Pages exist once they are reserved (a
/// page that cannot be had is then an error code; touching it unreserved would be a SIGBUS). Shared by those who use
/// it.
class Segment {
 public:
  /// A new memfd of `bytes`, sealed against shrinking, without pages yet; `needed` bytes of it are to be reserved.
  /// @throws Error (out_of_memory, posix)
  static std::shared_ptr<Segment> create(std::size_t bytes, std::size_t needed) {
    const std::uint64_t available = available_memory_bytes();
    if (needed > available) {
      throw out_of_memory(needed, available);
    }
    net::Descriptor memory(::memfd_create("dtrain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!memory) {
      throw errno_error("creating " + std::to_string(bytes) + " bytes of shared memory");
    }
    int result = 0;
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

  /// Maps a memfd that another process made. @throws Error (protocol) where it is not sealed or not of that size,
  /// (posix)
  static std::shared_ptr<Segment> adopt(net::Descriptor memory, std::size_t bytes) {
    const int seals = ::fcntl(memory.get(), F_GET_SEALS);
    const off_t end = ::lseek(memory.get(), 0, SEEK_END);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || end < 0 || static_cast<std::uint64_t>(end) != bytes) {
      throw Error(Errc::protocol,
                  "the shared memory that rank 0 sent is not sealed, or not of " + std::to_string(bytes) + " bytes");
    }
    return std::shared_ptr<Segment>(new Segment(std::move(memory), bytes));
  }

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() { static_cast<void>(::munmap(base_, bytes_)); }

  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// The memfd, to hand to other processes; -1 after close_descriptor().
  int descriptor() const noexcept { return memory_.get(); }

  /// Reserves zeroed pages on this thread's NUMA node. @throws Error (out_of_memory, posix)
  void reserve(std::size_t offset, std::size_t count) const {
    if (count == 0) {
      return;  // which the system would refuse
    }
    if (bytes_ >= huge_page_bytes) {
      // Reserved through the descriptor pages are small, written through the advised mapping huge where the system
      // allows. What cannot be had here (an old kernel, no memory) the reservation below finds.
      static_cast<void>(::madvise(base_ + offset, count, populate_write));
    }
    int result = 0;
    do {
      result = ::posix_fallocate(memory_.get(), static_cast<off_t>(offset), static_cast<off_t>(count));
    } while (result == EINTR);
    if (result == ENOSPC || result == ENOMEM) {
      throw out_of_memory(count, available_memory_bytes());
    }
    if (result != 0) {
      throw posix_error(result, "reserving " + std::to_string(count) + " bytes of shared memory");
    }
  }

  /// The mapping stays. Once every rank has it, nobody needs the descriptor.
  void close_descriptor() noexcept { memory_.reset(); }

 private:
  static constexpr int populate_write = 23;  ///< MADV_POPULATE_WRITE, which older C libraries do not name

  /// The base is aligned for huge pages where the segment is large enough to have some.
  Segment(net::Descriptor memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {
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
      static_cast<void>(::munmap(base_, bytes));
      throw posix_error(error, "mapping " + std::to_string(bytes) + " bytes of shared memory");
    }
    if (slack > 0) {
      static_cast<void>(::madvise(base_, bytes, MADV_HUGEPAGE));  // advice: without it pages are small
    }
  }

  static Error out_of_memory(std::size_t bytes, std::uint64_t available) {
    return {Errc::out_of_memory,
            "allocating " + std::to_string(bytes) + " bytes of shared memory: about " + std::to_string(available) +
                " bytes are available on this host; use fewer ranks or a smaller model, or give the "
                "container more memory"};
  }

  net::Descriptor memory_;
  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/arena.hpp

/// @file
/// Memory that every rank of a channel has mapped: one part for each rank.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Borrows an allocation, for one operation. Lifetime: the Allocation, as for every buffer that is enqueued.
struct Arena {
  std::byte* base = nullptr;
  std::size_t stride = 0;

  std::byte* part(int rank) const noexcept { return base + static_cast<std::size_t>(rank) * stride; }

  /// The buffer that `operation` says is at an offset of that rank's part.
  std::byte* buffer(int rank, const Operation& operation) const noexcept { return part(rank) + operation.offset; }
};

/// A rank's part of an allocation: an owner, which may outlive the communicator. Collectives in place on it copy
/// nothing.
class Allocation {
 public:
  Allocation() noexcept = default;
  Allocation(std::shared_ptr<Segment> segment, std::byte* data, std::size_t bytes) noexcept
      : segment_(std::move(segment)), data_(data), bytes_(bytes) {}
  Allocation(Allocation&& other) noexcept
      : segment_(std::move(other.segment_)),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Allocation& operator=(Allocation&& other) noexcept {
    segment_ = std::move(other.segment_);
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  ~Allocation() = default;

  /// This rank's part, aligned to a page at least.
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }

 private:
  std::shared_ptr<Segment> segment_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

/// What a communicator remembers of its allocations, to recognise buffers in them. An allocation has the number of the
/// exchange that made it: the same on every rank, also after one that failed on some of them.
class ArenaTable {
 public:
  struct Place {
    std::uint64_t allocation = 0;  ///< 0: in none
    std::uint64_t offset = 0;
    Arena arena{};
  };

  void add(std::uint64_t number, const std::shared_ptr<Segment>& segment, Arena arena, std::byte* own_part,
           std::size_t bytes) {
    std::erase_if(entries_, [](const Entry& entry) { return entry.segment.expired(); });
    entries_.push_back({number, segment, arena, own_part, bytes});
  }

  /// Where `count` bytes at `data` lie. Blocking: no; allocates nothing.
  Place find(const std::byte* data, std::size_t count) const noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    for (const Entry& entry : entries_) {
      const auto begin = reinterpret_cast<std::uintptr_t>(entry.own_part);
      if (address >= begin && address - begin <= entry.bytes && count <= entry.bytes - (address - begin) &&
          !entry.segment.expired()) {  // else the addresses may be somebody else's by now
        return {entry.number, address - begin, entry.arena};
      }
    }
    return {};
  }

 private:
  struct Entry {
    std::uint64_t number;
    std::weak_ptr<Segment> segment;
    Arena arena;
    std::byte* own_part;
    std::size_t bytes;
  };

  std::vector<Entry> entries_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/shared_cause.hpp

/// @file
/// A failure's cause in memory that other processes read.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Without its texts where there is no memory for them.
inline Cause copy_of(const Cause& cause) noexcept {
  try {
    return cause;
  } catch (...) {
    return Cause{cause.kind, cause.rank, {}, {}};  // no memory for its text
  }
}

/// A Cause that other processes can read; texts are cut to what fits.
struct SharedCause {
  std::uint32_t kind = 0;
  std::int32_t rank = -1;
  std::array<char, 64> host{};
  std::array<char, 944> text{};

  void store(const Cause& cause) noexcept {
    kind = static_cast<std::uint32_t>(cause.kind);
    rank = cause.rank;
    copy(cause.host, host);
    copy(cause.text, text);
  }

  Cause load() const {
    const bool known =
        kind >= static_cast<std::uint32_t>(CauseKind::lost) && kind <= static_cast<std::uint32_t>(CauseKind::stopped);
    return {known ? static_cast<CauseKind>(kind) : CauseKind::exception, rank, text_of(host), text_of(text)};
  }

 private:
  static void copy(std::string_view from, std::span<char> to) noexcept {
    const std::size_t length = std::min(from.size(), to.size());
    std::memcpy(to.data(), from.data(), length);
    std::fill(to.begin() + static_cast<std::ptrdiff_t>(length), to.end(), '\0');
  }
  static std::string text_of(std::span<const char> from) {
    const auto end = std::find(from.begin(), from.end(), '\0');
    return {from.begin(), end};
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/sharing.hpp

/// @file
/// How a new segment comes to every rank of a channel, or to none.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A segment and what rank 0 drew for it.
struct Shared {
  std::shared_ptr<Segment> segment;
  std::size_t stride = 0;  ///< from one rank's part to the next
  std::uint64_t nonce = 0;
};

/// How a mapping goes from one thread to another of the same process: the message carries the address of a Handover on
/// the heap, which the receiver owns from then on. (A receiver that fails before it reads the message leaks it.)
struct Handover {
  std::shared_ptr<Segment> segment;
  std::atomic<bool> ready{false};  ///< orders the two threads; a socket does not, in the language's terms

  static std::uint64_t give(const std::shared_ptr<Segment>& segment) {
    auto handover = std::make_unique<Handover>();
    handover->segment = segment;
    handover->ready.store(true, std::memory_order_release);
    return reinterpret_cast<std::uintptr_t>(handover.release());
  }
  static std::shared_ptr<Segment> take(std::uint64_t address) {
    const std::unique_ptr<Handover> handover(reinterpret_cast<Handover*>(static_cast<std::uintptr_t>(address)));
    return handover->ready.load(std::memory_order_acquire) ? std::move(handover->segment) : nullptr;
  }
};

/// One exchange: peers say how much they want, rank 0 compares and offers a segment, everybody reserves the pages of
/// its own part and says whether it could, rank 0 tells the verdict. Ends the same way on every rank.
class Sharing {
 public:
  Sharing(Links& links, std::uint64_t number, std::size_t bytes, Deadline deadline)
      : links_(links), number_(number), bytes_(bytes), deadline_(deadline), stride_(stride_for(bytes)) {}

  /// Collective, blocking. @throws Error: disagreement where the sizes differ (naming both), out_of_memory, timeout,
  /// closed; the same on every rank that can still be told. JobFailed
  Shared run() { return links_.rank() == 0 ? offer() : accept(); }

 private:
  static std::size_t stride_for(std::size_t bytes) noexcept {
    const std::size_t unit = bytes >= huge_page_bytes ? huge_page_bytes : static_cast<std::size_t>(::getpagesize());
    return round_up(std::max<std::size_t>(bytes, 1), unit);
  }

  Message message(MessageKind kind) const noexcept {
    Message made;
    made.kind = kind;
    made.rank = links_.rank();
    made.number = number_;
    made.bytes = bytes_;
    return made;
  }

  Shared offer() {
    try {
      compare_requests();
      const Shared shared = create();
      for (int peer = 1; peer < links_.size(); ++peer) {
        send_offer(peer, shared);
      }
      shared.segment->reserve(0, bytes_);
      for (int peer = 1; peer < links_.size(); ++peer) {
        links_.receive(peer, MessageKind::ready, number_, deadline_).throw_if_error();
      }
      shared.segment->close_descriptor();
      tell_verdict(message(MessageKind::verdict));
      return shared;
    } catch (const Error& error) {
      Message verdict = message(MessageKind::verdict);
      verdict.set_error(error);
      tell_verdict(verdict);
      throw;
    }
  }

  void compare_requests() {
    for (int peer = 1; peer < links_.size(); ++peer) {
      const Message request = links_.receive(peer, MessageKind::request, number_, deadline_);
      if (request.bytes != bytes_) {
        throw Error(Errc::disagreement, "rank 0 allocates " + std::to_string(bytes_) +
                                            " bytes of shared memory and rank " + std::to_string(peer) + " allocates " +
                                            std::to_string(request.bytes) + "; every rank asks for the same size");
      }
    }
  }

  Shared create() const {
    const auto ranks = static_cast<std::size_t>(links_.size());
    if (bytes_ > (std::size_t{1} << 56) / ranks) {
      throw Error(Errc::out_of_memory, "allocating " + std::to_string(bytes_) + " bytes of shared memory for each of " +
                                           std::to_string(ranks) + " ranks: no machine has an address space for that");
    }
    std::uint64_t nonce = 0;
    const auto random = rendezvous::random_bytes<sizeof(nonce)>();
    std::memcpy(&nonce, random.data(), sizeof(nonce));
    return {Segment::create(size_of_segment(), ranks * bytes_), stride_, nonce};
  }

  void send_offer(int peer, const Shared& shared) {
    Message offer = message(MessageKind::offer);
    offer.nonce = shared.nonce;
    if (!links_.link(peer).same_process) {
      links_.send(peer, offer, deadline_);
      links_.send_descriptor(peer, shared.segment->descriptor(), deadline_);
      return;
    }
    offer.address = Handover::give(shared.segment);
    try {
      links_.send(peer, offer, deadline_);
    } catch (...) {
      Handover::take(offer.address);
      throw;
    }
  }

  /// Best effort where it is an error: a peer that has gone has its own.
  void tell_verdict(const Message& verdict) {
    for (int peer = 1; peer < links_.size(); ++peer) {
      try {
        links_.send(peer, verdict, Deadline::after(std::chrono::seconds(1)));
      } catch (const Error&) {
        if (verdict.code == 0) {
          throw;
        }
      }
    }
  }

  Shared accept() {
    links_.send_before_receiving(message(MessageKind::request), deadline_);
    const Message offer = links_.receive(0, MessageKind::offer, number_, deadline_);
    Shared shared{nullptr, stride_, offer.nonce};
    Message ready = message(MessageKind::ready);
    try {
      shared.segment = links_.link(0).same_process
                           ? Handover::take(offer.address)
                           : Segment::adopt(links_.receive_descriptor(0, deadline_), size_of_segment());
      shared.segment->reserve(static_cast<std::size_t>(links_.rank()) * stride_, bytes_);
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      ready.set_error(Error(error.code(), "on rank " + std::to_string(links_.rank()) + ": " + error.what()));
    }
    links_.send_before_receiving(ready, deadline_);
    links_.receive(0, MessageKind::verdict, number_, deadline_).throw_if_error();
    shared.segment->close_descriptor();
    return shared;
  }

  std::size_t size_of_segment() const noexcept { return static_cast<std::size_t>(links_.size()) * stride_; }

  Links& links_;
  const std::uint64_t number_;
  const std::size_t bytes_;
  const Deadline deadline_;
  const std::size_t stride_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/slice.hpp

/// @file
/// Which elements of a reduction which rank reduces.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The part of `count` elements that one rank reduces: whole cache lines, the last ranks' may be empty.
struct Slice {
  std::size_t begin = 0;
  std::size_t end = 0;
  std::size_t size() const noexcept { return end - begin; }
};

/// Elements of the longest slice of `count` elements among `ranks`.
constexpr std::size_t slice_length(std::size_t count, int ranks) noexcept {
  constexpr std::size_t line = 64;  // elements: a whole number of cache lines of every element type
  const std::size_t share = (count + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
  return (share + line - 1) / line * line;
}

constexpr Slice slice_of(std::size_t count, int ranks, int rank) noexcept {
  const std::size_t length = slice_length(count, ranks);
  const std::size_t begin = std::min(count, length * static_cast<std::size_t>(rank));
  return {begin, std::min(count, begin + length)};
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/control_block.hpp

/// @file
/// The layout of a channel's shared memory: a slot for each rank, then its staging areas and its outbox.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The most that a rank shows in its slot.
inline constexpr std::size_t slot_bytes = 8192;

/// Up to this many bytes every rank of a reduction shows its input in its slot and reduces everything by itself: one
/// meeting instead of two, but n times the reading. A second meeting costs each rank a look at n - 1 others, as reading
/// some lines of each does; beyond, what all read together is the cost.
constexpr std::size_t small_bytes(int ranks) noexcept {
  return std::clamp(std::size_t{16} * 1024 / static_cast<std::size_t>(ranks), std::size_t{512}, slot_bytes);
}

/// Ranks of one host; each rank looks at every other's slot, so many more would want another algorithm.
inline constexpr int max_ranks = 256;

enum class SlotState : std::uint32_t { serving = 0, closed, failed };

/// What a rank brings to the first meeting of a collective: who sees `meeting` has the rest, most of it in the same
/// cache line.
struct alignas(64) Opening {
  std::atomic<std::uint32_t> meeting{0};  ///< written last
  Operation operation{};
  std::array<std::byte, 16> few{};  ///< an input that fits
  alignas(64) std::array<std::byte, slot_bytes> many{};

  std::byte* input(std::size_t bytes) noexcept { return bytes <= few.size() ? few.data() : many.data(); }
};
static_assert(offsetof(Opening, many) == 64, "dtrain: an operation and a few bytes are one cache line");

/// What one rank shows the others. Only that rank writes it; all ring its bells. Zeroed memory is a valid slot.
struct alignas(64) Slot {
  Doorbell arrived{};  ///< meetings this rank has come to
  std::atomic<SlotState> state{SlotState::serving};
  alignas(64) Doorbell mail{};             ///< rung by whoever sends to this rank, or takes what it sent
  alignas(64) std::uint64_t nonce = 0;     ///< proves that all ranks map the same memory
  std::atomic<std::uint32_t> job_rank{0};  ///< 1 + this rank's number in the job, for sentences; 0: not yet there
  /// Two, by parity: one is written while a slow peer still reads the other.
  std::array<Opening, 2> openings{};
  alignas(64) SharedCause cause{};  ///< written before `state` becomes failed
  std::array<OutboxPart, outbox_parts> outbox{};
};

/// Where everything is, as a function of the number of ranks alone.
class ControlBlock {
 public:
  static constexpr std::size_t chunk_bytes_for(int ranks) noexcept {
    const std::size_t share = (std::size_t{512} << 10) / static_cast<std::size_t>(ranks) / 4096 * 4096;
    return std::clamp(share, std::size_t{64} << 10, std::size_t{256} << 10);
  }
  static constexpr std::size_t bytes_for(int ranks) noexcept {
    return static_cast<std::size_t>(ranks) * (sizeof(Slot) + area_bytes(ranks));
  }

  ControlBlock(std::byte* base, int ranks) noexcept : base_(base), ranks_(ranks) {}

  Slot& slot(int rank) const noexcept {
    return *std::launder(reinterpret_cast<Slot*>(base_ + static_cast<std::size_t>(rank) * sizeof(Slot)));
  }

  /// A rank's number in the job; its number in the channel before it has come.
  int job_rank(int rank) const noexcept {
    const std::uint32_t stated = slot(rank).job_rank.load();
    return stated != 0 ? static_cast<int>(stated - 1) : rank;
  }

  /// Bytes of one chunk of a staged operation.
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_for(ranks_); }

  /// A rank's input for the chunks of that parity.
  std::byte* staged_input(int rank, std::size_t chunk) const noexcept {
    return staging(rank) + chunk % 2 * chunk_bytes();
  }
  /// The slice that a rank reduced, for the chunks of that parity.
  std::byte* staged_result(int rank, std::size_t chunk) const noexcept {
    return staging(rank) + 2 * chunk_bytes() + chunk % 2 * result_bytes(ranks_);
  }

  /// What a part of a rank's outbox holds.
  std::byte* outbox(int rank, std::size_t part) const noexcept {
    return staging(rank) + staging_bytes(ranks_) + part * outbox_part_bytes;
  }

 private:
  /// The longest slice of a chunk, in whole lines: an f64 slice is at most 64 elements longer than its share.
  static constexpr std::size_t result_bytes(int ranks) noexcept {
    return slice_length(chunk_bytes_for(ranks) / 8, ranks) * 8;
  }
  static constexpr std::size_t staging_bytes(int ranks) noexcept {
    return 2 * (chunk_bytes_for(ranks) + result_bytes(ranks));
  }
  static constexpr std::size_t area_bytes(int ranks) noexcept {
    return staging_bytes(ranks) + outbox_parts * outbox_part_bytes;
  }
  std::byte* staging(int rank) const noexcept {
    return base_ + static_cast<std::size_t>(ranks_) * sizeof(Slot) +
           static_cast<std::size_t>(rank) * area_bytes(ranks_);
  }

  std::byte* base_;
  int ranks_;
};

static_assert(ControlBlock::bytes_for(3) % 64 == 0, "dtrain: staging areas begin at cache lines");

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/meeting.hpp

/// @file
/// A meeting of all ranks of a channel: what one waits for, and what it says where the others do not come.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Whether a count of meetings has come to `meeting`; it may wrap.
inline bool has_come_to(const std::atomic<std::uint32_t>& count, std::uint32_t meeting) noexcept {
  return static_cast<std::int32_t>(count.load() - meeting) >= 0;
}

inline bool has_arrived(const Slot& slot, std::uint32_t meeting) noexcept {
  return has_come_to(slot.arrived.count, meeting);
}

/// What shows that a peer has come, and what is read right after: fetched meanwhile, both take one way, not two.
struct Sign {
  const std::atomic<std::uint32_t>* count;
  const void* beside;
};

inline Sign sign_of(const Slot& slot) noexcept {
  return {&slot.arrived.count, &slot.arrived.count};
}
inline Sign sign_of(const Opening& opening) noexcept {
  return {&opening.meeting, opening.many.data()};
}

/// The wait for one peer at a meeting; see Channel::wait.
struct Meeting {
  ControlBlock control;
  int ranks;
  std::uint32_t number;
  int peer;   ///< the one that is waited for now
  Sign sign;  ///< the peer's

  bool done() const noexcept {
    if (has_come_to(*sign.count, number)) {
      return true;
    }
    __builtin_prefetch(sign.beside);
    return false;
  }
  bool may_sleep() const noexcept { return !done() && control.slot(peer).state.load() == SlotState::serving; }
  Doorbell& bell() const noexcept { return control.slot(peer).arrived; }

  /// Why this meeting cannot take place any more, if a peer failed or left. All are looked at: the one that is waited
  /// for may itself wait for such a peer. Who came first and then left spoils nothing. @param present names the
  /// operation, where that is wanted: a sentence costs memory
  template <class Present>
  std::optional<Cause> spoilt(const Present& present) const {
    for (int rank = 0; rank < ranks; ++rank) {
      const Slot& slot = control.slot(rank);
      const SlotState state = slot.state.load();
      if (state == SlotState::failed && !all_have_arrived()) {
        return slot.cause.load();
      }
      if (state == SlotState::closed && !has_arrived(slot, number)) {
        return Cause{CauseKind::disagreement, -1, "",
                     present() + " cannot be finished: rank " + std::to_string(rank) +
                         " has left the channel without calling it"};
      }
    }
    return std::nullopt;
  }

  /// Who has come, who has not, and how long that has been so.
  std::string missing(std::chrono::milliseconds waited) const {
    std::vector<int> here;
    std::vector<int> not_here;
    for (int rank = 0; rank < ranks; ++rank) {
      (has_arrived(control.slot(rank), number) ? here : not_here).push_back(control.job_rank(rank));
    }
    return rendezvous::rank_list(not_here) + " had not arrived after " + std::to_string(waited.count()) + " ms; " +
           rendezvous::rank_list(here) + " had";
  }

 private:
  bool all_have_arrived() const noexcept {
    for (int rank = 0; rank < ranks; ++rank) {
      if (!has_arrived(control.slot(rank), number)) {
        return false;
      }
    }
    return true;
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/sources.hpp

/// @file
/// One address for each rank, as a reduction takes them.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A list in place: no allocation while an operation runs.
template <class Pointer>
class RankAddresses {
 public:
  /// `address(rank)` for rank 0 to ranks - 1.
  template <class F>
  RankAddresses(int ranks, F address) noexcept : ranks_(static_cast<std::size_t>(ranks)) {
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      addresses_[rank] = address(static_cast<int>(rank));
    }
  }

  // NOLINTNEXTLINE(google-explicit-constructor): it is a list of addresses.
  operator std::span<const Pointer>() const noexcept { return {addresses_.data(), ranks_}; }

 private:
  std::array<Pointer, max_ranks> addresses_;
  std::size_t ranks_;
};

using Sources = RankAddresses<const std::byte*>;
using Targets = RankAddresses<std::byte*>;

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/staging_meter.hpp

/// @file
/// Whether staged bytes go through the caches or past them: measured while they do.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Between cores that share a level-3 cache an ordinary copy is up to twice as fast, between others a copy past the
/// caches (measured on two cores of a Zen 3 that its host moved about). Which it is no rank knows, and it may change:
/// so of every `period` long operations each way is used for two and timed, and the faster one for the rest. The bytes
/// are the same; ranks need not agree. Threads: the one that runs the work.
class StagingMeter {
 public:
  using Clock = std::chrono::steady_clock;

  /// Before an operation. @param bytes that a rank stages in it
  void begin(std::size_t bytes) noexcept {
    counts_ = bytes >= least_bytes;
    timed_ = counts_ && operations_ % period < 4;
    streamed_ = timed_ ? operations_ % period < 2 : best_[1] <= best_[0];
    spent_ = {};
    bytes_ = bytes;
  }

  void copy(std::byte* to, const std::byte* from, std::size_t bytes) const noexcept {
    streamed_ ? kernels::stream_bytes(to, from, bytes) : kernels::copy_bytes(to, from, bytes);
  }

  /// Runs a part of the operation; waits for ranks that have not come yet are no part of it.
  template <class F>
  auto time(F part) noexcept {
    const Clock::time_point start = timed_ ? Clock::now() : Clock::time_point();
    const auto result = part();
    spent_ += timed_ ? Clock::now() - start : Clock::duration();
    return result;
  }

  /// After an operation that was staged, to its end.
  void end() noexcept {
    if (counts_ && operations_++ % period == 0) {
      best_.fill(std::numeric_limits<double>::max());
    }
    if (timed_) {
      double& best = best_[streamed_ ? 1 : 0];
      best = std::min(best, static_cast<double>(spent_.count()) / static_cast<double>(bytes_));
    }
  }

 private:
  static constexpr std::uint64_t period = 128;
  static constexpr std::size_t least_bytes = std::size_t{32} << 10;

  std::uint64_t operations_ = 0;
  std::array<double, 2> best_{};  ///< clock ticks a byte: through the caches, past them
  bool counts_ = false;
  bool timed_ = false;
  bool streamed_ = true;
  Clock::duration spent_{};
  std::size_t bytes_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/channel.hpp

/// @file
/// One rank's side of a channel: running operations, waiting for the others, and giving up when it fails.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A meeting: every rank counts up its own `arrived` word and waits for everybody else's. What a rank wrote before it
/// arrived, others may read after they met it; what it writes after meeting k+1 nobody reads for meeting k any more.
///
/// Owned by the Communicator and by each enqueued operation (retain, release). Threads: run, and what its work
/// calls, belong to the thread that runs the stream; abort, failure and close to any.
class Channel {
 public:
  Channel(const ChannelContext& context, std::shared_ptr<Segment> segment)
      : rank_(context.members.rank),
        size_(context.members.world_size),
        job_rank_(context.reporting_rank()),
        name_(context.name),
        host_(context.members.host),
        timeout_(std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24 * 365))),
        failure_(context.failure),
        on_stall_(context.on_stall),
        segment_(std::move(segment)),
        control_(segment_->base(), size_),
        spins_(stream::host::cores_by_affinity() >= size_ ? 200 : 50),
        sent_to_(static_cast<std::size_t>(size_)),
        received_from_(static_cast<std::size_t>(size_)) {
    own_slot().job_rank.store(static_cast<std::uint32_t>(job_rank_) + 1);
  }
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  int job_rank() const noexcept { return job_rank_; }
  const std::string& name() const noexcept { return name_; }
  const std::string& host() const noexcept { return host_; }
  const std::shared_ptr<FailureLatch>& latch() const noexcept { return failure_; }
  const ControlBlock& control() const noexcept { return control_; }
  kernels::Isa isa() const noexcept { return isa_; }
  StagingMeter& staging() noexcept { return staging_; }

  void retain() noexcept { references_.fetch_add(1, std::memory_order_relaxed); }
  void release() noexcept {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      delete this;
    }
  }

  /// Runs `work` as the `turn`-th that was enqueued; skips it once the channel has failed. What this rank says about a
  /// collective becomes visible with its next arrival.
  template <class F>
  void run(std::uint64_t turn, const Operation& operation, F work) noexcept {
    if (in_operation_.exchange(1) != 0) {
      fail(out_of_order(operation));
      return;
    }
    const std::uint64_t done = done_.load(std::memory_order_relaxed);
    if (done + 1 != turn && !aborted()) {
      fail(out_of_order(operation));
    } else if (!aborted_.load()) {  // seq_cst, as is close(): one of both sees the other
      operation_ = operation;
      deadline_.reset();
      if (operation.sequence != 0) {
        opening(rank_).operation = operation;
      }
      work();
    }
    done_.store(std::max(done, turn), std::memory_order_release);
    in_operation_.store(0);
    if (closing_.load()) {
      futex_wake_all(in_operation_, FutexScope::process);
    }
  }

  /// Arrives, and waits for all. @returns false where the channel has failed meanwhile.
  bool meet() noexcept {
    own_slot().arrived.set(++meetings_);
    return wait_for_all([this](int peer) { return sign_of(control_.slot(peer)); });
  }

  /// The first meeting of an operation: also compares what everybody calls.
  bool meet_and_compare() noexcept {
    opening(rank_).meeting.store(++meetings_, std::memory_order_release);
    own_slot().arrived.set(meetings_);
    return wait_for_all([this](int peer) { return sign_of(opening(peer)); }) && all_agree();
  }

  /// Waits until `awaited.done()`: first in the hope that the peer runs on another core, then in case it waits for this
  /// one, at last without a core. @returns false where the channel has failed meanwhile.
  template <class Awaited>
  bool wait(const Awaited& awaited) noexcept {
    for (int spin = 0; spin < spins_ + yields; ++spin) {
      if (awaited.done()) {
        return true;
      }
      if (aborted()) {
        return false;
      }
      if (spin < spins_) {
        spin_pause();
      } else {
        static_cast<void>(::sched_yield());
      }
    }
    if (!deadline_) {
      deadline_ = Deadline::after(timeout_);
    }
    std::chrono::milliseconds patience(1);
    while (!aborted()) {
      const Deadline nap = earlier(*deadline_, Deadline::after(std::exchange(patience, std::chrono::milliseconds(20))));
      sleeper_.sleep(
          awaited.bell(), [&] { return awaited.may_sleep(); }, aborted_, nap);
      if (awaited.done()) {
        return true;
      }
      if (on_stall_) {
        on_stall_();
      }
      if (const std::optional<Cause> spoilt = awaited.spoilt([this] { return present(); })) {
        fail(*spoilt);
      } else if (deadline_->passed()) {
        const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
        fail({CauseKind::timeout, job_rank_, host_, present() + ": " + awaited.missing(waited)});
      }
    }
    return false;
  }

  /// Messages so far from this rank to that one, and from that one to this; in the thread that runs the work.
  std::uint64_t& sent_to(int peer) noexcept { return sent_to_[static_cast<std::size_t>(peer)]; }
  std::uint64_t& received_from(int peer) noexcept { return received_from_[static_cast<std::size_t>(peer)]; }

  /// What rank `rank` says about the present operation; valid from the operation's first meeting to its end.
  const Operation& operation_of(int rank) const noexcept { return opening(rank).operation; }

  /// Where a rank shows a small input of the present operation.
  std::byte* small_of(int rank, std::size_t bytes) const noexcept { return opening(rank).input(bytes); }

  /// Whether work is to stop now. Looked at between pieces of work that take microseconds.
  bool aborted() const noexcept { return aborted_.load(std::memory_order_acquire); }

  std::optional<Cause> failure() const {
    if (!aborted()) {
      return std::nullopt;
    }
    const std::lock_guard lock(mutex_);
    return cause_;
  }

  /// Ends running and later work of this rank, and tells the peers' channels why. The first cause stays.
  void abort(const Cause& cause) noexcept {
    {
      const std::lock_guard lock(mutex_);
      if (cause_) {
        return;
      }
      cause_ = copy_of(cause);
      own_slot().cause.store(cause);
      aborted_.store(true);  // before anybody else can find a cause and return
    }
    leave(SlotState::failed);
    sleeper_.wake();
  }

  /// Aborts, and tells the job. In the thread that runs the work.
  void fail(const Cause& cause) noexcept {
    abort(cause);
    try {
      failure_->report(cause);
    } catch (...) {
      // failure() has it; the job learns of it from whoever looks there.
    }
  }

  /// The communicator is going away: no work runs after this, and peers that still wait for this rank are told.
  /// Blocking: until the operation that runs in another thread has ended, which is soon.
  void close(std::uint64_t enqueued) noexcept {
    if (done_.load() < enqueued) {
      abort({CauseKind::exception, job_rank_, host_, "its communicator was destroyed before all of its work had run"});
    }
    closing_.store(true);
    while (in_operation_.load() != 0) {
      futex_wait(in_operation_, 1, Deadline::after(std::chrono::seconds(1)), FutexScope::process);
    }
    if (!aborted()) {
      leave(SlotState::closed);
    }
  }

 private:
  ~Channel() = default;

  static constexpr int yields = 50;

  Slot& own_slot() const noexcept { return control_.slot(rank_); }
  Opening& opening(int rank) const noexcept { return control_.slot(rank).openings[operation_.sequence % 2]; }

  template <class Sign>
  bool wait_for_all(Sign sign) noexcept {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != rank_ && !wait(Meeting{control_, size_, meetings_, peer, sign(peer)})) {
        return false;
      }
    }
    return !aborted();
  }

  /// Says that this rank comes to no further meeting, takes and sends nothing more.
  void leave(SlotState state) noexcept {
    own_slot().state.store(state);
    own_slot().arrived.wake();
    for (int peer = 0; peer < size_; ++peer) {
      control_.slot(peer).mail.ring();
    }
  }

  /// Every rank compares everybody with rank 0, so that every rank says the same sentence.
  bool all_agree() noexcept {
    const Operation& first = operation_of(0);
    for (int peer = 1; peer < size_; ++peer) {
      const Operation& other = operation_of(peer);
      if (!other.agrees_with(first)) {
        fail({CauseKind::disagreement, -1, "",
              "as " + place_of(first, name_) + ", rank " + std::to_string(control_.job_rank(0)) + " called " +
                  to_string(first) + " and rank " + std::to_string(control_.job_rank(peer)) + " called " +
                  to_string(other) + "; every rank calls the same collectives in the same order"});
        return false;
      }
    }
    return true;
  }

  Cause out_of_order(const Operation& operation) const {
    return {
        CauseKind::exception, job_rank_, host_,
        to_string(operation) + ", " + place_of(operation, name_) +
            ", began before the one enqueued before it had run; operations of one communicator go to one stream, or "
            "to streams that wait for each other"};
  }

  std::string present() const { return to_string(operation_) + ", " + place_of(operation_, name_); }

  const int rank_;
  const int size_;
  const int job_rank_;
  const std::string name_;
  const std::string host_;
  const std::chrono::nanoseconds timeout_;
  const std::shared_ptr<FailureLatch> failure_;
  const std::function<void()> on_stall_;
  const std::shared_ptr<Segment> segment_;
  const ControlBlock control_;
  const kernels::Isa isa_ = kernels::best_isa();
  const int spins_;  ///< short where ranks outnumber cores: whoever is waited for needs the core

  std::atomic<std::int64_t> references_{1};
  StagingMeter staging_;
  std::uint32_t meetings_ = 0;
  std::vector<std::uint64_t> sent_to_;
  std::vector<std::uint64_t> received_from_;
  Operation operation_;
  std::optional<Deadline> deadline_;  ///< of the present operation; the clock is read when it first has to sleep
  std::atomic<std::uint64_t> done_{0};
  std::atomic<std::uint32_t> in_operation_{0};
  std::atomic<bool> closing_{false};
  Sleeper sleeper_;
  std::atomic<bool> aborted_{false};
  mutable std::mutex mutex_;
  std::optional<Cause> cause_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/exchange.hpp

/// @file
/// The course of a collective that shows long buffers to the other ranks: in place in an arena, or chunk by chunk.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Between pieces of this size long work looks whether it was aborted.
inline constexpr std::size_t piece_bytes = std::size_t{256} << 10;

/// Elements divided into chunks that fit a staging area, evenly and in whole cache lines.
class Chunks {
 public:
  /// @param most elements that fit, a multiple of 64 or less than that
  Chunks(std::size_t count, std::size_t most) noexcept : count_(count) {
    const std::size_t needed = (count + most - 1) / most;
    length_ = needed <= 1 ? count : std::min(most, slice_length(count, static_cast<int>(needed)));
  }

  std::size_t number() const noexcept { return length_ == 0 ? 0 : (count_ + length_ - 1) / length_; }
  std::size_t begin(std::size_t chunk) const noexcept { return chunk * length_; }
  std::size_t length(std::size_t chunk) const noexcept { return std::min(length_, count_ - begin(chunk)); }

 private:
  std::size_t count_;
  std::size_t length_;
};

/// Whether every rank's buffer of the present operation lies in the same allocation. The same answer on every rank.
/// Called after the operation's first meeting.
inline bool all_in_one_arena(const Channel& channel) noexcept {
  const std::uint64_t allocation = channel.operation_of(0).allocation;
  for (int rank = 1; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != allocation) {
      return false;
    }
  }
  return allocation != 0;
}

/// Whether any rank's does.
inline bool any_in_arena(const Channel& channel) noexcept {
  for (int rank = 0; rank < channel.size(); ++rank) {
    if (channel.operation_of(rank).allocation != 0) {
      return true;
    }
  }
  return false;
}

/// How a long exchange ended, on this rank.
enum class Exchanged { in_place, staged, failed };

/// In place: `direct()` between two meetings. Staged: one meeting for each chunk; between two of them a rank takes one
/// chunk (`take(chunk)`) and shows the next (`show(chunk)`), which it may write where chunk - 2 was: everybody took
/// that before the last meeting. Which of the two is known only after the first meeting; a rank whose buffer is in no
/// arena knows before that it is staged, and saves the others a meeting.
template <class Direct, class Show, class Take>
Exchanged exchange(Channel& channel, const Operation& operation, std::size_t chunks, std::size_t staged_bytes,
                   Direct direct, Show show, Take take) noexcept {
  StagingMeter& meter = channel.staging();
  meter.begin(staged_bytes);
  const auto show_first = [&]() noexcept {
    show(0);
    return true;
  };
  const bool bound = operation.allocation != 0;
  if (!bound) {
    meter.time(show_first);
  }
  if (!channel.meet_and_compare()) {
    return Exchanged::failed;
  }
  if (all_in_one_arena(channel)) {
    direct();
    // After an abort it may be unfinished, and nobody is to take it for whole.
    return !channel.aborted() && channel.meet() ? Exchanged::in_place : Exchanged::failed;
  }
  if (any_in_arena(channel)) {
    if (bound) {
      meter.time(show_first);
    }
    if (!channel.meet()) {
      return Exchanged::failed;
    }
  }
  const bool all_taken = meter.time([&]() noexcept {
    for (std::size_t chunk = 0; chunk < chunks; ++chunk) {
      take(chunk);
      if (chunk + 1 < chunks) {
        show(chunk + 1);
      }
      if (!channel.meet()) {
        return false;
      }
    }
    return true;
  });
  if (all_taken) {
    meter.end();
  }
  return all_taken ? Exchanged::staged : Exchanged::failed;
}

/// Calls `work(begin, length)` for pieces of a run of elements until it is done or the channel has failed.
template <class Work>
void in_pieces(const Channel& channel, std::size_t begin, std::size_t end, std::size_t element, Work work) noexcept {
  const std::size_t piece = piece_bytes / element;
  for (; begin < end && !channel.aborted(); begin += piece) {
    work(begin, std::min(piece, end - begin));
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/all_gather.hpp

/// @file
/// The three ways of an all-gather in shared memory; bytes, whatever the element type.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Every rank shows its block, in place or chunk by chunk, and copies the others'. Bytes moved for S bytes on n ranks
/// (a block is S/n): in an arena 2nS, staged 2(n+1)S.
struct AllGather {
  const std::byte* input;  ///< may be this rank's block of the output
  std::byte* output;
  Arena arena;  ///< that the input lies in, if any

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t block = operation.count * size_bytes(operation.dtype);
    std::byte* const own = output + static_cast<std::size_t>(channel.rank()) * block;
    if (own != input) {
      kernels::copy_bytes(own, input, block);
    }
    if (channel.size() > 1) {
      block <= slot_bytes ? small(channel, block) : large(channel, operation, block);
    }
  }

 private:
  /// One meeting.
  void small(Channel& channel, std::size_t block) const noexcept {
    kernels::copy_bytes(channel.small_of(channel.rank(), block), input, block);
    if (channel.meet_and_compare()) {
      for_each_peer(channel, [&](int peer) {
        kernels::copy_bytes(output + static_cast<std::size_t>(peer) * block, channel.small_of(peer, block), block);
      });
    }
  }

  void large(Channel& channel, const Operation& operation, std::size_t block) const noexcept {
    const Chunks chunks(block, channel.control().chunk_bytes());
    exchange(
        channel, operation, chunks.number(), block,
        [&] {
          for_each_peer(channel, [&](int peer) {
            const std::byte* from = arena.buffer(peer, channel.operation_of(peer));
            std::byte* to = output + static_cast<std::size_t>(peer) * block;
            in_pieces(channel, 0, block, 1, [&](std::size_t begin, std::size_t length) {
              kernels::copy_bytes(to + begin, from + begin, length);
            });
          });
        },
        [&](std::size_t chunk) {
          channel.staging().copy(channel.control().staged_input(channel.rank(), chunk), input + chunks.begin(chunk),
                                 chunks.length(chunk));
        },
        [&](std::size_t chunk) {
          for_each_peer(channel, [&](int peer) {
            kernels::copy_bytes(output + static_cast<std::size_t>(peer) * block + chunks.begin(chunk),
                                channel.control().staged_input(peer, chunk), chunks.length(chunk));
          });
        });
  }

  /// From the next rank on, so that not all read the same memory at once.
  template <class F>
  static void for_each_peer(const Channel& channel, F f) noexcept {
    for (int step = 1; step < channel.size(); ++step) {
      f((channel.rank() + step) % channel.size());
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/all_reduce.hpp

/// @file
/// The three ways of an all-reduce in shared memory; all give the same bits.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Bytes moved for S bytes on n ranks: small n(n+3)S, in an arena 2nS, staged (5n-2)S: what a rank reduces of its own
/// input is not copied.
struct AllReduce {
  const std::byte* input;
  std::byte* output;
  Arena arena;

  void operator()(Channel& channel, const Operation& operation) const noexcept { Run(*this, channel, operation).all(); }

 private:
  /// One execution on one rank.
  class Run {
   public:
    Run(const AllReduce& work, Channel& channel, const Operation& operation) noexcept
        : work_(work),
          channel_(channel),
          reduction_(kernels::Reduction::of(operation.dtype, operation.op, channel.isa())),
          element_(size_bytes(operation.dtype)),
          count_(operation.count),
          chunks_(count_, channel.control().chunk_bytes() / element_),
          operation_(operation) {}

    void all() noexcept {
      if (channel_.size() == 1) {
        if (work_.input != work_.output) {
          kernels::copy_bytes(work_.output, work_.input, count_ * element_);
        }
      } else if (count_ * element_ <= small_bytes(channel_.size())) {
        small();
      } else {
        large();
      }
    }

   private:
    /// Every rank shows its input and reduces everything: one meeting.
    void small() noexcept {
      kernels::copy_bytes(channel_.small_of(channel_.rank(), count_ * element_), work_.input, count_ * element_);
      if (channel_.meet_and_compare()) {
        const Sources sources(channel_.size(), [&](int rank) { return channel_.small_of(rank, count_ * element_); });
        reduction_(sources, std::span(&work_.output, 1), count_);
      }
    }

    void large() noexcept {
      const Exchanged ended = exchange(
          channel_, operation_, chunks_.number(), count_ * element_, [&] { in_place(); },
          [&](std::size_t chunk) { copy_in(chunk); },
          [&](std::size_t chunk) {
            if (chunk > 0) {
              copy_out(chunk - 1);
            }
            reduce_slice(chunk);
          });
      if (ended == Exchanged::staged) {
        copy_out(chunks_.number() - 1);
      }
    }

    /// Rank r reduces slice r of every buffer and writes the result to all.
    void in_place() noexcept {
      const Slice own = slice_of(count_, channel_.size(), channel_.rank());
      in_pieces(channel_, own.begin, own.end, element_, [&](std::size_t begin, std::size_t length) {
        const auto buffer = [&](int rank) {
          return work_.arena.buffer(rank, channel_.operation_of(rank)) + begin * element_;
        };
        reduction_(Sources(channel_.size(), buffer), Targets(channel_.size(), buffer), length);
      });
    }

    void copy_in(std::size_t chunk) const noexcept {
      const std::byte* from = work_.input + chunks_.begin(chunk) * element_;
      std::byte* to = channel_.control().staged_input(channel_.rank(), chunk);
      const std::size_t length = chunks_.length(chunk);
      const Slice own = slice_of(length, channel_.size(), channel_.rank());
      channel_.staging().copy(to, from, own.begin * element_);
      channel_.staging().copy(to + own.end * element_, from + own.end * element_, (length - own.end) * element_);
    }

    /// Into the own output, and from there, while it is in the cache, to where the others take it.
    void reduce_slice(std::size_t chunk) const noexcept {
      const Slice own = slice_of(chunks_.length(chunk), channel_.size(), channel_.rank());
      std::byte* const result = channel_.control().staged_result(channel_.rank(), chunk);
      constexpr std::size_t cached_bytes = 8192;
      for (std::size_t begin = own.begin; begin < own.end; begin += cached_bytes / element_) {
        const std::size_t length = std::min(cached_bytes / element_, own.end - begin);
        const std::size_t offset = (chunks_.begin(chunk) + begin) * element_;
        const Sources sources(channel_.size(), [&](int rank) -> const std::byte* {
          return rank == channel_.rank() ? work_.input + offset
                                         : channel_.control().staged_input(rank, chunk) + begin * element_;
        });
        std::byte* const target = work_.output + offset;
        reduction_(sources, std::span(&target, 1), length);
        channel_.staging().copy(result + (begin - own.begin) * element_, target, length * element_);
      }
    }

    void copy_out(std::size_t chunk) const noexcept {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        const Slice slice = slice_of(chunks_.length(chunk), channel_.size(), rank);
        if (rank != channel_.rank() && slice.size() != 0) {
          kernels::copy_bytes(work_.output + (chunks_.begin(chunk) + slice.begin) * element_,
                              channel_.control().staged_result(rank, chunk), slice.size() * element_);
        }
      }
    }

    const AllReduce& work_;
    Channel& channel_;
    const kernels::Reduction reduction_;
    const std::size_t element_;
    const std::size_t count_;
    const Chunks chunks_;
    const Operation& operation_;
  };
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/broadcast.hpp

/// @file
/// The three ways of a broadcast in shared memory; bytes, whatever the element type.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// The root shows its buffer, in place or chunk by chunk; the others copy it.
struct Broadcast {
  std::byte* buffer;
  Arena arena;

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const std::size_t bytes = operation.count * size_bytes(operation.dtype);
    if (channel.size() == 1) {
      return;
    }
    if (bytes <= slot_bytes) {
      small(channel, operation, bytes);
    } else {
      large(channel, operation, bytes);
    }
  }

 private:
  /// One meeting.
  void small(Channel& channel, const Operation& operation, std::size_t bytes) const noexcept {
    const bool is_root = channel.rank() == operation.root;
    if (is_root) {
      kernels::copy_bytes(channel.small_of(operation.root, bytes), buffer, bytes);
    }
    if (channel.meet_and_compare() && !is_root) {
      kernels::copy_bytes(buffer, channel.small_of(operation.root, bytes), bytes);
    }
  }

  void large(Channel& channel, const Operation& operation, std::size_t bytes) const noexcept {
    const int root = operation.root;
    const bool is_root = channel.rank() == root;
    const Chunks chunks(bytes, channel.control().chunk_bytes());
    exchange(
        channel, operation, chunks.number(), bytes,
        [&] {
          const std::byte* from = arena.buffer(root, channel.operation_of(root));
          if (!is_root) {
            in_pieces(channel, 0, bytes, 1, [&](std::size_t begin, std::size_t length) {
              kernels::copy_bytes(buffer + begin, from + begin, length);
            });
          }
        },
        [&](std::size_t chunk) {
          if (is_root) {
            channel.staging().copy(channel.control().staged_input(root, chunk), buffer + chunks.begin(chunk),
                                   chunks.length(chunk));
          }
        },
        [&](std::size_t chunk) {
          if (!is_root) {
            kernels::copy_bytes(buffer + chunks.begin(chunk), channel.control().staged_input(root, chunk),
                                chunks.length(chunk));
          }
        });
  }
};

/// One meeting.
struct Barrier {
  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept { channel.meet_and_compare(); }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/reduce_scatter.hpp

/// @file
/// The three ways of a reduce-scatter in shared memory; all give the bits of an all-reduce.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Every rank shows its input, in place or chunk by chunk, and reduces its own block of all. Bytes moved for S bytes
/// on n ranks: in an arena (n+1)S, staged about 3nS: the own block is not copied.
struct ReduceScatter {
  const std::byte* input;
  std::byte* output;  ///< may be this rank's block of the input
  Arena arena;        ///< that the input lies in, if any

  void operator()(Channel& channel, const Operation& operation) const noexcept {
    const Layout layout{operation.count, size_bytes(operation.dtype), channel.size(), channel.rank()};
    if (layout.ranks == 1) {
      if (input != output) {
        kernels::copy_bytes(output, input, layout.all_bytes());
      }
    } else if (layout.all_bytes() <= small_bytes(layout.ranks)) {
      small(channel, operation, layout);
    } else {
      large(channel, operation, layout);
    }
  }

 private:
  /// Blocks of the input, or of a chunk of it.
  struct Layout {
    std::size_t count;  ///< elements of a block
    std::size_t element;
    int ranks;
    int rank;

    std::size_t block_bytes() const noexcept { return count * element; }
    std::size_t all_bytes() const noexcept { return block_bytes() * static_cast<std::size_t>(ranks); }
    std::size_t block(int of) const noexcept { return static_cast<std::size_t>(of) * block_bytes(); }
  };

  static kernels::Reduction reduction(const Channel& channel, const Operation& operation) noexcept {
    return kernels::Reduction::of(operation.dtype, operation.op, channel.isa());
  }

  /// One meeting.
  void small(Channel& channel, const Operation& operation, const Layout& layout) const noexcept {
    kernels::copy_bytes(channel.small_of(layout.rank, layout.all_bytes()), input, layout.all_bytes());
    if (channel.meet_and_compare()) {
      const Sources sources(layout.ranks, [&](int rank) {
        return channel.small_of(rank, layout.all_bytes()) + layout.block(layout.rank);
      });
      reduction(channel, operation)(sources, std::span(&output, 1), layout.count);
    }
  }

  void large(Channel& channel, const Operation& operation, const Layout& layout) const noexcept {
    const kernels::Reduction reduce = reduction(channel, operation);
    const Chunks chunks(layout.count,
                        channel.control().chunk_bytes() / layout.element / static_cast<std::size_t>(layout.ranks));
    const auto place_in_chunk = [&](int rank, std::size_t chunk) {
      return static_cast<std::size_t>(rank) * chunks.length(chunk) * layout.element;
    };
    exchange(
        channel, operation, chunks.number(), layout.all_bytes(),
        [&] {
          in_pieces(channel, 0, layout.count, layout.element, [&](std::size_t begin, std::size_t length) {
            const Sources sources(layout.ranks, [&](int rank) {
              return arena.buffer(rank, channel.operation_of(rank)) + layout.block(layout.rank) +
                     begin * layout.element;
            });
            std::byte* const target = output + begin * layout.element;
            reduce(sources, std::span(&target, 1), length);
          });
        },
        [&](std::size_t chunk) {
          for (int rank = 0; rank < layout.ranks; ++rank) {
            if (rank != layout.rank) {
              channel.staging().copy(channel.control().staged_input(layout.rank, chunk) + place_in_chunk(rank, chunk),
                                     input + layout.block(rank) + chunks.begin(chunk) * layout.element,
                                     chunks.length(chunk) * layout.element);
            }
          }
        },
        [&](std::size_t chunk) {
          const std::size_t begin = chunks.begin(chunk) * layout.element;
          const Sources sources(layout.ranks, [&](int rank) -> const std::byte* {
            return rank == layout.rank
                       ? input + layout.block(rank) + begin
                       : channel.control().staged_input(rank, chunk) + place_in_chunk(layout.rank, chunk);
          });
          std::byte* const target = output + begin;
          reduce(sources, std::span(&target, 1), chunks.length(chunk));
        });
  }
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory/transfer.hpp

/// @file
/// Point to point in shared memory: messages go through the sender's outbox, piece by piece.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// A send, a receive, or both at once, which then never wait for each other. A send is over when its last piece is in
/// the outbox: a message of up to outbox_parts pieces does not wait for its receiver, if the outbox is empty.
struct Transfer {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::uint64_t output_count;
  DType input_dtype;
  DType output_dtype;
  std::int32_t to;    ///< -1: nothing is sent
  std::int32_t from;  ///< -1: nothing is received

  void operator()(Channel& channel, const Operation& /*operation*/) const noexcept {
    Run run(*this, channel);
    while (run.moves_on()) {
      if (!channel.wait(run)) {
        return;
      }
    }
  }

 private:
  /// One execution on one rank; while nothing can be done it is what Channel::wait waits for.
  class Run {
   public:
    Run(const Transfer& work, Channel& channel) noexcept
        : work_(work),
          channel_(channel),
          unsent_(work.to >= 0),
          unreceived_(work.from >= 0),
          sent_number_(unsent_ ? ++channel.sent_to(work.to) : 0),
          received_number_(unreceived_ ? ++channel.received_from(work.from) : 0) {}

    /// Does what can be done now. @returns whether something is left that can yet be done.
    bool moves_on() noexcept {
      while (!channel_.aborted()) {
        OutboxPart* const free = free_part();
        OutboxPart* const filled = filled_part();
        if (free != nullptr) {
          send_piece(*free);
        }
        if (filled != nullptr) {
          receive_piece(*filled);
        }
        if (free == nullptr && filled == nullptr) {
          return unsent_ || unreceived_;
        }
      }
      return false;
    }

    bool done() const noexcept { return free_part() != nullptr || filled_part() != nullptr; }
    bool may_sleep() const noexcept { return !done() && gone() < 0; }
    Doorbell& bell() const noexcept { return channel_.control().slot(channel_.rank()).mail; }

    template <class Present>
    std::optional<Cause> spoilt(const Present& present) const {
      for (int rank = 0; rank < channel_.size(); ++rank) {
        const Slot& slot = channel_.control().slot(rank);
        if (slot.state.load() == SlotState::failed) {
          return slot.cause.load();
        }
      }
      const int peer = gone();
      if (peer >= 0 && !done()) {
        return Cause{CauseKind::disagreement, -1, "",
                     present() + " cannot be finished: rank " + std::to_string(job_rank(peer)) +
                         " has left the channel without its part of it"};
      }
      return std::nullopt;
    }

    std::string missing(std::chrono::milliseconds waited) const {
      const std::string after = " after " + std::to_string(waited.count()) + " ms";
      return unreceived_ ? "rank " + std::to_string(job_rank(work_.from)) + " had not sent all of it" + after
                         : "rank " + std::to_string(job_rank(work_.to)) + " had not taken what was sent before" + after;
    }

   private:
    bool left(int peer) const noexcept { return channel_.control().slot(peer).state.load() != SlotState::serving; }

    /// A peer that is still needed and has left; -1 where there is none.
    int gone() const noexcept {
      return unsent_ && left(work_.to) ? work_.to : unreceived_ && left(work_.from) ? work_.from : -1;
    }

    int job_rank(int peer) const noexcept { return channel_.control().job_rank(peer); }

    /// A place for the next piece; null where nothing is left to send or none is free.
    OutboxPart* free_part() const noexcept {
      if (unsent_) {
        for (OutboxPart& part : channel_.control().slot(channel_.rank()).outbox) {
          if (part.owner.load() == 0) {
            return &part;
          }
        }
      }
      return nullptr;
    }

    /// The next piece for this rank; null where none is expected or it has not come.
    OutboxPart* filled_part() const noexcept {
      if (unreceived_) {
        for (OutboxPart& part : channel_.control().slot(work_.from).outbox) {
          if (part.owner.load() == mark(channel_.rank()) && part.message == received_number_ &&
              part.offset == received_bytes_) {
            return &part;
          }
        }
      }
      return nullptr;
    }

    void send_piece(OutboxPart& part) noexcept {
      const std::size_t bytes = work_.input_count * size_bytes(work_.input_dtype);
      const std::size_t piece = std::min(outbox_part_bytes, bytes - sent_bytes_);
      const auto copy = piece <= slot_bytes ? &kernels::copy_bytes : &kernels::stream_bytes;
      copy(payload(channel_.rank(), part), work_.input + sent_bytes_, piece);
      part.message = sent_number_;
      part.offset = sent_bytes_;
      part.count = work_.input_count;
      part.dtype = work_.input_dtype;
      part.owner.store(mark(work_.to));
      channel_.control().slot(work_.to).mail.ring();
      sent_bytes_ += piece;
      unsent_ = sent_bytes_ < bytes;
    }

    void receive_piece(OutboxPart& part) noexcept {
      if (part.count != work_.output_count || part.dtype != work_.output_dtype) {
        channel_.fail({CauseKind::disagreement, -1, "",
                       "on channel '" + channel_.name() + "', rank " + std::to_string(job_rank(work_.from)) +
                           " sends " + std::to_string(part.count) + " " + name(part.dtype) + " and rank " +
                           std::to_string(channel_.job_rank()) + " receives " + std::to_string(work_.output_count) +
                           " " + name(work_.output_dtype) + "; both give the same count and type"});
        return;
      }
      const std::size_t bytes = work_.output_count * size_bytes(work_.output_dtype);
      const std::size_t piece = std::min(outbox_part_bytes, bytes - received_bytes_);
      kernels::copy_bytes(work_.output + received_bytes_, payload(work_.from, part), piece);
      part.owner.store(0);
      channel_.control().slot(work_.from).mail.ring();
      received_bytes_ += piece;
      unreceived_ = received_bytes_ < bytes;
    }

    static std::uint32_t mark(int rank) noexcept { return static_cast<std::uint32_t>(rank) + 1; }

    std::byte* payload(int rank, const OutboxPart& part) const noexcept {
      const OutboxPart* const first = channel_.control().slot(rank).outbox.data();
      return channel_.control().outbox(rank, static_cast<std::size_t>(&part - first));
    }

    const Transfer& work_;
    Channel& channel_;
    bool unsent_;
    bool unreceived_;
    const std::uint64_t sent_number_;
    const std::uint64_t received_number_;
    std::size_t sent_bytes_ = 0;
    std::size_t received_bytes_ = 0;
  };
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/split.hpp

/// @file
/// Which ranks of a channel go together into which new one.

namespace DTRAIN_NAMESPACE::backend {

/// A rank's word in a split.
struct SplitChoice {
  int color = 0;
  int key = 0;
};

/// "3 -1 " for each rank in turn.
inline std::string to_text(const std::vector<SplitChoice>& choices) {
  std::string text;
  for (const SplitChoice& choice : choices) {
    text += std::to_string(choice.color) + ' ' + std::to_string(choice.key) + ' ';
  }
  return text;
}

/// @throws Error (protocol) where the text is not that of `ranks` choices
inline std::vector<SplitChoice> split_choices_from(const std::string& text, int ranks) {
  std::vector<SplitChoice> choices(static_cast<std::size_t>(ranks));
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](int& number) {
    const auto [after, error] = std::from_chars(at, end, number);
    if (error != std::errc() || after == end || *after != ' ') {
      throw Error(Errc::protocol, "a split's colors and keys came as '" + printable(text.substr(0, 64)) +
                                      "'; do all ranks run the same program?");
    }
    at = after + 1;
  };
  for (SplitChoice& choice : choices) {
    read(choice.color);
    read(choice.key);
  }
  return choices;
}

/// The ranks with the color of `rank`, by key, then by rank.
inline std::vector<int> ranks_of_color(const std::vector<SplitChoice>& choices, int rank) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < choices.size(); ++other) {
    if (choices[other].color == choices[static_cast<std::size_t>(rank)].color) {
      ranks.push_back(static_cast<int>(other));
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

/// Collective, blocking: the channel that the `number`-th split of `context`'s gives this rank. Rank 0 gathers what all
/// say: every rank reads one value. @throws Error (invalid_argument) for a negative color, before anything is said;
/// (timeout), JobFailed
inline ChannelContext split_context(const ChannelContext& context, std::uint64_t number, int color, int key,
                                    Deadline deadline) {
  if (color < 0) {
    throw Error(Errc::invalid_argument,
                "split with color " + std::to_string(color) +
                    "; colors begin at 0: give the ranks that are to be alone one of their own");
  }
  const std::string split = context.name + "/split-" + std::to_string(number);
  const auto key_of = [&](int rank) { return split + "/" + std::to_string(rank); };
  const int ranks = context.members.world_size;
  context.store.set_blocking(key_of(context.members.rank), to_text({{color, key}}), deadline);
  if (context.members.rank == 0) {
    std::vector<SplitChoice> gathered;
    for (int rank = 0; rank < ranks; ++rank) {
      gathered.push_back(split_choices_from(context.store.get_blocking(key_of(rank), deadline), 1)[0]);
    }
    context.store.set_blocking(split + "/all", to_text(gathered), deadline);
  }
  const auto choices = split_choices_from(context.store.get_blocking(split + "/all", deadline), ranks);
  const std::vector<int> members = ranks_of_color(choices, context.members.rank);
  ChannelContext made = context;
  made.members.job_rank = context.reporting_rank();
  made.name = split + "-color-" + std::to_string(color);
  made.members.rank =
      static_cast<int>(std::find(members.begin(), members.end(), context.members.rank) - members.begin());
  made.members.world_size = static_cast<int>(members.size());
  return made;
}

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/shared_memory/communicator.hpp

/// @file
/// The communicator of ranks that share one host's memory.

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// An enqueued operation: holds the channel until it has run or was dropped.
template <class Algorithm>
struct ChannelWork {
  Channel* channel;
  std::uint64_t turn;
  Operation operation;
  Algorithm algorithm;

  void operator()() noexcept {
    channel->run(turn, operation, [this]() noexcept { algorithm(*channel, operation); });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

/// Owns one rank's end of a channel. Reductions are of every DType and ReduceOp, in rank order (see
/// kernels::Reduction): the same bits whatever the memory, the path, the progress mode and the timing.
/// Work runs in the thread that waits for the stream, or in its helper; a rank whose peers have not come spins, then
/// sleeps. Threads: one at a time, abort() and failure() from any. Destruction skips work that has not run.
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = shared_memory::Allocation;

  /// Collective, blocking. For SharedMemory::open_blocking and split_blocking. @throws Error (unsupported, limit,
  /// out_of_memory, timeout, closed), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    const std::size_t ranks = static_cast<std::size_t>(context.members.world_size);
    const std::size_t bytes = ControlBlock::bytes_for(context.members.world_size);
    Links links = Links::open(context, deadline);
    const Shared shared = Sharing(links, 1, (bytes + ranks - 1) / ranks, deadline).run();
    Communicator communicator(context, std::move(links), shared.segment);
    communicator.prove_one_memory(shared.nonce);
    return communicator;
  }

  int rank() const noexcept { return channel().rank(); }
  int size() const noexcept { return channel().size(); }

  /// See CanAllReduce. In place on an allocation nothing is copied. @throws Error (unsupported, invalid_argument) at
  /// the call, as do the others.
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    check_host(input, output);
    check_all_reduce(input, output);
    const ArenaTable::Place place =
        input.data == output.data ? end_->arenas.find(output.data, output.bytes()) : ArenaTable::Place{};
    Operation operation = next(OperationKind::all_reduce, output, place);
    operation.op = op;
    enqueue(operation, AllReduce{input.data, output.data, place.arena}, stream);
  }

  /// See CanBroadcast.
  void broadcast(BufferView buffer, int root, Stream stream) {
    check_host(buffer, buffer);
    check_broadcast(buffer, root, size());
    const ArenaTable::Place place = end_->arenas.find(buffer.data, buffer.bytes());
    Operation operation = next(OperationKind::broadcast, buffer, place);
    operation.root = root;
    enqueue(operation, Broadcast{buffer.data, place.arena}, stream);
  }

  /// See CanReduceScatter. `output` may be this rank's block of `input`; where every rank's input lies in one
  /// allocation nothing is copied.
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    check_host(input, output);
    check_reduce_scatter(input, output, rank(), size());
    const ArenaTable::Place place = end_->arenas.find(input.data, input.bytes());
    Operation operation = next(OperationKind::reduce_scatter, output, place);
    operation.op = op;
    enqueue(operation, ReduceScatter{input.data, output.data, place.arena}, stream);
  }

  /// See CanAllGather. `input` may be this rank's block of `output`; where every rank's input lies in one allocation it
  /// is copied once for each reader.
  void all_gather(ConstBufferView input, BufferView output, Stream stream) {
    check_host(input, output);
    check_all_gather(input, output, rank(), size());
    const ArenaTable::Place place = end_->arenas.find(input.data, input.bytes());
    enqueue(next(OperationKind::all_gather, input, place), AllGather{input.data, output.data, place.arena}, stream);
  }

  /// See CanSendRecv. A message of up to 128 KiB does not wait for its receiver while no other is under way.
  void send(ConstBufferView input, int peer, Stream stream) {
    check_message("send", input, peer, rank(), size());
    transfer(OperationKind::send, input, peer, BufferView{}, -1, stream);
  }
  void recv(BufferView output, int peer, Stream stream) {
    check_message("recv", output, peer, rank(), size());
    transfer(OperationKind::recv, ConstBufferView{}, -1, output, peer, stream);
  }
  void send_recv(ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    check_send_recv(input, to, output, from, size());
    transfer(OperationKind::send_recv, input, to, output, from, stream);
  }

  /// See CanBarrier.
  void barrier(Stream stream) { enqueue(next(OperationKind::barrier, ConstBufferView{}, {}), Barrier{}, stream); }

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline) {
    end_->check();
    end_->help_others();
    const ChannelContext part = split_context(end_->context, end_->splits + 1, color, key, deadline);
    ++end_->splits;
    return open_blocking(part, deadline);
  }

  /// See CanAllocate. Parts are aligned to pages, from 2 MiB on to huge pages; a rank's pages are on its own NUMA node.
  /// If it fails it fails on every rank, and the channel serves on.
  /// @throws Error (disagreement, out_of_memory, timeout), JobFailed
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    end_->check();
    const Shared shared = Sharing(end_->links, ++end_->exchanges, bytes, deadline).run();
    end_->check();
    const Arena arena{shared.segment->base(), shared.stride};
    end_->arenas.add(end_->exchanges, shared.segment, arena, arena.part(rank()), bytes);
    return {shared.segment, arena.part(rank()), bytes};
  }

  /// See CanAbort. Peers' communicators on this channel fail with the same cause.
  void abort(const Cause& cause) noexcept { channel().abort(cause); }
  std::optional<Cause> failure() const { return channel().failure(); }

 private:
  /// Takes over a channel whose control block every rank has mapped.
  Communicator(const ChannelContext& context, Links links, std::shared_ptr<Segment> control)
      : end_(std::make_unique<End>(context, std::move(links), std::move(control))) {}

  /// Collective, blocking: every rank finds what the others wrote into the control block. @throws Error (unsupported,
  /// timeout), JobFailed
  void prove_one_memory(std::uint64_t nonce) {
    bool same = true;
    const auto work = [&]() noexcept {
      channel().control().slot(rank()).nonce = nonce + static_cast<std::uint64_t>(rank());
      if (channel().meet_and_compare()) {
        for (int peer = 0; peer < size(); ++peer) {
          same = same && channel().control().slot(peer).nonce == nonce + static_cast<std::uint64_t>(peer);
        }
      }
    };
    channel().run(++end_->enqueued, next(OperationKind::barrier, ConstBufferView{}, {}), work);
    ++end_->collectives;
    end_->check();
    if (!same) {
      throw Error(Errc::unsupported, "the ranks of channel '" + channel().name() +
                                         "' do not see the same memory; use backend::Mpi, Gloo or Nccl between hosts");
    }
  }

  /// What stays at its address when the communicator moves.
  struct End {
    End(const ChannelContext& of, Links to, std::shared_ptr<Segment> control)
        : context(of), links(std::move(to)), channel(new Channel(context, std::move(control))) {
      links.set_check([this] {
        help_others();
        check();
      });
      subscription = context.failure->subscribe([this](const Cause& cause) { channel->abort(cause); });
    }
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    ~End() {
      subscription.reset();
      channel->close(enqueued);
      channel->release();
    }

    /// What this rank has enqueued elsewhere runs while it waits here: others may wait for that before they come.
    void help_others() const {
      if (context.on_stall) {
        context.on_stall();
      }
    }

    /// @throws the job's first cause, or this channel's.
    void check() const {
      channel->latch()->throw_if_failed(channel->job_rank());
      if (const std::optional<Cause> cause = channel->failure()) {
        throw_cause(*cause);
      }
    }

    const ChannelContext context;
    Links links;
    Channel* channel;
    ArenaTable arenas;
    std::uint64_t enqueued = 0;     ///< operations of every kind
    std::uint64_t collectives = 0;  ///< those that every rank takes part in
    std::uint64_t exchanges = 1;    ///< the first was the control block's
    std::uint64_t splits = 0;
    FailureLatch::Subscription subscription;
  };

  Channel& channel() const noexcept { return *end_->channel; }

  /// The next collective. Nothing is counted before it is enqueued.
  Operation next(OperationKind kind, const ConstBufferView& buffer, const ArenaTable::Place& place) const noexcept {
    Operation operation;
    operation.sequence = end_->collectives + 1;
    operation.kind = kind;
    operation.count = buffer.count;
    operation.dtype = buffer.dtype;
    operation.allocation = place.allocation;
    operation.offset = place.offset;
    return operation;
  }

  void transfer(OperationKind kind, ConstBufferView input, int to, BufferView output, int from, Stream stream) {
    check_host(input, output);
    const bool sends = to >= 0;
    Operation operation;
    operation.kind = kind;
    operation.count = sends ? input.count : output.count;
    operation.dtype = sends ? input.dtype : output.dtype;
    operation.root = sends ? to : from;
    enqueue(operation,
            Transfer{input.data, output.data, input.count, output.count, input.dtype, output.dtype, to, from}, stream);
  }

  static void check_host(const ConstBufferView& input, const ConstBufferView& output) {
    for (const Device device : {input.device, output.device}) {
      if (device.kind != DeviceKind::host) {
        throw Error(Errc::unsupported, "backend::SharedMemory takes host memory, not memory of " + to_string(device) +
                                           "; use backend::Nccl for it");
      }
    }
  }

  template <class Algorithm>
  void enqueue(const Operation& operation, const Algorithm& algorithm, Stream stream) {
    channel().retain();
    try {
      stream.enqueue(ChannelWork<Algorithm>{&channel(), end_->enqueued + 1, operation, algorithm});
    } catch (...) {
      channel().release();
      throw;
    }
    ++end_->enqueued;
    end_->collectives += operation.sequence != 0 ? 1 : 0;
  }

  std::unique_ptr<End> end_;
};

static_assert(backend::Communicator<Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory

// ---- dtrain/backend/shared_memory.hpp

/// @file
/// backend::SharedMemory: ranks of one host reduce in memory that all of them have mapped.

namespace DTRAIN_NAMESPACE::backend {

/// The embedded default: needs no library, nothing in /dev/shm, and leaves nothing behind, however a rank ends.
struct SharedMemory {
  using Communicator = shared_memory::Communicator;
  using StreamOwner = stream::host::CommunicationStream;

  static constexpr std::string_view name() noexcept { return "SharedMemory"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType) noexcept { return true; }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure, so that the others
  /// do not wait for it. @throws Error (unsupported: ranks on several hosts; limit, out_of_memory, timeout, closed),
  /// JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    check_one_host(context.members);
    context.failure->throw_if_failed(context.reporting_rank());
    try {
      return Communicator::open_blocking(context, deadline);
    } catch (const JobFailed&) {
      throw;
    } catch (const shared_memory::ToldError& error) {
      if (context.members.rank == 0) {  // the others have it from rank 0, which reports for all
        context.failure->report({CauseKind::exception, -1, "", error.what()});
      }
      throw;
    } catch (const Error& error) {
      const CauseKind kind = error.code() == make_error_code(Errc::timeout) ? CauseKind::timeout : CauseKind::exception;
      context.failure->report({kind, context.reporting_rank(), context.members.host, error.what()});
      throw;
    }
  }

 private:
  static void check_one_host(const rendezvous::Membership& members) {
    if (members.other_host_rank >= 0) {
      throw Error(Errc::unsupported, "backend::SharedMemory joins the ranks of one host, but rank " +
                                         std::to_string(members.rank) + " is on " + members.host + " and rank " +
                                         std::to_string(members.other_host_rank) + " on " + members.other_host +
                                         "; use backend::Mpi, backend::Gloo or backend::Nccl for several hosts");
    }
    if (members.world_size > shared_memory::max_ranks) {
      throw Error(Errc::limit, "backend::SharedMemory joins at most " + std::to_string(shared_memory::max_ranks) +
                                   " ranks, not " + std::to_string(members.world_size) + "; use backend::Mpi");
    }
  }
};

static_assert(Backend<SharedMemory>);

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/backend/throw_if_failed.hpp

/// @file
/// Waiting for a communicator's work, and throwing what made it fail.

namespace DTRAIN_NAMESPACE::backend {

/// The job's first cause, if the job or this communicator has failed. Blocking: where the communicator has failed and
/// the store has not yet said which cause came first, until it does, 2 s at most.
/// @throws PeerLost, JobFailed, Error: see FailureLatch::throw_if_failed.
template <Communicator C>
void throw_if_failed(const C& communicator, const FailureLatch& failure, int rank_in_job) {
  const std::optional<Cause> own = communicator.failure();
  if (own) {
    failure.block_until_failed(Deadline::after(std::chrono::seconds(2)));
  }
  failure.throw_if_failed(rank_in_job);
  if (own) {
    throw_cause(*own);
  }
}

/// Blocking: until the work before `event` is done. The work ends itself `timeout` after it begins to run, hence the
/// deadline here is only a guard against a stream that nobody runs.
/// @throws as throw_if_failed, and Error (timeout).
template <stream::Event E, Communicator C>
void block_until_complete(E& event, const C& communicator, const FailureLatch& failure,
                          std::chrono::nanoseconds timeout, int rank_in_job) {
  const stream::WaitResult result = event.block_until_complete(Deadline::after(2 * timeout));
  throw_if_failed(communicator, failure, rank_in_job);
  if (result == stream::WaitResult::timed_out) {
    throw Error(Errc::timeout,
                "waiting for the communication stream took more than twice the timeout; is a step of "
                "another thread still using it?");
  }
}

}  // namespace DTRAIN_NAMESPACE::backend

// ---- dtrain/topology/topology.hpp

/// @file
/// The concept Topology: the paths that a reduction takes over a communicator.

/// A topology is an algorithm written on a communicator's abilities; it has no state of its own. Which abilities it
/// needs it says twice: `works_on<C>` for concepts, and `require<C>()`, a static_assert with a literal sentence
/// ("dtrain: topology::Ring needs a backend with send and recv ..."), for whoever puts a policy together.
namespace DTRAIN_NAMESPACE::topology {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A name for messages and summaries.
template <class T>
concept HasName = requires {
  { T::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// `works_on<C>`: whether communicator type C has the abilities it needs; `require<C>()` compiles only where it does.
template <class T>
concept SaysWhatItNeeds = requires {
  { T::template works_on<void> } -> std::convertible_to<bool>;
};

template <class T>
concept Topology = HasName<T> && SaysWhatItNeeds<T>;

/// `all_reduce(communicator, input, output, op, stream)`: the contract of backend::CanAllReduce, along its own paths.
template <class T, class C>
concept CanAllReduceOn = backend::HasRanks<C> && requires(C& communicator, ConstBufferView input, BufferView output,
                                                          ReduceOp op, typename C::Stream stream) {
  T::template require<C>();
  { T::all_reduce(communicator, input, output, op, stream) } -> std::same_as<void>;
};

/// T can be used with communicator type C.
template <class T, class C>
concept WorksOn = Topology<T> && T::template works_on<C> && CanAllReduceOn<T, C>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::topology

// ---- dtrain/topology/flat.hpp

/// @file
/// topology::Flat: the backend's own choice of paths.

namespace DTRAIN_NAMESPACE::topology {

/// Hands each reduction to the communicator as it is.
struct Flat {
  static constexpr std::string_view name() noexcept { return "Flat"; }

  template <class C>
  static constexpr bool works_on = backend::CanAllReduce<C>;

  template <class C>
  static constexpr void require() noexcept {
    static_assert(works_on<C>,
                  "dtrain: topology::Flat needs a backend whose communicator has all_reduce "
                  "(CanAllReduce in dtrain/backend/communicator.hpp)");
  }

  /// Collective; enqueued on `stream`. See backend::CanAllReduce.
  template <backend::CanAllReduce C>
  static void all_reduce(C& communicator, ConstBufferView input, BufferView output, ReduceOp op,
                         typename C::Stream stream) {
    communicator.all_reduce(input, output, op, stream);
  }
};

static_assert(Topology<Flat>);

}  // namespace DTRAIN_NAMESPACE::topology

// ---- dtrain/launch/arguments.hpp

/// @file
/// An argv that owns its strings.

namespace DTRAIN_NAMESPACE::launch {

/// Copies share the strings, which may be written to like main's.
class ArgumentVector {
 public:
  ArgumentVector() : ArgumentVector(std::vector<std::string>{}) {}

  explicit ArgumentVector(std::vector<std::string> texts) : storage_(std::make_shared<Storage>()) {
    storage_->texts = std::move(texts);
    for (std::string& text : storage_->texts) {
      storage_->pointers.push_back(text.data());
    }
    storage_->pointers.push_back(nullptr);
  }

  /// argc and argv; argv[argc] is null. Lifetime: as long as a copy of this lives.
  int count() const noexcept { return static_cast<int>(storage_->texts.size()); }
  char** pointers() const noexcept { return storage_->pointers.data(); }

  std::span<char* const> view() const noexcept { return {storage_->pointers.data(), storage_->texts.size()}; }

 private:
  struct Storage {
    std::vector<std::string> texts;
    std::vector<char*> pointers;
  };

  std::shared_ptr<Storage> storage_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/cores.hpp

/// @file
/// How many cores this process may use.

namespace DTRAIN_NAMESPACE::launch {

/// The size of the affinity mask, which containers, taskset and batch systems narrow; at least 1.
/// @throws Error (posix) where the system does not tell
inline int cores_by_affinity() {
  for (std::size_t masks = 1;; masks *= 2) {
    const std::size_t bytes = masks * sizeof(cpu_set_t);
    std::vector<unsigned long> words(bytes / sizeof(unsigned long));  // nvcc 13 cannot compile a vector<cpu_set_t>
    cpu_set_t* const set = reinterpret_cast<cpu_set_t*>(words.data());
    if (::sched_getaffinity(0, bytes, set) == 0) {
      const int count = CPU_COUNT_S(bytes, set);
      return count < 1 ? 1 : count;
    }
    if (errno != EINVAL || masks > 64) {  // EINVAL: the machine has more cores than the mask has bits
      throw errno_error("asking which cores this process may use", "give --nproc-per-node a number");
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/exit_status.hpp

/// @file
/// How a process ended, as a number for exit() and in words.

namespace DTRAIN_NAMESPACE::launch {

/// What a program under run() exits with where it fell only because another rank failed first (see dtrain/run.hpp).
inline constexpr int exit_code_peer_lost = 75;

/// "SIGKILL"; "signal 42" for those without a common name.
inline std::string signal_name(int signal) {
  switch (signal) {
    case SIGHUP: return "SIGHUP";
    case SIGINT: return "SIGINT";
    case SIGQUIT: return "SIGQUIT";
    case SIGILL: return "SIGILL";
    case SIGTRAP: return "SIGTRAP";
    case SIGABRT: return "SIGABRT";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGKILL: return "SIGKILL";
    case SIGUSR1: return "SIGUSR1";
    case SIGSEGV: return "SIGSEGV";
    case SIGUSR2: return "SIGUSR2";
    case SIGPIPE: return "SIGPIPE";
    case SIGALRM: return "SIGALRM";
    case SIGTERM: return "SIGTERM";
    case SIGXCPU: return "SIGXCPU";
    case SIGXFSZ: return "SIGXFSZ";
    case SIGSYS: return "SIGSYS";
    default: return "signal " + std::to_string(signal);
  }
}

/// An exit code, or a signal where `signal` is not 0.
struct ExitStatus {
  int code = 0;
  int signal = 0;

  static ExitStatus of(const siginfo_t& info) noexcept {
    return info.si_code == CLD_EXITED ? ExitStatus{info.si_status, 0} : ExitStatus{0, info.si_status};
  }

  /// What a shell would say: 128 + signal.
  int exit_code() const noexcept { return signal != 0 ? 128 + signal : code; }

  std::string text() const {
    return signal != 0 ? "killed by signal " + std::to_string(signal) + " (" + signal_name(signal) + ")"
                       : "exit code " + std::to_string(code);
  }

  friend constexpr bool operator==(const ExitStatus&, const ExitStatus&) = default;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/flags.hpp

/// @file
/// The launcher's flags, taken out of a program's command line.

namespace DTRAIN_NAMESPACE::launch {

/// What the launcher was asked for, and what is left for the program.
struct Flags {
  identity::NodeFlags node;
  std::optional<std::string> log_dir;
  int max_restarts = 0;
  bool help = false;
  std::vector<std::string> program;  ///< the program's name and its own arguments, in order
};

namespace detail {

inline constexpr std::array<std::string_view, 8> flag_names{
    "--nproc-per-node", "--nnodes",       "--node-rank", "--master-addr",
    "--master-port",    "--max-restarts", "--log-dir",   "--help-launch",
};

/// How many insertions, deletions and replacements of one letter make `a` of `b` (Levenshtein).
inline std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, replaced}));
    }
  }
  return row.back();
}

/// The launcher's flag that an argument names; nothing for the program's own.
/// @throws Error (usage) for a name that is nearly one, with the suggestion
inline std::optional<std::string_view> flag_named(std::string_view given) {
  constexpr std::size_t nearly = 2;
  constexpr std::size_t longest = 32;  // beyond it nothing is near, and nothing is compared
  if (given.substr(0, 2) != "--" || given.size() > longest) {
    return std::nullopt;
  }
  std::string spelling(given);
  std::replace(spelling.begin(), spelling.end(), '_', '-');
  std::string_view closest;
  for (const std::string_view flag : flag_names) {
    if (spelling == flag) {
      return flag;
    }
    if (edit_distance(spelling, flag) <= nearly) {
      closest = flag;
    }
  }
  if (!closest.empty()) {
    throw Error(Errc::usage, "unknown flag " + std::string(given) + "; did you mean " + std::string(closest) +
                                 "? (put the program's own flags of that name after --)");
  }
  return std::nullopt;
}

/// @throws Error (usage)
inline int max_restarts(std::string_view value) {
  constexpr int most = 10000;
  const std::optional<int> number = identity::parse_integer(std::string(value));
  if (!number || *number > most) {
    throw Error(Errc::usage,
                identity::quoted("--max-restarts", value) + " is not a number from 0 to " + std::to_string(most));
  }
  return *number;
}

}  // namespace detail

/// Splits a command line. A flag that is given twice counts as given last. The first "--" goes, too.
/// @throws Error (usage) for a flag without its value, and for one that is nearly the launcher's
inline Flags parse_flags(identity::Arguments arguments) {
  Flags flags;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (i > 0 && argument == "--") {
      flags.program.insert(flags.program.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                           arguments.end());
      break;
    }
    const std::size_t equals = argument.find('=');
    const std::optional<std::string_view> flag = i == 0 ? std::nullopt : detail::flag_named(argument.substr(0, equals));
    if (!flag) {
      flags.program.emplace_back(argument);
      continue;
    }
    if (*flag == "--help-launch") {
      flags.help = true;
      continue;
    }
    std::string value;
    if (equals != std::string_view::npos) {
      value = argument.substr(equals + 1);
    } else if (i + 1 < arguments.size() && std::string_view(arguments[i + 1]).substr(0, 2) != "--") {
      value = arguments[++i];
    }
    if (value.empty()) {
      throw Error(Errc::usage, std::string(argument) + " has no value; give it as " + std::string(*flag) + "=VALUE");
    }
    if (*flag == "--nproc-per-node") flags.node.nproc_per_node = value;
    if (*flag == "--nnodes") flags.node.node_count = value;
    if (*flag == "--node-rank") flags.node.node_rank = value;
    if (*flag == "--master-addr") flags.node.master_addr = value;
    if (*flag == "--master-port") flags.node.master_port = value;
    if (*flag == "--max-restarts") flags.max_restarts = detail::max_restarts(value);
    if (*flag == "--log-dir") flags.log_dir = value;
  }
  return flags;
}

/// For a program that is started once for each rank: flags that only a launcher of its own could follow.
/// @throws Error (usage)
inline void refuse_launcher_flags(const std::vector<std::string>& arguments) {
  constexpr std::array<std::string_view, 5> launchers{"--nproc-per-node", "--nnodes", "--node-rank", "--max-restarts",
                                                      "--help-launch"};
  for (std::size_t i = 1; i < arguments.size() && arguments[i] != "--"; ++i) {
    std::string name = arguments[i].substr(0, arguments[i].find('='));
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(launchers.begin(), launchers.end(), name) != launchers.end()) {
      throw Error(Errc::usage,
                  arguments[i] + " is a flag of launch::PerNode, which starts its workers itself; this program is " +
                      "launch::PerProcess, started once for each rank by mpirun, srun, torchrun or a script: leave " +
                      "the flag out, put it behind -- if it is the program's own, or build the program with PerNode");
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/help.hpp

/// @file
/// What --help-launch prints.

namespace DTRAIN_NAMESPACE::launch {

inline constexpr const char* help_text =
    "Launcher flags (taken out of the program's arguments; --flag=v, --flag v, underscores as well):\n"
    "  --nproc-per-node=N|auto  workers to start; auto: one for each core this process may use (default 1)\n"
    "  --nnodes=N               nodes of the job; start this program once on each of them (default 1)\n"
    "  --node-rank=R            which of them this one is, from 0\n"
    "  --master-addr=HOST       the host of node 0 (one node: not needed, the store listens at 127.0.0.1)\n"
    "  --master-port=P          the port of the job's store (one node: chosen by the system; several: 29500)\n"
    "  --max-restarts=N         how often all workers are started again after one failed (default 0; several nodes:\n"
    "                           node 0's counts); exit code 2 and a job that was told to end are not tried again\n"
    "  --log-dir=DIR            also writes each worker's output to DIR/rank-R.stdout and DIR/rank-R.stderr, that of\n"
    "                           the K-th restart to DIR/attempt-K/rank-R.stdout and .stderr\n"
    "  --help-launch            prints this\n"
    "  --                       everything after it is the program's\n"
    "Several nodes share a secret: the same DTRAIN_SECRET, or a file that DTRAIN_SECRET_FILE names, on each of them.\n"
    "Every line of a worker is shown behind '[rank] '; stdin goes to the first worker of the node. SIGINT, SIGTERM,\n"
    "SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP and SIGCONT are forwarded; SIGINT and SIGTERM end the job on all "
    "nodes:\n"
    "workers that are still there DTRAIN_GRACE_SECONDS later (default 30) are killed, 1 second after a second signal.\n"
    "A launcher that is killed takes its workers with it, but not what these have started; as PID 1 of a container it\n"
    "takes everything.\n";

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/launcher_keys.hpp

/// @file
/// The keys and small values through which the launchers of a job talk.

namespace DTRAIN_NAMESPACE::launch {

/// Those of an attempt begin with its number; stop requests are the job's.
class LauncherKeys {
 public:
  explicit LauncherKeys(int attempt) : attempt_("attempt/" + std::to_string(attempt) + "/") {}

  static std::string card(int node) { return "node/" + std::to_string(node); }            ///< NodeCard
  static std::string table() { return "nodes"; }                                          ///< NodeTable
  static std::string stop(int count) { return "stop/" + std::to_string(count); }          ///< a signal
  std::string go() const { return attempt_ + "go"; }                                      ///< ranks can join
  std::string cause() const { return attempt_ + "cause"; }                                ///< CauseRecord
  std::string failing() const { return attempt_ + "failing"; }                            ///< FailureRecord
  std::string left(int rank) const { return attempt_ + "left/" + std::to_string(rank); }  ///< it has left
  std::string end(int node) const { return attempt_ + "end/" + std::to_string(node); }    ///< NodeEnd
  std::string verdict() const { return attempt_ + "verdict"; }                            ///< JobVerdict

 private:
  std::string attempt_;
};

/// A Cause as a record (see record.hpp).
struct CauseRecord {
  Cause cause;

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    int kind = static_cast<int>(self.cause.kind);
    fields.number(kind);
    if constexpr (!std::is_const_v<Self>) {
      self.cause.kind = static_cast<CauseKind>(kind);
    }
    fields.number(self.cause.rank);
    fields.text(self.cause.host);
    fields.text(self.cause.text);
  }
};

/// A failed worker, as its launcher tells the others. A record (see record.hpp).
struct FailureRecord {
  CauseRecord cause;
  bool secondary = false;  ///< it fell over what the ranks know already

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    CauseRecord::describe(self.cause, fields);
    fields.flag(self.secondary);
  }
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/launcher_loss.hpp

/// @file
/// What a launcher says when the launchers do not go on together.

namespace DTRAIN_NAMESPACE::launch {

/// @param cause the first cause of the launchers' job, in which nodes are ranks
/// @param store where node 0's launcher listens
inline std::string launcher_loss(const Cause& cause, const std::string& store) {
  if (cause.rank < 0) {
    return cause.kind == CauseKind::lost
               ? "node 0's launcher at " + store + " was lost, and with it the job: " + cause.text
               : "the launchers of this job did not come together: " + cause.text;
  }
  const std::string who = "the launcher of node " + std::to_string(cause.rank) +
                          (cause.host.empty() ? std::string() : " on host " + cause.host);
  return who + (cause.kind == CauseKind::lost ? " was lost, and with it the job: " : " ended the job: ") + cause.text;
}

/// "nodes 1 and 2": rank_list for nodes.
inline std::string node_list(const std::vector<int>& nodes) {
  std::string text = rendezvous::rank_list(nodes);
  return text.rfind("no rank", 0) == 0 ? "no node" : "node" + text.substr(4);
}

/// @param missing the nodes whose launchers have not come @param patience how long the others waited: "600.0 s"
inline std::string missing_nodes(const std::vector<int>& missing, int node_count, const std::string& patience,
                                 const std::string& store) {
  return node_list(missing) + " of " + std::to_string(node_count) + " did not come within " + patience +
         "; start this program there too, with its --node-rank, the same --nnodes and the same DTRAIN_SECRET, and see "
         "whether it can reach " +
         store;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/line_splitter.hpp

/// @file
/// Cuts a stream of bytes into whole lines, with a bound.

namespace DTRAIN_NAMESPACE::launch {

/// Pure: the lines depend on the bytes alone, not on how they were cut into pieces. A line beyond the bound becomes
/// several of exactly that length.
class LineSplitter {
 public:
  static constexpr std::size_t default_max_line_bytes = std::size_t{64} << 10;

  explicit LineSplitter(std::size_t max_line_bytes = default_max_line_bytes) : max_line_bytes_(max_line_bytes) {}

  /// Calls `emit(std::string_view)` for each line that is whole now, without its '\n'.
  template <class Emit>
  void feed(std::string_view bytes, Emit emit) {
    while (!bytes.empty()) {
      const std::size_t newline = bytes.find('\n');
      const std::size_t room = max_line_bytes_ - partial_.size();
      const std::size_t length = newline < bytes.size() ? newline : bytes.size();
      const std::size_t taken = length < room ? length : room;
      partial_.append(bytes.substr(0, taken));
      bytes.remove_prefix(taken);
      const bool whole = !bytes.empty() && bytes.front() == '\n';
      if (whole) {
        bytes.remove_prefix(1);
      }
      // A full line waits for the byte after it: a '\n' there ends it instead of an empty line.
      if (whole || !bytes.empty()) {
        emit(std::string_view(partial_));
        partial_.clear();
      }
    }
  }

  /// The end of the stream: emits a line that has no '\n'.
  template <class Emit>
  void finish(Emit emit) {
    if (!partial_.empty()) {
      emit(std::string_view(partial_));
      partial_.clear();
    }
  }

  /// The beginning of the line that is not whole yet.
  std::string_view partial() const noexcept { return partial_; }

 private:
  std::size_t max_line_bytes_;
  std::string partial_;
};

/// What a terminal would show of a line in which '\r' went back to its start: the text after the last '\r' that is
/// followed by something. So a progress bar that was drawn a hundred times is one line.
inline std::string_view visible_part(std::string_view line) noexcept {
  while (!line.empty() && line.back() == '\r') {
    line.remove_suffix(1);
  }
  const std::size_t back = line.rfind('\r');
  return back == std::string_view::npos ? line : line.substr(back + 1);
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/log_file.hpp

/// @file
/// The file that --log-dir keeps of one stream of one worker.

namespace DTRAIN_NAMESPACE::launch {

/// Makes a directory and those above it. @throws Error (posix)
inline void make_directories(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    struct ::stat status {};
    const bool there = ::mkdir(part.c_str(), 0777) == 0 ||
                       (errno == EEXIST && ::stat(part.c_str(), &status) == 0 && S_ISDIR(status.st_mode));
    if (!there) {
      throw errno_error("making the directory " + part + " for --log-dir", "give a directory that can be written");
    }
    if (end == std::string::npos) {
      return;
    }
  }
}

/// Holds the bytes as the worker wrote them, without prefixes. Emptied when it is opened.
class LogFile {
 public:
  /// Keeps nothing.
  LogFile() noexcept = default;

  /// Blocking: no; a pipe of that name that nobody reads is refused. @throws Error (posix)
  explicit LogFile(const std::string& path)
      : file_(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666)) {
    if (!file_) {
      throw errno_error("opening " + path + " for --log-dir", "give a directory that can be written");
    }
  }

  /// Appends. False, once, when it cannot: the file keeps what it has and takes nothing more.
  bool write(std::string_view bytes) noexcept {
    while (file_ && !bytes.empty()) {
      const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (errno != EINTR) {
        file_.reset();
        return false;
      }
    }
    return true;
  }

 private:
  async::Descriptor file_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/node_table.hpp

/// @file
/// Which ranks are on which node: a pure function of what the launchers say of themselves.

namespace DTRAIN_NAMESPACE::launch {

/// What a launcher says of its node. A record (see record.hpp).
struct NodeCard {
  int workers = 1;
  std::string host;     ///< its name, for sentences
  std::string host_id;  ///< see rendezvous/host_identity.hpp

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.workers);
    fields.text(self.host);
    fields.text(self.host_id);
  }
};

/// Node 0's word to all launchers. A record (see record.hpp).
struct NodeTable {
  std::vector<int> workers;  ///< of each node
  std::string problem;       ///< why there can be no such job; empty where there can

  int node_count() const noexcept { return static_cast<int>(workers.size()); }

  /// How many ranks are on the nodes below.
  int first_rank(int node) const noexcept {
    int rank = 0;
    for (std::size_t i = 0; i < static_cast<std::size_t>(node) && i < workers.size(); ++i) {
      rank += workers[i];
    }
    return rank;
  }
  int world_size() const noexcept { return first_rank(node_count()); }

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.numbers(self.workers);
    fields.text(self.problem);
  }
};

/// @param cards one for each node, in order
inline NodeTable table_of(const std::vector<NodeCard>& cards) {
  NodeTable table;
  std::map<std::string, std::size_t> node_of_host;
  std::int64_t ranks = 0;
  for (std::size_t node = 0; node < cards.size(); ++node) {
    const NodeCard& card = cards[node];
    table.workers.push_back(card.workers);
    ranks += card.workers;
    const auto [place, is_new] = node_of_host.emplace(card.host_id, node);
    if (!is_new && table.problem.empty()) {
      table.problem = "nodes " + std::to_string(place->second) + " and " + std::to_string(node) + " are one host, " +
                      card.host +
                      "; start one launcher on each host (with more workers: "
                      "--nproc-per-node), or set another DTRAIN_HOST_ID for each to let one host be several nodes";
    }
    if (card.workers < 1 && table.problem.empty()) {
      table.problem = "node " + std::to_string(node) + " has " + std::to_string(card.workers) + " workers";
    }
  }
  if (ranks > rendezvous::max_world_size && table.problem.empty()) {
    table.problem = "all nodes together have " + std::to_string(ranks) + " workers; at most " +
                    std::to_string(rendezvous::max_world_size) + " are possible";
  }
  return table;
}

/// "4 ranks on 2 nodes (3 on node 0, 1 on node 1)", the nodes counted where there are many.
inline std::string to_string(const NodeTable& table) {
  constexpr std::size_t most = 8;
  std::string text =
      std::to_string(table.world_size()) + " ranks on " + std::to_string(table.node_count()) + " nodes (";
  for (std::size_t node = 0; node < table.workers.size() && node < most; ++node) {
    text += (node == 0 ? "" : ", ") + std::to_string(table.workers[node]) + " on node " + std::to_string(node);
  }
  return text + (table.workers.size() > most ? ", ...)" : ")");
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/own_process.hpp

/// @file
/// What must be true of a process before it becomes a launcher.

namespace DTRAIN_NAMESPACE::launch {

/// How many threads this process has. @throws Error (posix) where /proc does not tell
inline std::size_t thread_count() {
  DIR* tasks = ::opendir("/proc/self/task");
  if (tasks == nullptr) {
    throw errno_error("counting the threads of this process in /proc/self/task", "mount /proc");
  }
  std::size_t count = 0;
  while (const dirent* entry = ::readdir(tasks)) {
    count += entry->d_name[0] != '.' ? 1 : 0;
  }
  static_cast<void>(::closedir(tasks));  // read only: nothing can be lost
  return count;
}

/// Workers die with the thread that started them, and a fork copies locks that other threads hold: so the launcher has
/// one thread. MPI and CUDA, once initialised, have some. @throws Error (usage)
inline void require_single_thread() {
  constexpr std::size_t expected = DTRAIN_THREAD_SANITIZER ? 2 : 1;  // the sanitizer has one of its own
  const std::size_t count = thread_count();
  if (count > expected || ::gettid() != ::getpid()) {
    throw Error(Errc::usage, "this process has " + std::to_string(count) +
                                 " threads already; make dtrain::run the first statement of main, before anything that "
                                 "starts threads, MPI or CUDA");
  }
}

/// Opens /dev/null as each of stdin, stdout and stderr that is closed, so that no pipe or socket takes its number, and
/// with it what the program prints.
inline void open_standard_descriptors() {
  for (int descriptor = 0; descriptor <= 2; ++descriptor) {
    if (::fcntl(descriptor, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != descriptor) {
      throw errno_error("opening /dev/null in the place of a closed standard descriptor");
    }
  }
}

/// What a worker leaves behind becomes this process's child, so that it can be reaped, also as PID 1 of a container.
inline void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    throw errno_error("becoming the parent of what the workers leave behind");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/pollable.hpp

/// @file
/// Which descriptors can be waited for, and whether one is ready now.

namespace DTRAIN_NAMESPACE::launch {

/// Pipes, sockets and terminals. A regular file or /dev/null is refused by epoll, and never makes its user wait.
inline bool can_be_waited_for(int descriptor) noexcept {
  struct ::stat status {};
  if (::fstat(descriptor, &status) != 0) {
    return false;
  }
  return S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode) || ::isatty(descriptor) == 1;
}

/// Whether a read would return at once with bytes. Blocking: no.
inline bool has_input(int descriptor) noexcept {
  pollfd asked{descriptor, POLLIN, 0};
  return ::poll(&asked, 1, 0) == 1 && (asked.revents & POLLIN) != 0;
}

/// Whether a write, of at most PIPE_BUF bytes to a pipe, would return at once, be it with an error. Blocking: no.
inline bool takes_output(int descriptor) noexcept {
  pollfd asked{descriptor, POLLOUT, 0};
  return ::poll(&asked, 1, 0) == 1;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/console.hpp

/// @file
/// The launcher's own stdout or stderr: whole lines out, never in the way of the loop.

namespace DTRAIN_NAMESPACE::launch {

/// A bounded queue in front of a descriptor. Lines are written as many at a time as a pipe takes whole (PIPE_BUF), so
/// that those of other processes on the same pipe do not fall between. Who adds output waits for room() first, so a
/// slow consumer slows the workers and loses nothing. A consumer that has gone away (EPIPE, a full disk) takes nothing
/// more; what is added then is dropped.
///
/// On a terminal one line may be live: the unfinished line of a worker, redrawn below everything else that is printed.
/// Lifetime: outlives the task of write_out(). Threads: the loop's.
class Console {
 public:
  Console(async::EventLoop& loop, int descriptor, bool is_terminal)
      : loop_(&loop),
        descriptor_(descriptor),
        is_terminal_(is_terminal),
        can_wait_(can_be_waited_for(descriptor)),
        changed_(loop),
        room_(loop) {
    room_.set();
  }
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;

  bool is_terminal() const noexcept { return is_terminal_; }
  bool broken() const noexcept { return broken_; }
  bool empty() const noexcept { return pending_.size() == written_; }

  /// How many bytes the consumer has taken: whether it moves.
  std::uint64_t taken_bytes() const noexcept { return taken_bytes_; }

  /// Adds `prefix` + `text` + '\n'.
  void line(std::string_view prefix, std::string_view text) {
    const std::string live = live_;
    erase_live();
    add(prefix);
    add(is_terminal_ ? visible_part(text) : text);
    add("\n");
    draw_live(live);
  }

  /// Makes `text` the live line; an empty one takes it away. On a terminal that does not keep up, drawings are skipped.
  void live_line(const std::string& text) {
    const bool keeps_up = pending_.size() - written_ < PIPE_BUF;
    if (!is_terminal_ || text == live_ || (!text.empty() && !keeps_up)) {
      return;
    }
    erase_live();
    draw_live(text);
  }

  /// `co_await console.room(deadline)`: until there is room for more output, at most till the deadline.
  async::Event::Awaiter room(Deadline deadline) noexcept { return room_.wait(deadline); }

  /// Writes what is added, for ever: a task for the loop to keep.
  async::Task<void> write_out() {
    for (;;) {
      if (empty()) {
        co_await changed_.wait(Deadline::after(std::chrono::hours(1)));
        changed_.reset();
        continue;
      }
      if (can_wait_ && !broken_) {
        const async::Ready ready = co_await loop_->writable(descriptor_, Deadline::after(std::chrono::hours(1)));
        if (ready == async::Ready::timed_out) {
          continue;
        }
      }
      const bool busy = !write_some();
      if (busy || !can_wait_) {
        co_await loop_->sleep_for(std::chrono::milliseconds(busy ? 10 : 0));  // the others' turn
      }
    }
  }

 private:
  static constexpr std::size_t high_water_bytes = std::size_t{256} << 10;

  void add(std::string_view bytes) {
    if (broken_) {
      return;
    }
    pending_.append(bytes);
    changed_.set();
    if (pending_.size() - written_ > high_water_bytes) {
      room_.reset();
    }
  }

  void erase_live() {
    if (!live_.empty()) {
      add("\r\x1b[K");
      live_.clear();
    }
  }

  void draw_live(const std::string& text) {
    add(text);
    live_ = text;
  }

  /// As many whole lines as fit into a page of a pipe; a part of a line that is longer than that.
  std::size_t next_length() const noexcept {
    const std::string_view rest = std::string_view(pending_).substr(written_);
    if (rest.size() <= PIPE_BUF || !can_wait_) {
      return rest.size();
    }
    const std::size_t newline = rest.rfind('\n', PIPE_BUF - 1);
    return newline == std::string_view::npos ? std::size_t{PIPE_BUF} : newline + 1;
  }

  /// Writes once. @returns false where the descriptor would have blocked: asked again here, because the console of the
  /// other stream may have filled the same pipe since this one was woken.
  bool write_some() {
    bool would_block = can_wait_ && !broken_ && !takes_output(descriptor_);
    if (!broken_ && !would_block) {
      const ssize_t count = ::write(descriptor_, pending_.data() + written_, next_length());
      if (count >= 0) {
        written_ += static_cast<std::size_t>(count);
        taken_bytes_ += static_cast<std::uint64_t>(count);
      } else {
        would_block = errno == EAGAIN;
        broken_ = errno != EAGAIN && errno != EINTR;
      }
    }
    if (broken_ || empty()) {
      pending_.clear();
      written_ = 0;
    } else if (written_ > high_water_bytes) {
      pending_.erase(0, written_);
      written_ = 0;
    }
    if (broken_ || pending_.size() - written_ <= high_water_bytes / 2) {
      room_.set();
    }
    return !would_block;
  }

  async::EventLoop* loop_;
  int descriptor_;
  bool is_terminal_;
  bool can_wait_;
  bool broken_ = false;
  std::string pending_;
  std::size_t written_ = 0;  ///< how much of pending_ is out
  std::uint64_t taken_bytes_ = 0;
  std::string live_;
  async::Event changed_;
  async::Event room_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/input_pump.hpp

/// @file
/// Carries the launcher's stdin to one worker.

namespace DTRAIN_NAMESPACE::launch {

/// A worker in its own process group that read the terminal would be stopped by SIGTTIN; through a pipe it reads
/// freely. Lifetime: outlives the task of carry(). Threads: the loop's.
class InputPump {
 public:
  /// @param source stays the caller's; @param pipe the writing end, closed when the source ends or nobody reads
  InputPump(async::EventLoop& loop, int source, async::Descriptor pipe)
      : loop_(&loop), source_(source), pipe_(std::move(pipe)), can_wait_(can_be_waited_for(source)) {
    const int flags = ::fcntl(pipe_.get(), F_GETFL);
    if (flags < 0 || ::fcntl(pipe_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      throw errno_error("preparing the pipe of a worker's input");
    }
  }
  InputPump(const InputPump&) = delete;
  InputPump& operator=(const InputPump&) = delete;

  /// A task for the loop to keep.
  async::Task<void> carry() {
    std::array<char, 4096> buffer;
    while (pipe_) {
      if (in_background()) {
        co_await loop_->sleep_for(std::chrono::milliseconds(500));  // the input is the shell's
        continue;
      }
      if (can_wait_) {
        const async::Ready ready = co_await loop_->readable(source_, Deadline::after(std::chrono::seconds(1)));
        if (ready == async::Ready::timed_out || in_background()) {
          continue;
        }
      }
      const ssize_t count = ::read(source_, buffer.data(), buffer.size());
      const int error = count < 0 ? errno : 0;
      if (error == EINTR || error == EAGAIN) {
        co_await loop_->sleep_for(std::chrono::milliseconds(10));
      } else if (count <= 0) {
        pipe_.reset();
      } else {
        co_await pass_on(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      }
    }
  }

 private:
  bool in_background() const noexcept {
    const pid_t foreground = ::tcgetpgrp(source_);
    return foreground >= 0 && foreground != ::getpgrp();
  }

  async::Task<void> pass_on(std::string_view bytes) {
    while (pipe_ && !bytes.empty()) {
      const ssize_t count = ::write(pipe_.get(), bytes.data(), bytes.size());
      const int error = count < 0 ? errno : 0;
      if (count >= 0) {
        bytes.remove_prefix(static_cast<std::size_t>(count));
      } else if (error == EAGAIN) {
        co_await loop_->writable(pipe_.get(), Deadline::after(std::chrono::hours(1)));
      } else if (error != EINTR) {
        pipe_.reset();  // the worker has closed its stdin or ended
      }
    }
  }

  async::EventLoop* loop_;
  int source_;
  async::Descriptor pipe_;
  bool can_wait_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/rank_store.hpp

/// @file
/// The job that the ranks of one attempt after the other meet in, in the store of node 0's launcher.

namespace DTRAIN_NAMESPACE::launch {

struct RankStoreOptions {
  int world_size = 1;
  std::string owner;  ///< "the launcher on host a"
  std::chrono::nanoseconds formation{0};
  std::function<void(const Cause&)> on_failure{};  ///< the first cause of the present attempt
  std::function<void(int rank)> on_left{};
};

/// Opens a generation of the ranks' job for each attempt, which closes the one before: its stragglers are refused.
/// Lifetime: the server outlives it. Threads: the loop's.
class RankStore {
 public:
  RankStore(rendezvous::Server& server, RankStoreOptions options) : server_(&server), options_(std::move(options)) {}
  RankStore(const RankStore&) = delete;
  RankStore& operator=(const RankStore&) = delete;

  /// Ranks of this attempt can join from now on.
  void open(int attempt) {
    left_.clear();
    cause_.reset();
    rendezvous::JobOptions job;
    job.role = rendezvous::Role::rank;
    job.world_size = options_.world_size;
    job.generation = static_cast<std::uint64_t>(attempt);
    job.owner = options_.owner;
    job.formation = Deadline::after(options_.formation);
    job.on_left = [this](int rank) {
      left_.insert(rank);
      if (options_.on_left) {
        options_.on_left(rank);
      }
    };
    job.on_failure = [this](const Cause& cause) {
      cause_ = cause;
      if (options_.on_failure) {
        options_.on_failure(cause);
      }
    };
    job_ = &server_->open(std::move(job));
  }

  bool has_left(int rank) const { return left_.count(rank) != 0; }

  /// The first cause of the present attempt; nothing while it is well.
  const std::optional<Cause>& cause() const noexcept { return cause_; }

  /// Tells the ranks of a failed worker, unless it had left.
  void lose(const Cause& loss) {
    if (job_ != nullptr && !has_left(loss.rank)) {
      job_->post_failure(loss);
    }
  }

 private:
  rendezvous::Server* server_;
  RankStoreOptions options_;
  std::set<int> left_;
  std::optional<Cause> cause_;
  rendezvous::ServedJob* job_ = nullptr;  ///< the server's
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/record.hpp

/// @file
/// What launchers tell each other, as values of the store: one description of a record's fields serves both directions.

namespace DTRAIN_NAMESPACE::launch {

/// Appends fields.
class RecordWriter {
 public:
  void number(int value) { out_.i64(value); }
  void flag(bool value) { out_.u8(value ? 1 : 0); }
  void text(std::string_view value) { out_.string(value); }
  void numbers(const std::vector<int>& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const int value : values) {
      number(value);
    }
  }
  void texts(const std::vector<std::string>& values) {
    out_.u32(static_cast<std::uint32_t>(values.size()));
    for (const std::string& value : values) {
      text(value);
    }
  }
  template <class Record>
  void maybe(const std::optional<Record>& record) {
    flag(record.has_value());
    if (record) {
      Record::describe(*record, *this);
    }
  }

  std::string take() const {
    const std::span<const std::byte> bytes = out_.view();
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }

 private:
  net::ByteWriter out_;
};

/// Reads fields; after the first one that cannot be, finished() is false for good. What is allocated follows what is
/// there, not what is announced.
class RecordReader {
 public:
  explicit RecordReader(std::string_view bytes) noexcept : in_(std::as_bytes(std::span(bytes.data(), bytes.size()))) {}

  void number(int& value) {
    const std::int64_t found = in_.i64();
    const bool fits = found >= std::numeric_limits<int>::min() && found <= std::numeric_limits<int>::max();
    fits ? void(value = static_cast<int>(found)) : in_.fail();
  }
  void flag(bool& value) { value = in_.u8() != 0; }
  void text(std::string& value) { value = in_.string(in_.remaining()); }
  void numbers(std::vector<int>& values) {
    for (std::uint32_t left = in_.u32(); left > 0 && in_.ok(); --left) {
      number(values.emplace_back());
    }
  }
  void texts(std::vector<std::string>& values) {
    for (std::uint32_t left = in_.u32(); left > 0 && in_.ok(); --left) {
      text(values.emplace_back());
    }
  }
  template <class Record>
  void maybe(std::optional<Record>& record) {
    bool there = false;
    flag(there);
    if (there) {
      Record::describe(record.emplace(), *this);
    }
  }

  bool finished() const noexcept { return in_.finished(); }

 private:
  net::ByteReader in_;
};

/// A record is a struct with `describe(record, fields)`, which names its fields in order.
template <class Record>
std::string to_value(const Record& record) {
  RecordWriter writer;
  Record::describe(record, writer);
  return writer.take();
}

/// @throws Error (protocol) for bytes that are no such record
template <class Record>
Record from_value(std::string_view value) {
  Record record;
  RecordReader reader(value);
  Record::describe(record, reader);
  if (!reader.finished()) {
    throw Error(Errc::protocol,
                "another launcher of this job wrote what this one cannot read; start the same program on every node");
  }
  return record;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/node_meeting.hpp

/// @file
/// The launchers of all nodes, from finding each other to parting.

namespace DTRAIN_NAMESPACE::launch {

struct NodeMeetingOptions {
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr;
  std::uint16_t master_port = 0;
  rendezvous::HostIdentity host;
  int workers = 1;
  std::chrono::nanoseconds formation{0};
  rendezvous::Limits limits{};
  std::optional<rendezvous::Secret> secret{};
  std::optional<std::string> interface {};  ///< where node 0 listens: a name or an address
};

/// Node 0 opens the store; every launcher joins it in the role of one. Lifetime: the loop and the event outlive it.
/// Threads: the loop's.
class NodeMeeting {
 public:
  /// @param changed is set when another launcher is lost
  NodeMeeting(async::EventLoop& loop, async::AutoResetEvent& changed, NodeMeetingOptions options)
      : loop_(&loop), options_(std::move(options)), failure_(std::make_shared<FailureLatch>()) {
    subscription_ = failure_->subscribe([&changed](const Cause&) { changed.set(); });
  }
  NodeMeeting(const NodeMeeting&) = delete;
  NodeMeeting& operator=(const NodeMeeting&) = delete;

  const NodeMeetingOptions& options() const noexcept { return options_; }

  /// Until all launchers have come and know where their ranks are.
  /// @throws JobFailed with a sentence that names the nodes that did not come; Error (usage) for nodes that cannot be
  /// one job; what listening and joining throw
  async::Task<void> meet() {
    const Deadline deadline = Deadline::after(options_.formation);
    rendezvous::Address address;
    address.host = options_.master_addr;
    address.port = options_.master_port;
    address.role = rendezvous::Role::launcher;
    address.secret = options_.secret;
    if (options_.node_rank == 0) {
      const rendezvous::ListenRules rules{options_.interface, options_.secret.has_value()};
      std::vector<net::Listener> listeners =
          co_await rendezvous::listen_for_ranks(*loop_, options_.master_addr, options_.master_port, deadline, rules);
      const net::Endpoint bound = listeners.front().local();
      address.host = bound.is_any() ? "localhost" : bound.host();
      open_store(std::move(listeners), deadline);
    }
    rendezvous::JoinRequest request;
    request.facts.rank = options_.node_rank;
    request.facts.host_id = options_.host.id;
    request.facts.host = options_.host.name;
    request.world_size = options_.node_count;
    session_ = co_await rendezvous::Session::join(*loop_, address, std::move(request), failure_, deadline);
    missing_watch_.cancel();
    store_.emplace(session_->exchange(), nullptr);
    co_await find_places();
  }

  bool has_met() const noexcept { return store_.has_value(); }

  /// Which node has which ranks, once all have met.
  const NodeTable& table() const noexcept { return table_; }

  /// Node 0's store.
  rendezvous::Server& server() noexcept { return *server_; }

  /// Whether a launcher was lost.
  bool is_over() const noexcept { return failure_->failed(); }

  /// Why, once it is over.
  std::optional<Cause> cause() const { return failure_->cause(); }

  /// @name Keys of the launchers' job. They end with an exception when a launcher is lost.
  /// @{
  async::Task<void> set(std::string key, std::string value) {
    return store_->set(std::move(key), std::move(value), answer_deadline());
  }
  /// Does nothing where the key exists.
  async::Task<void> set_first(std::string key, std::string value) {
    const rendezvous::CompareSet result =
        co_await store_->compare_set(std::move(key), std::nullopt, std::move(value), answer_deadline());
    static_cast<void>(result);
  }
  /// Waits until it exists: as long as all launchers are alive.
  async::Task<std::string> get(std::string key) {
    return store_->get(std::move(key), Deadline::after(longer_than_any_job));
  }
  /// @}

  /// Tells the others why this launcher cannot go on, unless all have the same reason.
  async::Task<void> fail(std::string why) {
    if (session_ != nullptr && !is_over() && table_.problem.empty()) {
      const Cause cause{CauseKind::exception, options_.node_rank, options_.host.name, std::move(why)};
      session_->report(cause);
      const Deadline deadline = Deadline::after(moment);
      while (!is_over() && !deadline.passed()) {
        co_await loop_->sleep_for(std::chrono::milliseconds(1));
      }
    }
  }

  /// Says that this launcher is done; node 0's store stays until all have said so, or know why there is nothing more.
  async::Task<void> part() {
    const bool well = !is_over();
    if (session_ != nullptr && well) {
      co_await session_->leave(Deadline::after(farewell));
    }
    session_.reset();
    if (launchers_ != nullptr) {
      co_await launchers_->all_left(Deadline::after(well ? farewell : moment));
    }
    launchers_ = nullptr;
    server_.reset();
  }

  /// "host:29500"
  std::string store_text() const { return options_.master_addr + ":" + std::to_string(options_.master_port); }

 private:
  static constexpr std::chrono::hours longer_than_any_job{24 * 365};
  static constexpr std::chrono::seconds farewell{5};
  static constexpr std::chrono::seconds moment{1};

  static Deadline answer_deadline() { return Deadline::after(std::chrono::seconds(60)); }

  void open_store(std::vector<net::Listener> listeners, Deadline deadline) {
    server_.emplace(*loop_, std::move(listeners), rendezvous::ServerOptions{options_.secret, options_.limits});
    rendezvous::JobOptions job;
    job.role = rendezvous::Role::launcher;
    job.world_size = options_.node_count;
    job.owner = "the launcher of node 0 on host " + options_.host.name;
    job.formation = deadline;
    job.on_joined = [this](int node, const std::string&) { present_.insert(node); };
    launchers_ = &server_->open(std::move(job));
    missing_watch_ = loop_->spawn(watch_missing(deadline));
  }

  /// Says in time, in words of nodes, what the store would say of ranks a moment later.
  async::Task<void> watch_missing(Deadline deadline) {
    const Deadline::Clock::duration all = deadline.remaining();
    const Deadline::Clock::duration before = 2 * std::min<Deadline::Clock::duration>(all / 10, std::chrono::seconds(1));
    co_await loop_->sleep_for(all - before);
    std::vector<int> missing;
    for (int node = 0; node < options_.node_count; ++node) {
      if (present_.count(node) == 0) {
        missing.push_back(node);
      }
    }
    if (!missing.empty()) {
      launchers_->post_failure(
          Cause{CauseKind::timeout,
                -1,
                {},
                missing_nodes(missing, options_.node_count, seconds_text(options_.formation), store_text())});
    }
  }

  async::Task<void> find_places() {
    NodeCard card;
    card.workers = options_.workers;
    card.host = options_.host.name;
    card.host_id = options_.host.id;
    co_await set(LauncherKeys::card(options_.node_rank), to_value(card));
    if (options_.node_rank == 0) {
      std::vector<NodeCard> cards;
      for (int node = 0; node < options_.node_count; ++node) {
        const std::string value = co_await get(LauncherKeys::card(node));
        cards.push_back(from_value<NodeCard>(value));
      }
      co_await set(LauncherKeys::table(), to_value(table_of(cards)));
    }
    const std::string value = co_await get(LauncherKeys::table());
    table_ = from_value<NodeTable>(value);
    if (!table_.problem.empty()) {
      throw Error(Errc::usage, table_.problem);
    }
  }

  async::EventLoop* loop_;
  NodeMeetingOptions options_;
  std::shared_ptr<FailureLatch> failure_;
  FailureLatch::Subscription subscription_;
  std::optional<rendezvous::Server> server_;    ///< node 0's
  rendezvous::ServedJob* launchers_ = nullptr;  ///< the server's
  std::set<int> present_;
  std::unique_ptr<rendezvous::Session> session_;
  std::optional<rendezvous::Store> store_;
  NodeTable table_;
  async::Spawned missing_watch_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/secret_setting.hpp

/// @file
/// The job's secret, as the environment gives it.

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

/// A file's text without the white space at its end; it may be a pipe, which is read to its end.
/// Blocking: until the deadline. @throws Error (usage) where it cannot be read; Error (timeout)
inline std::string secret_in_file(const std::string& path,
                                  Deadline deadline = Deadline::after(std::chrono::seconds(10))) {
  const async::Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  const std::string doing = "reading the secret, " + identity::quoted("DTRAIN_SECRET_FILE", path);
  std::array<char, rendezvous::Secret::most_characters + 2> text{};
  std::size_t length = 0;
  ssize_t count = file ? 1 : -1;
  while (count > 0 && length < text.size()) {
    net::wait_descriptor(file.get(), POLLIN, deadline, doing);
    count = ::read(file.get(), text.data() + length, text.size() - length);
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) {
      count = 1;
      continue;
    }
    length += count > 0 ? static_cast<std::size_t>(count) : 0;
  }
  if (count < 0) {
    throw Error(Errc::usage, identity::quoted("DTRAIN_SECRET_FILE", path) + " cannot be read (" +
                                 std::system_category().message(errno) + "); name a file that holds the job's secret");
  }
  const std::string all(text.data(), length);
  return all.substr(0, all.find_last_not_of(" \t\r\n") + 1);
}

}  // namespace detail

/// Nothing where there is none. Blocking: reads the file.
/// @throws Error (usage) for a secret that is too short, a file that cannot be read, or both variables
inline std::optional<rendezvous::Secret> secret_setting(const identity::Variables& variables) {
  const std::optional<std::string> text = variables.text("DTRAIN_SECRET");
  const std::optional<std::string> file = variables.text("DTRAIN_SECRET_FILE");
  if (text && file) {
    throw Error(Errc::usage, "DTRAIN_SECRET and DTRAIN_SECRET_FILE are both set; unset one of them");
  }
  if (text) {
    return rendezvous::Secret::of(*text, "DTRAIN_SECRET");
  }
  if (file) {
    return rendezvous::Secret::of(detail::secret_in_file(*file), "the file that DTRAIN_SECRET_FILE names");
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/settings.hpp

/// @file
/// The variables that set how a rank behaves, whoever started it.

namespace DTRAIN_NAMESPACE::launch {

inline constexpr std::chrono::seconds default_timeout{600};
inline constexpr std::chrono::seconds default_liveness{5};

/// A variable's seconds, which may have a fraction; `otherwise` where it is unset.
/// @throws Error (usage) for what is not a number from 0.001 to 10,000,000
inline std::chrono::nanoseconds seconds_setting(const identity::Variables& variables, const char* variable,
                                                std::chrono::nanoseconds otherwise) {
  const std::optional<std::string> value = variables.text(variable);
  if (!value) {
    return otherwise;
  }
  double seconds = 0;
  const char* const end = value->data() + value->size();
  const auto [stopped, error] = std::from_chars(value->data(), end, seconds, std::chars_format::fixed);
  if (error != std::errc{} || stopped != end || !(seconds >= 0.001 && seconds <= 1e7)) {
    throw Error(Errc::usage, identity::quoted(variable, *value) +
                                 " is not a number of seconds from 0.001 to 10000000; correct it or unset it");
  }
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds));
}

/// @throws Error (usage) where DTRAIN_LOG names no level
inline void check_log_setting(const identity::Variables& variables) {
  const std::optional<std::string> value = variables.text("DTRAIN_LOG");
  if (value && !is_log_level(*value)) {
    throw Error(Errc::usage, identity::quoted("DTRAIN_LOG", *value) +
                                 " is no level; set it to off, error, warning, info or debug, or unset it");
  }
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/signals.hpp

/// @file
/// The launcher's signals: held back from the process and read from a descriptor instead.

namespace DTRAIN_NAMESPACE::launch {

/// What is passed on to the workers.
inline constexpr std::array<int, 8> forwarded_signals{SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,
                                                      SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};

/// Blocks the forwarded signals and SIGCHLD in this thread while it lives. A signal that whoever started the launcher
/// had it ignore (nohup, a background job of a script) stays ignored and is not forwarded. Also blocked, and not
/// read: SIGPIPE, because a reader that went away is an error of a write here; SIGTTIN and SIGTTOU, because a launcher
/// in the background must not be stopped by its own pumping. Threads: for a process with one thread.
class SignalReader {
 public:
  SignalReader() {
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGCHLD);
    for (const int signal : forwarded_signals) {
      struct sigaction now {};
      if (::sigaction(signal, nullptr, &now) != 0) {
        throw errno_error("asking how a signal is handled");
      }
      if (now.sa_handler != SIG_IGN) {
        sigaddset(&wanted, signal);
      }
    }
    // Inherited as ignored, the ends of children would never be told.
    struct sigaction standard {};
    standard.sa_handler = SIG_DFL;
    if (::sigaction(SIGCHLD, &standard, nullptr) != 0) {
      throw errno_error("setting how SIGCHLD is handled");
    }
    sigset_t blocked = wanted;
    for (const int signal : {SIGPIPE, SIGTTIN, SIGTTOU}) {
      sigaddset(&blocked, signal);
    }
    descriptor_ = async::Descriptor(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
    if (!descriptor_) {
      throw errno_error("creating a descriptor for signals");
    }
    const int error = ::pthread_sigmask(SIG_BLOCK, &blocked, &original_mask_);
    if (error != 0) {
      throw posix_error(error, "blocking signals");
    }
  }
  SignalReader(const SignalReader&) = delete;
  SignalReader& operator=(const SignalReader&) = delete;
  ~SignalReader() {
    while (next()) {  // what came too late must not hit the process when the mask falls
    }
    const timespec at_once{};
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    static_cast<void>(::sigtimedwait(&pipe, nullptr, &at_once));
    static_cast<void>(::pthread_sigmask(SIG_SETMASK, &original_mask_, nullptr));
  }

  /// A signal that has arrived. Blocking: no. @throws nothing; a failed read is no signal
  std::optional<int> next() noexcept {
    signalfd_siginfo info{};
    ssize_t count = -1;
    do {
      count = ::read(descriptor_.get(), &info, sizeof info);
    } while (count < 0 && errno == EINTR);
    return count == static_cast<ssize_t>(sizeof info) ? std::optional<int>(static_cast<int>(info.ssi_signo))
                                                      : std::nullopt;
  }

  int descriptor() const noexcept { return descriptor_.get(); }

  /// The mask that the process was started with, for its children.
  const sigset_t& original_mask() const noexcept { return original_mask_; }

 private:
  async::Descriptor descriptor_;
  sigset_t original_mask_{};
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/spawn.hpp

/// @file
/// Starts a program as a child that dies with this process.

namespace DTRAIN_NAMESPACE::launch {

/// A pipe, both ends close-on-exec.
struct Pipe {
  async::Descriptor reader;
  async::Descriptor writer;
};

/// @throws Error (posix) where descriptors run out
inline Pipe make_pipe() {
  int ends[2] = {-1, -1};
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw errno_error("creating a pipe to a worker",
                      "raise the limit of open files (ulimit -n) or start fewer workers");
  }
  return {async::Descriptor(ends[0]), async::Descriptor(ends[1])};
}

/// What to start. Lifetime: the descriptors, all above 2, stay open until spawn() returns.
struct SpawnRequest {
  std::string executable;
  std::vector<std::string> arguments;  ///< the program's name first
  identity::Environment environment;
  int standard_input = -1;
  int standard_output = -1;
  int standard_error = -1;
  sigset_t signal_mask{};
};

namespace detail {

inline std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) {
    pointers.push_back(text.data());
  }
  pointers.push_back(nullptr);
  return pointers;
}

/// In the child, between fork and exec: only what is safe there. Returns the error that kept the program from starting.
inline int become(const SpawnRequest& request, char* const* arguments, char* const* environment,
                  pid_t parent) noexcept {
  // A group of its own: Ctrl-C on a terminal reaches the launcher alone, which forwards it once; and all that a worker
  // starts can be ended with it.
  if (::setpgid(0, 0) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) {
    return errno;
  }
  if (::getppid() != parent) {
    ::_exit(128 + SIGKILL);  // the launcher died before it could be tied to it
  }
  const std::pair<int, int> standard[] = {
      {request.standard_input, 0}, {request.standard_output, 1}, {request.standard_error, 2}};
  for (const auto& [from, to] : standard) {
    while (::dup2(from, to) < 0) {
      if (errno != EINTR && errno != EBUSY) {
        return errno;
      }
    }
  }
  if (::sigprocmask(SIG_SETMASK, &request.signal_mask, nullptr) != 0) {
    return errno;
  }
  ::execve(request.executable.c_str(), arguments, environment);
  return errno;
}

/// The error that the child wrote, or 0 once its exec has closed the pipe.
inline int exec_error(int reader, const std::string& doing) {
  constexpr int patience_ms = 10000;
  for (;;) {
    pollfd waiting{reader, POLLIN, 0};
    const int ready = ::poll(&waiting, 1, patience_ms);
    if (ready == 0) {
      throw Error(Errc::timeout, doing + ": it did not start within 10 s; see whether the system is out of memory");
    }
    int error = 0;
    const ssize_t count = ready < 0 ? -1 : ::read(reader, &error, sizeof error);
    if (count >= 0) {
      return count == static_cast<ssize_t>(sizeof error) ? error : 0;
    }
    if (errno != EINTR) {
      throw errno_error(doing);
    }
  }
}

}  // namespace detail

/// The process id of the started program. It is killed when this thread ends, hence when this process does, however it
/// does. Blocking: until the program runs, 10 s at most. Threads: the main thread, of a process that has no other.
/// @throws Error (posix) if it cannot be started; Error (timeout). Nothing is left behind.
inline pid_t spawn(const SpawnRequest& request) {
  const std::string doing = "starting " + request.executable;
  std::vector<std::string> arguments = request.arguments;
  std::vector<std::string> environment;
  environment.reserve(request.environment.size());
  for (const auto& [name, value] : request.environment) {
    environment.push_back(name + "=" + value);
  }
  const std::vector<char*> argument_pointers = detail::pointers_to(arguments);
  const std::vector<char*> environment_pointers = detail::pointers_to(environment);
  Pipe report = make_pipe();
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) {
    throw errno_error(doing, "raise the limit of processes (ulimit -u) or start fewer workers");
  }
  if (child == 0) {
    const int error = detail::become(request, argument_pointers.data(), environment_pointers.data(), parent);
    const ssize_t written = ::write(report.writer.get(), &error, sizeof error);
    static_cast<void>(written);
    ::_exit(127);
  }
  static_cast<void>(::setpgid(child, child));  // the child does it, too: whichever comes first
  report.writer.reset();
  try {
    const int error = detail::exec_error(report.reader.get(), doing);
    if (error != 0) {
      throw posix_error(error, doing);
    }
  } catch (...) {
    static_cast<void>(::kill(child, SIGKILL));
    while (::waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
    }
    throw;
  }
  return child;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/stop_plan.hpp

/// @file
/// When the workers are told to stop, and when they are killed: a pure function of what happened when.

namespace DTRAIN_NAMESPACE::launch {

/// After the first failure the others get `settle` to end by themselves, saying why, then SIGTERM, and SIGKILL
/// `term_grace` later. After a forwarded SIGINT or SIGTERM they have `stop_grace`; a second one leaves them
/// `term_grace`.
class StopPlan {
 public:
  using Clock = Deadline::Clock;

  /// ThreadSanitizer holds a process up for a second when it exits.
  static constexpr std::chrono::milliseconds settle{DTRAIN_THREAD_SANITIZER ? 2500 : 300};
  static constexpr std::chrono::milliseconds term_grace{1000};
  static constexpr std::chrono::milliseconds default_stop_grace{30000};

  explicit StopPlan(std::chrono::nanoseconds stop_grace = default_stop_grace)
      : stop_grace_(std::chrono::ceil<Clock::duration>(stop_grace)) {}

  enum class Action { nothing, terminate, kill };

  /// A worker failed. Workers that were asked to stop may end as they like.
  void failed(Clock::time_point now) {
    if (!terminate_at_ && !kill_at_) {
      terminate_at_ = now + settle;
      kill_at_ = now + settle + term_grace;
    }
  }

  /// SIGINT or SIGTERM was forwarded.
  void stop_asked(Clock::time_point now) {
    const Clock::time_point latest = now + (stop_asked_ ? Clock::duration(term_grace) : stop_grace_);
    stop_asked_ = true;
    kill_at_ = kill_at_ ? std::min(*kill_at_, latest) : latest;
  }

  bool was_stop_asked() const noexcept { return stop_asked_; }

  /// What is to be done now, each once.
  Action due(Clock::time_point now) {
    if (kill_at_ && *kill_at_ <= now && !killed_) {
      killed_ = true;
      terminate_at_.reset();
      return Action::kill;
    }
    if (terminate_at_ && *terminate_at_ <= now && !terminated_) {
      terminated_ = true;
      return Action::terminate;
    }
    return Action::nothing;
  }

  /// When there is something to do next.
  std::optional<Clock::time_point> next() const {
    if (terminate_at_ && !terminated_) {
      return terminate_at_;
    }
    return killed_ ? std::nullopt : kill_at_;
  }

  /// Whether the launcher itself has ended workers: what ends from now on is no cause.
  bool has_acted() const noexcept { return terminated_ || killed_; }
  bool has_killed() const noexcept { return killed_; }

 private:
  Clock::duration stop_grace_;
  std::optional<Clock::time_point> terminate_at_;
  std::optional<Clock::time_point> kill_at_;
  bool stop_asked_ = false;
  bool terminated_ = false;
  bool killed_ = false;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/tail.hpp

/// @file
/// The last lines of a stream, for a report of how a process ended.

namespace DTRAIN_NAMESPACE::launch {

/// Keeps a bounded number of lines, each cut to a bounded length.
class Tail {
 public:
  static constexpr std::size_t max_lines = 20;
  static constexpr std::size_t max_line_bytes = 512;

  void push(std::string_view line) {
    if (lines_.size() == max_lines) {
      lines_.pop_front();
    }
    lines_.emplace_back(line.substr(0, max_line_bytes));
    if (line.size() > max_line_bytes) {
      lines_.back() += "...";
    }
  }

  bool empty() const noexcept { return lines_.empty(); }
  const std::deque<std::string>& lines() const noexcept { return lines_; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/line_relay.hpp

/// @file
/// Carries one stream of one worker to the launcher's console, line by line.

namespace DTRAIN_NAMESPACE::launch {

/// Reads a pipe to its end. Lifetime: it and the console outlive the task of carry(). Threads: the loop's.
class LineRelay {
 public:
  /// @param is_live whether the unfinished line is shown as it grows, where the console is a terminal
  LineRelay(async::EventLoop& loop, async::Descriptor pipe, Console& console, int rank, bool is_live, LogFile log)
      : loop_(&loop),
        pipe_(std::move(pipe)),
        console_(&console),
        prefix_("[" + std::to_string(rank) + "] "),
        is_live_(is_live && console.is_terminal()),
        log_(std::move(log)) {
    const int flags = ::fcntl(pipe_.get(), F_GETFL);
    if (flags < 0 || ::fcntl(pipe_.get(), F_SETFL, flags | O_NONBLOCK) != 0) {
      throw errno_error("preparing the pipe of a worker's output");
    }
  }
  LineRelay(const LineRelay&) = delete;
  LineRelay& operator=(const LineRelay&) = delete;

  /// Carries until the last writer has closed the pipe: a task for the loop to keep.
  async::Task<void> carry() {
    std::array<char, std::size_t{16} << 10> buffer;
    while (pipe_) {
      co_await console_->room(Deadline::after(std::chrono::hours(1)));
      const async::Ready ready = co_await loop_->readable(pipe_.get(), Deadline::after(std::chrono::hours(1)));
      if (ready == async::Ready::timed_out) {
        continue;
      }
      const ssize_t count = ::read(pipe_.get(), buffer.data(), buffer.size());
      if (count > 0) {
        take(std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      } else if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
        finish();
      }
    }
  }

  /// Whether nothing more will come, or nothing more is there although somebody still holds the pipe open.
  bool is_drained() const noexcept { return !pipe_ || !has_input(pipe_.get()); }

  /// Shows the last line although it has no end, and closes the pipe. Call it when carry() does not run any more.
  void finish() {
    show_live("");
    splitter_.finish([this](std::string_view line) { emit(line); });
    pipe_.reset();
  }

  const Tail& tail() const noexcept { return tail_; }

 private:
  void take(std::string_view bytes) {
    if (!log_.write(bytes)) {
      console_->line("dtrain: ",
                     "a file of --log-dir cannot be written any more (is the disk full?); the output goes on here");
    }
    show_live("");
    splitter_.feed(bytes, [this](std::string_view line) { emit(line); });
    if (is_live_) {
      const std::string_view text = visible_part(splitter_.partial());
      show_live(text.empty() ? std::string() : prefix_ + std::string(text));
    }
  }

  void emit(std::string_view line) {
    console_->line(prefix_, line);
    tail_.push(visible_part(line));
  }

  void show_live(const std::string& text) {
    if (has_live_line_ || !text.empty()) {
      console_->live_line(text);
      has_live_line_ = !text.empty();
    }
  }

  async::EventLoop* loop_;
  async::Descriptor pipe_;
  Console* console_;
  std::string prefix_;
  bool is_live_;
  bool has_live_line_ = false;
  LogFile log_;
  LineSplitter splitter_;
  Tail tail_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/terminal_output.hpp

/// @file
/// The launcher's stdout and stderr together.

namespace DTRAIN_NAMESPACE::launch {

/// Where both are one terminal, one console writes to it, so that a progress bar on one is not broken by a line on the
/// other. Lifetime: the loop outlives it. Threads: the loop's.
class TerminalOutput {
 public:
  TerminalOutput(async::EventLoop& loop, int output, int error)
      : loop_(&loop),
        output_(loop, output, ::isatty(output) == 1),
        error_(loop, error, ::isatty(error) == 1),
        is_one_(output_.is_terminal() && error_.is_terminal() && same_device(output, error)),
        output_task_(loop.spawn(output_.write_out())),
        error_task_(loop.spawn(error_.write_out())) {}

  Console& output() noexcept { return output_; }
  Console& error() noexcept { return is_one_ ? output_ : error_; }

  /// Until everything is written and `done()`, or the consumers have taken nothing for `patience`, or `give_up()`.
  /// @returns whether everything is written
  template <class Done, class GiveUp>
  async::Task<bool> flush(std::chrono::milliseconds patience, Done done, GiveUp give_up) {
    std::uint64_t taken = taken_bytes();
    Deadline deadline = Deadline::after(patience);
    while (!(output_.empty() && error_.empty() && done()) && !deadline.passed() && !give_up()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(1));
      if (taken_bytes() != taken) {
        taken = taken_bytes();
        deadline = Deadline::after(patience);
      }
    }
    co_return output_.empty() && error_.empty() && done();
  }

 private:
  static bool same_device(int a, int b) noexcept {
    struct ::stat first {};
    struct ::stat second {};
    return ::fstat(a, &first) == 0 && ::fstat(b, &second) == 0 && first.st_rdev == second.st_rdev;
  }

  std::uint64_t taken_bytes() const noexcept { return output_.taken_bytes() + error_.taken_bytes(); }

  async::EventLoop* loop_;
  Console output_;
  Console error_;
  bool is_one_;
  async::Spawned output_task_;
  async::Spawned error_task_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/verdict.hpp

/// @file
/// Which worker's end is the cause of the others': a pure function of how all ended.

namespace DTRAIN_NAMESPACE::launch {

/// How a worker ended. Listed in the order in which the ends were noticed. A record (see record.hpp).
struct WorkerEnd {
  int rank = 0;
  ExitStatus status;
  bool left = true;      ///< it had said that it was done (leave)
  bool stopped = false;  ///< it ended after the launcher had told it to

  /// Leaving with exit code 0 is the only end that is none; without leaving it is a loss.
  bool failed() const noexcept { return status != ExitStatus{} || !left; }

  /// It fell because another rank had failed.
  bool is_secondary() const noexcept { return status == ExitStatus{exit_code_peer_lost, 0}; }

  /// It may be what the others fell over.
  bool is_primary() const noexcept { return failed() && !stopped && !is_secondary(); }

  /// Exit code 0 without leaving must not look like success.
  int exit_code() const noexcept { return status == ExitStatus{} && !left ? 1 : status.exit_code(); }

  std::string text() const {
    return status == ExitStatus{} && !left ? "exit code 0 before it had left the job" : status.text();
  }

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.rank);
    fields.number(self.status.code);
    fields.number(self.status.signal);
    fields.flag(self.left);
    fields.flag(self.stopped);
  }
};

/// The end that the job's end is due to; nothing where all is well. Ends of one moment are told apart by the first
/// cause that the store knows. Where all fell because of another, one that fell by itself comes before one that was
/// stopped.
inline std::optional<WorkerEnd> first_failure(const std::vector<WorkerEnd>& ends, const std::optional<Cause>& cause) {
  const auto first_that = [&ends](auto holds) {
    const auto found = std::find_if(ends.begin(), ends.end(), holds);
    return found == ends.end() ? std::nullopt : std::optional<WorkerEnd>(*found);
  };
  std::optional<WorkerEnd> first =
      first_that([&](const WorkerEnd& end) { return end.is_primary() && cause && cause->rank == end.rank; });
  first = first ? first : first_that([](const WorkerEnd& end) { return end.is_primary(); });
  first = first ? first : first_that([](const WorkerEnd& end) { return end.failed() && !end.stopped; });
  return first ? first : first_that([](const WorkerEnd& end) { return end.failed(); });
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/node_end.hpp

/// @file
/// How one attempt ended on one node, for the verdict on the job.

namespace DTRAIN_NAMESPACE::launch {

/// A record (see record.hpp).
struct NodeEnd {
  int node = 0;
  std::string host;
  std::optional<WorkerEnd> first;       ///< what first_failure says of the node's workers
  std::vector<int> secondary;           ///< the ranks that ended with exit_code_peer_lost
  std::vector<std::string> last_lines;  ///< of the first one's stderr
  int stop_signal = 0;                  ///< SIGINT or SIGTERM that the job was told to stop by, or 0
  bool interrupted = false;             ///< a signal has come that ends a job for good
  bool started = true;                  ///< false where the job was stopped before there were workers
  bool abandoned = false;               ///< a killed process did not go: the kernel holds it

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.node);
    fields.text(self.host);
    fields.maybe(self.first);
    fields.numbers(self.secondary);
    fields.texts(self.last_lines);
    fields.number(self.stop_signal);
    fields.flag(self.interrupted);
    fields.flag(self.started);
    fields.flag(self.abandoned);
  }
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/report.hpp

/// @file
/// What the launcher says about a job that failed.

namespace DTRAIN_NAMESPACE::launch {

/// "rank 2 on host gpu-a failed first: killed by signal 9 (SIGKILL)", or the store's cause where all fell over that.
inline std::string failure_sentence(const WorkerEnd& first, const std::optional<Cause>& cause, std::string_view host) {
  return first.is_primary() || !cause
             ? "rank " + std::to_string(first.rank) + " on host " + std::string(host) + " failed first: " + first.text()
             : "the job failed: " + cause->sentence();
}

/// Lines for stderr: which rank on which host failed first, how, what it wrote last, and who fell because of it. Pure.
/// @param secondary the ranks that ended with exit_code_peer_lost
/// @param last_lines the last lines that the first one wrote to stderr
inline std::vector<std::string> failure_report(const WorkerEnd& first, std::vector<int> secondary,
                                               const std::optional<Cause>& cause, std::string_view host,
                                               const std::vector<std::string>& last_lines) {
  std::vector<std::string> lines{failure_sentence(first, cause, host)};
  if (first.is_primary() && cause && cause->rank != first.rank) {
    lines.push_back("the first cause that the ranks were told: " + cause->sentence());
  }
  std::sort(secondary.begin(), secondary.end());
  if (!cause) {
    secondary.erase(std::remove(secondary.begin(), secondary.end(), first.rank), secondary.end());
  }
  if (!secondary.empty()) {
    lines.push_back("fell because of it, with exit code " + std::to_string(exit_code_peer_lost) + ": " +
                    rendezvous::rank_list(secondary));
  }
  if (!last_lines.empty()) {
    lines.push_back("the last lines that rank " + std::to_string(first.rank) + " wrote to stderr:");
    for (const std::string& line : last_lines) {
      lines.push_back("    " + line);
    }
  }
  return lines;
}

/// One line where the job ended because the launcher was told to end it.
inline std::string stop_report(int signal, const std::optional<WorkerEnd>& first, std::string_view host) {
  std::string line = signal_name(signal) + " was forwarded to the workers; ";
  return first ? line + "rank " + std::to_string(first->rank) + " on host " + std::string(host) +
                     " ended first: " + first->text()
               : line + "all of them ended well";
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/restart_policy.hpp

/// @file
/// Whether a job that failed is started again: a pure function.

namespace DTRAIN_NAMESPACE::launch {

/// What a worker exits with that could not follow its command line or environment (see dtrain/run.hpp): the next
/// attempt could not either.
inline constexpr int exit_code_usage_error = 2;

/// --max-restarts. Attempts count from 0.
struct RestartPolicy {
  static constexpr int most_restarts = 10000;

  int max_restarts = 0;

  /// @param first the end that the attempt's end is due to
  /// @param interrupted somebody wants the job to end
  bool again(const WorkerEnd& first, int attempt, bool interrupted) const noexcept {
    return !interrupted && attempt < max_restarts && first.exit_code() != exit_code_usage_error;
  }

  /// "attempt 2 of 4 begins: WHY"
  std::string announcement(int attempt, const std::string& why) const {
    return "attempt " + std::to_string(attempt + 1) + " of " + std::to_string(max_restarts + 1) + " begins: " + why;
  }
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/job_verdict.hpp

/// @file
/// What an attempt came to on all nodes together: a pure function of how it ended on each.

namespace DTRAIN_NAMESPACE::launch {

/// The same on every launcher of the job. A record (see record.hpp).
struct JobVerdict {
  int exit_code = 0;
  bool again = false;               ///< the workers are started again
  std::vector<std::string> report;  ///< what every launcher says on stderr

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.exit_code);
    fields.flag(self.again);
    fields.texts(self.report);
  }
};

/// What the nodes fell over; null where all is well. Of several the one that the store's first cause names, then the
/// one that was told first, then that of the lowest node; ends that are nobody's fault come last.
/// @param told the rank whose failure a launcher told the others first; -1 for none
inline const NodeEnd* first_node(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause, int told) {
  const auto rank_of = [](const NodeEnd& node) { return node.first->rank; };
  const auto weight = [&](const NodeEnd& node) {
    const bool named = cause && cause->rank == rank_of(node);
    return !node.first->is_primary() ? (node.first->stopped ? 4 : 3) : named ? 0 : told == rank_of(node) ? 1 : 2;
  };
  const NodeEnd* best = nullptr;
  for (const NodeEnd& node : nodes) {
    if (node.first && (best == nullptr || weight(node) < weight(*best))) {
      best = &node;
    }
  }
  return best;
}

/// @param nodes one for each node, in order
/// @param attempt counts from 0
inline JobVerdict judge(const std::vector<NodeEnd>& nodes, const std::optional<Cause>& cause, int told,
                        const RestartPolicy& policy, int attempt) {
  int stop_signal = 0;
  bool interrupted = false;
  bool started = true;
  bool abandoned = false;
  std::vector<int> secondary;
  for (const NodeEnd& node : nodes) {
    stop_signal = stop_signal == 0 ? node.stop_signal : stop_signal;
    interrupted = interrupted || node.interrupted || node.stop_signal != 0;
    started = started && node.started;
    abandoned = abandoned || node.abandoned;
    secondary.insert(secondary.end(), node.secondary.begin(), node.secondary.end());
  }
  const NodeEnd* const node = first_node(nodes, cause, told);
  JobVerdict verdict;
  if (node != nullptr) {
    verdict.exit_code = node->first->exit_code();
  } else if (abandoned) {
    verdict.exit_code = 128 + SIGKILL;
  }
  if (stop_signal != 0 && node == nullptr && !started) {
    verdict.exit_code = 128 + stop_signal;
    verdict.report = {signal_name(stop_signal) + " came before the workers were started"};
    return verdict;
  }
  if (stop_signal != 0) {
    verdict.report = {stop_report(stop_signal, node != nullptr ? node->first : std::nullopt,
                                  node != nullptr ? node->host : std::string())};
    return verdict;
  }
  if (node != nullptr) {
    verdict.report = failure_report(*node->first, secondary, cause, node->host, node->last_lines);
    verdict.again = policy.again(*node->first, attempt, interrupted);
    if (verdict.again) {
      verdict.report.push_back(policy.announcement(attempt + 1, failure_sentence(*node->first, cause, node->host)));
    }
  }
  return verdict;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/coordination.hpp

/// @file
/// What the launcher of one node needs of the whole job.

namespace DTRAIN_NAMESPACE::launch {

/// Where this node's workers are among those of the job, and where they meet.
struct Place {
  int node_rank = 0;
  int node_count = 1;
  int first_rank = 0;
  int world_size = 1;
  std::string master_addr;
  int master_port = 0;
  std::string secret;       ///< made for this job; empty where the workers have it already
  std::string description;  ///< of a job of several nodes, on node 0: "4 ranks on 2 nodes (3 on node 0, ..."
};

/// The exit code of a launcher that fell because another one was lost.
inline constexpr int exit_code_launcher_lost = exit_code_peer_lost;

/// One launcher alone (OneNode), or together with those of other nodes (SeveralNodes). Its news set the event that it
/// was made with. Errors: assemble() and begin() throw JobFailed where another launcher is lost; to conclude() that is
/// a verdict. Threads: the loop's.
class Coordination {
 public:
  Coordination() = default;
  Coordination(const Coordination&) = delete;
  Coordination& operator=(const Coordination&) = delete;
  virtual ~Coordination() = default;

  /// Finds the others. Before everything else.
  virtual async::Task<Place> assemble() = 0;

  /// Once it has returned, ranks of this attempt can join. Attempts count from 0.
  virtual async::Task<void> begin(int attempt) = 0;

  /// The job's first cause in this attempt; nothing while the ranks are well.
  virtual std::optional<Cause> first_cause() const = 0;

  /// Whether a worker on any node has failed, or another launcher is lost: the others are to stop.
  virtual bool failing() const = 0;

  /// Whether a rank of this node, whose process has just ended, had said before that it was done.
  virtual async::Task<bool> has_left(int rank) = 0;

  /// A worker of this node has failed.
  /// @param secondary it fell over what the ranks know already; otherwise they are told, unless it had left
  virtual void failed(const Cause& loss, bool secondary) = 0;

  /// The signal that this launcher was sent to end the job, and how many of those there have been.
  virtual void stop(int signal, int count) = 0;

  /// No worker of this node runs any more. @returns the verdict once that is so on every node
  virtual async::Task<JobVerdict> conclude(NodeEnd end) = 0;

  /// Nothing comes after this attempt.
  virtual async::Task<void> leave() = 0;

  /// This launcher cannot go on; the others are told why. Instead of leave().
  virtual async::Task<void> give_up(std::string why) = 0;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/one_node.hpp

/// @file
/// The coordination of a launcher that is alone: everything is known here.

namespace DTRAIN_NAMESPACE::launch {

/// What the launcher of the job's only node knows from the start.
struct OneNodeOptions {
  int workers = 1;
  std::uint16_t port = 0;  ///< 0: one that the system chooses
  std::string host;
  std::chrono::nanoseconds formation{0};
  rendezvous::Limits limits{};
  RestartPolicy policy;
};

/// The store listens at the loopback address, and lets in who knows a secret that is drawn for this job. Lifetime: the
/// loop and the event outlive it. Threads: the loop's.
class OneNode final : public Coordination {
 public:
  /// @throws Error (posix) for a port in use
  OneNode(async::EventLoop& loop, async::AutoResetEvent& changed, OneNodeOptions options)
      : loop_(&loop), changed_(&changed), options_(std::move(options)) {
    net::Listener listener = net::Listener::bind(loop, net::Endpoint::loopback_v4(options_.port));
    const rendezvous::Secret secret = rendezvous::Secret::drawn();
    place_.secret = secret.text();
    place_.world_size = options_.workers;
    place_.master_addr = "127.0.0.1";
    place_.master_port = listener.port();
    RankStoreOptions store;
    store.world_size = options_.workers;
    store.owner = "the launcher on host " + options_.host;
    store.formation = options_.formation;
    store.on_failure = [this](const Cause&) { changed_->set(); };
    server_.emplace(loop, std::move(listener), rendezvous::ServerOptions{secret, options_.limits});
    store_.emplace(*server_, std::move(store));
  }

  async::Task<Place> assemble() override { co_return place_; }

  async::Task<void> begin(int attempt) override {
    attempt_ = attempt;
    failed_rank_ = -1;
    store_->open(attempt);
    co_return;
  }

  std::optional<Cause> first_cause() const override { return store_->cause(); }

  bool failing() const override { return first_cause().has_value(); }

  /// A rank leaves before it exits, but the store may not have read that yet.
  async::Task<bool> has_left(int rank) override {
    const Deadline deadline = Deadline::after(patience);
    while (!store_->has_left(rank) && !is_lost(rank) && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(5));
    }
    co_return store_->has_left(rank);
  }

  void failed(const Cause& loss, bool secondary) override {
    failed_rank_ = failed_rank_ < 0 ? loss.rank : failed_rank_;
    if (!secondary) {
      store_->lose(loss);
    }
  }

  void stop(int, int) override {}

  async::Task<JobVerdict> conclude(NodeEnd end) override {
    const std::vector<NodeEnd> nodes{std::move(end)};
    co_return judge(nodes, first_cause(), failed_rank_, options_.policy, attempt_);
  }

  async::Task<void> leave() override {
    server_.reset();  // nobody is left to serve; its port is free from here on
    co_return;
  }

  async::Task<void> give_up(std::string) override { return leave(); }

 private:
  static constexpr std::chrono::milliseconds patience{200};

  bool is_lost(int rank) const {
    const std::optional<Cause> cause = first_cause();
    return cause && cause->rank == rank;
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  OneNodeOptions options_;
  Place place_;
  int attempt_ = 0;
  int failed_rank_ = -1;
  std::optional<rendezvous::Server> server_;
  std::optional<RankStore> store_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/several_nodes.hpp

/// @file
/// The coordination of the launchers of several nodes, through keys of a job of their own in node 0's store.

namespace DTRAIN_NAMESPACE::launch {

/// Node 0 opens the attempts, tells what the ranks' job knows, and judges; every launcher tells of its own workers.
/// Lifetime: the loop and the event outlive it. Threads: the loop's.
class SeveralNodes final : public Coordination {
 public:
  /// @param stop_by is called when the launcher of another node was told to end the job, with the signal and how many
  /// of those it has had
  SeveralNodes(async::EventLoop& loop, async::AutoResetEvent& changed, NodeMeetingOptions options, RestartPolicy policy,
               std::function<void(int signal, int count)> stop_by)
      : loop_(&loop),
        changed_(&changed),
        policy_(policy),
        stop_by_(std::move(stop_by)),
        meeting_(loop, changed, std::move(options)) {}

  async::Task<Place> assemble() override {
    co_await meeting_.meet();
    const NodeMeetingOptions& own = meeting_.options();
    const NodeTable& table = meeting_.table();
    if (is_first()) {
      RankStoreOptions store;
      store.world_size = table.world_size();
      store.owner = "the launcher of node 0 on host " + own.host.name;
      store.formation = own.formation;
      store.on_failure = [this](const Cause& cause) { tell(keys().cause(), to_value(CauseRecord{cause})); };
      store.on_left = [this](int rank) {
        if (rank >= meeting_.table().workers.front()) {
          tell(keys().left(rank), "yes");
        }
      };
      ranks_.emplace(meeting_.server(), std::move(store));
    }
    watching_stops_ = loop_->spawn(watch_stops(), ignored());
    Place place;
    place.node_rank = own.node_rank;
    place.node_count = own.node_count;
    place.first_rank = table.first_rank(own.node_rank);
    place.world_size = table.world_size();
    place.master_addr = own.master_addr;
    place.master_port = own.master_port;
    if (is_first()) {
      place.description = to_string(table) + ", store at " + meeting_.store_text();
    }
    co_return std::move(place);
  }

  async::Task<void> begin(int attempt) override {
    attempt_ = attempt;
    cause_.reset();
    told_.reset();
    left_.clear();
    leaving_.clear();
    if (is_first()) {
      ranks_->open(attempt);
      co_await meeting_.set(keys().go(), "go");
    } else {
      co_await meeting_.get(keys().go());
      watching_cause_ = loop_->spawn(watch_cause(keys().cause()), ignored());
    }
    watching_failure_ = loop_->spawn(watch_failure(keys().failing()), ignored());
  }

  std::optional<Cause> first_cause() const override { return is_first() ? ranks_->cause() : cause_; }

  bool failing() const override { return told_.has_value() || first_cause() || meeting_.is_over(); }

  async::Task<bool> has_left(int rank) override {
    if (!is_first()) {
      leaving_.push_back(loop_->spawn(learn_left(rank, keys().left(rank)), ignored()));
    }
    const Deadline deadline = Deadline::after(patience);
    while (!knows_left(rank) && !is_lost(rank) && !meeting_.is_over() && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(2));
    }
    co_return knows_left(rank);
  }

  void failed(const Cause& loss, bool secondary) override {
    if (is_first() && !secondary) {
      ranks_->lose(loss);
    }
    if (!told_) {
      tell_first(keys().failing(), to_value(FailureRecord{CauseRecord{loss}, secondary}));
    }
  }

  void stop(int signal, int count) override {
    if (meeting_.has_met()) {
      tell_first(keys().stop(count), std::to_string(signal));
    }
  }

  async::Task<JobVerdict> conclude(NodeEnd end) override {
    try {
      const std::string own = to_value(end);
      co_await meeting_.set(keys().end(end.node), own);
      if (is_first()) {
        const JobVerdict verdict = co_await judge_all();
        co_await meeting_.set(keys().verdict(), to_value(verdict));
        co_return verdict;
      }
      const std::string value = co_await meeting_.get(keys().verdict());
      co_return from_value<JobVerdict>(value);
    } catch (const Error&) {
      if (!meeting_.is_over()) {
        throw;
      }
    }
    JobVerdict lost;
    lost.exit_code = exit_code_launcher_lost;
    lost.report = {launcher_loss(*meeting_.cause(), meeting_.store_text())};
    co_return std::move(lost);
  }

  async::Task<void> leave() override {
    stop_watching();
    co_await meeting_.part();
  }

  async::Task<void> give_up(std::string why) override {
    stop_watching();
    co_await meeting_.fail(std::move(why));
    co_await meeting_.part();
  }

 private:
  /// How long the news that a rank has left may take after its process has ended.
  static constexpr std::chrono::milliseconds patience{500};

  /// A task ends with the launchers' job; that is noticed elsewhere.
  static async::ExceptionHandler ignored() {
    return [](const std::exception_ptr&) {};
  }

  bool is_first() const noexcept { return meeting_.options().node_rank == 0; }
  LauncherKeys keys() const noexcept { return LauncherKeys(attempt_); }

  bool knows_left(int rank) const { return is_first() ? ranks_->has_left(rank) : left_.count(rank) != 0; }

  bool is_lost(int rank) const {
    const std::optional<Cause> cause = first_cause();
    return cause && cause->rank == rank;
  }

  async::Task<JobVerdict> judge_all() {
    std::vector<NodeEnd> nodes;
    for (int node = 0; node < meeting_.options().node_count; ++node) {
      const std::string value = co_await meeting_.get(keys().end(node));
      nodes.push_back(from_value<NodeEnd>(value));
    }
    const int told = told_ ? told_->cause.cause.rank : -1;
    co_return judge(nodes, first_cause(), told, policy_, attempt_);
  }

  void stop_watching() {
    watching_stops_.cancel();
    watching_cause_.cancel();
    watching_failure_.cancel();
    leaving_.clear();
  }

  void tell(std::string key, std::string value) {
    loop_->spawn_detached(meeting_.set(std::move(key), std::move(value)), ignored());
    changed_->set();
  }

  /// The same, where the first one counts.
  void tell_first(std::string key, std::string value) {
    loop_->spawn_detached(meeting_.set_first(std::move(key), std::move(value)), ignored());
  }

  async::Task<void> watch_stops() {
    for (int count = 1;; ++count) {
      const std::string told = co_await meeting_.get(keys().stop(count));
      const int signal = identity::parse_integer(told).value_or(SIGTERM);
      const bool ends_jobs = signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
      stop_by_(ends_jobs ? signal : SIGTERM, count);
    }
  }

  async::Task<void> watch_cause(std::string key) {
    const std::string value = co_await meeting_.get(std::move(key));
    cause_ = from_value<CauseRecord>(value).cause;
    changed_->set();
  }

  async::Task<void> watch_failure(std::string key) {
    const std::string value = co_await meeting_.get(std::move(key));
    told_ = from_value<FailureRecord>(value);
    if (is_first() && !told_->secondary) {
      ranks_->lose(told_->cause.cause);
    }
    changed_->set();
  }

  async::Task<void> learn_left(int rank, std::string key) {
    co_await meeting_.get(std::move(key));
    left_.insert(rank);
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  RestartPolicy policy_;
  std::function<void(int, int)> stop_by_;
  NodeMeeting meeting_;
  std::optional<RankStore> ranks_;  ///< node 0's
  int attempt_ = 0;
  std::optional<Cause> cause_;         ///< as node 0 told it
  std::optional<FailureRecord> told_;  ///< what a launcher told first
  std::set<int> left_;
  std::vector<async::Spawned> leaving_;
  async::Spawned watching_stops_;  ///< the tasks come last: they are gone before what they use
  async::Spawned watching_cause_;
  async::Spawned watching_failure_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/worker.hpp

/// @file
/// launch::Worker: a process that is a rank, and how it came to know.

namespace DTRAIN_NAMESPACE::launch {

/// A value; it needs nothing of what it was made from.
struct Worker {
  identity::ProcessIdentity identity;
  ArgumentVector argument_vector;  ///< without what launchers add
  bool hosts_store = false;        ///< the job's store is this process's to run
  std::optional<std::string> host_id_override;
  std::optional<std::string> interface;      ///< where a store of this process's listens: a name or an address
  std::optional<rendezvous::Secret> secret;  ///< of the job, where it has one
  std::chrono::nanoseconds timeout = default_timeout;    ///< of a collective and of the rendezvous
  std::chrono::nanoseconds liveness = default_liveness;  ///< how long a silent peer counts as alive

  /// argv; [0] is the program's name. Lifetime: as long as a copy of this Worker lives.
  std::span<char* const> arguments() const noexcept { return argument_vector.view(); }
};

/// What a launcher's start() comes to: a worker, or the code that this process is to exit with.
struct Start {
  explicit Start(Worker rank) : worker(std::move(rank)) {}
  explicit Start(int code) noexcept : exit_code(code) {}

  std::optional<Worker> worker;
  int exit_code = 0;
};

/// How a process joins a job that somebody else started. What is not given is read from the environment.
struct JoinOptions {
  std::optional<identity::ProcessIdentity> identity;
  std::optional<std::chrono::nanoseconds> timeout;
  std::vector<std::string> arguments;  ///< argv, where a launcher may have left --local_rank=N in it
};

namespace detail {

/// Without --local_rank=N, which torch.distributed.launch and DeepSpeed add to every program.
inline std::vector<std::string> without_local_rank(const std::vector<std::string>& arguments) {
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      kept.insert(kept.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
      break;
    }
    const std::size_t equals = argument.find('=');
    if (i == 0 || !identity::detail::is_local_rank_flag(std::string_view(argument).substr(0, equals))) {
      kept.push_back(argument);
    } else if (equals == std::string::npos) {
      ++i;
    }
  }
  return kept;
}

inline Worker worker_with(identity::ProcessIdentity who, const identity::Variables& variables) {
  Worker worker;
  worker.identity = std::move(who);
  worker.host_id_override = variables.text("DTRAIN_HOST_ID");
  worker.interface = variables.text("DTRAIN_INTERFACE");
  worker.secret = secret_setting(variables);
  worker.timeout = seconds_setting(variables, "DTRAIN_TIMEOUT_SECONDS", default_timeout);
  worker.liveness = seconds_setting(variables, "DTRAIN_LIVENESS_SECONDS", default_liveness);
  return worker;
}

}  // namespace detail

/// The worker that this process's environment describes; rank 0 hosts the store, and says on stderr what was
/// read where there is more to say than one process alone. Closed standard descriptors become /dev/null.
/// @throws identity::IdentityError; Error (usage) for a setting that cannot be, or a flag of PerNode's launcher
inline Worker worker_of(JoinOptions options) {
  open_standard_descriptors();
  const identity::Environment environment = identity::snapshot_environment();
  check_log_setting(identity::Variables(environment));
  refuse_launcher_flags(options.arguments);
  std::vector<const char*> pointers;
  for (const std::string& argument : options.arguments) {
    pointers.push_back(argument.c_str());
  }
  Worker worker = detail::worker_with(
      options.identity ? std::move(*options.identity) : identity::process_identity(environment, pointers),
      identity::Variables(environment));
  worker.argument_vector = ArgumentVector(detail::without_local_rank(options.arguments));
  worker.hosts_store = worker.identity.rank == 0;
  worker.timeout = options.timeout.value_or(worker.timeout);
  if (worker.identity.rank == 0 && (worker.identity.world_size > 1 || !worker.identity.warnings.empty())) {
    log(LogLevel::warning, to_string(worker.identity));
  }
  return worker;
}

/// The worker that launch::PerNode's launcher made of this process; the launcher hosts the store.
/// @throws as worker_of
inline Worker worker_of_launcher(const identity::Environment& environment, std::vector<std::string> arguments) {
  const identity::Variables variables(environment);
  Worker worker = detail::worker_with(identity::DtrainSource::read(variables, {}), variables);
  worker.argument_vector = ArgumentVector(std::move(arguments));
  return worker;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/launcher.hpp

/// @file
/// The contract of a launcher: how the processes of a job come to be, the first type of a Policy.

namespace DTRAIN_NAMESPACE::launch {

/// `L::start(argc, argv)`: in a process that is a rank, a Worker; in every other, the exit code, with everything
/// explained on stderr. Blocking: in a launcher process, until its workers have ended.
template <class L>
concept CanStart = requires(int argc, char** argv) {
  { L::start(argc, argv) } -> std::same_as<Start>;
};

/// `L::name()`: for messages.
template <class L>
concept HasName = requires {
  { L::name() } -> std::convertible_to<std::string_view>;
};

/// `L::returns_into_user_code`: whether every process that calls start() becomes a rank. Where one does not (it stays
/// the launcher), only dtrain::run can be used.
template <class L>
concept StatesWhoReturns = requires {
  { L::returns_into_user_code } -> std::convertible_to<bool>;
};

template <class L>
concept Launcher = CanStart<L> && HasName<L> && StatesWhoReturns<L>;

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/participation.hpp

/// @file
/// From a worker's identity to its place at the rendezvous.

namespace DTRAIN_NAMESPACE::launch {

/// At least as long, and short enough to be counted with.
inline std::chrono::milliseconds in_milliseconds(std::chrono::nanoseconds time) {
  constexpr std::chrono::nanoseconds longest = std::chrono::hours(24 * 365 * 100);
  return std::chrono::ceil<std::chrono::milliseconds>(std::min(time, longest));
}

/// What is certain is stated, so that the rendezvous checks it; what is provisional is left for it to compute.
/// @param agreed what must be the same on all ranks (rendezvous/agreed_terms.hpp)
/// @throws Error (identity) where several ranks have no address to meet at.
inline rendezvous::ParticipantOptions participant_options(const Worker& worker, std::string agreed = {}) {
  const identity::ProcessIdentity& who = worker.identity;
  const auto certain = [&who](const char* field, const std::optional<int>& value) {
    return who.is_provisional(field) ? std::nullopt : value;
  };
  if (who.world_size > 1 && (!who.master_addr || !who.master_port)) {
    throw Error(Errc::identity, "rank " + std::to_string(who.rank) + " of " + std::to_string(who.world_size) +
                                    " does not know where the job meets; set MASTER_ADDR and MASTER_PORT to an address "
                                    "of rank 0's host and a free port there");
  }
  rendezvous::ParticipantOptions options;
  options.rank = who.rank;
  options.world_size = who.world_size;
  options.local_rank = certain("local_rank", who.local_rank);
  options.local_world_size = certain("local_world_size", who.local_world_size);
  options.node_rank = certain("node_rank", who.node_rank);
  options.node_count = certain("node_count", who.node_count);
  options.master_host = who.master_addr.value_or("127.0.0.1");
  options.master_port = static_cast<std::uint16_t>(who.master_port.value_or(identity::default_master_port));
  options.host_store = worker.hosts_store;
  options.timeout = in_milliseconds(worker.timeout);
  options.secret = worker.secret;
  options.generation = static_cast<std::uint64_t>(who.attempt);
  if (who.job && who.master_addr) {  // torchrun's port may be taken by another torchrun; its name may be "none"
    options.job = *who.job + "@" + *who.master_addr + ":" + std::to_string(options.master_port);
    options.master_ports = static_cast<std::uint16_t>(std::min(16, 65536 - int{options.master_port}));
  }
  options.limits.liveness = in_milliseconds(worker.liveness);
  options.host_id = worker.host_id_override;
  options.interface = worker.interface;
  options.agreed = std::move(agreed);
  return options;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/per_process.hpp

/// @file
/// launch::PerProcess: somebody else starts one process for each rank; the environment says which one this is.

namespace DTRAIN_NAMESPACE::launch {

/// For torchrun, mpirun, srun, Kubernetes, or a script that sets RANK and WORLD_SIZE. Rank 0's process hosts the store.
struct PerProcess {
  static constexpr bool returns_into_user_code = true;

  static constexpr const char* name() noexcept { return "launch::PerProcess"; }

  /// A Worker, or exit code 2 with a sentence on stderr. Blocking: no.
  static Start start(int argc, char** argv) {
    try {
      JoinOptions options;
      options.arguments = std::vector<std::string>(argv, argv + argc);
      return Start(worker_of(std::move(options)));
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
      return Start(2);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/worker_environment.hpp

/// @file
/// The environment that the per-node launcher gives its workers: pure, and how one recognises itself in it.

namespace DTRAIN_NAMESPACE::launch {

/// What a node's workers share.
struct NodePlan {
  int workers = 1;
  int first_rank = 0;  ///< the workers of lower nodes
  int world_size = 1;  ///< the workers of all nodes
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr;
  int master_port = 0;
  std::string secret;               ///< of the job's store
  int attempt = 0;                  ///< how often the workers have been started before
  int cores = 1;                    ///< of this node, for all workers
  std::string launcher_process;     ///< its process id
  bool stdout_is_terminal = false;  ///< the launcher's own
  bool stderr_is_terminal = false;
};

namespace detail {

/// What would make every worker look like the one process that an MPI or torchrun started here.
inline bool describes_the_launcher(std::string_view variable) noexcept {
  constexpr std::array<std::string_view, 4> prefixes{"OMPI_COMM_WORLD_", "PMI", "MV2_", "TORCHELASTIC_"};
  return variable == "DTRAIN_LAUNCHER" || std::any_of(prefixes.begin(), prefixes.end(), [&](std::string_view prefix) {
           return variable.substr(0, prefix.size()) == prefix;
         });
}

}  // namespace detail

/// `base`, the launcher's own environment, made one worker's.
inline identity::Environment worker_environment(const identity::Environment& base, const NodePlan& plan,
                                                int local_rank) {
  identity::Environment environment;
  for (const auto& [variable, value] : base) {
    if (!detail::describes_the_launcher(variable)) {
      environment.emplace(variable, value);
    }
  }
  const std::array<std::pair<const char*, std::string>, 7> common{{
      {"RANK", std::to_string(plan.first_rank + local_rank)},
      {"WORLD_SIZE", std::to_string(plan.world_size)},
      {"LOCAL_RANK", std::to_string(local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(plan.workers)},
      {"NODE_RANK", std::to_string(plan.node_rank)},
      {"MASTER_ADDR", plan.master_addr},
      {"MASTER_PORT", std::to_string(plan.master_port)},
  }};
  for (const auto& [variable, value] : common) {
    environment[variable] = value;
    environment[std::string("DTRAIN_") + variable] = value;
  }
  environment["DTRAIN_NODE_COUNT"] = std::to_string(plan.node_count);
  environment["DTRAIN_ATTEMPT"] = std::to_string(plan.attempt);
  environment["DTRAIN_LAUNCHER_PROCESS"] = plan.launcher_process;
  environment["DTRAIN_STDOUT_IS_TERMINAL"] = plan.stdout_is_terminal ? "1" : "0";
  environment["DTRAIN_STDERR_IS_TERMINAL"] = plan.stderr_is_terminal ? "1" : "0";
  if (!plan.secret.empty()) {
    environment["DTRAIN_SECRET"] = plan.secret;
    environment.erase("DTRAIN_SECRET_FILE");
  }
  if (std::string& threads = environment["OMP_NUM_THREADS"]; threads.empty()) {
    threads = std::to_string(std::max(1, plan.cores / plan.workers));
  }
  return environment;
}

/// The environment of a launcher that a worker of another job started: without what says who that worker is.
inline identity::Environment without_outer_job(const identity::Environment& environment) {
  if (environment.count("DTRAIN_LAUNCHER_PROCESS") == 0) {
    return environment;
  }
  identity::Environment outside = environment;
  for (const std::string name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "NODE_COUNT",
                                 "MASTER_ADDR", "MASTER_PORT", "LAUNCHER_PROCESS", "ATTEMPT"}) {
    outside.erase(name);
    outside.erase("DTRAIN_" + name);
  }
  return outside;
}

/// Whether this is the environment of a worker that `parent`, a process id, started itself: a program that a worker
/// starts in turn inherits the variables but not the parent.
inline bool is_worker_environment(const identity::Environment& environment, long parent) {
  const identity::Variables variables(environment);
  return variables.has("DTRAIN_RANK") && variables.text("DTRAIN_LAUNCHER_PROCESS") == std::to_string(parent);
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/workers.hpp

/// @file
/// The worker processes of one launcher: their signals, their ends, their output.

namespace DTRAIN_NAMESPACE::launch {

/// Owns what it is given; processes that still run when it is destroyed are killed and reaped, with all that is in
/// their groups. Threads: the loop's.
class Workers {
 public:
  struct Ended {
    int rank = 0;
    ExitStatus status;
  };

  explicit Workers(async::EventLoop& loop) noexcept : loop_(&loop) {}
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  /// Blocking: until the processes are reaped, a second at most: one that the kernel or a debugger holds is left to it.
  ~Workers() {
    signal_groups(SIGKILL);
    const Deadline deadline = Deadline::after(std::chrono::seconds(1));
    for (const Worker& worker : workers_) {
      while (worker.process > 0 && ::waitpid(worker.process, nullptr, WNOHANG) == 0 && !deadline.passed()) {
        static_cast<void>(::poll(nullptr, 0, 1));
      }
    }
  }

  /// Takes over a process that leads its own group, and starts to carry what it writes.
  /// @param input may be null
  void add(int rank, pid_t process, std::unique_ptr<LineRelay> output, std::unique_ptr<LineRelay> error,
           std::unique_ptr<InputPump> input) {
    Worker worker;
    worker.rank = rank;
    worker.process = process;
    worker.group = process;
    worker.output = std::move(output);
    worker.error = std::move(error);
    worker.input = std::move(input);
    workers_.push_back(std::move(worker));  // from here on it ends with this
    Worker& added = workers_.back();
    added.tasks.push_back(loop_->spawn(added.output->carry()));
    added.tasks.push_back(loop_->spawn(added.error->carry()));
    if (added.input) {
      added.tasks.push_back(loop_->spawn(added.input->carry()));
    }
  }

  std::size_t running() const noexcept {
    return static_cast<std::size_t>(
        std::count_if(workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.process > 0; }));
  }

  /// Sends a signal to each worker, not to what it has started.
  void signal_each(int signal) const noexcept { send(signal, 1); }

  /// Sends a signal to each worker's group, as a terminal would, and to a worker that has moved to another group.
  void signal_groups(int signal) const noexcept { send(signal, -1); }

  /// Reaps every child that has ended, also those that a worker left to this process (it is their subreaper), and kills
  /// what an ended worker leaves in its group. Blocking: no.
  std::vector<Ended> reap() {
    std::vector<Ended> ended;
    for (;;) {
      siginfo_t info{};
      const int result = ::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT);
      if (result != 0 && errno == EINTR) {
        continue;
      }
      if (result != 0 || info.si_pid == 0) {
        return ended;
      }
      const auto worker = std::find_if(workers_.begin(), workers_.end(),
                                       [&info](const Worker& each) { return each.process == info.si_pid; });
      if (worker != workers_.end()) {
        // While it is a zombie its number can belong to no other group.
        static_cast<void>(::kill(-worker->process, SIGKILL));
        worker->process = 0;
        ended.push_back({worker->rank, ExitStatus::of(info)});
      }
      while (::waitpid(info.si_pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
  }

  /// Whether nothing is left of the groups of the workers that have ended: a process that was killed takes a moment to
  /// go, and stays a zombie until it is reaped. Blocking: no.
  bool groups_are_gone() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
      return worker.process > 0 || (::kill(-worker.group, 0) != 0 && errno == ESRCH);
    });
  }

  /// Whether all that the workers have written is on its way to the console.
  bool output_is_drained() const noexcept {
    return std::all_of(workers_.begin(), workers_.end(),
                       [](const Worker& worker) { return worker.output->is_drained() && worker.error->is_drained(); });
  }

  /// Stops carrying, and shows last lines that have no end.
  void finish_output() {
    for (Worker& worker : workers_) {
      worker.tasks.clear();
      worker.output->finish();
      worker.error->finish();
    }
  }

  /// The last lines that a worker wrote to stderr.
  const Tail& error_tail(int rank) const {
    return std::find_if(workers_.begin(), workers_.end(), [rank](const Worker& each) { return each.rank == rank; })
        ->error->tail();
  }

 private:
  struct Worker {
    int rank = 0;
    pid_t process = 0;  ///< 0 once it is reaped
    pid_t group = 0;    ///< the number that it had
    std::unique_ptr<LineRelay> output;
    std::unique_ptr<LineRelay> error;
    std::unique_ptr<InputPump> input;
    std::vector<async::Spawned> tasks;  ///< destroyed before what they use
  };

  void send(int signal, int sign) const noexcept {
    for (const Worker& worker : workers_) {
      if (worker.process > 0) {
        static_cast<void>(::kill(sign * worker.process, signal));  // one that has just ended is a zombie: no error
        if (sign < 0 && ::getpgid(worker.process) != worker.process) {
          static_cast<void>(::kill(worker.process, signal));
        }
      }
    }
  }

  async::EventLoop* loop_;
  std::vector<Worker> workers_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/forwarder.hpp

/// @file
/// Passes the launcher's signals on to the workers of the present attempt.

namespace DTRAIN_NAMESPACE::launch {

/// Reads signals from its construction to its destruction, also between attempts. Lifetime: what it is given outlives
/// it. Threads: the loop's.
class Forwarder {
 public:
  /// @param changed is set at every signal, SIGCHLD included
  Forwarder(async::EventLoop& loop, SignalReader& signals, async::AutoResetEvent& changed)
      : loop_(&loop), signals_(&signals), changed_(&changed), reading_(loop.spawn(read_all())) {}
  Forwarder(const Forwarder&) = delete;
  Forwarder& operator=(const Forwarder&) = delete;

  /// Who gets the signals from now on; null for nobody. Lifetime: until the next call.
  void forward_to(const Workers* workers) noexcept { workers_ = workers; }

  /// Called with SIGINT or SIGTERM, and how often one of them has come, for each that this process was sent.
  void on_stop(std::function<void(int signal, int count)> handler) { on_stop_ = std::move(handler); }

  /// The launcher of another node was sent SIGINT or SIGTERM, its `count`-th. Where this one has had as many, as when
  /// a batch system tells all of them at once, it is the same request.
  void stop_by(int signal, int count) {
    told_stops_ = std::max(told_stops_, count);
    if (count > own_stops_) {
      note_stop(signal);
      pass_on(signal);
      changed_->set();
    }
  }

  /// The first SIGINT or SIGTERM; 0 while none has come.
  int stop_signal() const noexcept { return stop_signal_; }

  /// How often SIGINT or SIGTERM has come to the one launcher of the job that was sent it most often.
  int stops_asked() const noexcept { return std::max(own_stops_, told_stops_); }

  /// Whether somebody wants the job to end: by SIGINT, SIGTERM, SIGHUP or SIGQUIT.
  bool interrupted() const noexcept { return interrupted_; }

 private:
  async::Task<void> read_all() {
    for (;;) {
      co_await loop_->readable(signals_->descriptor(), Deadline::after(std::chrono::hours(1)));
      while (const std::optional<int> signal = signals_->next()) {
        if (*signal != SIGCHLD) {
          take(*signal);
        }
      }
      changed_->set();
    }
  }

  void take(int signal) {
    pass_on(signal);
    interrupted_ = interrupted_ || signal == SIGHUP || signal == SIGQUIT;
    if (signal == SIGTERM || signal == SIGINT) {
      note_stop(signal);
      ++own_stops_;
      if (on_stop_) {
        on_stop_(signal, own_stops_);
      }
    }
    if (signal == SIGTSTP) {
      static_cast<void>(::kill(::getpid(), SIGSTOP));  // SIGTSTP is blocked here; a shell wants to see its job stopped
    }
  }

  void note_stop(int signal) noexcept {
    stop_signal_ = stop_signal_ == 0 ? signal : stop_signal_;
    interrupted_ = true;
  }

  /// What a terminal sends to a whole group goes to each worker's whole group; the others to the worker, which decides.
  void pass_on(int signal) const noexcept {
    constexpr std::array<int, 3> single{SIGTERM, SIGUSR1, SIGUSR2};
    if (workers_ == nullptr) {
      return;
    }
    if (std::find(single.begin(), single.end(), signal) != single.end()) {
      workers_->signal_each(signal);
    } else {
      workers_->signal_groups(signal);
    }
  }

  async::EventLoop* loop_;
  SignalReader* signals_;
  async::AutoResetEvent* changed_;
  const Workers* workers_ = nullptr;
  std::function<void(int, int)> on_stop_;
  int stop_signal_ = 0;
  int own_stops_ = 0;
  int told_stops_ = 0;  ///< of the launcher of another node
  bool interrupted_ = false;
  async::Spawned reading_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/supervisor.hpp

/// @file
/// Watches over the workers of one attempt from their start to the end of the last one.

namespace DTRAIN_NAMESPACE::launch {

/// Ends the others when one worker fails, here or on another node. An attempt whose workers end within a second of
/// SIGTERM or SIGKILL is over 1.3 s after the first failure. Lifetime: everything it is given outlives it.
/// Threads: the loop's.
class Supervisor {
 public:
  /// @param changed is set by the forwarder and the coordination
  Supervisor(async::EventLoop& loop, async::AutoResetEvent& changed, const Forwarder& forwarder, Workers& workers,
             Coordination& job, StopPlan plan, std::string host)
      : loop_(&loop),
        changed_(&changed),
        forwarder_(&forwarder),
        workers_(&workers),
        job_(&job),
        host_(std::move(host)),
        plan_(std::move(plan)) {}
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  /// Until no worker runs, nor what workers left in their groups.
  async::Task<void> watch() {
    for (;;) {
      const std::vector<Workers::Ended> ended = workers_->reap();
      for (const Workers::Ended& each : ended) {
        co_await note(each);
      }
      if (workers_->running() == 0) {
        break;
      }
      const Deadline::Clock::time_point now = Deadline::Clock::now();
      take_news(now);
      act(plan_.due(now));
      if (killed_at_ && now - *killed_at_ > unkillable_patience) {
        break;  // a process that the kernel holds; it dies when it is let go
      }
      const auto longest = now + (killed_at_ ? Deadline::Clock::duration(std::chrono::milliseconds(50))
                                             : Deadline::Clock::duration(std::chrono::hours(1)));
      co_await changed_->wait(earlier(Deadline::at(plan_.next().value_or(longest)), Deadline::at(longest)));
    }
    co_await bury_orphans();
  }

  /// How the workers ended, in the order in which that was noticed.
  const std::vector<WorkerEnd>& ends() const noexcept { return ends_; }

  /// Whether a process was killed and did not go.
  bool abandoned() const noexcept { return killed_at_.has_value() && workers_->running() != 0; }

 private:
  static constexpr std::chrono::milliseconds unkillable_patience{300};

  /// What the workers left in their groups has been killed, and becomes this process's children one by one.
  async::Task<void> bury_orphans() {
    const Deadline deadline = Deadline::after(unkillable_patience);
    while (!workers_->groups_are_gone() && !deadline.passed()) {
      co_await loop_->sleep_for(std::chrono::milliseconds(1));
      static_cast<void>(workers_->reap());
    }
  }

  async::Task<void> note(Workers::Ended ended) {
    WorkerEnd end;
    end.rank = ended.rank;
    end.status = ended.status;
    end.stopped = plan_.has_acted();
    if (ended.status == ExitStatus{}) {
      end.left = co_await job_->has_left(ended.rank);
    }
    ends_.push_back(end);
    if (!end.failed()) {
      co_return;
    }
    plan_.failed(Deadline::Clock::now());
    const Cause loss{CauseKind::lost, end.rank, host_, end.text()};
    job_->failed(loss, end.is_secondary());
  }

  void take_news(Deadline::Clock::time_point now) {
    for (; stops_noted_ < forwarder_->stops_asked(); ++stops_noted_) {
      plan_.stop_asked(now);
    }
    if (job_->failing()) {
      plan_.failed(now);
    }
  }

  void act(StopPlan::Action action) {
    if (action == StopPlan::Action::terminate) {
      workers_->signal_each(SIGTERM);
    } else if (action == StopPlan::Action::kill) {
      workers_->signal_groups(SIGKILL);
      killed_at_ = Deadline::Clock::now();
    }
  }

  async::EventLoop* loop_;
  async::AutoResetEvent* changed_;
  const Forwarder* forwarder_;
  Workers* workers_;
  Coordination* job_;
  std::string host_;
  StopPlan plan_;
  int stops_noted_ = 0;
  std::vector<WorkerEnd> ends_;
  std::optional<Deadline::Clock::time_point> killed_at_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/attempt.hpp

/// @file
/// One attempt on one node: its workers from their start to the end of their output.

namespace DTRAIN_NAMESPACE::launch {

/// What is started, for every attempt.
struct WorkerProgram {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments;
  identity::Environment environment;
  std::optional<std::string> log_dir;
};

/// DIR for the first attempt, DIR/attempt-K for the K-th restart: nothing is overwritten.
inline std::string log_directory(const std::string& directory, int attempt) {
  return attempt == 0 ? directory : directory + "/attempt-" + std::to_string(attempt);
}

/// What an attempt uses of its launcher. Lifetime: outlives the attempt.
struct AttemptServices {
  async::EventLoop& loop;
  async::AutoResetEvent& changed;
  const SignalReader& signals;
  Forwarder& forwarder;
  TerminalOutput& output;
  Coordination& job;
};

/// Threads: the loop's, which is the main thread of a process that has no other.
class Attempt {
 public:
  /// @throws Error (posix) where the directory of --log-dir cannot be made
  Attempt(const AttemptServices& services, const WorkerProgram& program, const NodePlan& plan)
      : services_(services), program_(&program), plan_(&plan), workers_(services.loop) {
    if (program.log_dir) {
      log_directory_ = log_directory(*program.log_dir, plan.attempt);
      make_directories(*log_directory_);
    }
    services_.forwarder.forward_to(&workers_);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() { services_.forwarder.forward_to(nullptr); }

  /// Starts the workers, fewer where the job is told to end meanwhile. The loop runs between them: other launchers are
  /// to hear from this one. @throws Error (posix) where one cannot be started, or a file of --log-dir not be written
  async::Task<void> start() {
    const async::Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) {
      throw errno_error("opening /dev/null for the workers' stdin");
    }
    for (int local_rank = 0; local_rank < plan_->workers && services_.forwarder.stops_asked() == 0; ++local_rank) {
      start_worker(local_rank, nothing.get());
      co_await services_.loop.sleep_for(std::chrono::milliseconds(0));
    }
  }

  /// Until no worker runs and what they wrote last has been read. @returns how it ended, but for where and the signals
  async::Task<NodeEnd> supervise(StopPlan stop_plan, std::string host) {
    Supervisor supervisor(services_.loop, services_.changed, services_.forwarder, workers_, services_.job,
                          std::move(stop_plan), std::move(host));
    co_await supervisor.watch();
    services_.forwarder.forward_to(nullptr);
    stops_before_end_ = services_.forwarder.stops_asked();
    const Deadline deadline = Deadline::after(last_words);
    while (!workers_.output_is_drained() && !deadline.passed() && !told_to_hurry()) {
      co_await services_.loop.sleep_for(std::chrono::milliseconds(1));
    }
    NodeEnd end;
    end.first = first_failure(supervisor.ends(), services_.job.first_cause());
    end.abandoned = supervisor.abandoned();
    for (const WorkerEnd& each : supervisor.ends()) {
      if (each.is_secondary()) {
        end.secondary.push_back(each.rank);
      }
    }
    if (end.first) {
      const Tail& tail = workers_.error_tail(end.first->rank);
      end.last_lines.assign(tail.lines().begin(), tail.lines().end());
    }
    co_return std::move(end);
  }

  /// Whether SIGINT or SIGTERM has come since the last worker ended: nobody waits for the output any more.
  bool told_to_hurry() const noexcept { return services_.forwarder.stops_asked() != stops_before_end_; }

  /// Whether all that the workers have written is on its way to the console.
  bool output_is_drained() const noexcept { return workers_.output_is_drained(); }

  /// Stops carrying, and shows last lines that have no end.
  void finish_output() { workers_.finish_output(); }

 private:
  /// How long the last lines may take to come where the console does not keep up.
  static constexpr std::chrono::milliseconds last_words{200};

  void start_worker(int local_rank, int nothing) {
    const int rank = plan_->first_rank + local_rank;
    Pipe output = make_pipe();
    Pipe error = make_pipe();
    Pipe input = local_rank == 0 ? make_pipe() : Pipe{};
    auto output_relay = relay(rank, std::move(output.reader), services_.output.output(), "stdout");
    auto error_relay = relay(rank, std::move(error.reader), services_.output.error(), "stderr");
    auto pump =
        local_rank == 0 ? std::make_unique<InputPump>(services_.loop, STDIN_FILENO, std::move(input.writer)) : nullptr;
    SpawnRequest request;
    request.executable = program_->executable;
    request.arguments = program_->arguments;
    request.environment = worker_environment(program_->environment, *plan_, local_rank);
    request.standard_input = local_rank == 0 ? input.reader.get() : nothing;
    request.standard_output = output.writer.get();
    request.standard_error = error.writer.get();
    request.signal_mask = services_.signals.original_mask();
    const pid_t process = spawn(request);
    workers_.add(rank, process, std::move(output_relay), std::move(error_relay), std::move(pump));
  }

  std::unique_ptr<LineRelay> relay(int rank, async::Descriptor pipe, Console& console, const char* stream) const {
    LogFile log;
    if (log_directory_) {
      log = LogFile(*log_directory_ + "/rank-" + std::to_string(rank) + "." + stream);
    }
    const bool is_live = rank == plan_->first_rank;
    return std::make_unique<LineRelay>(services_.loop, std::move(pipe), console, rank, is_live, std::move(log));
  }

  AttemptServices services_;
  const WorkerProgram* program_;
  const NodePlan* plan_;
  std::optional<std::string> log_directory_;
  Workers workers_;
  int stops_before_end_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/job_options.hpp

/// @file
/// What a launcher is to do: a pure function of its flags and its environment.

namespace DTRAIN_NAMESPACE::launch {

/// What is started, `workers` times, and with whom.
struct NodeJobOptions {
  WorkerProgram program;
  identity::NodeIdentity node;
  std::string node_source;  ///< what says how many nodes there are: "RANK='0', WORLD_SIZE='2'"
  int workers = 1;
  int cores = 1;
  int max_restarts = 0;
  std::chrono::nanoseconds formation = default_timeout;
  std::chrono::nanoseconds liveness = default_liveness;
  std::chrono::nanoseconds stop_grace = StopPlan::default_stop_grace;
  std::optional<std::string> host_id;
  std::optional<rendezvous::Secret> secret;  ///< of several nodes
  std::optional<std::string> interface;      ///< where the store of several nodes listens: a name or an address
};

namespace detail {

inline constexpr int most_workers = 4096;

/// How many workers --nproc-per-node asks for; 1 where it is not given. @throws Error (usage)
inline int worker_count(const std::optional<std::string>& given, int cores) {
  if (!given) {
    return 1;
  }
  if (*given == "auto") {
    return cores;
  }
  const int count = identity::parse_integer(*given).value_or(0);
  if (count < 1 || count > most_workers) {
    throw Error(Errc::usage, identity::quoted("--nproc-per-node", *given) + " is not a number of workers from 1 to " +
                                 std::to_string(most_workers) + ", or auto");
  }
  return count;
}

/// What says how many nodes there are, for a sentence.
inline std::string node_source(const identity::NodeFlags& flags, const identity::Environment& environment,
                               const identity::NodeIdentity& node) {
  if (flags.node_count) {
    return identity::quoted("--nnodes", *flags.node_count);
  }
  const identity::Variables variables(environment);
  const bool torch = node.launcher == "torch" || node.launcher == "k8s";
  const std::string stated =
      node.launcher == "node"
          ? variables.stated({"DTRAIN_NODE_RANK", "DTRAIN_NODE_COUNT", "NODE_RANK", "AZUREML_NODE_COUNT", "NNODES"})
      : node.launcher == "pet" ? variables.stated({"PET_NODE_RANK", "PET_NNODES"})
      : torch                  ? variables.stated({"RANK", "WORLD_SIZE", "JOB_COMPLETION_INDEX"})
              : variables.stated({"DTRAIN_RANK", "DTRAIN_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                  "PMI_RANK", "PMI_SIZE", "SLURM_NODEID", "SLURM_STEP_NUM_NODES", "TF_CONFIG",
                                  "CLUSTER_SPEC", "SM_HOSTS"});
  return stated.empty() ? "the environment of " + node.launcher : stated;
}

/// Who this node is. What the environment says of a process is taken for the node here, so where that is incomplete the
/// sentence also says how to ignore it. @throws Error (identity, usage)
inline identity::NodeIdentity node_of(const identity::Environment& environment, const identity::NodeFlags& flags) {
  using identity::IdentityErrc;
  try {
    return identity::node_identity(environment, flags);
  } catch (const identity::IdentityError& error) {
    const IdentityErrc reason = error.reason();
    const bool stray = reason == IdentityErrc::no_rank || reason == IdentityErrc::no_world_size ||
                       reason == IdentityErrc::no_master_addr || reason == IdentityErrc::conflict_rank ||
                       reason == IdentityErrc::rank_out_of_range;
    if (!stray || flags.node_count) {
      throw;
    }
    const std::string stated =
        identity::Variables(environment).stated({"RANK", "WORLD_SIZE", "NODE_RANK", "NNODES", "PET_NNODES"});
    throw Error(Errc::identity, std::string(error.what()) + " (launch::PerNode reads " +
                                    (stated.empty() ? "this environment" : stated) +
                                    " for the whole node; if there is only this node, give --nnodes=1)");
  }
}

/// The secret that the launchers of several nodes share. @throws Error (usage) where there is none
inline std::optional<rendezvous::Secret> secret_of_nodes(const identity::Variables& variables,
                                                         const NodeJobOptions& options) {
  if (options.node.node_count == 1) {
    return std::nullopt;
  }
  std::optional<rendezvous::Secret> secret = secret_setting(variables);
  if (!secret) {
    throw Error(Errc::usage,
                "this is node " + std::to_string(options.node.node_rank) + " of " +
                    std::to_string(options.node.node_count) + " (from " + options.node_source +
                    "), and the launchers of several nodes need a secret that they share: make one with "
                    "DTRAIN_SECRET=$(openssl rand -hex 32) and start every node with it, or put it into a file that "
                    "DTRAIN_SECRET_FILE names; if there is only this node, give --nnodes=1");
  }
  return secret;
}

}  // namespace detail

/// @param cores how many this process may use
/// @throws Error (usage, identity). Blocking: reads the secret's file
inline NodeJobOptions node_job_options(Flags flags, const identity::Environment& environment, int cores) {
  const identity::Variables variables(environment);
  check_log_setting(variables);
  NodeJobOptions options;
  options.node = detail::node_of(environment, flags.node);
  options.node_source = detail::node_source(flags.node, environment, options.node);
  options.cores = cores;
  options.workers = detail::worker_count(options.node.nproc_per_node, cores);
  options.max_restarts = flags.max_restarts;
  options.formation = seconds_setting(variables, "DTRAIN_TIMEOUT_SECONDS", default_timeout);
  options.liveness = seconds_setting(variables, "DTRAIN_LIVENESS_SECONDS", default_liveness);
  options.stop_grace = seconds_setting(variables, "DTRAIN_GRACE_SECONDS", StopPlan::default_stop_grace);
  options.host_id = variables.text("DTRAIN_HOST_ID");
  options.secret = detail::secret_of_nodes(variables, options);
  options.interface = variables.text("DTRAIN_INTERFACE");
  options.program.arguments = std::move(flags.program);
  options.program.environment = environment;
  options.program.log_dir = std::move(flags.log_dir);
  return options;
}

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/node_job.hpp

/// @file
/// A job as the launcher of one node sees it: one attempt after the other, and the code that it ends with.

namespace DTRAIN_NAMESPACE::launch {

/// Lifetime: for one run(). Threads: the main thread of a process that has no other.
class NodeJob {
 public:
  /// Opens the store. @throws Error (posix) for a port in use, a log directory that cannot be written; nothing is
  /// started
  explicit NodeJob(NodeJobOptions options)
      : options_(std::move(options)),
        host_(rendezvous::host_identity(options_.host_id)),
        output_(loop_, STDOUT_FILENO, STDERR_FILENO),
        changed_(loop_),
        forwarder_(loop_, signals_, changed_) {
    for (const std::string& warning : options_.node.warnings) {
      log(LogLevel::warning, warning);
    }
    if (options_.program.log_dir) {
      make_directories(*options_.program.log_dir);
    }
    job_ = coordination();
    forwarder_.on_stop([this](int signal, int count) { job_->stop(signal, count); });
  }
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  /// Starts the workers and stays with them. Blocking: until the last one has ended.
  /// @returns the launcher's exit code; what keeps it from going on is explained on stderr
  int run() {
    constexpr auto longer_than_any_job = std::chrono::hours(24 * 365);
    return loop_.run_until(whole_job(), Deadline::after(longer_than_any_job), "running the job");
  }

 private:
  /// How long a consumer of the output may take nothing before what is left is given up.
  static constexpr std::chrono::seconds patience{600};
  static constexpr std::chrono::seconds patience_after_failure{5};
  static constexpr std::chrono::milliseconds no_patience{100};

  RestartPolicy policy() const noexcept { return RestartPolicy{options_.max_restarts}; }

  std::unique_ptr<Coordination> coordination() {
    rendezvous::Limits limits;
    limits.liveness = in_milliseconds(options_.liveness);
    const identity::NodeIdentity& node = options_.node;
    if (node.node_count == 1) {
      OneNodeOptions one;
      one.workers = options_.workers;
      one.port = static_cast<std::uint16_t>(node.master_port.value_or(0));
      one.host = host_.name;
      one.formation = options_.formation;
      one.limits = limits;
      one.policy = policy();
      return std::make_unique<OneNode>(loop_, changed_, std::move(one));
    }
    NodeMeetingOptions several;
    several.node_rank = node.node_rank;
    several.node_count = node.node_count;
    several.master_addr = node.master_addr;
    several.master_port = static_cast<std::uint16_t>(node.master_port.value_or(identity::default_master_port));
    several.host = host_;
    several.workers = options_.workers;
    several.formation = options_.formation;
    several.limits = limits;
    several.secret = options_.secret;
    several.interface = options_.interface;
    return std::make_unique<SeveralNodes>(loop_, changed_, std::move(several), policy(),
                                          [this](int signal, int count) { forwarder_.stop_by(signal, count); });
  }

  /// What keeps this launcher from going on.
  struct Problem {
    int exit_code = 0;  ///< 0: there is none
    std::string sentence;
  };

  async::Task<int> whole_job() {
    Problem problem;
    try {
      const int exit_code = co_await attempts();
      co_return exit_code;
    } catch (const JobFailed& failed) {
      problem = Problem{exit_code_launcher_lost, launcher_loss(failed.cause(), options_.node.master_addr)};
    } catch (const std::exception& error) {
      problem = Problem{exit_code_usage_error, error.what()};
    }
    co_await job_->give_up(problem.sentence);
    output_.error().line("dtrain: ", problem.sentence);
    co_await flush(patience_after_failure);
    co_return problem.exit_code;
  }

  async::Task<int> attempts() {
    const std::optional<Place> place = co_await assemble();
    if (!place) {
      const int signal = forwarder_.stop_signal();
      output_.error().line("dtrain: ", signal_name(signal) + " came before all launchers had met");
      co_await flush(no_patience);
      co_return 128 + signal;
    }
    if (!place->description.empty()) {
      output_.error().line("dtrain: ", place->description + ", nodes from " + options_.node_source);
    }
    NodePlan plan = plan_at(*place);
    for (;; ++plan.attempt) {
      co_await job_->begin(plan.attempt);
      const JobVerdict verdict = co_await attempt(plan);
      if (!verdict.again) {
        co_return verdict.exit_code;
      }
    }
  }

  /// Nothing where the job was told to end before it began.
  async::Task<std::optional<Place>> assemble() {
    std::optional<Place> place;
    std::exception_ptr failure;
    const async::ExceptionHandler failed = [this, &failure](const std::exception_ptr& reason) {
      failure = reason;
      changed_.set();
    };
    const async::Spawned assembling = loop_.spawn(assemble_into(place), failed);
    while (!place && !failure && forwarder_.stops_asked() == 0) {
      co_await changed_.wait(Deadline::after(std::chrono::hours(1)));
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
    co_return std::move(place);
  }

  async::Task<void> assemble_into(std::optional<Place>& place) {
    place = co_await job_->assemble();
    changed_.set();
  }

  NodePlan plan_at(const Place& place) {
    NodePlan plan;
    plan.workers = options_.workers;
    plan.first_rank = place.first_rank;
    plan.world_size = place.world_size;
    plan.node_rank = place.node_rank;
    plan.node_count = place.node_count;
    plan.master_addr = place.master_addr;
    plan.master_port = place.master_port;
    plan.secret = place.secret;
    plan.cores = options_.cores;
    plan.launcher_process = std::to_string(::getpid());
    plan.stdout_is_terminal = output_.output().is_terminal();
    plan.stderr_is_terminal = output_.error().is_terminal();
    return plan;
  }

  async::Task<JobVerdict> attempt(const NodePlan& plan) {
    std::unique_ptr<Attempt> attempt;
    NodeEnd end;
    end.started = forwarder_.stops_asked() == 0;
    if (end.started) {
      const AttemptServices services{loop_, changed_, signals_, forwarder_, output_, *job_};
      attempt = std::make_unique<Attempt>(services, options_.program, plan);
      co_await attempt->start();
      async::Task<NodeEnd> supervising = attempt->supervise(StopPlan(options_.stop_grace), host_.name);
      end = co_await std::move(supervising);
    }
    end.node = plan.node_rank;
    end.host = host_.name;
    if (plan.node_count > 1) {
      end.host += " (node " + std::to_string(plan.node_rank) + ")";
    }
    end.stop_signal = forwarder_.stop_signal();
    end.interrupted = forwarder_.interrupted();
    async::Task<JobVerdict> concluding = job_->conclude(std::move(end));
    JobVerdict verdict = co_await std::move(concluding);
    if (!verdict.again) {
      co_await job_->leave();
    }
    co_await show(attempt.get(), verdict);
    co_return std::move(verdict);
  }

  /// What the workers wrote, and then what is to be said of them.
  async::Task<void> show(Attempt* attempt, const JobVerdict& verdict) {
    const std::chrono::milliseconds enough = verdict.exit_code == 0 ? patience : patience_after_failure;
    const auto hurry = [attempt] { return attempt != nullptr && attempt->told_to_hurry(); };
    const auto drained = [attempt] { return attempt == nullptr || attempt->output_is_drained(); };
    const bool flows = co_await output_.flush(enough, drained, hurry);
    if (attempt != nullptr) {
      attempt->finish_output();
    }
    for (const std::string& line : verdict.report) {
      output_.error().line("dtrain: ", line);
    }
    co_await flush(flows && !hurry() ? enough : no_patience);
  }

  /// What the launcher itself has to say.
  async::Task<void> flush(std::chrono::milliseconds enough) {
    const auto nothing_more = [] { return true; };
    const auto hurry = [this, before = forwarder_.stops_asked()] { return forwarder_.stops_asked() != before; };
    co_await output_.flush(enough, nothing_more, hurry);
  }

  NodeJobOptions options_;
  rendezvous::HostIdentity host_;
  SignalReader signals_;
  async::EventLoop loop_;
  TerminalOutput output_;
  async::AutoResetEvent changed_;
  Forwarder forwarder_;
  std::unique_ptr<Coordination> job_;
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/launch/per_node.hpp

/// @file
/// launch::PerNode: the process that the user starts becomes the launcher of this node's workers.

namespace DTRAIN_NAMESPACE::launch {

/// `./train --nproc-per-node=4`: starts four of /proc/self/exe, each a rank, and ends with them. Started once on each
/// of several nodes (--nnodes, --node-rank, --master-addr), it is one job. The store runs in the launcher (of node 0),
/// so it survives rank 0.
struct PerNode {
  static constexpr bool returns_into_user_code = false;

  static constexpr const char* name() noexcept { return "launch::PerNode"; }

  /// In a worker, the Worker; in the launcher, the first failing worker's exit code (128 + signal), 0, or 2 with a
  /// sentence on stderr where nothing could be started. To be main's first statement.
  /// Blocking: in the launcher, until all workers have ended. Threads: the main thread, of a process that has no other.
  static Start start(int argc, char** argv) {
    try {
      const identity::Environment environment = identity::snapshot_environment();
      if (is_worker_environment(environment, ::getppid())) {
        // Its stdout is a pipe, but people read it: a line goes out when it is complete, also before a crash.
        static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 0));
        return Start(worker_of_launcher(environment, std::vector<std::string>(argv, argv + argc)));
      }
      require_single_thread();
      Flags flags = parse_flags(identity::Arguments(argv, static_cast<std::size_t>(argc)));
      if (flags.help) {
        return Start(std::fputs(help_text, stdout) < 0 || std::fflush(stdout) != 0 ? 1 : 0);
      }
      NodeJobOptions options = node_job_options(std::move(flags), without_outer_job(environment), cores_by_affinity());
      open_standard_descriptors();
      adopt_orphans();
      NodeJob job(std::move(options));
      return Start(job.run());
    } catch (const std::exception& error) {
      log(LogLevel::error, error.what());
      return Start(2);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::launch

// ---- dtrain/ddp/bucket_plan.hpp

/// @file
/// The bucket plan: which gradients are reduced together, in which order, and where each lies in the arena.

namespace DTRAIN_NAMESPACE::ddp {

/// What a plan needs to know of one gradient.
struct GradientSize {
  std::size_t bytes = 0;
  DType dtype = DType::f32;
  Device device{};
};

/// How large buckets may be. A zero gives every parameter a bucket of its own.
struct BucketCaps {
  std::size_t first_bucket_bytes = std::size_t{1}
                                   << 20;            ///< of the first to be reduced, and of the smallest at the end
  std::size_t bucket_bytes = std::size_t{25} << 20;  ///< of any bucket of more than one parameter
};

/// Gradients that one collective reduces.
struct PlannedBucket {
  std::vector<std::size_t> parameters;  ///< in ready order
  DType dtype = DType::f32;
  Device device{};
  std::size_t offset = 0;         ///< of its range in the arena
  std::size_t bytes = 0;          ///< of its range, padding included
  std::size_t payload_bytes = 0;  ///< of its gradients alone
};

/// Every parameter lies in exactly one bucket. Buckets follow each other in the arena without a gap, in launch order.
struct BucketPlan {
  std::vector<PlannedBucket> buckets;
  std::vector<std::size_t> offset_of;  ///< parameter -> place in the arena, a multiple of arena_alignment
  std::vector<std::size_t> bucket_of;  ///< parameter -> index into buckets
  std::size_t arena_bytes = 0;
};

/// A cache line: no two gradients share one, and vector loads are aligned.
inline constexpr std::size_t arena_alignment = 64;

/// Backward passes produce the last parameter's gradient first.
inline std::vector<std::size_t> reverse_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.rbegin(), order.rend(), std::size_t{0});
  return order;
}

/// The cap of a bucket opened when `remaining` bytes are not yet placed: half of them, but at least the first bucket's
/// cap and at most bucket_bytes. So the last buckets halve (of 100 MiB: ... 25, 12, 6, 3, 2, 1, 1): what is reduced
/// after the backward pass has ended, which nothing hides, stays as small as the first bucket.
constexpr std::size_t tapered_cap(std::size_t remaining, const BucketCaps& caps) noexcept {
  return std::min(caps.bucket_bytes, std::max(caps.first_bucket_bytes, remaining / 2));
}

namespace detail {

constexpr std::size_t padded(std::size_t bytes) noexcept {
  return (bytes + arena_alignment - 1) / arena_alignment * arena_alignment;
}

/// @throws Error (invalid_argument) unless `order` names each of `count` parameters once.
inline void check_order(std::span<const std::size_t> order, std::size_t count) {
  std::vector<bool> seen(count, false);
  bool whole = order.size() == count;
  for (const std::size_t parameter : order) {
    whole = whole && parameter < count && !seen[parameter];
    if (!whole) break;
    seen[parameter] = true;
  }
  if (!whole) {
    throw Error(Errc::invalid_argument, "a ready order of " + std::to_string(order.size()) +
                                            " entries does not name each of " + std::to_string(count) +
                                            " parameters once; give a permutation of their indices");
  }
}

/// All gradients together, padded. @throws Error (limit) beyond 2^60 bytes.
inline std::size_t arena_bytes_of(std::span<const GradientSize> sizes) {
  constexpr std::size_t most = std::size_t{1} << 60;
  std::size_t total = 0;
  for (const GradientSize& size : sizes) {
    if (size.bytes > most || (total += padded(size.bytes)) > most) {
      throw Error(Errc::limit, "the gradients of the model need more than 2^60 bytes; check the parameters' shapes");
    }
  }
  return total;
}

/// A bucket that still takes parameters, one for each kind (dtype and device) met so far.
struct OpenBucket {
  PlannedBucket bucket;
  std::size_t cap = 0;
  std::size_t last_position = 0;  ///< in the ready order, of its last parameter: when it becomes complete
};

}  // namespace detail

/// Pure and deterministic: the same arguments give the same plan on every rank. Parameters fill buckets in
/// `ready_order`; one of another dtype or device goes to the open bucket of its own kind, so alternating kinds do not
/// cut buckets short. Buckets are ordered by when their last parameter is ready. A parameter above the cap has a bucket
/// of its own; one of no bytes takes no place. @throws Error (invalid_argument) where `ready_order` is not a
/// permutation, (limit) for sizes that no machine has.
inline BucketPlan plan_buckets(std::span<const GradientSize> sizes, std::span<const std::size_t> ready_order,
                               BucketCaps caps = {}) {
  detail::check_order(ready_order, sizes.size());
  caps.first_bucket_bytes = std::min(caps.first_bucket_bytes, caps.bucket_bytes);
  std::size_t remaining = detail::arena_bytes_of(sizes);

  BucketPlan plan{{}, std::vector<std::size_t>(sizes.size()), std::vector<std::size_t>(sizes.size()), remaining};
  std::vector<detail::OpenBucket> open;
  std::vector<detail::OpenBucket> done;
  for (std::size_t position = 0; position < ready_order.size(); ++position) {
    const std::size_t parameter = ready_order[position];
    const GradientSize& size = sizes[parameter];
    const std::size_t bytes = detail::padded(size.bytes);
    auto place = std::find_if(open.begin(), open.end(), [&size](const detail::OpenBucket& candidate) {
      return candidate.bucket.dtype == size.dtype && candidate.bucket.device == size.device;
    });
    if (place != open.end() && place->bucket.bytes + bytes > place->cap) {
      done.push_back(std::move(*place));
      open.erase(place);
      place = open.end();
    }
    if (place == open.end()) {
      const std::size_t cap = done.empty() ? caps.first_bucket_bytes : tapered_cap(remaining, caps);
      open.push_back({{{}, size.dtype, size.device, 0, 0, 0}, cap, position});
      place = std::prev(open.end());
    }
    place->bucket.parameters.push_back(parameter);
    place->bucket.bytes += bytes;
    place->bucket.payload_bytes += size.bytes;
    place->last_position = position;
    remaining -= bytes;
  }
  std::move(open.begin(), open.end(), std::back_inserter(done));
  std::sort(done.begin(), done.end(),
            [](const detail::OpenBucket& a, const detail::OpenBucket& b) { return a.last_position < b.last_position; });

  std::size_t offset = 0;
  for (detail::OpenBucket& next : done) {
    next.bucket.offset = offset;
    for (const std::size_t parameter : next.bucket.parameters) {
      plan.offset_of[parameter] = offset;
      plan.bucket_of[parameter] = plan.buckets.size();
      offset += detail::padded(sizes[parameter].bytes);
    }
    plan.buckets.push_back(std::move(next.bucket));
  }
  return plan;
}

/// The plan in reverse order of the parameters.
inline BucketPlan plan_buckets(std::span<const GradientSize> sizes, BucketCaps caps = {}) {
  return plan_buckets(sizes, reverse_order(sizes.size()), caps);
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/bucket.hpp

/// @file
/// A bucket at run time: a range of the arena, and the event of its reduction.

namespace DTRAIN_NAMESPACE::ddp {

/// Reused by every step, so nothing is allocated in them.
template <stream::Event Event>
struct Bucket {
  BufferView range;
  Event reduced;
};

/// The elements of `planned` in an arena at `arena`, padding included: zeros, which every reduction leaves as they are.
inline BufferView range_of(const PlannedBucket& planned, std::byte* arena) noexcept {
  std::byte* const data = planned.bytes == 0 ? nullptr : arena + planned.offset;
  return {data, planned.bytes / size_bytes(planned.dtype), planned.dtype, planned.device};
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/failure_context.hpp

/// @file
/// What a reducer needs to know of its job in order to fail together with it.

namespace DTRAIN_NAMESPACE::ddp {

/// Given by the group.
struct FailureContext {
  std::shared_ptr<FailureLatch> latch;  ///< never null
  int rank = 0;                         ///< in the job, as causes name it
  std::string host;                     ///< this rank's, for causes
  std::chrono::nanoseconds timeout{};   ///< of one collective
  /// Called when a step is destroyed unfinished, with whether an exception is under way; it must not throw. The group
  /// waits a moment for whoever catches that exception and knows its text. Without it the job is told at once.
  std::function<void(bool unwinding)> step_abandoned{};

  /// Tells the job that this rank failed with `text`.
  void report_exception(std::string text) const { latch->report({CauseKind::exception, rank, host, std::move(text)}); }
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/gradient_slot.hpp

/// @file
/// The gradient slot: where one gradient lies for the user, and where in the arena it is reduced.

namespace DTRAIN_NAMESPACE::ddp {

/// A bound gradient lives in the arena, so that both addresses are the same and nothing is copied.
struct GradientSlot {
  std::byte* own = nullptr;    ///< the parameter's gradient memory
  std::byte* place = nullptr;  ///< in the arena
  std::size_t bytes = 0;

  bool is_bound() const noexcept { return own == place; }

  void pack() const noexcept { pack_from(own); }

  /// `source` is the slot's own memory or memory that does not overlap the arena.
  void pack_from(const std::byte* source) const noexcept {
    if (source != place && bytes != 0) {
      std::memcpy(place, source, bytes);
    }
  }

  void unpack() const noexcept {
    if (!is_bound() && bytes != 0) {
      std::memcpy(own, place, bytes);
    }
  }
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/launch_queue.hpp

/// @file
/// The launch queue: buckets become complete in any order and are launched in the plan's.

namespace DTRAIN_NAMESPACE::ddp {

/// Collectives match by order, so every rank launches bucket 0, 1, 2, ... whatever order its gradients came in.
/// Threads: `arrived` concurrently; everything else between steps.
class LaunchQueue {
 public:
  /// `sizes[b]` is the number of parameters in bucket b, at least one.
  explicit LaunchQueue(std::span<const std::size_t> sizes) : entries_(sizes.size()) {
    for (std::size_t bucket = 0; bucket < sizes.size(); ++bucket) {
      entries_[bucket].size = sizes[bucket];
    }
  }

  void begin_step() noexcept {
    for (Entry& entry : entries_) {
      entry.pending.store(entry.size, std::memory_order_relaxed);
      entry.complete = false;
    }
    next_ = 0;
    failure_ = nullptr;
  }

  /// A gradient of `bucket` is in its place. The last of a bucket takes the gate, once, and calls `launch(b)` for every
  /// complete bucket whose predecessors are launched. An exception of `launch` passes through; nothing is launched
  /// after.
  template <class Launch>
  void arrived(std::size_t bucket, Launch&& launch) {
    // Releases this thread's writes to the bucket, and acquires those of the threads that came before.
    if (entries_[bucket].pending.fetch_sub(1, std::memory_order_acq_rel) != 1) {
      return;
    }
    const std::lock_guard gate(gate_);
    entries_[bucket].complete = true;
    while (!failure_ && next_ < entries_.size() && entries_[next_].complete) {
      try {
        launch(next_);
      } catch (...) {
        failure_ = std::current_exception();
        throw;
      }
      ++next_;
    }
  }

  /// How many buckets of this step are launched.
  std::size_t launched() const {
    const std::lock_guard gate(gate_);
    return next_;
  }

  /// Rethrows what `launch` threw in this step, for a caller that was not the one it was thrown to.
  void throw_if_launch_failed() const {
    const std::lock_guard gate(gate_);
    if (failure_) {
      std::rethrow_exception(failure_);
    }
  }

 private:
  /// On a line of its own: gradients of neighbouring buckets arrive on different threads.
  struct alignas(64) Entry {
    std::atomic<std::size_t> pending{0};
    std::size_t size = 0;
    bool complete = false;  // guarded by the gate
  };

  std::vector<Entry> entries_;
  mutable std::mutex gate_;
  std::size_t next_ = 0;
  std::exception_ptr failure_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/options.hpp

/// @file
/// DdpOptions: what a user may choose about the reduction of gradients.

namespace DTRAIN_NAMESPACE::ddp {

/// The same on every rank, `progress` excepted; a difference is an error on all of them.
struct DdpOptions {
  std::size_t bucket_bytes = BucketCaps{}.bucket_bytes;              ///< 0: a bucket for each parameter
  std::size_t first_bucket_bytes = BucketCaps{}.first_bucket_bytes;  ///< above bucket_bytes it counts as bucket_bytes
  ReduceOp reduce_op = ReduceOp::average;                            ///< or sum
  stream::host::Progress progress = stream::host::Progress::automatic;  ///< who runs the communication

  BucketCaps caps() const noexcept { return {first_bucket_bytes, bucket_bytes}; }
};

/// @throws Error (invalid_argument).
inline void check_options(const DdpOptions& options) {
  if (options.reduce_op != ReduceOp::average && options.reduce_op != ReduceOp::sum) {
    throw Error(Errc::invalid_argument, std::string("DdpOptions::reduce_op is ") + name(options.reduce_op) +
                                            "; gradients are combined by average or sum");
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DdpOptions;
}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/ddp/parameter.hpp

/// @file
/// Parameter: a name, the memory of its value and the memory of its gradient.

namespace DTRAIN_NAMESPACE::ddp {

/// One trainable tensor of a model. Value and gradient have the same shape, dtype and device, and are contiguous.
/// Lifetime: both stay at their address as long as the DistributedDataParallel that was given the model.
struct Parameter {
  std::string name;
  TensorView value;
  TensorView gradient;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Parameter;
}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/ddp/broadcast_values.hpp

/// @file
/// Gives every rank rank 0's parameter values, once, before training.

namespace DTRAIN_NAMESPACE::ddp {

/// Collective, blocking: returns when all values are rank 0's. The values' memory stays the model's own.
/// @throws the job's first cause; Error (timeout).
template <backend::Communicator Communicator>
void broadcast_values(Communicator& communicator, typename Communicator::Stream stream,
                      std::span<const Parameter> parameters, const FailureContext& context) {
  for (const Parameter& parameter : parameters) {
    if (parameter.value.shape.element_count() != 0) {
      communicator.broadcast(parameter.value.flat(), 0, stream);
    }
  }
  typename Communicator::Stream::Event arrived;
  stream.record(arrived);
  backend::block_until_complete(arrived, communicator, *context.latch, context.timeout, context.rank);
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/gradient_table.hpp

/// @file
/// The gradient table: for each parameter its gradient's slot, and what may be announced for it.

namespace DTRAIN_NAMESPACE::ddp {

/// Threads: const members concurrently. Indices are in range, except where a member says that it checks.
class GradientTable {
 public:
  /// @param arena where the plan's arena begins; null only where it has no bytes
  /// @throws Error (unsupported) for gradients that are not in host memory.
  GradientTable(std::span<const Parameter> parameters, const BucketPlan& plan, std::byte* arena) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const TensorView& gradient = parameters[i].gradient;
      names_.push_back(parameters[i].name);
      views_.push_back(gradient);
      const std::size_t bytes = gradient.bytes();
      slots_.push_back({gradient.data, bytes == 0 ? gradient.data : arena + plan.offset_of[i], bytes});
      if (gradient.device.kind != DeviceKind::host) {
        throw Error(Errc::unsupported, "the gradient of " + describe(i) + " is on " + to_string(gradient.device) +
                                           "; this reducer takes gradients in host memory");
      }
    }
  }

  const GradientSlot& operator[](std::size_t parameter) const noexcept { return slots_[parameter]; }

  /// Gradient i lives in the arena from now on; what it holds is copied there. Checks the index. @returns where.
  TensorView bind(std::size_t parameter) {
    GradientSlot& slot = slots_.at(parameter);
    if (slot.own != nullptr) {
      slot.pack();
    }
    slot.own = slot.place;
    views_[parameter].data = slot.place;
    return views_[parameter];
  }

  /// @throws Error (unsupported) for a stream whose work the host cannot see the end of.
  void require_host(std::size_t parameter, StreamHandle stream) const {
    if (stream.device.kind != DeviceKind::host) {
      throw Error(Errc::unsupported, announcement(parameter) + " came with a stream of " + to_string(stream.device) +
                                         "; this backend reduces host memory: copy the gradient to the host first");
    }
  }

  /// @throws Error (invalid_argument) unless `gradient` has as many elements of the same kind as the parameter's own.
  void require_same_kind(std::size_t parameter, const TensorView& gradient) const {
    const TensorView& own = views_[parameter];
    const bool there = gradient.data != nullptr || gradient.bytes() == 0;
    const bool same = gradient.shape.element_count() == own.shape.element_count() && gradient.dtype == own.dtype &&
                      gradient.device == own.device;
    if (!same || !there) {
      throw Error(Errc::invalid_argument, announcement(parameter) + ", which is " + kind(own) + ", came with " +
                                              (there ? "" : "no memory of ") + kind(gradient));
    }
  }

  /// "parameter 3 'fc1.weight'".
  std::string describe(std::size_t parameter) const {
    return "parameter " + std::to_string(parameter) + " '" + names_[parameter] + "'";
  }

  const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::string announcement(std::size_t parameter) const {
    return "ready(" + std::to_string(parameter) + ") for " + describe(parameter);
  }

  static std::string kind(const TensorView& view) {
    return std::string(name(view.dtype)) + " " + to_string(view.shape) + " on " + to_string(view.device);
  }

  std::vector<std::string> names_;
  std::vector<TensorView> views_;
  std::vector<GradientSlot> slots_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/model.hpp

/// @file
/// The concept Model: anything with parameters().

namespace DTRAIN_NAMESPACE::ddp {

template <class M>
concept HasParameters = requires(M& model) {
  model.parameters();
};

/// `parameters()` gives a range that knows its size, by value or by reference, in the same order each time.
template <class M>
concept ParametersAreSized = HasParameters<M> && requires(M& model) {
  { std::size(model.parameters()) } -> std::convertible_to<std::size_t>;
};

template <class M>
concept ParametersAreParameters = HasParameters<M> && requires(M& model) {
  { *std::begin(model.parameters()) } -> std::convertible_to<const Parameter&>;
  std::end(model.parameters());
};

/// The user's model. Its parameters are read once, when DistributedDataParallel is constructed.
template <class M>
concept Model = HasParameters<M> && ParametersAreSized<M> && ParametersAreParameters<M>;

/// A Model that lets DistributedDataParallel place its gradients: `bind_gradient(i, view)` makes gradient i live at
/// `view` from now on (same shape, dtype and device as before; its content was copied there). Called at construction
/// and at most once more, between steps.
template <class M>
concept BindsGradients = Model<M> && requires(M& model, std::size_t index, const TensorView& gradient) {
  model.bind_gradient(index, gradient);
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Model;
}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/ddp/capture.hpp

/// @file
/// Reads a model's parameters and refuses those that cannot be trained, in one sentence each.

namespace DTRAIN_NAMESPACE::ddp {

/// The longest name of a parameter: names are compared between ranks.
inline constexpr std::size_t max_parameter_name_bytes = 1024;

namespace detail {

inline std::string quoted(std::size_t index, const Parameter& parameter) {
  return "parameter " + std::to_string(index) + " '" + parameter.name.substr(0, 128) + "'";
}

inline std::string kind(const TensorView& view) {
  return std::string(name(view.dtype)) + " " + to_string(view.shape) + " on " + to_string(view.device);
}

/// A tied parameter that is listed twice would be reduced twice.
inline void check_gradients_are_apart(std::span<const Parameter> parameters) {
  std::vector<std::size_t> by_address;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].gradient.data != nullptr && parameters[i].gradient.bytes() != 0) {
      by_address.push_back(i);
    }
  }
  std::sort(by_address.begin(), by_address.end(), [&parameters](std::size_t a, std::size_t b) {
    return std::less<>{}(parameters[a].gradient.data, parameters[b].gradient.data);
  });
  for (std::size_t next = 1; next < by_address.size(); ++next) {
    const std::size_t a = by_address[next - 1];
    const std::size_t b = by_address[next];
    const TensorView& before = parameters[a].gradient;
    if (std::less<>{}(parameters[b].gradient.data, before.data + before.bytes())) {
      throw Error(Errc::invalid_argument, "the gradients of " + quoted(std::min(a, b), parameters[std::min(a, b)]) +
                                              " and " + quoted(std::max(a, b), parameters[std::max(a, b)]) +
                                              " share memory; list a tied parameter once");
    }
  }
}

}  // namespace detail

/// @param binds whether the model lets its gradients be placed: they need no memory of their own then
/// @throws Error (invalid_argument).
inline void check_parameters(std::span<const Parameter> parameters, bool binds) {
  if (parameters.empty()) {
    throw Error(Errc::invalid_argument, "the model's parameters() is empty: there is nothing to train");
  }
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    const TensorView& gradient = parameters[i].gradient;
    const std::string who = detail::quoted(i, parameters[i]);
    if (parameters[i].name.size() > max_parameter_name_bytes) {
      throw Error(Errc::invalid_argument, "the name of " + who + "... has " +
                                              std::to_string(parameters[i].name.size()) + " bytes; the most is " +
                                              std::to_string(max_parameter_name_bytes));
    }
    if (value.shape != gradient.shape || value.dtype != gradient.dtype || value.device != gradient.device) {
      throw Error(Errc::invalid_argument, "the value of " + who + " is " + detail::kind(value) + ", its gradient is " +
                                              detail::kind(gradient) + "; they must be alike");
    }
    if (value.data == nullptr && value.bytes() != 0) {
      throw Error(Errc::invalid_argument,
                  "the value of " + who + " has no memory; allocate it before DistributedDataParallel");
    }
    if (gradient.data == nullptr && gradient.bytes() != 0 && !binds) {
      throw Error(Errc::invalid_argument,
                  "the gradient of " + who + " has no memory; allocate it, or give the model bind_gradient(i, view)");
    }
  }
  detail::check_gradients_are_apart(parameters);
}

/// The parameters as they are now. Their names are copied, their memory is not.
template <Model M>
std::vector<Parameter> capture_parameters(M& model) {
  auto&& range = model.parameters();
  std::vector<Parameter> parameters;
  parameters.reserve(static_cast<std::size_t>(std::size(range)));
  for (const Parameter& parameter : range) {
    parameters.push_back(parameter);
  }
  check_parameters(parameters, BindsGradients<M>);
  return parameters;
}

/// What a bucket plan needs to know of them.
inline std::vector<GradientSize> gradient_sizes(std::span<const Parameter> parameters) {
  std::vector<GradientSize> sizes;
  sizes.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    sizes.push_back({parameter.gradient.bytes(), parameter.gradient.dtype, parameter.gradient.device});
  }
  return sizes;
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/description.hpp

/// @file
/// The description of a model: what must be the same on all ranks.

namespace DTRAIN_NAMESPACE::ddp {

/// Devices count by their kind: each rank has its own GPU.
struct ParameterDescription {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  DeviceKind device = DeviceKind::host;

  friend bool operator==(const ParameterDescription&, const ParameterDescription&) = default;
};

struct ModelDescription {
  std::uint64_t bucket_bytes = 0;
  std::uint64_t first_bucket_bytes = 0;
  ReduceOp reduce_op = ReduceOp::average;
  std::vector<ParameterDescription> parameters;

  friend bool operator==(const ModelDescription&, const ModelDescription&) = default;
};

inline ModelDescription describe(std::span<const Parameter> parameters, const DdpOptions& options) {
  ModelDescription description{options.bucket_bytes, options.first_bucket_bytes, options.reduce_op, {}};
  description.parameters.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    description.parameters.push_back(
        {parameter.name, parameter.value.shape, parameter.value.dtype, parameter.value.device.kind});
  }
  return description;
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/description_bytes.hpp

/// @file
/// A model's description as bytes, and back from bytes that another process wrote.

namespace DTRAIN_NAMESPACE::ddp {

/// The longest description that is read.
inline constexpr std::size_t max_description_bytes = std::size_t{64} << 20;

namespace detail {

/// Little-endian, whatever the machine.
inline void append(std::string& bytes, std::uint64_t value, std::size_t width = 8) {
  for (std::size_t i = 0; i < width; ++i) {
    bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  }
}

/// Reads what append wrote; after the first thing that does not fit everything fails.
class DescriptionReader {
 public:
  explicit DescriptionReader(std::string_view bytes) noexcept : rest_(bytes) {}

  bool number(std::uint64_t& value, std::size_t width = 8) noexcept {
    std::string_view bytes;
    if (!text(bytes, width)) return false;
    value = 0;
    for (std::size_t i = 0; i < width; ++i) {
      value |= std::uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
    }
    return true;
  }

  /// An enumeration whose values are 1..last.
  template <class Enum>
  bool choice(Enum& value, Enum last) noexcept {
    std::uint64_t number_of = 0;
    if (!number(number_of, 1) || number_of < 1 || number_of > static_cast<std::uint64_t>(last)) return false;
    value = static_cast<Enum>(number_of);
    return true;
  }

  bool text(std::string_view& bytes, std::uint64_t length) noexcept {
    if (length > rest_.size()) return false;
    bytes = rest_.substr(0, length);
    rest_.remove_prefix(length);
    return true;
  }

  bool at_end() const noexcept { return rest_.empty(); }
  std::size_t left() const noexcept { return rest_.size(); }

 private:
  std::string_view rest_;
};

inline constexpr std::string_view description_format = "dtrain ddp 1\n";
inline constexpr std::size_t smallest_parameter_bytes = 4 + 3;  ///< of an entry without a name or extents

inline bool parse_parameter(DescriptionReader& reader, ParameterDescription& parameter) {
  std::uint64_t name_bytes = 0;
  std::string_view name;
  std::uint64_t rank = 0;
  if (!reader.number(name_bytes, 4) || name_bytes > max_parameter_name_bytes || !reader.text(name, name_bytes) ||
      !reader.choice(parameter.dtype, DType::u8) || !reader.choice(parameter.device, DeviceKind::cuda) ||
      !reader.number(rank, 1) || rank > Shape::max_rank) {
    return false;
  }
  std::array<std::int64_t, Shape::max_rank> extents{};
  for (std::size_t i = 0; i < rank; ++i) {
    std::uint64_t extent = 0;
    if (!reader.number(extent)) return false;
    extents[i] = static_cast<std::int64_t>(extent);
  }
  try {
    parameter.shape = Shape(std::span(extents).first(rank));
  } catch (const Error&) {
    return false;
  }
  parameter.name = name;
  return true;
}

}  // namespace detail

/// The same bytes for equal descriptions, and only for those.
inline std::string serialise(const ModelDescription& description) {
  std::string bytes(detail::description_format);
  detail::append(bytes, description.bucket_bytes);
  detail::append(bytes, description.first_bucket_bytes);
  detail::append(bytes, static_cast<std::uint64_t>(description.reduce_op), 1);
  detail::append(bytes, description.parameters.size());
  for (const ParameterDescription& parameter : description.parameters) {
    detail::append(bytes, parameter.name.size(), 4);
    bytes += parameter.name;
    detail::append(bytes, static_cast<std::uint64_t>(parameter.dtype), 1);
    detail::append(bytes, static_cast<std::uint64_t>(parameter.device), 1);
    detail::append(bytes, parameter.shape.extents().size(), 1);
    for (const std::int64_t extent : parameter.shape.extents()) {
      detail::append(bytes, static_cast<std::uint64_t>(extent));
    }
  }
  return bytes;
}

/// Bytes come from another process: whatever they are, memory stays below a small multiple of their size.
/// @returns nothing for anything that serialise does not write.
inline std::optional<ModelDescription> parse_description(std::string_view bytes) {
  detail::DescriptionReader reader(bytes);
  ModelDescription description;
  std::string_view format;
  std::uint64_t count = 0;
  if (bytes.size() > max_description_bytes || !reader.text(format, detail::description_format.size()) ||
      format != detail::description_format || !reader.number(description.bucket_bytes) ||
      !reader.number(description.first_bucket_bytes) || !reader.choice(description.reduce_op, ReduceOp::product) ||
      !reader.number(count) || count > reader.left() / detail::smallest_parameter_bytes) {
    return std::nullopt;
  }
  for (std::uint64_t i = 0; i < count; ++i) {
    ParameterDescription parameter;
    if (!detail::parse_parameter(reader, parameter)) return std::nullopt;
    description.parameters.push_back(std::move(parameter));
  }
  return reader.at_end() ? std::optional(std::move(description)) : std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/difference.hpp

/// @file
/// The first difference between two ranks' models, as a sentence.

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// A name that may come from another process: cut, and without what a terminal would act on.
inline std::string in_quotes(std::string_view name) {
  return "'" + printable(name.substr(0, 128)) + (name.size() > 128 ? "...'" : "'");
}

/// "f32 [784, 256]", with the device where it is not the host.
inline std::string kind(const ParameterDescription& parameter) {
  return std::string(name(parameter.dtype)) + " " + to_string(parameter.shape) +
         (parameter.device == DeviceKind::cuda ? " on cuda" : "");
}

inline std::string whose(int rank, const std::string& what) {
  return "rank " + std::to_string(rank) + "'s " + what;
}

template <class Value>
std::string option_difference(const char* option, int rank, const Value& mine, int other_rank, const Value& theirs) {
  return whose(rank, std::string("DdpOptions::") + option) + " is " + mine + ", " + whose(other_rank, "is ") + theirs;
}

inline std::string extra_parameter(int rank, const ModelDescription& longer, int other_rank, std::size_t count) {
  return "rank " + std::to_string(rank) + " has " + std::to_string(longer.parameters.size()) + " parameters, rank " +
         std::to_string(other_rank) + " has " + std::to_string(count) + "; the first that only rank " +
         std::to_string(rank) + " has is " + std::to_string(count) + " " + in_quotes(longer.parameters[count].name) +
         ", " + kind(longer.parameters[count]);
}

}  // namespace detail

/// Options first, then parameters in order. Names both ranks and both things. @returns nothing where all agrees.
inline std::optional<std::string> first_difference(const ModelDescription& mine, int rank,
                                                   const ModelDescription& theirs, int other_rank) {
  if (mine.bucket_bytes != theirs.bucket_bytes) {
    return detail::option_difference("bucket_bytes", rank, std::to_string(mine.bucket_bytes), other_rank,
                                     std::to_string(theirs.bucket_bytes));
  }
  if (mine.first_bucket_bytes != theirs.first_bucket_bytes) {
    return detail::option_difference("first_bucket_bytes", rank, std::to_string(mine.first_bucket_bytes), other_rank,
                                     std::to_string(theirs.first_bucket_bytes));
  }
  if (mine.reduce_op != theirs.reduce_op) {
    return detail::option_difference("reduce_op", rank, std::string(name(mine.reduce_op)), other_rank,
                                     std::string(name(theirs.reduce_op)));
  }
  const std::size_t common = std::min(mine.parameters.size(), theirs.parameters.size());
  for (std::size_t i = 0; i < common; ++i) {
    const ParameterDescription& a = mine.parameters[i];
    const ParameterDescription& b = theirs.parameters[i];
    if (a == b) continue;
    const std::string other_name = a.name == b.name ? "" : detail::in_quotes(b.name) + ", ";
    return detail::whose(rank, "parameter ") + std::to_string(i) + " " + detail::in_quotes(a.name) + " is " +
           detail::kind(a) + ", " + detail::whose(other_rank, "is ") + other_name + detail::kind(b);
  }
  if (mine.parameters.size() > common) {
    return detail::extra_parameter(rank, mine, other_rank, common);
  }
  if (theirs.parameters.size() > common) {
    return detail::extra_parameter(other_rank, theirs, rank, common);
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/agreement.hpp

/// @file
/// Agreement: before training all ranks compare their models, and all fail alike where two differ.

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// A description is cut into values that a store takes.
inline constexpr std::size_t description_piece_bytes = std::size_t{256} << 10;

inline std::size_t pieces_of(std::size_t bytes) {
  return (bytes + description_piece_bytes - 1) / description_piece_bytes;
}

/// Digest and length: all that a rank whose model is the same needs to read.
inline std::string summary_of(std::string_view bytes) {
  return hex(Sha256().update(bytes).digest()) + " " + std::to_string(bytes.size());
}

template <class Store>
void publish(Store& store, const std::string& prefix, std::string_view bytes, int rank_in_job, Deadline deadline) {
  for (std::size_t piece = 0; piece < pieces_of(bytes.size()); ++piece) {
    const std::size_t first = piece * description_piece_bytes;
    store.set_blocking(prefix + "description/" + std::to_string(piece),
                       std::string(bytes.substr(first, description_piece_bytes)), deadline);
  }
  store.set_blocking(prefix + "publisher", std::to_string(rank_in_job), deadline);
  store.set_blocking(prefix + "summary", summary_of(bytes), deadline);
}

/// What rank 0 of the group is called in the job; 0 for anything else than a rank.
inline int publisher_in(std::string_view text) {
  int rank = 0;
  for (const char digit : text.size() > 9 ? std::string_view{} : text) {
    rank = digit < '0' || digit > '9' ? rank : rank * 10 + (digit - '0');
  }
  return rank;
}

/// The number after the blank; 0 for anything else or too much.
inline std::size_t length_in(std::string_view summary) {
  const std::size_t blank = summary.find(' ');
  std::size_t length = 0;
  for (const char digit : blank == std::string_view::npos ? std::string_view{} : summary.substr(blank + 1)) {
    if (digit < '0' || digit > '9' || length > max_description_bytes) return 0;
    length = length * 10 + static_cast<std::size_t>(digit - '0');
  }
  return length > max_description_bytes ? 0 : length;
}

template <class Store>
std::string difference_to_rank_0(Store& store, const std::string& prefix, std::string_view summary,
                                 const ModelDescription& mine, int rank, Deadline deadline) {
  std::string bytes;
  for (std::size_t piece = 0; piece < pieces_of(length_in(summary)); ++piece) {
    bytes += store.get_blocking(prefix + "description/" + std::to_string(piece), deadline);
  }
  const int publisher = publisher_in(store.get_blocking(prefix + "publisher", deadline));
  const std::string other = "rank " + std::to_string(publisher);
  const std::optional<ModelDescription> theirs = parse_description(bytes);
  if (!theirs) {
    return "rank " + std::to_string(rank) + " cannot read the model description of " + other +
           "; do both run the same program?";
  }
  return first_difference(mine, rank, *theirs, publisher)
      .value_or("rank " + std::to_string(rank) + "'s model description has another digest than " + other + "'s");
}

}  // namespace detail

/// Collective, blocking. Rank 0 publishes its description, the others compare: O(1) messages a rank where all agree.
/// Each instance in a job uses its own `prefix`, the same on all ranks. @param rank in the group whose ranks compare
/// @throws Error (disagreement) on the rank that differs and JobFailed on all others, with the same sentence: the first
/// difference and both ranks. Error (limit) for a model whose description is beyond max_description_bytes.
template <class Store>
void agree_blocking(Store store, const std::string& prefix, const ModelDescription& mine, int rank,
                    const FailureContext& context, Deadline deadline) {
  const std::string bytes = serialise(mine);
  if (bytes.size() > max_description_bytes) {
    throw Error(Errc::limit, "the names and shapes of " + std::to_string(mine.parameters.size()) + " parameters take " +
                                 std::to_string(bytes.size()) + " bytes to compare between ranks; shorten the names");
  }
  try {
    if (rank == 0) {
      detail::publish(store, prefix, bytes, context.rank, deadline);
    } else if (const std::string summary = store.get_blocking(prefix + "summary", deadline);
               summary != detail::summary_of(bytes)) {
      context.latch->report({CauseKind::disagreement, context.rank, context.host,
                             detail::difference_to_rank_0(store, prefix, summary, mine, context.rank, deadline)});
      context.latch->block_until_failed(deadline);
    }
    store.barrier_blocking(prefix + "agreed", deadline);
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // says it as the rank that it came from
    throw;
  }
  context.latch->throw_if_failed(context.rank);
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/ready.hpp

/// @file
/// Ready: what a backward pass calls when a gradient is final.

namespace DTRAIN_NAMESPACE::ddp {

/// The one thing a model's backward pass needs to know of dtrain; not a template, so that models can live in .cpp
/// files. Threads: may be called from any thread, concurrently for different i. Lifetime: the step that made it.
/// Blocking: no. @throws Error (invalid_argument) for an index out of range or a parameter that was ready before.
class Ready {
 public:
  /// What a step implements to be told.
  struct Sink {
    virtual void ready(std::size_t parameter) = 0;
    virtual void ready(std::size_t parameter, StreamHandle stream) = 0;
    virtual void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) = 0;

   protected:
    ~Sink() = default;
  };

  explicit Ready(Sink& sink) noexcept : sink_(&sink) {}

  /// Gradient `parameter` (its index in parameters()) is final in host memory.
  void operator()(std::size_t parameter) const { sink_->ready(parameter); }

  /// It is final once the work that `stream` holds now has run.
  void operator()(std::size_t parameter, StreamHandle stream) const { sink_->ready(parameter, stream); }

  /// It is in `gradient` this time (an autograd engine's own tensor), which stays unchanged until the step is finished;
  /// the reduced values are in the parameter's own gradient memory afterwards.
  void operator()(std::size_t parameter, const TensorView& gradient, StreamHandle stream) const {
    sink_->ready(parameter, gradient, stream);
  }

 private:
  Sink* sink_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Ready;
}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/ddp/ready_ledger.hpp

/// @file
/// The ready ledger: which parameters were announced in the step that is under way.

namespace DTRAIN_NAMESPACE::ddp {

/// Each entry holds the number of the step in which its parameter was last ready, so a new step resets nothing.
/// Threads: `enter` concurrently, for any parameters; everything else between steps.
class ReadyLedger {
 public:
  explicit ReadyLedger(std::vector<std::string> names) : names_(std::move(names)), entered_(names_.size()) {}

  void begin_step() noexcept {
    step_.fetch_add(1, std::memory_order_relaxed);
    open_.store(true, std::memory_order_release);
  }

  /// From now on `enter` throws. @returns whether a step was under way.
  bool end_step() noexcept { return open_.exchange(false, std::memory_order_acq_rel); }

  bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }

  /// @throws Error (invalid_argument) for an index out of range, outside a step, or for the second time in it.
  void enter(std::size_t parameter) {
    check_index(parameter);
    if (!is_open()) {
      throw Error(Errc::invalid_argument, "ready(" + std::to_string(parameter) + ") for " + describe(parameter) +
                                              " came when no step was under way; call it between begin() and finish()");
    }
    const std::uint64_t step = step_.load(std::memory_order_relaxed);
    if (entered_[parameter].exchange(step, std::memory_order_relaxed) == step) {
      throw Error(Errc::invalid_argument, "ready(" + std::to_string(parameter) + ") for " + describe(parameter) +
                                              " came twice in step " + std::to_string(step) +
                                              "; call it once, when the gradient is final");
    }
  }

  /// @throws Error (invalid_argument) for an index out of range.
  void check_index(std::size_t parameter) const {
    if (parameter >= names_.size()) {
      throw Error(Errc::invalid_argument, "ready(" + std::to_string(parameter) + ") was called, but the model has " +
                                              std::to_string(names_.size()) +
                                              " parameters; pass an index into parameters()");
    }
  }

  /// A sentence that names up to five parameters which were not ready in this step; empty where all were.
  std::string missing() const {
    const std::uint64_t step = step_.load(std::memory_order_relaxed);
    std::string listed;
    std::size_t count = 0;
    for (std::size_t parameter = 0; parameter < entered_.size(); ++parameter) {
      if (entered_[parameter].load(std::memory_order_relaxed) == step) continue;
      if (++count <= most_named) {
        listed += (count > 1 ? ", " : "") + describe(parameter);
      }
    }
    if (count == 0) {
      return {};
    }
    const std::string more = count > most_named ? " and " + std::to_string(count - most_named) + " more" : "";
    return "in step " + std::to_string(step) + " these parameters got no gradient: " + listed + more +
           "; the backward pass must call ready(i) for every parameter, with zeros where one took no part";
  }

  /// "parameter 3 'fc1.weight'".
  std::string describe(std::size_t parameter) const {
    return "parameter " + std::to_string(parameter) + " '" + names_[parameter] + "'";
  }

  /// The number of the last step begun, from 1.
  std::uint64_t step() const noexcept { return step_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::size_t most_named = 5;

  std::vector<std::string> names_;
  std::vector<std::atomic<std::uint64_t>> entered_;
  std::atomic<std::uint64_t> step_{0};
  std::atomic<bool> open_{false};
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/sample_batches.hpp

/// @file
/// The samples of one rank in one epoch, cut into batches.

namespace DTRAIN_NAMESPACE::ddp {

/// A range of `std::span<const std::size_t>`, one for each batch: indices into the data set. Allocated once an epoch.
/// Lifetime: the spans point into this object.
class SampleBatches {
 public:
  /// Every batch has `batch_size` samples (at least one), the last one what is left.
  SampleBatches(std::vector<std::size_t> samples, std::size_t batch_size)
      : samples_(std::move(samples)), batch_size_(batch_size) {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;  // its reference is a value
    using iterator_concept = std::forward_iterator_tag;
    using value_type = std::span<const std::size_t>;
    using difference_type = std::ptrdiff_t;
    using pointer = const value_type*;
    using reference = value_type;

    Iterator() noexcept = default;
    Iterator(const SampleBatches* batches, std::size_t batch) noexcept : batches_(batches), batch_(batch) {}

    value_type operator*() const { return (*batches_)[batch_]; }
    Iterator& operator++() {
      ++batch_;
      return *this;
    }
    Iterator operator++(int) { return {batches_, batch_++}; }
    friend bool operator==(const Iterator&, const Iterator&) = default;

   private:
    const SampleBatches* batches_ = nullptr;
    std::size_t batch_ = 0;
  };

  /// The number of batches.
  std::size_t size() const noexcept { return (samples_.size() + batch_size_ - 1) / batch_size_; }
  bool empty() const noexcept { return samples_.empty(); }

  /// Batch `batch`, which is less than size().
  std::span<const std::size_t> operator[](std::size_t batch) const {
    const std::size_t first = batch * batch_size_;
    return std::span(samples_).subspan(first, std::min(batch_size_, samples_.size() - first));
  }

  /// All of them, batch after batch.
  std::span<const std::size_t> samples() const noexcept { return samples_; }

  Iterator begin() const noexcept { return {this, 0}; }
  Iterator end() const noexcept { return {this, size()}; }

 private:
  std::vector<std::size_t> samples_;
  std::size_t batch_size_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/shuffle.hpp

/// @file
/// A permutation of 0..n-1 that is the same with every compiler and standard library.

namespace DTRAIN_NAMESPACE::ddp {

/// The finaliser of SplitMix64: a bijection of 64-bit numbers whose output bits all depend on all input bits.
/// Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators" (OOPSLA 2014); Vigna's splitmix64.c.
constexpr std::uint64_t mix64(std::uint64_t value) noexcept {
  value = (value ^ value >> 30) * 0xbf58476d1ce4e5b9u;
  value = (value ^ value >> 27) * 0x94d049bb133111ebu;
  return value ^ value >> 31;
}

/// SplitMix64. The standard's engines are specified but its distributions are not, so the bounded draw is our own.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t state) noexcept : state_(state) {}

  constexpr std::uint64_t next() noexcept { return mix64(state_ += gamma); }

  /// Uniform in 0..bound-1 without bias: draws below 2^64 mod bound are drawn again. `bound` is not zero.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    const std::uint64_t excess = (0 - bound) % bound;
    std::uint64_t drawn = next();
    while (drawn < excess) {
      drawn = next();
    }
    return drawn % bound;
  }

  static constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15u;

 private:
  std::uint64_t state_;
};

/// The generator of one epoch. Seed and epoch are both mixed: neighbouring epochs do not run through the same states.
constexpr SplitMix64 epoch_generator(std::uint64_t seed, std::uint64_t epoch) noexcept {
  return SplitMix64(mix64(mix64(seed + SplitMix64::gamma) + epoch));
}

/// Fisher and Yates, from the last place down, with draws of `epoch_generator(seed, epoch)`.
inline std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  SplitMix64 generator = epoch_generator(seed, epoch);
  for (std::size_t place = count; place > 1; --place) {
    std::swap(order[place - 1], order[generator.below(place)]);
  }
  return order;
}

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/ddp/sampler.hpp

/// @file
/// DistributedSampler: which samples of a data set this rank takes, batch by batch.

namespace DTRAIN_NAMESPACE::ddp {

struct SamplerOptions {
  std::size_t dataset_size = 0;
  std::size_t global_batch = 0;  ///< samples of all ranks together in one step
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;  ///< another order in every epoch; without it 0, 1, 2, ...
};

/// Every epoch has one global order of the data set, which seed and epoch alone decide: it is the same for any number
/// of ranks, so the k-th step trains on the same samples on one rank or on eight. Threads: const members concurrently.
class DistributedSampler {
 public:
  /// @throws Error (invalid_argument) for an empty data set or batch, or a rank outside 0..world_size-1.
  explicit DistributedSampler(const SamplerOptions& options) : options_(options) {
    if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
      throw Error(Errc::invalid_argument, "a sampler was made for rank " + std::to_string(options.rank) + " of " +
                                              std::to_string(options.world_size) +
                                              "; give group.rank() and group.world_size()");
    }
    if (options.dataset_size == 0) {
      throw Error(Errc::invalid_argument, "a sampler was made for a data set without samples; load the data first");
    }
    if (options.global_batch == 0) {
      throw Error(Errc::invalid_argument,
                  "a sampler was made with a global batch of 0 samples; give the samples of all ranks in one step");
    }
  }

  /// For training. Step k takes positions [k*B, min((k+1)*B, N)) of the global order; of such a slice of L samples
  /// every rank gets ceil(L/n): those at rank, rank+n, rank+2n, ... inside the slice, beginning again at the slice's
  /// start where n does not divide L. So all ranks take the same number of steps and of samples in each of them.
  SampleBatches batches(std::uint64_t epoch) const {
    const std::vector<std::size_t> order = global_order(epoch);
    const std::size_t slice = std::min(options_.global_batch, order.size());
    std::vector<std::size_t> mine;
    mine.reserve((order.size() / slice + 1) * share(slice));
    for (std::size_t begin = 0; begin < order.size(); begin += slice) {
      const std::size_t length = std::min(slice, order.size() - begin);
      for (std::size_t taken = 0; taken < share(length); ++taken) {
        mine.push_back(order[begin + (rank() + taken * ranks()) % length]);
      }
    }
    return {std::move(mine), share(slice)};
  }

  /// For evaluation: samples rank, rank+n, rank+2n, ... of the data set in its own order, not padded: over all ranks
  /// every sample comes exactly once. Ranks may differ by one sample, and by a batch.
  SampleBatches evaluation() const {
    std::vector<std::size_t> mine;
    mine.reserve(options_.dataset_size / ranks() + 1);
    for (std::size_t sample = rank(); sample < options_.dataset_size; sample += ranks()) {
      mine.push_back(sample);
    }
    return {std::move(mine), share(std::min(options_.global_batch, options_.dataset_size))};
  }

  /// The order of the whole data set in `epoch`, the same on every rank and for any world size.
  std::vector<std::size_t> global_order(std::uint64_t epoch) const {
    if (options_.shuffle) {
      return shuffled_order(options_.dataset_size, options_.seed, epoch);
    }
    std::vector<std::size_t> order(options_.dataset_size);
    std::iota(order.begin(), order.end(), std::size_t{0});
    return order;
  }

  /// Steps in an epoch, the same on every rank.
  std::size_t steps_per_epoch() const noexcept { return (options_.dataset_size - 1) / options_.global_batch + 1; }

  const SamplerOptions& options() const noexcept { return options_; }

 private:
  std::size_t rank() const noexcept { return static_cast<std::size_t>(options_.rank); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(options_.world_size); }

  /// ceil(length / ranks), without overflow.
  std::size_t share(std::size_t length) const noexcept { return (length - 1) / ranks() + 1; }

  SamplerOptions options_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DistributedSampler;
using ddp::SamplerOptions;
}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/ddp/step.hpp

/// @file
/// Step: one backward pass, from its first ready gradient to the last reduced one.

namespace DTRAIN_NAMESPACE::ddp {

/// Made by `begin()`; a model's backward pass calls `ready` on it, then somebody calls `finish`. Destroyed without, the
/// step is abandoned: the other ranks are told, since they wait for this one's gradients.
/// Threads: `ready` from any thread, concurrently for different i; everything else from the thread that owns it.
/// Lifetime: what made it outlives it. A Ready made from it stays valid when the Step moves, until it is finished.
class Step {
 public:
  /// What a reducer implements to be driven.
  struct Target : Ready::Sink {
    virtual void finish() = 0;
    /// `unwinding`: an exception is on its way out of the scope that held the step; whoever catches it knows the text.
    virtual void abandon(bool unwinding) noexcept = 0;

   protected:
    ~Target() = default;
  };

  explicit Step(Target& target) noexcept : target_(&target), exceptions_(std::uncaught_exceptions()) {}
  Step(Step&& other) noexcept : target_(std::exchange(other.target_, nullptr)), exceptions_(other.exceptions_) {}
  Step& operator=(Step&& other) noexcept {
    if (this != &other) {
      abandon();
      target_ = std::exchange(other.target_, nullptr);
      exceptions_ = other.exceptions_;
    }
    return *this;
  }
  ~Step() { abandon(); }

  /// Gradient `parameter` is final in host memory. Blocking: no; a copy where the gradient is not bound.
  /// @throws Error (invalid_argument) out of range, ready before, or after finish(); the job's cause once it failed.
  void ready(std::size_t parameter) { target().ready(parameter); }

  /// It is final once the work that `stream` holds now has run.
  void ready(std::size_t parameter, StreamHandle stream) { target().ready(parameter, stream); }

  /// It is in `gradient` this time, which stays unchanged until finish() returns; the reduced values are in the
  /// parameter's own gradient memory then.
  void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) {
    target().ready(parameter, gradient, stream);
  }

  /// For code that takes a Ready.
  Ready announcer() { return Ready(target()); }

  /// Collective, blocking: returns when every gradient is reduced, in the parameters' gradient memory. All `ready`
  /// calls have returned before. @throws Error (missing_gradient) that names the parameters that were not ready;
  /// PeerLost, JobFailed; Error (timeout).
  void finish() {
    Target& finishing = target();
    target_ = nullptr;  // a step that fails here has told the job itself
    finishing.finish();
  }

  bool finished() const noexcept { return target_ == nullptr; }

 private:
  Target& target() const {
    if (target_ == nullptr) {
      throw Error(Errc::invalid_argument, "a step was used after finish(); begin() a new one for each backward pass");
    }
    return *target_;
  }

  void abandon() noexcept {
    if (Target* const left = std::exchange(target_, nullptr)) {
      left->abandon(std::uncaught_exceptions() > exceptions_);
    }
  }

  Target* target_;
  int exceptions_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Step;
}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/ddp/reducer.hpp

/// @file
/// The reducer: turns "gradient i is ready" into collectives on buckets, in one order on all ranks.

namespace DTRAIN_NAMESPACE::ddp {

/// What was reduced so far. A step that failed is not counted.
struct ReducerStatistics {
  std::uint64_t steps = 0;
  std::uint64_t bytes_reduced = 0;  ///< of gradients, without padding
  std::size_t buckets = 0;          ///< in the plan
};

/// Owns a channel and an arena that all gradients are reduced in. A bound gradient lives there; any other is copied in
/// when it is ready and out when the step finishes. Steady state: nothing is allocated; one gate for each bucket.
/// Threads: `ready` of a step from any thread; everything else from one. Lifetime: the stream's owner and the
/// parameters' memory outlive it; it is pinned, because steps point to it.
template <backend::Communicator Communicator, class Topology>
class Reducer final : public Step::Target {
 public:
  using Stream = typename Communicator::Stream;

  /// Collective, blocking: allocates the arena. `plan` was made of `parameters`' gradients, in the same order; both are
  /// the same on every rank. @throws Error (unsupported) for gradients that are not in host memory.
  Reducer(Communicator communicator, Stream stream, std::span<const Parameter> parameters, BucketPlan plan, ReduceOp op,
          FailureContext context)
      : communicator_(std::move(communicator)),
        stream_(stream),
        op_(op),
        context_(std::move(context)),
        plan_(std::move(plan)),
        arena_(allocate()),
        gradients_(parameters, plan_, arena_base()),
        ledger_(gradients_.names()),
        queue_(sizes_of(plan_)),
        buckets_(plan_.buckets.size()) {
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      buckets_[bucket].range = range_of(plan_.buckets[bucket], arena_base());
    }
  }

  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Work of a step that was not finished still points into the arena: it is ended first.
  ~Reducer() {
    if (!under_way_) {
      return;
    }
    try {
      communicator_.abort(
          {CauseKind::exception, context_.rank, context_.host, "a step was abandoned without finish()"});
      const Deadline deadline = Deadline::after(std::chrono::seconds(5));
      for (std::size_t bucket = 0; bucket < queue_.launched(); ++bucket) {
        static_cast<void>(buckets_[bucket].reduced.block_until_complete(deadline));
      }
    } catch (...) {
      // Nothing more can be done here, and nobody is left to be told.
    }
  }

  /// Gradient i lives in the arena from now on; what it holds is copied there. Between steps.
  /// @returns where: the view to hand to the model's bind_gradient.
  TensorView bind(std::size_t parameter) { return gradients_.bind(parameter); }

  /// Begins a step. @throws the job's first cause; Error (invalid_argument) while another one is under way or after one
  /// that failed.
  Step begin() {
    if (under_way_ && !ledger_.is_open()) {
      context_.latch->block_until_failed(Deadline::after(cause_grace));
    }
    backend::throw_if_failed(communicator_, *context_.latch, context_.rank);
    if (under_way_) {
      throw Error(Errc::invalid_argument,
                  ledger_.is_open()
                      ? "begin() came while a step was under way; finish() it first"
                      : "begin() came after a step that failed; gradients are no longer the same on all ranks");
    }
    queue_.begin_step();
    ledger_.begin_step();
    under_way_ = true;
    return Step(*this);
  }

  /// See Step; the reducer is what its calls arrive at.
  void ready(std::size_t parameter) override {
    enter(parameter);
    gradients_[parameter].pack();
    arrived(parameter);
  }

  void ready(std::size_t parameter, StreamHandle stream) override {
    ledger_.check_index(parameter);
    gradients_.require_host(parameter, stream);
    ready(parameter);
  }

  void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) override {
    ledger_.check_index(parameter);
    gradients_.require_host(parameter, stream);
    gradients_.require_same_kind(parameter, gradient);
    enter(parameter);
    gradients_[parameter].pack_from(gradient.data);
    arrived(parameter);
  }

  void finish() override {
    if (!ledger_.end_step()) {
      throw Error(Errc::invalid_argument, "finish() came when no step was under way; begin() one first");
    }
    backend::throw_if_failed(communicator_, *context_.latch, context_.rank);
    throw_if_not_launched();
    for (std::size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
      auto& reduced = buckets_[bucket].reduced;
      backend::block_until_complete(reduced, communicator_, *context_.latch, context_.timeout, context_.rank);
      for (const std::size_t parameter : plan_.buckets[bucket].parameters) {
        gradients_[parameter].unpack();
      }
    }
    for (const PlannedBucket& bucket : plan_.buckets) {
      statistics_.bytes_reduced += bucket.payload_bytes;
    }
    ++statistics_.steps;
    under_way_ = false;
  }

  void abandon(bool unwinding) noexcept override {
    ledger_.end_step();
    try {
      if (context_.step_abandoned) {
        context_.step_abandoned(unwinding);
      } else {
        context_.report_exception("a step was abandoned without finish()");
      }
    } catch (...) {
      // The others notice when this rank leaves without having taken part.
    }
  }

  /// Drops FailureContext::step_abandoned, and with it what that holds. After the last step.
  void forget_hook() noexcept { context_.step_abandoned = nullptr; }

  ReducerStatistics statistics() const noexcept {
    ReducerStatistics now = statistics_;
    now.buckets = buckets_.size();
    return now;
  }

  const BucketPlan& plan() const noexcept { return plan_; }

  /// Keeps the arena, and with it every bound gradient, in place after the reducer is gone.
  std::shared_ptr<const void> gradient_memory() const noexcept { return arena_; }

 private:
  using Allocation = typename Communicator::Allocation;

  /// How long the news that a step was abandoned may be on its way: it says more than what comes after.
  static constexpr std::chrono::milliseconds cause_grace{500};

  std::shared_ptr<Allocation> allocate() {
    if (plan_.arena_bytes == 0) {
      return nullptr;
    }
    return std::make_shared<Allocation>(
        communicator_.allocate_blocking(plan_.arena_bytes, Deadline::after(context_.timeout)));
  }

  std::byte* arena_base() const noexcept { return arena_ ? arena_->data() : nullptr; }

  static std::vector<std::size_t> sizes_of(const BucketPlan& plan) {
    std::vector<std::size_t> sizes;
    for (const PlannedBucket& bucket : plan.buckets) {
      sizes.push_back(bucket.parameters.size());
    }
    return sizes;
  }

  /// The others wait for this rank's buckets: whatever keeps them back is told to the job. A bucket that was not
  /// launched has the event of the step before, which is complete.
  void throw_if_not_launched() {
    try {
      queue_.throw_if_launch_failed();
    } catch (const std::exception& error) {
      context_.report_exception(error.what());
      throw;
    }
    if (const std::string missing = ledger_.missing(); !missing.empty()) {
      context_.report_exception(missing);
      throw Error(Errc::missing_gradient, missing).with_rank(context_.rank);
    }
    if (queue_.launched() < buckets_.size()) {
      const std::string early =
          "finish() came while a ready() of its step was still running; wait for its return first";
      context_.report_exception(early);
      throw Error(Errc::invalid_argument, early).with_rank(context_.rank);
    }
  }

  void enter(std::size_t parameter) {
    if (context_.latch->failed()) {
      context_.latch->throw_if_failed(context_.rank);
    }
    ledger_.enter(parameter);
  }

  void arrived(std::size_t parameter) {
    queue_.arrived(plan_.bucket_of[parameter], [this](std::size_t next) { launch(next); });
  }

  /// Under the queue's gate, which makes it the one thread that enqueues.
  void launch(std::size_t next) {
    Bucket<typename Stream::Event>& bucket = buckets_[next];
    if (bucket.range.count != 0) {
      Topology::all_reduce(communicator_, bucket.range, bucket.range, op_, stream_);
    }
    stream_.record(bucket.reduced);
  }

  Communicator communicator_;
  Stream stream_;
  ReduceOp op_;
  FailureContext context_;
  BucketPlan plan_;
  std::shared_ptr<Allocation> arena_;
  GradientTable gradients_;
  ReadyLedger ledger_;
  LaunchQueue queue_;
  std::vector<Bucket<typename Stream::Event>> buckets_;
  ReducerStatistics statistics_;
  bool under_way_ = false;  ///< stays true after a step that failed
};

}  // namespace DTRAIN_NAMESPACE::ddp

// ---- dtrain/group/buffers.hpp

/// @file
/// What a collective of a group takes: views of any memory, or typed host memory as the program has it.

namespace DTRAIN_NAMESPACE::group {

/// Contiguous host memory of an element type that dtrain knows: std::span of any extent, std::vector, std::array, T[n].
template <class Values>
concept HostValues = requires(Values& values) {
  std::span(values);
  requires Element<std::remove_cv_t<typename decltype(std::span(values))::element_type>>;
};

/// The same, to write.
template <class Values>
concept WritableHostValues = HostValues<Values> && requires(Values& values) {
  requires !std::is_const_v<typename decltype(std::span(values))::element_type>;
};

namespace detail {

template <class Values>
inline constexpr bool is_span = false;
template <class T, std::size_t Extent>
inline constexpr bool is_span<std::span<T, Extent>> = true;

template <class T, std::size_t Extent>
BufferView write_view(std::span<T, Extent> values) noexcept {
  return buffer_view(std::span<T>(values));
}

template <class T, std::size_t Extent>
ConstBufferView read_view(std::span<T, Extent> values) noexcept {
  return buffer_view(std::span<const T>(values));
}

}  // namespace detail

// What is contiguous is a buffer, hence no constructor here is explicit.
// NOLINTBEGIN(google-explicit-constructor)

/// What a collective writes: a container that stays, or a span. Lifetime: the memory outlives the work.
struct WriteBuffer : BufferView {
  constexpr WriteBuffer(const BufferView& view) noexcept : BufferView(view) {}

  template <Element T, std::size_t Extent>
  WriteBuffer(std::span<T, Extent> values) noexcept : BufferView(detail::write_view(values)) {}

  template <WritableHostValues Values>
  requires(!detail::is_span<std::remove_const_t<Values>>) WriteBuffer(Values& values)
  noexcept : BufferView(detail::write_view(std::span(values))) {}
};

/// What a collective reads. Lifetime: the memory outlives the work.
struct ReadBuffer : ConstBufferView {
  constexpr ReadBuffer(const ConstBufferView& view) noexcept : ConstBufferView(view) {}
  constexpr ReadBuffer(const BufferView& view) noexcept : ConstBufferView(view) {}

  template <HostValues Values>
  ReadBuffer(const Values& values) noexcept : ConstBufferView(detail::read_view(std::span(values))) {}
};
// NOLINTEND(google-explicit-constructor)

}  // namespace DTRAIN_NAMESPACE::group

// ---- dtrain/group/collectives.hpp

/// @file
/// The collectives of a process group.

namespace DTRAIN_NAMESPACE::group {

/// What ProcessGroup inherits. Each operation comes twice: with a stream it is enqueued there and returns; what ends in
/// `_blocking` runs on the group's own stream, behind what is enqueued there, and returns when it is done, at most
/// timeout() after it begins to run. An operation exists where the backend's communicator has the ability (see
/// dtrain/backend/communicator.hpp). Buffers are views of any memory of the backend's, or typed host memory: a
/// std::span, std::vector, std::array or array of a dtrain::Element.
///
/// Collective: every rank of the group calls the same operations in the same order, with the same counts, types, roots
/// and reductions; send, recv and send_recv concern the ranks that they name. Lifetime: buffers outlive enqueued work.
/// Threads: one at a time for each group. @throws Error (invalid_argument) before anything is enqueued where sizes,
/// types, ranks or addresses do not fit; the job's first cause.
template <class Group, class Communicator, class Topology>
class Collectives {
 public:
  using Stream = typename Communicator::Stream;

  /// `output` gets the reduction of every rank's `input`: the same memory as `input`, or disjoint.
  void all_reduce(ReadBuffer input, WriteBuffer output, ReduceOp op, Stream stream) const {
    backend::check_all_reduce(input, output);
    Topology::all_reduce(live(), input, output, op, stream);
  }
  void all_reduce(WriteBuffer values, ReduceOp op, Stream stream) const { all_reduce(values, values, op, stream); }
  void all_reduce_blocking(ReadBuffer input, WriteBuffer output, ReduceOp op) const {
    all_reduce(input, output, op, stream());
    wait();
  }
  void all_reduce_blocking(WriteBuffer values, ReduceOp op) const { all_reduce_blocking(values, values, op); }

  /// `buffer` gets rank `root`'s content.
  void broadcast(WriteBuffer buffer, int root, Stream stream) const {
    Communicator& channel = live();
    backend::check_broadcast(buffer, root, channel.size());
    channel.broadcast(buffer, root, stream);
  }
  void broadcast_blocking(WriteBuffer buffer, int root) const {
    broadcast(buffer, root, stream());
    wait();
  }

  /// Rank r's `output` gets block r of the reduction of every rank's `input`, which has a block for each rank.
  /// Disjoint.
  void reduce_scatter(ReadBuffer input, WriteBuffer output, ReduceOp op,
                      Stream stream) const requires backend::CanReduceScatter<Communicator> {
    Communicator& channel = live();
    backend::check_reduce_scatter(input, output, channel.rank(), channel.size());
    channel.reduce_scatter(input, output, op, stream);
  }
  void reduce_scatter_blocking(ReadBuffer input, WriteBuffer output,
                               ReduceOp op) const requires backend::CanReduceScatter<Communicator> {
    reduce_scatter(input, output, op, stream());
    wait();
  }

  /// Block r of `output`, which has one for each rank, gets rank r's `input`: the same memory as that block, or
  /// disjoint.
  void all_gather(ReadBuffer input, WriteBuffer output,
                  Stream stream) const requires backend::CanAllGather<Communicator> {
    Communicator& channel = live();
    backend::check_all_gather(input, output, channel.rank(), channel.size());
    channel.all_gather(input, output, stream);
  }
  void all_gather_blocking(ReadBuffer input, WriteBuffer output) const requires backend::CanAllGather<Communicator> {
    all_gather(input, output, stream());
    wait();
  }

  /// Gives `input` to rank `peer`, which calls recv. May complete before that, or only then.
  void send(ReadBuffer input, int peer, Stream stream) const requires backend::CanSendRecv<Communicator> {
    Communicator& channel = live();
    backend::check_message("send", input, peer, channel.rank(), channel.size());
    channel.send(input, peer, stream);
  }
  void send_blocking(ReadBuffer input, int peer) const requires backend::CanSendRecv<Communicator> {
    send(input, peer, stream());
    wait();
  }

  /// `output` gets what rank `peer` sends: the k-th recv the k-th send.
  void recv(WriteBuffer output, int peer, Stream stream) const requires backend::CanSendRecv<Communicator> {
    Communicator& channel = live();
    backend::check_message("recv", output, peer, channel.rank(), channel.size());
    channel.recv(output, peer, stream);
  }
  void recv_blocking(WriteBuffer output, int peer) const requires backend::CanSendRecv<Communicator> {
    recv(output, peer, stream());
    wait();
  }

  /// Both at once, so that ranks in a ring need not take turns; to itself a rank copies. `input` and `output` are
  /// disjoint.
  void send_recv(ReadBuffer input, int to, WriteBuffer output, int from,
                 Stream stream) const requires backend::CanSendRecv<Communicator> {
    Communicator& channel = live();
    backend::check_send_recv(input, to, output, from, channel.size());
    channel.send_recv(input, to, output, from, stream);
  }
  void send_recv_blocking(ReadBuffer input, int to, WriteBuffer output,
                          int from) const requires backend::CanSendRecv<Communicator> {
    send_recv(input, to, output, from, stream());
    wait();
  }

  /// Completes when every rank's stream has come to it.
  void barrier(Stream stream) const { live().barrier(stream); }
  void barrier_blocking() const {
    barrier(stream());
    wait();
  }

 private:
  const Group& self() const noexcept { return static_cast<const Group&>(*this); }
  Communicator& live() const { return self().circle_->live(); }
  Stream stream() const { return self().stream(); }
  void wait() const { self().wait(); }
};

}  // namespace DTRAIN_NAMESPACE::group

// ---- dtrain/group/job.hpp

/// @file
/// group::Job: what all groups of one rank share, from joining the job to leaving it.

namespace DTRAIN_NAMESPACE::group {

/// Owned by the rank's groups together. Its end leaves the job; where an exception unwinds the stack at that moment,
/// the rank has failed instead, and the others are told. Threads: all members from any thread, leave_blocking and the
/// end from one.
class Job {
 public:
  /// A channel of this rank that closes when the rank leaves: its peers are told so instead of waiting for this one.
  class Closable {
   public:
    virtual void close() noexcept = 0;

   protected:
    ~Closable() = default;
  };

  /// Collective, blocking: joins as the rank that `worker` describes. @throws as Participant.
  Job(const launch::Worker& worker, std::string terms)
      : timeout(worker.timeout),
        participant(launch::participant_options(worker, std::move(terms))),
        tasks(participant.control_thread(), participant.failure(), participant.membership().rank),
        streams(std::make_shared<stream::host::StreamSet>()) {}
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  ~Job() {
    if (left_) {
      return;
    }
    try {
      if (std::uncaught_exceptions() > exceptions_at_start_) {
        report_exception("an exception ended the process group");
      } else if (!participant.failure()->failed()) {
        leave_blocking();
      }
    } catch (...) {
      // The others see the closed connection.
    }
  }

  /// @throws Error (invalid_argument) on the control thread, where a coroutine runs.
  void require_may_block() const {
    if (tasks.on_loop_thread()) {
      throw Error(Errc::invalid_argument,
                  "a collective or a call that blocks was made in a coroutine on the control thread, where it would "
                  "wait for itself; make it on a thread of the program");
    }
  }

  /// Blocking: until the job knows, 2 s at most.
  void report_exception(const std::string& text) noexcept {
    try {
      participant.failure()->report(exception_cause(text));
      if (!tasks.on_loop_thread()) {
        participant.failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
      }
    } catch (...) {
      // The others see the closed connection.
    }
  }

  /// The same after `grace`, in which somebody may report something better. Blocking: no.
  void report_after(std::chrono::milliseconds grace, std::string text) noexcept {
    try {
      async::EventLoop& loop = participant.control_thread().loop();
      loop.post([&loop, grace, latch = participant.failure(), cause = exception_cause(std::move(text))] {
        loop.spawn_detached(report_later(loop, grace, latch, cause));
      });
    } catch (...) {
      // The others notice when this rank leaves without having taken part.
    }
  }

  /// Keeps `work` until the end.
  void outlive(std::shared_ptr<void> work) noexcept {
    try {
      const std::lock_guard lock(mutex_);
      kept_.push_back(std::move(work));
    } catch (...) {
      // Then it ends now; the others may hear a less good cause.
    }
  }

  /// Lifetime: `channel` is removed before it goes.
  void add(Closable& channel) {
    const std::lock_guard lock(mutex_);
    channels_.push_back(&channel);
  }
  void remove(Closable& channel) noexcept {
    const std::lock_guard lock(mutex_);
    channels_.erase(std::remove(channels_.begin(), channels_.end(), &channel), channels_.end());
  }

  void leave_blocking() {
    left_ = true;
    tasks.close_blocking();
    std::vector<std::shared_ptr<void>> kept;
    {
      const std::lock_guard lock(mutex_);
      for (Closable* channel : channels_) {
        channel->close();
      }
      kept.swap(kept_);
    }
    kept.clear();  // peers that wait in one of these channels are told, too
    participant.leave_blocking(Deadline::after(timeout));
  }

  const std::chrono::nanoseconds timeout;  ///< of one collective
  rendezvous::Participant participant;
  rendezvous::ControlTasks tasks;
  const std::shared_ptr<stream::host::StreamSet> streams;  ///< of this rank, all groups and wrappers

 private:
  Cause exception_cause(std::string text) const {
    const rendezvous::Membership& self = participant.membership();
    return {CauseKind::exception, self.rank, self.host, std::move(text)};
  }

  static async::Task<void> report_later(async::EventLoop& loop, std::chrono::milliseconds grace,
                                        std::shared_ptr<FailureLatch> latch, Cause cause) {
    co_await loop.sleep_for(grace);
    latch->report(cause);
  }

  std::mutex mutex_;
  std::vector<Closable*> channels_;
  std::vector<std::shared_ptr<void>> kept_;  ///< goes before what it stands on
  bool left_ = false;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE::group

// ---- dtrain/group/circle.hpp

/// @file
/// group::Circle: the ranks of one group, and what this rank has of its own among them.

namespace DTRAIN_NAMESPACE::group {

/// Shared by the handles of one group. Its end closes the group's channel; the job ends with its last circle. Where an
/// exception unwinds, the channel stays with the job: the peers are to end with that exception's text, and not because
/// this rank's channel closed. Threads: collectives from one at a time; the rest from any.
template <backend::Backend Backend>
class Circle final : private Job::Closable {
 public:
  using Communicator = typename Backend::Communicator;
  using StreamOwner = typename Backend::StreamOwner;

  /// Collective, blocking: all ranks of the job.
  static std::shared_ptr<Circle> whole(std::shared_ptr<Job> job) {
    rendezvous::Membership members = job->participant.membership();
    std::shared_ptr<Circle> circle = make(std::move(job), std::move(members), "");
    circle->ends_->communicator.emplace(circle->open("group"));
    return circle;
  }

  Circle(const Circle&) = delete;
  Circle& operator=(const Circle&) = delete;
  ~Circle() {
    job_->remove(*this);
    if (std::uncaught_exceptions() > exceptions_) {
      job_->outlive(std::move(ends_));
    }
  }

  const std::shared_ptr<Job>& job() const noexcept { return job_; }
  const rendezvous::Membership& members() const noexcept { return members_; }
  bool is_whole() const noexcept { return prefix_.empty(); }
  auto stream() const { return ends_->stream.ref(); }

  /// @throws Error (closed) after the rank has left; Error (invalid_argument) on the control thread.
  Communicator& live() {
    job_->require_may_block();
    if (!ends_->communicator) {
      throw Error(Errc::closed, "a collective was called on a process group that this rank has left");
    }
    return *ends_->communicator;
  }

  /// The job's, with the group's prefix before every key, and barriers of the group's ranks.
  rendezvous::Store store() const {
    rendezvous::Store store = job_->participant.store().with_timeout(job_->timeout);
    return is_whole() ? store : store.with_prefix(prefix_).with_parties(members_.world_size);
  }

  /// Collective, blocking: a channel of its own for the ranks of this circle.
  Communicator open_channel(const std::string& purpose) {
    job_->require_may_block();
    return open(purpose + "-" + std::to_string(channels_opened_.fetch_add(1)));
  }

  /// Collective, blocking: a circle of the ranks that give the same color, ordered by key, then by rank.
  std::shared_ptr<Circle> split_blocking(int color, int key) {
    if (color < 0) {
      throw Error(Errc::invalid_argument, "splitting a process group with color " + std::to_string(color) +
                                              "; every rank gives a color of at least 0");
    }
    Communicator& whole = live();
    job_->streams->run_what_nobody_runs();  // other ranks may wait for it before they come here
    Communicator part = told([&] { return whole.split_blocking(color, key, Deadline::after(job_->timeout)); });
    rendezvous::Membership members = members_;
    members.job_rank = members_.rank_in_job();
    members.rank = part.rank();
    members.world_size = part.size();
    std::string prefix = prefix_ + "split-" + std::to_string(splits_++) + "-" + std::to_string(color) + "/";
    std::shared_ptr<Circle> circle = make(job_, std::move(members), std::move(prefix));
    circle->ends_->communicator.emplace(std::move(part));
    return circle;
  }

  /// A stream of this rank: where the rank is stalled in another one, its work is run in the background.
  StreamOwner open_stream() const {
    StreamOwner stream;
    enlist(stream);
    return stream;
  }

  /// Later collectives are refused, and peers that wait in one are told. Not while one runs.
  void close() noexcept override { ends_->communicator.reset(); }

  rendezvous::ControlTasks& tasks;  ///< the job's; for DeleteOffLoop

 private:
  /// What an exception leaves with the job. The communicator goes before its stream.
  struct Ends {
    StreamOwner stream;
    std::optional<Communicator> communicator;  ///< nothing once this rank has left
  };

  Circle(std::shared_ptr<Job> job, rendezvous::Membership members, std::string prefix)
      : tasks(job->tasks),
        job_(std::move(job)),
        members_(std::move(members)),
        prefix_(std::move(prefix)),
        ends_(std::make_shared<Ends>()) {
    enlist(ends_->stream);
    job_->add(*this);
  }

  static std::shared_ptr<Circle> make(std::shared_ptr<Job> job, rendezvous::Membership members, std::string prefix) {
    return {new Circle(std::move(job), std::move(members), std::move(prefix)), rendezvous::DeleteOffLoop()};
  }

  void enlist(StreamOwner& stream) const {
    if constexpr (requires { stream.enter(job_->streams); }) {
      stream.enter(job_->streams);
    }
  }

  /// What goes wrong on one rank while a channel is made is told to the job: the others would wait for this one.
  /// Blocking: 2 s at most beyond `make`. @throws the job's first cause
  template <class Make>
  Communicator told(Make make) const {
    try {
      return make();
    } catch (const JobFailed&) {
      throw;
    } catch (const Error& error) {
      const std::shared_ptr<FailureLatch>& failure = job_->participant.failure();
      const int self = members_.rank_in_job();
      failure->report({CauseKind::exception, self, members_.host, error.what()});
      failure->block_until_failed(Deadline::after(std::chrono::seconds(2)));
      failure->throw_if_failed(self);
      throw;
    }
  }

  Communicator open(const std::string& purpose) const {
    const std::string name = prefix_ + purpose;
    job_->streams->run_what_nobody_runs();  // other ranks may wait for it before they come here
    const backend::ChannelContext context{members_,
                                          name,
                                          job_->participant.store().with_prefix(name + "/"),
                                          job_->participant.failure(),
                                          job_->timeout,
                                          [streams = job_->streams] { streams->run_what_nobody_runs(); }};
    return Backend::open_blocking(context, Deadline::after(job_->timeout));
  }

  std::shared_ptr<Job> job_;
  const rendezvous::Membership members_;
  const std::string prefix_;  ///< of keys and channel names; empty for the whole job
  std::shared_ptr<Ends> ends_;
  std::atomic<int> channels_opened_{0};
  int splits_ = 0;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE::group

// ---- dtrain/policy.hpp

/// @file
/// Policy: how processes start, what carries the bytes and along which paths, chosen at compile time.

namespace DTRAIN_NAMESPACE {

/// The three choices of a job. What cannot work together does not compile, in one sentence that names what is missing
/// and the header with the contract.
template <class LauncherType, class BackendType, class TopologyType = topology::Flat>
struct Policy {
  using Launcher = LauncherType;
  using Backend = BackendType;
  using Topology = TopologyType;

  static constexpr bool has_launcher = launch::Launcher<Launcher>;
  static_assert(has_launcher,
                "dtrain: the first type of Policy must be a launcher: launch::PerNode or launch::PerProcess "
                "(contract: dtrain/launch/launcher.hpp)");

  static constexpr bool has_backend = backend::Backend<Backend>;
  static_assert(has_backend,
                "dtrain: the second type of Policy must be a backend, such as backend::SharedMemory "
                "(contract: dtrain/backend/backend.hpp)");

  static constexpr bool has_topology = topology::Topology<Topology>;
  static_assert(has_topology,
                "dtrain: the third type of Policy must be a topology, such as topology::Flat "
                "(contract: dtrain/topology/topology.hpp)");

  /// Does not compile where the backend lacks what the topology needs; the topology says what that is.
  static constexpr bool fits = [] {
    if constexpr (has_backend && has_topology) {
      Topology::template require<typename Backend::Communicator>();
    }
    return true;
  }();
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/process_group.hpp

/// @file
/// ProcessGroup: a rank's handle on the job it belongs to, or on a part of it.

namespace DTRAIN_NAMESPACE {

using async::Task;
using rendezvous::BackgroundTask;

/// A shared handle: copies are the same group. Its collectives are those of group::Collectives: what takes a stream
/// enqueues on it; what ends in `_blocking` waits, at most timeout(). Threads: collectives of one group come from one
/// thread at a time and in the same order on every rank; those of different groups (split_blocking) never wait for each
/// other; store(), failure() and the identity from any thread. Errors: once the job has failed every call throws its
/// first cause (PeerLost, JobFailed; on the rank it came from, Error).
///
/// Leaving: the end of the last handle on the job or on any part of it says that this rank is done, and then the job
/// goes on without it. If an exception is unwinding the stack at that moment the rank counts as failed, and the others
/// are told.
template <class P>
class ProcessGroup
    : public group::Collectives<ProcessGroup<P>, typename P::Backend::Communicator, typename P::Topology> {
 public:
  using Policy = P;
  using Communicator = typename P::Backend::Communicator;
  using Stream = typename Communicator::Stream;
  using StreamOwner = typename P::Backend::StreamOwner;

  /// Collective, blocking: joins the job as the rank that `worker` describes. For run() and init_process_group().
  /// @throws Error for an identity that the others do not agree with, a host that does not resolve, a port in use, a
  /// deadline that passes (the sentence names who has not come).
  static ProcessGroup join(const launch::Worker& worker) {
    std::shared_ptr<group::Job> job(new group::Job(worker, terms(worker)), rendezvous::DeleteOffLoop());
    return ProcessGroup(Circle::whole(std::move(job)));
  }

  /// Among the ranks of this group. Causes and log lines name ranks of the job: members().rank_in_job().
  int rank() const noexcept { return members().rank; }
  int world_size() const noexcept { return members().world_size; }

  /// Where this process is in the whole job, also in a group that was split off.
  int local_rank() const noexcept { return members().local_rank; }
  int local_world_size() const noexcept { return members().local_world_size; }
  int node_rank() const noexcept { return members().node_rank; }
  int node_count() const noexcept { return members().node_count; }
  const rendezvous::Membership& members() const noexcept { return circle_->members(); }

  /// The longest that one collective may take, from the moment it begins to run (DTRAIN_TIMEOUT_SECONDS).
  std::chrono::nanoseconds timeout() const noexcept { return job().timeout; }

  /// Collective, blocking: the group of the ranks that give the same `color` (at least 0), ordered by `key`, then by
  /// rank() here. It has its own channel, stream and part of the store, takes DistributedDataParallel and can be split
  /// again; with the same color everywhere it is this group once more, for another thread. The job is shared: its
  /// failure, the control loop, and leaving it, which the end of a part does not do.
  /// @throws Error (invalid_argument) for a negative color; the job's first cause
  ProcessGroup split_blocking(int color, int key = 0) const requires backend::CanSplit<Communicator> {
    return ProcessGroup(circle_->split_blocking(color, key));
  }

  /// The job's key-value store; its calls without a deadline take timeout() at most. A group that was split off sees
  /// its own keys only, and its barriers are of its ranks.
  rendezvous::Store store() const { return circle_->store(); }

  /// Runs a coroutine of yours on this rank's control loop, beside dtrain's own, and gives its value:
  /// `run_blocking([&]() -> dtrain::Task<std::string> { co_return co_await group.store().get("key"); })`. There the
  /// store's coroutine forms suspend; what ends in `_blocking` throws instead of waiting for itself, and whatever else
  /// blocks the thread delays the whole rank's control.
  /// Blocking: until the coroutine has ended; at the deadline it is cancelled (none: timeout() and a moment, for what
  /// the store says of its own timeouts). @param make gives the Task; may take the loop (async::EventLoop&)
  /// @throws what the coroutine throws; the job's first cause; Error (timeout); Error (closed) after leave_blocking
  template <class Make>
  auto run_blocking(Make&& make, std::optional<Deadline> deadline = {}) const {
    const Deadline by = deadline ? *deadline : rendezvous::a_moment_after(Deadline::after(timeout()));
    return job().tasks.run_blocking(make, by);
  }

  /// The same in the background: the coroutine runs until it ends, its owner (the result) is destroyed, the job fails
  /// or this rank leaves. BackgroundTask::wait_blocking gives its value and its exception, which else nobody sees.
  /// Lifetime: `make` is kept; a handle of the group outside the coroutine outlives it. Threads: any.
  template <class Make>
  auto spawn(Make make) const {
    return job().tasks.start(std::move(make));
  }

  /// Where the job's first cause arrives.
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return job().participant.failure(); }

  /// The stream that the group's own collectives run on when they block.
  Stream stream() const { return circle_->stream(); }

  /// A stream of your own for collectives of this rank. While the rank waits long in a collective on one of its
  /// streams, what is enqueued on the others is run in the background, so that channels never wait for each other.
  /// Lifetime: outlives the work and, like the group's own, is no longer used after leave_blocking.
  StreamOwner open_stream() const { return circle_->open_stream(); }

  /// What is enqueued on this rank's streams begins to run, in the background where no thread runs it: before a long
  /// wait that is no collective, if other ranks may wait for it meanwhile. Blocking: no.
  void run_enqueued() const noexcept { job().streams->run_what_nobody_runs(); }

  /// Collective, blocking: passes when every rank has come here and none has failed. Before a checkpoint is written.
  void throw_if_failed() const { this->barrier_blocking(); }

  /// Collective, blocking: a channel of its own, which never waits for another. Every rank opens the same channels in
  /// the same order; `purpose` appears in messages.
  Communicator open_channel(const std::string& purpose) const { return circle_->open_channel(purpose); }

  /// Tells the job that this rank failed; every rank ends with `text` as the cause unless another cause came first.
  /// Blocking: until the job knows, 2 s at most.
  void report_exception(const std::string& text) const noexcept { job().report_exception(text); }

  /// A step was destroyed before it finished. While an exception unwinds, whoever catches it knows its text and is
  /// given 100 ms to report it first. Blocking: no.
  void note_abandoned_step(bool unwinding) const noexcept {
    const auto grace = unwinding ? std::chrono::milliseconds(100) : std::chrono::milliseconds(0);
    job().report_after(grace, "a step was abandoned without finish()");
  }

  /// Keeps `work` until this rank's end: for channels that an exception unwinds. Closing them at once would tell the
  /// peers that this rank went away before whoever catches the exception can tell them why. Threads: any.
  void outlive(std::shared_ptr<void> work) const noexcept { job().outlive(std::move(work)); }

  /// Says that this rank is done, with all its groups: from now on its end is no loss. For run(). On a group that was
  /// split off it only closes that. Not while a collective runs. Blocking: a rank that hosts the store stays until all
  /// have left, timeout() at most.
  void leave_blocking() const {
    require_may_block();
    if (circle_->is_whole()) {
      job().leave_blocking();
    } else {
      circle_->close();
    }
  }

  /// @throws Error (invalid_argument) on the control thread, where a coroutine runs: what blocks would wait for itself.
  void require_may_block() const { job().require_may_block(); }

 private:
  using Circle = group::Circle<typename P::Backend>;
  friend group::Collectives<ProcessGroup, Communicator, typename P::Topology>;

  explicit ProcessGroup(std::shared_ptr<Circle> circle) noexcept : circle_(std::move(circle)) {}

  /// What must be the same on all ranks. Their models and what is said about these are compared when they are wrapped.
  static std::string terms(const launch::Worker& worker) {
    rendezvous::AgreedTerms terms;
    terms.add("launcher", P::Launcher::name()).add("backend", P::Backend::name()).add("topology", P::Topology::name());
    terms.add("DTRAIN_TIMEOUT_SECONDS", std::to_string(std::chrono::duration<double>(worker.timeout).count()));
    return terms.text();
  }

  group::Job& job() const noexcept { return *circle_->job(); }

  void wait() const {
    typename Stream::Event event;
    stream().record(event);
    backend::block_until_complete(event, circle_->live(), *failure(), timeout(), members().rank_in_job());
  }

  std::shared_ptr<Circle> circle_;
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/distributed_data_parallel.hpp

/// @file
/// DistributedDataParallel: wraps a model and averages its gradients over the ranks while the backward pass runs.

namespace DTRAIN_NAMESPACE {

/// `DistributedDataParallel ddp{model, group};`
///
/// Lifetime: borrows the model, whose parameters stay at their addresses; keeps the group. Gradients that the model let
/// be placed (bind_gradient) live in memory of this object: after its destruction the model must not touch them, unless
/// gradient_memory() is kept. Threads: one drives the steps; a step's `ready` may be called from any.
template <class M, class P>
class DistributedDataParallel {
 public:
  static_assert(ddp::Model<M>,
                "dtrain: Model needs parameters(): a sized range of dtrain::Parameter (see dtrain/ddp/model.hpp)");

  /// Collective, blocking: opens a channel, makes sure that all ranks have the same model, gives every rank rank 0's
  /// values, plans the buckets, and binds the gradients where the model can.
  /// @throws Error (disagreement) or JobFailed on every rank where two models differ: the first difference and both
  /// ranks; Error (invalid_argument) for parameters that cannot be trained; (unsupported) for a device or an
  /// element type that the backend does not reduce; the job's first cause.
  DistributedDataParallel(M& model, ProcessGroup<P> group, DdpOptions options = {})
      : group_(std::move(group)), driver_(std::make_shared<Driver>(group_)) {
    if constexpr (ddp::Model<M>) {  // else the assertion above has said it
      try {
        construct(model, options);
      } catch (...) {
        leave_to_group();
        throw;
      }
    }
  }

  DistributedDataParallel(M&&, ProcessGroup<P> group, DdpOptions = {}) : group_(std::move(group)) {
    static_assert(sizeof(M) == 0,
                  "dtrain: DistributedDataParallel borrows its model: give it a variable that outlives it");
  }

  DistributedDataParallel(DistributedDataParallel&&) noexcept = default;
  DistributedDataParallel& operator=(DistributedDataParallel&&) = delete;

  /// Blocking: no, unless work of an unfinished step is running. While an exception unwinds, the channel stays with the
  /// group: the peers are to end with that exception's text, and not because this rank's channel closed.
  ~DistributedDataParallel() {
    if (driver_ && std::uncaught_exceptions() > exceptions_) {
      leave_to_group();
    }
  }

  /// `f(ready)` runs the backward pass and calls `ready(i)` for every parameter; then all gradients are reduced.
  /// Collective, blocking. @throws what `f` throws, after telling the job, whose other ranks then throw its text; and
  /// as Step::finish.
  template <std::invocable<Ready> F>
  void backward(F&& f) {
    Step step = begin();
    try {
      std::forward<F>(f)(step.announcer());
    } catch (const std::exception& error) {
      report(error.what());
      throw;
    } catch (...) {
      report("an exception that is not a std::exception");
      throw;
    }
    step.finish();
  }

  /// The same in pieces: call `ready` on the step, then `finish`. @throws the job's first cause.
  Step begin() {
    group_.require_may_block();
    return driver_->reducer->begin();
  }

  ddp::ReducerStatistics statistics() const noexcept { return driver_->reducer->statistics(); }

  const ddp::BucketPlan& plan() const noexcept { return driver_->reducer->plan(); }

  const ProcessGroup<P>& group() const noexcept { return group_; }

  /// Keep it where bound gradients are used after this object is gone.
  std::shared_ptr<const void> gradient_memory() const noexcept { return driver_->reducer->gradient_memory(); }

 private:
  using Backend = typename P::Backend;
  using Reducer = ddp::Reducer<typename Backend::Communicator, typename P::Topology>;

  /// Steps point into it, so it does not move when this object does. The reducer goes before its stream.
  struct Driver {
    explicit Driver(const ProcessGroup<P>& group) : stream(group.open_stream()) {}
    typename Backend::StreamOwner stream;
    std::unique_ptr<Reducer> reducer;
  };

  /// The group keeps the channel, so the channel must not keep the group.
  void leave_to_group() noexcept {
    if (driver_->reducer) {
      driver_->reducer->forget_hook();
    }
    group_.outlive(std::move(driver_));
  }

  void construct(M& model, const DdpOptions& options) {
    const ddp::FailureContext context = failure_context();
    const std::vector<Parameter> parameters = ddp::capture_parameters(model);
    check_options(options);
    check_reducible(parameters);
    group_.run_enqueued();  // other ranks may wait for it before they come here
    ddp::agree_blocking(group_.store(), instance_prefix(), ddp::describe(parameters, options), group_.rank(), context,
                        Deadline::after(group_.timeout()));

    auto communicator = group_.open_channel("ddp");
    ddp::broadcast_values(communicator, driver_->stream.ref(), parameters, context);
    ddp::BucketPlan plan = ddp::plan_buckets(ddp::gradient_sizes(parameters), options.caps());
    driver_->reducer = std::make_unique<Reducer>(std::move(communicator), driver_->stream.ref(), parameters,
                                                 std::move(plan), options.reduce_op, context);
    if constexpr (ddp::BindsGradients<M>) {
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        model.bind_gradient(i, driver_->reducer->bind(i));
      }
    }
    start_progress(options.progress);
  }

  /// Where the backend's streams are run by the host, a helper thread runs this one while the user computes.
  void start_progress(stream::host::Progress wanted) {
    if constexpr (requires { driver_->stream.start_helper(); }) {
      using stream::host::Progress;
      const int cores = stream::host::cores_by_affinity();
      if (stream::host::decide(wanted, cores, group_.local_world_size()) == Progress::thread) {
        driver_->stream.start_helper();
      }
    }
  }

  static void check_reducible(std::span<const Parameter> parameters) {
    const auto refuse = [&](std::size_t i, const std::string& what) {
      throw Error(Errc::unsupported, "parameter " + std::to_string(i) + " '" + parameters[i].name + "' " + what +
                                         ", which backend " + std::string(std::string_view(Backend::name())) +
                                         " does not reduce");
    };
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!Backend::supports(parameters[i].value.device.kind)) {
        refuse(i, "is on " + to_string(parameters[i].value.device));
      }
      if (!Backend::reduces(parameters[i].gradient.dtype)) {
        refuse(i, std::string("has a gradient of ") + name(parameters[i].gradient.dtype));
      }
    }
  }

  ddp::FailureContext failure_context() const {
    return {group_.failure(), group_.members().rank_in_job(), group_.members().host, group_.timeout(),
            [group = group_](bool unwinding) { group.note_abandoned_step(unwinding); }};
  }

  /// Instances are constructed in the same order on every rank: the store counts each rank's.
  std::string instance_prefix() const {
    const std::int64_t instance = group_.store().add_blocking("ddp/instances/" + std::to_string(group_.rank()), 1,
                                                              Deadline::after(group_.timeout()));
    return "ddp/" + std::to_string(instance) + "/";
  }

  /// What the job's own failure made `f` throw is no news to it.
  void report(const char* text) const {
    if (!group_.failure()->failed()) {
      group_.report_exception(text);
    }
  }

  ProcessGroup<P> group_;
  std::shared_ptr<Driver> driver_;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace DTRAIN_NAMESPACE

// ---- dtrain/run.hpp

/// @file
/// run(): starts the ranks as the policy says and runs the body on each.

namespace DTRAIN_NAMESPACE {

/// What a program under run() exits with, besides what the body returned.
inline constexpr int exit_code_exception = 1;
inline constexpr int exit_code_usage = 2;
inline constexpr int exit_code_job_failed = 75;

/// argv without the launcher's flags; [0] is the program's name.
using Arguments = std::span<char* const>;

/// `body(group)` or `body(group, arguments)`, returning an exit code or nothing.
template <class Body, class P>
concept RunBody = std::invocable<Body, ProcessGroup<P>> || std::invocable<Body, ProcessGroup<P>, Arguments>;

namespace detail {

template <class P, RunBody<P> Body>
int call_body(Body& body, ProcessGroup<P> group, Arguments arguments) {
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::invocable<Body, ProcessGroup<P>, Arguments>) {
      return std::invoke(body, std::move(group), arguments);
    } else {
      return std::invoke(body, std::move(group));
    }
  };
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    return 0;
  } else {
    return call();
  }
}

inline int exit_code_of(const Error& error) {
  const bool usage = error.code() == make_error_code(Errc::usage) || error.code() == make_error_code(Errc::identity);
  return usage ? exit_code_usage : exit_code_exception;
}

/// Joins, runs the body, leaves; turns what was thrown into a line on stderr, a report to the job and an exit code.
/// A process that the body forked ends where it comes back from it.
template <class P, RunBody<P> Body>
int run_worker(const launch::Worker& worker, Body& body) {
  const std::string who = "rank " + std::to_string(worker.identity.rank) + ": ";
  const pid_t process = ::getpid();
  std::optional<ProcessGroup<P>> group;
  const auto end_if_forked = [&](int exit_code) {
    if (::getpid() != process) {  // it has none of the group's threads, and must not speak for the rank
      log(LogLevel::warning,
          who + "a process that the body forked came back from it; let such a process end with " + "_exit or exec");
      static_cast<void>(std::fflush(nullptr));
      ::_exit(exit_code);
    }
  };
  const auto fail = [&](const char* text, int exit_code) {
    end_if_forked(exit_code);
    bool said_by_another = false;  // what all ranks stumble over (a flag, a missing file) is said once
    if (group) {
      group->report_exception(text);
      const std::optional<Cause> cause = group->failure()->cause();
      said_by_another = cause && cause->rank != group->rank() && cause->text == text;
    }
    log(said_by_another ? LogLevel::info : LogLevel::error, who + text);
    return exit_code;
  };
  try {
    group.emplace(ProcessGroup<P>::join(worker));
    const int exit_code = call_body<P>(body, *group, worker.arguments());
    end_if_forked(exit_code);
    group->leave_blocking();
    return exit_code;
  } catch (const JobFailed& failed) {
    end_if_forked(exit_code_job_failed);
    log(LogLevel::error, who + "ends because " + failed.what());
    return exit_code_job_failed;
  } catch (const Error& error) {
    return fail(error.what(), exit_code_of(error));
  } catch (const std::exception& error) {
    return fail(error.what(), exit_code_exception);
  } catch (...) {
    return fail("an exception that is not a std::exception", exit_code_exception);
  }
}

}  // namespace detail

/// Runs `body` on every rank and returns the process's exit code: the body's; 1 after an exception (its text is on
/// stderr), 2 for a usage or identity error, 75 when this rank fell because another failed first. With launch::PerNode
/// the process the user started becomes the launcher, never calls `body`, and returns the first failing worker's code
/// (128 + signal). To be main's first statement. Blocking: until the job ends.
template <class P, RunBody<P> Body>
int run(int argc, char** argv, Body body) {
  launch::Start start = P::Launcher::start(argc, argv);
  if (!start.worker) {
    return start.exit_code;
  }
  return detail::run_worker<P>(*start.worker, body);
}

/// The same without a body, for programs that are started once for each rank: joins and returns the group.
/// Collective, blocking. @throws Error (identity, and as ProcessGroup::join).
template <class P>
ProcessGroup<P> init_process_group(launch::JoinOptions options = {}) {
  static_assert(
      P::Launcher::returns_into_user_code,
      "dtrain: init_process_group needs launch::PerProcess; the launcher process of launch::PerNode never returns "
      "into user code, so use dtrain::run (see dtrain/run.hpp)");
  return ProcessGroup<P>::join(launch::worker_of(std::move(options)));
}

}  // namespace DTRAIN_NAMESPACE
