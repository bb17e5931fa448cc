#include "unit/topology/prelude.hpp"

using Channels = Hierarchical<>::Rebind<SharedMemory>;
using Nodes = std::vector<int>;

static_assert(dtrain::topology::SupportsBackend<Hierarchical<>, SharedMemory>);
static_assert(dtrain::topology::SupportsBackend<Hierarchical<SharedMemory>, SharedMemory>);

namespace {

const std::vector<Nodes> layouts{{0},          {0, 0},          {0, 1},
                                 {0, 0, 1, 1}, {0, 1, 0, 1},    {0, 0, 1, 2},
                                 {5, 5, 5, 3}, {0, 1, 1, 1, 0}, {2, 2, 2, 2, 2, 2, 1, 1}};

}  // namespace

TEST_CASE("nodes, even or not, reduce every element type by every operation, for any length, in place and not") {
  for (const Nodes& nodes : layouts)
    topology_test::check_exact<Channels>(static_cast<int>(nodes.size()), nodes, {0, 1, 2, 1003});
}

TEST_CASE("nodes accumulate 16-bit floats as f32 where they are told to") {
  topology_test::check_exact<Channels>(4, {0, 0, 1, 1}, {1, 1003}, dtrain::Accumulate::f32);
  topology_test::check_exact<Channels>(5, {0, 1, 1, 1, 0}, {1, 1003}, dtrain::Accumulate::f32);
}

TEST_CASE("nodes, even or not, average values whose sum overflows") {
  topology_test::check_large<Channels>(4, {0, 1, 2, 3});
  topology_test::check_large<Channels>(9, {0, 0, 0, 1, 1, 1, 2, 2, 2});
  topology_test::check_large<Channels>(9, {0, 0, 0, 0, 0, 1, 1, 2, 2});
  topology_test::check_large<Channels>(10, {0, 0, 0, 0, 0, 0, 0, 0, 0, 1});
}

TEST_CASE("nodes give the same bits on every rank and in every run, near the exact average") {
  topology_test::check_bits<Channels>(4, {0, 0, 1, 1}, 300'001);
  topology_test::check_bits<Channels>(4, {0, 0, 1, 2}, 300'001);
}

TEST_CASE("a buffer that goes in segments has the same bits on every rank, uneven nodes or not") {
  topology_test::check_bits<Channels>(3, {0, 0, 1}, 4'300'001);     // three of 8 MiB, of which a node shares one out
  topology_test::check_bits<Channels>(4, {0, 1, 0, 1}, 4'300'001);  // while another goes between the nodes
}

TEST_CASE("a broadcast that goes in segments reaches every rank, uneven nodes or not") {
  constexpr std::size_t count = 4'300'001;  // two segments of 8 MiB for each rank that crosses
  for (const Nodes& nodes : {Nodes{0, 0, 1}, {0, 1, 0, 1}}) {
    const int ranks = static_cast<int>(nodes.size());
    for (const int root : {0, ranks - 1}) {
      support::run_topology_ranks<Channels>(ranks, nodes, [&](auto& self, int rank) {
        std::vector<std::int32_t> values(count, -1);
        if (rank == root) std::iota(values.begin(), values.end(), 0);
        self.communicator.enqueue(Broadcast{dtrain::buffer_view(std::span(values)), root}, self.stream.ref());
        CHECK(self.wait());
        CHECK(std::is_sorted(values.begin(), values.end()));
        CHECK(values.front() == 0);
        CHECK(values.back() == static_cast<std::int32_t>(count) - 1);
      });
    }
  }
}

TEST_CASE("memory is the node's, and a reduction in it is right") {
  support::run_topology_ranks<Channels>(4, {0, 0, 1, 1}, [](auto& self, int rank) {
    for (const std::size_t count : {std::size_t{64}, std::size_t{100'001}}) {
      const auto memory =
          self.communicator.allocate_blocking(count * 4, dtrain::Deadline::after(std::chrono::seconds(60)));
      const dtrain::BufferView view{memory.data(), count, dtrain::DType::i32, {}};
      auto* const values = reinterpret_cast<std::int32_t*>(view.data);
      std::fill(values, values + count, rank + 1);
      self.communicator.enqueue(AllReduce{view, view, dtrain::ReduceOp::sum}, self.stream.ref());
      CHECK(self.wait());
      CHECK(std::count(values, values + count, 10) == static_cast<std::ptrdiff_t>(count));
    }
  });
}

TEST_CASE(
    "a layout numbers nodes and ranks in their order, and has a cross-node group for each rank of the smallest node") {
  const auto layout = [](int rank) { return dtrain::topology::node_layout({7, 3, 7, 7, 3}, rank); };
  CHECK(layout(0).node == 0);
  CHECK(layout(1).node == 1);
  CHECK(layout(3).local_rank == 2);
  CHECK(layout(3).local_size == 3);
  CHECK(layout(4).local_rank == 1);
  CHECK(layout(4).local_size == 2);
  CHECK(layout(0).nodes == 2);
  CHECK(layout(0).cross_node_groups == 2);
  CHECK(layout(0).ranks == 5);
  CHECK(layout(2).has_cross_node_group());
  CHECK_FALSE(layout(3).has_cross_node_group());
  CHECK_FALSE(layout(3).is_even());
  CHECK(layout(4).is_even());
}

TEST_CASE("a layout knows whether each node's ranks, as many on all, follow those of the node before") {
  const auto is_in_rank_order = [](const Nodes& nodes) {
    return dtrain::topology::node_layout(nodes, 0).is_in_rank_order();
  };
  CHECK(is_in_rank_order({3}));
  CHECK(is_in_rank_order({3, 3, 2, 2}));
  CHECK(is_in_rank_order({0, 1, 2}));
  CHECK_FALSE(is_in_rank_order({0, 1, 0, 1}));
  CHECK_FALSE(is_in_rank_order({0, 0, 1, 0, 1, 1}));
  CHECK_FALSE(is_in_rank_order({0, 0, 1}));
  CHECK_FALSE(is_in_rank_order({0, 1, 1, 2, 2, 2}));
}
