#pragma once
/// @file
/// ShardedOptimizer: optimizer whose state, in stage 2 also the gradients, is divided among its wrapper's ranks.

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/driver_access.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/ddp/sharded/optimizer_rule.hpp"
#include "dtrain/ddp/sharded/sharded_parameters.hpp"
#include "dtrain/ddp/sharded/sharded_reduction.hpp"
#include "dtrain/ddp/step_work.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/group/rank_context.hpp"

#if DTRAIN_WITH_CUDA
#include "dtrain/ddp/sharded/device_sharded_reduction.hpp"
#endif

namespace DTRAIN_NAMESPACE {

namespace ddp {

namespace detail {

/// The work of a ShardedOptimizer's steps, by the communicator's stream, and the rules that it takes.
template <class Stream>
struct ShardedFor {
  template <class C, class R>
  using Work = ShardedReduction<C>;
  using DeviceScaler = void;
  template <class R>
  static constexpr bool takes = OptimizerRule<R>;
  template <class R>
  static constexpr bool reads_found_inf = false;
};

#if DTRAIN_WITH_CUDA
template <>
struct ShardedFor<stream::cuda::StreamRef> {
  template <class C, class R>
  using Work = DeviceShardedReduction<C, R>;
  using DeviceScaler = DeviceLossScaler;
  template <class R>
  static constexpr bool takes = DeviceRule<R>;
  template <class R>
  static constexpr bool reads_found_inf = ReadsFoundInf<R>;
};
#endif

/// Whether the communicator's streams are a device's.
template <class C>
inline constexpr bool is_on_device = false;
template <backend::Communicator C>
inline constexpr bool is_on_device<C> = !RunsHostWork<typename C::Stream>;

/// Whether an optimizer of the communicator takes the rule.
template <class R, class C>
concept RuleFor = backend::Communicator<C> && ShardedFor<typename C::Stream>::template takes<R>;

}  // namespace detail

}  // namespace ddp

// Arguments that are none of a ShardedOptimizer: one sentence for each.
template <class R, class C>
class ShardedOptimizer {
  static constexpr bool is_on_device = ddp::detail::is_on_device<C>;

 public:
  static_assert(backend::Communicator<C>,
                "dtrain: the second argument of ShardedOptimizer is the communicator of its wrapper: write the type "
                "as DistributedDataParallel<Model, Policy>::Sharded<Rule>");
  static_assert(
      !backend::Communicator<C> || is_on_device || ddp::OptimizerRule<R>,
      "dtrain: the rule needs operator()(weights, gradients, state, info) const for its State of spans of "
      "float, or of double (contract: the concept ddp::OptimizerRule, in dtrain/ddp/sharded/optimizer_rule.hpp)");
  static_assert(!is_on_device || ddp::detail::RuleFor<R, C>,
                "dtrain: the model is in device memory, where the rule needs enqueue(weights, gradients, states, info, "
                "stream) const (contract: the concept ddp::DeviceRule, in dtrain/ddp/sharded/device_rule.hpp)");

  template <class... Arguments>
  explicit ShardedOptimizer(Arguments&&...) {}
};

/// ZeRO (Rajbhandari et al., 2020): each rank keeps 1 / ranks of the optimizer's state and updates the same share of
/// the weights. In stage 2 a rank also keeps the same share of the gradients (ShardedOptions).
///
///   dtrain::DistributedDataParallel ddp{model, group};
///   dtrain::ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{.rate = 3e-4F}};  // and perhaps {.stage = 2}
///   ddp.backward([&](dtrain::Ready ready) { model.backward(ready); }, optimizer);  // the weights are new after it
///
/// In a member the type is DistributedDataParallel<Model, Policy>::Sharded<dtrain::optimizers::AdamW>.
///
/// A step reduce-scatters each bucket during the backward pass, applies the rule to this rank's share, and gathers the
/// new weights: as many bytes as an all-reduce. The ranks of backend::SharedMemory copy them from each other's memory.
/// The model's weights change when all its gradients are ready, or during the backward pass with
/// ShardedOptions::early_update. The content of the gradients' memory is unspecified after the step: set or clear
/// gradients before the next.
/// - With backend::SharedMemory the weights have the bits that the rule would give with all of the state on one rank.
/// - f16 and bf16 models: each rank also keeps its share of the weights in f32, from the construction on. Values that
/// the program sets in the model later do not change these f32 weights. The rule gets f32 gradients.
/// - f64 models, in host memory: the rule is one of dtrain::optimizers::f64, or another of doubles. The state is f64,
/// and all parameters are f64.
/// - Parameters without ready() (DdpOptions::allow_unused_parameters) are updated with zero gradients.
/// - In an elastic job the state is lost with a rank: each call of train()'s function loads a checkpoint with the
/// optimizer (load_checkpoint), and calls resume_at() with its step. A step without these two calls is rejected, unless
/// no earlier call has begun a step with an optimizer or loaded its state.
///
/// In device memory the rule is a ddp::DeviceRule: Sgd, Momentum, Adam, AdamW, or one that launches kernels.
/// - A step is enqueued on streams, without a wait of the host. Later work of the streams that ready() named sees the
/// new weights. Only StepOptions::inspect and a LossScaler wait for them.
/// - A step may be captured in a CUDA graph. Each replay is one more update: the stream counts updates and reads the
/// rule then, so change the rule when earlier replays have run, on every rank after the same one. For other steps the
/// program changes the rule between two steps, not within one. The optimizer outlives the graph.
/// - In stage 2 ready() copies the gradient on its stream: later work of that stream may use the memory again.
/// - The state, and values that the program sets, are read after the default stream's work when the optimizer is
/// constructed. So are 16-bit values that have moved, at the next step or checkpoint.
/// - After a failed step, the state and the model's values are undefined.
///
/// Lifetime: the model outlives the optimizer, which makes steps as long as `ddp` exists. The destructor of `ddp` waits
/// for the last step's weights. Without `ddp`, save_checkpoint and load_checkpoint still take the optimizer's state.
/// Threads: the threads of `ddp`'s steps; the rule runs on the thread of the communication during steps.
/// @ingroup sharding
template <class R, backend::Communicator C>
requires ddp::detail::RuleFor<R, C>
class ShardedOptimizer<R, C> {
  static constexpr bool is_on_device = ddp::detail::is_on_device<C>;
  static constexpr bool has_doubles = !is_on_device && ddp::HasDoubles<R>;

 public:
  /// Collective, blocking: every rank constructs the optimizer between the same steps, with the same options. `ddp`
  /// keeps its buckets from this call on; they follow the order in which gradients become ready only if `ddp` has made
  /// a step. Allocates the state; in stage 2 also a smaller arena, which replaces the arena of `ddp`. With NCCL
  /// connects the ranks for the collectives of its steps.
  /// @throws Error (unsupported) for parameters that are not f32, f16 or bf16 (f64 for a rule of doubles), and in stage
  /// 2 for bound gradients; (invalid_argument) for two parameters whose values share memory, and another stage than 1
  /// and 2; (disagreement) or JobFailed on every rank if two ranks give different options, or rules with different
  /// state, or if on one the device has no memory or its driver does not load the kernels; the error names the two
  /// ranks and their optimizers
  template <class Ddp>
  explicit ShardedOptimizer(Ddp& ddp, R rule, const ShardedOptions& options = {})
      : rule_(std::make_shared<R>(std::move(rule))) {
    static_assert(is_on_device || ddp::HasMeasure<R> == ddp::NormedRule<R>,
                  "dtrain: the rule's measure needs the form ParameterNorms measure(weights, gradients, state, info) "
                  "const, all spans but those of the state constant (see dtrain/ddp/sharded/optimizer_rule.hpp)");
    static_assert(backend::CanReduceScatter<C> && backend::CanAllGather<C>,
                  "dtrain: ShardedOptimizer needs reduce_scatter and all_gather: use topology::Flat");
    auto& driver = ddp::DriverAccess::of(ddp);
    ddp::Reducer<C>& reducer = *driver.reducer;
    reducer.throw_if_unusable("ShardedOptimizer");
    ddp::require_valid(options);
    ddp::check_sharded_parameters(ddp.parameters(), driver.stream.ref().device(), element_of(ddp.parameters()));
    agree_on_kernels(ddp, *rule_, options);
    reducer.keep_plan();
    if (options.divides_gradients()) reducer.reuse_memory();
    reduction_ = {make_together(ddp, options),
                  Completion{reducer.lifetime(), group::GroupAccess::of(ddp.group()).rank_context()}};
    if constexpr (is_on_device) reducer.connect(*reduction_);
    arena_bytes_ = ddp.plan().arena_bytes;
  }

  /// Text that must be equal on all ranks: stage and rule decide which collectives a step calls.
  static std::string description(const ShardedOptions& options) {
    return format_text("a ShardedOptimizer of stage {}{}, whose rule has {} state arrays{}",
                       {options.stage, options.early_update ? ", early_update" : "", ddp::state_arrays<R>,
                        ddp::NormedRule<R> ? " and measures norms" : ""});
  }

  /// Collective, blocking. @throws on every rank if two ranks construct different optimizers, or if the driver of one
  /// does not load the kernels
  template <class Ddp>
  static void agree_on_kernels(Ddp& ddp, [[maybe_unused]] const R& rule, const ShardedOptions& options) {
    bool loads = true;
    if constexpr (is_on_device) {
      loads = Reduction::load_kernels(ddp.plan(), rule, ddp::DriverAccess::of(ddp).stream.ref());
    }
    ddp::DriverAccess::agree_on_reduction(
        ddp, description(options) + (loads ? "" : ", without its kernels, which the driver does not load"));
    if constexpr (is_on_device) {
      if (!loads) Reduction::OwnShards::refuse_without_kernels(ddp::DriverAccess::of(ddp).stream.ref().device());
    }
  }

  /// Type of the state for a model: f64 with a rule of doubles, and with a rule that has one if parameter 0 is f64.
  static DType element_of(std::span<const Parameter> parameters) noexcept {
    const bool uses_doubles = has_doubles && !parameters.empty() && parameters[0].value.dtype == DType::f64;
    return uses_doubles ? DType::f64 : dtype_of<ddp::RuleElement<R>>::value;
  }

  /// The rule, which the program may change between steps.
  R& rule() noexcept { return *rule_; }
  const R& rule() const noexcept { return *rule_; }

  /// Number of updates. In device memory, once a step was captured or had a DeviceLossScaler: of the updates that have
  /// run; see wait().
  std::uint64_t steps() const noexcept { return reduction_->shards().steps(); }

  /// Whether load_checkpoint() has loaded the state.
  bool is_loaded() const noexcept { return reduction_->shards().is_loaded(); }

  /// Bytes of optimizer state on this rank, the f32 weights of a 16-bit model included.
  std::size_t state_bytes() const noexcept { return reduction_->shards().state_bytes(); }

  /// Bytes that dtrain keeps for gradients on this rank: the arena, in stage 2 with the share of reduced gradients.
  std::size_t gradient_bytes() const noexcept { return arena_bytes_ + reduction_->gradient_bytes(); }

  /// Blocking, in device memory: until the model has all new weights of the last step; the program waits for replays of
  /// a captured step itself. In host memory a step ends with all of them. @throws as backward()
  void wait() {
    if (const auto context = reduction_.get_deleter().context.lock()) context->require_may_block();
    if constexpr (is_on_device) {
      if (!reduction_.get_deleter().lifetime->has_ended) reduction_->wait_for_step();
    }
  }

  /// Shares for checkpoints, with the present weights. @throws as renew_values
  ddp::Shards& shares() {
    renew_values();
    return reduction_->shards();
  }

  /// Finds the model's values again if they move, as values of LibTorch modules do. Called between steps, and before a
  /// step's first ready(). @throws Error (invalid_argument) for a value that has become another kind of tensor, and for
  /// two values that now share memory
  void renew_values() { reduction_->shards().renew_values(); }

  /// Work of a step, for DistributedDataParallel::backward, which begins a step with it and calls renew_values.
  /// @throws Error (invalid_argument) if the wrapper is destroyed
  ddp::StepWork<C>& work() {
    if (reduction_.get_deleter().lifetime->has_ended) {
      throw_error(Errc::invalid_argument,
                  "the DistributedDataParallel that this ShardedOptimizer was constructed from is destroyed; construct "
                  "another one from the present wrapper",
                  {});
    }
    return *reduction_;
  }
  /// @throws Error (invalid_argument) for a DeviceLossScaler of another device, or with a rule that does not read
  /// found_inf
  void require_usable([[maybe_unused]] const StepOptions& options, [[maybe_unused]] const char* caller) const {
    if constexpr (is_on_device) {
      if (options.scaler.on_device() == nullptr) return;
      if (!ShardedFor::template reads_found_inf<R>) {
        throw_error(
            Errc::invalid_argument,
            "{} has a DeviceLossScaler, which needs a rule whose kernels change nothing where *info.found_inf is "
            "1, and that says so by 'static constexpr bool reads_found_inf = true;' (contract: the concept "
            "ddp::DeviceRule, in dtrain/ddp/sharded/device_rule.hpp)",
            {caller});
      }
      const typename ShardedFor::DeviceScaler* const scaler = options.scaler.on_device();
      scaler->require_device(reduction_->shards().device().index);
    }
  }

 private:
  using ShardedFor = ddp::detail::ShardedFor<typename C::Stream>;
  using Reduction = typename ShardedFor::template Work<C, R>;

  /// Destroys the reduction, unless work of a step that was abandoned still uses it.
  struct Completion {
    std::shared_ptr<const ddp::ReducerLifetime> lifetime{};
    std::weak_ptr<group::RankContext> context{};
    void operator()(Reduction* reduction) const noexcept {
      if (!lifetime->leaves_work) delete reduction;
    }
  };

  /// make_reduction(). On a device, where memory may be missing, collective: throws on every rank if it fails on one.
  template <class Ddp>
  Reduction* make_together(Ddp& ddp, const ShardedOptions& options) const {
    if constexpr (!is_on_device) {
      return make_reduction(ddp, options);
    } else {
      std::unique_ptr<Reduction> made;
      std::exception_ptr failure;
      std::string outcome = "a ShardedOptimizer";
      try {
        made.reset(make_reduction(ddp, options));
      } catch (const Error& error) {
        failure = std::current_exception();
        outcome += format_text(" that cannot be made: {}", {error.what()});
      }
      try {
        ddp::DriverAccess::agree_on_reduction(ddp, outcome);
      } catch (const Error&) {
        if (!failure) throw;
      }
      if (failure) std::rethrow_exception(failure);
      return made.release();
    }
  }

  template <class Ddp>
  Reduction* make_reduction(Ddp& ddp, const ShardedOptions& options) const {
    auto& driver = ddp::DriverAccess::of(ddp);
    const auto& group = ddp.group();
    if constexpr (is_on_device) {
      auto shards = std::make_unique<typename Reduction::OwnShards>(
          ddp.parameters(), ddp.plan(), group.rank(), group.world_size(), ddp::StateArrays::of<R>(), driver.read_value,
          driver.stream.ref(), group.timeout());
      return new Reduction(std::move(shards), rule_, ddp.plan(), options, driver.reducer->norms(), driver.stream.ref());
    } else {
      return new Reduction(ddp::ShardedParameters(ddp.parameters(), ddp.plan(), group.rank(), group.world_size(),
                                                  ddp::StateArrays::of<R>(), erased_rule(element_of(ddp.parameters())),
                                                  driver.read_value),
                           ddp.plan(), options, driver.reducer->norms());
    }
  }

  ddp::ShardedParameters::Rule erased_rule([[maybe_unused]] DType element) const {
    if constexpr (has_doubles) {
      using Doubles = decltype(R::doubles);
      if (element == DType::f64) {
        return ddp::ShardedParameters::Rule::of(std::shared_ptr<const Doubles>(rule_, &rule_->doubles));
      }
    }
    return ddp::ShardedParameters::Rule::of<R>(rule_);
  }

  std::shared_ptr<R> rule_;
  std::unique_ptr<Reduction, Completion> reduction_;
  std::size_t arena_bytes_ = 0;
};

template <class M, class P, template <class, class> class Ddp, class R>
ShardedOptimizer(Ddp<M, P>&, R, ShardedOptions = {}) -> ShardedOptimizer<R, typename P::ChannelBackend::Communicator>;

}  // namespace DTRAIN_NAMESPACE
