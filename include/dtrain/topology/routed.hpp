#pragma once
/// @file
/// The communicator that all topologies make: reductions by an algorithm, everything else by the backend.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/backend/arguments.hpp"
#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/on_host_streams.hpp"
#include "dtrain/backend/split.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/owning_process.hpp"
#include "dtrain/topology/turns.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// An `Algorithm` is opened by `Algorithm(context, deadline)`, collectively, on channels of its own; in the thread that
/// runs the stream it does
///   bool all_reduce(ConstBufferView, BufferView, ReduceOp)   false where one of its channels has failed
/// and from any thread `abort(cause)` and `failure()`. One with an Allocation has allocate_blocking(bytes, deadline).
///
/// Host memory. The broken channel of an algorithm ends the whole, and the whole ends all of them.
/// Threads: as backend::Communicator. Destruction skips work that has not run.
template <backend::Backend B, class Algorithm>
class Routed {
  using Inner = typename B::Communicator;
  template <class A>
  static auto allocation_of(A*) -> typename A::Allocation;
  static auto allocation_of(void*) -> typename Inner::Allocation;
  static constexpr bool allocates_itself = requires { typename Algorithm::Allocation; };

 public:
  using Stream = typename Inner::Stream;
  using Allocation = decltype(allocation_of(static_cast<Algorithm*>(nullptr)));

  /// Collective, blocking. @throws as B::open_blocking
  static Routed open_blocking(const backend::ChannelContext& context, Deadline deadline) {
    return Routed(context, deadline);
  }

  Routed(Routed&&) noexcept = default;
  Routed& operator=(Routed&&) noexcept = default;

  int rank() const noexcept { return inner().rank(); }
  int size() const noexcept { return inner().size(); }
  const rendezvous::Membership& members() const noexcept { return end_->context.members; }

  /// See CanAllReduce. @throws Error (unsupported, invalid_argument) at the call
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    backend::check_all_reduce(input, output);
    backend::check_reduced_by_kernels("all_reduce", output);
    check_host(output.device);
    check_host(input.device);
    end_->turns->retain();
    try {
      stream.enqueue(Reduce{end_.get(), end_->turns, end_->enqueued + 1, input, output, op});
    } catch (...) {
      end_->turns->release();
      throw;
    }
    ++end_->enqueued;
  }

  void broadcast(BufferView buffer, int root, Stream stream) { inner().broadcast(buffer, root, stream); }
  void barrier(Stream stream) { inner().barrier(stream); }
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op,
                      Stream stream) requires backend::CanReduceScatter<Inner> {
    inner().reduce_scatter(input, output, op, stream);
  }
  void all_gather(ConstBufferView input, BufferView output, Stream stream) requires backend::CanAllGather<Inner> {
    inner().all_gather(input, output, stream);
  }
  void send(ConstBufferView input, int peer, Stream stream) requires backend::CanSendRecv<Inner> {
    inner().send(input, peer, stream);
  }
  void recv(BufferView output, int peer, Stream stream) requires backend::CanSendRecv<Inner> {
    inner().recv(output, peer, stream);
  }
  void send_recv(ConstBufferView input, int to, BufferView output, int from,
                 Stream stream) requires backend::CanSendRecv<Inner> {
    inner().send_recv(input, to, output, from, stream);
  }

  /// See CanSplit: the ranks of a color take the topology's paths among themselves.
  Routed split_blocking(int color, int key, Deadline deadline) {
    check();
    help();  // other ranks may wait for what is enqueued here before they come
    const backend::ChannelContext part = backend::split_context(end_->context, end_->splits + 1, color, key, deadline);
    ++end_->splits;
    return open_blocking(part, deadline);
  }

  /// See CanAllocate. Where the algorithm allocates on its own channel, reductions that were enqueued end first.
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    if constexpr (allocates_itself) {
      check();
      if (!end_->turns->settle(end_->enqueued, deadline, [this] { help(); })) {
        throw Error(Errc::timeout, "memory of channel '" + end_->context.name +
                                       "' was asked for while reductions of it wait on a stream that nobody runs; "
                                       "wait for them first");
      }
      return end_->algorithm.allocate_blocking(bytes, deadline);
    } else {
      return inner().allocate_blocking(bytes, deadline);
    }
  }

  void abort(const Cause& cause) noexcept { end_->abort(cause); }
  std::optional<Cause> failure() const { return end_->failure(); }

 private:
  /// What stays at its address when the communicator moves.
  struct End {
    End(const backend::ChannelContext& of, Deadline deadline)
        : context(of), inner(B::open_blocking(context, deadline)), algorithm(context, deadline), turns(new Turns) {}
    End(const End&) = delete;
    End& operator=(const End&) = delete;
    ~End() {
      turns->close(enqueued, [this] {
        abort({CauseKind::exception, context.reporting_rank(), context.members.host,
               "its communicator was destroyed before all of its work had run"});
      });
      turns->release();
    }

    void abort(const Cause& cause) noexcept {
      inner.abort(cause);
      algorithm.abort(cause);
    }

    std::optional<Cause> failure() const {
      std::optional<Cause> cause = algorithm.failure();
      return cause ? cause : inner.failure();
    }

    /// In the thread that runs the stream. What an algorithm throws is the channel's failure.
    void reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op) noexcept {
      try {
        if (!failure() && !algorithm.all_reduce(input, output, op)) {
          if (const std::optional<Cause> cause = failure()) {
            abort(*cause);
          }
        }
      } catch (const std::exception& error) {
        fail(error.what());
      }
    }

    void fail(const char* text) noexcept {
      try {
        const Cause cause{CauseKind::exception, context.reporting_rank(), context.members.host,
                          "an all_reduce on channel '" + context.name + "': " + text};
        abort(cause);
        context.failure->report(cause);
      } catch (...) {
        // Out of memory for the sentence: the peers' timeouts tell.
      }
    }

    const backend::ChannelContext context;
    Inner inner;          ///< of the whole group; the program's other operations
    Algorithm algorithm;  ///< with channels of its own: it runs while the program enqueues
    Turns* const turns;
    std::uint64_t enqueued = 0;
    std::uint64_t splits = 0;
  };

  struct Reduce {
    End* end;  ///< there until the turns are closed
    Turns* turns;
    std::uint64_t turn;
    ConstBufferView input;
    BufferView output;
    ReduceOp op;

    void operator()() noexcept {
      const auto refuse = [this]() noexcept {
        end->fail(
            "it began before the one enqueued before it had run; operations of one communicator go to one stream, or "
            "to streams that wait for each other");
      };
      turns->run(
          turn, [this]() noexcept { end->reduce(input, output, op); }, refuse);
      turns->release();
    }
    void drop() noexcept { turns->release(); }
  };

  Routed(const backend::ChannelContext& context, Deadline deadline)
      : end_(make_process_owned<End>(context, deadline)) {}

  Inner& inner() const noexcept { return end_->inner; }

  void help() const {
    if (end_->context.on_stall) {
      end_->context.on_stall();
    }
  }

  /// @throws the job's first cause, or this channel's
  void check() const {
    end_->context.failure->throw_if_failed(end_->context.reporting_rank());
    if (const std::optional<Cause> cause = failure()) {
      throw_cause(*cause);
    }
  }

  static void check_host(Device device) {
    if (device.kind != DeviceKind::host) {
      throw Error(Errc::unsupported, "topology::" + std::string(Algorithm::name()) +
                                         " reduces host memory, not memory of " + to_string(device) +
                                         "; use topology::Flat with a backend for it");
    }
  }

  ProcessOwned<End> end_;
};

/// What `Over<B>` is for an algorithm on backend B.
template <backend::Backend B, class Algorithm>
struct RoutedBackend {
  using Communicator = Routed<B, Algorithm>;
  using StreamOwner = typename B::StreamOwner;
  static constexpr backend::Determinism determinism = Algorithm::determinism;

  static constexpr std::string_view name() noexcept { return B::name(); }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host && B::supports(kind); }
  static constexpr bool reduces(DType dtype) noexcept { return Algorithm::reduces(dtype); }

  /// Collective, blocking. See backend::CanOpen.
  static Communicator open_blocking(const backend::ChannelContext& context, Deadline deadline) {
    return Communicator::open_blocking(context, deadline);
  }
};

/// A backend on host streams, as the algorithms' own steps are, that carries messages between two ranks.
template <class B>
concept CarriesMessages = backend::OnHostStreams<B> && backend::CanSendRecv<typename B::Communicator>;

}  // namespace DTRAIN_NAMESPACE::topology
