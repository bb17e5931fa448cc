#pragma once
/// @file
/// Node launcher: the attempts of one node's workers, restarts, and the exit code.

#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/log.hpp"
#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/launch/attempt.hpp"
#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/diagnostics/network_report.hpp"
#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"

namespace DTRAIN_NAMESPACE::launch {

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

  /// An error that ends this launcher.
  struct Problem {
    int exit_code = 0;  ///< 0: there is none
    std::string sentence;
  };

  async::Task<int> run_job() {
    Problem problem;
    try {
      const int exit_code = co_await run_attempts();
      co_return exit_code;
    } catch (const JobFailed& failed) {
      problem = Problem{exit_code_job_failed, lost_launcher_message(failed.cause(), options_.node.master_addr)};
    } catch (const std::exception& error) {
      problem = Problem{exit_code_usage, error.what()};
    }
    co_await coordinator_.abort(problem.sentence);
    output_.error().line("dtrain: ", problem.sentence);
    co_await flush(drain_timeout_after_failure);
    co_return problem.exit_code;
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
      // several_hosts is false: all launchers have reached the address, so a loopback address needs no warning.
      const NetworkReport network =
          local_network_report(identity::Variables(options_.program.environment), options_.node.master_addr, false);
      output_.error().line(
          "dtrain: ", format_text("{}, nodes from {}; {}", {description, options_.node_source, network.interface}));
      for (const std::string& warning : network.warnings) {
        output_.error().line("dtrain: ", format_text("slow path: {}", {warning}));
      }
    }
    require_rank(options_.program.wrapped_rank, plan->world_size);
    plan->cores = options_.cores;
    plan->is_bound = !options_.program.cpus.empty();
    plan->launcher_process = std::to_string(::getpid());
    plan->stdout_is_terminal = output_.output().is_terminal();
    plan->stderr_is_terminal = output_.error().is_terminal();
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
    std::optional<NodePlan> plan;
    std::exception_ptr failure;
    const async::ExceptionHandler failed = [this, &failure](const std::exception_ptr& reason) {
      failure = reason;
      changed_.set();
    };
    const async::TaskHandle assigning = loop_.spawn(assign_ranks_into(plan), failed);
    while (!plan && !failure && forwarder_.stop_requests() == 0) {
      co_await changed_.wait(Deadline::unbounded("the assignment comes or fails, or a signal stops it"));
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
    co_return std::move(plan);
  }

  async::Task<void> assign_ranks_into(std::optional<NodePlan>& plan) {
    plan = co_await coordinator_.assign_ranks();
    changed_.set();
  }

  /// @throws Error (usage) for a --wrap-rank that is no rank of the job
  static void require_rank(const std::optional<int>& rank, int world_size) {
    if (rank && *rank >= world_size) {
      throw_error(Errc::usage, "--wrap-rank={} is no rank of this job, which has {}: 0 to {}",
                  {*rank, world_size, world_size - 1});
    }
  }

  async::Task<JobResult> attempt(const NodePlan& plan) {
    std::unique_ptr<Attempt> attempt;
    NodeEnd end;
    end.started = forwarder_.stop_requests() == 0;
    if (end.started) {
      const AttemptServices services{loop_, changed_, signals_, forwarder_, output_, coordinator_};
      attempt = std::make_unique<Attempt>(services, options_.program, plan);
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
    if (!result.restart) {
      co_await coordinator_.leave();
    }
    co_await show(attempt.get(), result);
    co_return std::move(result);
  }

  /// Prints the rest of the workers' output, then the report.
  async::Task<void> show(Attempt* attempt, const JobResult& result) {
    const std::chrono::milliseconds timeout = result.exit_code == 0 ? drain_timeout : drain_timeout_after_failure;
    const auto stop_requested = [attempt] { return attempt != nullptr && attempt->stop_requested_since_end(); };
    const auto drained = [attempt] { return attempt == nullptr || attempt->output_is_drained(); };
    const bool flows = co_await output_.flush(timeout, drained, stop_requested);
    if (attempt != nullptr) {
      attempt->finish_output();
    }
    for (const std::string& line : result.report) {
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
};

}  // namespace DTRAIN_NAMESPACE::launch
