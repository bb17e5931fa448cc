#include "unit/backend/prelude.hpp"

namespace {

/// Memory of an allocation; the rest of the memory's ranks have their own.
struct InAllocation {
  struct Memory {
    BufferView view() const { return {data, count, DType::i32, {}}; }
    std::byte* data;
    std::size_t count;
  };

  Memory put(const std::vector<std::int32_t>& values) {
    Memory memory{allocation.data() + used, values.size()};
    if (!values.empty()) {
      std::memcpy(memory.data, values.data(), 4 * values.size());
    }
    used += (4 * values.size() + 63) / 64 * 64;
    REQUIRE(used <= allocation.bytes());
    return memory;
  }
  template <class T>
  std::vector<T> get(const Memory& memory) const {
    std::vector<T> values(memory.count);
    if (!values.empty()) {
      std::memcpy(values.data(), memory.data, 4 * values.size());
    }
    return values;
  }
  bool wait() { return rank.wait(); }

  explicit InAllocation(SharedMemoryRank& of)
      : rank(of),
        stream(of.stream),
        communicator(of.communicator),
        allocation(of.communicator.allocate_blocking(std::size_t{64} << 20, dtrain::Deadline::after(60s))) {}

  SharedMemoryRank& rank;
  decltype(rank.stream)& stream;
  decltype(rank.communicator)& communicator;
  SharedMemoryRank::Communicator::Allocation allocation;
  std::size_t used = 0;
};

TEST_CASE("blocks in an allocation are read in place, with the same results") {
  for (const int ranks : {2, 3, 4}) {
    run_ranks<SharedMemoryRank>(ranks, [](SharedMemoryRank& self, RankThread&) {
      InAllocation memory(self);
      support::check_blocks(memory, {7, 3000, 150'001});
    });
  }
}

TEST_CASE("a reduction of blocks has the bits of an all-reduce, for any lengths") {
  const int ranks = 3;
  run_ranks<SharedMemoryRank>(ranks, [](SharedMemoryRank& self, RankThread& thread) {
    const std::vector<std::size_t> counts{40'001, 0, 77'777};
    std::vector<float> values(117'778);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = 1.0F / static_cast<float>(i + 3 + 1000 * static_cast<std::size_t>(thread.rank()));
    std::vector<float> reduced = values;
    const auto view = [](std::vector<float>& of) { return dtrain::buffer_view(std::span(of)); };
    CHECK(self.all_reduce(view(reduced), view(reduced), ReduceOp::average));
    std::vector<float> own(counts[static_cast<std::size_t>(thread.rank())]);
    const backend::RankPlace place{thread.rank(), ranks};
    self.communicator.enqueue(
        backend::ReduceBlocks{backend::blocks_of_reduce_scatter_v(view(values), view(own), counts, place), view(values),
                              view(own), ReduceOp::average},
        self.stream.ref());
    CHECK(self.wait());
    const std::ptrdiff_t begin = thread.rank() == 2 ? 40'001 : 0;
    CHECK(std::equal(own.begin(), own.end(), reduced.begin() + begin));
  });
}

TEST_CASE("an exchange of blocks in which a rank does not take part ends after the timeout, with its name") {
  std::atomic<int> ended{0};
  support::run_opened_ranks<SharedMemoryRank>({3, "group", 100ms}, [&](SharedMemoryRank& self, RankThread& thread) {
    if (thread.rank() == 1) {
      support::holds_soon([&] { return ended == 2; });
      return;
    }
    std::vector<float> values(6);
    std::vector<float> output(6);
    const auto from = dtrain::buffer_view(std::span(values));
    const auto to = dtrain::buffer_view(std::span(output));
    self.communicator.enqueue(
        backend::ExchangeBlocks{backend::blocks_of_all_to_all(from, {}, to, {}, {thread.rank(), 3}), from, to},
        self.stream.ref());
    CHECK_FALSE(self.wait());
    ++ended;
    const dtrain::Cause cause = self.communicator.failure().value();
    CHECK(cause.kind == dtrain::CauseKind::timeout);
    CHECK_CONTAINS(cause.text, "all_to_all of 2 f32 a rank, operation 2 of channel 'group': rank");
    const auto says = [&cause](const char* missing) {
      return support::contains(cause.text, std::string(": ") + missing + " had not arrived after 100 ms");
    };
    CHECK((says("rank 1") || says("ranks 0-1") || says("ranks 1-2")));  // so far
  });
}

TEST_CASE("an exchange of blocks that never runs frees its memory, and its communicator closes") {
  run_ranks<SharedMemoryRank>(2, [&](SharedMemoryRank& self, RankThread& thread) {
    std::vector<float> values(4);
    std::vector<float> output(4);
    const auto from = dtrain::buffer_view(std::span(values));
    const auto to = dtrain::buffer_view(std::span(output));
    self.communicator.enqueue(
        backend::ExchangeBlocks{backend::blocks_of_all_to_all(from, {}, to, {}, {thread.rank(), 2}), from, to},
        self.stream.ref());
  });
}

}  // namespace
