#include "dtrain/ddp/data/sampler.hpp"

#include "support/captured_stderr.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::DistributedSampler;
using dtrain::SamplerOptions;

namespace {

constexpr std::size_t sizes[] = {1, 2, 7, 8, 61, 64, 100, 257};
constexpr std::size_t global_batches[] = {1, 3, 8, 10, 64, 1000};

SamplerOptions options_of(std::size_t size, std::size_t batch, int rank, int ranks) {
  return {.dataset_size = size, .global_batch = batch, .rank = rank, .world_size = ranks, .seed = 5};
}

/// f(sampler of each rank, its options) for world sizes 1..9 and odd sizes.
template <class F>
void for_each_job(F&& f) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    for (const std::size_t size : sizes) {
      for (const std::size_t batch : global_batches) {
        CAPTURE(ranks);
        CAPTURE(size);
        CAPTURE(batch);
        std::vector<DistributedSampler> samplers;
        for (int rank = 0; rank < ranks; ++rank)
          samplers.emplace_back(options_of(size, batch, rank, ranks));
        f(samplers, size, batch, static_cast<std::size_t>(ranks));
      }
    }
  }
}

bool alike(std::span<const std::size_t> one, std::span<const std::size_t> other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end());
}

}  // namespace

TEST_CASE("each step trains on its slice of the global order, whole, with equal counts on all ranks") {
  for_each_job([](const std::vector<DistributedSampler>& samplers, std::size_t size, std::size_t batch, std::size_t n) {
    const std::vector<std::size_t> order = samplers[0].global_order(3);
    std::vector<SampleBatches> shares;
    for (const DistributedSampler& sampler : samplers)
      shares.push_back(sampler.batches(3));
    const std::size_t steps = (size + batch - 1) / batch;
    for (std::size_t step = 0; step < steps; ++step) {
      const std::size_t begin = step * batch;
      const std::size_t length = std::min(batch, size - begin);
      const std::set<std::size_t> slice(order.begin() + static_cast<std::ptrdiff_t>(begin),
                                        order.begin() + static_cast<std::ptrdiff_t>(begin + length));
      std::set<std::size_t> taken;
      std::size_t count = 0;
      for (const SampleBatches& share : shares) {
        REQUIRE(share.size() == steps);
        REQUIRE(share[step].size() == (length + n - 1) / n);
        taken.insert(share[step].begin(), share[step].end());
        count += share[step].size();
      }
      CHECK(taken == slice);
      CHECK((length % n != 0 || count == length));  // disjoint where it divides
    }
  });
}

TEST_CASE("the global order is a permutation, the same for any world size, another in each epoch") {
  const std::vector<std::size_t> order = DistributedSampler(options_of(100, 8, 0, 1)).global_order(0);
  std::vector<std::size_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  for (std::size_t i = 0; i < sorted.size(); ++i)
    CHECK(sorted[i] == i);
  for (int ranks = 2; ranks <= 9; ++ranks)
    CHECK(DistributedSampler(options_of(100, 8, ranks - 1, ranks)).global_order(0) == order);
  std::set<std::vector<std::size_t>> orders;
  for (std::uint64_t epoch = 0; epoch < 50; ++epoch)
    orders.insert(DistributedSampler(options_of(100, 8, 0, 1)).global_order(epoch));
  CHECK(orders.size() == 50);
  SamplerOptions other = options_of(100, 8, 0, 1);
  other.seed = 6;
  CHECK(DistributedSampler(other).global_order(0) != order);
}

TEST_CASE("without shuffling the order is the data set's in every epoch") {
  SamplerOptions options = options_of(5, 2, 1, 2);
  options.shuffle = false;
  const DistributedSampler sampler(options);
  CHECK(sampler.global_order(4) == std::vector<std::size_t>{0, 1, 2, 3, 4});
  const SampleBatches batches = sampler.batches(4);
  const std::vector<std::size_t> mine(batches.samples().begin(), batches.samples().end());
  CHECK(mine == std::vector<std::size_t>{1, 3, 4});  // the last slice has one sample: every rank takes it
}

TEST_CASE("a slice that the ranks do not divide is padded by its own samples, from its beginning on") {
  using Positions = std::vector<std::size_t>;
  const auto taken = [](std::size_t length, int rank, int ranks) {
    SamplerOptions options = options_of(length, length, rank, ranks);
    options.shuffle = false;
    const SampleBatches batches = DistributedSampler(options).batches(1);
    return Positions(batches.samples().begin(), batches.samples().end());
  };
  CHECK(taken(4, 0, 3) == Positions{0, 3});  // the documented example
  CHECK(taken(4, 1, 3) == Positions{1, 0});
  CHECK(taken(4, 2, 3) == Positions{2, 1});
  CHECK(taken(2, 4, 5) == Positions{0});  // more ranks than samples
  CHECK(taken(2, 3, 5) == Positions{1});
  const DistributedSampler shuffled(options_of(10, 4, 1, 3));  // slices of 4, 4 and 2 samples
  const Positions order = shuffled.global_order(2);
  const SampleBatches batches = shuffled.batches(2);
  CHECK(Positions(batches.samples().begin(), batches.samples().end()) ==
        Positions{order[1], order[0], order[5], order[4], order[9]});
}

TEST_CASE("the shares of all ranks are each slice of the global order exactly once, and their weights make its mean") {
  for_each_job([](const std::vector<DistributedSampler>& samplers, std::size_t size, std::size_t batch, std::size_t n) {
    const std::vector<std::size_t> order = samplers[0].global_order(3);
    std::vector<dtrain::SampleShares> shares;
    for (const DistributedSampler& sampler : samplers) {
      shares.push_back(sampler.shares(3));
      REQUIRE(shares.back().size() == (size - 1) / batch + 1);
    }
    for (std::size_t step = 0; step < shares.front().size(); ++step) {
      const std::size_t begin = step * batch;
      const std::size_t length = std::min(batch, size - begin);
      std::vector<std::size_t> seen;
      for (const dtrain::SampleShares& each : shares) {
        const dtrain::SampleShare share = each[step];
        REQUIRE(share.samples.size() >= 1);
        if (share.weight == 0) {
          CHECK(length < n);
          CHECK(share.samples.size() == 1);
          continue;
        }
        CHECK(share.weight == doctest::Approx(double(share.samples.size()) * double(n) / double(length)));
        CHECK((share.weight == 1) == (share.samples.size() * n == length));
        seen.insert(seen.end(), share.samples.begin(), share.samples.end());
      }
      std::vector<std::size_t> slice(order.begin() + std::ptrdiff_t(begin),
                                     order.begin() + std::ptrdiff_t(begin + length));
      std::sort(seen.begin(), seen.end());
      std::sort(slice.begin(), slice.end());
      CHECK(seen == slice);
    }
  });
}

TEST_CASE("drop_last leaves out the last, shorter batch of an epoch, and no sample of the others") {
  for (const std::size_t size : {std::size_t{20}, std::size_t{23}}) {
    for (int rank = 0; rank < 2; ++rank) {
      CAPTURE(size);
      CAPTURE(rank);
      SamplerOptions options = options_of(size, 5, rank, 2);
      const DistributedSampler all(options);
      options.drop_last = true;
      const DistributedSampler whole(options);
      CHECK(whole.steps_per_epoch() == 4);
      CHECK(all.steps_per_epoch() == (size == 20 ? 4 : 5));
      CHECK(all.batches(7).size() == all.steps_per_epoch());
      const SampleBatches batches = whole.batches(7);
      REQUIRE(batches.size() == 4);
      REQUIRE(whole.shares(7).size() == 4);
      for (std::size_t step = 0; step < 4; ++step) {
        CHECK(alike(batches[step], all.batches(7)[step]));
        CHECK(alike(whole.shares(7)[step].samples, all.shares(7)[step].samples));
      }
      CHECK(whole.global_order(7) == all.global_order(7));
      CHECK(alike(whole.evaluation().samples(), all.evaluation().samples()));
    }
  }
}

TEST_CASE("evaluation gives every sample exactly once over all ranks, in order") {
  for_each_job([](const std::vector<DistributedSampler>& samplers, std::size_t size, std::size_t batch, std::size_t n) {
    std::vector<int> seen(size, 0);
    for (const DistributedSampler& sampler : samplers) {
      const SampleBatches share = sampler.evaluation();
      CHECK(std::is_sorted(share.samples().begin(), share.samples().end()));
      for (const std::span<const std::size_t> part : share) {
        CHECK_FALSE(part.empty());
        CHECK(part.size() <= (std::min(batch, size) + n - 1) / n);
        for (const std::size_t sample : part)
          ++seen[sample];
      }
    }
    CHECK(std::all_of(seen.begin(), seen.end(), [](int times) { return times == 1; }));
  });
}

TEST_CASE("a loop over the batches visits what indexing gives: spans of one array") {
  const DistributedSampler sampler(options_of(100, 8, 1, 3));
  const SampleBatches batches = sampler.batches(0);
  std::size_t step = 0;
  for (const std::span<const std::size_t> batch : sampler.batches(0)) {
    CHECK(std::equal(batch.begin(), batch.end(), batches[step].begin(), batches[step].end()));
    ++step;
  }
  CHECK(step == batches.size());
  CHECK(step == sampler.steps_per_epoch());
  CHECK(batches[0].data() + batches[0].size() == batches[1].data());
}

TEST_CASE("the order is the specified one: computed by another program from the documented algorithm") {
  CHECK(dtrain::ddp::shuffled_order(10, 1, 0) == std::vector<std::size_t>{1, 9, 6, 5, 7, 4, 3, 2, 8, 0});
  CHECK(dtrain::ddp::shuffled_order(10, 42, 7) == std::vector<std::size_t>{5, 6, 9, 4, 3, 1, 0, 7, 8, 2});
  dtrain::ddp::SplitMix64 generator(1234567);  // the first outputs of splitmix64.c for this state
  CHECK(generator.next() == 6457827717110365317u);
  CHECK(generator.next() == 3203168211198807973u);
}

TEST_CASE("a bounded draw is uniform where the bound does not divide 2^64") {
  dtrain::ddp::SplitMix64 generator(9);
  std::vector<int> counts(3, 0);
  for (int i = 0; i < 30000; ++i) {
    const std::uint64_t drawn = generator.below((std::uint64_t{1} << 63) + (std::uint64_t{1} << 62));
    ++counts[drawn >> 62];
  }
  for (const int count : counts)
    CHECK((count > 9500 && count < 10500));  // a plain remainder gives 15000, 7500, 7500
  CHECK(generator.below(1) == 0);
}

TEST_CASE("a global batch above the data set is warned of once, by rank 0, where it trains") {
  const auto log_of = [](std::size_t global_batch, int rank, auto use) {
    support::CapturedStderr captured;
    use(DistributedSampler({.dataset_size = 10, .global_batch = global_batch, .rank = rank, .world_size = 2}));
    return captured.text();
  };
  const std::string warned = "a global batch of 11 samples, and the data set has 10: an epoch is one step with all";
  const auto train = [](const DistributedSampler& sampler) {
    for (const std::uint64_t epoch : {0U, 1U})
      static_cast<void>(sampler.batches(epoch));
  };
  const auto share = [](const DistributedSampler& sampler) {
    for (const std::uint64_t epoch : {0U, 1U})
      static_cast<void>(sampler.shares(epoch));
  };
  for (const std::string& text : {log_of(11, 0, train), log_of(11, 0, share)}) {
    CHECK_CONTAINS(text, warned);
    CHECK(text.find("dtrain:") == text.rfind("dtrain:"));
  }
  CHECK(log_of(10, 0, train) == "");
  CHECK(log_of(11, 1, train) == "");
  CHECK(log_of(11, 0, [](const DistributedSampler& sampler) { static_cast<void>(sampler.evaluation()); }) == "");
}

TEST_CASE("a sampler of a group is that of the group's rank, whatever rank the options name") {
  struct Group {
    int rank() const noexcept { return 2; }
    int world_size() const noexcept { return 3; }
  };
  const DistributedSampler of_group{Group(), options_of(64, 10, 0, 1)};
  const DistributedSampler of_rank(options_of(64, 10, 2, 3));
  CHECK(alike(of_group.batches(4).samples(), of_rank.batches(4).samples()));
  CHECK(alike(of_group.evaluation().samples(), of_rank.evaluation().samples()));
}

TEST_CASE("options that make no sense are refused in a sentence") {
  CHECK_THROWS_WITH_AS(DistributedSampler(options_of(10, 2, 2, 2)), doctest::Contains("rank 2 of 2"), dtrain::Error);
  CHECK_THROWS_WITH_AS(DistributedSampler(options_of(10, 2, -1, 2)), doctest::Contains("rank -1 of 2"), dtrain::Error);
  CHECK_THROWS_WITH_AS(DistributedSampler(options_of(10, 2, 0, 0)), doctest::Contains("rank 0 of 0"), dtrain::Error);
  CHECK_THROWS_WITH_AS(DistributedSampler(options_of(0, 2, 0, 1)), doctest::Contains("without samples"), dtrain::Error);
  CHECK_THROWS_WITH_AS(DistributedSampler(options_of(10, 0, 0, 1)), doctest::Contains("0 samples"), dtrain::Error);
  SamplerOptions nothing_left = options_of(10, 11, 0, 1);
  nothing_left.drop_last = true;
  CHECK_THROWS_WITH_AS(DistributedSampler{nothing_left},
                       "a sampler was made with drop_last for 10 samples and a global batch of 11: no step would be "
                       "left; give a smaller batch",
                       dtrain::Error);
}
