// ctest: TIMEOUT 60
// launch::PerNode as the first process of a container.

#include "integration/prelude.hpp"

using support::zombies_of;

TEST_CASE("as PID 1 the launcher reaps what nobody else does") {
  const Result allowed = support::run("/usr/bin/env", {"unshare", "--pid", "--fork", "true"});
  if (allowed.exit_code != 0) return dtrain_test::skip("a PID namespace cannot be made here: " + allowed.error);
  const std::string mark = new_mark();
  Program program("/usr/bin/env", {"unshare", "--pid", "--fork", probe, mark, "--nproc-per-node=2", "*:join",
                                   "*:zombie", "*:sleep:300", "*:stdout:up\n", "*:cat"});
  REQUIRE(program.wait_for("[0] up"));
  pid_t launcher = 0;
  for (const pid_t process : support::processes_with(mark)) {
    launcher = contains(content("/proc/" + std::to_string(process) + "/status"),
                        "NSpid:\t" + std::to_string(process) + "\t1\n")
                   ? process
                   : launcher;
  }
  REQUIRE(launcher != 0);
  const dtrain::Deadline reaped = support::soon();
  while (zombies_of(launcher) != 0 && !reaped.passed())
    ::usleep(2000);
  CHECK(zombies_of(launcher) == 0);
  CHECK(program.finish().exit_code == 0);
  // A signal reaches the workers although the kernel keeps it from a PID 1 that does not ask for it.
  Program told("/usr/bin/env", {"unshare", "--pid", "--fork", "--kill-child", probe, mark, "--nproc-per-node=2",
                                "*:join", "*:stdout:up\n", "*:sleep:60000"});
  support::require_up(told, 2);
  for (const pid_t process : support::processes_with(mark)) {
    if (contains(content("/proc/" + std::to_string(process) + "/status"), "\t1\n")) {
      ::kill(process, SIGTERM);
    }
  }
  CHECK(told.wait().exit_code == 128 + SIGTERM);
  CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
}
