/// @file
/// PeerPace of dtrain/backend/shared_memory/channel.hpp

#include <sched.h>
#include "dtrain/backend/shared_memory/channel.hpp"

#include <chrono>
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
  int turns_of(shared_memory::PeerPace& pace) {
    int turns = 1;
    pace.begin();
    while (pace.spin_once(control, 0, 1))
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

constexpr dtrain::WaitLimits suffice{.cores_suffice = true, .has_quota = false};
constexpr dtrain::WaitLimits short_of_cores{.cores_suffice = false, .has_quota = false};

}  // namespace

TEST_CASE("a rank that waits for a peer on another core spins and yields before it sleeps") {
  shared_memory::PeerPace pace(suffice);
  TwoRanks ranks;
  ranks.control.slot(1).core.store(static_cast<std::uint32_t>(ranks.core) + 2);
  CHECK(ranks.turns_of(pace) > 200);
}

TEST_CASE("where ranks outnumber cores a rank spins for less, and looks for nobody") {
  shared_memory::PeerPace pace(short_of_cores);
  TwoRanks ranks;
  ranks.control.slot(1).core.store(static_cast<std::uint32_t>(ranks.core) + 1);
  for (int i = 0; i < 2; ++i) {
    const int turns = ranks.turns_of(pace);
    CHECK(turns > 5);
    CHECK(turns <= 5 + 50 + 1);
  }
  CHECK(ranks.control.slot(0).core.load() == 0);
}

TEST_CASE("a rank that finds its peer on its own core sleeps at once, and when that did not help yields") {
  shared_memory::PeerPace pace(suffice);
  TwoRanks ranks;
  ranks.control.slot(1).core.store(static_cast<std::uint32_t>(ranks.core) + 1);
  CHECK(ranks.turns_of(pace) == 21);
  CHECK(ranks.control.slot(0).core.load() == static_cast<std::uint32_t>(ranks.core) + 1);
  const auto again = std::chrono::steady_clock::now();
  const int turns = ranks.turns_of(pace);
  if (std::chrono::steady_clock::now() - again < std::chrono::milliseconds(1)) {
    CHECK(turns > 21);  // the last sleep was less than 2 ms ago
  }
}
