#pragma once
/// @file
/// message_passing::Communicator: enqueues collectives over any Transport on a host stream. Channel: its operations in
/// order, with timeouts and failure.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/failure/first_cause.hpp"
#include "dtrain/backend/failure/timeout_diagnosis.hpp"
#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"
#include "dtrain/backend/message_passing/algorithms/exchange_blocks.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/transport.hpp"
#include "dtrain/backend/ordered_channel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

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
        notice_(context.notice_after, context.is_shown_by_store),
        timeout_diagnosis_(context),
        transport_(context, info_.job_ranks, deadline) {}

  int rank() noexcept { return transport_.endpoint().rank(); }
  int size() noexcept { return transport_.endpoint().size(); }
  std::deque<SelfMessage>& self_messages() noexcept { return self_messages_; }

  /// Runs the routine from `make(context, channel)` as the `turn`-th enqueued operation; skips it if the channel has
  /// failed. Fails the channel if an earlier operation has not run, or another one is running.
  template <class Make>
  void run(std::uint64_t turn, const Operation& operation, const Make& make) noexcept {
    run_in_order(
        turn, operation, [&]() noexcept { execute(operation, make); },
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
    OperationContext<Endpoint> context{transport_.endpoint(), scratch_, info_, operation};
    OperationCancellationToken token(*this, operation);
    try {
      Routine routine = make(context, *this);
      if (!transport_.run_blocking(routine, token)) {
        scratch_.leak();
      }
      if (token.timed_out && !aborted()) {  // even if the operation ended just then: the transport has cancelled it
        fail_operation(CauseKind::timeout, operation, ": ", missing(operation));
      } else if (routine.done()) {
        routine.check();
      } else if (!aborted()) {
        fail_operation(CauseKind::exception, operation, " was cancelled, because ",
                       format_text("{} is out of service in this process since another operation was cancelled",
                                   {T::backend_name()}));
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

  /// Blocking: as TimeoutDiagnosis.
  std::string missing(const Operation& operation) const {
    const auto [rank, sends] = transport_.waits_for();
    const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
    if (rank < 0 || rank >= static_cast<int>(info_.job_ranks.size())) {
      return format_text("it had not ended after {} ms", {waited.count()});
    }
    const std::string lost = timeout_diagnosis_.lost_data_blocking(operation, rank, T::backend_name());
    return format_text(
        "rank {} had not {} after {} ms; {} DTRAIN_TIMEOUT_SECONDS is how long it may take",
        {info_.job_ranks[static_cast<std::size_t>(rank)], sends ? "sent its part" : "taken what was sent to it",
         waited.count(), lost.empty() ? "does every rank call it?" : lost + ";"});
  }

  /// Fails the channel: "all_reduce (sum) of 10 f32, operation 5 of channel 'group'", `joint` and `problem`.
  DTRAIN_NOT_INLINED void fail_operation(CauseKind kind, const Operation& operation, const char* joint,
                                         std::string_view problem) {
    fail({kind, job_rank_, host_,
          format_text("{}{}{}", {described_on(info_.name, operation, info_.describe), joint, problem})});
  }

  const OwningProcess process_;
  const ChannelInfo info_;
  WaitNotice notice_;
  const TimeoutDiagnosis<> timeout_diagnosis_;
  T transport_;
  Scratch scratch_;
  std::deque<SelfMessage> self_messages_;
};

/// A collective. Owns `buffers.blocks` until release().
template <Endpoint E>
struct CollectiveAlgorithm {
  Buffers buffers;
  Routine (*algorithm)(OperationContext<E>& context, const Buffers& buffers);

  template <class Channel>
  Routine operator()(OperationContext<E>& context, Channel& /*channel*/) const {
    return algorithm(context, buffers);
  }
  void release() const noexcept { delete buffers.blocks; }
};

/// A send, a recv, or both, with the peers (-1: none). The operation describes the received message, or the sent one if
/// there is no recv.
struct MessageAlgorithm {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::int32_t to;
  std::int32_t from;
  DType input_dtype;

  template <Endpoint E, class Channel>
  Routine operator()(OperationContext<E>& context, Channel& channel) const {
    return point_to_point_or_self(context, channel, *this);
  }

 private:
  /// Like point_to_point, but a message to this rank itself is stored until its recv.
  template <Endpoint E, class Channel>
  static Routine point_to_point_or_self(OperationContext<E>& context, Channel& channel,
                                        const MessageAlgorithm& message) {
    PointToPoint work{{}, {}, message.to, message.from, context.operation, TagClass::direct, nullptr};
    work.sent.count = message.input_count;
    work.sent.dtype = message.input_dtype;
    if (message.to >= 0) {
      work.input = {message.input, message.input_count * size_bytes(message.input_dtype)};
    }
    if (message.from >= 0) {
      work.output = {message.output, context.operation.count * size_bytes(context.operation.dtype)};
    }
    if (message.to == context.rank()) {
      channel.self_messages().push_back({work.sent, {work.input.begin(), work.input.end()}});
      work.to = -1;
    }
    if (message.from == context.rank()) {
      if (channel.self_messages().empty()) {
        throw_error(Errc::disagreement, "on channel '{}', rank {} receives from itself what it has not sent before",
                    {context.channel.name, channel.job_rank()});
      }
      const auto stored = std::move(channel.self_messages().front());
      channel.self_messages().pop_front();
      if (stored.operation.count != context.operation.count || stored.operation.dtype != context.operation.dtype) {
        detail::disagree_on_message(context, context.rank(), stored.operation);
      }
      kernels::copy_bytes(work.output.data(), stored.bytes.data(), stored.bytes.size());
      work.from = -1;
    }
    Routine routine = point_to_point(context, work);
    co_await routine;
  }
};

/// Owns one rank's channel. Reduces every DType but 8-bit floats, by every ReduceOp; the bits depend only on the count,
/// the number of ranks and the transport's Tuning. An operation runs in the thread that waits for the stream, or in its
/// helper thread, and blocks that thread until it is done. Threads: one at a time; abort() and failure() from any. The
/// destructor skips work that has not run.
template <Transport T>
class Communicator {
 public:
  using Stream = stream::host::StreamRef;
  using Allocation = HostAllocation;
  using Endpoint = typename T::Endpoint;
  using SelectedAllReduce = message_passing::SelectedAllReduce<Endpoint>;

  /// Collective, blocking. Communicators split from this one also have its `selected`.
  /// @throws Error (timeout, limit, protocol), JobFailed, exceptions of the Transport
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const SelectedAllReduce& selected = {}) {
    Communicator opened(context, deadline, selected);
    opened.owner_->subscribe();
    return opened;
  }

  int rank() const noexcept { return channel().rank(); }
  int size() const noexcept { return channel().size(); }
  const rendezvous::Membership& members() const noexcept { return owner_->context.members; }

  /// Operations, which throw Error (unsupported, invalid_argument) at the call.
  /// - exchange_blocks: each rank sends its blocks directly to their ranks.
  /// - reduce_blocks: each rank reduces its block in rank order, with the bits of SharedMemory, and so receives it from
  ///   every other rank. Both allocate a copy of their BlockExchange.
  /// - Small messages do not wait for their receiver.
  /// @{
  void enqueue(const AllReduce& call, Stream stream) {
    check_all_reduce_memory(selected_.topology, T::backend_name(), call.devices());
    call.check(place());
    const bool selects = selected_.routine != nullptr && size() > 1;
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream,
                       selects ? selected_.routine : &collective<Endpoint>);
  }
  void enqueue(const Broadcast& call, Stream stream) {
    check(call);
    enqueue_collective(call.describe(), {call.buffer.data, call.buffer.data}, stream);
  }
  void enqueue(const Barrier& call, Stream stream) { enqueue_collective(call.describe(), {}, stream); }
  void enqueue(const ReduceScatter& call, Stream stream) {
    check(call);
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream);
  }
  void enqueue(const AllGather& call, Stream stream) {
    check(call);
    enqueue_collective(call.describe(), {call.input.data, call.output.data}, stream);
  }
  void enqueue(const ExchangeBlocks& call, Stream stream) { enqueue_blocks(call, stream); }
  void enqueue(const ReduceBlocks& call, Stream stream) { enqueue_blocks(call, stream); }
  void enqueue(const Send& call, Stream stream) {
    check(call);
    owner_->enqueue(call.describe(),
                    MessageAlgorithm{call.input.data, nullptr, call.input.count, call.peer, -1, call.input.dtype},
                    stream);
  }
  void enqueue(const Recv& call, Stream stream) {
    check(call);
    owner_->enqueue(call.describe(), MessageAlgorithm{nullptr, call.output.data, 0, -1, call.peer, call.output.dtype},
                    stream);
  }
  void enqueue(const SendRecv& call, Stream stream) {
    check(call);
    Operation operation = call.describe();
    operation.count = call.output.count;  // the received message's: see MessageAlgorithm
    operation.dtype = call.output.dtype;
    owner_->enqueue(
        operation,
        MessageAlgorithm{call.input.data, call.output.data, call.input.count, call.to, call.from, call.input.dtype},
        stream);
  }
  /// @}

  /// See CanSplit. @throws Error (invalid_argument) at the call for a negative color; as open_blocking
  Communicator split_blocking(int color, int key, Deadline deadline) {
    channel().throw_if_failed();
    return open_blocking(owner_->split(color, key, deadline), deadline, selected_);
  }

  /// See CanAllocate. Ordinary memory, without communication: a rank that is out of memory fails alone.
  /// @throws Error (out_of_memory); the job's first cause, or the channel's
  Allocation allocate_blocking(std::size_t bytes, Deadline /*deadline*/) {
    channel().throw_if_failed();
    return allocate_zeroed(bytes);
  }

  /// See CanAbort. The job notifies the peers' channels.
  void abort(const Cause& cause) noexcept { channel().abort(cause); }
  std::optional<Cause> failure() const { return channel().failure(); }

 private:
  Communicator(const ChannelContext& context, Deadline deadline, const SelectedAllReduce& selected)
      : owner_(make_process_owned<ChannelOwner<Channel<T>>>(context, context.members.ranks_in_job(), deadline)),
        selected_(selected) {}

  Channel<T>& channel() const noexcept { return *owner_->channel; }

  RankPlace place() const noexcept { return {rank(), size()}; }

  template <class Call>
  void check(const Call& call) const {
    check_host_memory(T::backend_name(), call.devices());
    call.check(place());
  }

  void enqueue_collective(const Operation& operation, const Buffers& buffers, Stream stream,
                          Routine (*algorithm)(OperationContext<Endpoint>&, const Buffers&) = &collective<Endpoint>) {
    owner_->enqueue(owner_->next(operation), CollectiveAlgorithm<Endpoint>{buffers, algorithm}, stream);
  }

  template <class Call>
  void enqueue_blocks(const Call& call, Stream stream) {
    check(call);
    auto copied = std::make_unique<const BlockExchange>(call.blocks);
    enqueue_collective(call.describe(), {call.input.data, call.output.data, copied.get()}, stream);
    static_cast<void>(copied.release());
  }

  ProcessOwned<ChannelOwner<Channel<T>>> owner_;
  SelectedAllReduce selected_;
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
