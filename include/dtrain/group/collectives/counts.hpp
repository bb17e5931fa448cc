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

/// A range of integers with a size.
template <class Range>
concept CountRange = requires(const Range& counts) {
  std::size(counts);
  *std::begin(counts);
}
&&std::integral<std::remove_cvref_t<decltype(*std::begin(std::declval<const Range&>()))>>;

/// One count for each rank, in elements of the buffer whose blocks they are: any sized range of integers, or {3, 0, 5}.
/// A contiguous range of std::size_t is not copied. Lifetime: the range outlives the call, which alone reads it.
/// @ingroup collectives
class Counts {
 public:
  // NOLINTBEGIN(google-explicit-constructor)
  Counts(std::initializer_list<std::size_t> counts) : copy_(counts) {}

  /// @throws Error (invalid_argument) for a negative count
  template <CountRange Range>
  Counts(const Range& counts) {
    if constexpr (std::is_convertible_v<const Range&, std::span<const std::size_t>>) {
      view_ = counts;
    } else {
      copy_.reserve(std::size(counts));
      for (const auto count : counts) {
        if (!std::in_range<std::size_t>(count)) refuse_negative(copy_.size(), static_cast<std::int64_t>(count));
        copy_.push_back(static_cast<std::size_t>(count));
      }
    }
  }
  // NOLINTEND(google-explicit-constructor)

  /// The counts in elements of a buffer's view, of which the program's elements have `unit` each. Lifetime: until the
  /// next call, or this object's end. @throws Error (invalid_argument) for more than std::size_t can count
  std::span<const std::size_t> in_units_of(std::uint32_t unit) &;

 private:
  [[noreturn]] static void refuse_negative(std::size_t rank, std::int64_t count);

  std::span<const std::size_t> view_;  ///< the program's, if copy_ is empty
  std::vector<std::size_t> copy_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::span<const std::size_t> Counts::in_units_of(std::uint32_t unit) & {
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

DTRAIN_DEFINED DTRAIN_NOT_INLINED void Counts::refuse_negative(std::size_t rank, std::int64_t count) {
  throw_error(Errc::invalid_argument, "the count of rank {} is {}; give the number of its elements, 0 or more",
              {rank, count});
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
