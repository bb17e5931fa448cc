#include "dtrain/topology/wire.hpp"
#include "unit/topology/prelude.hpp"

namespace wire_test {

using dtrain::backend::AllGather;
using dtrain::backend::ReduceScatter;
namespace wire = dtrain::wire;
template <class Wire>
using Channels = typename dtrain::topology::Hierarchical<SharedMemory, Wire>::template Rebind<SharedMemory>;
using Nodes = std::vector<int>;

template <class Wire>
void check(double allowed) {
  // Sums of small integers are exact in 16 bits, and so are averages over two nodes.
  for (const Nodes& nodes : {Nodes{0}, {0, 0}, {0, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 1, 0}})
    topology_test::check_exact<Channels<Wire>>(static_cast<int>(nodes.size()), nodes, {0, 1, 2, 1003});
  topology_test::check_bits<Channels<Wire>>(4, {0, 0, 1, 1}, 300'001, allowed);
  topology_test::check_bits<Channels<Wire>>(4, {0, 0, 1, 2}, 300'001, allowed);
  topology_test::check_bits<Channels<Wire>>(3, {0, 1, 2}, 300'001, allowed);
  topology_test::check_bits<Channels<Wire>>(4, {0, 1, 0, 1}, 4'300'001, allowed);  // in segments
}

TEST_CASE("f32 crosses between nodes as bf16 or f16, near the exact average, with the same bits on all ranks") {
  check<wire::Bf16>(0.15);
  check<wire::F16>(0.02);
}

TEST_CASE("an average of f16 on the wire does not overflow where the values do not") {
  for (const Nodes& nodes : {Nodes{0, 1}, {0, 0, 1, 1}, {0, 0, 1}}) {
    support::run_topology_ranks<Channels<wire::F16>>(static_cast<int>(nodes.size()), nodes, [](auto& self, int) {
      std::vector<float> values(1003, 60000);
      const auto view = dtrain::buffer_view(std::span(values));
      CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
      std::size_t near = 0;
      for (const float value : values)
        near += std::abs(value - 60000) <= 64 ? 1 : 0;
      CHECK(near == values.size());
    });
  }
}

/// Each rank divides and rounds once, and the backend between the nodes adds 16-bit elements.
template <class Half>
std::vector<float> expected(int ranks, std::size_t count) {
  std::vector<topology_test::Bytes> sent;
  for (int rank = 0; rank < ranks; ++rank) {
    topology_test::Bytes& bytes = sent.emplace_back(2 * count);
    const std::vector<float> values = topology_test::uneven_floats(count, rank);
    for (std::size_t i = 0; i < count; ++i) {
      const Half half(values[i] * (1.0F / static_cast<float>(ranks)));
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

template <class Wire, class Half>
void check_average(const Nodes& nodes) {
  constexpr std::size_t count = 20'011;
  const int ranks = static_cast<int>(nodes.size());
  support::run_topology_ranks<Channels<Wire>>(ranks, nodes, [&](auto& self, int rank) {
    std::vector<float> values = topology_test::uneven_floats(count, rank);
    const auto view = dtrain::buffer_view(std::span(values));
    CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
    CHECK(std::memcmp(values.data(), expected<Half>(ranks, count).data(), count * sizeof(float)) == 0);
  });
}

TEST_CASE("with a rank on each node an average is the sum of what each rank has divided and rounded once, to the bit") {
  for (const Nodes& nodes : {Nodes{0, 1}, {0, 1, 2}, {0, 1, 2, 3}}) {
    check_average<wire::Bf16, dtrain::bfloat16>(nodes);
    check_average<wire::F16, dtrain::float16>(nodes);
  }
}

TEST_CASE("a reduce_scatter crosses between nodes in 16 bits, an all_gather as it is") {
  support::run_topology_ranks<Channels<wire::Bf16>>(4, {0, 0, 1, 1}, [](auto& self, int rank) {
    constexpr std::size_t block = 1003;
    std::vector<float> values(4 * block);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i) / 7 + static_cast<float>(rank);
    std::vector<float> own(block);
    self.communicator.enqueue(ReduceScatter{dtrain::buffer_view(std::span(values)), dtrain::buffer_view(std::span(own)),
                                            dtrain::ReduceOp::average},
                              self.stream.ref());
    REQUIRE(self.wait());
    std::size_t near = 0;
    std::size_t narrow = 0;
    for (std::size_t i = 0; i < block; ++i) {
      const float exact = values[static_cast<std::size_t>(rank) * block + i] - static_cast<float>(rank) + 1.5F;
      near += std::abs(own[i] - exact) <= exact * 0.008F ? 1 : 0;
      narrow += own[i] == static_cast<float>(dtrain::bfloat16(own[i])) ? 1 : 0;
    }
    CHECK(near == block);
    CHECK(narrow == block);
    const dtrain::CompressedTraffic traffic = self.communicator.compressed_traffic();
    CHECK(traffic.bytes == 2 * block * sizeof(float) / 2);  // half of an all_reduce of a block for each node
    CHECK(traffic.bytes_sent == traffic.bytes / 2);
    own.assign(block, 1.0F / 3 + static_cast<float>(rank));
    self.communicator.enqueue(AllGather{dtrain::buffer_view(std::span(own)), dtrain::buffer_view(std::span(values))},
                              self.stream.ref());
    REQUIRE(self.wait());
    for (std::size_t peer = 0; peer < 4; ++peer)
      CHECK(values[peer * block + peer] == 1.0F / 3 + static_cast<float>(peer));
    CHECK(self.communicator.compressed_traffic().bytes == traffic.bytes);
  });
}

TEST_CASE("a rank counts the bytes that it sends between nodes, and those that the wire type saves") {
  support::run_topology_ranks<Channels<wire::Bf16>>(4, {0, 0, 1, 1}, [](auto& self, int) {
    std::vector<float> values(1000);
    const auto view = dtrain::buffer_view(std::span(values));
    CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
    const dtrain::CompressedTraffic traffic = self.communicator.compressed_traffic();
    CHECK(traffic.bytes == 2000);  // one half of the elements: the node's other rank has the other
    CHECK(traffic.bytes_sent == 1000);
  });
  support::run_topology_ranks<Channels<wire::Bf16>>(2, {0, 0}, [](auto& self, int) {
    std::vector<float> values(1000);
    const auto view = dtrain::buffer_view(std::span(values));
    CHECK(self.all_reduce(view, view, dtrain::ReduceOp::average));
    CHECK(self.communicator.compressed_traffic() == dtrain::CompressedTraffic{});
  });
}

}  // namespace wire_test
