#include "dtrain/elastic/wrapped_weights.hpp"

#include "support/scoped_variable.hpp"
#include "unit/elastic/prelude.hpp"

namespace {

using dtrain::rendezvous::WeightsSummary;

/// What an elastic job's only rank says of two wrapped tensors of as many weights.
WeightsSummary summary_of(std::vector<float> a, std::vector<float> b) {
  WeightsSummary summary;
  const std::string thrown = thrown_alone([&](const auto&, Group group) {
    std::vector<float> gradients(a.size());
    dtrain::ParameterList parameters{{"a", dtrain::tensor_view(a), dtrain::tensor_view(gradients)},
                                     {"b", dtrain::tensor_view(b), dtrain::tensor_view(gradients)}};
    std::vector<float> others(b.size());
    parameters[1].gradient = dtrain::tensor_view(others);
    const dtrain::DistributedDataParallel ddp{parameters, group};
    summary = dtrain::elastic::summary_of_weights(*dtrain::group::GroupAccess::of(group).rank_context());
  });
  CHECK(thrown == "");
  return summary;
}

/// The square of the distance of two ranks' weights, as their sums estimate it.
double squared_distance(const WeightsSummary& one, const WeightsSummary& other) {
  double squares = 0;
  for (std::size_t i = 0; i < one.sums.size(); ++i)
    squares += (one.sums[i] - other.sums[i]) * (one.sums[i] - other.sums[i]);
  return squares;
}

}  // namespace

TEST_CASE("the sums of a rank's weights tell how far from each other unequal weights are, in whichever tensor") {
  constexpr std::size_t count = 4000;
  const std::vector<float> ones(count, 1);
  const std::vector<float> twos(count, 2);
  const WeightsSummary equal = summary_of(ones, ones);
  CHECK(equal.digest == summary_of(ones, ones).digest);
  CHECK(equal.sums == summary_of(ones, ones).sums);
  CHECK(equal.rounding == doctest::Approx(16 * 0x1p-23 * std::sqrt(2 * count)));
  // Each of two tensors differs in each of its weights by 1. Estimates are within a factor of 4: they are of 8 sums.
  for (const WeightsSummary& other : {summary_of(twos, ones), summary_of(ones, twos)}) {
    CHECK(other.digest != equal.digest);
    CHECK(squared_distance(other, equal) > count / 4);
    CHECK(squared_distance(other, equal) < count * 4);
    CHECK_FALSE(dtrain::rendezvous::differs_by_rounding(other, equal));
  }
  // Differences in the two tensors do not cancel out, although they are at the same places.
  CHECK(squared_distance(summary_of(twos, ones), summary_of(ones, twos)) > count / 2);
}

TEST_CASE("a rank whose values are not compared says nothing of its weights") {
  const support::ScopedVariable checks("DTRAIN_CHECK_VALUES", "0");
  const WeightsSummary summary = summary_of({1, 2}, {3, 4});
  CHECK(summary.digest == 0);
  CHECK(summary.rounding == 0);
}
