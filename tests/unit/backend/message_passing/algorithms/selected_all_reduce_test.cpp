#include "dtrain/topology/message_algorithms.hpp"
#include "unit/backend/message_passing/algorithms/memory_ranks.hpp"

namespace {

namespace topology = dtrain::topology;
using namespace memory_ranks;
using Bytes = ByteVector;

passing::Tuning tuning(std::size_t chunks_in_flight) {
  passing::Tuning made = fine;
  made.all_pieces_bytes = 1024;
  made.chunks_in_flight = chunks_in_flight;
  return made;
}

/// Every rank's output, on ranks that are threads.
template <class Topology>
std::vector<Bytes> outputs(const Operation& what, const std::vector<Bytes>& given, bool in_place,
                           std::size_t chunks_in_flight = 3, Accumulate accumulate = Accumulate::element) {
  return memory_ranks::outputs(Topology::template all_reduce<MemoryEndpoint>, what,
                               support::test_channel(tuning(chunks_in_flight), given.size(), accumulate), given,
                               given[0].size(), in_place);
}

/// Integers: every order gives the same.
template <class Topology>
void check_lengths() {
  support::Combinations(std::array{2, 3, 4, 5, 7, 8}, std::array{0U, 1U, 7U, 64U, 100U, 1000U, 4099U},
                        std::array{1U, 2U, 8U})
      .for_each([&](int size, std::size_t count, std::size_t chunks_in_flight) {
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(chunks_in_flight);
        const std::vector<Bytes> given = inputs(size, DType::i32, count);
        const Bytes expected = support::scalar_reduction(DType::i32, ReduceOp::sum, given);
        for (const bool in_place : {false, true}) {
          for (const Bytes& output : outputs<Topology>(all_reduce(count), given, in_place, chunks_in_flight))
            CHECK(output == expected);
        }
      });
}

/// What two ranks say whose second rank calls `second`.
template <class Topology>
std::string disagreement(const Operation& second) {
  const auto call = [](Context& context, const passing::Buffers& buffers) {
    return context.operation.kind == OperationKind::all_reduce ? Topology::all_reduce(context, buffers)
                                                               : passing::collective(context, buffers);
  };
  return memory_ranks::disagreement(call, support::test_channel(tuning(3), 2), all_reduce(5000), second);
}

template <class Topology>
void check_disagreements() {
  Operation barrier = all_reduce(0);
  barrier.kind = OperationKind::barrier;
  CHECK(disagreement<Topology>(all_reduce(5001)).find("called all_reduce (sum) of 500") != std::string::npos);
  CHECK(disagreement<Topology>(barrier).find("barrier") != std::string::npos);
}

}  // namespace

TEST_CASE("the algorithms of topologies are right for any length and number of ranks, without buffered messages") {
  check_lengths<topology::Ring>();
  check_lengths<topology::Tree>();
  check_lengths<topology::ParameterServer<>>();
  check_lengths<topology::ParameterServer<3>>();
  check_lengths<topology::ParameterServer<16>>();
}

TEST_CASE("a tree reduces a rank's contribution and then its child's, in every type and operation, to the bit") {
  support::Combinations(std::array{Accumulate::element, Accumulate::f32}, support::all_dtypes, support::all_ops)
      .for_each([&](Accumulate accumulate, DType dtype, ReduceOp op) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const std::vector<Bytes> given = inputs(2, dtype, 1003);
        const Bytes expected = support::scalar_chain(dtype, op, given, accumulate);
        for (const Bytes& output : outputs<topology::Tree>(all_reduce(1003, dtype, op), given, false, 3, accumulate))
          CHECK(output == expected);
      });
}

TEST_CASE("servers reduce every type and operation in rank order, to the bit") {
  for (const DType dtype : support::all_dtypes) {
    for (const ReduceOp op : support::all_ops) {
      CAPTURE(dtrain::name(dtype));
      CAPTURE(dtrain::name(op));
      const std::vector<Bytes> given = inputs(5, dtype, 1003);
      const Bytes expected = support::scalar_reduction(dtype, op, given);
      for (const Bytes& output : outputs<topology::ParameterServer<2>>(all_reduce(1003, dtype, op), given, false))
        CHECK(output == expected);
    }
  }
}

TEST_CASE("ranks that call different operations find out, whatever the topology") {
  check_disagreements<topology::Ring>();
  check_disagreements<topology::Tree>();
  check_disagreements<topology::ParameterServer<>>();
}
