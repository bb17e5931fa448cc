// ctest: TIMEOUT 180
// Debugging a rank: commands in front of workers (--wrap), a rank without a launcher (--in-process), workers' names.

#include "integration/prelude.hpp"
#include "support/elastic_output.hpp"
#include "support/worker_process.hpp"

namespace {

/// Stays the parent of what it starts, as strace and gdb do, and ends with its code.
const std::string forking = "--wrap=sh -c '\"$@\"; exit $?' --";

const std::string elastic = std::string(DTRAIN_TEST_PROGRAMS_DIR) + "/elastic_training";

/// The lines of one rank, which those of the others come between.
std::string lines_with_prefix(const std::string& prefix, const std::string& output) {
  std::istringstream lines(output);
  std::string of_rank;
  for (std::string line; std::getline(lines, line);)
    of_rank += line.starts_with(prefix) ? line + "\n" : "";
  return of_rank;
}

}  // namespace

TEST_CASE("workers have the program's own name and path, also those of a launcher that a loader runs") {
  const Result result = support::run(probe, {"--nproc-per-node=2", "*:name", "*:join"});
  support::check_printed(result, {"[0] name launch_probe\n", "[1] name launch_probe\n"});
  const std::string loader = "/lib64/ld-linux-x86-64.so.2";
  if (std::filesystem::exists(loader)) {
    const Result loaded = support::run(loader, {probe, "--nproc-per-node=2", "*:arguments", "*:join"});
    INFO(loaded.error);
    CHECK(loaded.exit_code == 0);
    CHECK_CONTAINS(lines_with_prefix("[1] ", loaded.output), "[1] argument " + probe + "\n[1] argument *:arguments\n");
  }
}

TEST_CASE("a program that was replaced while it runs goes on to start itself") {
  const support::TemporaryDirectory directory;
  const std::string copy = directory.path + "/launch_probe";
  std::filesystem::copy_file(probe, copy);
  const std::string other = directory.path + "/other";
  std::filesystem::copy_file("/bin/false", other);
  const Result result = support::run(copy, {"--max-restarts=1", "0@0:run:mv " + other + " " + copy, "0@0:exit:9",
                                            "*:environment:DTRAIN_ATTEMPT", "*:join"});
  INFO(result.error);
  CHECK(result.exit_code == 0);
  CHECK(result.output == "[0] DTRAIN_ATTEMPT=1\n");
}

TEST_CASE("--wrap puts a command in front of each worker, --wrap-rank in front of one") {
  const Result all = support::run(
      probe, {"--nproc-per-node=2", "--wrap=env WRAPPED='a b'", "*:environment:WRAPPED", "1:arguments", "*:join"});
  INFO(all.error);
  support::check_printed(all, {"[0] WRAPPED=a b\n", "[1] WRAPPED=a b\n"});
  CHECK_CONTAINS(lines_with_prefix("[1] ", all.output),
                 "[1] argument *:environment:WRAPPED\n[1] argument 1:arguments\n[1] argument *:join\n");
  const Result one = support::run(
      probe, {"--nproc-per-node=2", "--wrap", "env WRAPPED=yes", "--wrap-rank=1", "*:environment:WRAPPED", "*:join"});
  support::check_printed(one, {"[0] WRAPPED=(unset)\n", "[1] WRAPPED=yes\n"});
}

TEST_CASE("stdin goes to the rank that --wrap-rank names, for its debugger") {
  Program program(probe, {"--nproc-per-node=3", "--wrap=env", "--wrap-rank=1", "*:join", "*:cat", "*:stdout:done\n"});
  CHECK(program.wait_for("[0] done"));
  CHECK(program.wait_for("[2] done"));
  program.write_input("to be read\n");
  CHECK(program.wait_for("[1] to be read"));
  CHECK(program.finish().exit_code == 0);
}

TEST_CASE("a debugger's prompt is shown, whichever rank it is") {
  Program program(probe, {"--nproc-per-node=2", "--wrap=env", "--wrap-rank=1", "*:join", "1:stdout:(gdb) ", "*:cat"});
  CHECK(program.wait_for("[1] (gdb) "));
  program.write_input("continue\n");
  CHECK(program.finish().exit_code == 0);
}

TEST_CASE("mpirun's flag for the number of ranks is the program's, with a warning where one rank runs") {
  const std::string said = "-np 2 was passed to the program, which runs on 1 rank of this node; --nproc-per-node=N";
  const Result alone = support::run(probe, {"-np", "2", "*:arguments", "*:join"});
  support::check_printed(alone, {"[0] argument -np\n[0] argument 2\n"});
  CHECK_CONTAINS(alone.error, said);
  for (const std::vector<std::string>& quiet :
       {std::vector<std::string>{"--nproc-per-node=2", "-np", "2"}, {"--", "-np", "2"}, {"-np", "two"}}) {
    std::vector<std::string> arguments = quiet;
    arguments.push_back("*:join");
    const Result result = support::run(probe, arguments);
    CHECK(result.exit_code == 0);
    CHECK(!contains(result.error, "was passed to the program"));
  }
}

TEST_CASE("what cannot be wrapped is one sentence and exit code 2, before anything is started") {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases{
      {{"--wrap=no-such-program -x"}, "--wrap is to put 'no-such-program' in front of the workers"},
      {{"--wrap=env", "--wrap-rank=2", "--nproc-per-node=2"},
       "--wrap-rank=2 is no rank of this job, which has 2: 0 to 1"},
  };
  for (const auto& [flags, sentence] : cases) {
    std::vector<std::string> arguments = flags;
    arguments.push_back("*:stdout:started\n");
    const Result result = support::run(probe, arguments);
    CHECK(result.exit_code == 2);
    CHECK(result.output == "");
    CHECK_CONTAINS(result.error, sentence);
  }
}

TEST_CASE("a wrapper may stay the parent of its worker, whose exit code and last words come through it") {
  const Result well = support::run(probe, {"--nproc-per-node=3", forking, "*:join", "*:environment:DTRAIN_WRAPPED"});
  INFO(well.error);
  CHECK(well.exit_code == 0);
  CHECK(lines_of(well.output).size() == 3);
  CHECK_CONTAINS(well.output, "[2] DTRAIN_WRAPPED=(unset)\n");
  const Result failed = support::run(
      probe, {"--nproc-per-node=3", forking, "*:join", "1:stderr:it hurts here", "1:exit:42", "*:wait-for-failure"});
  support::check_ended(failed, 42, {"failed first: exit code 42", "dtrain:     it hurts here"});
}

TEST_CASE("signals reach a wrapped worker and not its wrapper, so that it may take its time") {
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1}) {
    CAPTURE(signal);
    const std::string mark = new_mark();
    const std::string number = std::to_string(signal);
    Program program(probe, {mark, "--nproc-per-node=2", forking, "*:say-signal:" + number, "*:join", "*:stdout:up\n",
                            "*:cat", "*:sleep:300", "*:stdout:last words\n"});
    support::require_up(program, 2);
    program.signal(signal);
    CHECK(program.wait_for("[0] got the signal"));
    CHECK(program.wait_for("[1] got the signal"));
    const Result result = program.finish();
    support::check_printed(result, {"[0] last words", "[1] last words"});
    CHECK(support::processes_with(mark).empty());
  }
}

TEST_CASE("no worker survives its wrapper or its launcher, whichever is killed") {
  for (const bool launcher : {true, false}) {
    CAPTURE(launcher);
    const std::string mark = new_mark();
    Program program(probe,
                    {mark, "--nproc-per-node=2", forking, "*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:60000"});
    program.close_input();
    support::require_up(program, 2);
    const std::vector<pid_t> wrappers = support::children_of(program.process());
    REQUIRE(wrappers.size() == 2);
    REQUIRE(::kill(launcher ? program.process() : wrappers[1], SIGKILL) == 0);
    CHECK(program.wait().exit_code == 137);
    CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
  }
}

TEST_CASE("a job that a wrapped worker starts is a job of its own") {
  const Result result =
      support::run(probe, {forking, "0:join", "0:run:" + probe + " --nproc-per-node=2 '*:environment:RANK' '*:join'"});
  INFO(result.error);
  CHECK(result.exit_code == 0);
  CHECK(lines_of(result.output).size() == 2);
  CHECK_CONTAINS(result.output, "[0] [0] RANK=0\n", "[0] [1] RANK=1\n");
}

TEST_CASE("a wrapped worker whose launcher is none of its ancestors says so instead of waiting for it") {
  const Result result = support::run(probe, {"0:stdout:started\n"},
                                     {{"DTRAIN_WRAPPED", "1"}, {"DTRAIN_RANK", "0"}, {"DTRAIN_LAUNCHER_PROCESS", "2"}});
  CHECK(result.exit_code == 2);
  CHECK(result.output == "");
  CHECK_CONTAINS(result.error, "process 2, the launcher of this worker, is none of its ancestors");
}

TEST_CASE("--in-process makes the process itself rank 0 of 1, without a launcher or a child") {
  Program program(
      probe,
      {"--nproc-per-node=1", "--in-process", "0:name", "0:arguments", "*:join", "*:stdout:up\n", "*:cat", "0:exit:7"},
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "nowhere"}});
  REQUIRE(program.wait_for("up\n"));
  CHECK(support::children_of(program.process()).empty());
  const Result result = program.finish();
  CHECK(result.exit_code == 7);
  CHECK_CONTAINS(result.output, "name launch_probe\n", "argument 0:name\nargument 0:arguments\n");
  CHECK(!contains(result.output, "--in-process"));
  CHECK(!contains(result.output, "[0]"));
  CHECK(result.error == "");
}

TEST_CASE("workers of an elastic job may be wrapped: one that is lost behind its wrapper is replaced") {
  std::vector<std::string> wrappers{"--wrap=env", forking};
  if (!support::find_program("strace").empty()) wrappers.push_back("--wrap=strace -f -o /dev/null --");
  for (const std::string& wrapper : wrappers) {
    CAPTURE(wrapper);
    const std::string mark = new_mark();
    Program job(elastic,
                {"--nproc-per-node=3", "--min-ranks=1", "--max-restarts=3", wrapper, mark, "steps=400", "log"});
    REQUIRE(job.wait_for("commit 20 attempt 1 size 3"));
    REQUIRE(::kill(support::process_of_worker(job.output(), 1), SIGKILL) == 0);
    const Result result = job.wait(support::soon(std::chrono::seconds(60)));
    support::check_ended(result, 0, {"worker 1 was lost: ", "another one starts in its place"});
    support::check_finished_training(result.output, 3);
    CHECK(support::count_of(result.error, "was lost: ") == 2);  // at once, and in the list
    CHECK(support::processes_with(mark).empty());
  }
}

TEST_CASE("in an elastic job --wrap-rank names the worker, whose replacement is wrapped, too") {
  const support::TemporaryFile file;
  Program job(elastic, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=3", "steps=100000", "log",
                        "--wrap=sh -c 'echo wrapped >> " + file.path + "; \"$@\"; exit $?' --", "--wrap-rank=1"});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 2"));
  CHECK(content(file.path) == "wrapped\n");
  REQUIRE(::kill(support::process_of_worker(job.output(), 1), SIGKILL) == 0);
  const auto trains_again = [&] {  // the replacement may come before the other worker has formed an attempt alone
    return contains(job.output(), "attempt 2 size 2") || contains(job.output(), "attempt 3 size 2");
  };
  for (const dtrain::Deadline deadline = support::soon(); !trains_again() && !deadline.passed();) {
    static_cast<void>(job.wait_for("no such line", dtrain::Deadline::after(std::chrono::milliseconds(5))));
  }
  REQUIRE(trains_again());
  CHECK(content(file.path) == "wrapped\nwrapped\n");
  job.signal(SIGTERM);
  CHECK(job.wait().exit_code == 128 + SIGTERM);
  const Result refused = support::run(elastic, {"--nproc-per-node=2", "--min-ranks=1", "--wrap=env", "--wrap-rank=2"});
  support::check_ended(refused, 2, {"--wrap-rank=2 is no worker of this launcher, which has 2: 0 to 1"});
}

TEST_CASE("a wrapped worker of an elastic job that is stopped is not killed: its debugger may have stopped it") {
  Program job(elastic, {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=3", forking, "steps=100000", "log"},
              {{"DTRAIN_LIVENESS_SECONDS", "1"}, {"DTRAIN_TIMEOUT_SECONDS", "2"}});
  REQUIRE(job.wait_for("commit 20 attempt 1 size 2"));
  const pid_t stopped = support::process_of_worker(job.output(), 1);
  REQUIRE(::kill(stopped, SIGSTOP) == 0);
  REQUIRE(job.wait_for("attempt 2 size 1"));
  CHECK(!job.wait_for("killed by its launcher", support::soon(std::chrono::seconds(4))));
  REQUIRE(::kill(stopped, SIGCONT) == 0);
  CHECK(job.wait_for("attempt 3 size 2"));
  job.signal(SIGTERM);
  CHECK(job.wait().exit_code == 128 + SIGTERM);
}

TEST_CASE("a wrapper that hides an elastic worker's process from its launcher is refused") {
  const Result allowed = support::run("/usr/bin/env", {"unshare", "--pid", "--fork", "true"});
  if (allowed.exit_code != 0) return dtrain_test::skip("a PID namespace cannot be made here: " + allowed.error);
  const Result result = support::run(
      elastic, {"--nproc-per-node=1", "--min-ranks=1", "steps=20", "--wrap=unshare --pid --fork --mount-proc --"});
  support::check_ended(result, 2, {"runs this worker in a process namespace"});
}

TEST_CASE("--help-launch lists what is for debugging") {
  const Result result = support::run(probe, {"--help-launch"});
  for (const char* flag : {"--wrap='CMD ARGS --'", "--wrap-rank=R", "--in-process"})
    CHECK_CONTAINS(result.output, flag);
}
