#include "dtrain/launch/elastic_supervisor.hpp"

#include <fcntl.h>

#include "unit/launch/prelude.hpp"

namespace elastic_supervisor_test {

using dtrain::rendezvous::FormationOptions;
using dtrain::rendezvous::Standing;
using dtrain::rendezvous::Worker;

constexpr const char* script_variable = "DTRAIN_TEST_WORKER_SCRIPT";

/// Workers are this program again: a shell takes its place before main().
const bool is_test = [] {
  const char* const script = std::getenv(script_variable);
  if (script != nullptr) ::execl("/bin/sh", "sh", "-c", script, nullptr);
  return script == nullptr;
}();

/// Answers in the place of a FormationServer and of its state, and notes what the supervisor tells it.
class FakeFormation {
 public:
  FakeFormation& state() noexcept { return *this; }
  FakeFormation& workers() noexcept { return *this; }
  const FormationOptions& options() const noexcept { return sizes; }
  bool is_over() const noexcept { return has_ended; }
  const std::optional<Cause>& cause() const noexcept { return no_cause; }
  std::uint64_t attempt() const noexcept { return 1; }
  const Worker* find(const std::string&, std::int64_t process) {
    first = first == 0 ? process : first;
    return process == first && first_worker ? &*first_worker : nullptr;
  }
  std::string error_of(const std::string&, std::int64_t process) const {
    return process == first ? error_of_first : "";
  }
  bool can_spare(const Worker&) { return ++asked > 3; }
  void process_ended(const std::string&, std::int64_t process, int, const std::string&) { ended.insert(process); }
  void set_running_workers(int count, Deadline::Clock::time_point last_start) {
    running.push_back(count);
    plans_start = plans_start || last_start > Deadline::Clock::now();
    if (on_running) on_running();
  }
  void stop(const std::string&) {}

  FormationOptions sizes;
  bool has_ended = false;
  const std::optional<Cause> no_cause{};
  std::int64_t first = 0;              ///< process of the first worker that the supervisor asked for
  std::optional<Worker> first_worker;  ///< what is known of it
  std::string error_of_first;
  int asked = 0;                 ///< whether the job can spare that worker: at the fourth time it can
  std::set<std::int64_t> ended;  ///< processes
  std::vector<int> running;      ///< numbers of workers that run or will be started
  bool plans_start = false;      ///< one that was told was later
  std::function<void()> on_running;
};

/// A node of an elastic job with one worker, which runs a script.
class Node {
 public:
  Node(const std::string& script, int max_restarts) {
    options_.max_restarts = max_restarts;
    options_.program.arguments = {"worker"};
    options_.program.environment = dtrain::identity::snapshot_environment();
    options_.program.environment[script_variable] = script;
    plan_.min_ranks = 1;
  }

  /// Supervises until no worker runs and none will be started.
  JobResult run() {
    const dtrain::Descriptor nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
    SignalReader signals;
    dtrain::async::EventLoop loop;
    TerminalOutput output(loop, nothing.get(), nothing.get());
    dtrain::async::AutoResetEvent changed(loop);
    SignalForwarder forwarder(loop, signals, changed);
    const dtrain::rendezvous::HostIdentity host{"id", "host"};
    JobCoordinator coordinator(loop, changed, options_, host, [](int, int) {});
    const AttemptServices services{loop, changed, signals, forwarder, output, coordinator};
    Attempt attempt(services, options_.program, plan_);
    ElasticSupervisor supervisor(attempt, options_, host.id, formation);
    loop.run_until(supervisor.watch(), support::soon(), "watching the workers of a test");
    return supervisor.result();
  }

  FakeFormation formation;

 private:
  NodeLauncherOptions options_;
  NodePlan plan_;
};

std::string text_of(const JobResult& result) {
  std::string text;
  for (const std::string& line : result.report)
    text += line + "\n";
  return text;
}

TEST_CASE("a worker is replaced at once, then after a second, until --max-restarts is used up") {
  REQUIRE(is_test);
  Node node("exit 3", 2);
  const JobResult result = node.run();
  CHECK(result.exit_code == 3);
  CHECK_CONTAINS(text_of(result), "3 workers were lost in this job:\n",
                 "worker 0 was lost: exit code 3; another one starts in its place\n",
                 "worker 0 was lost: exit code 3; another one starts in its place in 1 s\n",
                 "worker 0 was lost: exit code 3; no other one starts, because --max-restarts is used up\n");
  CHECK(node.formation.ended.size() == 3);
}

TEST_CASE("a worker that is started later counts as one that may come, and the formation learns when it starts") {
  Node node("exit 3", 2);
  static_cast<void>(node.run());
  std::vector<int>& running = node.formation.running;
  REQUIRE(running.size() > 1);
  CHECK(running.back() == 0);
  running.pop_back();
  CHECK(std::set<int>(running.begin(), running.end()) == std::set<int>{1});
  CHECK(node.formation.plans_start);
}

TEST_CASE("a loss has the error of the worker that was lost, and not that of the one before it") {
  Node node("exit 3", 1);
  node.formation.error_of_first = "a mistake";
  CHECK_CONTAINS(text_of(node.run()), "2 workers were lost in this job:\n",
                 "worker 0 was lost: exit code 3: a mistake; another one starts",
                 "worker 0 was lost: exit code 3; no other one starts");
}

TEST_CASE("a worker that ends because the job has failed, its machine goes away or it is misused is not replaced") {
  using End = std::pair<int, const char*>;  // the exit code, and why
  for (const End& end : {End{75, "the job has failed"}, End{143, "its machine goes away"},
                         End{2, "its command line or environment is wrong"}}) {
    CAPTURE(end.first);
    Node node("exit " + std::to_string(end.first), 1);
    const JobResult result = node.run();
    CHECK(result.exit_code == end.first);
    CHECK(node.formation.ended.size() == 1);
    CHECK_CONTAINS(text_of(result),
                   std::string("; it is not replaced, because that exit code says that ") + end.second);
  }
}

TEST_CASE_FIXTURE(TemporaryFile, "a worker that was excluded long ago is killed once the job has its state elsewhere") {
  Node node("test -e " + path + " && exit 75; touch " + path + "; exec sleep 600", 1);
  node.formation.sizes.rejoin_timeout = milliseconds(200);
  node.formation.first_worker.emplace();
  node.formation.first_worker->standing = Standing::excluded;
  node.formation.first_worker->since = Deadline::Clock::now();
  const std::string text = text_of(node.run());
  CHECK(node.formation.asked == 4);
  CHECK_CONTAINS(text, "worker 0 was lost: its launcher killed it, because it was silent for more than 0.2 s; another",
                 "worker 0 was lost: exit code 75; it is not replaced");
}

TEST_CASE_FIXTURE(TemporaryFile, "the exit code of a job that has finished is that of its ranks alone") {
  for (const bool is_rank : {true, false}) {
    CAPTURE(is_rank);
    Node node("until test -e " + path + "; do sleep 0.01; done; exit 5", 1);
    node.formation.first_worker.emplace();
    node.formation.first_worker->rank = is_rank ? 0 : -1;
    node.formation.on_running = [&] {
      node.formation.has_ended = true;
      std::ofstream(path) << "the job has ended";
    };
    const JobResult result = node.run();
    CHECK(result.exit_code == (is_rank ? 5 : 0));
    CHECK(text_of(result) == "");
    std::filesystem::remove(path);
  }
}

}  // namespace elastic_supervisor_test
