// ctest: TIMEOUT 240 RUN_SERIAL ON
// What launch::PerNode promises, with real processes: tests/programs/launch_probe is launcher and workers.

#include <stdlib.h>
#include <sys/ioctl.h>

#include "dtrain/core/process/cpu_affinity.hpp"
#include "integration/prelude.hpp"

using support::below;

namespace {

int open_terminal() {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
  REQUIRE(terminal >= 0);
  REQUIRE(::grantpt(terminal) == 0);
  REQUIRE(::unlockpt(terminal) == 0);
  return terminal;
}

/// What was written to the terminal; closes it. @param held its other end, open until the programs there have ended
std::string content_of(int terminal, int held) {
  std::string shown(65536, '\0');
  const ssize_t count = ::read(terminal, shown.data(), shown.size());
  REQUIRE(count > 0);
  shown.resize(static_cast<std::size_t>(count));
  ::close(held);
  ::close(terminal);
  return shown;
}

}  // namespace

TEST_CASE("workers that leave and return 0 are a success, with one prefixed line each") {
  const Result result = support::run(probe, {"--nproc-per-node=3", "*:join", "*:stdout:here\n", "*:stdout:no end"});
  support::check_quiet(result);
  for (const std::string rank : {"0", "1", "2"})
    CHECK_CONTAINS(result.output, "[" + rank + "] here\n", "[" + rank + "] no end\n");
  CHECK(lines_of(result.output).size() == 6);
}

TEST_CASE("workers get the whole identity, and nothing that describes the launcher") {
  const Result result =
      support::run(probe,
                   {"--nproc_per_node", "2", "1:environment:DTRAIN_RANK", "1:environment:DTRAIN_WORLD_SIZE",
                    "1:environment:DTRAIN_LOCAL_RANK", "1:environment:DTRAIN_NODE_COUNT", "1:environment:RANK",
                    "1:environment:LOCAL_WORLD_SIZE", "1:environment:MASTER_ADDR", "1:environment:PMI_RANK",
                    "1:environment:OMPI_COMM_WORLD_RANK", "1:environment:DTRAIN_STDOUT_IS_TERMINAL",
                    "1:environment:OMP_NUM_THREADS", "*:join"},
                   {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}, {"OMP_NUM_THREADS", "5"}});
  CHECK(result.exit_code == 0);
  for (const std::string expected :
       {"DTRAIN_RANK=1", "DTRAIN_WORLD_SIZE=2", "DTRAIN_LOCAL_RANK=1", "DTRAIN_NODE_COUNT=1", "RANK=1",
        "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1", "PMI_RANK=(unset)", "OMPI_COMM_WORLD_RANK=(unset)",
        "DTRAIN_STDOUT_IS_TERMINAL=0", "OMP_NUM_THREADS=5"}) {
    CAPTURE(expected);
    CHECK_CONTAINS(result.output, "[1] " + expected + "\n");
  }
}

TEST_CASE("a program sees its own arguments only, and all that follows --") {
  const Result result = support::run(probe, {"--nproc-per-node", "1", "--epochs=3", "0:arguments", "--log-level", "x",
                                             "0:join", "--", "--nnodes=7", "--"});
  CHECK(result.exit_code == 0);
  CHECK(result.output == "[0] argument " + probe +
                             "\n[0] argument --epochs=3\n[0] argument 0:arguments\n[0] argument --log-level\n"
                             "[0] argument x\n[0] argument 0:join\n[0] argument --nnodes=7\n[0] argument --\n");
}

TEST_CASE("bad command lines and surroundings are one sentence and exit code 2") {
  const integration::TakenPort taken;
  const std::vector<std::pair<std::string, std::string>> cases{
      {"--nproc-per-nod=2", "did you mean --nproc-per-node"},
      {"--nproc-per-node=0", "--nproc-per-node='0' is not a number of workers; give 1 or more, or auto"},
      {"--nproc-per-node=many", "--nproc-per-node='many' is not a number of workers; give 1 or more, or auto"},
      {"--nproc-per-node=99999", "from 1 to 4096"},
      {"--nproc-per-node", "has no value"},
      {"--nnodes=2", "--nnodes"},
      {"--nnodes=1:4", "range"},
      {"--node-rank=1", "--nnodes"},
      {"--max-restarts=some", "--max-restarts='some'"},
      {"--master-port=70000", "--master-port='70000'"},
      {"--master-port=" + taken.number, taken.number},
      {"--log-dir=/proc/no/such", "--log-dir"},
  };
  for (const auto& each : cases) {
    const std::string& argument = each.first;
    const std::string& expected = each.second;
    CAPTURE(argument);
    const std::string mark = new_mark();
    const Result result = support::run(probe, {mark, "*:join", argument}, {{"MASTER_ADDR", "127.0.0.1"}});
    CHECK(result.exit_code == 2);
    CHECK(result.output == "");
    CHECK_CONTAINS(result.error, expected);
    CHECK(lines_of(result.error).size() == 1);
    CHECK(support::processes_with(mark).empty());
  }
  for (const auto& [name, value] : std::vector<std::pair<std::string, std::string>>{
           {"DTRAIN_TIMEOUT_SECONDS", "soon"}, {"DTRAIN_LOG", "abc"}, {"DTRAIN_GRACE_SECONDS", "-1"}}) {
    support::check_ended(support::run(probe, {"0:join"}, {{name, value}}), 2, {name + "='" + value + "'"});
  }
}

TEST_CASE("--help-launch lists the launcher's flags and starts nothing") {
  const Result result = support::run(probe, {"--help-launch", "*:stdout:started\n"});
  support::check_printed(result, {"Usage: " + probe + " [launcher flags] [your flags]\n", "--nproc-per-node"});
  CHECK(!contains(result.output, "[0]"));
}

TEST_CASE("the launcher names a variable that dtrain does not read once, and its workers do not") {
  const std::string line =
      "dtrain: DTRAIN_TIMEOUT_SECOND is not a variable of dtrain; did you mean DTRAIN_TIMEOUT_SECONDS?\n";
  const Program::Variables variables{{"DTRAIN_TIMEOUT_SECOND", "5"}, {"DTRAIN_USER_EPOCHS", "3"}};
  const Result result = support::run(probe, {"--nproc-per-node=2", "*:join"}, variables);
  CHECK(result.exit_code == 0);
  CHECK(result.error == line);
  const Result refused = support::run(probe, {"--nnodes=2", "--node-rank=1", "--master-addr=127.0.0.1"}, variables);
  support::check_ended(refused, 2, {line, "need a secret that they share"});
}

TEST_CASE("the first failing worker's exit code is the launcher's, and its last words are repeated") {
  const Result result = support::run(
      probe, {"--nproc-per-node=3", "*:join", "1:stderr:it hurts here", "1:exit:42", "*:wait-for-failure"});
  support::check_ended(result, 42,
                       {"dtrain: rank 1 on host ", "failed first: exit code 42", "dtrain:     it hurts here",
                        "with exit code 75: ranks 0 and 2", "[0] cause: rank 1 on host "});
}

TEST_CASE("an exit code 0 before leaving is a loss") {
  const Result result = support::run(probe, {"--nproc-per-node=2", "*:join", "1:exit:0", "*:wait-for-failure"});
  support::check_ended(result, 1, {"rank 1 on host ", "exit code 0 before it had left"});
}

TEST_CASE("a non-zero exit code after leaving is a failure") {
  const Result result = support::run(probe, {"--nproc-per-node=2", "*:join", "*:leave", "1:exit:3"});
  CHECK(result.exit_code == 3);
}

TEST_CASE("workers that failed because of another are never the cause, whichever ends first") {
  // Rank 0 reports and then takes its time to end, so that the first to end is rank 1, with 75.
  const Result result = support::run(
      probe, {"--nproc-per-node=2", "*:join", "1:wait-for-failure", "0:sleep:20", "0:report:the cause itself"});
  support::check_ended(result, 1, {"rank 0 on host ", "[1] cause: rank 0 on host here failed: the cause itself"});
  const Result only = support::run(probe, {"--nproc-per-node=2", "*:join", "*:sleep:50", "*:exit:75"});
  CHECK(only.exit_code == 75);
}

TEST_CASE("siblings that ignore SIGTERM are killed, and the job is over within two seconds") {
  const std::string mark = new_mark();
  Program program(
      probe, {mark, "--nproc-per-node=3", "*:join", "*:ignore:15", "0:stdout:falls\n", "0:exit:9", "*:sleep:60000"});
  program.close_input();
  REQUIRE(program.wait_for("[0] falls"));
  const support::Stopwatch since_fallen;
  CHECK(program.wait().exit_code == 9);
  CHECK(since_fallen.elapsed() < two_seconds);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("a worker that has moved to another process group is killed all the same") {
  const std::string mark = new_mark();
  const Result result = support::run(probe, {mark, "--nproc-per-node=2", "0:ignore:15", "0:regroup", "*:join",
                                             "1:sleep:100", "1:exit:3", "0:sleep:60000"});
  CHECK(result.exit_code == 3);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("kill -9 of a worker at any moment ends the job within two seconds, leaving nobody") {
  std::mt19937 random(7);
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const std::string mark = new_mark();
    const support::TemporaryFile file;
    const unsigned victim = below(random, 3);
    Program program(probe, {mark, "--nproc-per-node=3", std::to_string(victim) + ":process:" + file.path, "*:join",
                            "*:lines:2000", "*:wait-for-failure"});
    const dtrain::Deadline deadline = support::soon();
    while (content(file.path).empty() && !deadline.passed())
      ::usleep(500);
    ::usleep(below(random, 30000));
    REQUIRE(!content(file.path).empty());
    REQUIRE(::kill(static_cast<pid_t>(std::stoi(content(file.path))), SIGKILL) == 0);
    const support::Stopwatch since_killed;
    const Result result = program.wait();
    CHECK(since_killed.elapsed() < two_seconds);
    support::check_ended(result, 137, {"rank " + std::to_string(victim) + " on host ", "killed by signal 9 (SIGKILL)"});
    CHECK(support::processes_with(mark).empty());
  }
}

TEST_CASE("kill -9 of the launcher at any moment leaves no worker") {
  std::mt19937 random(11);
  for (int round = 0; round < 20; ++round) {
    CAPTURE(round);
    const std::string mark = new_mark();
    Program program(probe, {mark, "--nproc-per-node=4", "*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:60000"});
    ::usleep(below(random, 40000));
    program.signal(SIGKILL);
    CHECK(program.wait().exit_code == 137);
    CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
  }
}

TEST_CASE("SIGTERM and SIGINT reach the workers, which may take their time") {
  for (const int signal : {SIGTERM, SIGINT}) {
    const std::string mark = new_mark();
    Program program(probe, {mark, "--nproc-per-node=2", "*:join", "*:on-term:21", "*:stdout:up\n", "*:sleep:60000"});
    support::require_up(program, 2);
    program.signal(signal);
    const Result result = program.wait();
    support::check_ended(result, signal == SIGTERM ? 21 : 128 + SIGINT,
                         {signal == SIGTERM ? "SIGTERM was forwarded" : "SIGINT was forwarded"});
    CHECK(support::processes_with(mark).empty());
  }
}

TEST_CASE("a second signal kills workers that do not end, after a second") {
  const std::string mark = new_mark();
  Program program(
      probe, {mark, "--nproc-per-node=2", "*:join", "*:ignore:15", "*:ignore:2", "*:stdout:up\n", "*:sleep:60000"});
  support::require_up(program, 2);
  program.signal(SIGTERM);
  ::usleep(100000);
  CHECK(support::processes_with(mark).size() == 3);
  program.signal(SIGINT);
  const support::Stopwatch since_second;
  const Result result = program.wait();
  support::check_ended(result, 137, {"the launcher kills what has not ended after SIGTERM: ranks 0-1\n"});
  CHECK(since_second.elapsed() < two_seconds);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("the other signals are forwarded and stop nothing by themselves") {
  Program program(probe, {"--nproc-per-node=2", "*:join", "*:ignore:10", "*:stdout:up\n", "*:cat"});
  support::require_up(program, 2);
  program.signal(SIGUSR1);
  program.write_input("still here\n");
  CHECK(program.wait_for("[0] still here"));
  CHECK(program.finish().exit_code == 0);
  Program fatal(probe, {"--nproc-per-node=2", "--max-restarts=5", "*:join", "*:stdout:up\n", "*:sleep:60000"});
  support::require_up(fatal, 2);
  fatal.signal(SIGUSR2);
  CHECK(fatal.wait().exit_code == 128 + SIGUSR2);  // and it is not started again
}

TEST_CASE("workers of a launcher that was started with SIGTERM blocked end at SIGTERM") {
  sigset_t blocked;
  sigset_t before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  REQUIRE(::pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
  Program program(probe, {"--nproc-per-node=2", "*:join", "*:stdout:up\n", "*:sleep:60000"});
  REQUIRE(::pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
  support::require_up(program, 2);
  program.signal(SIGTERM);
  CHECK(program.wait().exit_code == 128 + SIGTERM);
}

TEST_CASE("a job that was stopped for longer than the liveness time goes on") {
  const support::TemporaryFile file;
  Program program(probe, {"--nproc-per-node=2", "0:process:" + file.path, "*:join", "*:stdout:up\n", "*:cat"},
                  {{"DTRAIN_LIVENESS_SECONDS", "1"}});
  support::require_up(program, 2);
  program.signal(SIGTSTP);
  CHECK(reaches_state(program.process(), "T"));
  CHECK(reaches_state(static_cast<pid_t>(std::stoi(content(file.path))), "T"));
  ::usleep(2000000);
  program.signal(SIGCONT);
  const Result result = program.finish();
  support::check_quiet(result);
}

TEST_CASE("what the launcher ignored of its environment is said") {
  const Result result =
      support::run(probe, {"0:join"}, {{"SLURM_JOB_ID", "7"}, {"SLURM_JOB_NUM_NODES", "4"}, {"SLURM_NNODES", "4"}});
  support::check_ended(result, 0, {"dtrain: Slurm job of 4 nodes"});
}

TEST_CASE("SIGTSTP stops the workers and the launcher, SIGCONT lets all go on") {
  const support::TemporaryFile file;
  Program program(probe, {"--nproc-per-node=1", "0:process:" + file.path, "*:stdout:up\n", "*:cat"});
  REQUIRE(program.wait_for("[0] up"));
  const auto worker = static_cast<pid_t>(std::stoi(content(file.path)));
  program.signal(SIGTSTP);
  CHECK(reaches_state(program.process(), "T"));
  CHECK(reaches_state(worker, "T"));
  program.signal(SIGCONT);
  CHECK(reaches_state(worker, "RS"));
  program.write_input("on we go\n");
  CHECK(program.wait_for("[0] on we go"));
}

TEST_CASE("stdin goes to rank 0, and the others see its end at once") {
  Program program(probe, {"--nproc-per-node=3", "*:join", "*:cat", "*:stdout:done\n"});
  CHECK(program.wait_for("[1] done"));
  CHECK(program.wait_for("[2] done"));
  program.write_input("to be read\n");
  CHECK(program.wait_for("[0] to be read"));
  const Result result = program.finish();
  support::check_printed(result, {"[0] done"});
}

TEST_CASE("no line of four workers is torn or lost, however slow the reader") {
  // A fifth worker, rank 0, writes nothing: an unfinished line of rank 0 would be shown after 100 ms.
  Program program(probe,
                  {"--nproc-per-node=5", "1:lines:10000", "2:lines:10000", "3:lines:10000", "4:lines:10000", "*:join"});
  program.close_input();
  ::usleep(300000);  // all pipes are full by now
  const Result result = program.wait(support::soon(std::chrono::seconds(60)));
  CHECK(result.exit_code == 0);
  const std::vector<std::string> lines = lines_of(result.output);
  CHECK(lines.size() == 40000);
  std::vector<int> next(5, 0);
  int wrong = 0;
  for (const std::string& line : lines) {
    const auto rank = static_cast<std::size_t>(line.size() > 1 ? line[1] - '0' : 9);
    if (rank == 0 || rank >= next.size()) {
      ++wrong;
      continue;
    }
    const int i = next[rank]++;
    const std::string expected = "[" + std::to_string(rank) + "] line " + std::to_string(i) + " of " +
                                 std::to_string(rank) + " " +
                                 std::string(static_cast<std::size_t>(i % 97), static_cast<char>('a' + rank)) + " end";
    wrong += line == expected ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a launcher whose workers have ended waits for a slow reader, but not against a signal") {
  const std::string mark = new_mark();
  const support::TemporaryFile file;
  Program program(probe, {mark, "--nproc-per-node=1", "*:join", "*:lines:2000", "0:process:" + file.path});
  program.close_input();
  const dtrain::Deadline deadline = support::soon();
  while (content(file.path).empty() && !deadline.passed())
    ::usleep(1000);
  while (support::processes_with(mark).size() != 1 && !deadline.passed()) {
    ::usleep(1000);  // until the worker has ended: nobody reads, and more is to be said than a pipe takes
  }
  ::usleep(100000);
  CHECK(support::processes_with(mark).size() == 1);
  program.signal(SIGINT);
  CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
  CHECK(program.wait().exit_code == 0);
}

TEST_CASE("one pipe for stdout and stderr that nobody reads does not keep the launcher from its signals") {
  for (int lines = 5000; lines < 5004; ++lines) {
    const std::string mark = new_mark();
    const std::string count = std::to_string(lines);
    Program program("/bin/sh", {"-c", "exec " + probe + " " + mark + " --nproc-per-node=2 0:lines:" + count +
                                          " 1:error-lines:" + count + " '*:join' 2>&1"});
    program.close_input();
    ::usleep(500000);  // all pipes are full by now
    program.signal(SIGTERM);
    ::usleep(100000);
    program.signal(SIGTERM);
    CHECK(support::all_gone(mark, support::soon(std::chrono::seconds(5))));
  }
}

TEST_CASE("stdout and stderr of the workers stay apart, and files keep both without prefixes") {
  const TemporaryDirectory root;
  const std::string directory = root.path + "/a/b";
  const Result result = support::run(probe, {"--nproc-per-node=2", "--log-dir", directory, "*:join", "*:stdout:out\n",
                                             "*:stderr:err", "1:stdout:end"});
  support::check_printed(result, {"[1] out\n"});
  CHECK(!contains(result.output, "err"));
  CHECK_CONTAINS(result.error, "[0] err\n");
  CHECK(content(directory + "/rank-0.stdout") == "out\n");
  CHECK(content(directory + "/rank-1.stdout") == "out\nend");
  CHECK(content(directory + "/rank-1.stderr") == "err\n");
}

TEST_CASE("what workers leave behind in their groups ends with them") {
  const std::string mark = new_mark();
  const Result result =
      support::run(probe, {mark, "--nproc-per-node=2", "*:grandchild", "*:grandchild", "*:join", "*:stdout:done\n"});
  CHECK(result.exit_code == 0);
  CHECK(lines_of(result.output).size() == 2);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("a reader that goes away does not stop the job") {
  Program program("/bin/sh", {"-c", probe + " --nproc-per-node=2 '*:join' '*:lines:5000' '*:stderr:done' | head -n 1"});
  const Result result = program.finish();
  support::check_ended(result, 0, {"[0] done", "[1] done"});
}

TEST_CASE("a job started by a worker of another job is a job of its own") {
  const Result result = support::run(probe, {"--nproc-per-node=2", "1:join", "0:join", "1:environment:RANK"},
                                     {{"DTRAIN_RANK", "3"},
                                      {"DTRAIN_WORLD_SIZE", "4"},
                                      {"DTRAIN_NODE_RANK", "0"},
                                      {"DTRAIN_NODE_COUNT", "1"},
                                      {"DTRAIN_MASTER_ADDR", "h"},
                                      {"DTRAIN_MASTER_PORT", "1"},
                                      {"RANK", "3"},
                                      {"WORLD_SIZE", "4"},
                                      {"MASTER_PORT", "1"},
                                      {"DTRAIN_LAUNCHER_PROCESS", "1"}});
  CHECK(result.exit_code == 0);
  CHECK(result.output == "[1] RANK=1\n");
}

TEST_CASE("on a terminal the unfinished line of rank 0 is shown as it grows, below what others print") {
  const int terminal = open_terminal();
  const std::string device = ::ptsname(terminal);
  Program program("/bin/sh", {"-c", "exec " + probe +
                                        " --nproc-per-node=2 0:environment:DTRAIN_STDOUT_IS_TERMINAL"
                                        " '0:stdout:\rstep 1' 0:sleep:200 '1:sleep:100' '1:stdout:other\n'"
                                        " '0:stdout:\rstep 2\n' '*:join' >" +
                                        device});
  const int held = ::open(device.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);  // keeps the terminal until it is read
  REQUIRE(held >= 0);
  const Result result = program.finish();
  CHECK(result.exit_code == 0);
  const std::string shown = content_of(terminal, held);
  CHECK_CONTAINS(shown, "[0] DTRAIN_STDOUT_IS_TERMINAL=1\r\n", "[0] step 1\r\x1b[K[1] other\r\n[0] step 1",
                 "\r\x1b[K[0] step 2\r\n");
}

TEST_CASE("each signal that users send reaches every worker") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT}) {
    CAPTURE(signal);
    const std::string number = std::to_string(signal);
    Program program(
        probe, {"--nproc-per-node=2", "*:say-signal:" + number, "*:join", "*:stdout:up\n", "*:cat", "*:sleep:200"});
    support::require_up(program, 2);
    program.signal(signal);
    CHECK(program.wait_for("[0] got the signal"));
    CHECK(program.wait_for("[1] got the signal"));
    CHECK(program.finish().exit_code == 0);
  }
}

TEST_CASE("how long workers may take after a forwarded SIGTERM can be set") {
  const std::string mark = new_mark();
  Program program(probe, {mark, "--nproc-per-node=2", "*:ignore:15", "*:join", "*:stdout:up\n", "*:sleep:60000"},
                  {{"DTRAIN_GRACE_SECONDS", "0.5"}});
  support::require_up(program, 2);
  program.signal(SIGTERM);
  const auto told = dtrain::Deadline::Clock::now();
  const support::Stopwatch since_told;
  const Result result = program.wait();
  CHECK(result.exit_code == 137);
  CHECK(dtrain::Deadline::Clock::now() - told >= std::chrono::milliseconds(500));
  CHECK(since_told.elapsed() < two_seconds);
  CHECK(support::processes_with(mark).empty());
}

TEST_CASE("many jobs at once on one machine never meet each other") {
  std::vector<std::unique_ptr<Program>> programs;
  for (int job = 0; job < 8; ++job) {
    programs.push_back(std::make_unique<Program>(
        probe, std::vector<std::string>{"--nproc-per-node=2", "*:join", "*:environment:MASTER_PORT"}));
    programs.back()->close_input();
  }
  std::set<std::string> ports;
  for (const auto& program : programs) {
    const Result result = program->wait();
    CHECK(result.exit_code == 0);
    REQUIRE(lines_of(result.output).size() == 2);
    ports.insert(lines_of(result.output).front().substr(4));
  }
  CHECK(ports.size() == 8);
}

TEST_CASE("OMP_NUM_THREADS is the cores that may be used, shared out over the workers, where it is not set") {
  const int cores = static_cast<int>(dtrain::allowed_cpus().size());
  for (const int workers : {1, 2, 1000}) {
    const std::string expected = std::to_string(std::max(1, cores / std::min(workers, 3)));
    const Result result = support::run(
        probe, {"--nproc-per-node=" + std::to_string(std::min(workers, 3)), "0:environment:OMP_NUM_THREADS", "*:join"},
        {{"OMP_NUM_THREADS", ""}});
    CHECK(result.output == "[0] OMP_NUM_THREADS=" + expected + "\n");
  }
}

TEST_CASE("workers have cores of their own where the cores suffice, unless --bind=none") {
  const int count = static_cast<int>(dtrain::allowed_cpus().size());
  const auto own_cpus = [](const std::string& workers, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments{"--nproc-per-node=" + workers,
                                       "--wrap=sh -c 'grep Cpus_allowed_list: /proc/self/status; exec \"$0\" \"$@\"'"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    arguments.insert(arguments.end(), {"*:environment:DTRAIN_NODE_CORES", "*:join"});
    const Result result = support::run(probe, arguments, {{"DTRAIN_LOG", "info"}});
    INFO(result.error);
    CHECK(result.exit_code == 0);
    return std::pair(lines_of(result.output), contains(result.error, "workers are bound to CPUs "));
  };
  const auto lists = [](const std::vector<std::string>& lines) {
    std::set<std::string> found;
    for (const std::string& line : lines) {
      if (contains(line, "Cpus_allowed_list:")) {
        found.insert(line.substr(line.find("list:")));
      }
    }
    return found;
  };
  const auto [unbound, unbound_said] = own_cpus("2", {"--bind=none"});
  CHECK(lists(unbound).size() == 1);
  CHECK(!unbound_said);
  const auto [many, many_said] = own_cpus(std::to_string(count + 1), {});
  CHECK(lists(many).size() == 1);
  CHECK(!many_said);
  if (count < 2) return dtrain_test::skip("two workers cannot have a core each");
  const auto [bound, bound_said] = own_cpus("2", {});
  CHECK(lists(bound).size() == 2);
  CHECK(lists(bound).count(*lists(unbound).begin()) == 0);
  CHECK(bound_said);
  CHECK(std::count(bound.begin(), bound.end(), "[1] DTRAIN_NODE_CORES=" + std::to_string(count)) == 1);
}

TEST_CASE("a terminal on stderr alone is passed on as such") {
  const int terminal = open_terminal();
  const std::string device = ::ptsname(terminal);
  Program program("/bin/sh", {"-c", "exec " + probe +
                                        " 0:environment:DTRAIN_STDOUT_IS_TERMINAL"
                                        " 0:environment:DTRAIN_STDERR_IS_TERMINAL '*:join' 2>" +
                                        device});
  const Result result = program.finish();
  CHECK(result.exit_code == 0);
  CHECK(result.output == "[0] DTRAIN_STDOUT_IS_TERMINAL=0\n[0] DTRAIN_STDERR_IS_TERMINAL=1\n");
  ::close(terminal);
}

TEST_CASE("on a terminal, which has shown them, the last words of the first rank to fail are not repeated") {
  const int terminal = open_terminal();
  const std::string device = ::ptsname(terminal);
  Program program("/bin/sh", {"-c", "exec " + probe + " '*:join' '0:stderr:it hurts here\n' 0:exit:42 2>" + device});
  const int held = ::open(device.c_str(), O_RDWR | O_NOCTTY | O_CLOEXEC);  // keeps the terminal until it is read
  REQUIRE(held >= 0);
  CHECK(program.finish().exit_code == 42);
  const std::string shown = content_of(terminal, held);
  CHECK_CONTAINS(shown, "[0] it hurts here\r\n", "failed first: exit code 42\r\n");
  CHECK(shown.find("it hurts here") == shown.rfind("it hurts here"));
}

TEST_CASE("a sentence of dtrain's that several ranks say is one line, which DTRAIN_LOG=debug unfolds") {
  // Rank 2 fails once the others have spoken, and they say nothing more.
  const auto run = [](const Program::Variables& variables) {
    const TemporaryDirectory directory;
    std::vector<std::string> arguments{"--nproc-per-node=4", "*:join"};
    for (const std::string rank : {"0", "1", "3"}) {
      const std::string said = directory.path + "/" + rank;
      arguments.push_back(rank + ":stderr:dtrain: rank " + rank + ": ends because of it");
      arguments.push_back(rank + ":process:" + said);
      arguments.push_back("2:await:" + said);
    }
    arguments.insert(arguments.end(), {"2:exit:9", "*:sleep:60000"});
    return support::run(probe, arguments, variables);
  };
  const Result folded = run({});
  support::check_ended(folded, 9, {"[0-1,3] dtrain: ends because of it\n"});
  CHECK(!contains(folded.error, ": rank 1: ends because of it"));
  const Result unfolded = run({{"DTRAIN_LOG", "debug"}});
  for (const std::string rank : {"0", "1", "3"})
    CHECK_CONTAINS(unfolded.error, "[" + rank + "] dtrain: rank " + rank + ": ends because of it\n");
}
