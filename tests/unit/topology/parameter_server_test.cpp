#include "unit/topology/prelude.hpp"

static_assert(dtrain::topology::SupportsBackend<ParameterServer<3>, SharedMemory>);

TEST_CASE("servers reduce every element type by every operation, for any length, in place and not") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    topology_test::check_exact<ParameterServer<>::Rebind<SharedMemory>>(ranks, {}, {0, 1, 1003});
    topology_test::check_exact<ParameterServer<2>::Rebind<SharedMemory>>(ranks, {}, {1, 1003});
  }
}

TEST_CASE("where there are fewer ranks than servers all of them serve") {
  topology_test::check_exact<ParameterServer<16>::Rebind<SharedMemory>>(3, {}, {0, 1, 1003});
}

TEST_CASE("servers average values whose sum overflows") {
  topology_test::check_large<ParameterServer<2>::Rebind<SharedMemory>>(9);
  topology_test::check_large<ParameterServer<2>::Rebind<SharedMemory>>(10);
}

TEST_CASE("servers give the same bits on every rank and in every run, near the exact average") {
  topology_test::check_bits<ParameterServer<2>::Rebind<SharedMemory>>(3, {}, 1'000'003);
}

TEST_CASE("servers reduce in rank order, as SharedMemory does, whatever the values") {
  for (const dtrain::DType dtype : {dtrain::DType::f32, dtrain::DType::bf16}) {
    std::vector<topology_test::Bytes> inputs;
    for (std::uint64_t rank = 0; rank < 4; ++rank)
      inputs.push_back(support::awkward_bytes(dtype, 999, rank));
    const topology_test::Bytes expected = support::scalar_reduction(dtype, dtrain::ReduceOp::average, inputs);
    support::run_topology_ranks<ParameterServer<2>::Rebind<SharedMemory>>(4, {}, [&](auto& self, int rank) {
      topology_test::Bytes values = inputs[static_cast<std::size_t>(rank)];
      const dtrain::BufferView view{values.data(), 999, dtype, {}};
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
      CHECK((values == expected));
    });
  }
}
