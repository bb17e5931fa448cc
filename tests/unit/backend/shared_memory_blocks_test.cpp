#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::ReadBlocks;

constexpr int rank_counts[] = {1, 2, 3, 5, 8};

/// Where the long and the short buffer of a collective lie. In place: the short one is the rank's block of the long
/// one.
enum class Place { foreign, unaligned, in_place, arena, arena_in_place, even_ranks_in_arena };
constexpr Place places[] = {Place::foreign, Place::unaligned,      Place::in_place,
                            Place::arena,   Place::arena_in_place, Place::even_ranks_in_arena};

struct Buffers {
  std::byte* whole = nullptr;
  std::byte* block = nullptr;
};

/// Memory for one rank: `whole_bytes` and a block of it, as `place` says.
class Memory {
 public:
  Memory(std::byte* arena, std::size_t whole_bytes, std::size_t block_bytes, int rank)
      : arena_(arena),
        whole_bytes_(whole_bytes),
        block_bytes_(block_bytes),
        rank_(rank),
        whole_(whole_bytes + 64),
        block_(block_bytes + 64) {}

  Buffers at(Place place) {
    const bool in_arena = place == Place::arena || place == Place::arena_in_place ||
                          (place == Place::even_ranks_in_arena && rank_ % 2 == 0);
    const bool in_place = place == Place::in_place || place == Place::arena_in_place;
    const std::size_t shift = place == Place::unaligned ? 1 + static_cast<std::size_t>(rank_) % 3 : 0;
    std::byte* const whole = (in_arena ? arena_ : whole_.data()) + shift;
    std::byte* const apart = in_arena ? arena_ + whole_bytes_ + 64 : block_.data() + shift;
    return {whole, in_place ? whole + static_cast<std::size_t>(rank_) * block_bytes_ : apart};
  }

 private:
  std::byte* arena_;
  std::size_t whole_bytes_;
  std::size_t block_bytes_;
  int rank_;
  std::vector<std::byte> whole_;
  std::vector<std::byte> block_;
};

std::vector<float> block_of(const std::vector<float>& values, int block, std::size_t count) {
  const auto begin = values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(block) * count);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

void store(std::byte* to, const std::vector<float>& values) {
  if (!values.empty()) {
    std::memcpy(to, values.data(), values.size() * sizeof(float));
  }
}

bool holds(const std::byte* memory, const std::vector<float>& expected) {
  return expected.empty() || std::memcmp(memory, expected.data(), expected.size() * sizeof(float)) == 0;
}

constexpr std::size_t counts_below_longest[] = {0, 1, 67, 3000};

/// @param prepare `prepare(ranks, count)`: what all ranks compare with, made once
/// @param body `body(self, buffers, prepared, count)`: whether one rank's result is right
template <class Prepare, class Body>
void for_all(Prepare prepare, Body body) {
  for (const int ranks : rank_counts) {
    std::vector<std::size_t> counts(std::begin(counts_below_longest), std::end(counts_below_longest));
    counts.push_back(ranks > 3 ? 30'001 : 150'001);
    std::vector<decltype(prepare(ranks, counts[0]))> prepared;
    for (const std::size_t count : counts)
      prepared.push_back(prepare(ranks, count));
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
      const std::size_t whole = static_cast<std::size_t>(ranks) * counts.back() * sizeof(float);
      const auto allocation =
          self.communicator.allocate_blocking(whole + counts.back() * sizeof(float) + 256, Deadline::after(60s));
      for (std::size_t at = 0; at < counts.size(); ++at) {
        const std::size_t count = counts[at];
        Memory memory(allocation.data(), static_cast<std::size_t>(ranks) * count * sizeof(float), count * sizeof(float),
                      thread.rank());
        for (const Place place : places) {
          thread.doing("a collective with blocks");
          const bool right = body(self, memory.at(place), prepared[at], count);
          CHECK_MESSAGE(right, "rank " << thread.rank() << " of " << ranks << ", " << count << " a rank, place "
                                       << static_cast<int>(place));
          if (!right) return;
        }
      }
    });
  }
}

/// Every rank's input, and what each operation makes of them.
struct Reductions {
  static constexpr ReduceOp ops[] = {ReduceOp::average, ReduceOp::max};
  std::vector<std::vector<float>> inputs;
  std::vector<std::vector<float>> expected;
};

TEST_CASE("a reduce-scatter gives every rank its block of the all-reduce, bit by bit, in any memory") {
  const auto prepare = [](int ranks, std::size_t count) {
    Reductions made{support::awkward_inputs<float>(ranks, static_cast<std::size_t>(ranks) * count, count + 3), {}};
    for (const ReduceOp op : Reductions::ops)
      made.expected.push_back(support::reference_reduction(op, made.inputs));
    return made;
  };
  for_all(prepare, [](SharedMemoryRank& self, Buffers at, const Reductions& reductions, std::size_t count) {
    const int rank = self.communicator.rank();
    bool right = true;
    for (std::size_t i = 0; i < reductions.expected.size(); ++i) {
      const std::vector<float>& input = reductions.inputs[static_cast<std::size_t>(rank)];
      store(at.whole, input);
      self.communicator.enqueue(ReduceScatter{ConstBufferView{at.whole, input.size(), DType::f32},
                                              BufferView{at.block, count, DType::f32, {}}, Reductions::ops[i]},
                                self.stream.ref());
      right = right && self.wait() && holds(at.block, block_of(reductions.expected[i], rank, count));
    }
    return right;
  });
}

TEST_CASE("an all-gather gives every rank every rank's block, in any memory") {
  const auto prepare = [](int ranks, std::size_t count) {
    return support::awkward_values<float>(static_cast<std::size_t>(ranks) * count, count + 5);
  };
  for_all(prepare, [](SharedMemoryRank& self, Buffers at, const std::vector<float>& blocks, std::size_t count) {
    const int rank = self.communicator.rank();
    store(at.block, block_of(blocks, rank, count));
    self.communicator.enqueue(
        AllGather{ConstBufferView{at.block, count, DType::f32}, BufferView{at.whole, blocks.size(), DType::f32, {}}},
        self.stream.ref());
    return self.wait() && holds(at.whole, blocks);
  });
}

/// What a reader gets.
struct ReadWhole {
  std::byte* whole;
  std::size_t block_bytes;
  std::size_t bytes = 0;

  static void take(const dtrain::backend::BlockReader& reader, int rank, std::size_t begin, const std::byte* from,
                   std::size_t bytes) noexcept {
    auto& read = *static_cast<ReadWhole*>(reader.context);
    std::memcpy(read.whole + static_cast<std::size_t>(rank) * read.block_bytes + begin, from, bytes);
    read.bytes += bytes;
  }
};

TEST_CASE("a reader of blocks gets each byte of the other ranks' blocks once, in any memory") {
  const auto prepare = [](int ranks, std::size_t count) {
    return support::awkward_values<float>(static_cast<std::size_t>(ranks) * count, count + 5);
  };
  for_all(prepare, [](SharedMemoryRank& self, Buffers at, const std::vector<float>& blocks, std::size_t count) {
    const int rank = self.communicator.rank();
    store(at.block, block_of(blocks, rank, count));
    ReadWhole read{at.whole, count * sizeof(float)};
    self.communicator.enqueue(ReadBlocks{ConstBufferView{at.block, count, DType::f32}, {&read, 0, &ReadWhole::take}},
                              self.stream.ref());
    const bool ran = self.wait();
    store(at.whole + static_cast<std::size_t>(rank) * read.block_bytes, block_of(blocks, rank, count));
    return ran && holds(at.whole, blocks) && read.bytes == (blocks.size() - count) * sizeof(float);
  });
}

TEST_CASE("a reduce-scatter followed by an all-gather is an all-reduce") {
  const int ranks = 4;
  const std::size_t count = 20'000;
  const auto inputs = support::awkward_inputs<float>(ranks, count * ranks, 1);
  const auto expected = support::reference_reduction(ReduceOp::sum, inputs);
  run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
    std::vector<float> values = inputs[static_cast<std::size_t>(thread.rank())];
    auto* const bytes = reinterpret_cast<std::byte*>(values.data());
    const BufferView whole{bytes, values.size(), DType::f32, {}};
    const BufferView own{bytes + static_cast<std::size_t>(thread.rank()) * count * 4, count, DType::f32, {}};
    self.communicator.enqueue(ReduceScatter{whole, own, ReduceOp::sum}, self.stream.ref());
    self.communicator.enqueue(AllGather{own, whole}, self.stream.ref());
    CHECK(self.wait());
    CHECK(values == expected);
  });
}

}  // namespace
