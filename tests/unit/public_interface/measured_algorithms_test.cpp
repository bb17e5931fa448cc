// GroupOptions::algorithms as a program gives it: what a channel sends to measure, and which wrappers do not.

#include "unit/public_interface/prelude.hpp"

namespace measured_algorithms_test {

struct Counting : support::CountingBackend {
  static constexpr auto determinism = dtrain::backend::Determinism::for_a_plan;
};
using Policy = dtrain::Policy<dtrain::launch::PerProcess, Counting>;

constexpr int ranks = 3;
constexpr std::uint64_t longest_message = 65536;  ///< to and fro between rank 0 and the last one, twice

/// What each rank sends in a wrapper's life of two steps.
std::vector<std::uint64_t> sent(dtrain::AlgorithmChoice choice, const dtrain::DdpOptions& with) {
  support::CountedNetworks& networks = support::CountedNetworks::instance();
  networks.clear();
  dtrain::GroupOptions options;
  options.algorithms = choice;
  run_well<Policy>(
      ranks,
      [&](const dtrain::ProcessGroup<Policy>& group) {
        front_test::Model model({5000, 3});
        dtrain::DistributedDataParallel ddp{model, group, with};
        for (int step = 0; step < 2; ++step) {
          for (std::vector<float>& gradient : model.gradients)
            gradient.assign(gradient.size(), static_cast<float>(group.rank()));
          ddp.backward([](dtrain::Ready ready) {
            ready(1);
            ready(0);
          });
          CHECK(model.gradients[0] == std::vector<float>(5000, 1.0F));
        }
      },
      std::chrono::seconds(30), {}, std::vector<dtrain::GroupOptions>(ranks, options));
  std::vector<std::uint64_t> bytes;
  for (int rank = 0; rank < ranks; ++rank)
    bytes.push_back(networks.sent(rank).load());
  return bytes;
}

TEST_CASE("a wrapper with DdpOptions::deterministic measures nothing and reduces as with the fixed choice") {
  const std::vector<std::uint64_t> fixed = sent({}, {});
  CHECK(sent({}, {.deterministic = true}) == fixed);
  CHECK(sent(dtrain::AlgorithmChoice::measured(), {.deterministic = true}) == fixed);
  const std::vector<std::uint64_t> measured = sent(dtrain::AlgorithmChoice::measured(), {});
  CHECK(measured[0] > fixed[0] + longest_message);
  CHECK(measured[2] > fixed[2] + longest_message);
}

TEST_CASE("a wrapper with a measured plan measures the cost of messages too, unless the program has given it") {
  const dtrain::DdpOptions plan{.plan = dtrain::PlanChoice::measured()};
  const std::vector<std::uint64_t> measured = sent({}, plan);
  CHECK(measured[0] > sent({}, {})[0] + longest_message);
  const auto given = dtrain::AlgorithmChoice::given({1e-5, 1e-9});
  CHECK(sent(given, plan) == sent(given, {}));
}

}  // namespace measured_algorithms_test
