#include "dtrain/stream/host/progress.hpp"

#include <doctest/doctest.h>
#include <sched.h>

#include <thread>

#include "support/expect_error.hpp"

namespace {

using dtrain::stream::host::decide;
using dtrain::stream::host::Progress;
using dtrain::stream::host::progress_from;

TEST_CASE("progress has three names, and its own name leads back to each") {
  for (const Progress progress : {Progress::automatic, Progress::thread, Progress::caller}) {
    CHECK(progress_from(dtrain::stream::host::name(progress)) == progress);
  }
}

TEST_CASE("an unknown progress is a usage error that names the possible ones") {
  for (const char* text : {"", "Thread", "threads", "inline"}) {
    CAPTURE(text);
    support::expect_error(dtrain::Errc::usage, "automatic, thread and caller", [&] { progress_from(text); });
  }
}

TEST_CASE("automatic progress takes a thread only where a core is free for it") {
  CHECK(decide(Progress::automatic, 4, 2) == Progress::thread);
  CHECK(decide(Progress::automatic, 2, 2) == Progress::caller);
  CHECK(decide(Progress::automatic, 1, 8) == Progress::caller);
  CHECK(decide(Progress::thread, 1, 8) == Progress::thread);
  CHECK(decide(Progress::caller, 64, 1) == Progress::caller);
}

TEST_CASE("cores are counted by affinity") {
  int cores = 0;
  std::thread pinned([&cores] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    cores = dtrain::stream::host::cores_by_affinity();
  });
  pinned.join();
  CHECK(cores == 1);
  CHECK(dtrain::stream::host::cores_by_affinity() >= 1);
}

}  // namespace
