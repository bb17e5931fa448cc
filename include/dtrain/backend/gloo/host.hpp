#pragma once
/// @file
/// What carries a channel's routines where messages go over Gloo.

#include <chrono>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/worker.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/gloo/mesh.hpp"
#include "dtrain/backend/gloo/wire.hpp"
#include "dtrain/backend/message_passing/host.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"

#if DTRAIN_WITH_GLOO

namespace DTRAIN_NAMESPACE::backend::gloo {

/// See message_passing::Host. Gloo's waits block: the channel's own thread runs the routine straight through, and the
/// thread that runs the stream waits for that one, keeps the deadline, and notices when the operation is given up.
class Host {
 public:
  using Wire = gloo::Wire;

  static constexpr const char* backend_name() noexcept { return "backend::Gloo"; }

  /// Collective, blocking. @throws Error (unsupported, closed, timeout, protocol), JobFailed
  Host(const ChannelContext& context, const std::vector<int>& /*job_ranks*/, Deadline deadline)
      : failure_(context.failure), mesh_(std::make_unique<Mesh>(context, deadline)) {
    mesh_->exchange(context.store, deadline);
    connect(context, deadline);
    mesh_->await_all(context.store, deadline);
    wire_.emplace(*mesh_);
  }
  ~Host() { close(true); }

  Wire& wire() noexcept { return *wire_; }

  /// Within a host blocks go straight to who reduces them, in pieces as long as Gloo's own: what counts is how often
  /// threads are woken. Between hosts in shorter ones, of which more are on their way.
  static message_passing::Tuning tuning(const ChannelContext& context) noexcept {
    message_passing::Tuning tuning;
    if (context.members.node_count == 1) {
      tuning.all_to_all = true;
      tuning.chunk_bytes = 1024 * 1024;
      tuning.chunks_in_flight = 2;
    }
    return tuning;
  }

  /// Blocking: until the routine is done, or `watch` gives it up. @returns true: the operation's memory is free again
  template <class Watch>
  bool run_blocking(message_passing::Routine& routine, Watch& watch) noexcept {
    auto work = [&]() noexcept { routine.resume(); };
    worker_.start(work);
    std::chrono::milliseconds patience(1);
    while (!worker_.wait(Deadline::after(std::exchange(patience, std::chrono::milliseconds(20))))) {
      if (watch.gives_up()) {
        wire_->interrupt();
      } else {
        watch.stalled();
      }
    }
    if (!wire_->is_idle()) {
      give_up(routine);
    }
    return true;
  }

  /// See Wire.
  std::pair<int, bool> waits_for() const noexcept { return wire_->waits_for(); }

  /// From any thread: the operation under way ends, and there is no later one.
  void interrupt() noexcept { wire_->interrupt(); }

  /// The connections end; peers that wait for this rank find them closed.
  void close(bool /*clean*/) noexcept {
    while (!worker_.wait(Deadline::after(std::chrono::hours(1)))) {
    }
    if (wire_) {
      wire_->abandon();
    }
    mesh_.reset();
  }

 private:
  /// How long the job's first cause is waited for where a peer has closed its connection: longer than the store waits
  /// for a lost rank to come back.
  static constexpr std::chrono::milliseconds grace{1200};

  /// In the channel's thread, from which a failure of the job calls it back.
  void connect(const ChannelContext& context, Deadline deadline) {
    std::exception_ptr failed;
    auto work = [&]() noexcept {
      try {
        mesh_->connect();
      } catch (...) {
        failed = std::current_exception();
      }
    };
    worker_.start(work);
    while (!worker_.wait(Deadline::after(std::chrono::milliseconds(10)))) {
      if (deadline.passed() || context.failure->failed()) {
        mesh_->interrupt();
      }
      if (context.on_stall) {
        context.on_stall();
      }
    }
    if (failed && !deadline.passed()) {  // a peer that is gone, of which the job may know more
      context.failure->block_until_failed(earlier(deadline, Deadline::after(grace)));
    }
    context.failure->throw_if_failed(context.reporting_rank());
    if (deadline.passed()) {
      throw Error(Errc::timeout, "connecting channel '" + context.name + "' over Gloo took too long");
    }
    if (failed) {
      std::rethrow_exception(failed);
    }
  }

  /// Nobody touches the operation's memory any more; then the connections, on which a message may be half received, are
  /// closed.
  void give_up(const message_passing::Routine& routine) noexcept {
    wire_->interrupt();
    wire_->abandon();
    try {
      if (routine.done()) {
        routine.check();
      }
    } catch (const Error& error) {
      if (error.code() == make_error_code(Errc::closed)) {
        failure_->block_until_failed(Deadline::after(grace));
      }
    } catch (...) {  // whoever asked for the operation says it
    }
    worker_.start(close_connections_);
  }

  struct CloseConnections {
    Host& host;
    void operator()() const noexcept { host.mesh_->interrupt(); }
  };

  const std::shared_ptr<FailureLatch> failure_;
  std::unique_ptr<Mesh> mesh_;
  std::optional<Wire> wire_;
  CloseConnections close_connections_{*this};
  async::Worker worker_;  ///< goes first
};

static_assert(message_passing::Host<Host>);

}  // namespace DTRAIN_NAMESPACE::backend::gloo

#endif  // DTRAIN_WITH_GLOO
