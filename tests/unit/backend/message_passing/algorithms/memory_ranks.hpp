#pragma once
/// @file
/// Collectives of message passing on ranks that are threads of this process, without buffered messages.

#include "unit/backend/prelude.hpp"

namespace memory_ranks {

using support::MemoryEndpoint;
using support::MemoryNetwork;
using Context = passing::OperationContext<MemoryEndpoint>;

/// Chunks of 256 bytes: a few thousand elements take many rounds.
constexpr passing::Tuning fine{
    .small_bytes = 64, .chunk_bytes = 256, .chunks_in_flight = 3, .point_to_point_chunk_bytes = 500};

inline Operation operation(OperationKind kind, std::size_t count, DType dtype = DType::f32,
                           ReduceOp op = ReduceOp::sum) {
  Operation made;
  made.sequence = 1;
  made.kind = kind;
  made.count = count;
  made.dtype = dtype;
  made.op = op;
  return made;
}

inline Operation all_reduce(std::size_t count, DType dtype = DType::i32, ReduceOp op = ReduceOp::sum) {
  return operation(OperationKind::all_reduce, count, dtype, op);
}

inline std::vector<ByteVector> inputs(int size, DType dtype, std::size_t count) {
  std::vector<ByteVector> made;
  for (int rank = 0; rank < size; ++rank)
    made.push_back(support::awkward_bytes(dtype, count, static_cast<std::uint64_t>(rank) + count));
  return made;
}

/// Runs a routine to its end. @throws what it throws
inline void run(const passing::Routine& routine) {
  routine.resume();
  REQUIRE(routine.done());
  routine.check();
}

/// What every rank's output is after `make(context, buffers)`, a routine, one operation each.
using Make = std::function<passing::Routine(Context&, const passing::Buffers&)>;
inline std::vector<ByteVector> outputs(const Make& make, const Operation& what, const passing::ChannelInfo& channel,
                                       const std::vector<ByteVector>& given, std::size_t output_bytes, bool in_place) {
  const int size = static_cast<int>(given.size());
  const auto network = std::make_shared<MemoryNetwork>();
  std::vector<ByteVector> made(given.size());
  run_thread_ranks(size, [&](RankThread& thread) {
    thread.doing("a collective");
    const auto self = static_cast<std::size_t>(thread.rank());
    passing::Scratch scratch;
    MemoryEndpoint endpoint(network, thread.rank(), size);
    Context context{endpoint, scratch, channel, what};
    ByteVector input = given[self];
    ByteVector output(in_place ? 0 : output_bytes);
    const passing::Buffers buffers{input.data(), in_place ? input.data() : output.data()};
    run(make(context, buffers));
    CHECK((in_place || input == given[self]));
    made[self] = in_place ? input : output;
  });
  return made;
}

/// The first sentence of ranks that disagree. @param call runs the operation of a rank
inline std::string disagreement(int size,
                                const std::function<void(const std::shared_ptr<MemoryNetwork>&, int rank)>& call) {
  const auto network = std::make_shared<MemoryNetwork>();
  std::mutex mutex;
  std::string sentence;
  run_thread_ranks(size, [&](RankThread& thread) {
    thread.doing("a collective that the other rank does not call");
    try {
      call(network, thread.rank());
    } catch (const dtrain::Error& error) {
      if (error.code() == make_error_code(dtrain::Errc::disagreement)) {
        const std::lock_guard lock(mutex);
        sentence = sentence.empty() ? error.what() : sentence;
      }
    }
  });
  return sentence;
}

/// The same of two ranks, the second of which calls `second`; each runs `make(context, buffers)`.
inline std::string disagreement(const Make& make, const passing::ChannelInfo& channel, const Operation& first,
                                const Operation& second) {
  return disagreement(2, [&](const std::shared_ptr<MemoryNetwork>& network, int rank) {
    ByteVector input(100'000);
    ByteVector output(100'000);
    passing::Scratch scratch;
    MemoryEndpoint endpoint(network, rank, 2);
    Context context{endpoint, scratch, channel, rank == 0 ? first : second};
    const passing::Buffers buffers{input.data(), output.data()};
    run(make(context, buffers));
  });
}

}  // namespace memory_ranks
