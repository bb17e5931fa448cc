#pragma once
/// @file
/// One job on one node: its store, its workers, and the code it ends with.

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/launch/spawn.hpp"
#include "dtrain/launch/supervisor.hpp"
#include "dtrain/launch/terminal_output.hpp"
#include "dtrain/launch/worker_environment.hpp"
#include "dtrain/rendezvous/host_identity.hpp"
#include "dtrain/rendezvous/server.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// What is started: `executable` with `arguments`, `workers` times.
struct NodeJobOptions {
  std::string executable = "/proc/self/exe";
  std::vector<std::string> arguments;
  identity::Environment environment;
  int workers = 1;
  int cores = 1;
  std::uint16_t port = 0;  ///< 0: one that the system chooses
  std::optional<std::string> log_dir;
  std::chrono::nanoseconds formation{0};
  std::optional<std::string> host_id;
};

/// Lifetime: for one run(). Threads: the main thread of a process that has no other.
class NodeJob {
 public:
  /// Opens the store. @throws Error (posix) for a port in use, a log directory that cannot be written; nothing is
  /// started
  explicit NodeJob(NodeJobOptions options)
      : options_(std::move(options)),
        host_(rendezvous::host_identity(options_.host_id).name),
        output_(loop_, STDOUT_FILENO, STDERR_FILENO),
        workers_(loop_) {
    net::Listener listener = net::Listener::bind(loop_, net::Endpoint::loopback_v4(options_.port));
    plan_.workers = options_.workers;
    plan_.master_addr = "127.0.0.1";
    plan_.master_port = listener.port();
    plan_.cores = options_.cores;
    plan_.launcher_process = std::to_string(::getpid());
    plan_.stdout_is_terminal = output_.output().is_terminal();
    plan_.stderr_is_terminal = output_.error().is_terminal();
    rendezvous::ServerOptions server;
    server.world_size = options_.workers;
    server.owner = "the launcher on host " + host_;
    server.formation = Deadline::after(options_.formation);
    server.loss_grace = loss_grace;
    server.on_left = [this](int rank) { left_.insert(rank); };
    server_.emplace(loop_, std::move(listener), std::move(server));
    if (options_.log_dir) {
      make_directories(*options_.log_dir);
    }
  }
  NodeJob(const NodeJob&) = delete;
  NodeJob& operator=(const NodeJob&) = delete;

  /// Starts the workers and stays with them. Blocking: until the last one has ended.
  /// @returns the launcher's exit code @throws Error (posix) where a worker cannot be started; then none is left
  int run() {
    constexpr auto longer_than_any_job = std::chrono::hours(24 * 365);
    start_workers();
    return loop_.run_until(supervise(), Deadline::after(longer_than_any_job), "running the job");
  }

 private:
  /// How long a closed connection waits for the news of how the process ended, which says more.
  static constexpr std::chrono::milliseconds loss_grace{50};
  /// How long a consumer of the output may take nothing before what is left is given up.
  static constexpr std::chrono::seconds patience{600};
  static constexpr std::chrono::seconds patience_after_failure{5};
  static constexpr std::chrono::milliseconds no_patience{100};

  void start_workers() {
    const async::Descriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    if (!nothing) {
      throw errno_error("opening /dev/null for the workers' stdin");
    }
    for (int rank = 0; rank < options_.workers; ++rank) {
      start_worker(rank, nothing.get());
    }
  }

  void start_worker(int rank, int nothing) {
    Pipe output = make_pipe();
    Pipe error = make_pipe();
    Pipe input = rank == 0 ? make_pipe() : Pipe{};
    auto output_relay = relay(rank, std::move(output.reader), output_.output(), "stdout");
    auto error_relay = relay(rank, std::move(error.reader), output_.error(), "stderr");
    auto pump = rank == 0 ? std::make_unique<InputPump>(loop_, STDIN_FILENO, std::move(input.writer)) : nullptr;
    SpawnRequest request;
    request.executable = options_.executable;
    request.arguments = options_.arguments;
    request.environment = worker_environment(options_.environment, plan_, rank);
    request.standard_input = rank == 0 ? input.reader.get() : nothing;
    request.standard_output = output.writer.get();
    request.standard_error = error.writer.get();
    request.signal_mask = signals_.original_mask();
    const pid_t process = spawn(request);
    workers_.add(rank, process, std::move(output_relay), std::move(error_relay), std::move(pump));
  }

  std::unique_ptr<LineRelay> relay(int rank, async::Descriptor pipe, Console& console, const char* stream) {
    LogFile log;
    if (options_.log_dir) {
      log = LogFile(*options_.log_dir + "/rank-" + std::to_string(rank) + "." + stream);
    }
    return std::make_unique<LineRelay>(loop_, std::move(pipe), console, rank, rank == 0, std::move(log));
  }

  async::Task<int> supervise() {
    JobView view;
    view.has_left = [this](int rank) { return left_.count(rank) != 0; };
    view.first_cause = [this] { return server_->cause(); };
    view.report = [this](const Cause& cause) { server_->post_failure(cause); };
    Supervisor supervisor(loop_, signals_, workers_, std::move(view), host_);
    const int exit_code = co_await supervisor.watch();
    const std::vector<std::string> report = supervisor.report();
    const std::chrono::milliseconds enough = exit_code == 0 ? patience : patience_after_failure;
    server_.reset();  // nobody is left to serve; its port is free from here on
    const auto drained = [this] { return workers_.output_is_drained(); };
    const auto told_again = [&supervisor, before = supervisor.stops_asked()] {
      return supervisor.stops_asked() != before;
    };
    const bool flows = co_await output_.flush(enough, drained, told_again);
    workers_.finish_output();
    for (const std::string& line : report) {
      output_.error().line("dtrain: ", line);
    }
    const auto nothing_more = [] { return true; };
    co_await output_.flush(flows ? enough : no_patience, nothing_more, told_again);
    co_return exit_code;
  }

  NodeJobOptions options_;
  std::string host_;
  SignalReader signals_;
  async::EventLoop loop_;
  TerminalOutput output_;
  std::set<int> left_;
  std::optional<rendezvous::Server> server_;
  NodePlan plan_;
  Workers workers_;  ///< last: what still runs when a job is given up ends before what serves it
};

}  // namespace DTRAIN_NAMESPACE::launch
