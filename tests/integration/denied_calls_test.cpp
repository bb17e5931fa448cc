// ctest: TIMEOUT 120
// A sanitizer's own start needs the calls that are denied here (sched_getaffinity).
// ctest: LABELS no-asan no-tsan
// A launcher to which the system refuses a system call, as the policy of a container may: each call has a replacement,
// or a sentence that names it. tests/programs/deny sets the policy.

#include "integration/prelude.hpp"

namespace {

const std::string deny = DTRAIN_TEST_PROGRAMS_DIR "/deny";

/// @param error an errno; the job ends at once, so that a launcher that waits for ever fails the test
Result run_without(const std::string& system_call, int error, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {system_call, std::to_string(error), probe});
  return support::run(deny, arguments);
}

/// The text without the lines of libnuma, which Debian 13's MPI brings along, and which says that it misses a call.
std::string without_libnuma(const std::string& text) {
  std::string kept;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size() - 1) + 1;
    const std::string line = text.substr(begin, end - begin);
    if (!contains(line, "libnuma: Warning")) kept += line;
    begin = end;
  }
  return kept;
}

/// Whether this system has such filters; an emulator may not.
bool can_deny() {
  return support::run(deny, {"mlock", "1", "/bin/true"}).exit_code == 0;
}

}  // namespace

TEST_CASE("what a launcher can do without, it does without") {
  if (!can_deny()) return dtrain_test::skip("this system has no seccomp filters");
  for (const std::string call : {"sched_setaffinity", "sched_getaffinity", "prlimit64", "pidfd_open", "close_range",
                                 "set_mempolicy", "timerfd_create", "tgkill", "statx"}) {
    for (const int error : {EPERM, ENOSYS}) {
      CAPTURE(call);
      CAPTURE(error);
      const Result result = run_without(call, error, {"--nproc-per-node=2", "*:join", "*:stdout:here\n"});
      CHECK(result.exit_code == 0);
      CHECK(without_libnuma(result.error) == "");
      CHECK_CONTAINS(result.output, "[0] here\n", "[1] here\n");
    }
  }
}

TEST_CASE("what a launcher cannot do without is named, and no worker is left") {
  if (!can_deny()) return dtrain_test::skip("this system has no seccomp filters");
  const std::vector<std::pair<std::string, std::string>> cases{
      {"setpgid", "starting " + probe + ": setpgid: Operation not permitted"},
      {"prctl", "starting " + probe + ": prctl(PR_SET_PDEATHSIG): Operation not permitted"},
      {"signalfd4", "creating a descriptor for signals (signalfd): Operation not permitted"},
      {"waitid", "asking which workers have ended (waitid): Operation not permitted"},
  };
  for (const auto& each : cases) {
    const std::string& call = each.first;
    CAPTURE(call);
    const std::string mark = new_mark();
    support::check_ended(run_without(call, EPERM, {mark, "--nproc-per-node=2", "*:join"}), 2, {each.second});
    CHECK(support::all_gone(mark, support::soon()));
  }
}

TEST_CASE("a binding that the user asked for is an error where the system refuses it, and says so at the start") {
  if (!can_deny()) return dtrain_test::skip("this system has no seccomp filters");
  for (const std::string binding : {"core", "numa"}) {
    const Result result =
        run_without("sched_setaffinity", EPERM, {"--nproc-per-node=1", "--bind=" + binding, "*:stdout:started"});
    support::check_ended(result, 2,
                         {"binding workers to CPUs for --bind=" + binding +
                          " by sched_setaffinity: Operation not permitted; let the container's policy"});
    CHECK(result.output == "");
  }
}
