#pragma once
/// @file
/// NodeLauncher: attempts of one node's workers, restarts, and the exit code. Attempt: workers from start to end.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/diagnostics/network_report.hpp"
#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "dtrain/launch/output/console.hpp"
#include "dtrain/launch/supervise/spawn.hpp"
#include "dtrain/launch/supervise/supervisor.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// DIR for the first attempt, DIR/attempt-K for the K-th restart: no attempt overwrites the files of another.
inline std::string log_directory(const std::string& directory, int attempt) {
  return attempt == 0 ? directory : format_text("{}/attempt-{}", {directory, attempt});
}

/// Threads: the loop's.
class Attempt {
 public:
  /// @throws Error (posix) if the directory of --log-dir cannot be created
  Attempt(const AttemptServices& services, const WorkerProgram& program, const NodePlan& plan)
      : services_(services),
        program_(&program),
        plan_(&plan),
        error_(services.loop, services.output.error(), program.folds ? plan.workers : 1),
        workers_(services.loop) {
    if (program.log_dir) {
      const bool has_own_ranks = plan.min_ranks != 0 && plan.node_count > 1;  // each host counts its own from 0
      const std::string folder =
          has_own_ranks ? format_text("{}/{}", {*program.log_dir, rendezvous::host_identity().name}) : *program.log_dir;
      log_directory_ = log_directory(folder, plan.attempt);
      make_directories(*log_directory_);
    }
    services_.forwarder.forward_to(&workers_, plan.min_ranks != 0);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() { services_.forwarder.forward_to(nullptr); }

  /// Each worker inherits the descriptor (RemoteFormation), which stays open as long as workers are started.
  void report_ends_to(int descriptor) noexcept { report_descriptor_ = descriptor; }

  /// Starts the workers, or fewer if a stop signal arrives meanwhile. The loop runs between two starts, so that this
  /// launcher keeps sending heartbeats.
  /// @throws Error (posix) if a worker cannot be started or a file of --log-dir cannot be opened
  async::Task<void> start() {
    for (int local_rank = 0; local_rank < plan_->workers && services_.forwarder.stop_requests() == 0; ++local_rank) {
      start_worker(local_rank);
      co_await services_.loop.sleep_for(std::chrono::milliseconds(0));
    }
  }

  /// @throws as start()
  pid_t start_worker(int local_rank) {
    const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) {
      throw_errno("opening /dev/null for a worker's stdin");
    }
    const int rank = plan_->first_rank + local_rank;
    Pipe output = make_pipe();
    Pipe error = make_pipe();
    const bool reads_input = local_rank == input_reader();
    // A worker reads a file, pipe or socket itself: input that it does not read stays for others, for example the shell
    // loop `while read line; do ./train; done < file`. Only a terminal's lines are forwarded.
    const bool is_forwarded = reads_input && ::isatty(STDIN_FILENO) == 1;
    Pipe input = is_forwarded ? make_pipe() : Pipe{};
    auto output_relay = relay(rank, std::move(output.reader), services_.output.output(), nullptr, "stdout");
    auto error_relay = relay(rank, std::move(error.reader), services_.output.error(), &error_, "stderr");
    auto stdin_forwarder = is_forwarded
                               ? std::make_unique<StdinForwarder>(services_.loop, STDIN_FILENO, std::move(input.writer))
                               : nullptr;
    const bool is_wrapped = wraps(local_rank);
    CommandLine command = command_line_of(*program_, rank);
    SpawnRequest request;
    request.executable = std::move(command.executable);
    request.arguments = std::move(command.arguments);
    request.environment = worker_environment(program_->environment, *plan_, local_rank);
    if (is_wrapped) {
      request.environment[wrapped_variable] = "1";
    }
    if (report_descriptor_ >= 0) {
      request.environment[report_variable] = std::to_string(report_descriptor_);
      request.inherited = report_descriptor_;
    }
    request.standard_input = is_forwarded ? input.reader.get() : reads_input ? STDIN_FILENO : nothing.get();
    request.standard_output = output.writer.get();
    request.standard_error = error.writer.get();
    if (!program_->cpus.empty()) {
      request.cpus = program_->cpus[static_cast<std::size_t>(local_rank)];
    }
    request.signal_mask = services_.signals.mask_for_workers();
    const pid_t process = spawn(request);
    workers_.add(rank, process, is_wrapped, std::move(output_relay), std::move(error_relay),
                 std::move(stdin_forwarder));
    return process;
  }

  /// Ends when no worker runs and their last output has been read (at most 200 ms later).
  /// @param liveness how long a worker that has not joined may be stopped
  /// @returns the end on this node, without node, host and signals
  async::Task<NodeEnd> supervise(ShutdownSchedule schedule, std::chrono::nanoseconds liveness, std::string host) {
    Supervisor supervisor(services_, workers_, memory_kills_, std::move(schedule), liveness, std::move(host));
    co_await supervisor.watch();
    end_forwarding();
    const Deadline deadline = Deadline::after(drain_timeout);
    while (!workers_.output_is_drained() && !deadline.passed() && !stop_requested_since_end()) {
      co_await services_.loop.sleep_for(std::chrono::milliseconds(1));
    }
    NodeEnd end;
    end.first = first_failure(supervisor.ends(), services_.coordinator.first_cause());
    end.abandoned = supervisor.abandoned();
    for (const WorkerEnd& each : supervisor.ends()) {
      if (each.is_secondary()) {
        end.secondary.push_back(each.rank);
      }
    }
    const bool were_shown = plan_->node_count == 1 && plan_->stderr_is_terminal;  // the report's readers saw them
    if (end.first && !were_shown) {
      end.last_lines = workers_.error_tail(end.first->rank).lines();
    }
    co_return std::move(end);
  }

  /// No worker runs any more: stop signals are no longer forwarded.
  void end_forwarding() {
    services_.forwarder.forward_to(nullptr);
    stops_before_end_ = services_.forwarder.stop_requests();
  }

  const AttemptServices& services() const noexcept { return services_; }
  const NodePlan& plan() const noexcept { return *plan_; }
  Workers& workers() noexcept { return workers_; }
  MemoryKills& memory_kills() noexcept { return memory_kills_; }
  bool wraps(int local_rank) const { return program_->wraps(plan_->first_rank + local_rank); }
  /// Whether a stop request has arrived since the last worker ended. Then the launcher no longer waits for output.
  bool stop_requested_since_end() const noexcept { return services_.forwarder.stop_requests() != stops_before_end_; }

  /// Stops relaying, and prints last lines that lack a newline.
  void finish_output() {
    workers_.finish_output();
    error_.flush();
  }

 private:
  /// How long supervise() waits for the last output if the console is slow.
  static constexpr std::chrono::milliseconds drain_timeout{200};

  /// The local rank that gets the launcher's stdin: the one in a debugger, if it is on this node.
  int input_reader() const noexcept {
    const int wrapped = program_->wrapped_rank.value_or(0) - plan_->first_rank;
    return wrapped > 0 && wrapped < plan_->workers ? wrapped : 0;
  }

  std::unique_ptr<OutputRelay> relay(int rank, Descriptor pipe, Console& console, FoldedConsole* folded,
                                     const char* stream) {
    LogFile log;
    if (log_directory_) {
      log = LogFile(
          format_text("{}/rank-{}.{}", {*log_directory_, rank, stream}),
          [this](const std::string& what) { report_lost_log(what); }, workers_.has_had(rank));
    }
    const bool is_live = rank - plan_->first_rank == input_reader();  // the rank may ask for input: a debugger's prompt
    return std::make_unique<OutputRelay>(services_.loop, std::move(pipe), console, rank, is_live, std::move(log),
                                         folded);
  }

  /// Prints one line for the first lost file only: a full disk affects all of them.
  void report_lost_log(const std::string& what) {
    if (!std::exchange(has_lost_log_, true)) {
      services_.output.error().line("dtrain: ", what +
                                                    "; the job goes on, and its output is shown here, but this file "
                                                    "and others of --log-dir may lack the rest of it");
    }
  }

  const AttemptServices& services_;
  const WorkerProgram* program_;
  const NodePlan* plan_;
  std::optional<std::string> log_directory_;
  int report_descriptor_ = -1;
  bool has_lost_log_ = false;
  FoldedConsole error_;
  Workers workers_;
  MemoryKills memory_kills_;  ///< kills since before the workers' start
  int stops_before_end_ = 0;
};

/// Call run() once. Threads: the one that constructs it. Other threads of the process do not matter.
class NodeLauncher {
 public:
  /// Starts no worker. @throws Error (posix) for an invalid log directory
  explicit NodeLauncher(NodeLauncherOptions options)
      : options_(std::move(options)),
        host_(rendezvous::host_identity(options_.host_id)),
        output_(loop_, STDOUT_FILENO, STDERR_FILENO),
        changed_(loop_),
        forwarder_(loop_, signals_, changed_),
        coordinator_(loop_, changed_, options_, host_,
                     [this](int signal, int count) { forwarder_.on_remote_stop(signal, count); }) {
    for (const std::string& warning : options_.node.warnings) {
      log(LogLevel::warning, warning);
    }
    if (options_.program.log_dir) {
      make_directories(*options_.program.log_dir);
    }
    forwarder_.on_stop([this](int signal, int count) { coordinator_.stop(signal, count); });
  }
  NodeLauncher(const NodeLauncher&) = delete;
  NodeLauncher& operator=(const NodeLauncher&) = delete;

  /// Starts the workers and supervises them. Blocking: until the last one has ended.
  /// @returns the launcher's exit code; errors are printed on stderr
  int run() {
    return loop_.run_until(run_job(), Deadline::unbounded("the job ends, by a signal at the latest"),
                           "running the job");
  }

 private:
  /// How long a consumer may read no output before the launcher drops the rest.
  static constexpr std::chrono::seconds drain_timeout{600};
  static constexpr std::chrono::seconds drain_timeout_after_failure{5};
  static constexpr std::chrono::milliseconds least_drain_timeout{100};

  async::Task<int> run_job() {
    int exit_code = exit_code_usage;
    std::string problem;
    try {
      exit_code = co_await run_attempts();
      co_return exit_code;
    } catch (const JobFailed& failed) {
      exit_code = exit_code_job_failed;
      problem = lost_launcher_message(failed.cause(), options_.node.master_addr);
    } catch (const std::exception& error) {
      problem = error.what();
    }
    co_await coordinator_.abort(problem);
    output_.error().line("dtrain: ", problem);
    co_await flush(drain_timeout_after_failure);
    co_return exit_code;
  }

  async::Task<int> run_attempts() {
    std::optional<NodePlan> plan = co_await assign_ranks();
    if (!plan) {
      const int signal = forwarder_.stop_signal();
      output_.error().line("dtrain: ", signal_name(signal) + " came before all launchers had joined");
      co_await flush(least_drain_timeout);
      co_return 128 + signal;
    }
    if (const std::string description = coordinator_.description(); !description.empty()) {
      // several_hosts is false: all launchers have reached the address, or (in an elastic job on several hosts, where
      // they do not meet) those that have not say so. So a loopback address needs no warning.
      const NetworkReport network =
          local_network_report(identity::Variables(options_.program.environment), options_.node.master_addr, false);
      output_.error().line(
          "dtrain: ", format_text("{}, nodes from {}; {}", {description, options_.node_source, network.interface}));
      for (const std::string& warning : network.warnings) {
        output_.error().line("dtrain: ", format_text("slow path: {}", {warning}));
      }
    }
    const bool is_elastic = options_.min_ranks != 0;
    const int most = is_elastic ? plan->workers : plan->world_size;
    if (const std::optional<int>& rank = options_.program.wrapped_rank; rank && *rank >= most) {
      throw_error(Errc::usage, "--wrap-rank={} is no {}, which has {}: 0 to {}",
                  {*rank, is_elastic ? "worker of this launcher" : "rank of this job", most, most - 1});
    }
    plan->cores = options_.cores;
    plan->is_bound = !options_.program.cpus.empty();
    plan->launcher_process = std::to_string(::getpid());
    plan->stdout_is_terminal = output_.output().is_terminal();
    plan->stderr_is_terminal = output_.error().is_terminal();
    if (is_elastic) {
      plan->min_ranks = options_.min_ranks;
      const JobResult result = co_await run_elastic(*plan);
      co_return result.exit_code;
    }
    for (;; ++plan->attempt) {
      co_await coordinator_.begin(plan->attempt);
      const JobResult result = co_await attempt(*plan);
      if (!result.restart) {
        co_return result.exit_code;
      }
    }
  }

  /// @returns nullopt if a stop signal arrived before all launchers had joined
  async::Task<std::optional<NodePlan>> assign_ranks() {
    async::Outcome<NodePlan> plan;
    const async::TaskHandle assigning =
        loop_.spawn(async::store_outcome(coordinator_.assign_ranks(), plan), {}, [this] { changed_.set(); });
    while (!plan.done() && forwarder_.stop_requests() == 0) {
      co_await changed_.wait(Deadline::unbounded("the assignment comes or fails, or a signal stops it"));
    }
    co_return plan.done() ? std::optional<NodePlan>(plan.take()) : std::nullopt;
  }
  async::Task<JobResult> run_elastic(const NodePlan& plan) {
    Attempt workers(services_, options_.program, plan);
    async::Task<JobResult> running = options_.run_elastic(workers, options_);
    const JobResult result = co_await std::move(running);
    workers.end_forwarding();
    co_await coordinator_.leave();
    const std::vector<std::string> no_statuses;  // the job's store has printed what there is
    co_await show(&workers, result, no_statuses);
    co_return result;
  }

  async::Task<JobResult> attempt(const NodePlan& plan) {
    std::unique_ptr<Attempt> attempt;
    NodeEnd end;
    end.started = forwarder_.stop_requests() == 0;
    if (end.started) {
      attempt = std::make_unique<Attempt>(services_, options_.program, plan);
      co_await attempt->start();
      async::Task<NodeEnd> supervising = attempt->supervise(
          ShutdownSchedule(options_.stop_grace, options_.shutdown_timeouts), options_.liveness, host_.name);
      end = co_await std::move(supervising);
    }
    end.node = plan.node_rank;
    end.host = host_.name;
    if (plan.node_count > 1) {
      append_text(end.host, " (node {})", {plan.node_rank});
    }
    end.stop_signal = forwarder_.stop_signal();
    end.interrupted = forwarder_.interrupted();
    async::Task<JobResult> concluding = coordinator_.conclude(std::move(end));
    JobResult result = co_await std::move(concluding);
    const std::vector<std::string> statuses = coordinator_.take_status_table();  // before the store ends
    if (!result.restart) {
      co_await coordinator_.leave();
    }
    co_await show(attempt.get(), result, statuses);
    co_return std::move(result);
  }

  /// Prints the rest of the workers' output, then the report, then what each rank did.
  async::Task<void> show(Attempt* attempt, const JobResult& result, const std::vector<std::string>& statuses) {
    const std::chrono::milliseconds timeout = result.exit_code == 0 ? drain_timeout : drain_timeout_after_failure;
    const auto stop_requested = [attempt] { return attempt != nullptr && attempt->stop_requested_since_end(); };
    const auto drained = [attempt] { return attempt == nullptr || attempt->workers().output_is_drained(); };
    const bool flows = co_await output_.flush(timeout, drained, stop_requested);
    if (attempt != nullptr) {
      attempt->finish_output();
    }
    for (const std::string& line : result.report) {
      output_.error().line("dtrain: ", line);
    }
    for (const std::string& line : statuses) {
      output_.error().line("dtrain: ", line);
    }
    co_await flush(flows && !stop_requested() ? timeout : least_drain_timeout);
  }

  /// Waits until the launcher's own lines are written, `timeout` passes without progress, or a stop signal arrives.
  async::Task<void> flush(std::chrono::milliseconds timeout) {
    const auto nothing_more = [] { return true; };
    const auto stop_requested = [this, before = forwarder_.stop_requests()] {
      return forwarder_.stop_requests() != before;
    };
    co_await output_.flush(timeout, nothing_more, stop_requested);
  }

  NodeLauncherOptions options_;
  rendezvous::HostIdentity host_;
  SignalReader signals_;
  async::EventLoop loop_;
  TerminalOutput output_;
  async::AutoResetEvent changed_;
  SignalForwarder forwarder_;
  JobCoordinator coordinator_;
  const AttemptServices services_{loop_, changed_, signals_, forwarder_, output_, coordinator_};
};
}  // namespace DTRAIN_NAMESPACE::launch
