#include "dtrain/launch/configuration/core_binding.hpp"

#include <sched.h>

#include "unit/launch/prelude.hpp"

namespace {

using Shares = std::vector<Cpus>;

Cpus first(int count) {
  Cpus cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

}  // namespace

TEST_CASE("workers get cores of their own, as many each, in the order of the CPUs") {
  const Machine machine;
  CHECK(cpus_of_workers(Binding::automatic, 2, first(2), machine.files()) == Shares{{0}, {1}});
  CHECK(cpus_of_workers(Binding::automatic, 2, first(8), machine.files()) == Shares{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(cpus_of_workers(Binding::core, 3, {2, 5, 7, 8, 9}, machine.files()) == Shares{{2}, {5, 7}, {8, 9}});
}

TEST_CASE("workers share no core's hyper-threads while the cores suffice") {
  const Machine machine;
  machine.has_hyper_threads(4);
  CHECK(cpus_of_workers(Binding::automatic, 2, first(8), machine.files()) == Shares{{0, 1, 4, 5}, {2, 3, 6, 7}});
  CHECK(cpus_of_workers(Binding::automatic, 4, first(8), machine.files()) == Shares{{0, 4}, {1, 5}, {2, 6}, {3, 7}});
  CHECK(cpus_of_workers(Binding::automatic, 5, first(8), machine.files()) == Shares{{0}, {1, 4}, {5}, {2, 6}, {3, 7}});
  CHECK(cpus_of_workers(Binding::automatic, 8, first(8), machine.files()) ==
        Shares{{0}, {4}, {1}, {5}, {2}, {6}, {3}, {7}});
}

TEST_CASE("a worker's cores are of one NUMA node where the workers divide evenly") {
  const Machine machine;
  machine.has_node(0, "0,2,4,6");
  machine.has_node(1, "1,3,5,7");
  CHECK(cpus_of_workers(Binding::automatic, 4, first(8), machine.files()) == Shares{{0, 2}, {4, 6}, {1, 3}, {5, 7}});
  CHECK(cpus_of_workers(Binding::numa, 4, first(8), machine.files()) ==
        Shares{{0, 2, 4, 6}, {0, 2, 4, 6}, {1, 3, 5, 7}, {1, 3, 5, 7}});
  CHECK(cpus_of_workers(Binding::numa, 1, first(8), machine.files()) == Shares{first(8)});
  CHECK(cpus_of_workers(Binding::numa, 2, {0, 1, 2}, machine.files()) == Shares{{0, 2}, {1}});
}

TEST_CASE("files of the system that say nothing, or nonsense, change nothing") {
  const Machine machine;
  machine.has_node(0, "0-,x,4-1,-3");
  CHECK(cpus_of_workers(Binding::numa, 2, first(4), machine.files()) == Shares{first(4), first(4)});
  machine.has_node(1, "0-99999999999999999999");
  CHECK(cpus_of_workers(Binding::core, 2, first(4), machine.files()) == Shares{{0, 1}, {2, 3}});
}

TEST_CASE("automatic binding leaves alone one worker, and more workers than CPUs") {
  CHECK(cpus_of_workers(Binding::automatic, 1, first(8)).empty());
  CHECK(cpus_of_workers(Binding::automatic, 3, first(2)).empty());
  CHECK(cpus_of_workers(Binding::none, 2, first(8)).empty());
  CHECK(cpus_of_workers(Binding::numa, 2, {}).empty());
  CHECK_ERROR(cpus_of_workers(Binding::core, 3, first(2)), dtrain::Errc::usage, "3 workers may use 2 CPUs");
}

TEST_CASE("a binding has four names, and any other is a usage error") {
  using dtrain::launch::binding_from;
  CHECK(binding_from("auto") == Binding::automatic);
  CHECK(binding_from("core") == Binding::core);
  CHECK(binding_from("numa") == Binding::numa);
  CHECK(binding_from("none") == Binding::none);
  CHECK_ERROR(binding_from("cores"), dtrain::Errc::usage, "none of auto, core, numa and none");
}

TEST_CASE("CPUs are the process's own, and written as the kernel writes them") {
  cpu_set_t own;
  REQUIRE(::sched_getaffinity(0, sizeof own, &own) == 0);
  const Cpus cpus = dtrain::allowed_cpus();
  CHECK(cpus.size() == static_cast<std::size_t>(CPU_COUNT(&own)));
  for (const int cpu : cpus) {
    CHECK(CPU_ISSET(static_cast<std::size_t>(cpu), &own));
  }
  CHECK(text_of({0, 1, 2, 5, 7, 8}) == "0-2,5,7-8");
  CHECK(text_of({}) == "");
}

TEST_CASE("a system that refuses to bind ends what the user asked for, and not what is automatic") {
  const Shares both{{0}, {1}};
  Shares cpus = both;
  CHECK(dtrain::launch::drop_refused_binding(cpus, Binding::core, 0).empty());
  CHECK(cpus == both);
  CHECK(dtrain::launch::drop_refused_binding(cpus, Binding::automatic, EPERM) ==
        "workers are not bound to CPUs: sched_setaffinity: Operation not permitted");
  CHECK(cpus.empty());
  CHECK(dtrain::launch::drop_refused_binding(cpus, Binding::core, EPERM).empty());  // nothing was to be bound
  cpus = both;
  CHECK_THROWS_WITH_AS(dtrain::launch::drop_refused_binding(cpus, Binding::numa, EACCES),
                       "binding workers to CPUs for --bind=numa by sched_setaffinity: Permission denied; let the "
                       "container's policy (seccomp) allow this system call, or leave --bind out",
                       dtrain::Error);
  CHECK(cpus == both);
}

TEST_CASE("a system without a policy lets threads be bound, and the question changes nothing") {
  const Cpus before = dtrain::allowed_cpus();
  CHECK(dtrain::cpu_binding_error() == 0);
  CHECK(dtrain::allowed_cpus() == before);
}
