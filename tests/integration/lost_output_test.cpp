// ctest: TIMEOUT 120
// A stdout or a log file that takes nothing more (a full disk, a reader that went away): the job goes on and says so.

#include "integration/prelude.hpp"

namespace {

/// Through a shell, which sets redirections and limits.
Result run_in_shell(const std::string& script) {
  return support::run("/bin/sh", {"-c", script});
}

/// How many lines of the launcher's stderr have a text.
long lines_with(const Result& result, const std::string& text) {
  const std::vector<std::string> lines = lines_of(result.error);
  return std::count_if(lines.begin(), lines.end(), [&](const std::string& line) { return contains(line, text); });
}

const std::string lost = "cannot write to ";
const std::string job = probe + " --nproc-per-node=2 '*:join' '*:lines:3000' '*:stderr:done'";

}  // namespace

TEST_CASE("a full disk under stdout is said once, with its file and why, and the job goes on") {
  const Result result = run_in_shell("exec " + job + " > /dev/full");
  INFO(result.error);
  support::check_ended(result, 0,
                       {"[0] done\n", "[1] done\n",
                        "dtrain: cannot write to stdout ('/dev/full'): No space left on device; the job goes "
                        "on, and what the ranks print there is lost from here on"});
  CHECK(lines_with(result, lost) == 1);
}

TEST_CASE("a reader of stdout that goes away is said once, and the job goes on") {
  const Result result = run_in_shell(job + " | head -n 1");
  INFO(result.error);
  CHECK_CONTAINS(result.error, "[0] done\n", "[1] done\n",
                 "dtrain: cannot write to stdout (a pipe): Broken pipe; the job goes on");
  CHECK(lines_with(result, lost) == 1);
  CHECK(lines_of(result.output).size() == 1);
}

TEST_CASE("a stdout at the limit of its size does not end the launcher") {
  const support::TemporaryFile file;
  const Result result = run_in_shell("ulimit -f 8; exec " + job + " > " + file.path);
  INFO(result.error);
  support::check_ended(result, 0, {"dtrain: cannot write to stdout ('" + file.path + "'): File too large"});
  CHECK(lines_with(result, lost) == 1);
  CHECK_CONTAINS(content(file.path), "] line 0 of ");
}

TEST_CASE("a full disk under --log-dir is said once, with its file and why, and the output goes on") {
  const TemporaryDirectory directory;
  for (const char* name : {"/rank-0.stdout", "/rank-1.stdout", "/rank-1.stderr"})
    REQUIRE(::symlink("/dev/full", (directory.path + name).c_str()) == 0);
  const Result result = run_in_shell("exec " + job + " --log-dir=" + directory.path);
  INFO(result.error);
  CHECK(result.exit_code == 0);
  CHECK(lines_of(result.output).size() == 6000);
  CHECK(lines_with(result, "No space left on device") == 1);
  CHECK_CONTAINS(result.error, "dtrain: writing " + directory.path + "/rank-",
                 ": No space left on device; the job goes on, and its output is shown here, but this file "
                 "and others of --log-dir may lack the rest of it");
  CHECK(!contains(result.output, "No space left"));
  CHECK(content(directory.path + "/rank-0.stderr") == "done\n");
}

TEST_CASE("flags that nobody can read are an error") {
  const Result result = run_in_shell("exec " + probe + " --help-launch > /dev/full");
  support::check_ended(result, 1,
                       {"dtrain: printing the launcher's flags on stdout ('/dev/full'): No space left on device"});
}

TEST_CASE("what a rank printed and nobody took is said by the rank itself") {
  const std::string example = DTRAIN_EXAMPLES_DIR "/hello_all_reduce";
  if (!std::filesystem::exists(example)) return dtrain_test::skip("the example hello_all_reduce is missing");
  const Result alone = run_in_shell("exec " + example + " --nproc-per-node=1 --in-process > /dev/full");
  CHECK(alone.exit_code == 0);
  CHECK(alone.error ==
        "dtrain: rank 0: its output on stdout ('/dev/full') is lost, at least in part: No space left on device\n");
  const Result job_of_two =
      run_in_shell("for rank in 0 1; do RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=" +
                   std::to_string(20'000 + ::getpid() % 10'000) + " " + example + " > /dev/full & done; wait");
  CHECK_CONTAINS(job_of_two.error, "dtrain: rank 0: its output on stdout ('/dev/full') is lost",
                 "dtrain: rank 1: its output on stdout ('/dev/full') is lost");
}
