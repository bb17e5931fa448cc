#include "support/process_ranks.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::SharedMemory;
using support::ExitCodes;
using support::ForkStore;
using support::run_process_ranks;

/// One rank's process.
struct Rank {
  Rank(const ForkStore& store, int rank, int ranks, std::chrono::nanoseconds timeout)
      : communicator(SharedMemory::open_blocking(context(store, rank, ranks, timeout), Deadline::after(60s))) {}

  static dtrain::backend::ChannelContext context(const ForkStore& store, int rank, int ranks,
                                                 std::chrono::nanoseconds timeout) {
    dtrain::rendezvous::Membership members;
    members.rank = rank;
    members.world_size = ranks;
    members.host = "here";
    return {members, "processes", store, std::make_shared<dtrain::FailureLatch>(), timeout};
  }

  bool all_reduce(BufferView buffer) {
    communicator.enqueue(dtrain::backend::AllReduce{buffer, buffer, ReduceOp::average}, stream.ref());
    dtrain::stream::host::Event event;
    stream.ref().record(event);
    return event.block_until_complete(Deadline::after(60s)) == dtrain::stream::WaitResult::complete &&
           !communicator.failure();
  }

  SharedMemory::StreamOwner stream;
  SharedMemory::Communicator communicator;
};

/// The abstract socket at which rank 1 was sent the memory: "=BYTES NAME TOKEN".
std::string door_of(const ForkStore& store) {
  const std::string door = store.get("processes/memory-1/offer/1", Deadline::after(0s + 10s)).wait();
  const std::size_t begin = door.find(' ') + 1;
  return door.substr(begin, door.find(' ', begin) - begin);
}

int sockets_named(const std::string& name) {
  std::ifstream sockets("/proc/net/unix");
  int count = 0;
  for (std::string line; std::getline(sockets, line);)
    count += line.find(name) != std::string::npos ? 1 : 0;
  return count;
}

TEST_CASE("processes reduce in one memory with the bits of a plain loop, and leave nothing behind") {
  for (const int ranks : {2, 4}) {
    const ForkStore store;
    const ExitCodes codes = run_process_ranks(store, ranks, [&](int rank) {
      const std::size_t descriptors = support::open_descriptors();
      {
        if (rank == 0 && sockets_named(door_of(store)) == 0) return 2;
        Rank self(store, rank, ranks, 20s);
        for (const std::size_t count : {10U, 3000U, 200'000U}) {
          const auto memory = self.communicator.allocate_blocking(count * 4, Deadline::after(60s));
          const auto inputs = support::awkward_inputs<float>(ranks, count, count);
          const auto expected = support::reference_reduction(ReduceOp::average, inputs);
          std::vector<float> foreign = inputs[static_cast<std::size_t>(rank)];
          std::memcpy(memory.data(), foreign.data(), count * 4);
          for (std::byte* data : {memory.data(), reinterpret_cast<std::byte*>(foreign.data())}) {
            if (!self.all_reduce({data, count, DType::f32, {}}) || std::memcmp(data, expected.data(), count * 4) != 0) {
              return 3;
            }
          }
        }
      }
      return support::open_descriptors() == descriptors ? 0 : 4;
    });
    CHECK(codes == ExitCodes(static_cast<std::size_t>(ranks), 0));
    CHECK(sockets_named(door_of(store)) == 0);
  }
}

TEST_CASE("a rank that is killed inside an operation leaves nothing behind, and the others name it") {
  const int ranks = 3;
  const ForkStore store;
  const ExitCodes codes = run_process_ranks(store, ranks, [&](int rank) {
    Rank self(store, rank, ranks, 2s);
    const auto memory = self.communicator.allocate_blocking(1 << 20, Deadline::after(60s));
    if (rank == 1) {
      self.stream.ref().enqueue([]() noexcept { ::raise(SIGKILL); });  // between two operations of its stream
    }
    if (self.all_reduce({memory.data(), 1 << 18, DType::f32, {}})) return 2;
    const dtrain::Cause cause = self.communicator.failure().value();
    const bool named =
        cause.kind == CauseKind::timeout && cause.text.find("rank 1 had not arrived") != std::string::npos;
    return named ? 0 : 3;
  });
  CHECK(codes == ExitCodes{0, 137, 0});
  CHECK(sockets_named(door_of(store)) == 0);
}

TEST_CASE("a process that ends while memory is allocated is an error for the others, not a wait") {
  const ForkStore store;
  const ExitCodes codes = run_process_ranks(store, 3, [&](int rank) {
    Rank self(store, rank, 3, 20s);
    if (rank == 1) {
      ::raise(SIGKILL);
    }
    const Deadline start = Deadline::after(0s);
    try {
      self.communicator.allocate_blocking(1 << 20, Deadline::after(60s));
    } catch (const dtrain::Error& error) {
      const bool early = std::chrono::steady_clock::now() - start.instant() < 15s;
      return early && std::string(error.what()).find("rank 1") != std::string::npos ? 0 : 3;
    }
    return 2;
  });
  CHECK(codes == ExitCodes{0, 137, 0});
}

}  // namespace
