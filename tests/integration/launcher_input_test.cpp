// ctest: TIMEOUT 120
// The stdin of launch::PerNode's workers, and unfinished lines, as scripts and users meet them.

#include <fcntl.h>
#include <stdlib.h>

#include "integration/prelude.hpp"

namespace {

Result shell(const std::string& script) {
  return support::run("/bin/sh", {"-c", "set -eu; train=" + probe + "; " + script});
}

}  // namespace

TEST_CASE("a script's loop over the lines of a file or pipe starts a job for each") {
  const support::TemporaryFile file;
  std::ofstream(file.path) << "a\nb\nc\n";
  const std::string loop = "while read host; do $train --nproc-per-node=2 '*:join' \"0:stdout:$host\n\"; done";
  for (const std::string& script : {loop + " < " + file.path, "cat " + file.path + " | " + loop}) {
    CAPTURE(script);
    const Result result = shell(script);
    CHECK(result.exit_code == 0);
    CHECK(result.output == "[0] a\n[0] b\n[0] c\n");
    CHECK(result.error == "");
  }
}

TEST_CASE("rank 0 reads what it wants of the launcher's stdin, and leaves the rest to the script") {
  const support::TemporaryFile file;
  std::ofstream(file.path) << "a\nb\nc\nd\n";
  const Result result =
      shell("while read host; do echo \"host $host\"; $train --nproc-per-node=2 '*:join' 0:read-line '1:cat'; done < " +
            file.path);
  CHECK(result.exit_code == 0);
  CHECK(result.output == "host a\n[0] read b\nhost c\n[0] read d\n");
}

TEST_CASE("a restarted rank 0 reads on where the one before it stopped") {
  const Result result = shell("printf 'a\nb\n' | $train --max-restarts=1 0:read-line '*:join' 0@0:exit:3");
  CHECK(result.exit_code == 0);
  CHECK(result.output == "[0] read a\n[0] read b\n");
}

TEST_CASE("lines that are typed on a terminal reach rank 0, and so does their end") {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  const std::string device = ::ptsname(terminal);
  Program program("/bin/sh", {"-c", "exec " + probe + " --nproc-per-node=2 '*:join' '*:stdout:up\n' 0:cat <" + device});
  support::require_up(program, 2);
  REQUIRE(::write(terminal, "typed\n", 6) == 6);
  CHECK(program.wait_for("[0] typed\n"));
  REQUIRE(::write(terminal, "\x04", 1) == 1);  // Ctrl-D
  CHECK(program.wait().exit_code == 0);
  ::close(terminal);
}

TEST_CASE("a prompt of rank 0 is shown before its answer is there") {
  Program program(probe, {"--nproc-per-node=2", "*:join", "0:stdout:Name? ", "0:read-line", "*:stdout:done\n"});
  CHECK(program.wait_for("[0] Name? "));
  program.write_input("x\n");
  const Result result = program.wait();
  support::check_printed(result, {"[0] done\n", "[1] done\n"});
}
