#pragma once
/// @file
/// ModuleModel of a libtorch::DistributedDataParallel: LibTorch modules as a Model; autograd's hooks mark gradients
/// ready.

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/libtorch/modules.hpp"
#include "dtrain/libtorch/stream_order.hpp"

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// Backward passes of wrappers that are running in this process.
inline std::atomic<int> running_passes{0};

}  // namespace detail

/// Model of libtorch::DistributedDataParallel. parameters() has the parameters that need gradients, each once. A hook
/// on the node of autograd that adds to .grad marks a gradient as ready. Threads: the thread that trains, and
/// autograd's thread for each GPU.
template <DeviceKind Kind>
class ModuleModel {
 public:
  static constexpr DeviceKind device_kind = Kind;

  /// @param is_static every pass adds to each gradient as often as the first one
  /// @throws as view_of, with the tensor's name in the module.
  explicit ModuleModel(Modules modules, bool is_static = false)
      : modules_(std::move(modules)), arena_(std::make_shared<std::shared_ptr<const void>>()), is_static_(is_static) {
    for (const ModuleTensor& named : detail::parameters_of(modules_)) {
      all_.push_back(named);
      if (!named.tensor.requires_grad()) {
        fixed_.push_back(named);
        wrapped_->add_frozen(named);
        continue;
      }
      const TensorView value = wrapped_->add(named.name, named.tensor);
      Parameter parameter{named.name, value, value};
      parameter.gradient.data = nullptr;  // bind_gradient sets it
      parameters_.push_back(std::move(parameter));
      entries_.push_back({named.tensor, {}, {}, 0, false, false, false, 0, 0, 0});
    }
    const std::vector<ModuleTensor> present = buffers();
    fixed_.insert(fixed_.end(), present.begin(), present.end());
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      attach_hook(i);
    }
  }
  ModuleModel(const ModuleModel&) = delete;
  ModuleModel& operator=(const ModuleModel&) = delete;
  ~ModuleModel() {
    for (const Entry& entry : entries_)
      entry.accumulator->del_post_hook(entry.hook);
  }

  /// The parameters, with the addresses that their values had when they were wrapped.
  const std::vector<Parameter>& parameters() const noexcept { return parameters_; }

  /// See ddp::MovesValues.
  const void* identity(std::size_t i) const { return entries_.at(i).value.unsafeGetTensorImpl(); }
  ddp::ReadValue value_reader() const {
    return [wrapped = wrapped_](std::size_t i) {
      ddp::PresentValue value = wrapped->present(i);
      value.stream = detail::current_stream<Kind>(value.view.device);
      return value;
    };
  }

  /// See WrappedValues.
  void store_mirrors() { wrapped_->store_mirrors(); }
  void require_dense(const std::string& writer) const { wrapped_->require_dense(writer); }

  /// Device of the parameters; the host's if there are none.
  Device device() const noexcept { return parameters_.empty() ? Device{} : parameters_.front().value.device; }

  /// The parameters, with their names.
  std::vector<ModuleTensor> trained() const {
    std::vector<ModuleTensor> trained;
    for (std::size_t i = 0; i < entries_.size(); ++i)
      trained.push_back({parameters_[i].name, entries_[i].value});
    return trained;
  }

  /// Tensors of the parameters.
  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> values;
    for (const Entry& entry : entries_)
      values.push_back(entry.value);
    return values;
  }

  /// Frozen parameters and buffers, as they were when this object was made.
  const std::vector<ModuleTensor>& fixed_tensors() const noexcept { return fixed_; }

  /// The modules' present buffers.
  std::vector<ModuleTensor> buffers() const { return detail::buffers_of(modules_); }

  void bind_gradient(std::size_t i, const TensorView& view) {
    Entry& entry = entries_.at(i);
    torch::Tensor& present = entry.value.mutable_grad();
    const bool was_bound = entry.gradient.defined() && present.defined() && present.is_same(entry.gradient);
    entry.gradient = torch::from_blob(
        view.data, entry.value.sizes(), wrapped_->gradient_strides(i), [arena = arena_](void*) {},
        wrapped_->options(i));
    if (was_bound) {
      present = entry.gradient;
    }
  }

  /// Makes later passes hand each gradient over to dtrain, which copies it. Gradients in dtrain's memory are copied to
  /// LibTorch's memory.
  void unbind_gradients() {
    const torch::NoGradGuard no_grad;
    for (Entry& entry : entries_) {
      torch::Tensor& present = entry.value.mutable_grad();
      if (present.defined() && present.is_same(entry.gradient)) present = present.clone();
      entry.gradient = torch::Tensor();
    }
    arena_ = std::make_shared<std::shared_ptr<const void>>();  // tensors that the program keeps refer to the old one
    binds_ = false;
  }

  /// Keeps `memory` as long as tensors of gradients refer to it.
  void keep_gradient_memory(std::shared_ptr<const void> memory) { *arena_ = std::move(memory); }

  /// Runs torch::autograd::backward, and calls `ready` for each gradient. @throws the exceptions of both; Error
  /// (invalid_argument) that names a parameter that was added, replaced, converted, frozen or unfrozen;
  /// (missing_gradient) that names parameters without a gradient
  /// @param reduces whether the step reduces; if not, gradients that are not bound stay in .grad
  /// @param alone one rank: dense gradients stay in .grad
  void backward(const torch::autograd::variable_list& roots, const torch::autograd::variable_list& gradients,
                bool retain_graph, bool allow_unused, Ready ready, bool reduces = true, bool alone = false) {
    detail::require_same_parameters(modules_, all_);
    wrapped_->require_same();
    reduces_ = reduces;
    alone_ = alone && binds_;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      entries_[i].is_ready = false;
      entries_[i].additions = 0;
      forget_cleared(i);
      attach_hook(i);
    }
    additions_ = 0;
    ready_ = ready;
    ++detail::running_passes;
    const struct Disarm {
      std::optional<Ready>& armed;
      ~Disarm() {
        armed.reset();
        --detail::running_passes;
      }
    } disarm{ready_};
    torch::autograd::backward(roots, gradients, retain_graph);
    if (is_static_) complete_static_pass();
    if (allow_unused) {
      for (std::size_t i = 0; i < entries_.size(); ++i) {
        if (entries_[i].is_ready) continue;
        if (entries_[i].value.grad().defined()) {
          reduce_present(i);
        } else if (entries_[i].is_cleared) {
          reduce_cleared(i);
        }
      }
    } else if (reduces) {
      require_all_gradients();
    }
  }

  /// Begins a step to which this rank's modules add nothing. @throws Error (invalid_argument) if a .grad waits for a
  /// step that reduces it
  void begin_without_data() {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      forget_cleared(i);
      const bool waits = entries_[i].used || (!binds_ && entries_[i].value.grad().defined());
      if (!waits) continue;
      throw Error(Errc::invalid_argument,
                  "a step without data was made while the .grad of parameter '" + parameters_[i].name +
                      "' waits for a step, after a pass under no_sync(); reduce it by ddp.backward(), or call "
                      "ddp.discard_accumulated()");
    }
    alone_ = false;
  }

  /// Removes the .grad of each parameter that took part in a pass under no_sync() since the last reduction.
  void discard_accumulated() {
    for (Entry& entry : entries_) {
      if (std::exchange(entry.used, false)) entry.value.mutable_grad() = torch::Tensor();
      entry.is_cleared = false;
    }
  }

  /// 1 for each parameter that has had a gradient in a pass since the last publish().
  std::vector<std::int32_t> used() const {
    std::vector<std::int32_t> used;
    for (const Entry& entry : entries_)
      used.push_back(entry.used ? 1 : 0);
    return used;
  }

  /// Whether publish() does the same whatever other ranks used: each parameter was used here, or .grad is the view of
  /// dtrain's memory already.
  bool ignores_other_ranks() const {
    return std::all_of(entries_.begin(), entries_.end(), [](const Entry& entry) {
      return entry.used || (entry.gradient.defined() && entry.value.grad().is_same(entry.gradient));
    });
  }

  /// Called after a reduction. Sets .grad to the reduced gradient for each parameter that some rank used; other
  /// parameters keep their .grad.
  void publish(const std::vector<std::int32_t>& used) {
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (used[i] != 0 && !alone_) entries_[i].value.mutable_grad() = entries_[i].gradient;
      entries_[i].used = entries_[i].is_cleared = false;
    }
  }

  /// Removes every parameter's .grad.
  void drop_gradients() {
    for (Entry& entry : entries_) {
      entry.value.mutable_grad() = torch::Tensor();
      entry.used = entry.is_cleared = false;
    }
  }

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

  struct Entry {
    torch::Tensor value;
    torch::Tensor gradient;   ///< the view of dtrain's memory, if gradients are bound
    Accumulator accumulator;  ///< autograd holds this node weakly, and the hook with it
    std::uintptr_t hook;
    bool used;                    ///< whether it was used since the last reduction
    bool is_cleared;              ///< its .grad was set to none after a pass under no_sync(), which is forgotten
    bool is_ready;                ///< whether it is ready in this pass
    std::size_t additions;        ///< additions of autograd to the gradient in this pass
    std::size_t first_additions;  ///< additions in a static graph's first pass; 0: none yet
    std::size_t last_addition;    ///< the number of the pass's last addition to the gradient
  };

  /// Called by autograd, in one thread for each GPU, when gradient `index` of this pass is final.
  struct Hook final : torch::autograd::FunctionPostHook {
    Hook(ModuleModel& model, std::size_t index) : model_(&model), index_(index) {}
    torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                              const torch::autograd::variable_list&) override {
      model_->on_gradient(index_);
      return outputs;
    }
    ModuleModel* model_;
    std::size_t index_;
  };

  /// Attaches the hook to the present accumulator: torch::load gives a parameter another accumulator.
  void attach_hook(std::size_t index) {
    Entry& entry = entries_[index];
    const Accumulator present = torch::autograd::impl::grad_accumulator(entry.value);
    if (present == entry.accumulator) {
      return;
    }
    if (entry.accumulator) entry.accumulator->del_post_hook(entry.hook);
    entry.accumulator = present;
    entry.hook = present->add_post_hook(std::make_unique<Hook>(*this, index));
  }

  void on_gradient(std::size_t index) {
    if (!ready_) {
      // In a pass of another wrapper it is no mistake: a generator's gradients come by way of the discriminator.
      if (detail::running_passes == 0 && !warned_.exchange(true)) {
        log(LogLevel::warning, "loss.backward() ran outside a step: the gradient of '" + parameters_[index].name +
                                   "' is this rank's own and is not reduced; call ddp.backward(loss)");
      }
      return;
    }
    Entry& entry = entries_[index];
    entry.used = true;
    ++entry.additions;
    entry.last_addition = ++additions_;
    if (entry.is_ready) refuse_further_addition(index);
    if (!is_static_ || entry.additions == entry.first_additions) reduce_present(index);
  }

  [[noreturn]] void refuse_further_addition(std::size_t index) const {
    throw Error(Errc::invalid_argument,
                "autograd added to the gradient of parameter '" + parameters_[index].name +
                    "' again after it was final" +
                    (is_static_ ? ": in the first pass it added less often; give GraphPolicy::dynamic_graph, or the "
                                  "same graph in every step"
                                : ": a part that is recomputed in the backward pass has a layer in common with "
                                  "another; give GraphPolicy::static_graph"));
  }

  /// Ends a pass in a static graph. In the first one gradients become final here, in the order of the last additions.
  void complete_static_pass() {
    std::vector<std::size_t> later;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      Entry& entry = entries_[i];
      if (entry.additions == 0 || entry.is_ready) continue;
      if (entry.first_additions != 0) {
        throw Error(Errc::invalid_argument, "autograd added to the gradient of parameter '" + parameters_[i].name +
                                                "' " + std::to_string(entry.additions) +
                                                " times, and in the first pass " +
                                                std::to_string(entry.first_additions) +
                                                " times; a static graph is the same in every step: give "
                                                "GraphPolicy::dynamic_graph");
      }
      entry.first_additions = entry.additions;
      later.push_back(i);
    }
    std::sort(later.begin(), later.end(),
              [&](std::size_t a, std::size_t b) { return entries_[a].last_addition < entries_[b].last_addition; });
    for (const std::size_t i : later)
      reduce_present(i);
  }

  /// @throws Error (missing_gradient) that names the parameters without a gradient in this pass
  void require_all_gradients() const {
    constexpr std::size_t most = 8;
    std::string names;
    std::size_t count = 0;
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (entries_[i].is_ready || ++count > most) continue;
      names += (names.empty() ? "" : ", ") + ddp::describe_parameter(i, parameters_[i].name);
    }
    if (count == 0) return;
    const std::size_t further = count > most ? count - most : 0;
    if (further != 0) names += " and " + std::to_string(further) + " more";
    throw Error(Errc::missing_gradient,
                "these parameters got no gradient: " + names +
                    "; they took no part in the loss: use them, give DdpOptions::allow_unused_parameters, or "
                    "call set_requires_grad(false) on them before the module is wrapped");
  }

  /// Before a pass: a parameter without a .grad took part in no pass since the last reduction, whatever dtrain's memory
  /// has of it.
  void forget_cleared(std::size_t index) {
    Entry& entry = entries_[index];
    if (!entry.used || entry.value.grad().defined()) return;
    entry.used = false;
    entry.is_cleared = true;
    if (std::exchange(warned_cleared_, true)) return;
    log(LogLevel::warning, "the .grad of '" + parameters_[index].name +
                               "' was set to none after a pass under no_sync(), so that this pass is lost; call "
                               "zero_grad() before the first of such passes only, or ddp.discard_accumulated() where "
                               "they are given up");
  }

  /// Reduces zeros in place of what a forgotten pass has left in dtrain's memory.
  void reduce_cleared(std::size_t index) {
    entries_[index].is_ready = true;
    if (!binds_) return;
    entries_[index].gradient.zero_();
    (*ready_)(ReadyGradient{index, producer(index)});
  }

  /// Reduces this rank's gradient, which .grad holds.
  void reduce_present(std::size_t index) {
    entries_[index].is_ready = true;
    if (!binds_) {
      if (reduces_) hand_over(index);
      return;
    }
    if (!alone_ || entries_[index].value.grad().layout() != torch::kStrided) bind_result(index);
    (*ready_)(ReadyGradient{index, producer(index)});
  }

  /// The stream in which autograd makes a gradient, in the thread that makes it. A gradient of the host is final.
  std::optional<StreamHandle> producer(std::size_t index) const {
    if constexpr (Kind == DeviceKind::host) return std::nullopt;
    return detail::current_stream<Kind>(parameters_[index].value.device);
  }

  /// Lets dtrain copy .grad, and frees LibTorch's memory of it.
  void hand_over(std::size_t index) {
    Entry& entry = entries_[index];
    torch::Tensor& gradient = entry.value.mutable_grad();
    const torch::NoGradGuard no_grad;
    const bool is_lazy = gradient.is_conj() || gradient.is_neg();
    const torch::IntArrayRef strides = wrapped_->gradient_strides(index);
    if (gradient.layout() != torch::kStrided || gradient.strides() != strides || is_lazy) {
      const torch::Tensor strided = torch::empty_strided(entry.value.sizes(), strides, wrapped_->options(index));
      strided.copy_(dense(gradient, index));
      gradient = strided;
    }
    const TensorView view = view_of(gradient, parameters_[index].name);
    (*ready_)(ReadyGradient{index, producer(index), &view});
    detail::keep_until_used<Kind>(gradient);
    gradient = torch::Tensor();
  }

  torch::Tensor dense(const torch::Tensor& gradient, std::size_t index) {
    if (gradient.layout() == torch::kStrided) return gradient;
    if (!warned_sparse_.exchange(true)) {
      log(LogLevel::warning,
          "the gradient of '" + parameters_[index].name + "' is sparse; it is reduced as a dense one");
    }
    return gradient.to_dense();
  }

  /// Copies .grad to dtrain's memory, and makes .grad the view of that memory.
  void bind_result(std::size_t index) {
    Entry& entry = entries_[index];
    torch::Tensor& gradient = entry.value.mutable_grad();
    const torch::NoGradGuard no_grad;
    if (gradient.layout() != torch::kStrided || gradient.data_ptr() != entry.gradient.data_ptr()) {
      entry.gradient.copy_(dense(gradient, index));
    }
    gradient = entry.gradient;
  }

  Modules modules_;
  std::shared_ptr<WrappedValues> wrapped_ = std::make_shared<WrappedValues>();  ///< values of the entries
  std::shared_ptr<std::shared_ptr<const void>> arena_;  ///< set once gradients are bound; their tensors refer to it
  std::vector<Entry> entries_;
  std::vector<Parameter> parameters_;  ///< parameters of the entries
  std::vector<ModuleTensor> all_;      ///< every parameter, frozen ones too
  std::vector<ModuleTensor> fixed_;
  std::optional<Ready> ready_;           ///< set during backward()
  bool reduces_ = true, alone_ = false;  ///< choices of the last backward()
  bool binds_ = true;
  bool is_static_;
  std::atomic<std::size_t> additions_{0};  ///< additions of autograd to all gradients in this pass
  std::atomic<bool> warned_{false};
  std::atomic<bool> warned_sparse_{false};
  bool warned_cleared_ = false;
};

}  // namespace DTRAIN_NAMESPACE::libtorch
