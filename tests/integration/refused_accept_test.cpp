// ctest: TIMEOUT 120
// accept() that keeps failing, as under a security policy: tests/programs/deny makes it fail for launcher and ranks.

#include "dtrain/core/cause.hpp"
#include "integration/prelude.hpp"

namespace {

const std::string limits = DTRAIN_TEST_PROGRAMS_DIR "/limits_probe";  // joins by dtrain::run, and ends
const std::string deny = DTRAIN_TEST_PROGRAMS_DIR "/deny";

std::vector<std::string> with_failing_accept(int error, const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"accept4", std::to_string(error), probe};
  all.insert(all.end(), arguments.begin(), arguments.end());
  return all;
}

/// Whether seccomp filters can be installed here; else the test case is skipped.
bool can_deny() {
  const Result result = support::run(deny, {"accept4", "1", "/bin/true"});
  if (result.exit_code != 0) {
    dtrain_test::skip("this machine installs no seccomp filter: " + result.error);
  }
  return result.exit_code == 0;
}

}  // namespace

TEST_CASE("a launcher that no policy lets accept ends at once, with a sentence") {
  if (!can_deny()) return;
  for (const int error : {EPERM, EACCES, ENOSYS}) {
    const Result result = support::run(deny, with_failing_accept(error, {"--nproc-per-node=2", "*:join"}));
    INFO(result.error);
    support::check_ended(result, 2,
                         {"the store cannot go on: accepting a connection at 127.0.0.1:",
                          "; a security policy of this machine (SELinux, AppArmor, a container's seccomp profile) "
                          "forbids it: allow this program to accept connections"});
    CHECK(result.time < 2 * two_seconds);
  }
}

TEST_CASE("so does a rank that hosts the store, and the launcher of the first of several nodes") {
  if (!can_deny()) return;
  const Result rank = support::run(deny, with_failing_accept(EPERM, {"--in-process", "*:join"}));
  INFO(rank.error);
  support::check_ended(rank, dtrain::exit_code_job_failed,
                       {"the store cannot go on: accepting a connection at 127.0.0.1:"});
  CHECK(rank.time < 2 * two_seconds);
  const Result launcher =
      support::run(deny,
                   with_failing_accept(EPERM, {"--nnodes=2", "--node-rank=0", "--master-addr=127.0.0.1",
                                               "--master-port=" + std::to_string(support::free_port()), "*:join"}),
                   {{"DTRAIN_SECRET", "0123456789abcdef0123456789abcdef"}});
  INFO(launcher.error);
  support::check_ended(launcher, dtrain::exit_code_job_failed,
                       {"the store cannot go on: accepting a connection at 127.0.0.1:"});
  CHECK(launcher.time < 2 * two_seconds);
}

TEST_CASE("a failure that may pass is waited out with one warning, until the job's deadline") {
  if (!can_deny()) return;
  for (const int error : {EPROTO, ENFILE, ECONNABORTED, EOPNOTSUPP}) {
    const Result result = support::run(deny, with_failing_accept(error, {"--nproc-per-node=2", "*:join"}),
                                       {{"DTRAIN_TIMEOUT_SECONDS", "2"}});
    INFO(result.error);
    CHECK(result.exit_code != 0);
    CHECK(support::count_of(result.error, "accepting a connection at 127.0.0.1:") == 1);
    CHECK_CONTAINS(result.error, "only no rank of 2 joined, ranks 0-1 did not");
    CHECK(result.time < 3 * two_seconds);
  }
}

TEST_CASE("a rank that no policy lets connect ends at once, with a sentence") {
  if (!can_deny()) return;
  const Result result = support::run(deny, {"connect", std::to_string(EPERM), limits, "--nproc-per-node=2"});
  INFO(result.error);
  support::check_ended(result, 1,
                       {"connecting to 127.0.0.1 port ",
                        "Operation not permitted; a security policy or a firewall of this machine forbids it: "
                        "allow this program to connect"});
  CHECK(result.time < 2 * two_seconds);
}

TEST_CASE("a launcher that cannot accept stops at SIGTERM") {
  if (!can_deny()) return;
  Program program(deny, with_failing_accept(EPROTO, {"--nproc-per-node=2", "*:join"}));
  REQUIRE(program.wait_for("accepting a connection at 127.0.0.1:"));
  program.signal(SIGTERM);
  const Result result = program.wait();
  INFO(result.error);
  CHECK(result.exit_code == 128 + SIGTERM);
}
