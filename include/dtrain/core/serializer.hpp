#pragma once
/// @file
/// Serializer: writes a struct's fields to bytes, and reads them from untrusted bytes, by one description, fields().

#include <algorithm>
#include <array>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE {

/// A struct that is sent or stored has a function `fields(Serializer&, T&)`, which passes its fields in order; the same
/// function writes and reads. Integers are little-endian, a text is a u32 length and its bytes, a list a u32 count and
/// its elements. A writer appends to view() and changes no field. A reader checks each field against its bounds: after
/// the first malformed one, it reads zeros and empty texts, and finished() stays false. Memory grows with the bytes
/// that are present, not with the lengths that they announce. Lifetime: the bytes outlive a reader.
class Serializer {
 public:
  Serializer() noexcept = default;  ///< writes
  explicit Serializer(std::span<const std::byte> bytes) noexcept : in_(bytes), reads_(true) {}
  explicit Serializer(std::string_view bytes) noexcept
      : Serializer(std::as_bytes(std::span(bytes.data(), bytes.size()))) {}

  template <std::integral T>
  void number(T& value) {
    value = static_cast<T>(little_endian(static_cast<std::uint64_t>(value), sizeof(T)));
  }
  /// An integer in first..last.
  template <std::integral T>
  void number(T& value, std::type_identity_t<T> first, std::type_identity_t<T> last) {
    number(value);
    if (value < first || value > last) {
      value = static_cast<T>(out_of_bounds(static_cast<std::uint64_t>(value), static_cast<std::uint64_t>(first)));
    }
  }
  /// An integer in 0..last, or none, which is written as -1.
  void number(std::optional<int>& value, int last);
  /// An enumerator in first..last, in one byte.
  template <class E>
  void choice(E& value, E first, E last) {
    auto found = static_cast<std::uint8_t>(value);
    number(found, static_cast<std::uint8_t>(first), static_cast<std::uint8_t>(last));
    value = static_cast<E>(found);
  }
  void flag(bool& value);

  /// Any bytes, for example a key or a value; a writer cuts them to `longest`. Error sentences contain them only
  /// through in_quotes() or sanitize().
  void raw_text(std::string& value, std::size_t longest);
  /// A name or a sentence: it arrives printable, whatever bytes the peer sent.
  void text(std::string& value, std::size_t longest);
  /// Bytes without a length.
  void bytes(std::span<std::byte> value);
  /// A mark of the format, which a reader requires.
  void constant(std::string_view expected);

  /// `least` to `most` elements. `each(element)` passes the fields of one; none is empty on the wire.
  template <class T, class Each>
  void list(std::vector<T>& values, std::size_t least, std::size_t most, Each each) {
    auto count = static_cast<std::uint32_t>(values.size());
    number(count);
    if (reads_) {
      values.clear();
      if (count < least || count > most) fail("has a list with too few or too many elements");
    }
    for (std::uint32_t i = 0; i < count && ok(); ++i) {
      each(reads_ ? values.emplace_back() : values[i]);
    }
  }
  /// As a list of at most one element.
  template <class T, class Each>
  void maybe(std::optional<T>& value, Each each) {
    std::uint32_t count = value ? 1 : 0;
    number(count, 0, 1);
    if (count == 1) {
      each(value ? *value : value.emplace());
    }
  }

  /// Marks the bytes as malformed. The first call counts. @param problem a clause: "has another format"
  void fail(const char* problem) noexcept;
  bool ok() const noexcept { return problem_ == nullptr; }
  std::size_t remaining() const noexcept { return ok() ? in_.size() - at_ : 0; }
  /// Whether every field was well formed and no byte is left.
  bool finished() const noexcept { return ok() && at_ == in_.size(); }

  /// @param what the subject of the sentence: "a rank's address"
  /// @throws Error (protocol) with the problem and its place unless finished()
  void require_finished(std::string_view what) const;

  /// @name What was written
  /// @{
  std::span<const std::byte> view() const noexcept { return {out_.data(), out_.size()}; }
  std::string_view characters() const noexcept { return {reinterpret_cast<const char*>(out_.data()), out_.size()}; }
  std::vector<std::byte> take() noexcept { return std::exchange(out_, {}); }
  /// Keeps the memory.
  void clear() noexcept { out_.clear(); }
  /// @}

 private:
  /// Writes `value`, or reads another one. @returns it
  std::uint64_t little_endian(std::uint64_t value, std::size_t size);

  /// @returns what a number out of its bounds becomes: `first` in a reader, which fails
  std::uint64_t out_of_bounds(std::uint64_t value, std::uint64_t first) noexcept;

  void append(std::string_view written);
  std::span<const std::byte> take_bytes(std::size_t size) noexcept;
  std::string take_text(std::size_t size);

  std::span<const std::byte> in_;
  std::size_t at_ = 0;  ///< the next byte of in_; after a failure, the end of what was read
  std::vector<std::byte> out_;
  const char* problem_ = nullptr;
  bool reads_ = false;
};

template <std::integral T>
void fields(Serializer& of, T& value) {
  of.number(value);
}

/// The longest time that is read: no clock that counts from its host's start exceeds it, and sums and differences of
/// times that were read do not overflow.
inline constexpr std::chrono::nanoseconds max_time_read{std::int64_t{1} << 60};

void fields(Serializer& of, std::chrono::nanoseconds& time);

/// The bytes of a value, for the store.
template <class T>
std::string to_bytes(T value) {
  Serializer writer;
  fields(writer, value);
  return std::string(writer.characters());
}

/// Reads untrusted bytes. @returns nullopt for bytes that to_bytes does not produce
template <class T>
std::optional<T> try_from_bytes(std::string_view bytes) {
  std::optional<T> value(std::in_place);
  Serializer reader(bytes);
  fields(reader, *value);
  if (!reader.finished()) {
    value.reset();
  }
  return value;
}

/// Reads untrusted bytes. @param what see Serializer::require_finished @throws Error (protocol)
template <class T>
T from_bytes(std::string_view bytes, std::string_view what) {
  T value{};
  Serializer reader(bytes);
  fields(reader, value);
  reader.require_finished(what);
  return value;
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void Serializer::number(std::optional<int>& value, int last) {
  int found = value.value_or(-1);
  number(found, -1, last);
  value = ok() && found != -1 ? std::optional<int>(found) : std::nullopt;
}

DTRAIN_DEFINED void Serializer::flag(bool& value) {
  std::uint8_t found = value ? 1 : 0;
  number(found, 0, 1);
  value = found == 1;
}

DTRAIN_DEFINED void Serializer::raw_text(std::string& value, std::size_t longest) {
  const std::string_view written = truncate_utf8(value, longest);
  auto size = static_cast<std::uint32_t>(written.size());
  number(size);
  if (!reads_) return append(written);
  if (size > longest) fail("has a text that is too long");
  value = take_text(size);
}

DTRAIN_DEFINED void Serializer::text(std::string& value, std::size_t longest) {
  raw_text(value, longest);
  if (reads_) {
    value = sanitize(value);
    value.resize(truncate_utf8(value, longest).size());
  }
}

DTRAIN_DEFINED void Serializer::bytes(std::span<std::byte> value) {
  if (!reads_) {
    out_.insert(out_.end(), value.begin(), value.end());
  } else {
    const std::span<const std::byte> found = take_bytes(value.size());
    std::copy(found.begin(), found.end(), value.begin());
  }
}

DTRAIN_DEFINED void Serializer::constant(std::string_view expected) {
  if (!reads_) {
    append(expected);
  } else if (take_text(expected.size()) != expected) {
    fail("has another format");
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void Serializer::fail(const char* problem) noexcept {
  if (ok()) {
    problem_ = problem;
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED void Serializer::require_finished(std::string_view what) const {
  if (!finished()) {
    const std::string_view bytes(reinterpret_cast<const char*>(in_.data()), in_.size());
    throw_error(Errc::protocol, "{} came as {}, which {} (byte {} of {}); do all ranks run the same program?",
                {what, in_quotes(bytes, 64), ok() ? "has more bytes than its fields" : problem_, at_, in_.size()});
  }
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::uint64_t Serializer::little_endian(std::uint64_t value, std::size_t size) {
  if (!reads_) {
    std::array<std::byte, sizeof(value)> written;
    for (std::size_t i = 0; i < written.size(); ++i) {
      written[i] = static_cast<std::byte>((value >> (8 * i)) & 0xff);
    }
    out_.insert(out_.end(), written.begin(), written.begin() + size);
    return value;
  }
  const std::span<const std::byte> found = take_bytes(size);
  value = 0;
  for (std::size_t i = found.size(); i > 0; --i) {
    value = (value << 8) | std::to_integer<std::uint64_t>(found[i - 1]);
  }
  return value;
}

DTRAIN_NOT_INLINED DTRAIN_DEFINED std::uint64_t Serializer::out_of_bounds(std::uint64_t value,
                                                                          std::uint64_t first) noexcept {
  if (reads_) {
    fail("has a number out of its bounds");
  }
  return reads_ ? first : value;
}

DTRAIN_DEFINED void Serializer::append(std::string_view written) {
  const auto from = std::as_bytes(std::span(written.data(), written.size()));
  out_.insert(out_.end(), from.begin(), from.end());
}

DTRAIN_DEFINED std::span<const std::byte> Serializer::take_bytes(std::size_t size) noexcept {
  if (size > remaining()) {
    fail("ends too early");
    return {};
  }
  at_ += size;
  return in_.subspan(at_ - size, size);
}

DTRAIN_DEFINED std::string Serializer::take_text(std::size_t size) {
  const std::span<const std::byte> found = take_bytes(size);
  return {reinterpret_cast<const char*>(found.data()), found.size()};
}

DTRAIN_DEFINED void fields(Serializer& of, std::chrono::nanoseconds& time) {
  std::int64_t count = time.count();
  of.number(count, -max_time_read.count(), max_time_read.count());
  time = std::chrono::nanoseconds(count);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
