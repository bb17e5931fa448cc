#include "dtrain/elastic/state_transfer.hpp"

#include <cstring>

#include "unit/elastic/prelude.hpp"

using dtrain::NamedTensor;
using dtrain::elastic::KeptState;
using dtrain::rendezvous::Assignment;
using dtrain::rendezvous::TrainingProgress;

namespace {

/// Rank 1 of 2, which gets what rank 0 sends.
struct GroupOfTwo {
  int rank() const { return 1; }
  int world_size() const { return 2; }

  void all_reduce(std::vector<std::int64_t>& cards, dtrain::ReduceOp op) const {
    CHECK(op == dtrain::ReduceOp::sum);
    for (std::size_t i = 0; i < 2; ++i) {
      cards[i] += source_card[i];
    }
  }
  void broadcast(dtrain::BufferView values, int root) const {
    CHECK(root == 0);
    if (++broadcasts == fails_at) {
      throw std::runtime_error("rank 0 was lost");
    }
    std::memset(values.data, source_byte, values.bytes());
  }

  GroupOfTwo split(int) const { return *this; }

  std::int64_t source_card[2] = {1, 0};
  int source_byte = 1;
  int fails_at = 0;
  mutable int broadcasts = 0;
};

struct State {
  State() { kept.keep({{"a", dtrain::tensor_view(a)}, {"b", dtrain::tensor_view(b)}}, false); }
  /// Whether all bytes are those that rank 0 sends.
  bool has_arrived() const { return has(a) && has(b); }
  static bool has(const std::vector<float>& values) {
    const std::vector<std::byte> ones(values.size() * sizeof(float), std::byte{1});
    return std::memcmp(values.data(), ones.data(), ones.size()) == 0;
  }
  std::vector<float> a{5, 6};
  std::vector<float> b = std::vector<float>(5000, 7);  // too large for a broadcast that others share, and sent first
  KeptState kept;
};

Assignment with_source(TrainingProgress source) {
  Assignment assignment;
  assignment.source = source;
  return assignment;
}

std::int64_t card_of(std::uint64_t digest) {
  std::int64_t card = 0;
  std::memcpy(&card, &digest, sizeof(card));
  return card;
}

}  // namespace

TEST_CASE("at a job's beginning nothing is sent, whatever the states are") {
  State state;
  GroupOfTwo group;
  transfer_state(group, state.kept, with_source({}), {});
  CHECK(group.broadcasts == 0);
}

TEST_CASE("ranks of equal progress and equal digests send nothing") {
  State state;
  GroupOfTwo group;
  group.source_card[1] = card_of(state.kept.digest());
  transfer_state(group, state.kept, with_source({2, 9}), {2, 9});
  CHECK(group.broadcasts == 0);
  CHECK(state.a == std::vector<float>{5, 6});
}

TEST_CASE("a rank of equal progress with another digest receives, with a warning") {
  State state;
  GroupOfTwo group;
  group.source_card[1] = card_of(state.kept.digest() + 1);
  support::CapturedStderr stderr_text;
  transfer_state(group, state.kept, with_source({2, 9}), {2, 9});
  CHECK(stderr_text.text().find("its state differs from rank 0's after as many steps") != std::string::npos);
  CHECK(state.has_arrived());
}

TEST_CASE("a rank of equal progress without a step receives without a warning: the programs may begin differently") {
  State state;
  GroupOfTwo group;
  group.source_card[1] = card_of(state.kept.digest() + 1);
  support::CapturedStderr stderr_text;
  transfer_state(group, state.kept, with_source({2, 0}), {2, 0});
  CHECK(stderr_text.text() == "");
  CHECK(state.has_arrived());
}

TEST_CASE("a newcomer receives in place") {
  State state;
  GroupOfTwo group;
  group.fails_at = 2;
  CHECK_THROWS(transfer_state(group, state.kept, with_source({2, 9}), {}));
  CHECK(state.b != std::vector<float>(5000, 7));
  group.fails_at = 0;
  transfer_state(group, state.kept, with_source({2, 9}), {});
  CHECK(state.has_arrived());
}

TEST_CASE("a rank that has trained keeps its state until the other one is complete") {
  State state;
  GroupOfTwo group;
  group.fails_at = 2;
  CHECK_THROWS(transfer_state(group, state.kept, with_source({2, 9}), {2, 8}));
  CHECK(state.a == std::vector<float>{5, 6});
  CHECK(state.b == std::vector<float>(5000, 7));
  group.fails_at = 0;
  transfer_state(group, state.kept, with_source({2, 9}), {2, 8});
  CHECK(state.has_arrived());
}

namespace {

/// What one of two ranks sends, for the other one to receive.
struct RecordedGroup {
  int rank() const { return own_rank; }
  int world_size() const { return 2; }
  void all_reduce(std::vector<std::int64_t>& cards, dtrain::ReduceOp) const { cards = {1, 0, 0, 0}; }
  void broadcast(dtrain::BufferView values, int root) const {
    CHECK(root == 0);
    if (own_rank == 0) {
      sent.emplace_back(values.data, values.data + values.bytes());
    } else {
      REQUIRE(received < sent.size());
      REQUIRE(sent[received].size() == values.bytes());
      std::memcpy(values.data, sent[received++].data(), values.bytes());
    }
  }
  RecordedGroup split(int) const { return *this; }

  int own_rank = 0;
  mutable std::vector<std::vector<std::byte>> sent{};
  mutable std::size_t received = 0;
};

/// Tensors of many sizes, some without elements, beside each other.
struct ManyTensors {
  explicit ManyTensors(unsigned char first) {
    std::size_t bytes = 0;
    for (std::size_t i = 0; i < count; ++i) {
      bytes += size_of(i);
    }
    memory.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) {
      memory[i] = static_cast<unsigned char>(first + i * 7 + i / 251);
    }
    std::vector<dtrain::NamedTensor> tensors;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
      tensors.push_back({std::to_string(i), dtrain::TensorView{reinterpret_cast<std::byte*>(memory.data() + begin),
                                                               {static_cast<std::int64_t>(size_of(i))},
                                                               dtrain::DType::u8,
                                                               {}}});
      begin += size_of(i);
    }
    kept.keep(tensors, false);
  }
  static std::size_t size_of(std::size_t i) { return i % 1000 == 999 ? 100000 : i % 300 == 7 ? 0 : 1 + i * 37 % 900; }

  static constexpr std::size_t count = 3000;
  std::vector<unsigned char> memory;
  KeptState kept;
};

}  // namespace

TEST_CASE("small tensors share a few broadcasts, and each arrives where it belongs, in place or staged") {
  for (const std::uint64_t own_steps : {0, 8}) {
    CAPTURE(own_steps);
    ManyTensors source(3);
    ManyTensors receiver(90);
    const std::vector<unsigned char> before = source.memory;
    REQUIRE(receiver.memory != before);
    RecordedGroup group;
    transfer_state(group, source.kept, with_source({2, 9}), {2, 9});
    CHECK(source.memory == before);
    CHECK(group.sent.size() == 3 + 2);  // 3 large tensors, and two packs of at most a megabyte
    group.own_rank = 1;
    transfer_state(group, receiver.kept, with_source({2, 9}), {own_steps == 0 ? 0U : 2U, own_steps});
    CHECK(group.received == group.sent.size());
    CHECK(receiver.memory == before);
  }
}
