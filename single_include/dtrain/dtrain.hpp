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

#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

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

  static Deadline after(Clock::duration timeout) { return Deadline(Clock::now() + timeout); }
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
/// rank noticed something. A report goes to the reporter that the group installed (it asks the store, which answers every
/// rank with the cause that came first); without one it is set at once.
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
    return changed_.wait_until(lock, deadline.instant(), [this] { return failed(); });
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

/// Names the stream that produced a gradient. For the host `native` is null: the work is already done when the handle is
/// passed. For CUDA it is the cudaStream_t. Lifetime: the stream outlives the step it is passed to.
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

  /// @throws Error (invalid_argument) for more than eight extents, a negative one, or a product beyond 2^62.
  Shape(std::initializer_list<std::int64_t> extents) : Shape(std::span(extents.begin(), extents.size())) {}

  explicit Shape(std::span<const std::int64_t> extents) {
    if (extents.size() > max_rank) {
      throw Error(Errc::invalid_argument,
                  "a shape has " + std::to_string(extents.size()) + " extents; at most 8 are possible");
    }
    for (const std::int64_t extent : extents) {
      if (extent < 0 || (extent > 0 && element_count_ > (std::int64_t{1} << 62) / extent)) {
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
