#pragma once
/// @file
/// Counts: argument of the collectives with a count of elements for each rank.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {
/// Integers that count: neither bool nor characters.
template <class T>
concept CountInteger =
    std::integral<T> && !std::is_same_v<T, bool> && !std::is_same_v<T, char> && !std::is_same_v<T, wchar_t> &&
    !std::is_same_v<T, char8_t> && !std::is_same_v<T, char16_t> && !std::is_same_v<T, char32_t>;

template <class Range>
concept IsCounts = std::is_convertible_v<const Range&, std::span<const std::size_t>>;
}  // namespace detail

/// A range of integers with a size, or what converts to a span of std::size_t.
template <class Range>
concept CountRange = detail::IsCounts<Range> ||(requires(const Range& counts) {
  std::size(counts);
  *std::begin(counts);
} && detail::CountInteger<std::remove_cvref_t<decltype(*std::begin(std::declval<const Range&>()))>>);

/// One count for each rank, in elements of the buffer whose blocks they are: any sized range of integers, or {3, 0, 5}.
/// A contiguous range of std::size_t is not copied. Lifetime: the range outlives the call, which alone reads it.
/// @ingroup collectives
class Counts {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  Counts(std::initializer_list<std::size_t> counts) : copy_(counts) {}

  template <CountRange Range>
  Counts(const Range& counts) {
    if constexpr (detail::IsCounts<Range>) {
      view_ = counts;
    } else {
      copy_.reserve(std::size(counts));
      for (const auto count : counts) {
        if (!std::in_range<std::size_t>(count) && negative_ == 0) {
          negative_ = static_cast<std::int64_t>(count);
          negative_rank_ = copy_.size();
        }
        copy_.push_back(static_cast<std::size_t>(count));
      }
    }
  }
  // NOLINTEND(google-explicit-constructor)

  /// The counts in elements of a buffer's view, of which the program's elements have `unit` each. Lifetime: until the
  /// next call, or this object's end. @throws Error (invalid_argument) for a negative count, and for more than
  /// std::size_t can count
  std::span<const std::size_t> in_units_of(std::uint32_t unit) &;

 private:
  std::span<const std::size_t> view_;  ///< the program's, if copy_ is empty
  std::vector<std::size_t> copy_;
  std::int64_t negative_ = 0;  ///< the first negative count; 0: none
  std::size_t negative_rank_ = 0;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::span<const std::size_t> Counts::in_units_of(std::uint32_t unit) & {
  if (negative_ != 0) {
    throw_error(Errc::invalid_argument, "the count of rank {} is {}; give the number of its elements, 0 or more",
                {negative_rank_, negative_});
  }
  if (unit != 1) {
    if (copy_.empty()) copy_.assign(view_.begin(), view_.end());
    for (std::size_t& count : copy_) {
      if (count > std::numeric_limits<std::size_t>::max() / unit) {
        throw_error(Errc::invalid_argument,
                    "the count of rank {} is {}, and elements of {} units each are more than this machine can count",
                    {&count - copy_.data(), count, unit});
      }
      count *= unit;
    }
  }
  return copy_.empty() ? view_ : std::span<const std::size_t>(copy_);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
