// Several ways to all_reduce of one communicator, as a measured plan chooses among them.

#include "unit/topology/prelude.hpp"

namespace variants_test {

namespace wire = dtrain::wire;
using dtrain::ReduceOp;
using dtrain::backend::AllReduceWithoutCast;
using dtrain::backend::HasVariants;
using dtrain::backend::ReduceScatter;
using Nodes = std::vector<int>;
using Names = std::vector<std::string>;
template <class Wire = wire::Same>
using Hierarchical = typename dtrain::topology::Hierarchical<SharedMemory, Wire>::template Rebind<SharedMemory>;

static_assert(HasVariants<Hierarchical<>::Communicator>);
static_assert(!HasVariants<SharedMemory::Communicator>);
static_assert(!HasVariants<dtrain::topology::Ring::Rebind<SharedMemory>::Communicator>);

template <class Backend>
void check_names(const Nodes& nodes, const Names& expected) {
  support::run_topology_ranks<Backend>(static_cast<int>(nodes.size()), nodes, [&](auto& self, int) {
    const std::vector<const char*> names = self.communicator.variants();
    CHECK(Names(names.begin(), names.end()) == expected);
  });
}

TEST_CASE("a communicator has the variants that make a difference on its nodes, the same on all ranks") {
  for (const Nodes& nodes : {Nodes{0}, {0, 0}, {0, 1}, {0, 1, 2}})
    check_names<Hierarchical<>>(nodes, {});
  for (const Nodes& nodes : {Nodes{0, 0, 1, 1}, {0, 1, 1, 1, 0}, {0, 0, 1}})
    check_names<Hierarchical<>>(nodes, {"Hierarchical", "Flat"});
  check_names<Hierarchical<wire::Bf16>>({0, 0}, {});
  check_names<Hierarchical<wire::Bf16>>({0, 1}, {"Hierarchical in bf16", "Hierarchical in f32"});
  check_names<Hierarchical<wire::F16>>({0, 0, 1, 1}, {"Hierarchical in f16", "Hierarchical in f32", "Flat"});
}

/// Reduces once by each variant, and by the first again, all enqueued before any runs. 16 bits lose the 2^-20.
/// @param rounds by variant, whether it does
template <class Backend>
void check_variants(const Nodes& nodes, const std::vector<bool>& rounds) {
  const int ranks = static_cast<int>(nodes.size());
  support::run_topology_ranks<Backend>(ranks, nodes, [&](auto& self, int rank) {
    constexpr std::size_t count = 1003;
    std::vector<std::size_t> order(rounds.size() + 1, 0);
    for (std::size_t variant = 0; variant < rounds.size(); ++variant)
      order[variant] = variant;
    std::vector<std::vector<float>> fractions(order.size(), std::vector<float>(count, 1.0F + 0x1p-20F));
    std::vector<std::vector<std::int32_t>> integers(order.size(), std::vector<std::int32_t>(count, rank + 1));
    for (std::size_t i = 0; i < order.size(); ++i) {
      self.communicator.use_variant(order[i]);
      for (const dtrain::BufferView view :
           {dtrain::buffer_view(std::span(fractions[i])), dtrain::buffer_view(std::span(integers[i]))})
        self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    }
    REQUIRE(self.wait());
    const auto number = static_cast<float>(ranks);
    for (std::size_t i = 0; i < order.size(); ++i) {
      CAPTURE(i);
      const float sum = rounds[order[i]] ? number : number * (1.0F + 0x1p-20F);
      CHECK(fractions[i] == std::vector<float>(count, sum));
      CHECK(integers[i] == std::vector<std::int32_t>(count, ranks * (ranks + 1) / 2));
    }
  });
}

TEST_CASE("each all_reduce goes by the variant in use when it was enqueued, and all variants have the right sums") {
  check_variants<Hierarchical<>>({0, 0, 1, 1}, {false, false});
  check_variants<Hierarchical<>>({0, 1, 1, 1}, {false, false});
  check_variants<Hierarchical<wire::Bf16>>({0, 0, 1, 1}, {true, false, false});
  check_variants<Hierarchical<wire::F16>>({0, 1, 0, 1}, {true, false, false});
  check_variants<Hierarchical<wire::Bf16>>({0, 1}, {true, false});
}

static_assert(dtrain::backend::CanReduceWithoutCast<Hierarchical<>::Communicator>);
static_assert(!dtrain::backend::CanReduceWithoutCast<SharedMemory::Communicator>);
static_assert(dtrain::backend::CanReadBlocks<SharedMemory::Communicator>);
static_assert(!dtrain::backend::CanReadBlocks<Hierarchical<>::Communicator>);
static_assert(!dtrain::backend::CanSumSquares<Hierarchical<wire::F16>::Communicator>);

/// By every variant, sums without a cast between sums with one.
template <class Backend>
void check_without_cast(const Nodes& nodes, std::size_t variants, std::size_t count) {
  const auto number = static_cast<float>(nodes.size());
  support::run_topology_ranks<Backend>(static_cast<int>(nodes.size()), nodes, [&](auto& self, int) {
    for (std::size_t variant = 0; variant < variants; ++variant) {
      CAPTURE(variant);
      std::vector<float> uncast(count, 1.0F + 0x1p-20F);
      std::vector<float> after(count, 1.0F + 0x1p-20F);
      const auto view = dtrain::buffer_view(std::span(uncast));
      const auto later = dtrain::buffer_view(std::span(after));
      self.communicator.use_variant(variant);
      self.communicator.enqueue(AllReduceWithoutCast{{view, view, ReduceOp::sum}}, self.stream.ref());
      self.communicator.enqueue(AllReduce{later, later, ReduceOp::average}, self.stream.ref());
      REQUIRE(self.wait());
      CHECK(uncast == std::vector<float>(count, number * (1.0F + 0x1p-20F)));
      CHECK(after == std::vector<float>(count, variant == 0 ? 1.0F : 1.0F + 0x1p-20F));
    }
  });
}

TEST_CASE("all_reduce_without_cast rounds nothing, whatever the variant, and changes no later all_reduce") {
  check_without_cast<Hierarchical<wire::Bf16>>({0, 1}, 2, 1003);
  check_without_cast<Hierarchical<wire::F16>>({0, 0, 1, 1}, 3, 1003);
  check_without_cast<Hierarchical<wire::Bf16>>({0, 1, 0, 1}, 3, 4'300'001);  // in segments
}

TEST_CASE("in segments, too, the variant in f32 rounds nothing") {
  support::run_topology_ranks<Hierarchical<wire::Bf16>>(4, {0, 1, 0, 1}, [&](auto& self, int) {
    std::vector<float> values(4'300'001, 1.0F + 0x1p-20F);
    const auto view = dtrain::buffer_view(std::span(values));
    self.communicator.use_variant(1);
    REQUIRE(self.all_reduce(view, view, ReduceOp::average));
    CHECK(std::count(values.begin(), values.end(), 1.0F + 0x1p-20F) == 4'300'001);
  });
}

TEST_CASE("a variant concerns all_reduce alone, in the communicator's memory too, and not what a split makes") {
  support::run_topology_ranks<Hierarchical<wire::Bf16>>(4, {0, 0, 1, 1}, [&](auto& self, int) {
    const auto deadline = dtrain::Deadline::after(std::chrono::seconds(60));
    const auto memory = self.communicator.allocate_blocking(4 * 64 * sizeof(float), deadline);
    const dtrain::BufferView view{memory.data(), 4 * 64, dtrain::DType::f32, {}};
    auto* const values = reinterpret_cast<float*>(view.data);
    for (const std::size_t variant : {std::size_t{1}, std::size_t{2}}) {
      std::fill(values, values + view.count, 1.0F + 0x1p-20F);
      self.communicator.use_variant(variant);
      REQUIRE(self.all_reduce(view, view, ReduceOp::sum));
      CHECK(std::count(values, values + view.count, 4.0F * (1.0F + 0x1p-20F)) == 4 * 64);
      CHECK(self.communicator.compressed_traffic() == dtrain::CompressedTraffic{});
    }
    std::vector<float> own(64);
    std::fill(values, values + view.count, 1.0F + 0x1p-20F);
    self.communicator.enqueue(ReduceScatter{view, dtrain::buffer_view(std::span(own)), ReduceOp::sum},
                              self.stream.ref());
    REQUIRE(self.wait());
    CHECK(own == std::vector<float>(64, 4.0F));
    auto all = self.communicator.split_blocking(0, 0, deadline);
    all.enqueue(AllReduce{view, view, ReduceOp::average}, self.stream.ref());
    REQUIRE(self.wait());
    CHECK(values[0] == 1.0F);
    self.communicator.use_variant(7);  // as the first
    std::fill(values, values + view.count, 1.0F + 0x1p-20F);
    REQUIRE(self.all_reduce(view, view, ReduceOp::average));
    CHECK(values[0] == 1.0F);
  });
}

}  // namespace variants_test
