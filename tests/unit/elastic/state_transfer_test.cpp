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
  std::vector<unsigned char> bytes() const {
    std::vector<unsigned char> found(16);
    std::memcpy(found.data(), a.data(), 8);
    std::memcpy(found.data() + 8, b.data(), 8);
    return found;
  }
  std::vector<float> a{5, 6};
  std::vector<float> b{7, 8};
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
  CHECK(state.bytes() == std::vector<unsigned char>(16, 1));
}

TEST_CASE("a newcomer receives in place") {
  State state;
  GroupOfTwo group;
  group.fails_at = 2;
  CHECK_THROWS(transfer_state(group, state.kept, with_source({2, 9}), {}));
  CHECK(state.a != std::vector<float>{5, 6});
  group.fails_at = 0;
  transfer_state(group, state.kept, with_source({2, 9}), {});
  CHECK(state.bytes() == std::vector<unsigned char>(16, 1));
}

TEST_CASE("a rank that has trained keeps its state until the other one is complete") {
  State state;
  GroupOfTwo group;
  group.fails_at = 2;
  CHECK_THROWS(transfer_state(group, state.kept, with_source({2, 9}), {2, 8}));
  CHECK(state.a == std::vector<float>{5, 6});
  CHECK(state.b == std::vector<float>{7, 8});
  group.fails_at = 0;
  transfer_state(group, state.kept, with_source({2, 9}), {2, 8});
  CHECK(state.bytes() == std::vector<unsigned char>(16, 1));
}
