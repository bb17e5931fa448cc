#include "unit/topology/prelude.hpp"

namespace flat_over_test {

namespace wire = dtrain::wire;
using dtrain::backend::Determinism;
using dtrain::backend::determinism_of;
template <class Wire>
using Channels = typename FlatOver<Wire>::template Rebind<SharedMemory>;

/// All on one node.
std::vector<int> nodes(int ranks) {
  return std::vector<int>(static_cast<std::size_t>(ranks));
}

/// What the documentation says: each rank divides and rounds once, and the backend adds 16-bit elements.
template <class Half>
std::vector<float> expected(int ranks, std::size_t count, dtrain::ReduceOp op) {
  std::vector<topology_test::Bytes> sent;
  for (int rank = 0; rank < ranks; ++rank) {
    topology_test::Bytes& bytes = sent.emplace_back(2 * count);
    const std::vector<float> values = topology_test::uneven_floats(count, rank);
    for (std::size_t i = 0; i < count; ++i) {
      const float factor = op == dtrain::ReduceOp::average ? 1.0F / static_cast<float>(ranks) : 1.0F;
      const Half half(values[i] * factor);
      std::memcpy(bytes.data() + 2 * i, &half, 2);
    }
  }
  const topology_test::Bytes sum =
      support::scalar_reduction(dtrain::dtype_of<Half>::value, dtrain::ReduceOp::sum, sent);
  std::vector<float> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    Half half;
    std::memcpy(&half, sum.data() + 2 * i, 2);
    result[i] = static_cast<float>(half);
  }
  return result;
}

/// As one buffer, and as several, in place and not.
template <class Wire, class Half>
void check_reference(int ranks) {
  CAPTURE(ranks);
  constexpr std::size_t count = 20'011;
  support::run_topology_ranks<Channels<Wire>>(ranks, nodes(ranks), [&](auto& self, int rank) {
    for (const dtrain::ReduceOp op : {dtrain::ReduceOp::sum, dtrain::ReduceOp::average}) {
      const std::vector<float> reference = expected<Half>(ranks, count, op);
      for (const std::size_t piece : {count, std::size_t{1'017}}) {
        std::vector<float> values = topology_test::uneven_floats(count, rank);
        std::vector<float> apart(count);
        for (std::size_t begin = 0; begin < count; begin += piece) {
          const std::size_t length = std::min(piece, count - begin);
          const auto view = dtrain::buffer_view(std::span(values).subspan(begin, length));
          CHECK(self.all_reduce(view, dtrain::buffer_view(std::span(apart).subspan(begin, length)), op));
          CHECK(self.all_reduce(view, view, op));
        }
        CHECK(std::memcmp(values.data(), reference.data(), count * sizeof(float)) == 0);
        CHECK(std::memcmp(apart.data(), reference.data(), count * sizeof(float)) == 0);
      }
    }
  });
}

TEST_CASE("FlatOver adds what each rank has rounded once, to the bit, whatever the buffers") {
  for (const int ranks : {2, 3, 4, 8}) {
    check_reference<wire::Bf16, dtrain::bfloat16>(ranks);
    check_reference<wire::F16, dtrain::float16>(ranks);
  }
}

TEST_CASE("FlatOver reduces every type and operation, and all but sums and averages of f32 as the backend does") {
  for (const int ranks : {1, 2, 3, 5}) {
    topology_test::check_exact<Channels<wire::Bf16>>(ranks, nodes(ranks), {0, 1, 2, 1003});
    topology_test::check_exact<Channels<wire::F16>>(ranks, nodes(ranks), {0, 1, 2, 1003}, dtrain::Accumulate::f32);
  }
  support::run_topology_ranks<Channels<wire::Bf16>>(2, nodes(2), [](auto& self, int rank) {
    std::vector<float> values{1.0F + 0x1p-20F, static_cast<float>(rank)};
    const auto view = dtrain::buffer_view(std::span(values));
    CHECK(self.all_reduce(view, view, dtrain::ReduceOp::max));
    CHECK(values == std::vector<float>{1.0F + 0x1p-20F, 1.0F});
  });
}

TEST_CASE("one rank sends nothing, and rounds nothing") {
  support::run_topology_ranks<Channels<wire::Bf16>>(1, nodes(1), [](auto& self, int) {
    std::vector<float> values{1.0F + 0x1p-20F};
    const auto view = dtrain::buffer_view(std::span(values));
    CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
    CHECK(values[0] == 1.0F + 0x1p-20F);
    CHECK(self.communicator.compressed_traffic() == dtrain::CompressedTraffic{});
  });
}

TEST_CASE("an average of f16 on the wire does not overflow where the values do not, and a sum does") {
  for (const int ranks : {2, 3, 8}) {
    support::run_topology_ranks<Channels<wire::F16>>(ranks, nodes(ranks), [](auto& self, int) {
      std::vector<float> values(1003, 60000);
      const auto view = dtrain::buffer_view(std::span(values));
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
      std::size_t near = 0;
      for (const float value : values)
        near += std::abs(value - 60000) <= 64 ? 1 : 0;
      CHECK(near == values.size());
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::sum));
      CHECK(std::isinf(values[0]));
    });
  }
}

TEST_CASE("a channel counts the bytes that the wire type saves") {
  support::run_topology_ranks<Channels<wire::Bf16>>(3, nodes(3), [](auto& self, int) {
    std::vector<float> values(1000);
    std::vector<double> others(1000);
    const auto view = dtrain::buffer_view(std::span(values));
    const auto other = dtrain::buffer_view(std::span(others));
    for (int repeat = 0; repeat < 2; ++repeat) {
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::min));
      CHECK(self.all_reduce(other, other, dtrain::ReduceOp::sum));
    }
    const dtrain::CompressedTraffic traffic = self.communicator.compressed_traffic();
    CHECK(traffic.bytes == 2 * 4000);
    CHECK(traffic.bytes_sent == 2 * 2000);
    CHECK(traffic.compressing.count() > 0);
  });
}

template <class B>
struct Unsure : B {
  static constexpr Determinism determinism = Determinism::none;
};

TEST_CASE("FlatOver promises the backend's bits, and needs host streams") {
  CHECK(determinism_of<Channels<wire::Bf16>> == Determinism::always);
  CHECK(determinism_of<FlatOver<wire::F16>::Rebind<Unsure<SharedMemory>>> == Determinism::none);
  CHECK(dtrain::topology::SupportsBackend<FlatOver<wire::F16>, SharedMemory>);
  CHECK_FALSE(dtrain::topology::SupportsBackend<FlatOver<wire::F16>, archetype::Backend<>>);
  CHECK_FALSE(dtrain::topology::SupportsBackend<FlatOver<wire::F16>, int>);
}

}  // namespace flat_over_test
