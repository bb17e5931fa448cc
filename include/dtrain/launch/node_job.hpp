#pragma once
/// @file
/// A job as the launcher of one node sees it: one attempt after the other, and the code that it ends with.

#include <unistd.h>

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/core/exit_codes.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/launch/attempt.hpp"
#include "dtrain/launch/job_options.hpp"
#include "dtrain/launch/network_report.hpp"
#include "dtrain/launch/one_node.hpp"
#include "dtrain/launch/participation.hpp"
#include "dtrain/launch/several_nodes.hpp"
#include "dtrain/rendezvous/host_identity.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Lifetime: for one run(). Threads: the main thread of a process that has no other.
class NodeJob {
 public:
  /// Opens the store. @throws Error (posix) for a port in use, a log directory that cannot be written; nothing is
  /// started
  explicit NodeJob(NodeJobOptions options)
      : options_(std::move(options)),
        host_(rendezvous::host_identity(options_.host_id)),
        output_(loop_, STDOUT_FILENO, STDERR_FILENO),
        changed_(loop_),
        forwarder_(loop_, signals_, changed_) {
    for (const std::string& warning : options_.node.warnings) {
      log(LogLevel::warning, warning);
    }
    if (options_.program.log_dir) {
      make_directories(*options_.program.log_dir);
    }
    job_ = coordination();
    forwarder_.on_stop([this](int signal, int count) { job_->stop(signal, count); });
  }
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  /// Starts the workers and stays with them. Blocking: until the last one has ended.
  /// @returns the launcher's exit code; what keeps it from going on is explained on stderr
  int run() {
    constexpr auto longer_than_any_job = std::chrono::hours(24 * 365);
    return loop_.run_until(whole_job(), Deadline::after(longer_than_any_job), "running the job");
  }

 private:
  /// How long a consumer of the output may take nothing before what is left is given up.
  static constexpr std::chrono::seconds patience{600};
  static constexpr std::chrono::seconds patience_after_failure{5};
  static constexpr std::chrono::milliseconds no_patience{100};

  RestartPolicy policy() const noexcept { return RestartPolicy{options_.max_restarts}; }

  std::unique_ptr<Coordination> coordination() {
    rendezvous::Limits limits;
    limits.liveness = in_milliseconds(options_.liveness);
    const identity::NodeIdentity& node = options_.node;
    if (node.node_count == 1) {
      OneNodeOptions one;
      one.workers = options_.workers;
      one.port = static_cast<std::uint16_t>(node.master_port.value_or(0));
      one.host = host_.name;
      one.formation = options_.formation;
      one.limits = limits;
      one.policy = policy();
      return std::make_unique<OneNode>(loop_, changed_, std::move(one));
    }
    NodeMeetingOptions several;
    several.node_rank = node.node_rank;
    several.node_count = node.node_count;
    several.master_addr = node.master_addr;
    several.master_port = static_cast<std::uint16_t>(node.master_port.value_or(identity::default_master_port));
    several.host = host_;
    several.workers = options_.workers;
    several.formation = options_.formation;
    several.limits = limits;
    several.secret = options_.secret;
    several.interface = options_.interface;
    several.job = options_.job;
    return std::make_unique<SeveralNodes>(loop_, changed_, std::move(several), policy(),
                                          [this](int signal, int count) { forwarder_.stop_by(signal, count); });
  }

  /// What keeps this launcher from going on.
  struct Problem {
    int exit_code = 0;  ///< 0: there is none
    std::string sentence;
  };

  async::Task<int> whole_job() {
    Problem problem;
    try {
      const int exit_code = co_await attempts();
      co_return exit_code;
    } catch (const JobFailed& failed) {
      problem = Problem{exit_code_job_failed, launcher_loss(failed.cause(), options_.node.master_addr)};
    } catch (const std::exception& error) {
      problem = Problem{exit_code_usage, error.what()};
    }
    co_await job_->give_up(problem.sentence);
    output_.error().line("dtrain: ", problem.sentence);
    co_await flush(patience_after_failure);
    co_return problem.exit_code;
  }

  async::Task<int> attempts() {
    const std::optional<Place> place = co_await assemble();
    if (!place) {
      const int signal = forwarder_.stop_signal();
      output_.error().line("dtrain: ", signal_name(signal) + " came before all launchers had met");
      co_await flush(no_patience);
      co_return 128 + signal;
    }
    if (!place->description.empty()) {
      // A loopback address that all launchers have met at reaches them all: nothing is to be said of that.
      const NetworkReport network =
          own_network_report(identity::Variables(options_.program.environment), options_.node.master_addr, false);
      output_.error().line("dtrain: ",
                           place->description + ", nodes from " + options_.node_source + "; " + network.interface);
      for (const std::string& slow_path : network.slow_paths) {
        output_.error().line("dtrain: ", "slow path: " + slow_path);
      }
    }
    require_rank(options_.program.wrapped_rank, place->world_size);
    NodePlan plan = plan_at(*place);
    for (;; ++plan.attempt) {
      co_await job_->begin(plan.attempt);
      const JobVerdict verdict = co_await attempt(plan);
      if (!verdict.again) {
        co_return verdict.exit_code;
      }
    }
  }

  /// Nothing where the job was told to end before it began.
  async::Task<std::optional<Place>> assemble() {
    std::optional<Place> place;
    std::exception_ptr failure;
    const async::ExceptionHandler failed = [this, &failure](const std::exception_ptr& reason) {
      failure = reason;
      changed_.set();
    };
    const async::Spawned assembling = loop_.spawn(assemble_into(place), failed);
    while (!place && !failure && forwarder_.stops_asked() == 0) {
      co_await changed_.wait(Deadline::after(std::chrono::hours(1)));
    }
    if (failure) {
      std::rethrow_exception(failure);
    }
    co_return std::move(place);
  }

  async::Task<void> assemble_into(std::optional<Place>& place) {
    place = co_await job_->assemble();
    changed_.set();
  }

  /// @throws Error (usage) for a --wrap-rank that is no rank of the job
  static void require_rank(const std::optional<int>& rank, int world_size) {
    if (rank && *rank >= world_size) {
      throw Error(Errc::usage, "--wrap-rank=" + std::to_string(*rank) + " is no rank of this job, which has " +
                                   std::to_string(world_size) + ": 0 to " + std::to_string(world_size - 1));
    }
  }

  NodePlan plan_at(const Place& place) {
    NodePlan plan;
    plan.workers = options_.workers;
    plan.first_rank = place.first_rank;
    plan.world_size = place.world_size;
    plan.node_rank = place.node_rank;
    plan.node_count = place.node_count;
    plan.master_addr = place.master_addr;
    plan.master_port = place.master_port;
    plan.secret = place.secret;
    plan.cores = options_.cores;
    plan.launcher_process = std::to_string(::getpid());
    plan.stdout_is_terminal = output_.output().is_terminal();
    plan.stderr_is_terminal = output_.error().is_terminal();
    return plan;
  }

  async::Task<JobVerdict> attempt(const NodePlan& plan) {
    std::unique_ptr<Attempt> attempt;
    NodeEnd end;
    end.started = forwarder_.stops_asked() == 0;
    if (end.started) {
      const AttemptServices services{loop_, changed_, signals_, forwarder_, output_, *job_};
      attempt = std::make_unique<Attempt>(services, options_.program, plan);
      co_await attempt->start();
      async::Task<NodeEnd> supervising =
          attempt->supervise(StopPlan(options_.stop_grace, options_.pace), options_.liveness, host_.name);
      end = co_await std::move(supervising);
    }
    end.node = plan.node_rank;
    end.host = host_.name;
    if (plan.node_count > 1) {
      end.host += " (node " + std::to_string(plan.node_rank) + ")";
    }
    end.stop_signal = forwarder_.stop_signal();
    end.interrupted = forwarder_.interrupted();
    async::Task<JobVerdict> concluding = job_->conclude(std::move(end));
    JobVerdict verdict = co_await std::move(concluding);
    if (!verdict.again) {
      co_await job_->leave();
    }
    co_await show(attempt.get(), verdict);
    co_return std::move(verdict);
  }

  /// What the workers wrote, and then what is to be said of them.
  async::Task<void> show(Attempt* attempt, const JobVerdict& verdict) {
    const std::chrono::milliseconds enough = verdict.exit_code == 0 ? patience : patience_after_failure;
    const auto hurry = [attempt] { return attempt != nullptr && attempt->told_to_hurry(); };
    const auto drained = [attempt] { return attempt == nullptr || attempt->output_is_drained(); };
    const bool flows = co_await output_.flush(enough, drained, hurry);
    if (attempt != nullptr) {
      attempt->finish_output();
    }
    for (const std::string& line : verdict.report) {
      output_.error().line("dtrain: ", line);
    }
    co_await flush(flows && !hurry() ? enough : no_patience);
  }

  /// What the launcher itself has to say.
  async::Task<void> flush(std::chrono::milliseconds enough) {
    const auto nothing_more = [] { return true; };
    const auto hurry = [this, before = forwarder_.stops_asked()] { return forwarder_.stops_asked() != before; };
    co_await output_.flush(enough, nothing_more, hurry);
  }

  NodeJobOptions options_;
  rendezvous::HostIdentity host_;
  SignalReader signals_;
  async::EventLoop loop_;
  TerminalOutput output_;
  async::AutoResetEvent changed_;
  Forwarder forwarder_;
  std::unique_ptr<Coordination> job_;
};

}  // namespace DTRAIN_NAMESPACE::launch
