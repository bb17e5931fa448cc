#include "dtrain/ddp/bucket_plan.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;

struct Problem {
  std::vector<GradientSize> sizes;
  std::vector<std::size_t> order;
  BucketCaps caps;
};

/// Sizes from 0 to a few caps, of three kinds, in a random order.
Problem random_problem(std::uint32_t seed) {
  std::mt19937 generator(seed);
  Problem problem;
  const std::size_t count = generator() % 60;
  constexpr std::array dtypes{DType::f32, DType::f64, DType::f16};
  const std::size_t kinds = 1 + generator() % dtypes.size();
  for (std::size_t i = 0; i < count; ++i) {
    const DType dtype = dtypes[generator() % kinds];
    const std::size_t elements = generator() % 5 == 0 ? 0 : generator() % 3000;
    problem.sizes.push_back({elements * size_bytes(dtype), dtype, {}});
  }
  problem.order = reverse_order(count);
  std::shuffle(problem.order.begin(), problem.order.end(), generator);
  problem.caps = {generator() % 4000, generator() % 20000};
  return problem;
}

std::vector<std::size_t> bucket_mib(std::size_t count, std::size_t each) {
  const std::vector<GradientSize> sizes(count, {each, DType::f32, {}});
  std::vector<std::size_t> result;
  for (const PlannedBucket& bucket : plan_buckets(sizes).buckets)
    result.push_back(bucket.bytes / mib);
  return result;
}

}  // namespace

TEST_CASE("every parameter lies in exactly one bucket, of its own dtype, in ready order") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Problem problem = random_problem(seed);
    const BucketPlan plan = plan_buckets(problem.sizes, problem.order, problem.caps);
    std::vector<std::size_t> position(problem.order.size());
    for (std::size_t i = 0; i < problem.order.size(); ++i)
      position[problem.order[i]] = i;

    std::vector<int> seen(problem.sizes.size(), 0);
    std::size_t completed_before = 0;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const PlannedBucket& bucket = plan.buckets[b];
      REQUIRE_FALSE(bucket.parameters.empty());
      std::size_t payload = 0;
      for (const std::size_t parameter : bucket.parameters) {
        ++seen[parameter];
        payload += problem.sizes[parameter].bytes;
        CHECK(plan.bucket_of[parameter] == b);
        CHECK(problem.sizes[parameter].dtype == bucket.dtype);
      }
      CHECK(payload == bucket.payload_bytes);
      CHECK(std::is_sorted(bucket.parameters.begin(), bucket.parameters.end(),
                           [&](std::size_t x, std::size_t y) { return position[x] < position[y]; }));
      const std::size_t completed = position[bucket.parameters.back()];
      CHECK((b == 0 || completed > completed_before));
      completed_before = completed;
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  }
}

TEST_CASE("gradients are aligned, do not overlap, and buckets follow each other without a gap") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Problem problem = random_problem(seed);
    const BucketPlan plan = plan_buckets(problem.sizes, problem.order, problem.caps);
    std::size_t end = 0;
    for (const PlannedBucket& bucket : plan.buckets) {
      CHECK(bucket.offset == end);
      CHECK(bucket.bytes % size_bytes(bucket.dtype) == 0);
      std::size_t next = bucket.offset;
      for (const std::size_t parameter : bucket.parameters) {
        CHECK(plan.offset_of[parameter] % arena_alignment == 0);
        CHECK(plan.offset_of[parameter] >= next);
        next = plan.offset_of[parameter] + problem.sizes[parameter].bytes;
      }
      end = bucket.offset + bucket.bytes;
      CHECK(next <= end);
    }
    CHECK(plan.arena_bytes == end);
  }
}

TEST_CASE("a bucket above the cap has one parameter that takes a place") {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    CAPTURE(seed);
    const Problem problem = random_problem(seed);
    const BucketPlan plan = plan_buckets(problem.sizes, problem.order, problem.caps);
    for (const PlannedBucket& bucket : plan.buckets) {
      const auto places = std::count_if(bucket.parameters.begin(), bucket.parameters.end(),
                                        [&](std::size_t i) { return problem.sizes[i].bytes > 0; });
      CHECK((bucket.bytes <= problem.caps.bucket_bytes || places <= 1));
    }
  }
}

TEST_CASE("the same arguments give the same plan") {
  const Problem problem = random_problem(7);
  const BucketPlan once = plan_buckets(problem.sizes, problem.order, problem.caps);
  const BucketPlan again = plan_buckets(problem.sizes, problem.order, problem.caps);
  CHECK(once.offset_of == again.offset_of);
  CHECK(once.bucket_of == again.bucket_of);
}

TEST_CASE("parameters are independent of how those of another device are sized") {
  const dtrain::Device cuda{dtrain::DeviceKind::cuda, 0};
  std::vector<GradientSize> sizes{
      {64, DType::f32, {}}, {64, DType::f32, cuda}, {64, DType::f32, {}}, {64, DType::f32, cuda}};
  const BucketPlan plan = plan_buckets(sizes, BucketCaps{1024, 1024});
  REQUIRE(plan.buckets.size() == 2);
  CHECK(plan.buckets[0].parameters == std::vector<std::size_t>{3, 1});
  CHECK(plan.buckets[0].device == cuda);
  CHECK(plan.buckets[1].parameters == std::vector<std::size_t>{2, 0});
  CHECK(plan.buckets[1].device == dtrain::Device{});
}

TEST_CASE("alternating dtypes do not cut buckets short") {
  std::vector<GradientSize> sizes;
  for (int i = 0; i < 20; ++i)
    sizes.push_back({128, i % 2 == 0 ? DType::f32 : DType::f64, {}});
  CHECK(plan_buckets(sizes).buckets.size() == 2);
}

TEST_CASE("without an order the last parameter is reduced first") {
  const std::vector<GradientSize> sizes(3, {64, DType::f32, {}});
  const BucketPlan plan = plan_buckets(sizes);
  REQUIRE(plan.buckets.size() == 1);
  CHECK(plan.buckets[0].parameters == std::vector<std::size_t>{2, 1, 0});
  CHECK(plan.offset_of == std::vector<std::size_t>{128, 64, 0});
}

TEST_CASE("the first bucket is small, none is more than a sixteenth of all, the last ones halve") {
  std::vector<std::size_t> of_400{1};
  of_400.insert(of_400.end(), 14, 25);
  of_400.insert(of_400.end(), {24, 12, 6, 3, 2, 1, 1});
  CHECK(bucket_mib(400, mib) == of_400);
  std::vector<std::size_t> of_100{1};
  of_100.insert(of_100.end(), 15, 6);
  of_100.insert(of_100.end(), {4, 2, 1, 1, 1});
  CHECK(bucket_mib(100, mib) == of_100);
  CHECK(bucket_mib(4, mib) == std::vector<std::size_t>{1, 1, 1, 1});
  CHECK(bucket_mib(1, 100 * mib) == std::vector<std::size_t>{100});
  CHECK(bucket_mib(3, 30 * mib) == std::vector<std::size_t>{30, 30, 30});
}

TEST_CASE("a cap of zero gives every parameter a bucket of its own") {
  const std::vector<GradientSize> sizes(5, {4, DType::f32, {}});
  CHECK(plan_buckets(sizes, BucketCaps{0, 0}).buckets.size() == 5);
}

TEST_CASE("parameters of no bytes take no place, also where a model has no others") {
  const std::vector<GradientSize> mixed{{0, DType::f32, {}}, {64, DType::f32, {}}, {0, DType::f32, {}}};
  const BucketPlan plan = plan_buckets(mixed);
  CHECK(plan.arena_bytes == 64);
  CHECK(plan.buckets.size() == 1);
  const BucketPlan empty = plan_buckets(std::vector<GradientSize>(2, {0, DType::f32, {}}));
  CHECK(empty.arena_bytes == 0);
  REQUIRE(empty.buckets.size() == 1);
  CHECK(empty.buckets[0].bytes == 0);
  CHECK(plan_buckets(std::vector<GradientSize>{}).buckets.empty());
}

TEST_CASE("with reused memory any two successive buckets lie side by side, in no more memory than the largest two") {
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const Problem problem = random_problem(seed);
    const BucketPlan whole = plan_buckets(problem.sizes, problem.order, problem.caps);
    const BucketPlan plan = with_reused_memory(whole);
    REQUIRE(plan.buckets.size() == whole.buckets.size());
    std::size_t needed = plan.buckets.empty() ? 0 : plan.buckets[0].bytes;
    for (std::size_t i = 0; i < plan.buckets.size(); ++i) {
      const PlannedBucket& bucket = plan.buckets[i];
      CHECK(bucket.offset + bucket.bytes <= plan.arena_bytes);
      CHECK(bucket.offset % arena_alignment == 0);
      for (const std::size_t parameter : bucket.parameters)
        CHECK(plan.offset_of[parameter] - bucket.offset == whole.offset_of[parameter] - whole.buckets[i].offset);
      if (i == 0) continue;
      const PlannedBucket& before = plan.buckets[i - 1];
      CHECK((before.offset + before.bytes <= bucket.offset || bucket.offset + bucket.bytes <= before.offset));
      needed = std::max(needed, before.bytes + bucket.bytes);
    }
    CHECK(plan.arena_bytes == needed);
  }
}

TEST_CASE("an order that is not a permutation and sizes beyond all memory are refused") {
  const std::vector<GradientSize> sizes(3, {4, DType::f32, {}});
  for (const std::vector<std::size_t>& order :
       {std::vector<std::size_t>{0, 1}, {0, 1, 1}, {0, 1, 3}, {0, 1, 2, 2}, {}}) {
    CHECK_ERROR(plan_buckets(sizes, order), Errc::invalid_argument, "does not name each of 3 parameters once");
  }
  const std::vector<GradientSize> huge(5, {std::size_t{1} << 59, DType::f32, {}});
  CHECK_THROWS_WITH_AS(plan_buckets(huge), doctest::Contains("2^60"), dtrain::Error);
}
