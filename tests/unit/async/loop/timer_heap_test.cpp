#include "dtrain/async/timer_heap.hpp"

#include "unit/async/prelude.hpp"

TEST_CASE("whatever timers are added and removed, the earliest is first, of equal ones the first that was added") {
  const Deadline::Clock::time_point begin{};
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    std::vector<Waiter> timers(40);
    std::map<std::pair<std::uint32_t, int>, Waiter*> model;  // by instant and number of the insertion
    TimerHeap heap;
    for (int step = 0; step < 4000; ++step) {
      Waiter& timer = timers[random() % timers.size()];
      const bool was_there = std::erase_if(model, [&](const auto& entry) { return entry.second == &timer; }) == 1;
      REQUIRE(was_there == (timer.index != Waiter::not_in_heap));
      heap.remove(timer);
      if (!was_there) {
        const auto later = static_cast<std::uint32_t>(random() % 30);
        heap.insert(timer, Deadline::at(begin + std::chrono::milliseconds(later)));
        model[{later, step}] = &timer;
      }
      REQUIRE(heap.size() == model.size());
      REQUIRE(heap.earliest() == (model.empty() ? nullptr : model.begin()->second));
    }
  }
}
