// ctest: TIMEOUT 180
#include "dtrain/backend/staged/chunk_copies.hpp"
#include "support/communicator_contract.hpp"
#include "support/reference_reduction.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::backend::staged::ChunkPlan;

using Ranked = dtrain::topology::Ring::Rebind<SharedMemory>;

namespace backend = dtrain::backend;
static_assert(backend::Backend<Staged<SharedMemory>> && backend::HasPreJoin<Staged<SharedMemory>>);
static_assert(backend::Backend<Staged<Ranked>>);
static_assert(Staged<SharedMemory>::name() == "Staged<SharedMemory>");
static_assert(Staged<SharedMemory>::supports(dtrain::DeviceKind::cuda));
static_assert(!Staged<SharedMemory>::supports(dtrain::DeviceKind::host));
static_assert(backend::determinism_of<Staged<SharedMemory>> == backend::Determinism::always);
static_assert(backend::determinism_of<Staged<Ranked>> == backend::Determinism::for_a_plan);
static_assert(backend::CanReduceScatter<Staged<SharedMemory>::Communicator>);
static_assert(backend::CanAllGather<Staged<SharedMemory>::Communicator>);
static_assert(backend::CanSendRecv<Staged<SharedMemory>::Communicator>);
static_assert(backend::CanExchangeBlocks<Staged<SharedMemory>::Communicator>);
static_assert(backend::CanReduceBlocks<Staged<SharedMemory>::Communicator>);
static_assert(backend::CanSplit<Staged<SharedMemory>::Communicator>);

constexpr int rank_counts[] = {1, 2, 3, 4};
constexpr std::size_t counts[] = {0, 1, 1000, 262'144, 600'001};

/// Values whose sum depends on the order of summation.
std::vector<float> values_of(int rank, std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t mixed = (i + 1) * 2'654'435'761U + static_cast<std::size_t>(rank) * 40'503U;
    values[i] = static_cast<float>(mixed % 100'003) * 0.013F - 600;
  }
  return values;
}

/// Made once for all ranks.
struct Table {
  Table(int ranks, std::size_t length) : count(length) {
    for (int rank = 0; rank < ranks; ++rank)
      inputs.push_back(values_of(rank, count));
    sum = reference_reduction(ReduceOp::sum, inputs);
    average = reference_reduction(ReduceOp::average, inputs);
  }
  const std::vector<float>& reduced(ReduceOp op) const { return op == ReduceOp::sum ? sum : average; }

  std::size_t count;
  std::vector<std::vector<float>> inputs;
  std::vector<float> sum;
  std::vector<float> average;
};

/// None, less than a chunk, exactly one, several and a rest.
std::vector<Table> tables_of(int ranks) {
  std::vector<Table> tables;
  for (const std::size_t count : counts)
    tables.emplace_back(ranks, count);
  return tables;
}

std::size_t index_of(const RankThread& self) {
  return static_cast<std::size_t>(self.rank());
}

template <class T>
std::vector<T> slice(const std::vector<T>& values, std::size_t begin, std::size_t count) {
  const auto first = values.begin() + static_cast<std::ptrdiff_t>(begin);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

}  // namespace

COMMUNICATOR_CONTRACT(StagedRank<>)
CROSSED_CHANNELS_CONTRACT(StagedRank<>)

TEST_CASE("chunks cover a buffer once, in order, and an empty buffer has one empty chunk") {
  for (const std::size_t count : {0U, 1U, 7U, 8U, 9U, 100U}) {
    const ChunkPlan chunks(count, 4, 32);
    std::size_t covered = 0;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      CHECK(chunks[i].begin == covered);
      CHECK(chunks[i].count <= 8);
      covered += chunks[i].count;
    }
    CHECK(covered == count);
    CHECK(chunks[chunks.size()].count == 0);
  }
  CHECK(ChunkPlan(0, 4, 32).size() == 1);
  CHECK(ChunkPlan(5, 8, 4).size() == 5);  // an element is never cut
}

TEST_CASE("device memory is reduced to the bits that shared memory gives, wherever it lies") {
  for (const int ranks : rank_counts) {
    const std::vector<Table> tables = tables_of(ranks);
    run_ranks<StagedRank<>>({ranks, "staged", 20s}, [&](StagedRank<>& rank, RankThread& self) {
      const auto arena = rank.communicator.allocate_blocking(4 * 600'001 + 64, Deadline::after(60s));
      for (const Table& table : tables) {
        const std::size_t count = table.count;
        for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
          const std::vector<float>& expected = table.reduced(op);
          const std::vector<float>& own = table.inputs[index_of(self)];
          rank.forget();

          self.doing("an all_reduce in an allocation");
          write(arena.data() + 16, own);
          const BufferView bound = rank.view(arena.data() + 16, count);
          rank.communicator.enqueue(backend::AllReduce{bound, bound, op}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(rank.get<float>(bound) == expected);

          self.doing("an all_reduce of foreign memory, in place");
          const BufferView in_place = rank.put(own);
          rank.communicator.enqueue(backend::AllReduce{in_place, in_place, op}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(rank.get<float>(in_place) == expected);

          self.doing("an all_reduce out of place, on some ranks into an allocation");
          const BufferView input = rank.put(own);
          const BufferView output = self.rank() % 2 == 0 ? bound : in_place;
          rank.communicator.enqueue(backend::AllReduce{input, output, op}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(rank.get<float>(output) == expected);
          CHECK(rank.get<float>(input) == own);
        }
      }
    });
  }
}

TEST_CASE("one rank's device memory reaches all, from every root, in an allocation or not") {
  for (const int ranks : rank_counts) {
    const std::vector<Table> tables = tables_of(ranks);
    run_ranks<StagedRank<>>({ranks, "staged", 20s}, [&](StagedRank<>& rank, RankThread& self) {
      const auto arena = rank.communicator.allocate_blocking(4 * 600'001, Deadline::after(60s));
      const BufferView foreign = rank.space(600'001);
      for (const Table& table : tables) {
        for (int root = 0; root < ranks; ++root) {
          std::byte* const data = (self.rank() + root) % 2 == 0 ? arena.data() : foreign.data;
          write(data, table.inputs[index_of(self)]);
          rank.communicator.enqueue(backend::Broadcast{rank.view(data, table.count), root}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(on_host<float>(data, table.count) == table.inputs[static_cast<std::size_t>(root)]);
        }
      }
    });
  }
}

TEST_CASE("blocks of device memory are reduced and gathered, in place and disjoint") {
  for (const int ranks : rank_counts) {
    const auto size = static_cast<std::size_t>(ranks);
    std::vector<Table> tables;
    for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{1000}, std::size_t{300'001}})
      tables.emplace_back(ranks, size * count);
    run_ranks<StagedRank<>>({ranks, "staged", 20s}, [&](StagedRank<>& rank, RankThread& self) {
      for (const Table& table : tables) {
        const std::size_t count = table.count / size;
        const std::vector<float>& reduced = table.sum;
        const auto own_block = slice(reduced, index_of(self) * count, count);

        rank.forget();
        const BufferView whole = rank.put(table.inputs[index_of(self)]);
        const BufferView part = rank.space(count);
        rank.communicator.enqueue(backend::ReduceScatter{whole, part, ReduceOp::sum}, rank.ref());
        REQUIRE(rank.wait());
        CHECK(rank.get<float>(part) == own_block);
        const BufferView place = rank.view(whole.data + 4 * index_of(self) * count, count);
        rank.communicator.enqueue(backend::ReduceScatter{whole, place, ReduceOp::sum}, rank.ref());
        REQUIRE(rank.wait());
        CHECK(rank.get<float>(place) == own_block);

        rank.communicator.enqueue(backend::AllGather{place, whole}, rank.ref());
        REQUIRE(rank.wait());
        CHECK(rank.get<float>(whole) == reduced);
        const BufferView gathered = rank.space(size * count);
        rank.communicator.enqueue(backend::AllGather{part, gathered}, rank.ref());
        REQUIRE(rank.wait());
        CHECK(rank.get<float>(gathered) == reduced);
      }
    });
  }
}

TEST_CASE("device memory goes from rank to rank, and round a ring at once, whatever the lengths") {
  for (const int ranks : {1, 2, 3, 4}) {
    run_ranks<StagedRank<>>({ranks, "staged", 20s}, [&](StagedRank<>& rank, RankThread& self) {
      const int next = (self.rank() + 1) % ranks;
      const int previous = (self.rank() + ranks - 1) % ranks;
      for (const std::size_t count : counts) {
        // Messages differ in length from rank to rank, so that some are in more chunks than others.
        const auto length = [count](int from) {
          return count == 0 ? 0 : count + 200'000 * static_cast<std::size_t>(from);
        };
        const auto sent = values_of(self.rank(), length(self.rank()));
        const auto expected = values_of(previous, length(previous));
        rank.forget();
        const BufferView input = rank.put(sent);
        const BufferView output = rank.space(expected.size());
        rank.communicator.enqueue(backend::SendRecv{input, next, output, previous}, rank.ref());
        REQUIRE(rank.wait());
        CHECK(rank.get<float>(output) == expected);
        if (ranks > 1 && self.rank() == 0) {
          const BufferView answer = rank.space(length(1));
          rank.communicator.enqueue(backend::Recv{answer, 1}, rank.ref());
          REQUIRE(rank.wait());
          CHECK(rank.get<float>(answer) == values_of(1, length(1)));
        } else if (self.rank() == 1) {
          rank.communicator.enqueue(backend::Send{input, 0}, rank.ref());
          REQUIRE(rank.wait());
        }
      }
      // A rank that ends frees memory, which waits for the whole device, and keeps others from enqueueing meanwhile.
      rank.communicator.enqueue(backend::Barrier{}, rank.ref());
      REQUIRE(rank.wait());
    });
  }
}

TEST_CASE("a barrier passes when every rank's stream has come to it") {
  std::atomic<int> arrived{0};
  run_ranks<StagedRank<>>(3, [&](StagedRank<>& rank, RankThread& self) {
    support::enqueue_delay(rank.ref(), 10ms * self.rank());
    support::enqueue_on_host(rank.ref(), [&arrived] { ++arrived; });
    rank.communicator.enqueue(backend::Barrier{}, rank.ref());
    int seen = 0;
    support::enqueue_on_host(rank.ref(), [&] { seen = arrived; });
    REQUIRE(rank.wait());
    CHECK(seen == 3);
  });
}

TEST_CASE("an operation waits for what its stream had before, and the host does not wait for the operation") {
  run_ranks<StagedRank<>>(2, [](StagedRank<>& rank, RankThread&) {
    const std::size_t count = 600'000;
    const BufferView view = rank.put(std::vector<float>(count, 1));
    const BufferView late = rank.put(std::vector<float>(count, 3));
    const BufferView copy = rank.space(count);
    support::Gate gate;
    support::enqueue_on_host(rank.ref(), [&] { gate.pass(); });
    const auto copy_later = [&](const BufferView& to, const BufferView& from) {
      support::check(cudaMemcpyAsync(to.data, from.data, to.bytes(), cudaMemcpyDeviceToDevice, rank.ref().native()),
                     "cudaMemcpyAsync");
    };
    copy_later(view, late);
    rank.communicator.enqueue(backend::AllReduce{view, view, ReduceOp::sum}, rank.ref());
    copy_later(copy, view);
    Event done;
    rank.ref().record(done);
    CHECK_FALSE(done.is_complete());
    gate.open();
    REQUIRE(rank.wait());
    CHECK(rank.get<float>(copy) == std::vector<float>(count, 6));
  });
}

TEST_CASE("many operations may be under way at once") {
  run_ranks<StagedRank<>>(3, [](StagedRank<>& rank, RankThread&) {
    const std::size_t count = 300'000;
    const auto arena = rank.communicator.allocate_blocking(4 * count, Deadline::after(60s));
    const BufferView foreign = rank.put(std::vector<float>(count, 1));
    write(arena.data(), std::vector<float>(count, 1));
    for (int i = 0; i < 12; ++i) {
      for (std::byte* const data : {arena.data(), foreign.data}) {
        rank.communicator.enqueue(backend::AllReduce{rank.view(data, count), rank.view(data, count), ReduceOp::sum},
                                  rank.ref());
      }
    }
    REQUIRE(rank.wait());
    const std::vector<float> expected(count, 531441);  // 3^12
    CHECK(on_host<float>(arena.data(), count) == expected);
    CHECK(rank.get<float>(foreign) == expected);
  });
}

TEST_CASE("device memory is handed out zeroed, and may outlive its channel") {
  run_thread_ranks(2, [job = std::make_shared<FakeJob>(2)](RankThread& self) {
    std::optional<StagedRank<>> rank(std::in_place, job, self.rank(), self.size());
    auto none = rank->communicator.allocate_blocking(0, Deadline::after(60s));
    CHECK(none.bytes() == 0);
    auto memory = rank->communicator.allocate_blocking(4096, Deadline::after(60s));
    CHECK(memory.bytes() == 4096);
    CHECK(on_host<char>(memory.data(), 4096) == std::vector<char>(4096, 0));
    rank.reset();
    write(memory.data(), std::vector<float>(1024, 2));
    CHECK(on_host<float>(memory.data(), 1024) == std::vector<float>(1024, 2));
  });
}

TEST_CASE("device memory is reduced along a topology that lies over the backend for host memory") {
  run_ranks<StagedRank<Ranked>>(3, [](StagedRank<Ranked>& rank, RankThread& self) {
    const std::size_t count = 600'001;
    const BufferView view = rank.put(std::vector<float>(count, static_cast<float>(self.rank() + 1)));
    rank.communicator.enqueue(backend::AllReduce{view, view, ReduceOp::sum}, rank.ref());
    REQUIRE(rank.wait());
    CHECK(rank.get<float>(view) == std::vector<float>(count, 6));
  });
}
