#pragma once
/// @file
/// Channel of one rank over messages: operations in order, timeouts and failure. The Communicator beside it owns one.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/backend/message_passing/algorithms/algorithm_table.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/message_passing/transport.hpp"
#include "dtrain/backend/ordered_channel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// See OrderedChannel. Threads: run, and calls from its work, in the thread that runs the stream; abort, failure and
/// close in any.
template <Transport T>
class Channel final : public OrderedChannel {
 public:
  using Endpoint = typename T::Endpoint;

  /// A message from this rank to itself, which no endpoint carries.
  struct SelfMessage {
    Operation operation;
    std::vector<std::byte> bytes;
  };

  /// Collective, blocking. @throws as the Transport
  Channel(const ChannelContext& context, std::vector<int> job_ranks, Deadline deadline)
      : OrderedChannel(context),
        info_{context.name, std::move(job_ranks), T::tuning(context), context.describe, context.accumulate},
        algorithms_{context.algorithms},
        notice_(context.notice_after),
        transport_(context, info_.job_ranks, deadline) {}

  int rank() noexcept { return transport_.endpoint().rank(); }
  int size() noexcept { return transport_.endpoint().size(); }
  std::deque<SelfMessage>& self_messages() noexcept { return self_messages_; }

  /// Runs the routine from `make(context, channel)` as the `turn`-th enqueued operation; skips it if the channel has
  /// failed. Fails the channel if an earlier operation has not run, or another one is running.
  template <class Make>
  void run(std::uint64_t turn, const Operation& operation, const Make& make) noexcept {
    run_in_order(
        turn, [&]() noexcept { execute(operation, make); },
        [&]() noexcept { fail_operation(CauseKind::exception, operation, " ", began_early); });
  }

  /// Ends running and later work of this rank. The first cause is kept.
  void abort(const Cause& cause) noexcept override {
    if (cause_.set(cause) && process_.is_current()) {  // a forked process lacks the thread to interrupt
      transport_.interrupt();
    }
  }

  /// See OrderedChannel::close_order. Peers that wait for operations that have not begun learn that this rank has left.
  /// An operation that had begun fails the job, because a peer may wait for the rest of its messages.
  void close(std::uint64_t enqueued) noexcept {
    const bool has_failed = aborted();
    const bool interrupted = close_order(enqueued);
    if (interrupted && !has_failed) {
      report_quietly(*failure_, *failure());
    }
    transport_.close(!has_failed && !interrupted);
  }

 private:
  ~Channel() override = default;

  class OperationCancellationToken final : public CancellationToken {
   public:
    OperationCancellationToken(Channel& of, const Operation& running) noexcept
        : channel(of), operation(running), deadline(Deadline::after(of.timeout_)) {}

    bool aborted() const noexcept override { return channel.aborted(); }
    bool should_end() const noexcept override { return deadline.passed() || aborted(); }
    bool cancelled() noexcept override {
      timed_out = deadline.passed();
      return timed_out || aborted();
    }
    void stalled() noexcept override {
      if (channel.on_stall_) {
        channel.on_stall_();
      }
      const auto describe = [this](std::chrono::milliseconds waited) {  // the peer is known after cancellation only
        return format_text(
            "{}: it had not ended after {} ms; does every rank call it? DTRAIN_TIMEOUT_SECONDS is how long it may take",
            {described_on(channel.info_.name, operation, channel.info_.describe), waited.count()});
      };
      channel.notice_.update(channel.job_rank_, channel.timeout_ - deadline.remaining(), describe);
    }
    std::string reason() const override {
      const std::optional<Cause> cause = channel.failure();
      return format_text("rank {}: ends because {}",
                         {channel.job_rank_, cause ? cause->sentence() : "an operation timed out"});
    }

    Channel& channel;
    const Operation& operation;
    const Deadline deadline;
    bool timed_out = false;
  };

  template <class Make>
  void execute(const Operation& operation, const Make& make) noexcept {
    OperationContext<Endpoint> context{transport_.endpoint(), scratch_, info_, operation,
                                       algorithms_.is_fixed() ? nullptr : &algorithms_};
    OperationCancellationToken token(*this, operation);
    try {
      Routine routine = make(context, *this);
      if (!transport_.run_blocking(routine, token)) {
        scratch_.leak();
      }
      if (token.timed_out && !aborted()) {  // even if the operation ended just then: the transport has cancelled it
        fail_operation(CauseKind::timeout, operation, ": ", missing());
      } else if (routine.done()) {
        routine.check();
      } else if (!aborted()) {
        fail_operation(CauseKind::exception, operation, " was cancelled, because ",
                       format_text("{} is out of service in this process since another operation was cancelled",
                                   {T::backend_name()}));
      }
      if (!routine.done() || token.timed_out) {
        log_place_at_timeout(failure(), *failure_, job_rank_, described_on(info_.name, operation, info_.describe));
      }
    } catch (const PeerHasLeft& error) {
      explain(operation, error, true);
    } catch (const Error& error) {
      explain(operation, error, false);
    } catch (const std::exception& error) {
      fail_operation(CauseKind::exception, operation, ": ", error.what());
    }
  }

  /// Unless the calls differ, waits up to 500 ms for the job's first cause, because the peer may have failed first.
  void explain(const Operation& operation, const Error& error, bool peer_has_left) noexcept {
    const bool disagrees = error.code() == make_error_code(Errc::disagreement);
    if (!disagrees || peer_has_left) {
      failure_->block_until_failed(Deadline::after(std::chrono::milliseconds(500)));
    }
    if (aborted()) {
      return;
    }
    if (disagrees) {
      fail({CauseKind::disagreement, -1, "", error.what()});
    } else {
      fail_operation(CauseKind::exception, operation, ": ", error.what());
    }
  }

  std::string missing() const {
    const auto [rank, sends] = transport_.waits_for();
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
    if (rank < 0 || rank >= static_cast<int>(info_.job_ranks.size())) {
      return format_text("it had not ended after {} ms", {waited.count()});
    }
    return format_text(
        "rank {} had not {} after {} ms; does every rank call it? DTRAIN_TIMEOUT_SECONDS is how long it may take",
        {info_.job_ranks[static_cast<std::size_t>(rank)], sends ? "sent its part" : "taken what was sent to it",
         waited.count()});
  }

  /// Fails the channel: "all_reduce (sum) of 10 f32, operation 5 of channel 'group'", `joint` and `problem`.
  DTRAIN_NOT_INLINED void fail_operation(CauseKind kind, const Operation& operation, const char* joint,
                                         std::string_view problem) {
    fail({kind, job_rank_, host_,
          format_text("{}{}{}", {described_on(info_.name, operation, info_.describe), joint, problem})});
  }

  const OwningProcess process_;
  const ChannelInfo info_;
  ChannelAlgorithms algorithms_;
  WaitNotice notice_;
  T transport_;
  Scratch scratch_;
  std::deque<SelfMessage> self_messages_;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
