#include "dtrain/stream/host/progress.hpp"

#include <sched.h>
#include <stdlib.h>

#include "unit/stream/prelude.hpp"

namespace {

TEST_CASE("progress has three names, and its own name leads back to each") {
  for (const Progress progress : {Progress::automatic, Progress::thread, Progress::caller})
    CHECK(progress_from(dtrain::stream::host::name(progress)) == progress);
}

TEST_CASE("an unknown progress is a usage error that names the possible ones") {
  for (const char* text : {"", "Thread", "threads", "inline"}) {
    CAPTURE(text);
    CHECK_ERROR(progress_from(text), dtrain::Errc::usage, "automatic, thread and caller");
  }
}

TEST_CASE("automatic progress takes a thread only where a core is free for it") {
  CHECK(decide(Progress::automatic, 4, 4, 2) == Progress::thread);
  CHECK(decide(Progress::automatic, 4, 2, 2) == Progress::thread);
  CHECK(decide(Progress::automatic, 3, 1, 2) == Progress::caller);
  CHECK(decide(Progress::automatic, 2, 2, 2) == Progress::caller);
  CHECK(decide(Progress::automatic, 1, 1, 8) == Progress::caller);
  CHECK(decide(Progress::thread, 1, 1, 8) == Progress::thread);
  CHECK(decide(Progress::caller, 64, 64, 1) == Progress::caller);
}

TEST_CASE("cores are counted by affinity") {
  int cores = 0;
  std::thread pinned([&cores] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    cores = dtrain::stream::host::available_cores();
  });
  pinned.join();
  CHECK(cores == 1);
  CHECK(dtrain::stream::host::available_cores() >= 1);
}

TEST_CASE("a launcher that binds its ranks says how many cores they have together") {
  const int own = dtrain::stream::host::available_cores();
  const auto with = [](const char* text) {
    REQUIRE(::setenv("DTRAIN_NODE_CORES", text, 1) == 0);
    const int cores = dtrain::stream::host::cores_of_all_ranks();
    REQUIRE(::unsetenv("DTRAIN_NODE_CORES") == 0);
    return cores;
  };
  CHECK(dtrain::stream::host::cores_of_all_ranks() == own);
  CHECK(with("4096") == 4096);
  for (const char* nonsense : {"", "0", "-4", "many", "8x", "99999999999"}) {
    CAPTURE(nonsense);
    CHECK(with(nonsense) == own);
  }
}

}  // namespace
