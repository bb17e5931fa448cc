#include "unit/async/prelude.hpp"

namespace {

/// A thread that counts itself when it ends, some time after its start.
JoiningThread counted(std::atomic<int>& ended) {
  return JoiningThread(std::thread([&ended] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ended.fetch_add(1);
  }));
}

}  // namespace

TEST_CASE("a joining thread has ended when its object is destroyed") {
  std::atomic<int> ended{0};
  { const JoiningThread thread = counted(ended); }
  CHECK(ended.load() == 1);
}

TEST_CASE("assignment to a joining thread waits for the thread that it had") {
  std::atomic<int> ended{0};
  JoiningThread thread = counted(ended);
  std::atomic<int> ended_later{0};
  thread = counted(ended_later);
  CHECK(ended.load() == 1);
  thread = JoiningThread();
  CHECK(ended_later.load() == 1);
}

TEST_CASE("a joining thread that was moved from, joined or never started is destroyed at once") {
  std::atomic<int> ended{0};
  JoiningThread first = counted(ended);
  JoiningThread second = std::move(first);
  second.join();
  CHECK(ended.load() == 1);
  second.join();
  const JoiningThread none;
}
