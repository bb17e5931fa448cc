#pragma once
/// @file
/// ProcessGroup: a rank's handle on the job it belongs to.

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/event_loop.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/throw_if_failed.hpp"
#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/launch/participation.hpp"
#include "dtrain/policy.hpp"
#include "dtrain/rendezvous/control_tasks.hpp"
#include "dtrain/rendezvous/delete_off_loop.hpp"
#include "dtrain/rendezvous/participant.hpp"

namespace DTRAIN_NAMESPACE {

using async::Task;
using rendezvous::BackgroundTask;

/// A shared handle: copies are the same group. What takes a stream enqueues on it; what ends in `_blocking` waits, at
/// most timeout(). Threads: collectives of one group come from one thread at a time and in the same order on every
/// rank; store(), failure() and the identity from any thread. Errors: once the job has failed every call throws its
/// first cause (PeerLost, JobFailed; on the rank it came from, Error).
///
/// Leaving: the last handle's destruction says that this rank is done, and then the job goes on without it. If an
/// exception is unwinding the stack at that moment the rank counts as failed, and the others are told.
template <class P>
class ProcessGroup {
 public:
  using Policy = P;
  using Communicator = typename P::Backend::Communicator;
  using Stream = typename Communicator::Stream;

  /// Collective, blocking: joins the job as the rank that `worker` describes. For run() and init_process_group().
  /// @throws Error for an identity that the others do not agree with, a host that does not resolve, a port in use, a
  /// deadline that passes (the sentence names who has not come).
  static ProcessGroup join(const launch::Worker& worker) {
    return ProcessGroup(std::shared_ptr<State>(new State(worker), rendezvous::DeleteOffLoop()));
  }

  int rank() const noexcept { return members().rank; }
  int world_size() const noexcept { return members().world_size; }
  int local_rank() const noexcept { return members().local_rank; }
  int local_world_size() const noexcept { return members().local_world_size; }
  int node_rank() const noexcept { return members().node_rank; }
  int node_count() const noexcept { return members().node_count; }
  const rendezvous::Membership& members() const noexcept { return state_->participant.membership(); }

  /// The longest that one collective may take, from the moment it begins to run (DTRAIN_TIMEOUT_SECONDS).
  std::chrono::nanoseconds timeout() const noexcept { return state_->timeout; }

  /// The job's key-value store; its calls without a deadline take timeout() at most.
  rendezvous::Store store() const { return state_->participant.store().with_timeout(timeout()); }

  /// Runs a coroutine of yours on this rank's control loop, beside dtrain's own, and gives its value:
  /// `run_blocking([&]() -> dtrain::Task<std::string> { co_return co_await group.store().get("key"); })`. There the
  /// store's coroutine forms suspend; what ends in `_blocking` throws instead of waiting for itself, and whatever else
  /// blocks the thread delays the whole rank's control.
  /// Blocking: until the coroutine has ended; at the deadline it is cancelled (none: timeout() and a moment, for what
  /// the store says of its own timeouts). @param make gives the Task; may take the loop (async::EventLoop&)
  /// @throws what the coroutine throws; the job's first cause; Error (timeout); Error (closed) after leave_blocking
  template <class Make>
  auto run_blocking(Make&& make, std::optional<Deadline> deadline = {}) const {
    const Deadline by = deadline ? *deadline : rendezvous::a_moment_after(Deadline::after(timeout()));
    return state_->tasks.run_blocking(make, by);
  }

  /// The same in the background: the coroutine runs until it ends, its owner (the result) is destroyed, the job fails
  /// or this rank leaves. BackgroundTask::wait_blocking gives its value and its exception, which else nobody sees.
  /// Lifetime: `make` is kept; a handle of the group outside the coroutine outlives it. Threads: any.
  template <class Make>
  auto spawn(Make make) const {
    return state_->tasks.start(std::move(make));
  }

  /// Where the job's first cause arrives.
  const std::shared_ptr<FailureLatch>& failure() const noexcept { return state_->participant.failure(); }

  /// The stream that the group's own collectives run on when they block.
  Stream stream() const { return state_->stream.ref(); }

  /// `output` gets the reduction of every rank's `input`. Collective; enqueued on `stream`.
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) const {
    P::Topology::all_reduce(state_->live(), input, output, op, stream);
  }

  /// `buffer` gets rank `root`'s content. Collective; enqueued on `stream`.
  void broadcast(BufferView buffer, int root, Stream stream) const { state_->live().broadcast(buffer, root, stream); }

  /// Completes when every rank's stream has come to it. Collective; enqueued on `stream`.
  void barrier(Stream stream) const { state_->live().barrier(stream); }

  /// Every rank's `values` become their reduction over the ranks. Collective, blocking.
  template <Element T>
  void all_reduce_blocking(std::span<T> values, ReduceOp op) const {
    all_reduce(buffer_view(values), buffer_view(values), op, stream());
    wait();
  }

  /// Every rank's `values` become rank `root`'s. Collective, blocking.
  template <Element T>
  void broadcast_blocking(std::span<T> values, int root) const {
    broadcast(buffer_view(values), root, stream());
    wait();
  }

  /// Returns when every rank has called it. Collective, blocking.
  void barrier_blocking() const {
    barrier(stream());
    wait();
  }

  /// Collective, blocking: passes when every rank has come here and none has failed. Before a checkpoint is written.
  void throw_if_failed() const { barrier_blocking(); }

  /// Collective, blocking: a channel of its own, which never waits for another. Every rank opens the same channels in
  /// the same order; `purpose` appears in messages.
  Communicator open_channel(const std::string& purpose) const {
    require_may_block();
    const std::string name = purpose + "-" + std::to_string(state_->channels_opened.fetch_add(1));
    return state_->open(name);
  }

  /// Tells the job that this rank failed; every rank ends with `text` as the cause unless another cause came first.
  /// Blocking: until the job knows, 2 s at most.
  void report_exception(const std::string& text) const noexcept { state_->report_exception(text); }

  /// A step was destroyed before it finished. While an exception unwinds, whoever catches it knows its text and is
  /// given 100 ms to report it first. Blocking: no.
  void note_abandoned_step(bool unwinding) const noexcept {
    const auto grace = unwinding ? std::chrono::milliseconds(100) : std::chrono::milliseconds(0);
    state_->report_after(grace, "a step was abandoned without finish()");
  }

  /// Keeps `work` until this rank's end: for channels that an exception unwinds. Closing them at once would tell the
  /// peers that this rank went away before whoever catches the exception can tell them why. Threads: any.
  void outlive(std::shared_ptr<void> work) const noexcept { state_->outlive(std::move(work)); }

  /// Says that this rank is done: from now on its end is no loss. For run(). Blocking: a rank that hosts the store
  /// stays until all have left, timeout() at most.
  void leave_blocking() const {
    require_may_block();
    state_->leave_blocking();
  }

  /// @throws Error (invalid_argument) on the control thread, where a coroutine runs: what blocks would wait for itself.
  void require_may_block() const { state_->require_may_block(); }

 private:
  struct State {
    explicit State(const launch::Worker& worker)
        : timeout(worker.timeout),
          participant(launch::participant_options(worker, terms(worker))),
          tasks(participant.control_thread(), participant.failure(), participant.membership().rank),
          communicator(open("group")) {}

    void require_may_block() const {
      if (tasks.on_loop_thread()) {
        throw Error(Errc::invalid_argument,
                    "a collective or a call that blocks was made in a coroutine on the control thread, where it would "
                    "wait for itself; make it on a thread of the program");
      }
    }

    /// @throws Error (closed) after leave_blocking; Error (invalid_argument) on the control thread.
    Communicator& live() {
      require_may_block();
      if (!communicator) {
        throw Error(Errc::closed, "a collective was called on a process group that this rank has left");
      }
      return *communicator;
    }

    State(const State&) = delete;
    State& operator=(const State&) = delete;

    ~State() {
      if (left) {
        return;
      }
      try {
        if (std::uncaught_exceptions() > exceptions_at_start) {
          report_exception("an exception ended the process group");
        } else if (!participant.failure()->failed()) {
          leave_blocking();
        }
      } catch (...) {
        // The others see the closed connection.
      }
    }

    /// What must be the same on all ranks. Their models and what is said about these are compared when they are
    /// wrapped.
    static std::string terms(const launch::Worker& worker) {
      rendezvous::AgreedTerms terms;
      terms.add("launcher", P::Launcher::name())
          .add("backend", P::Backend::name())
          .add("topology", P::Topology::name());
      terms.add("DTRAIN_TIMEOUT_SECONDS", std::to_string(std::chrono::duration<double>(worker.timeout).count()));
      return terms.text();
    }

    Communicator open(const std::string& name) {
      const backend::ChannelContext context{participant.membership(), name, participant.store().with_prefix(name + "/"),
                                            participant.failure(), timeout};
      return P::Backend::open_blocking(context, Deadline::after(timeout));
    }

    Cause exception_cause(std::string text) const {
      const rendezvous::Membership& self = participant.membership();
      return {CauseKind::exception, self.rank, self.host, std::move(text)};
    }

    void report_exception(const std::string& text) noexcept {
      try {
        participant.failure()->report(exception_cause(text));
        if (!tasks.on_loop_thread()) {
          participant.failure()->block_until_failed(Deadline::after(std::chrono::seconds(2)));
        }
      } catch (...) {
        // The others see the closed connection.
      }
    }

    void report_after(std::chrono::milliseconds grace, std::string text) noexcept {
      try {
        async::EventLoop& loop = participant.control_thread().loop();
        loop.post([&loop, grace, latch = participant.failure(), cause = exception_cause(std::move(text))] {
          loop.spawn_detached(report_later(loop, grace, latch, cause));
        });
      } catch (...) {
        // The others notice when this rank leaves without having taken part.
      }
    }

    static async::Task<void> report_later(async::EventLoop& loop, std::chrono::milliseconds grace,
                                          std::shared_ptr<FailureLatch> latch, Cause cause) {
      co_await loop.sleep_for(grace);
      latch->report(cause);
    }

    void outlive(std::shared_ptr<void> work) noexcept {
      try {
        const std::lock_guard lock(kept_mutex);
        kept.push_back(std::move(work));
      } catch (...) {
        // Then it ends now; the others may hear a less good cause.
      }
    }

    void leave_blocking() {
      left = true;
      tasks.close_blocking();
      communicator.reset();  // ranks that still call collectives are told so instead of waiting for this one
      participant.leave_blocking(Deadline::after(timeout));
    }

    std::chrono::nanoseconds timeout;
    rendezvous::Participant participant;
    rendezvous::ControlTasks tasks;
    typename P::Backend::StreamOwner stream;
    std::optional<Communicator> communicator;  ///< nothing once this rank has left
    std::mutex kept_mutex;
    std::vector<std::shared_ptr<void>> kept;  ///< goes before what it stands on
    std::atomic<int> channels_opened{0};
    bool left = false;
    int exceptions_at_start = std::uncaught_exceptions();
  };

  explicit ProcessGroup(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  void wait() const {
    typename Stream::Event event;
    stream().record(event);
    backend::block_until_complete(event, state_->live(), *failure(), timeout());
  }

  std::shared_ptr<State> state_;
};

}  // namespace DTRAIN_NAMESPACE
