#pragma once
/// @file
/// AlgorithmCommunicator: a communicator that runs the collectives of a topology's algorithm, and all others by the
/// backend's communicator.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_setup/split.hpp"
#include "dtrain/backend/check_arguments.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/topology/algorithm_operations.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Members of an `Algorithm`:
///   Algorithm(context, deadline)                             collective; opens the algorithm's own channels
///   bool all_reduce(ConstBufferView, BufferView, ReduceOp, bool casts)
///                                                            in the stream's thread; false: one of its channels failed
///   std::span<const AllReduceVariant> variants()             static, the same on all ranks: the first is its own way;
///                                                            empty where there is no other
///   bool broadcast(BufferView, int root), bool barrier()     likewise; both or none
///   bool reduce_scatter(ConstBufferView, BufferView, ReduceOp), bool all_gather(ConstBufferView, BufferView)
///                                                            likewise; with bool scatters(): whether it has them here,
///                                                            the same on all ranks
///   abort(cause), failure()                                  in any thread
///   allocate_blocking(bytes, deadline)                       if it has a type Allocation
///   compressed_traffic()                                     if it compresses; in any thread
///
/// The algorithm has host memory only. If one channel fails, the communicator aborts all its channels.
/// Threads: as backend::Communicator. The destructor skips operations that have not run.
template <backend::Backend B, class Algorithm>
class AlgorithmCommunicator {
  using Inner = typename B::Communicator;
  template <class A>
  static auto allocation_of(A*) -> typename A::Allocation;
  static auto allocation_of(void*) -> typename Inner::Allocation;
  static constexpr bool allocates_itself = requires { typename Algorithm::Allocation; };
  static constexpr bool broadcasts_itself = requires(Algorithm & algorithm) { algorithm.barrier(); };
  static constexpr bool scatters_itself = requires(Algorithm & algorithm) { algorithm.scatters(); };

 public:
  using Stream = typename Inner::Stream;
  using Allocation = decltype(allocation_of(static_cast<Algorithm*>(nullptr)));

  /// Collective, blocking. @throws as B::open_blocking
  static AlgorithmCommunicator open_blocking(const backend::ChannelContext& context, Deadline deadline) {
    return AlgorithmCommunicator(context, deadline);
  }

  AlgorithmCommunicator(AlgorithmCommunicator&&) noexcept = default;
  AlgorithmCommunicator& operator=(AlgorithmCommunicator&&) noexcept = default;

  int rank() const noexcept { return inner().rank(); }
  int size() const noexcept { return inner().size(); }
  const rendezvous::Membership& members() const noexcept { return state_->context.members; }

  /// See HasVariants.
  /// @{
  std::vector<const char*> variants() const {
    std::vector<const char*> names;
    for (const AllReduceVariant& variant : state_->algorithm.variants())
      names.push_back(variant.name);
    return names;
  }
  void use_variant(std::size_t variant) {
    const std::span<const AllReduceVariant> all = state_->algorithm.variants();
    state_->variant = variant < all.size() ? all[variant] : AllReduceVariant();
  }
  /// @}

  /// See CanAllReduce. @throws Error (unsupported, invalid_argument) at the call
  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    all_reduce(input, output, op, state_->variant.casts, stream);
  }
  /// See CanReduceWithoutCast. @throws as all_reduce
  void all_reduce_without_cast(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) {
    all_reduce(input, output, op, false, stream);
  }

  /// See CanBroadcast.
  void broadcast(BufferView buffer, int root, Stream stream) {
    if constexpr (broadcasts_itself) {
      backend::check_host_memory(B::name().data(), buffer, buffer);
      backend::check_broadcast(buffer, root, size());
      enqueue(AlgorithmBroadcast{buffer, root}, stream);
    } else {
      inner().broadcast(buffer, root, stream);
    }
  }

  /// See CanBarrier.
  void barrier(Stream stream) {
    if constexpr (broadcasts_itself) {
      enqueue(AlgorithmBarrier{}, stream);
    } else {
      inner().barrier(stream);
    }
  }

  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op,
                      Stream stream) requires backend::CanReduceScatter<Inner> {
    if constexpr (scatters_itself) {
      if (state_->algorithm.scatters()) {
        backend::check_host_memory(B::name().data(), input, output);
        backend::check_reduce_scatter(input, output, rank(), size());
        return enqueue(AlgorithmReduceScatter{input, output, op}, stream);
      }
    }
    inner().reduce_scatter(input, output, op, stream);
  }
  void all_gather(ConstBufferView input, BufferView output, Stream stream) requires backend::CanAllGather<Inner> {
    if constexpr (scatters_itself) {
      if (state_->algorithm.scatters()) {
        backend::check_host_memory(B::name().data(), input, output);
        backend::check_all_gather(input, output, rank(), size());
        return enqueue(AlgorithmAllGather{input, output}, stream);
      }
    }
    inner().all_gather(input, output, stream);
  }
  void exchange_blocks(const backend::BlockExchange& blocks, ConstBufferView input, BufferView output,
                       Stream stream) requires backend::CanExchangeBlocks<Inner> {
    inner().exchange_blocks(blocks, input, output, stream);
  }
  void reduce_blocks(const backend::BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op,
                     Stream stream) requires backend::CanReduceBlocks<Inner> {
    inner().reduce_blocks(blocks, input, output, op, stream);
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

  /// See CanSplit. The new communicators use the same topology.
  AlgorithmCommunicator split_blocking(int color, int key, Deadline deadline) {
    check();
    help();  // Other ranks may call split only after work that is enqueued here has run.
    const backend::ChannelContext child =
        backend::split_context(state_->context, state_->splits + 1, color, key, deadline);
    ++state_->splits;
    return open_blocking(child, deadline);
  }

  /// See CanAllocate. If the algorithm allocates on its own channel, the call first waits for the algorithm's enqueued
  /// operations.
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    if constexpr (allocates_itself) {
      check();
      if (!state_->order->wait_until_run(state_->enqueued, deadline, [this] { help(); })) {
        throw_error(Errc::timeout,
                    "memory of channel '{}' was requested while operations of it wait on a stream that no thread runs; "
                    "wait for them first",
                    {state_->context.name});
      }
      return state_->algorithm.allocate_blocking(bytes, deadline);
    } else {
      return inner().allocate_blocking(bytes, deadline);
    }
  }

  void abort(const Cause& cause) noexcept { state_->order->abort(cause); }
  std::optional<Cause> failure() const { return state_->failure(); }

  /// Traffic that the algorithm compresses. Threads: any.
  CompressedTraffic compressed_traffic() const noexcept requires requires(const Algorithm& of) {
    of.compressed_traffic();
  }
  { return state_->algorithm.compressed_traffic(); }

 private:
  struct AlgorithmState;
  using OperationOrder = AlgorithmOrder<AlgorithmState>;

  /// State whose address does not change when the communicator is moved.
  struct AlgorithmState {
    AlgorithmState(const backend::ChannelContext& of, Deadline deadline)
        : context(of),
          inner(B::open_blocking(context, deadline)),
          algorithm(context, deadline),
          order(new OperationOrder(context, *this)) {}
    AlgorithmState(const AlgorithmState&) = delete;
    AlgorithmState& operator=(const AlgorithmState&) = delete;
    ~AlgorithmState() {
      order->close(enqueued);
      order->release();
    }

    std::optional<Cause> failure() const {
      std::optional<Cause> cause = order->failure();
      cause = cause ? cause : algorithm.failure();
      return cause ? cause : inner.failure();
    }

    const backend::ChannelContext context;
    Inner inner;  ///< of the whole group, for operations that the algorithm lacks, and for a variant by the backend
    Algorithm algorithm;  ///< has its own channels, because it runs while the program enqueues
    OperationOrder* const order;
    AllReduceVariant variant;  ///< of the next all_reduce
    std::uint64_t enqueued = 0;
    std::uint64_t splits = 0;
  };

  /// Work of a stream.
  template <class Operation>
  struct Enqueued {
    OperationOrder* order;
    std::uint64_t number;
    Operation operation;

    void operator()() noexcept {
      order->run(number, operation);
      order->release();
    }
    void drop() noexcept { order->release(); }
  };

  void all_reduce(const ConstBufferView& input, const BufferView& output, ReduceOp op, bool casts, Stream stream) {
    if (!state_->variant.is_by_algorithm) return inner().all_reduce(input, output, op, stream);
    backend::check_all_reduce_memory(Algorithm::name(), "", input, output);
    backend::check_all_reduce(input, output);
    enqueue(AlgorithmAllReduce{input, output, op, casts}, stream);
  }

  template <class Operation>
  void enqueue(const Operation& operation, Stream stream) {
    state_->order->retain();
    try {
      stream.enqueue(Enqueued<Operation>{state_->order, state_->enqueued + 1, operation});
    } catch (...) {
      state_->order->release();
      throw;
    }
    ++state_->enqueued;
  }

  AlgorithmCommunicator(const backend::ChannelContext& context, Deadline deadline)
      : state_(make_process_owned<AlgorithmState>(context, deadline)) {}

  Inner& inner() const noexcept { return state_->inner; }

  void help() const {
    if (state_->context.on_stall) {
      state_->context.on_stall();
    }
  }

  /// @throws the job's first cause, or this channel's
  void check() const {
    state_->context.failure->throw_if_failed(state_->context.reporting_rank());
    if (const std::optional<Cause> cause = failure()) {
      throw_cause(*cause);
    }
  }

  ProcessOwned<AlgorithmState> state_;
};

/// The type `Rebind<B>` of a topology with this algorithm.
template <backend::Backend B, class Algorithm>
struct AlgorithmBackend {
  using Communicator = AlgorithmCommunicator<B, Algorithm>;
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

}  // namespace DTRAIN_NAMESPACE::topology
