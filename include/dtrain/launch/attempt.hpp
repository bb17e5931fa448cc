#pragma once
/// @file
/// Attempt on one node: its workers from their start to the end of their output.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/configuration/worker_environment.hpp"
#include "dtrain/launch/configuration/worker_program.hpp"
#include "dtrain/launch/output/terminal_output.hpp"
#include "dtrain/launch/supervise/spawn.hpp"
#include "dtrain/launch/supervise/supervisor.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// DIR for the first attempt, DIR/attempt-K for the K-th restart: no attempt overwrites another one's files.
inline std::string log_directory(const std::string& directory, int attempt) {
  return attempt == 0 ? directory : format_text("{}/attempt-{}", {directory, attempt});
}

/// Objects of the launcher that an attempt uses. Lifetime: they outlive the attempt.
struct AttemptServices {
  async::EventLoop& loop;
  async::AutoResetEvent& changed;
  const SignalReader& signals;
  SignalForwarder& forwarder;
  TerminalOutput& output;
  JobCoordinator& coordinator;
};

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
      log_directory_ = log_directory(*program.log_dir, plan.attempt);
      make_directories(*log_directory_);
    }
    services_.forwarder.forward_to(&workers_);
  }
  Attempt(const Attempt&) = delete;
  Attempt& operator=(const Attempt&) = delete;
  ~Attempt() { services_.forwarder.forward_to(nullptr); }

  /// Starts the workers, or fewer if a stop signal arrives meanwhile. The loop runs between two starts, so that this
  /// launcher keeps sending heartbeats.
  /// @throws Error (posix) if a worker cannot be started or a file of --log-dir cannot be opened
  async::Task<void> start() {
    const Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) {
      throw_errno("opening /dev/null for the workers' stdin");
    }
    for (int local_rank = 0; local_rank < plan_->workers && services_.forwarder.stop_requests() == 0; ++local_rank) {
      start_worker(local_rank, nothing.get());
      co_await services_.loop.sleep_for(std::chrono::milliseconds(0));
    }
  }

  /// Ends when no worker runs and their last output has been read (at most 200 ms later).
  /// @param liveness how long a worker that has not joined may be stopped
  /// @returns the end on this node, without node, host and signals
  async::Task<NodeEnd> supervise(ShutdownSchedule schedule, std::chrono::nanoseconds liveness, std::string host) {
    Supervisor supervisor(services_.loop, services_.changed, services_.forwarder, workers_, memory_kills_,
                          services_.output.error(), services_.coordinator, std::move(schedule), liveness,
                          std::move(host));
    co_await supervisor.watch();
    services_.forwarder.forward_to(nullptr);
    stops_before_end_ = services_.forwarder.stop_requests();
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
    const bool were_shown = plan_->node_count == 1 && plan_->stderr_is_terminal;  // to everybody who reads the report
    if (end.first && !were_shown) {
      end.last_lines = workers_.error_tail(end.first->rank).lines();
    }
    co_return std::move(end);
  }

  /// Whether SIGINT or SIGTERM has arrived since the last worker ended. Then the launcher no longer waits for output.
  bool stop_requested_since_end() const noexcept { return services_.forwarder.stop_requests() != stops_before_end_; }

  /// Whether all output of the workers has been passed to the console.
  bool output_is_drained() const noexcept { return workers_.output_is_drained(); }

  /// Stops relaying, and prints last lines that lack a newline.
  void finish_output() {
    workers_.finish_output();
    error_.flush();
  }

 private:
  /// How long supervise() waits for the last output if the console is slow.
  static constexpr std::chrono::milliseconds drain_timeout{200};

  void start_worker(int local_rank, int nothing) {
    const int rank = plan_->first_rank + local_rank;
    Pipe output = make_pipe();
    Pipe error = make_pipe();
    const bool reads_input = local_rank == input_reader();
    // A worker reads a file, pipe or socket itself: what it does not read stays there for others, such as the shell
    // loop `while read line; do ./train; done < file`. Only a terminal's lines are forwarded.
    const bool is_forwarded = reads_input && ::isatty(STDIN_FILENO) == 1;
    Pipe input = is_forwarded ? make_pipe() : Pipe{};
    auto output_relay = relay(rank, std::move(output.reader), services_.output.output(), nullptr, "stdout");
    auto error_relay = relay(rank, std::move(error.reader), services_.output.error(), &error_, "stderr");
    auto stdin_forwarder = is_forwarded
                               ? std::make_unique<StdinForwarder>(services_.loop, STDIN_FILENO, std::move(input.writer))
                               : nullptr;
    const bool is_wrapped = program_->wraps(rank);
    CommandLine command = command_line_of(*program_, rank);
    SpawnRequest request;
    request.executable = std::move(command.executable);
    request.arguments = std::move(command.arguments);
    request.environment = worker_environment(program_->environment, *plan_, local_rank);
    if (is_wrapped) {
      request.environment[wrapped_variable] = "1";
    }
    request.standard_input = is_forwarded ? input.reader.get() : reads_input ? STDIN_FILENO : nothing;
    request.standard_output = output.writer.get();
    request.standard_error = error.writer.get();
    if (!program_->cpus.empty()) {
      request.cpus = program_->cpus[static_cast<std::size_t>(local_rank)];
    }
    request.signal_mask = services_.signals.original_mask();
    const pid_t process = spawn(request);
    workers_.add(rank, process, is_wrapped, std::move(output_relay), std::move(error_relay),
                 std::move(stdin_forwarder));
  }

  /// The local rank that gets the launcher's stdin: the one in a debugger, if it is on this node.
  int input_reader() const noexcept {
    const int wrapped = program_->wrapped_rank.value_or(0) - plan_->first_rank;
    return wrapped > 0 && wrapped < plan_->workers ? wrapped : 0;
  }

  std::unique_ptr<OutputRelay> relay(int rank, Descriptor pipe, Console& console, FoldedConsole* folded,
                                     const char* stream) {
    LogFile log;
    if (log_directory_) {
      log = LogFile(format_text("{}/rank-{}.{}", {*log_directory_, rank, stream}),
                    [this](const std::string& what) { report_lost_log(what); });
    }
    const bool is_live = rank - plan_->first_rank == input_reader();  // it may ask for input: a debugger's prompt
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

  AttemptServices services_;
  const WorkerProgram* program_;
  const NodePlan* plan_;
  std::optional<std::string> log_directory_;
  bool has_lost_log_ = false;
  FoldedConsole error_;
  Workers workers_;
  MemoryKills memory_kills_;  ///< since before the workers' start
  int stops_before_end_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::launch
