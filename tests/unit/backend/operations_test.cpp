#include "dtrain/backend/operations.hpp"
#include "unit/backend/prelude.hpp"

namespace operations_test {

using dtrain::Error;
using namespace dtrain::backend;

std::array<std::byte, 256> memory;

/// `count` f32 from the `at`-th on.
BufferView floats(std::size_t count, std::size_t at = 0) {
  return {memory.data() + 4 * at, count, DType::f32, {}};
}

BufferView of(DType dtype, std::size_t count) {
  return {memory.data() + 128, count, dtype, {}};
}

const ConstBufferView nowhere{nullptr, 4, DType::f32};

TEST_CASE("an all_reduce takes two alike buffers that are the same memory or disjoint") {
  const auto check = [](const ConstBufferView& input, const BufferView& output) {
    AllReduce{input, output, ReduceOp::sum}.check({0, 2});
  };
  CHECK_NOTHROW(check(floats(4), floats(4)));
  CHECK_NOTHROW(check(floats(4), floats(4, 4)));
  CHECK_NOTHROW(check(BufferView{}, BufferView{}));
  CHECK_THROWS_WITH_AS(check(floats(4), floats(3)),
                       "all_reduce of 4 f32 into 3 f32; both buffers have the same length and type", Error);
  CHECK_THROWS_WITH_AS(check(floats(4), of(DType::i32, 4)), doctest::Contains("4 f32 into 4 i32"), Error);
  CHECK_THROWS_WITH_AS(check(floats(4), floats(4, 3)), doctest::Contains("overlap"), Error);
  CHECK_THROWS_WITH_AS(check(nowhere, floats(4)), "all_reduce of 4 f32 was given a null address", Error);
}

TEST_CASE("the two kinds of all_reduce check as all_reduce does") {
  const AllReduce unequal{floats(4), floats(3), ReduceOp::sum};
  CHECK_THROWS_WITH_AS((AllReduceWithSquares{unequal, nullptr}.check({0, 2})),
                       doctest::Contains("all_reduce of 4 f32 into 3 f32"), Error);
  CHECK_THROWS_WITH_AS(AllReduceWithoutCast{unequal}.check({0, 2}), doctest::Contains("all_reduce of 4 f32 into 3 f32"),
                       Error);
}

TEST_CASE("a reduce_scatter's input has a block for each rank, of which the output may be the rank's own") {
  const auto check = [](const ConstBufferView& input, const BufferView& output, RankPlace place) {
    ReduceScatter{input, output, ReduceOp::sum}.check(place);
  };
  CHECK_NOTHROW(check(floats(6), floats(2, 6), {0, 3}));
  CHECK_NOTHROW(check(floats(6), floats(2, 4), {2, 3}));
  CHECK_THROWS_WITH_AS(check(floats(6), floats(2, 4), {1, 3}), doctest::Contains("overlap"), Error);
  CHECK_THROWS_WITH_AS(
      check(floats(7), floats(2, 8), {0, 3}),
      "reduce_scatter on 3 ranks: the input has 7 f32, the output 2 f32; give an input that is 3 times "
      "as long as the output, of the same type",
      Error);
  CHECK_THROWS_AS(check(floats(6), of(DType::i32, 2), {0, 3}), Error);
  CHECK_NOTHROW(check(BufferView{}, BufferView{}, {0, 3}));
}

TEST_CASE("an all_gather's output has a block for each rank, of which the input may be the rank's own") {
  const auto check = [](const ConstBufferView& input, const BufferView& output, RankPlace place) {
    AllGather{input, output}.check(place);
  };
  CHECK_NOTHROW(check(floats(2, 6), floats(6), {0, 3}));
  CHECK_NOTHROW(check(floats(2, 2), floats(6), {1, 3}));
  CHECK_THROWS_AS(check(floats(2, 3), floats(6), {1, 3}), Error);
  CHECK_THROWS_WITH_AS(check(floats(2, 6), floats(4), {0, 3}),
                       doctest::Contains("all_gather on 3 ranks: the output has 4 f32, the input 2 f32"), Error);
}

TEST_CASE("roots and peers are ranks of the channel, and a rank sends nothing to itself") {
  CHECK_NOTHROW(Broadcast{floats(1), 2}.check({0, 3}));
  CHECK_THROWS_WITH_AS((Broadcast{floats(1), 3}.check({0, 3})), "broadcast from rank 3 of 3; ranks are counted from 0",
                       Error);
  CHECK_THROWS_AS((Broadcast{floats(1), -1}.check({0, 3})), Error);
  CHECK_NOTHROW(Send{floats(1), 1}.check({0, 2}));
  CHECK_THROWS_WITH_AS((Send{floats(1), 0}.check({0, 2})),
                       "send between rank 0 and rank 0 of 2; a peer is another rank, counted from 0", Error);
  CHECK_THROWS_WITH_AS((Recv{floats(1), 2}.check({0, 2})), doctest::Contains("recv between rank 0 and rank 2 of 2"),
                       Error);
  CHECK_THROWS_AS((Recv{floats(1), -1}.check({0, 2})), Error);
}

TEST_CASE("a send_recv may be of a rank with itself, of other lengths each way, but not of overlapping memory") {
  CHECK_NOTHROW(SendRecv{floats(1), 0, floats(3, 1), 0}.check({0, 1}));
  CHECK_NOTHROW(SendRecv{floats(4), 1, of(DType::f64, 2), 2}.check({0, 3}));
  CHECK_THROWS_WITH_AS((SendRecv{floats(4), 3, floats(4, 4), 0}.check({0, 3})),
                       doctest::Contains("send_recv to rank 3 and from rank 0 of 3"), Error);
  CHECK_THROWS_AS((SendRecv{floats(4), 0, floats(4, 4), -1}.check({0, 3})), Error);
  CHECK_THROWS_WITH_AS((SendRecv{floats(4), 1, floats(4, 2), 1}.check({0, 3})), doctest::Contains("overlap"), Error);
}

TEST_CASE("an exchange has a block inside the buffers for each rank") {
  BlockExchange blocks = blocks_of_all_to_all(floats(4), {}, floats(4, 4), {}, {0, 2});
  CHECK_NOTHROW(ExchangeBlocks{blocks, floats(4), floats(4, 4)}.check({0, 2}));
  CHECK_THROWS_WITH_AS((ExchangeBlocks{blocks, floats(4), of(DType::i32, 4)}.check({0, 2})),
                       "all_to_all of f32 into i32; both buffers have the same type", Error);
  CHECK_THROWS_WITH_AS((ExchangeBlocks{blocks, floats(4), floats(4)}.check({0, 2})),
                       "the input and output of all_to_all overlap; give disjoint memory", Error);
  CHECK_THROWS_WITH_AS((ExchangeBlocks{blocks, nowhere, floats(4)}.check({0, 2})),
                       "all_to_all of 4 f32 was given a null address", Error);
  blocks.received[1] = {3, 2};
  CHECK_THROWS_WITH_AS((ExchangeBlocks{blocks, floats(4), floats(4, 4)}.check({0, 2})),
                       "all_to_all on 2 ranks with 2 blocks of the output of 4 f32; give one inside it for each rank",
                       Error);
}

TEST_CASE("what reduces takes no floats of 8 bits, and what moves them does") {
  const BufferView whole = of(DType::f8e4m3, 4);
  const BufferView half{whole.data + 8, 2, DType::f8e4m3, {}};
  const std::vector<std::size_t> counts{2, 2};
  const BlockExchange blocks = blocks_of_reduce_scatter_v(whole, half, counts, {0, 2});
  const auto code_of = [](const auto& operation) {
    try {
      operation.check({0, 2});
    } catch (const Error& error) {
      CHECK_CONTAINS(error.what(), "floats of 8 bits can be moved, and not reduced");
      return error.code() == Errc::unsupported;
    }
    return false;
  };
  CHECK(code_of(AllReduce{whole, whole, ReduceOp::sum}));
  CHECK(code_of(ReduceScatter{whole, half, ReduceOp::sum}));
  CHECK(code_of(ReduceBlocks{blocks, whole, half, ReduceOp::sum}));
  CHECK_NOTHROW(ExchangeBlocks{blocks, whole, half}.check({0, 2}));
  CHECK_NOTHROW(AllGather{half, whole}.check({0, 2}));
  CHECK_NOTHROW(Broadcast{whole, 0}.check({0, 2}));
  CHECK_NOTHROW(ReadBlocks{whole, {}}.check({0, 2}));
  CHECK_NOTHROW(Barrier{}.check({0, 2}));
}

TEST_CASE("what an operation is, in the words of error messages") {
  const BlockExchange gather = blocks_of_gather(floats(2), floats(6, 2), {}, 1, {0, 3});
  const std::vector<std::size_t> counts{2, 4};
  const BlockExchange scattered = blocks_of_reduce_scatter_v(floats(6), floats(2, 6), counts, {0, 2});
  const auto said = [](const auto& operation) {
    const Operation described = operation.describe();
    if constexpr (requires { std::remove_cvref_t<decltype(operation)>::kind; }) {
      CHECK(described.kind == operation.kind);
    }
    CHECK(described.sequence == 0);
    return to_string(described);
  };
  CHECK(said(AllReduce{floats(4), floats(4), ReduceOp::max}) == "all_reduce (max) of 4 f32");
  CHECK(said(AllReduceWithoutCast{{floats(4), floats(4), ReduceOp::sum}}) == "all_reduce (sum) of 4 f32");
  CHECK(said(Broadcast{floats(4), 2}) == "broadcast of 4 f32 from rank 2");
  CHECK(said(Barrier{}) == "barrier");
  CHECK(said(ReduceScatter{floats(6), floats(2, 6), ReduceOp::product}) == "reduce_scatter (product) of 2 f32 a rank");
  CHECK(said(AllGather{floats(2), floats(6, 2)}) == "all_gather of 2 f32 a rank");
  CHECK(said(ReadBlocks{floats(2), {}}) == "all_gather of 2 f32 a rank");
  CHECK(said(ExchangeBlocks{gather, floats(2), floats(6, 2)}) == "gather of 2 f32 a rank to rank 1");
  CHECK(said(ReduceBlocks{scattered, floats(6), floats(2, 6), ReduceOp::min}) == "reduce_scatter_v (min) of f32");
  CHECK(said(Send{floats(3), 1}) == "send of 3 f32 to rank 1");
  CHECK(said(Recv{floats(3), 1}) == "recv of 3 f32 from rank 1");
  CHECK(said(SendRecv{floats(3), 1, floats(5, 3), 2}) == "send_recv of 3 f32 to rank 1");
}

TEST_CASE("ranks agree on an all_reduce whichever of them needs the sum of squares") {
  double squares = 0;
  const AllReduce sum{floats(4), floats(4), ReduceOp::sum};
  CHECK(AllReduceWithSquares{sum, &squares}.describe().sums_squares);
  CHECK_FALSE(AllReduceWithSquares{sum, nullptr}.describe().sums_squares);
  CHECK(AllReduceWithSquares{sum, &squares}.describe().agrees_with(sum.describe()));
}

TEST_CASE("memory of a device is refused by a backend of hosts, with those that take it") {
  BufferView device = floats(4);
  device.device = {dtrain::DeviceKind::cuda, 1};
  const auto check = [](const auto& operation) { check_host_memory("backend::Gloo", operation.devices()); };
  const char* const sentence =
      "backend::Gloo takes host memory, not memory of cuda:1; use backend::Nccl or backend::Staged for it";
  CHECK_NOTHROW(check(AllGather{floats(4), floats(4)}));
  CHECK_THROWS_WITH_AS(check(AllGather{device, floats(4)}), sentence, Error);
  CHECK_THROWS_WITH_AS(check(AllGather{floats(4), device}), sentence, Error);
  CHECK_THROWS_WITH_AS(check(Recv{device, 1}), sentence, Error);
  CHECK_THROWS_WITH_AS(check_all_reduce_memory("Ring", "", AllReduce{device, device, ReduceOp::sum}.devices()),
                       "topology::Ring reduces host memory, not memory of cuda:1; use topology::Flat with a backend "
                       "for it",
                       Error);
}

TEST_CASE("blocks have counts of their own in the operations whose name ends in _v, and in no other") {
  for (int value = 0; value <= static_cast<int>(OperationKind::scatter_v); ++value) {
    const auto kind = static_cast<OperationKind>(value);
    CAPTURE(name(kind));
    CHECK(has_unequal_blocks(kind) == std::string(name(kind)).ends_with("_v"));
  }
}

}  // namespace operations_test
