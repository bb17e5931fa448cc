#pragma once
/// @file
/// ModuleModel: LibTorch modules as a model of dtrain's; WrappedValues: the parameters as they were wrapped, and the
/// present addresses of their values. The wrapper in libtorch.hpp owns it.

#include <c10/core/StorageImpl.h>
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

/// Whether strides `a` and `b` give tensors of these sizes the same order of elements; a dimension of one element has
/// any stride.
inline bool have_same_order(torch::IntArrayRef sizes, torch::IntArrayRef a, torch::IntArrayRef b) {
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && a[i] != b[i]) return false;
  }
  return true;
}

}  // namespace detail

/// The parameters of wrapped modules: trained parameters, by index, and frozen parameters. torch::load and set_data
/// give a tensor other memory without a notice to dtrain. Code that reads or writes values therefore calls present()
/// first. Threads: the thread that trains.
class WrappedValues {
 public:
  /// @param view view_of(tensor)
  void add(std::string name, const torch::Tensor& tensor, const TensorView& view) {
    values_.push_back({std::move(name), tensor, tensor.options(), tensor.sizes().vec(), tensor.strides().vec(),
                       view.data, tensor.storage().getWeakStorageImpl(), 0});
  }
  void add_frozen(const ModuleTensor& parameter) { frozen_.push_back(parameter); }

  const torch::TensorOptions& options(std::size_t i) const { return values_.at(i).options; }

  /// @throws Error (invalid_argument) that names a parameter that has become another kind of tensor, or has been frozen
  /// or unfrozen
  void require_same() const {
    for (const WrappedValue& value : values_) {
      require_same_kind(value);
      if (!value.tensor.requires_grad())
        refuse(value.name, "needed a gradient when it was wrapped, and needs none now");
    }
    for (const ModuleTensor& frozen : frozen_) {
      if (frozen.tensor.requires_grad())
        refuse(frozen.name, "needed no gradient when it was wrapped, and needs one now, which no step reduces");
    }
  }

  /// Present value of trained parameter i. @throws Error (invalid_argument) as require_same, and if its elements lie in
  /// another order than when it was wrapped; as view_of
  ddp::PresentValue present(std::size_t i) {
    WrappedValue& value = values_.at(i);
    require_same_kind(value);
    if (!detail::have_same_order(value.sizes, value.tensor.strides(), value.strides)) {
      refuse(value.name, "has other strides", value.tensor.strides(), torch::IntArrayRef(value.strides));
    }
    const TensorView view = view_of(value.tensor, value.name);
    // Another storage may have the memory of an earlier one: an equal address is no proof.
    const auto storage = value.tensor.storage().getWeakStorageImpl();
    if (view.data != value.data || storage != value.storage) {
      value.data = view.data;
      value.storage = storage;
      ++value.moves;
    }
    return {view, value.moves};
  }

 private:
  struct WrappedValue {
    std::string name;
    torch::Tensor tensor;
    torch::TensorOptions options;  ///< of the tensor when it was wrapped, as sizes and strides
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    const std::byte* data;  ///< address in the last add() or present()
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t moves;
  };

  static void require_same_kind(const WrappedValue& value) {
    const torch::Tensor& now = value.tensor;
    const torch::ScalarType type = c10::typeMetaToScalarType(value.options.dtype());
    if (now.scalar_type() != type) refuse(value.name, "has another type", now.scalar_type(), type);
    if (now.sizes() != value.sizes) {
      refuse(value.name, "has another shape", now.sizes(), torch::IntArrayRef(value.sizes));
    }
    if (now.device() != value.options.device()) {
      refuse(value.name, "is on another device", now.device(), value.options.device());
    }
  }

  static std::string text_of(torch::ScalarType type) { return c10::toString(type); }
  static std::string text_of(const torch::Device& device) { return device.str(); }
  static std::string text_of(torch::IntArrayRef numbers) {
    std::string text;
    for (const std::int64_t number : numbers)
      text += (text.empty() ? "" : ", ") + std::to_string(number);
    return "[" + text + "]";
  }

  template <class Trait>
  [[noreturn]] static void refuse(const std::string& name, const std::string& what, const Trait& now,
                                  const Trait& before) {
    refuse(name, what + " than when it was wrapped (" + text_of(now) + ", not " + text_of(before) + ")");
  }
  [[noreturn]] static void refuse(const std::string& name, const std::string& what) {
    throw Error(Errc::invalid_argument, "parameter '" + name + "' " + what +
                                            "; make another DistributedDataParallel after to(), "
                                            "set_data or set_requires_grad");
  }

  std::vector<WrappedValue> values_;
  std::vector<ModuleTensor> frozen_;
};

/// Model of libtorch::DistributedDataParallel. parameters() has the parameters that need gradients, each once. A hook
/// on the node of autograd that adds to .grad marks a gradient as ready. Threads: the thread that trains, and
/// autograd's thread for each GPU.
template <DeviceKind Kind>
class ModuleModel {
 public:
  static constexpr DeviceKind device_kind = Kind;

  /// @throws as view_of, with the tensor's name in the module.
  explicit ModuleModel(Modules modules)
      : modules_(std::move(modules)), arena_(std::make_shared<std::shared_ptr<const void>>()) {
    for (const ModuleTensor& named : detail::parameters_of(modules_)) {
      all_.push_back(named);
      if (!named.tensor.requires_grad()) {
        fixed_.push_back(named);
        wrapped_->add_frozen(named);
        continue;
      }
      const TensorView value = view_of(named.tensor, named.name);
      Parameter parameter{named.name, value, value};
      parameter.gradient.data = nullptr;  // bind_gradient sets it
      parameters_.push_back(std::move(parameter));
      wrapped_->add(named.name, named.tensor, value);
      entries_.push_back({named.tensor, {}, {}, 0, false, false});
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
    return [wrapped = wrapped_](std::size_t i) { return wrapped->present(i); };
  }

  /// Device of the parameters; the host's if there are none.
  Device device() const noexcept { return parameters_.empty() ? Device{} : parameters_.front().value.device; }

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
        view.data, entry.value.sizes(), entry.value.strides(), [arena = arena_](void*) {}, wrapped_->options(i));
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
  /// (invalid_argument) that names a parameter that was added, replaced, converted, frozen or unfrozen
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
      attach_hook(i);
    }
    ready_ = ready;
    const struct Disarm {
      std::optional<Ready>& armed;
      ~Disarm() { armed.reset(); }
    } disarm{ready_};
    torch::autograd::backward(roots, gradients, retain_graph);
    if (!allow_unused) return;  // the end of the step names unused parameters
    for (std::size_t i = 0; i < entries_.size(); ++i) {
      if (!entries_[i].is_ready && entries_[i].value.grad().defined()) reduce_present(i);
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
      entries_[i].used = false;
    }
  }

  /// Removes every parameter's .grad.
  void drop_gradients() {
    for (Entry& entry : entries_) {
      entry.value.mutable_grad() = torch::Tensor();
      entry.used = false;
    }
  }

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const torch::Tensor&>()));

  struct Entry {
    torch::Tensor value;
    torch::Tensor gradient;   ///< the view of dtrain's memory, if gradients are bound
    Accumulator accumulator;  ///< autograd holds this node weakly, and the hook with it
    std::uintptr_t hook;
    bool used;      ///< since the last reduction
    bool is_ready;  ///< in this pass
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
      if (!warned_.exchange(true)) {
        log(LogLevel::warning, "loss.backward() ran outside a step: the gradient of '" + parameters_[index].name +
                                   "' is this rank's own and is not reduced; call ddp.backward(loss)");
      }
      return;
    }
    entries_[index].used = true;
    reduce_present(index);
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
    if (gradient.layout() != torch::kStrided || gradient.strides() != entry.value.strides()) {
      const torch::Tensor strided =
          torch::empty_strided(entry.value.sizes(), entry.value.strides(), wrapped_->options(index));
      strided.copy_(dense(gradient, index));
      gradient = strided;
    }
    const TensorView view = view_of(gradient, parameters_[index].name);
    (*ready_)(ReadyGradient{index, {}, &view});  // sharded optimizers take host memory only
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
  std::shared_ptr<WrappedValues> wrapped_ = std::make_shared<WrappedValues>();  ///< of the entries
  std::shared_ptr<std::shared_ptr<const void>> arena_;  ///< set once gradients are bound; their tensors refer to it
  std::vector<Entry> entries_;
  std::vector<Parameter> parameters_;  ///< of the entries
  std::vector<ModuleTensor> all_;      ///< every parameter, frozen ones too
  std::vector<ModuleTensor> fixed_;
  std::optional<Ready> ready_;           ///< set during backward()
  bool reduces_ = true, alone_ = false;  ///< of the last backward()
  bool binds_ = true;
  std::atomic<bool> warned_{false};
  std::atomic<bool> warned_sparse_{false};
};

}  // namespace DTRAIN_NAMESPACE::libtorch
