#pragma once
/// @file
/// A store and its ranks in one process, over real connections on the loopback address.

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dtrain/rendezvous/control/control_plane.hpp"
#include "dtrain/rendezvous/server/listen.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"
#include "dtrain/rendezvous/server_state/job_state.hpp"
#include "support/gate.hpp"
#include "support/sanitized.hpp"

namespace rendezvous_test {

using namespace dtrain::rendezvous;
using dtrain::Cause;
using dtrain::CauseKind;
using dtrain::Deadline;
using dtrain::FailureLatch;

inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(support::is_sanitized ? 180 : 60));
}

/// A sanitizer makes loops slow: who says nothing for long is alive.
inline Limits usual_limits() {
  Limits limits;
  limits.liveness = support::is_sanitized ? std::chrono::seconds(30) : limits.liveness;
  return limits;
}

struct StoreOptions {
  StoreJobOptions job{};
  std::optional<Secret> secret{};
  Limits limits = usual_limits();
};

/// A StoreServer with one job on a thread of its own, as a launcher has it.
class StoreProcess {
 public:
  explicit StoreProcess(StoreOptions options) {
    options.job.owner = "the launcher on host l";
    const auto open = [&](dtrain::async::EventLoop& loop) { return start(loop, std::move(options)); };
    thread_.run_blocking(open, soon());
  }
  explicit StoreProcess(int world_size) : StoreProcess(with_world_size(world_size)) {}
  /// For a job of so many ranks, whose other options `set(options)` sets.
  StoreProcess(int world_size, const std::function<void(StoreOptions&)>& set)
      : StoreProcess(with_world_size(world_size, set)) {}
  StoreProcess(const StoreProcess&) = delete;
  StoreProcess& operator=(const StoreProcess&) = delete;
  ~StoreProcess() { stop(); }

  static StoreOptions with_world_size(
      int world_size, const std::function<void(StoreOptions&)>& set = [](StoreOptions&) {}) {
    StoreOptions options;
    options.job.world_size = world_size;
    set(options);
    return options;
  }

  void stop() {
    const auto close = [&](dtrain::async::EventLoop&) { return end(); };
    thread_.run_blocking(close, soon());
  }
  bool all_left(Deadline deadline) {
    const auto wait = [&](dtrain::async::EventLoop&) { return job_->all_left(deadline); };
    return thread_.run_blocking(wait, soon());
  }
  void post_failure(const Cause& cause) {
    thread_.loop().post([this, cause] { job_->post_failure(cause); });
  }
  std::size_t connections() {
    std::size_t count = 0;
    const auto ask = [&](dtrain::async::EventLoop&) { return count_connections(count); };
    thread_.run_blocking(ask, soon());
    return count;
  }
  /// How many keys the job has, and their bytes with those of their values.
  std::pair<std::size_t, std::size_t> contents() {
    std::pair<std::size_t, std::size_t> found;
    const auto ask = [&](dtrain::async::EventLoop&) { return count_keys(found); };
    thread_.run_blocking(ask, soon());
    return found;
  }
  std::uint16_t port() const { return port_; }

  /// Starts the job again.
  void open(StoreJobOptions options) {
    const auto replace = [&](dtrain::async::EventLoop&) { return reopen(std::move(options)); };
    thread_.run_blocking(replace, soon());
  }

 private:
  dtrain::async::Task<void> start(dtrain::async::EventLoop& loop, StoreOptions options) {
    server_.emplace(loop, dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0)),
                    ServerOptions{options.secret, options.limits});
    job_ = &server_->open(std::move(options.job));
    port_ = server_->local().port();
    co_return;
  }
  dtrain::async::Task<void> reopen(StoreJobOptions options) {
    job_ = &server_->open(std::move(options));
    co_return;
  }
  dtrain::async::Task<void> end() {
    server_.reset();
    co_return;
  }
  dtrain::async::Task<void> count_keys(std::pair<std::size_t, std::size_t>& found) {
    found = {job_->state().keys().size(), job_->state().keys().bytes()};
    co_return;
  }
  dtrain::async::Task<void> count_connections(std::size_t& count) {
    count = server_->pending_connections() + job_->sessions();
    co_return;
  }

  dtrain::async::LoopThread thread_;
  std::optional<StoreServer> server_;
  JobServer* job_ = nullptr;
  std::uint16_t port_ = 0;
};

inline ControlPlaneOptions rank_options(int rank, int world_size, std::uint16_t port) {
  ControlPlaneOptions options;
  options.identity.rank = rank;
  options.identity.world_size = world_size;
  options.identity.master_addr = "127.0.0.1";
  options.identity.master_port = port;
  options.timeout = std::chrono::seconds(60);
  return options;
}

/// Runs `body(rank)` on a thread for each rank. @returns what each threw; empty where it returned
inline std::vector<std::string> on_ranks(int world_size, const std::function<void(int)>& body) {
  std::vector<std::string> errors(static_cast<std::size_t>(world_size));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  threads.clear();
  return errors;
}

/// Who listens in place of a store.
using Serve = std::function<dtrain::async::Task<void>(dtrain::net::Listener)>;

/// Runs `serve(listener)` on the thread. @returns the listener's port
inline std::uint16_t start_serving(dtrain::async::LoopThread& thread, const Serve& serve) {
  std::uint16_t port = 0;
  const auto open = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
    dtrain::net::Listener listener = dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0));
    port = listener.port();
    loop.spawn_detached(serve(std::move(listener)));
    co_return;
  };
  thread.run_blocking(open, soon());
  return port;
}

/// For start_serving: answers each connection with these bytes, and ends it.
inline dtrain::async::Task<void> answer_all(dtrain::net::Listener listener, std::string answer) {
  for (;;) {
    std::optional<dtrain::net::Connection> connection =
        co_await listener.accept(Deadline::unbounded("the loop ends before its test"));
    static_cast<void>(connection->try_write(std::as_bytes(std::span(answer))));
    std::array<std::byte, 1024> request;  // unread bytes would reset the connection
    static_cast<void>(co_await connection->readable(soon()));
    static_cast<void>(connection->try_read(request));
  }
}

/// For start_serving: takes one connection, and says nothing.
inline dtrain::async::Task<void> take_in_silence(dtrain::net::Listener listener) {
  const std::optional<dtrain::net::Connection> connection = co_await listener.accept(soon());
  static_cast<void>(co_await listener.accept(Deadline::unbounded("the loop ends before its test")));
}

/// A port that is free in a moment.
inline std::uint16_t free_port() {
  const StoreProcess probe(1);
  return probe.port();
}

/// A rank that joins, waits for all others, and leaves.
inline void join_and_leave(const ControlPlaneOptions& options) {
  ControlPlane control_plane(options);
  control_plane.store().barrier("all", soon()).wait();
  control_plane.leave_blocking(soon());
}

/// The sentence with which a rank with these options does not join; empty where it does.
inline std::string error_of_joining(const ControlPlaneOptions& options) {
  return on_ranks(1, [&](int) { const ControlPlane control_plane(options); }).front();
}

/// A latch that is set within the time, and its sentence.
inline std::string cause_of(const FailureLatch& failure, Deadline deadline = soon()) {
  support::holds_before(deadline, [&] { return failure.failed(); });
  const std::optional<Cause> cause = failure.cause();
  return cause ? cause->sentence() : "";
}

}  // namespace rendezvous_test
