#pragma once
/// @file
/// A test for each combination of some values.

#include <tuple>

namespace support {

template <class Body>
void for_each_combination(const Body& body) {
  body();
}

template <class Body, class List, class... Lists>
void for_each_combination(const Body& body, const List& list, const Lists&... lists) {
  for (const auto& value : list)
    for_each_combination([&](const auto&... others) { body(value, others...); }, lists...);
}

/// One value of each list, the last list's changing first: Combinations(ranks, ops).for_each([&](int rank, ReduceOp op)
/// {...}), in one expression.
template <class... Lists>
class Combinations {
 public:
  explicit Combinations(const Lists&... lists) : lists_(lists...) {}

  template <class Body>
  void for_each(const Body& body) const {
    std::apply([&](const auto&... lists) { for_each_combination(body, lists...); }, lists_);
  }

 private:
  std::tuple<const Lists&...> lists_;
};

}  // namespace support
