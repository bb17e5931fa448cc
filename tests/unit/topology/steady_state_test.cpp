#include "support/allocation_count.hpp"
#include "unit/topology/prelude.hpp"

namespace {

/// What all ranks together allocate in ten reductions of two lengths, after the first of each.
template <class Topology>
std::size_t allocations_of(const std::vector<int>& nodes) {
  std::atomic<std::size_t> before{0};
  std::atomic<std::size_t> after{0};
  support::run_topology_ranks<typename Topology::template Rebind<SharedMemory>>(
      static_cast<int>(nodes.size()), nodes, [&](auto& self, int rank) {
        std::vector<float> values(1'000'000, 1);
        const auto view = dtrain::buffer_view(std::span(values));
        const auto small = dtrain::buffer_view(std::span(values).first(10));
        const auto reduce = [&] {
          self.communicator.enqueue(AllReduce{view, view, dtrain::ReduceOp::average}, self.stream.ref());
          self.communicator.enqueue(AllReduce{small, small, dtrain::ReduceOp::average}, self.stream.ref());
        };
        const auto meet = [&] {
          self.communicator.enqueue(Barrier{}, self.stream.ref());
          return self.wait();
        };
        reduce();
        bool served = meet();
        if (rank == 0) before = support::allocations.load();
        served = meet() && served;
        for (int repeat = 0; repeat < 10; ++repeat)
          reduce();
        served = meet() && served;
        if (rank == 0) after = support::allocations.load();
        served = meet() && served;
        CHECK(served);
      });
  return after - before;
}

}  // namespace

TEST_CASE("a steady reduction allocates nothing") {
  CHECK(allocations_of<topology::Ring>({0, 0, 0}) == 0);
  CHECK(allocations_of<topology::Tree>({0, 0, 0}) == 0);
  CHECK(allocations_of<topology::ParameterServer<2>>({0, 0, 0}) == 0);
  CHECK(allocations_of<topology::Hierarchical<>>({0, 0, 1, 1}) == 0);
  CHECK(allocations_of<topology::Hierarchical<>>({0, 0, 1}) == 0);
}
