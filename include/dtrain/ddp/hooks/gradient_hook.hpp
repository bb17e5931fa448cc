#pragma once
/// @file
/// GradientHook: concept of a class that reduces each GradientBucket in place of the all-reduce. CountedChannel: its
/// communicator. HookFunctions: any hook.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The communicator as a hook has it: enqueue() has the contract of backend/communicator.hpp, and counts the bytes that
/// the operation sends. Borrows the communicator.
/// @ingroup hooks
template <backend::Communicator C>
class CountedChannel {
 public:
  using Stream = typename C::Stream;

  /// @param traffic null: counts nothing. Lifetime: `channel` and `traffic` outlive this object
  // NOLINTNEXTLINE(google-explicit-constructor): a communicator that counts nothing.
  CountedChannel(C& channel, TrafficCounter* traffic = nullptr) noexcept : channel_(&channel), traffic_(traffic) {}

  int rank() const noexcept { return channel_->rank(); }
  int size() const noexcept { return channel_->size(); }
  TrafficCounter* traffic() const noexcept { return traffic_; }

  /// Enqueues any operation of the communicator. The operations of operations.hpp are counted.
  template <class Operation>
  requires backend::Supports<C, Operation>
  void enqueue(const Operation& operation, Stream stream) const {
    if (traffic_ != nullptr) count(operation);
    channel_->enqueue(operation, stream);
  }

 private:
  template <class Operation>
  void count(const Operation& /*of a user's own backend*/) const noexcept {}
  void count(const backend::AllReduce& call) const noexcept { traffic_->sends_all_reduce(call.output.bytes()); }
  void count(const backend::AllReduceWithSquares& call) const noexcept { count(call.all_reduce); }
  void count(const backend::AllReduceWithoutCast& call) const noexcept { count(call.all_reduce); }
  void count(const backend::Broadcast& call) const noexcept { traffic_->sends(call.buffer.bytes()); }
  void count(const backend::Barrier&) const noexcept {}
  void count(const backend::ReduceScatter& call) const noexcept { traffic_->sends(call.input.bytes()); }
  void count(const backend::AllGather& call) const noexcept { traffic_->sends(call.output.bytes()); }
  void count(const backend::ReadBlocks& call) const noexcept { traffic_->sends(call.input.bytes() * ranks()); }
  void count(const backend::ExchangeBlocks& call) const noexcept { traffic_->sends(call.input.bytes()); }
  void count(const backend::ReduceBlocks& call) const noexcept { traffic_->sends(call.input.bytes()); }
  void count(const backend::Send& call) const noexcept { count_message(call.input); }
  void count(const backend::Recv&) const noexcept {}
  void count(const backend::SendRecv& call) const noexcept { count_message(call.input); }

  /// A rank sends n (ranks - 1) / ranks of the n bytes that are counted for a collective.
  void count_message(const ConstBufferView& sent) const noexcept {
    if (ranks() > 1) traffic_->sends(sent.bytes() * ranks() / (ranks() - 1));
  }
  std::uint64_t ranks() const noexcept { return static_cast<std::uint64_t>(size()); }

  C* channel_;
  TrafficCounter* traffic_;
};

/// Work of a stream, whose time `traffic` counts.
template <class Work>
struct TimedWork {
  void operator()() noexcept {
    if (traffic == nullptr) {
      work();
    } else {
      traffic->time(work);
    }
  }
  void drop() noexcept requires requires(Work& dropped) { dropped.drop(); }
  { work.drop(); }

  Work work;
  TrafficCounter* traffic;
};

/// A gradient in a bucket.
/// @ingroup hooks
struct BucketGradient {
  std::size_t parameter;  ///< position in the model's parameters(): an index into a hook's state
  TensorView view;        ///< the gradient in the bucket, with its shape
};

/// The bucket that a hook reduces. All ranks have the same gradients in a bucket, in the same order, and the same
/// buckets in the same order. Buckets are planned again after the first step, so that a hook keeps nothing of a bucket
/// beyond a step.
/// Lifetime: `gradients` and the memory last until the step's work has run; the object only during the call.
/// @ingroup hooks
template <backend::Communicator C>
struct GradientBucket {
  using Stream = typename C::Stream;

  BufferView values;  ///< all gradients, and zeros between them; the backend reduces this memory without a copy
  std::span<const BucketGradient> gradients;
  CountedChannel<C> channel;  ///< channel for any collective, in an order that no other channel shares
  Stream stream;              ///< runs the bucket's work in order
  ReduceOp op;                ///< the program's choice: average or sum

  /// Elements [begin, begin + count) of `values`.
  BufferView part(std::size_t begin, std::size_t count) const noexcept {
    return {values.data + begin * size_bytes(values.dtype), count, values.dtype, values.device};
  }

  /// Enqueues host work that compresses or decompresses, whose time is part of the wrapper's summary.
  /// @param work a callable for a host stream, of at most 104 bytes (stream/host/queue.hpp)
  template <class Work>
  void compress(const Work& work) const {
    static_assert(std::is_nothrow_invocable_v<Work&>, "dtrain: work on a stream is noexcept: []() noexcept { ... }");
    stream.enqueue(TimedWork<Work>{work, channel.traffic()});
  }
};

/// `hook.reduce(bucket)` enqueues work on `bucket.stream`. After the work has run, every rank has the same bits in
/// `bucket.values`, with zeros between the gradients.
/// - reduce() is called once for each bucket and step, in the order of the buckets, from one thread at a time.
/// - reduce() does not wait for the work, and allocates nothing in later steps.
/// - An exception ends the job, as an exception of the backward pass does.
/// Optional members:
/// - `hook.prepare(parameters)` gets the model's parameters once, before the first step, and may allocate. prepare()
/// may be a template of the communicator: `template <class C> void prepare(std::span<const Parameter> parameters)`. Or
/// it has a second parameter, `std::span<const TensorView> buffers`: the buffers that steps broadcast
/// (DdpOptions::broadcast_buffers).
/// - `hook.skips_buffer_broadcast()`, equal on all ranks, is called when a step begins: true leaves each rank its own
/// buffers in the step.
/// - `hook.plan(channel, plan, deadline)` gets the communicator and the ddp::BucketPlan before the first step, and
/// whenever the buckets change, between steps. All ranks call plan() alike, so that it may allocate by
/// channel.allocate_blocking().
/// - `hook.connect(bucket)` enqueues the collectives of reduce() for a bucket of zeros, which stay zeros, and has no
/// gradients. It is called for a communicator that backend::ConnectsAtFirstUse, after the first plan(), for buckets of
/// few and of many elements, so that a step connects no ranks. Without the member, sums of the bucket connect them.
/// - `hook.items_per_bucket(ranks)`, for a hook of a host stream, is called after each plan(). It is the largest number
/// of collectives and compress() calls for one bucket of that plan; default_hook_items without the member. The stream
/// has room for these items; a hook that enqueues more is an error (limit).
/// - `hook.description()` is a std::string that must be equal on all ranks, and names the hook in the error if it
/// differs.
/// - `hook.read_values(read)`, for a hook that uses the parameters' values, gets a ddp::ReadValue. The hook calls
/// `read` for a value's present address before each use; if `read` is empty, values stay where prepare() saw them.
/// - `hook.weights_differ()`, for a hook whose steps may leave each rank its own weights, says whether the last step
/// did and the weights are not equal again. An elastic job rejects commit() then.
/// @ingroup hooks
template <class H, class C>
concept GradientHook = backend::Communicator<C> && requires(H& hook, const GradientBucket<C>& bucket) {
  hook.reduce(bucket);
};

/// A stream that runs host work, as hooks enqueue it; not a CUDA stream.
/// @ingroup hooks
template <class S>
concept RunsHostWork = requires(S stream, void (*work)() noexcept) {
  stream.enqueue(work);
};

/// Work items for each bucket of a hook without items_per_bucket().
inline constexpr std::uint64_t default_hook_items = 16;

/// Functions of a hook of any type; empty without a hook.
template <backend::Communicator C>
struct HookFunctions {
  std::string description;
  std::function<void(std::span<const Parameter>, std::span<const TensorView>)> prepare;
  std::function<void(const GradientBucket<C>&)> reduce;
  std::function<bool()> skips_buffer_broadcast;
  std::function<void(ReadValue)> read_values;
  std::function<void(C&, const BucketPlan&, Deadline)> plan;
  std::function<void(const GradientBucket<C>&)> connect;
  std::function<std::uint64_t(int)> items_per_bucket;
  std::function<bool()> weights_differ;
};

/// Functions of `*kept`. Lifetime: they share the pointer, which owns or borrows the hook.
template <class C, class Hook>
HookFunctions<C> functions_of(const std::shared_ptr<Hook>& kept) {
  constexpr bool is_hook = GradientHook<Hook, C>;
  static_assert(is_hook,
                "dtrain: the hook needs reduce(bucket) for a dtrain::GradientBucket<Communicator> (contract: the "
                "concept ddp::GradientHook, in dtrain/ddp/hooks/gradient_hook.hpp)");
  HookFunctions<C> functions;
  functions.description = "a hook";
  if constexpr (is_hook) {  // else the static_assert has failed
    functions.reduce = [kept](const GradientBucket<C>& bucket) { kept->reduce(bucket); };
  }
  if constexpr (requires { std::string(kept->description()); }) {
    functions.description = kept->description();
  }
  using Parameters = std::span<const Parameter>;
  using Buffers = std::span<const TensorView>;
  if constexpr (requires(Parameters parameters, Buffers buffers) { kept->prepare(parameters, buffers); }) {
    functions.prepare = [kept](Parameters parameters, Buffers buffers) { kept->prepare(parameters, buffers); };
  } else if constexpr (requires(Parameters parameters) { kept->template prepare<C>(parameters); }) {
    functions.prepare = [kept](Parameters parameters, Buffers) { kept->template prepare<C>(parameters); };
  } else if constexpr (requires(Parameters parameters) { kept->prepare(parameters); }) {
    functions.prepare = [kept](Parameters parameters, Buffers) { kept->prepare(parameters); };
  }
  if constexpr (requires { static_cast<bool>(kept->skips_buffer_broadcast()); }) {
    functions.skips_buffer_broadcast = [kept] { return static_cast<bool>(kept->skips_buffer_broadcast()); };
  }
  if constexpr (requires(C & channel, const BucketPlan& plan, Deadline deadline) {
                  kept->plan(channel, plan, deadline);
                }) {
    functions.plan = [kept](C& channel, const BucketPlan& plan, Deadline deadline) {
      kept->plan(channel, plan, deadline);
    };
  }
  if constexpr (requires(const GradientBucket<C>& bucket) { kept->connect(bucket); }) {
    functions.connect = [kept](const GradientBucket<C>& bucket) { kept->connect(bucket); };
  }
  if constexpr (requires(int ranks) { static_cast<std::uint64_t>(kept->items_per_bucket(ranks)); }) {
    functions.items_per_bucket = [kept](int ranks) {
      return static_cast<std::uint64_t>(kept->items_per_bucket(ranks));
    };
  }
  if constexpr (requires(ReadValue read) { kept->read_values(std::move(read)); }) {
    functions.read_values = [kept](ReadValue read) { kept->read_values(std::move(read)); };
  }
  if constexpr (requires { static_cast<bool>(kept->weights_differ()); }) {
    functions.weights_differ = [kept] { return static_cast<bool>(kept->weights_differ()); };
  }
  return functions;
}
/// Functions of an rvalue. Lifetime: they keep the hook.
template <class C, class H>
HookFunctions<C> hook_functions(H&& hook) {
  constexpr bool is_variable = std::is_lvalue_reference_v<H>;
  static_assert(!is_variable,
                "dtrain: the hook is a variable: give std::ref(hook), which outlives the wrapper, or std::move(hook)");
  if constexpr (is_variable) {
    return {};
  } else {
    return functions_of<C>(std::make_shared<std::remove_cvref_t<H>>(std::forward<H>(hook)));
  }
}
/// Functions of a caller's variable. Lifetime: they borrow the hook, which outlives them.
template <class C, class Hook>
HookFunctions<C> hook_functions(std::reference_wrapper<Hook> hook) {
  return functions_of<C>(std::shared_ptr<Hook>(std::shared_ptr<void>(), &hook.get()));
}
template <class C>
HookFunctions<C> hook_functions(HookFunctions<C>&& functions) {
  return std::move(functions);
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::BucketGradient;
using ddp::CountedChannel;
using ddp::GradientBucket;
}  // namespace DTRAIN_NAMESPACE
