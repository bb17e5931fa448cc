#include "dtrain/backend/message_passing/endpoint.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::message_passing::FramePool;
using dtrain::backend::message_passing::Routine;

/// What a routine's first parameter is, and a place where it can be suspended.
struct Place {
  FramePool pool;
  std::coroutine_handle<> waiter;
  std::set<const void*> frames_seen;

  FramePool& frames() noexcept { return pool; }

  struct Awaiter {
    Place& place;
    bool await_ready() const noexcept { return false; }
    void await_suspend(std::coroutine_handle<> handle) const {
      place.waiter = handle;
      place.frames_seen.insert(handle.address());
    }
    void await_resume() const noexcept {}
  };
  Awaiter pause() noexcept { return {*this}; }
};

Routine inner(Place& place, std::string text, int* ended) {
  struct Count {
    int* number;
    ~Count() { ++*number; }
  };
  const Count count{ended};
  co_await place.pause();
  if (text == "throw") throw std::runtime_error("inner threw");
}

Routine outer(Place& place, const std::string& text, int* ended) {
  for (int i = 0; i < 2; ++i) {
    Routine part = inner(place, text, ended);
    co_await part;
  }
}

const std::string plain = "plain";

TEST_CASE("a routine that ran before runs again in the same memory") {
  Place place;
  int ended = 0;
  for (int round = 0; round < 100; ++round) {
    const Routine routine = outer(place, plain, &ended);
    routine.resume();
    place.waiter.resume();
    CHECK_FALSE(routine.done());
    place.waiter.resume();
    CHECK(routine.done());
    routine.check();
  }
  CHECK(ended == 200);
  CHECK(place.frames_seen.size() == 1);
}

TEST_CASE("a routine destroyed where it is suspended destroys what it awaits, once") {
  Place place;
  int ended = 0;
  {
    const Routine routine = outer(place, plain, &ended);
    routine.resume();
    CHECK(ended == 0);
  }
  CHECK(ended == 1);
}

TEST_CASE("what a routine throws comes out where it is awaited, and at last out of check") {
  Place place;
  int ended = 0;
  const std::string text = "throw";
  const Routine routine = outer(place, text, &ended);
  routine.resume();
  place.waiter.resume();
  CHECK(routine.done());
  CHECK_THROWS_WITH(routine.check(), "inner threw");
  CHECK(ended == 1);
}

TEST_CASE("blocks of every size are apart, and are given out again") {
  FramePool pool;
  std::vector<void*> blocks;
  const std::size_t sizes[] = {1, 100, 128, 129, 1000, 8000, 9000, 20'000};
  for (const std::size_t bytes : sizes) {
    blocks.push_back(pool.take(bytes));
    std::memset(blocks.back(), static_cast<int>(bytes % 251), bytes);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CHECK(static_cast<unsigned char*>(blocks[i])[sizes[i] - 1] == sizes[i] % 251);
    FramePool::give_back(blocks[i]);
  }
  void* const again = pool.take(100);
  CHECK(std::find(blocks.begin(), blocks.end(), again) != blocks.end());
  FramePool::give_back(again);
}

}  // namespace
