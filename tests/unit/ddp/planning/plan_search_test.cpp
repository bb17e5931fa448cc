#include "dtrain/ddp/planning/plan_search.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

/// Layers whose backward passes take as long each, the last one's first.
struct Layers {
  Layers(std::size_t count, std::size_t bytes, double layer_seconds)
      : sizes(count, {bytes, dtrain::DType::f32, {}}), order(reverse_order(count)), ready_at(count) {
    for (std::size_t i = 0; i < count; ++i)
      ready_at[i] = layer_seconds * static_cast<double>(count - i);
  }
  GradientTimes times() const { return {sizes, order, ready_at, ready_at.front()}; }

  std::vector<GradientSize> sizes;
  std::vector<std::size_t> order;
  std::vector<double> ready_at;
};

/// The shortest step of all plans whose buckets end after any set of layers: what no choice of sizes can be better
/// than.
double best_of_all_cuts(const Layers& layers, const LinkCost& cost) {
  const std::size_t count = layers.sizes.size();
  double best = std::numeric_limits<double>::max();
  for (std::size_t cuts = 0; cuts < std::size_t{1} << (count - 1); ++cuts) {
    double free_at = 0;
    double bytes = 0;
    for (std::size_t position = 0; position < count; ++position) {
      const std::size_t layer = layers.order[position];
      bytes += static_cast<double>(layers.sizes[layer].bytes);
      if (position + 1 == count || (cuts >> position & 1) != 0) {
        free_at = std::max(free_at, layers.ready_at[layer]) + cost.seconds(1, bytes);
        bytes = 0;
      }
    }
    best = std::min(best, std::max(free_at, layers.ready_at.front()));
  }
  return best;
}

}  // namespace

TEST_CASE("alpha and beta are found again in samples that they gave, and nearly in samples with noise") {
  const LinkCost cost{2e-4, 8e-9};
  std::vector<ReductionSample> samples;
  for (const double bytes : {64e3, 1e6, 2e6, 6e6, 25e6})
    samples.push_back({bytes, cost.seconds(1, bytes)});
  samples.push_back({0, 1});
  samples.push_back({5e6, 0});
  CHECK(fit_reduction_cost(samples).message_seconds == doctest::Approx(2e-4));
  CHECK(fit_reduction_cost(samples).byte_seconds == doctest::Approx(8e-9));
  std::mt19937 random(5);
  std::uniform_real_distribution<double> noise(0.95, 1.05);
  for (int repeat = 0; repeat < 10; ++repeat) {
    for (const double bytes : {64e3, 1e6, 6e6})
      samples.push_back({bytes, cost.seconds(1, bytes) * noise(random)});
  }
  CHECK(fit_reduction_cost(samples).message_seconds == doctest::Approx(2e-4).epsilon(0.1));
  CHECK(fit_reduction_cost(samples).byte_seconds == doctest::Approx(8e-9).epsilon(0.05));
}

TEST_CASE("a fitted cost is never negative, and one size of bucket gives no alpha") {
  CHECK(fit_reduction_cost({}).seconds(1, 1e6) == 0);
  const std::vector<ReductionSample> one_size{{1e6, 0.01}, {1e6, 0.01}};
  CHECK(fit_reduction_cost(one_size).message_seconds == 0);
  CHECK(fit_reduction_cost(one_size).byte_seconds == doctest::Approx(1e-8));
  const std::vector<ReductionSample> steep{{1e6, 0.001}, {2e6, 0.01}};
  CHECK(fit_reduction_cost(steep).message_seconds == 0);
  CHECK(fit_reduction_cost(steep).byte_seconds > 0);
  const std::vector<ReductionSample> falling{{1e6, 0.01}, {2e6, 0.001}};
  CHECK(fit_reduction_cost(falling).byte_seconds == 0);
  CHECK(fit_reduction_cost(falling).message_seconds > 0);
}

TEST_CASE("a network as fast as the backward pass gets a bucket for each layer, one with a long latency a few") {
  const Layers layers(50, 2 * mib, 0.018);
  const PlannedStep even = choose_caps(layers.times(), {}, {1e-4, 1 / 125e6});
  CHECK(even.buckets == 50);
  CHECK(even.times.times_the_longer() < 1.03);
  const PlannedStep late = choose_caps(layers.times(), {}, {0.05, 1e-9});
  CHECK(late.buckets < 20);
  CHECK(late.times.step < plan_step(layers.times(), {}, {0.05, 1e-9}).times.step);
}

TEST_CASE("where all gradients are ready at the end, one bucket has the least latency") {
  Layers layers(50, 2 * mib, 0);
  std::fill(layers.ready_at.begin(), layers.ready_at.end(), 0.1);
  CHECK(choose_caps(layers.times(), {}, {5e-3, 1e-10}).buckets == 1);
}

TEST_CASE("the given sizes stay where nothing is gained: a network that costs nothing, or one that only bytes load") {
  const Layers layers(50, 2 * mib, 0.018);
  const BucketCaps given{3 * mib, 7 * mib};
  for (const LinkCost& cost : {LinkCost{}, LinkCost{0, 1e-12}}) {
    const PlannedStep step = choose_caps(layers.times(), given, cost);
    CHECK(step.caps.first_bucket_bytes == given.first_bucket_bytes);
    CHECK(step.caps.bucket_bytes == given.bucket_bytes);
  }
}

TEST_CASE("of several variants the fastest has its best sizes, and the first stays unless another gains more than 1%") {
  const Layers layers(50, 2 * mib, 0.018);
  const LinkCost slow{1e-4, 1 / 40e6};
  const LinkCost fast{1e-4, 1 / 125e6};
  const auto choose = [&](const std::vector<LinkCost>& costs) { return choose_settings(layers.times(), {}, costs); };
  CHECK(choose({slow}).variant == 0);
  CHECK(choose({slow, fast}).variant == 1);
  CHECK(choose({slow, fast}).caps == choose_caps(layers.times(), {}, fast).caps);
  CHECK(choose({fast, slow}).variant == 0);
  CHECK(choose({fast, fast, fast}).variant == 0);
  CHECK(choose({slow, {1e-4, 0.995 / 40e6}}).variant == 0);
  CHECK(choose({slow, {1e-4, 0.98 / 40e6}, {1e-4, 0.975 / 40e6}}).variant == 1);
  CHECK(choose({{}, {}, fast}).variant == 0);  // all hidden, or nearly
}

TEST_CASE("the chosen sizes are no slower by the model than any others, and near the best of all cuts") {
  std::mt19937 random(11);
  std::uniform_real_distribution<double> exponent(-5, -1);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const Layers layers(12, (1 + random() % 64) * 64 * kib, std::pow(10.0, exponent(random)));
    const double bytes = 12.0 * static_cast<double>(layers.sizes[0].bytes);
    const LinkCost cost{std::pow(10.0, exponent(random)) / 10, std::pow(10.0, exponent(random)) / bytes};
    CAPTURE(cost.message_seconds);
    CAPTURE(cost.byte_seconds);
    CAPTURE(layers.ready_at.front());
    const PlannedStep chosen = choose_caps(layers.times(), {}, cost);
    for (std::size_t first = 16 * kib; first <= 64 * mib; first *= 2) {
      for (std::size_t bucket = first; bucket <= 64 * mib; bucket *= 2)
        CHECK(chosen.times.step <= 1.011 * plan_step(layers.times(), {first, bucket}, cost).times.step);
    }
    const double best = best_of_all_cuts(layers, cost);
    CHECK(chosen.times.step >= 0.999 * best);
    CHECK(chosen.times.step <= 1.25 * best);
  }
}

TEST_CASE("the cost is measured with buckets of several sizes, wherever the gradients allow that") {
  const auto ratio = [](const std::vector<GradientSize>& sizes, const BucketCaps& given) {
    const std::vector<std::size_t> order = reverse_order(sizes.size());
    std::size_t least = std::numeric_limits<std::size_t>::max();
    std::size_t most = 0;
    for (const BucketCaps& caps : {given, probing_caps(sizes, order, given)}) {
      for (const auto& bucket : dtrain::ddp::plan_buckets(sizes, order, caps).buckets) {
        least = std::min(least, bucket.bytes);
        most = std::max(most, bucket.bytes);
      }
    }
    return static_cast<double>(most) / static_cast<double>(least);
  };
  const auto layers = [](std::size_t count, std::size_t bytes) {
    return std::vector<GradientSize>(count, {bytes, dtrain::DType::f32, {}});
  };
  CHECK(ratio(layers(50, 2 * mib), {}) >= 2);
  CHECK(ratio(layers(3, 50 * mib), {}) >= 2);
  CHECK(ratio(layers(40, 1 * kib), {}) >= 2);
  CHECK(ratio(layers(2, 1 * kib), {}) >= 2);
  CHECK(ratio(layers(7, 3 * mib), {0, 0}) >= 2);
}
