#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/topology/message_algorithms.hpp"
#include "support/scalar_chain.hpp"
#include "unit/backend/prelude.hpp"

namespace {

namespace topology = dtrain::topology;
using support::MemoryEndpoint;
using support::MemoryNetwork;
using Bytes = std::vector<std::byte>;
using Context = passing::OperationContext<MemoryEndpoint>;

/// Chunks of 256 bytes: a few thousand elements take many of them.
passing::ChannelInfo channel_info(int size, std::size_t chunks_in_flight, Accumulate accumulate) {
  passing::ChannelInfo made{"test", {}, {}, {}, accumulate};
  made.tuning.small_bytes = 64;
  made.tuning.chunk_bytes = 256;
  made.tuning.all_pieces_bytes = 1024;
  made.tuning.chunks_in_flight = chunks_in_flight;
  for (int rank = 0; rank < size; ++rank)
    made.job_ranks.push_back(rank);
  return made;
}

Operation all_reduce(std::size_t count, DType dtype = DType::i32, ReduceOp op = ReduceOp::sum) {
  Operation made;
  made.sequence = 1;
  made.kind = OperationKind::all_reduce;
  made.count = count;
  made.dtype = dtype;
  made.op = op;
  return made;
}

std::vector<Bytes> inputs(int size, DType dtype, std::size_t count) {
  std::vector<Bytes> made;
  for (int rank = 0; rank < size; ++rank)
    made.push_back(support::awkward_bytes(dtype, count, static_cast<std::uint64_t>(rank) + count));
  return made;
}

/// Every rank's output, on ranks that are threads.
template <class Topology>
std::vector<Bytes> outputs(const Operation& what, const std::vector<Bytes>& given, bool in_place,
                           std::size_t chunks_in_flight = 3, Accumulate accumulate = Accumulate::element) {
  const int size = static_cast<int>(given.size());
  const auto network = std::make_shared<MemoryNetwork>();
  std::vector<Bytes> made(given.size());
  const passing::ChannelInfo channel = channel_info(size, chunks_in_flight, accumulate);
  support::run_thread_ranks(size, [&](RankThread& thread) {
    thread.doing("an all_reduce");
    const auto self = static_cast<std::size_t>(thread.rank());
    Bytes input = given[self];
    Bytes output(in_place ? 0 : input.size());
    passing::Scratch scratch;
    MemoryEndpoint endpoint(network, thread.rank(), size);
    Context context{endpoint, scratch, channel, what};
    const passing::Buffers buffers{input.data(), in_place ? input.data() : output.data()};
    const passing::Routine routine = Topology::all_reduce(context, buffers);
    routine.resume();
    REQUIRE(routine.done());
    routine.check();
    CHECK((in_place || input == given[self]));
    made[self] = in_place ? input : output;
  });
  return made;
}

/// Integers: every order gives the same.
template <class Topology>
void check_lengths() {
  for (const int size : {2, 3, 4, 5, 7, 8}) {
    for (const std::size_t count : {0U, 1U, 7U, 64U, 100U, 1000U, 4099U}) {
      for (const std::size_t chunks_in_flight : {1U, 2U, 8U}) {
        CAPTURE(size);
        CAPTURE(count);
        CAPTURE(chunks_in_flight);
        const std::vector<Bytes> given = inputs(size, DType::i32, count);
        const Bytes expected = support::scalar_reduction(DType::i32, ReduceOp::sum, given);
        for (const bool in_place : {false, true}) {
          for (const Bytes& output : outputs<Topology>(all_reduce(count), given, in_place, chunks_in_flight))
            CHECK(output == expected);
        }
      }
    }
  }
}

/// What two ranks say whose second rank calls `second`.
template <class Topology>
std::string disagreement(const Operation& second) {
  const auto network = std::make_shared<MemoryNetwork>();
  const passing::ChannelInfo channel = channel_info(2, 3, Accumulate::element);
  std::mutex mutex;
  std::string sentence;
  support::run_thread_ranks(2, [&](RankThread& thread) {
    Bytes input(100'000);
    passing::Scratch scratch;
    MemoryEndpoint endpoint(network, thread.rank(), 2);
    Context context{endpoint, scratch, channel, thread.rank() == 0 ? all_reduce(5000) : second};
    const passing::Buffers buffers{input.data(), input.data()};
    const bool reduces = context.operation.kind == OperationKind::all_reduce;
    const passing::Routine routine =
        reduces ? Topology::all_reduce(context, buffers) : passing::collective(context, buffers);
    routine.resume();
    try {
      routine.check();
    } catch (const dtrain::Error& error) {
      const std::lock_guard lock(mutex);
      if (error.code() == dtrain::Errc::disagreement) sentence = error.what();
    }
  });
  return sentence;
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
  for (const Accumulate accumulate : {Accumulate::element, Accumulate::f32}) {
    for (const DType dtype : support::all_dtypes) {
      for (const ReduceOp op : support::all_ops) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const std::vector<Bytes> given = inputs(2, dtype, 1003);
        const Bytes expected = support::scalar_chain(dtype, op, given, accumulate);
        for (const Bytes& output : outputs<topology::Tree>(all_reduce(1003, dtype, op), given, false, 3, accumulate))
          CHECK(output == expected);
      }
    }
  }
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
