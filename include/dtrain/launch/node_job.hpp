#pragma once
/// @file
/// A job as the launcher of one node sees it: one attempt after the other, and the code that it ends with.

#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/launch/attempt.hpp"
#include "dtrain/launch/one_node.hpp"
#include "dtrain/rendezvous/host_identity.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// What is started, `workers` times, and with whom.
struct NodeJobOptions {
  WorkerProgram program;
  int workers = 1;
  int cores = 1;
  std::uint16_t port = 0;  ///< 0: one that the system chooses
  int max_restarts = 0;
  std::chrono::nanoseconds formation{0};
  std::chrono::nanoseconds liveness = default_liveness;
  std::chrono::nanoseconds stop_grace{0};
  std::optional<std::string> host_id;
};

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
    if (options_.program.log_dir) {
      make_directories(*options_.program.log_dir);
    }
    job_ = std::make_unique<OneNode>(
        loop_, changed_,
        OneNodeOptions{options_.workers, options_.port, host_.name, options_.formation, options_.liveness, policy()});
    forwarder_.on_stop([this](int signal, int count) { job_->stop(signal, count); });
  }
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  /// Starts the workers and stays with them. Blocking: until the last one has ended.
  /// @returns the launcher's exit code @throws Error (posix) where a worker cannot be started; then none is left
  int run() {
    constexpr auto longer_than_any_job = std::chrono::hours(24 * 365);
    return loop_.run_until(attempts(), Deadline::after(longer_than_any_job), "running the job");
  }

 private:
  /// How long a consumer of the output may take nothing before what is left is given up.
  static constexpr std::chrono::seconds patience{600};
  static constexpr std::chrono::seconds patience_after_failure{5};
  static constexpr std::chrono::milliseconds no_patience{100};

  RestartPolicy policy() const noexcept { return RestartPolicy{options_.max_restarts}; }

  async::Task<int> attempts() {
    const Place place = co_await job_->assemble();
    NodePlan plan = plan_at(place);
    for (;; ++plan.attempt) {
      co_await job_->begin(plan.attempt);
      const JobVerdict verdict = co_await attempt(plan);
      if (!verdict.again) {
        co_return verdict.exit_code;
      }
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
      async::Task<NodeEnd> supervising = attempt->supervise(StopPlan(options_.stop_grace), host_.name);
      end = co_await std::move(supervising);
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
    const auto nothing_more = [] { return true; };
    co_await output_.flush(flows ? enough : no_patience, nothing_more, hurry);
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
