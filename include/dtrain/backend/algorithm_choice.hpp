#pragma once
/// @file
/// AlgorithmChoice: thresholds, or the cost of messages, alpha + n beta (LinkCost), select an all-reduce's algorithm
/// over messages, equally on all ranks.

#include <cstdint>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A message of n bytes takes alpha + n beta seconds. Source: R. Hockney, "The communication challenge for MPP: Intel
/// Paragon and Meiko CS-2", Parallel Computing 20 (1994).
/// @ingroup collectives
struct LinkCost {
  double message_seconds = 0;  ///< alpha
  double byte_seconds = 0;     ///< beta

  constexpr double seconds(double messages, double bytes) const noexcept {
    return messages * message_seconds + bytes * byte_seconds;
  }
};

/// How all_reduce selects its algorithm over messages (Mpi, Gloo); other backends have one algorithm. Each algorithm
/// sums in its own order, so the choice determines bits. Every rank uses rank 0's choice; it does not change while a
/// channel is open.
/// @ingroup collectives
struct AlgorithmChoice {
  enum class Basis : std::uint8_t {
    fixed,     ///< thresholds of the backend
    given,     ///< `link`: the cheapest algorithm for each length
    measured,  ///< the cheapest by a cost that rank 0 measures in a channel's first all_reduce: bits may differ by run
  };

  Basis basis = Basis::fixed;
  LinkCost link{};

  /// Blocking: a dozen messages between rank 0 and the last rank, once for each channel.
  static constexpr AlgorithmChoice measured() noexcept { return {Basis::measured, {}}; }
  static constexpr AlgorithmChoice given(LinkCost link) noexcept { return {Basis::given, link}; }

  /// This choice, if it is the same in every run; otherwise the fixed one.
  constexpr AlgorithmChoice reproducible() const noexcept {
    return basis == Basis::measured ? AlgorithmChoice{} : *this;
  }
  /// A measured choice in place of the fixed one, which is the default; any other choice stays.
  constexpr AlgorithmChoice or_measured() const noexcept { return basis == Basis::fixed ? measured() : *this; }
};

/// A channel's use of its group's choice.
enum class AlgorithmPreference : std::uint8_t {
  as_chosen,
  reproducible,  ///< AlgorithmChoice::reproducible()
  measured,      ///< AlgorithmChoice::or_measured()
};

/// "alpha 2e-06 s, beta 1e-10 s/byte".
std::string to_string(const LinkCost& link);

/// "fixed", "measured", or "alpha 2e-06 s, beta 1e-10 s/byte".
std::string to_string(const AlgorithmChoice& choice);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::string to_string(const LinkCost& link) {
  return format_text("alpha {} s, beta {} s/byte",
                     {number_text(link.message_seconds, 3), number_text(link.byte_seconds, 3)});
}

DTRAIN_DEFINED std::string to_string(const AlgorithmChoice& choice) {
  switch (choice.basis) {
    case AlgorithmChoice::Basis::fixed: return "fixed";
    case AlgorithmChoice::Basis::measured: return "measured";
    default: return to_string(choice.link);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
