#include "dtrain/core/process/core_count.hpp"

#include <sched.h>
#include <stdlib.h>

#include <thread>

#include "unit/core/prelude.hpp"

namespace {

TEST_CASE("cores are counted by affinity") {
  int cores = 0;
  std::thread pinned([&cores] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &one);
    REQUIRE(sched_setaffinity(0, sizeof(one), &one) == 0);
    cores = dtrain::available_cores();
  });
  pinned.join();
  CHECK(cores == 1);
  CHECK(dtrain::available_cores() >= 1);
}

TEST_CASE("a launcher that binds its ranks says how many cores they have together") {
  const int own = dtrain::available_cores();
  const auto with = [](const char* text) {
    REQUIRE(::setenv("DTRAIN_NODE_CORES", text, 1) == 0);
    const int cores = dtrain::cores_of_all_ranks();
    REQUIRE(::unsetenv("DTRAIN_NODE_CORES") == 0);
    return cores;
  };
  CHECK(dtrain::cores_of_all_ranks() == own);
  CHECK(with("4096") == 4096);
  for (const char* nonsense : {"", "0", "-4", "many", "8x", "99999999999"}) {
    CAPTURE(nonsense);
    CHECK(with(nonsense) == own);
  }
}

}  // namespace
