#pragma once
/// @file
/// AlgorithmCommunicator: runs a topology's collectives, and all others by the backend's communicator, in enqueue
/// order.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <type_traits>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/first_cause.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/ordered_channel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// A variant of all_reduce that an algorithm's communicator offers.
struct AllReduceVariant {
  const char* name = "";
  bool is_by_algorithm = true;  ///< false: by the backend
  bool casts = true;            ///< elements become the algorithm's wire type, if it has one
};

/// The order of an algorithm's operations. Uses the state until close() only; operations after close() are skipped.
/// @tparam State has `algorithm`, `inner`, the backend's communicator, and failure(), the first cause of both
template <class State>
class AlgorithmOrder final : public backend::OrderedChannel {
 public:
  AlgorithmOrder(const backend::ChannelContext& context, State& state) : OrderedChannel(context), state_(state) {}

  /// Runs in the stream's thread. An exception of the algorithm becomes the channel's failure.
  /// @param operation `operation(algorithm)` returns whether the algorithm's channels still work
  template <class Operation>
  void run(std::uint64_t number, backend::OperationKind kind, const Operation& operation) noexcept {
    const auto work = [&]() noexcept {
      try {
        if (!state_.failure() && !operation(state_.algorithm)) {
          if (const std::optional<Cause> cause = state_.failure()) {
            abort(*cause);
          }
        }
      } catch (const std::exception& error) {
        fail_operation(kind, error.what());
      }
    };
    backend::Operation described;
    described.sequence = number;
    described.kind = kind;
    run_in_order(number, described, work,
                 [&]() noexcept { fail_operation(kind, std::string("it ") + backend::began_early); });
  }

  /// Ends all channels of the communicator; during close(), only if an operation runs. The first cause is kept.
  void abort(const Cause& cause) noexcept override {
    if (cause_.set(cause) && (!is_closing_.load() || is_in_operation())) {
      state_.inner.abort(cause);
      state_.algorithm.abort(cause);
    }
  }

  /// Blocks until the first `count` operations have run. Between waits it calls `help()`, which may run them.
  /// @returns false at the deadline
  template <class Help>
  bool wait_until_run(std::uint64_t count, Deadline deadline, Help help) const {
    while (!has_run(count) && !deadline.passed()) {
      help();
      if (!has_run(count)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return has_run(count);
  }

  /// See OrderedChannel::close_order. Unless an operation was interrupted, the channels close as after a complete run.
  void close(std::uint64_t enqueued) noexcept {
    const bool has_failed = aborted();
    is_closing_.store(true);
    if (close_order(enqueued) && !has_failed) {
      backend::report_quietly(*failure_, *failure());
    }
  }

 private:
  ~AlgorithmOrder() override = default;

  DTRAIN_NOT_INLINED void fail_operation(backend::OperationKind kind, std::string_view text) noexcept {
    const std::string_view operation = backend::name(kind);
    fail({CauseKind::exception, job_rank_, host_,
          format_text("{} {} on channel '{}': {}", {operation.starts_with('a') ? "an" : "a", operation, name_, text})});
  }

  State& state_;
  std::atomic<bool> is_closing_{false};
};

/// Members of an `Algorithm`:
///   Algorithm(context, deadline)                             collective; opens the algorithm's own channels
///   bool run(const backend::AllReduce&, bool casts)          in the stream's thread; false: one of its channels failed
///   std::span<const AllReduceVariant> variants()             static, the same on all ranks: the first is its own way;
///                                                            empty where there is no other
///   bool run(const backend::Broadcast&), and Barrier         likewise; both or none
///   bool run(const backend::ReduceScatter&), and AllGather   likewise; with bool scatters(): whether it has them here,
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
  template <class Operation>
  static constexpr bool runs_itself = requires(Algorithm& algorithm, const Operation& operation) {
    algorithm.run(operation);
  };
  /// Whether an operation reduces by the backend or reads the backend's allocations: the algorithm replaces both.
  template <class Operation>
  static constexpr bool is_backend_only =
      std::is_same_v<Operation, backend::AllReduceWithSquares> || std::is_same_v<Operation, backend::ReadBlocks>;

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

  /// See CanAllReduce. Operations throw Error (unsupported, invalid_argument) at the call.
  void enqueue(const backend::AllReduce& call, Stream stream) { all_reduce(call, state_->variant.casts, stream); }
  void enqueue(const backend::AllReduceWithoutCast& call, Stream stream) { all_reduce(call.all_reduce, false, stream); }

  /// Any other operation of the backend, by the algorithm if it has that operation.
  template <class Operation>
  requires(backend::Supports<Inner, Operation> && !is_backend_only<Operation>) void enqueue(const Operation& call,
                                                                                            Stream stream) {
    if constexpr (runs_itself<Operation>) {
      if (algorithm_has(call)) {
        backend::check_host_memory(B::name().data(), call.devices());
        call.check({rank(), size()});
        return state_->enqueue(
            Operation::kind, [call](Algorithm& algorithm) { return algorithm.run(call); }, stream);
      }
    }
    inner().enqueue(call, stream);
  }

  /// See CanSplit. The new communicators use the same topology.
  AlgorithmCommunicator split_blocking(int color, int key, Deadline deadline) {
    check();
    return open_blocking(state_->split(color, key, deadline), deadline);
  }

  /// See CanAllocate. If the algorithm allocates on its own channel, the call first waits for the algorithm's enqueued
  /// operations.
  Allocation allocate_blocking(std::size_t bytes, Deadline deadline) {
    if constexpr (allocates_itself) {
      check();
      const auto help = [this] { state_->context.run_other_streams(); };
      if (!state_->channel->wait_until_run(state_->enqueued, deadline, help)) {
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

  void abort(const Cause& cause) noexcept { state_->channel->abort(cause); }
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
  struct AlgorithmState : backend::ChannelOwner<OperationOrder> {
    AlgorithmState(const backend::ChannelContext& of, Deadline deadline)
        : backend::ChannelOwner<OperationOrder>(of, *this),
          whole(with_activity(of, of.activity ? of.activity->split(of.name + "/backend") : nullptr)),
          part(with_activity(of, nullptr)),
          inner(B::open_blocking(whole, deadline)),
          algorithm(part, deadline) {}
    ~AlgorithmState() { this->close(); }

    std::optional<Cause> failure() const {
      std::optional<Cause> cause = this->channel->failure();
      cause = cause ? cause : algorithm.failure();
      return cause ? cause : inner.failure();
    }

    static backend::ChannelContext with_activity(backend::ChannelContext context,
                                                 std::shared_ptr<backend::ChannelActivity> activity) {
      context.activity = std::move(activity);
      return context;
    }

    const backend::ChannelContext whole;  ///< context of `inner`
    const backend::ChannelContext part;   ///< that of `algorithm`, whose operations are those of this channel
    Inner inner;  ///< the whole group's, for operations that the algorithm lacks, and for a variant by the backend
    Algorithm algorithm;       ///< has its own channels, because it runs while the program enqueues
    AllReduceVariant variant;  ///< variant of the next all_reduce
  };

  template <class Operation>
  bool algorithm_has(const Operation&) const noexcept {
    if constexpr (std::is_same_v<Operation, backend::ReduceScatter> || std::is_same_v<Operation, backend::AllGather>) {
      return state_->algorithm.scatters();
    } else {
      return true;
    }
  }

  void all_reduce(const backend::AllReduce& call, bool casts, Stream stream) {
    if (!state_->variant.is_by_algorithm) return inner().enqueue(call, stream);
    backend::check_all_reduce_memory(Algorithm::name(), "", call.devices());
    call.check({rank(), size()});
    state_->enqueue(
        call.kind, [call, casts](Algorithm& algorithm) { return algorithm.run(call, casts); }, stream);
  }

  AlgorithmCommunicator(const backend::ChannelContext& context, Deadline deadline)
      : state_(make_process_owned<AlgorithmState>(context, deadline)) {}

  Inner& inner() const noexcept { return state_->inner; }

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
