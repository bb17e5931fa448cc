#include "support/allocation_count.hpp"
#include "support/communicator_contract.hpp"
#include "unit/backend/prelude.hpp"

namespace {

constexpr int rank_counts[] = {1, 2, 3, 4, 8};
constexpr ReduceOp all_operations[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                       ReduceOp::product};

/// Where the buffers of an all-reduce lie.
enum class Memory { arena, arena_shifted, foreign, foreign_unaligned, out_of_place, mixed };
constexpr Memory all_memories[] = {Memory::arena,        Memory::arena_shifted,
                                   Memory::foreign,      Memory::foreign_unaligned,
                                   Memory::out_of_place, Memory::mixed};

template <class T>
void fill(std::byte* to, const std::vector<T>& from) {
  if (!from.empty()) {
    std::memcpy(to, from.data(), from.size() * sizeof(T));
  }
}

template <class T>
bool holds(const std::byte* memory, const std::vector<T>& expected) {
  return expected.empty() || std::memcmp(memory, expected.data(), expected.size() * sizeof(T)) == 0;
}

/// One all-reduce of `inputs`; whether this rank got `expected`.
template <class T>
bool all_reduce_gives(SharedMemoryRank& self, std::byte* arena, Memory memory, ReduceOp op,
                      const std::vector<std::vector<T>>& inputs, const std::vector<T>& expected) {
  const int rank = self.communicator.rank();
  const std::vector<T>& own = inputs[static_cast<std::size_t>(rank)];
  std::vector<std::byte> foreign(own.size() * sizeof(T) + 64);
  std::byte* output = foreign.data();
  switch (memory) {
    case Memory::arena: output = arena; break;
    case Memory::arena_shifted:
      output = arena + 4 * static_cast<std::size_t>(rank + 1);
      break;  // elsewhere on each rank
    case Memory::foreign: break;
    case Memory::foreign_unaligned: output = foreign.data() + 1 + rank % 3; break;
    case Memory::out_of_place: break;
    case Memory::mixed: output = rank % 2 == 0 ? arena : foreign.data(); break;
  }
  std::vector<T> untouched = own;
  if (memory != Memory::out_of_place) {
    fill(output, own);
  }
  const std::byte* input =
      memory == Memory::out_of_place ? reinterpret_cast<const std::byte*>(untouched.data()) : output;
  const DType dtype = dtrain::dtype_of<T>::value;
  self.communicator.enqueue(
      AllReduce{ConstBufferView{input, own.size(), dtype}, BufferView{output, own.size(), dtype, {}}, op},
      self.stream.ref());
  return self.wait() && holds(output, expected) && untouched == own;
}

template <class T>
void check_all_paths(int ranks, const std::vector<std::size_t>& counts) {
  const std::size_t longest = *std::max_element(counts.begin(), counts.end());
  run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
    thread.doing("allocating");
    const auto allocation = self.communicator.allocate_blocking(longest * sizeof(T) + 256, Deadline::after(60s));
    thread.doing("all_reduce");
    for (const std::size_t count : counts) {
      for (const ReduceOp op : all_operations) {
        const auto inputs = support::awkward_inputs<T>(ranks, count, count + 7);
        const auto expected = support::reference_reduction(op, inputs);
        for (const Memory memory : all_memories) {
          const bool right = all_reduce_gives(self, allocation.data(), memory, op, inputs, expected);
          CHECK_MESSAGE(right, "rank " << thread.rank() << " of " << ranks << ", " << dtrain::name(op) << " of "
                                       << count << ", memory " << static_cast<int>(memory));
          if (!right) return;
        }
      }
    }
  });
}

COMMUNICATOR_CONTRACT(SharedMemoryRank)
CROSSED_CHANNELS_CONTRACT(SharedMemoryRank)

TEST_CASE("every path of an all-reduce has the bits of a plain loop in rank order") {
  for (const int ranks : rank_counts) {
    const bool many = ranks > 4;
    check_all_paths<float>(ranks, {0, 1, 3, 1023, 1024, 1025, 3001, 4096, 4097, many ? 9000U : 70'001U});
    check_all_paths<double>(ranks, {0, 1, 2, 511, 512, 513, 2048, 2049, many ? 5000U : 40'000U});
  }
}

TEST_CASE("a long all-reduce goes through many chunks with the same bits") {
  for (const int ranks : {2, 3}) {
    const std::size_t count = 700'003;
    const auto inputs = support::awkward_inputs<float>(ranks, count, 1);
    const auto expected = support::reference_reduction(ReduceOp::average, inputs);
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread&) {
      const auto allocation = self.communicator.allocate_blocking(count * 4 + 64, Deadline::after(60s));
      for (int repetition = 0; repetition < 2; ++repetition) {
        for (const Memory memory : all_memories)
          CHECK(all_reduce_gives(self, allocation.data(), memory, ReduceOp::average, inputs, expected));
      }
    });
  }
}

TEST_CASE("a broadcast gives every rank the root's bytes, of any element type and in any memory") {
  for (const int ranks : rank_counts) {
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
      const auto allocation = self.communicator.allocate_blocking(1 << 20, Deadline::after(60s));
      std::vector<std::byte> foreign(1 << 20);
      for (const std::size_t bytes : {0U, 1U, 4096U, 4097U, 65'536U, 600'001U}) {
        for (const int root : {0, ranks - 1}) {
          for (int memory = 0; memory < 3; ++memory) {  // all in the arena, none, only the even ranks
            const bool bound = memory == 0 || (memory == 2 && thread.rank() % 2 == 0);
            std::byte* buffer = bound ? allocation.data() + 64 : foreign.data() + 3;
            for (std::size_t i = 0; i < bytes; ++i)
              buffer[i] = static_cast<std::byte>(i * 31 + static_cast<std::size_t>(thread.rank() * 101));
            self.communicator.enqueue(Broadcast{BufferView{buffer, bytes, DType::u8, {}}, root}, self.stream.ref());
            bool right = self.wait();
            for (std::size_t i = 0; i < bytes; ++i)
              right = right && buffer[i] == static_cast<std::byte>(i * 31 + static_cast<std::size_t>(root * 101));
            CHECK_MESSAGE(right,
                          "rank " << thread.rank() << " of " << ranks << ", " << bytes << " bytes from " << root);
          }
        }
      }
    });
  }
}

TEST_CASE("operations of every kind follow each other without waiting on the host") {
  for (const int ranks : rank_counts) {
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
      std::vector<float> small(10);
      std::vector<float> large(3000);
      const auto stream = self.stream.ref();
      for (int step = 0; step < 200; ++step) {
        for (float& value : small)
          value = static_cast<float>(thread.rank() + step);
        for (float& value : large)
          value = 1;
        const BufferView small_view = dtrain::buffer_view(std::span(small));
        const BufferView large_view = dtrain::buffer_view(std::span(large));
        self.communicator.enqueue(AllReduce{large_view, large_view, ReduceOp::sum}, stream);
        self.communicator.enqueue(Broadcast{small_view, step % ranks}, stream);
        self.communicator.enqueue(AllReduce{small_view, small_view, ReduceOp::max}, stream);
        self.communicator.enqueue(Barrier{}, stream);
        self.communicator.enqueue(Broadcast{large_view, 0}, stream);
        REQUIRE(self.wait());
        REQUIRE(small[9] == static_cast<float>(step % ranks + step));
        REQUIRE(large[2999] == static_cast<float>(ranks));
      }
    });
  }
}

TEST_CASE("an input that ranks publish is not overwritten while a peer reads it") {
  constexpr std::size_t counts[] = {3000, 4096, 10, 3500, 20'000, 4000};  // in slots of two lengths, and in chunks
  constexpr int operations = 300;
  for (const int ranks : {2, 3, 4}) {
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
      std::vector<std::vector<float>> buffers;
      for (int i = 0; i < operations; ++i) {
        const std::size_t count = counts[static_cast<std::size_t>(i) % std::size(counts)];
        buffers.emplace_back(count, static_cast<float>(i * 8 + thread.rank()));
        const BufferView view = dtrain::buffer_view(std::span(buffers.back()));
        self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
      }
      REQUIRE(self.wait());
      for (int i = 0; i < operations; ++i) {
        const float sum = static_cast<float>(i * 8 * ranks + ranks * (ranks - 1) / 2);
        const std::vector<float>& buffer = buffers[static_cast<std::size_t>(i)];
        CHECK(std::all_of(buffer.begin(), buffer.end(), [&](float value) { return value == sum; }));
      }
    });
  }
}

TEST_CASE("a helper thread and the waiting thread give the same bits") {
  const int ranks = 3;
  const auto inputs = support::awkward_inputs<float>(ranks, 20'000, 5);
  const auto expected = support::reference_reduction(ReduceOp::average, inputs);
  run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
    const auto allocation = self.communicator.allocate_blocking(80'064, Deadline::after(60s));
    for (const bool helper : {false, true}) {
      if (helper && thread.rank() != 1) {  // also ranks that differ in this
        self.stream.start_helper();
      }
      for (int step = 0; step < 20; ++step) {
        for (const Memory memory : all_memories)
          CHECK(all_reduce_gives(self, allocation.data(), memory, ReduceOp::average, inputs, expected));
      }
    }
  });
}

TEST_CASE("the steady state allocates nothing") {
  communicator_contract::steady_state<SharedMemoryRank>(support::allocations);
}

}  // namespace
