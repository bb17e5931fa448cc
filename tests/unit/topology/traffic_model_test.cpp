#include "support/traffic_model.hpp"

#include "support/memory_transport.hpp"
#include "unit/topology/prelude.hpp"

namespace {

using Counting = support::CountingBackend;

constexpr std::size_t count = 1'200'000;  // no rank's part has a remainder
constexpr double bytes = 4.0 * count;

/// What each rank sends in one all_reduce of `count` floats.
template <class Channels>
std::vector<double> measured(int ranks, const std::vector<int>& nodes = {}) {
  support::CountedNetworks::instance().clear();
  support::run_topology_ranks<Channels>(ranks, nodes, [](auto& self, int) {
    std::vector<float> values(count, 1);
    const auto view = dtrain::buffer_view(std::span(values));
    CHECK(self.all_reduce(view, view, dtrain::ReduceOp::sum));
  });
  std::vector<double> result;
  for (int rank = 0; rank < ranks; ++rank)
    result.push_back(static_cast<double>(support::CountedNetworks::instance().sent(rank).load()));
  return result;
}

template <class Traffic>
std::vector<double> predicted(const Traffic& traffic) {
  std::vector<double> result;
  for (int rank = 0; rank < traffic.ranks; ++rank)
    result.push_back(support::bytes_sent(traffic, rank));
  return result;
}

}  // namespace

TEST_CASE("what each rank sends is what the formulas of its topology say") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    CHECK(measured<topology::Ring::Rebind<Counting>>(ranks) == predicted(support::RingTraffic{bytes, ranks}));
    CHECK(measured<topology::ParameterServer<2>::Rebind<Counting>>(ranks) ==
          predicted(support::ParameterServerTraffic{bytes, ranks, 2}));
  }
  for (const int ranks : {1, 2, 3, 6}) {
    CAPTURE(ranks);
    CHECK(measured<topology::Tree::Rebind<Counting>>(ranks) == predicted(support::TreeTraffic{bytes, ranks}));
  }
}

TEST_CASE("across nodes each rank of a cross-node group sends its share, and the others nothing") {
  using Channels = topology::Hierarchical<SharedMemory>::Rebind<topology::Ring::Rebind<Counting>>;
  const double even = support::hierarchical_bytes_across(bytes, 2, 2);
  CHECK(measured<Channels>(4, {0, 0, 1, 1}) == std::vector<double>{even, even, even, even});
  const double uneven = support::hierarchical_bytes_across(bytes, 3, 1);
  CHECK(measured<Channels>(4, {0, 0, 1, 2}) == std::vector<double>{uneven, 0, uneven, uneven});
}

TEST_CASE("a broadcast from any rank crosses to each other node once, and reaches every rank") {
  using Channels = topology::Hierarchical<SharedMemory>::Rebind<Counting>;
  for (const std::vector<int>& nodes :
       {std::vector<int>{0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 1, 2}, {0, 1, 1, 1, 0}, {0, 1, 2}, {0, 0}}) {
    for (int root = 0; root < static_cast<int>(nodes.size()); ++root) {
      CAPTURE(root);
      support::CountedNetworks::instance().clear();
      support::run_topology_ranks<Channels>(static_cast<int>(nodes.size()), nodes, [&](auto& self, int rank) {
        std::vector<float> values(count, rank == root ? 7.0F : 0.0F);
        self.communicator.enqueue(dtrain::backend::Broadcast{dtrain::buffer_view(std::span(values)), root},
                                  self.stream.ref());
        CHECK(self.wait());
        CHECK(values == std::vector<float>(count, 7.0F));
      });
      double sent = 0;
      for (int rank = 0; rank < static_cast<int>(nodes.size()); ++rank)
        sent += static_cast<double>(support::CountedNetworks::instance().sent(rank).load());
      CHECK(sent == bytes * *std::max_element(nodes.begin(), nodes.end()));
    }
  }
}

TEST_CASE("a wire type of 16 bits halves the bytes between nodes") {
  using Channels = topology::Hierarchical<SharedMemory, dtrain::wire::Bf16>::Rebind<topology::Ring::Rebind<Counting>>;
  const double even = support::hierarchical_bytes_across(bytes, 2, 2) / 2;
  CHECK(measured<Channels>(4, {0, 0, 1, 1}) == std::vector<double>{even, even, even, even});
  const double apart = support::hierarchical_bytes_across(bytes, 2, 1) / 2;
  CHECK(measured<Channels>(2, {0, 1}) == std::vector<double>{apart, apart});
}

TEST_CASE("the formulas are those of the literature") {
  constexpr std::array<int, 4> nodes{0, 0, 1, 1};
  static_assert(support::bytes_sent(support::RingTraffic{100, 4}, 3) == 150);
  static_assert(support::bytes_leaving(support::RingTraffic{100, 4}, nodes, 0) == 150);
  static_assert(support::bytes_sent(support::TreeTraffic{100, 7}, 1) == 300);  // to its parent and two children
  static_assert(support::bytes_leaving(support::TreeTraffic{100, 4}, nodes, 1) == 200);  // 0-2 and 1-3 cross
  static_assert(support::bytes_sent(support::ParameterServerTraffic{100, 4, 1}, 0) == 300);
  static_assert(support::bytes_sent(support::ParameterServerTraffic{100, 4, 1}, 2) == 100);
  static_assert(support::bytes_leaving(support::ParameterServerTraffic{100, 4, 1}, nodes, 1) == 200);
  static_assert(support::hierarchical_bytes_leaving(100, 2) == 100);
  static_assert(support::hierarchical_bytes_leaving(100, 1) == 0);
  CHECK(support::hierarchical_bytes_across(100, 4, 2) == 75);
}
