#pragma once
/// @file
/// libtorch::DistributedDataParallel: a program's wrapper of LibTorch modules, which averages gradients. GraphPolicy:
/// whether used parameters differ between steps.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/libtorch/batch_sampler.hpp"
#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/checkpoint.hpp"
#include "dtrain/libtorch/module_model.hpp"
#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/optimizer_tensors.hpp"
#include "dtrain/libtorch/sharded_optimizer.hpp"
#include "dtrain/libtorch/stream_order.hpp"
#include "dtrain/libtorch/sync_batch_norm.hpp"
#include "dtrain/libtorch/training_parts.hpp"
#include "dtrain/libtorch/weights.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

/// Whether the parameters that a rank uses, and how often, differ between the steps.
/// @ingroup libtorch
enum class GraphPolicy {
  /// With DdpOptions::allow_unused_parameters the ranks all-reduce after each step which parameters were used. On a
  /// GPU, a rank waits for the result only if a parameter without a .grad in dtrain's memory took no part on this rank,
  /// or if a sharded optimizer updates the parameters.
  dynamic_graph,
  /// The first step that reduces decides for all later ones, which all-reduce nothing but gradients. Autograd may add
  /// to a gradient several times in a pass, as where two parts that are recomputed have a layer in common.
  static_graph,
};

/// Wraps modules of LibTorch and averages their gradients over the ranks while the backward pass runs:
/// `dtrain::libtorch::DistributedDataParallel ddp{net, group};`, then `loss = f(ddp(x)); ddp.backward(loss);` and any
/// optimizer of LibTorch's. `net` is a module holder, a shared_ptr of a module, or a vector of shared_ptr (`Modules`).
///
/// A parameter's .grad is a view of dtrain's memory once it has a gradient. With zero_grad(false) nothing is copied;
/// where gradients were set to none, each gradient is copied once. Gradients of sparse embeddings become dense. A
/// parameter that no rank used keeps its .grad (DdpOptions::allow_unused_parameters). Second derivatives come from
/// torch::autograd::grad in the loss. After torch::load and set_data, which every rank calls, the wrapper stays valid,
/// and with it sharded optimizers and hooks::LocalSgd, as long as type, shape and strides are the same.
/// On a GPU, LibTorch's current stream at each call orders dtrain's work, which runs after the stream's earlier work
/// and before its later work. The host waits in the first backward pass, and where GraphPolicy says so.
/// DdpOptions::producer_stream is the current stream unless it is set.
/// Lifetime: keeps the modules and the group; .grad may be kept after the wrapper's destruction. Threads: the thread
/// that trains.
/// @ingroup libtorch
template <class Net, class P>
class DistributedDataParallel {
  using Model = ModuleModel<detail::kind_of<P>>;
  using Communicator = typename P::ChannelBackend::Communicator;

 public:
  static_assert(detail::HasModules<Net>,
                "dtrain: libtorch::DistributedDataParallel takes a module's holder, such as torch::nn::Linear, a "
                "std::shared_ptr of a module, or dtrain::libtorch::Modules; of a module *net give the holder net, and "
                "of a torch::jit::Module a class of torch::nn::Module that registers its parameters");

  /// Collective, blocking: all parameters and buffers, also frozen parameters, get rank 0's values.
  /// A parameter with gaps in its memory (a part of another tensor) is trained by way of a dense copy.
  /// @throws Error (unsupported) that names a parameter whose memory dtrain cannot reduce; (invalid_argument) for a
  /// null module, and one that names a SyncBatchNorm without a group; (disagreement) on every rank if the modules
  /// differ, also in the strides of a parameter; as dtrain::DistributedDataParallel.
  DistributedDataParallel(Net net, ProcessGroup<P> group, const DdpOptions& options = {},
                          BufferPolicy buffers = BufferPolicy::rank0, GraphPolicy graph = GraphPolicy::dynamic_graph)
      : DistributedDataParallel(std::move(net), std::move(group), options, ddp::HookFunctions<Communicator>(), buffers,
                                graph) {}

  DistributedDataParallel(Net net, ProcessGroup<P> group, const DdpOptions& options, GraphPolicy graph)
      : DistributedDataParallel(std::move(net), std::move(group), options, BufferPolicy::rank0, graph) {}

  /// @param hook reduces the gradients, as a hook of dtrain::DistributedDataParallel: an rvalue, which this object
  /// keeps; or std::ref(hook). Lifetime: this object borrows the variable of std::ref(hook), which outlives it.
  template <class H>
  requires(!std::is_same_v<std::remove_cvref_t<H>, BufferPolicy> &&
           !std::is_same_v<std::remove_cvref_t<H>, GraphPolicy>)
      DistributedDataParallel(Net net, ProcessGroup<P> group, const DdpOptions& options, H&& hook,
                              BufferPolicy buffers = BufferPolicy::rank0,
                              GraphPolicy graph = GraphPolicy::dynamic_graph)
      : DistributedDataParallel(std::move(net), std::move(group), options,
                                ddp::hook_functions<Communicator>(std::forward<H>(hook)), buffers, graph) {}

  DistributedDataParallel(Net net, ProcessGroup<P> group, const DdpOptions& options,
                          ddp::HookFunctions<Communicator> hook, BufferPolicy buffers, GraphPolicy graph)
      : net_(std::move(net)),
        group_(std::move(group)),
        buffers_(buffers),
        graph_(graph),
        allow_unused_(options.allow_unused_parameters),
        is_alone_(group_.world_size() == 1 && !hook.reduce),
        state_(std::make_unique<State>(detail::modules_of(net_), group_, options, std::move(hook), graph)) {
    require_same_tensors(group_, state_->model.fixed_tensors());
    require_same_order(group_, state_->model.trained());
    libtorch::synchronize_buffers(group_, state_->model.fixed_tensors(), BufferPolicy::rank0);
  }

  /// The module's forward. Where gradients are recorded, buffers are first synchronized, as by synchronize_buffers().
  /// Under torch::NoGradGuard a rank may call it alone.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    static_assert(
        requires { net_->forward(std::forward<Arguments>(arguments)...); },
        "dtrain: ddp(x) calls the module's forward(x), which Modules, a std::shared_ptr<torch::nn::Module> and "
        "a ModuleList do not have, nor another module for these arguments: call ddp.synchronize_buffers(), "
        "and then the modules' own forward()");
    if (torch::GradMode::is_enabled()) synchronize_buffers();
    return net_->forward(std::forward<Arguments>(arguments)...);
  }

  /// Makes the modules' buffers equal on all ranks (BufferPolicy), for forward passes that are not made through this
  /// object: of several modules, of a ModuleList, or by net->forward(x). Call it before each. Under no_sync() it does
  /// nothing. Collective, and blocking on the host, if the modules have buffers.
  void synchronize_buffers() {
    if (state_->ddp.reduces()) libtorch::synchronize_buffers(group_, state_->model.buffers(), buffers_);
  }

  /// loss.backward(); afterwards every .grad is reduced, and scaled and clipped as `options` say. Collective; blocking
  /// on the host. @returns whether the optimizer is to step, as Step::finish
  /// @throws the exceptions of autograd; Error (missing_gradient) that names parameters without a gradient;
  /// (invalid_argument) that names a parameter that was added, replaced, converted, frozen or unfrozen since the
  /// construction, or whose use differs in a static graph; the job's first cause.
  bool backward(const torch::Tensor& loss, StepOptions options = {}) {
    return backward({loss}, {}, false, std::move(options));
  }

  /// Several roots with their gradients (none: scalars). Gradients themselves never have a graph (create_graph):
  /// dtrain's reduction has no derivative.
  /// @param retain_graph keeps the graph for another pass
  bool backward(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& gradients,
                bool retain_graph = false, StepOptions options = {}) {
    const bool is_alone = is_alone_ && !options.needs_norm();  // the norm is that of gradients in dtrain's memory
    const auto pass = [&](Ready ready) {
      state_->model.backward(roots, gradients, retain_graph, allow_unused_, ready, state_->ddp.reduces(), is_alone);
      if (state_->ddp.reduces()) require_same_graph();
    };
    return step(pass, std::move(options));
  }

  /// A step of a rank that has no samples, with zeros in place of its gradients; see dtrain::UnevenInputs. Other ranks
  /// make one pass by `ddp(x)` or synchronize_buffers(), and ddp.backward(). Collective; blocking. With
  /// BufferPolicy::rank0 all ranks have rank 0's buffers, also once it has no more data; with BufferPolicy::mean the
  /// buffers of all ranks count alike.
  /// @throws Error (unsupported) for gradients on a GPU, hooks::LocalSgd, and a SyncBatchNorm in training, which is
  /// named; (invalid_argument) if gradients of passes under no_sync() wait for a step; as backward()
  bool step_without_data(StepOptions options = {}) {
    const ddp::ZeroGradients zeros = begin_without_data();
    return step(zeros, std::move(options));
  }
  template <class O>
  bool step_without_data(ShardedOptimizer<O, Communicator>& optimizer, StepOptions options = {}) {
    const ddp::ZeroGradients zeros = begin_without_data();
    return step(zeros, optimizer, std::move(options));
  }

  /// loss.backward(), after which `optimizer` updates the parameters, in place of its step(). Afterwards no parameter
  /// has a .grad. @returns whether it has updated, as Step::finish
  template <class O>
  bool backward(const torch::Tensor& loss, ShardedOptimizer<O, Communicator>& optimizer, StepOptions options = {}) {
    return backward({loss}, {}, optimizer, std::move(options));
  }
  template <class O>
  bool backward(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& gradients,
                ShardedOptimizer<O, Communicator>& optimizer, StepOptions options = {}) {
    const auto pass = [&](Ready ready) {
      state_->model.backward(roots, gradients, false, allow_unused_, ready);
      require_same_graph();
      if constexpr (Model::device_kind == DeviceKind::cuda) {  // later work than the gradients may use the weights
        const StreamHandle stream = detail::current_stream<DeviceKind::cuda>(state_->model.device());
        ddp::DriverAccess::of(state_->ddp).reducer->order_before_values(stream);
      }
    };
    return step(pass, optimizer, std::move(options));
  }

  /// Norm of the reduced gradients. As of dtrain::DistributedDataParallel.
  const GradientNorm& gradient_norm() const { return state_->ddp.gradient_norm(); }

  /// Multiplies the reduced gradients, and gradient_norm(), by `factor`. As of dtrain::DistributedDataParallel.
  void scale_gradients(double factor) {
    state_->ddp.scale_gradients(factor);
    order_after_step();
  }

  /// Multiplies the reduced gradients by min(1, max_norm / (norm + 1e-6)). As of dtrain::DistributedDataParallel.
  void clip_gradients(double max_norm) {
    state_->ddp.clip_gradients(max_norm);
    order_after_step();
  }

  /// Scope in which forward passes leave buffers alone, and gradients of backward passes add up on this rank. The next
  /// pass outside the scope reduces the sum, unless discard_accumulated() or zero_grad() is called before it.
  ddp::NoSync no_sync() { return state_->ddp.no_sync(); }

  /// Discards the passes under no_sync() that no step has reduced, as where an epoch ends in the middle of a round: the
  /// parameters that took part in them have no .grad afterwards, and others keep it. An elastic job's commit() needs
  /// the call in place of zero_grad(). Every rank calls it between the same passes; it sends nothing.
  /// @throws Error (invalid_argument) during a step that reduces; the job's first cause
  void discard_accumulated() {
    state_->ddp.discard_accumulated();
    state_->model.discard_accumulated();
  }

  Net& module() noexcept { return net_; }
  const ProcessGroup<P>& group() const noexcept { return group_; }
  ddp::ReducerStatistics statistics() const noexcept { return state_->ddp.statistics(); }

  /// Collective, blocking: statistics and the slowest rank as a line.
  std::string summary() { return state_->ddp.summary(); }

  /// As dtrain::DistributedDataParallel::compare_values, for parameters that need gradients, on the host.
  void compare_values() { state_->ddp.compare_values(); }

 private:
  template <class O, class C>
  friend class ShardedOptimizer;

  /// The wrapper of the parameters that need gradients, and these parameters.
  dtrain::DistributedDataParallel<Model, P>& wrapped() noexcept { return state_->ddp; }
  std::vector<torch::Tensor> trained() const { return state_->model.values(); }

  /// Whether a pass is of samples.
  template <class Pass>
  static constexpr bool has_data = !std::is_same_v<Pass, ddp::ZeroGradients>;

  ddp::ZeroGradients begin_without_data() {
    ddp::DriverAccess::of(state_->ddp).begin_without_data();
    detail::require_no_statistics_of_all_ranks<P>(detail::modules_of(net_));
    state_->model.begin_without_data();
    state_->ddp.discard_accumulated();  // what zero_grad() has cleared
    ddp::ZeroGradients zeros(state_->model.parameters());
    const bool sends_buffers = buffers_ == BufferPolicy::rank0 && group_.rank() == 0 && group_.world_size() > 1;
    if (sends_buffers && !state_->model.buffers().empty() && !std::exchange(has_warned_of_buffers_, true)) {
      ddp::warn_of_constant_buffers();
    }
    synchronize_buffers();
    return zeros;
  }

  /// @throws Error (invalid_argument) for a DeviceLossScaler
  static void require_host_scaler(const StepOptions& options) {
    if (options.scaler.on_device() == nullptr) return;
    throw Error(
        Errc::invalid_argument,
        "a step of a LibTorch module has a DeviceLossScaler, but LibTorch's optimizers do not read its found_inf, "
        "and the host counts their updates; give the step a LossScaler, for which the host waits");
  }

  template <class Pass>
  bool step(const Pass& pass, StepOptions options) {
    require_host_scaler(options);
    const bool updates = state_->ddp.backward(pass, std::move(options));
    if (state_->ddp.reduces()) {
      order_after_step();
      state_->model.publish(used_by_some_rank(!state_->model.ignores_other_ranks(), has_data<Pass>));
    }
    return updates;
  }
  template <class Pass, class O>
  bool step(const Pass& pass, ShardedOptimizer<O, Communicator>& optimizer, StepOptions options) {
    require_host_scaler(options);
    require_no_capture();
    optimizer.begin_step(used_anywhere_);
    if (allow_unused_ && used_anywhere_.empty()) {
      options.inspect = [&, given = std::move(options.inspect)](StepGradients& reduced) {
        optimizer.set_used(used_by_some_rank(true, has_data<Pass>));
        return !given || given(reduced);
      };
    }
    const bool updates = state_->ddp.backward(pass, optimizer.sharded(), std::move(options));
    optimizer.end_step();
    order_after_step();
    state_->model.drop_gradients();
    return updates;
  }

  /// For stage 2. Collective, blocking: gradients get LibTorch's memory, and dtrain copies them to buckets that share
  /// memory. @throws as dtrain::ShardedOptimizer
  void unbind_gradients() {
    auto& reducer = *ddp::DriverAccess::of(state_->ddp).reducer;
    reducer.throw_if_unusable("ShardedOptimizer");
    reducer.keep_plan();
    state_->model.unbind_gradients();
    reducer.reuse_memory(true);
  }

  /// See WrappedValues::require_dense.
  void require_dense(const std::string& writer) const { state_->model.require_dense(writer); }

  /// On a GPU, for a sharded optimizer. @throws Error (unsupported) if the current stream is captured in a CUDA graph
  void require_no_capture() const {
    if (!detail::is_captured<Model::device_kind>(state_->model.device())) return;
    throw Error(Errc::unsupported,
                "a step of a libtorch::ShardedOptimizer was captured in a CUDA graph, whose replays would not count "
                "each parameter's updates; run it without a graph");
  }

  /// On a GPU: makes later work of the current stream, which may have made no gradient, run after the step.
  void order_after_step() {
    if constexpr (Model::device_kind == DeviceKind::cuda) {
      const StreamHandle stream = detail::current_stream<DeviceKind::cuda>(state_->model.device());
      ddp::DriverAccess::of(state_->ddp).reducer->order_after_step(stream);
    }
  }

  /// 1 for each parameter that a rank has used since the last reduction. Collective unless the result is known.
  /// Blocking on the host, and on a GPU with `is_needed`; without it the result there is what this rank has used.
  std::vector<std::int32_t> used_by_some_rank(bool is_needed, bool has_samples) {
    if (!allow_unused_) {
      return std::vector<std::int32_t>(state_->model.parameters().size(), 1);
    }
    if (!used_anywhere_.empty()) {
      return used_anywhere_;
    }
    const std::vector<std::int32_t> mine = state_->model.used();
    std::vector<std::int32_t> used = mine;
    const auto is_used = [](std::int32_t flag) { return flag != 0; };
    is_needed = is_needed || graph_ == GraphPolicy::static_graph || std::none_of(mine.begin(), mine.end(), is_used);
    if (group_.world_size() > 1) detail::all_reduce_flags(group_, state_->model.device(), used, is_needed);
    if (graph_ == GraphPolicy::static_graph) {
      if (has_samples) used_here_ = mine;
      used_anywhere_ = used;
    }
    if (has_samples) note_use(std::any_of(used.begin(), used.end(), is_used));
    return used;
  }

  /// Warns, once, of wrapped parameters that no rank's loss has used in several steps in turn: a program may have
  /// replaced them. One such step is right where a sample needs no parameter.
  void note_use(bool is_used) {
    constexpr int suspicious = 3;
    ++steps_;
    unused_steps_ = is_used ? 0 : unused_steps_ + 1;
    if (unused_steps_ != suspicious || std::exchange(has_warned_of_use_, true)) return;
    log(LogLevel::warning, "in steps " + std::to_string(steps_ - suspicious + 1) + " to " + std::to_string(steps_) +
                               " no parameter of the wrapped modules took part in the loss on any rank: were they "
                               "replaced? Make another DistributedDataParallel");
  }

  /// After a pass of samples, in a static graph. If this rank had none when the graph was decided, this pass decides
  /// what it uses, of the parameters that other ranks used.
  void require_same_graph() {
    if (used_anywhere_.empty()) return;
    const std::vector<std::int32_t> used = state_->model.used();
    const bool is_first_pass = used_here_.empty();
    for (std::size_t i = 0; i < used.size(); ++i) {
      if (is_first_pass ? used[i] > used_anywhere_[i] : used[i] != used_here_[i]) {
        throw Error(Errc::invalid_argument,
                    "parameter '" + state_->model.parameters()[i].name + "' took part in the loss of " +
                        (used[i] != 0 ? "this step and not of the first one" : "the first step and not of this one") +
                        "; a static graph uses the same parameters in every step: give GraphPolicy::dynamic_graph");
      }
    }
    if (is_first_pass) used_here_ = used;
  }

  /// The reducer refers to the model, so that neither of them moves with this object.
  struct State {
    State(Modules modules, const ProcessGroup<P>& group, DdpOptions options, ddp::HookFunctions<Communicator> hook,
          GraphPolicy graph)
        : model(checked(std::move(modules)), graph == GraphPolicy::static_graph),
          ddp(model, group, completed(options, model), accepted(std::move(hook), model)) {
      model.store_mirrors();
      model.keep_gradient_memory(ddp.gradient_memory());
    }
    static Modules checked(Modules modules) {
      detail::require_groups<P>(modules);
      return modules;
    }
    static ddp::HookFunctions<Communicator> accepted(ddp::HookFunctions<Communicator> hook, const Model& model) {
      if (hook.weights_differ) model.require_dense(hook.description);
      return hook;
    }
    static DdpOptions& completed(DdpOptions& options, const Model& model) {
      options.broadcast_buffers = false;
      if (options.producer_stream == StreamHandle{}) {
        options.producer_stream = detail::current_stream<Model::device_kind>(model.device());
      }
      return options;
    }
    Model model;
    dtrain::DistributedDataParallel<Model, P> ddp;
  };

  Net net_;
  ProcessGroup<P> group_;
  BufferPolicy buffers_;
  GraphPolicy graph_;
  bool allow_unused_;
  bool is_alone_;  ///< no other rank, and no hook, changes gradients
  bool has_warned_of_buffers_ = false;
  std::uint64_t steps_ = 0;  ///< steps with samples that reduced, with allow_unused_parameters
  int unused_steps_ = 0;     ///< the last ones, in which no rank used a parameter
  bool has_warned_of_use_ = false;
  std::vector<std::int32_t> used_here_;      ///< a static graph's, by this rank's first samples; empty: none yet
  std::vector<std::int32_t> used_anywhere_;  ///< a static graph's, in the first step; empty: none yet
  std::unique_ptr<State> state_;
};

}  // namespace DTRAIN_NAMESPACE::libtorch
