/// @file
/// bench/scaling: the model that the README's predictions come from.

#include "bench/scaling/ready_times.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "bench/scaling/cluster.hpp"
#include "bench/scaling/compression.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/planning/plan_search.hpp"

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

dtrain::ddp::ModelledStep fifty_layers(std::size_t bucket_bytes, double bytes_per_second) {
  const std::vector<dtrain::ddp::GradientSize> sizes(50, {2 * mib, dtrain::DType::f32, {}});
  const auto plan = dtrain::ddp::plan_buckets(sizes, {bucket_bytes < mib ? bucket_bytes : mib, bucket_bytes});
  const std::vector<double> ready = bench::evenly_ready(50, 0, 50 * 0.018);
  return dtrain::ddp::model_step(plan, ready, 50 * 0.018,
                                 [&](std::size_t bytes) { return static_cast<double>(bytes) / bytes_per_second; });
}

}  // namespace

TEST_CASE("A bucket for each layer leaves only the last one's reduction exposed where the network keeps up") {
  const dtrain::ddp::ModelledStep times = fifty_layers(0, 125e6);
  CHECK(times.communication == doctest::Approx(50.0 * 2 * mib / 125e6));
  CHECK(times.exposed() == doctest::Approx(2.0 * mib / 125e6));
}

TEST_CASE("The default plan of a hundred MiB exposes no more than its last small buckets") {
  const dtrain::ddp::ModelledStep times = fifty_layers(25 * mib, 125e6);
  CHECK(times.times_the_longer() > 1.0);
  CHECK(times.times_the_longer() < 1.10);
}

TEST_CASE("On a network that is too slow a step takes as long as its communication, and what comes before the first") {
  const dtrain::ddp::ModelledStep times = fifty_layers(0, 12.5e6);
  CHECK(times.step == doctest::Approx(0.018 + times.communication));
}

TEST_CASE("One rank communicates nothing; two hosts send all their bytes once, however the ranks are grouped") {
  const double bytes = 100.0 * mib;
  const bench::Link gigabit{0, 125e6};
  CHECK(bench::ring_seconds({1, 1, gigabit, 1e10}, bytes) == 0);
  CHECK(bench::hierarchical_seconds({1, 1, gigabit, 1e10}, bytes) == 0);
  CHECK(bench::ring_seconds({2, 1, gigabit, 1e10}, bytes) == doctest::Approx(bytes / 125e6));
  CHECK(bench::ring_seconds({2, 2, gigabit, 1e10}, bytes) == doctest::Approx(1.5 * bytes / 125e6));
  CHECK(bench::hierarchical_seconds({2, 2, gigabit, 1e10}, bytes) == doctest::Approx(bytes / 125e6 + bytes / 1e10));
}

TEST_CASE("Latency counts once for each turn of the ring") {
  const bench::Link slow{1e-3, 1e18};
  CHECK(bench::ring_seconds({8, 4, slow, 1e18}, 1024) == doctest::Approx(62e-3));
  CHECK(bench::hierarchical_seconds({8, 4, slow, 1e18}, 1024) == doctest::Approx(14e-3));
}

TEST_CASE("A hook pays on links that are slow enough, and the model of the step says the same as the formula") {
  const bench::Compression halves{0.5, 4e9};
  CHECK(halves.pays_below(2) == doctest::Approx(2e9));
  CHECK(halves.pays_below(1) == 0);
  CHECK(bench::Compression{0.01, 1e9}.pays_below(1000) == doctest::Approx(2 * 0.999 * 0.99 * 1e9));
  const double bytes = 100.0 * mib;
  for (const double share : {0.5, 0.9, 1.1, 2.0}) {
    const bench::Cluster cluster{2, 1, {0, share * halves.pays_below(2)}, 1e12};
    const auto plain = [&](double sent) { return bench::ring_seconds(cluster, sent); };
    CHECK((halves.seconds(bytes, plain) < plain(bytes)) == (share < 1));
    CHECK(halves.seconds(bytes, plain) == doctest::Approx(plain(bytes) / 2 + bytes / 4e9));
  }
}
