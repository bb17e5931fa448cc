/// @file
/// SpinPolicy of dtrain/backend/shared_memory/channel.hpp

#include <sched.h>
#include "dtrain/backend/shared_memory/channel.hpp"

#include <cstdlib>

#include "unit/backend/prelude.hpp"

namespace shared_memory = dtrain::backend::shared_memory;

namespace {

/// The slots of two ranks, and this thread held on one core while it exists.
struct TwoRanks {
  TwoRanks() {
    REQUIRE(::sched_getaffinity(0, sizeof before, &before) == 0);
    cpu_set_t here;
    CPU_ZERO(&here);
    core = ::sched_getcpu();
    REQUIRE(core >= 0);
    CPU_SET(static_cast<std::size_t>(core), &here);
    REQUIRE(::sched_setaffinity(0, sizeof here, &here) == 0);
  }
  ~TwoRanks() { CHECK(::sched_setaffinity(0, sizeof before, &before) == 0); }

  /// Turns until the rank sleeps.
  int turns_of(shared_memory::SpinPolicy& policy) {
    int turn = 0;
    int turns = 1;
    while (policy.spin_once(turn, control, 0, 1))
      ++turns;
    return turns;
  }

  static constexpr std::size_t bytes = shared_memory::ControlBlock::bytes_for(2);
  std::unique_ptr<std::byte, decltype(&std::free)> memory{
      static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096)), &std::free};
  shared_memory::ControlBlock control{memory.get(), 2};
  shared_memory::RankSlot* slots[2] = {new (&control.slot(0)) shared_memory::RankSlot,
                                       new (&control.slot(1)) shared_memory::RankSlot};
  cpu_set_t before{};
  int core = -1;
};

bool two_cores() {
  return dtrain::available_cores() >= 2;
}

}  // namespace

TEST_CASE("A rank that waits for a peer on another core spins and yields before it sleeps") {
  const bool suffice = two_cores();
  shared_memory::SpinPolicy policy(2);
  TwoRanks ranks;
  ranks.control.slot(1).core.store(static_cast<std::uint32_t>(ranks.core) + 2);
  CHECK(ranks.turns_of(policy) == (suffice ? 250 : 55));
}

TEST_CASE("Where ranks outnumber cores a rank spins for less, and looks for nobody") {
  shared_memory::SpinPolicy policy(1 << 20);
  TwoRanks ranks;
  ranks.control.slot(1).core.store(static_cast<std::uint32_t>(ranks.core) + 1);
  CHECK(ranks.turns_of(policy) == 55);
  CHECK(ranks.turns_of(policy) == 55);
  CHECK(ranks.control.slot(0).core.load() == 0);
}

TEST_CASE("A rank that finds its peer on its own core sleeps at once, and when that did not help yields") {
  if (!two_cores()) {
    MESSAGE("needs two cores");
    return;
  }
  shared_memory::SpinPolicy policy(2);
  TwoRanks ranks;
  ranks.control.slot(1).core.store(static_cast<std::uint32_t>(ranks.core) + 1);
  CHECK(ranks.turns_of(policy) == 21);
  CHECK(ranks.control.slot(0).core.load() == static_cast<std::uint32_t>(ranks.core) + 1);
  CHECK(ranks.turns_of(policy) <= 21 + 50);
}
