#pragma once
/// @file
/// Modules: LibTorch modules that are trained together, and their named tensors. view_of(): a tensor as TensorView.
/// WrappedValues: wrapped parameters and their present addresses.

#include <c10/core/StorageImpl.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

/// Whether a tensor's elements lie apart in memory that has others between them: a part of another tensor.
inline bool has_gaps(const torch::Tensor& tensor) {
  if (tensor.layout() != torch::kStrided || tensor.is_non_overlapping_and_dense()) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> strides;  // with the extents, of several elements each
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) strides.emplace_back(tensor.stride(i), tensor.size(i));
  }
  std::sort(strides.begin(), strides.end());
  std::int64_t needed = 1;  // elements that the smaller strides reach over
  return std::all_of(strides.begin(), strides.end(), [&](const auto& dimension) {
    return dimension.first >= std::exchange(needed, dimension.first * dimension.second);
  });
}

/// "48, 1"
inline std::string text_of_numbers(torch::IntArrayRef numbers) {
  std::string text;
  for (const std::int64_t number : numbers)
    text += (text.empty() ? "" : ", ") + std::to_string(number);
  return text;
}

/// "sparse", "on device meta", "strides 0, 1 of shape 4, 3"
inline std::string kind_of_memory(const torch::Tensor& tensor) {
  return tensor.layout() != torch::kStrided ? "sparse"
         : !tensor.is_cpu() && !tensor.is_cuda()
             ? "on device " + tensor.device().str()
             : "strides " + text_of_numbers(tensor.strides()) + " of shape " + text_of_numbers(tensor.sizes());
}

}  // namespace detail

/// View of a tensor's memory, for collectives and checkpoints. Elements have their order in memory, which may differ
/// from the order of the indices (channels_last). A complex tensor is viewed as pairs of numbers; a tensor of more than
/// eight dimensions, as flat. @throws Error (unsupported) that begins with `name`, also for a conjugate or a negative
/// that LibTorch has not computed yet
inline TensorView view_of(const torch::Tensor& given, const std::string& name = "a tensor") {
  if (given.layout() != torch::kStrided || !given.is_non_overlapping_and_dense() ||
      !(given.is_cpu() || given.is_cuda())) {
    throw Error(Errc::unsupported, name + " is not dense memory of the host or a CUDA device (" +
                                       detail::kind_of_memory(given) +
                                       "); make it contiguous() where it is created, before the optimizer");
  }
  if (given.is_conj() || given.is_neg()) {  // the memory has the values before
    throw Error(Errc::unsupported, name +
                                       " is a conjugate or a negative that LibTorch has not computed yet; give its "
                                       "resolve_conj().resolve_neg()");
  }
  const torch::Tensor tensor = given.is_complex() ? torch::view_as_real(given.detach()) : given;
  const auto dtype = [&] {
    switch (tensor.scalar_type()) {
      case torch::kFloat64: return DType::f64;
      case torch::kFloat32: return DType::f32;
      case torch::kFloat16: return DType::f16;
      case torch::kBFloat16: return DType::bf16;
      case torch::kInt64: return DType::i64;
      case torch::kInt32: return DType::i32;
      case torch::kUInt8:
      case torch::kBool: return DType::u8;
      default: break;
    }
    throw Error(Errc::unsupported,
                name + " has elements of type " + c10::toString(tensor.scalar_type()) +
                    "; dtrain takes Double, Float, Half, BFloat16, Long, Int, Byte and complex ones");
  }();
  Device device;
  if (tensor.is_cuda()) device = {DeviceKind::cuda, static_cast<std::int32_t>(tensor.get_device())};
  const std::int64_t flat = tensor.numel();
  const bool fits = static_cast<std::size_t>(tensor.dim()) <= Shape::max_rank;
  const Shape shape(fits ? std::span<const std::int64_t>(tensor.sizes().data(), tensor.sizes().size())
                         : std::span<const std::int64_t>(&flat, 1));
  return {static_cast<std::byte*>(tensor.data_ptr()), shape, dtype, device};
}

/// Strides of the dimensions that have several elements ("1 5"); empty for a contiguous tensor, and for one with gaps,
/// whose mirror is contiguous. Tensors of the same sizes have their elements in the same order in dtrain's memory if
/// these are equal.
inline std::string order_of(const torch::Tensor& tensor) {
  std::string strides;
  if (tensor.is_contiguous() || detail::has_gaps(tensor)) return strides;
  for (std::int64_t i = 0; i < tensor.dim(); ++i) {
    if (tensor.size(i) > 1) strides += (strides.empty() ? "" : " ") + std::to_string(tensor.stride(i));
  }
  return strides;
}

/// A tensor of a module, with its name there.
struct ModuleTensor {
  std::string name;
  torch::Tensor tensor;
};

/// A module with these tensors as its parameters, for tensors that are in no module:
/// `as_module({{"means", means}, {"scales", scales}})`. It shares the tensors, which keep their requires_grad; a '.' in
/// a name becomes '_'. @throws c10::Error for an undefined tensor, and for two of one name
/// @ingroup libtorch
inline std::shared_ptr<torch::nn::Module> as_module(const std::vector<ModuleTensor>& tensors) {
  auto module = std::make_shared<torch::nn::Module>("tensors");
  for (const ModuleTensor& named : tensors) {
    std::string name = named.name;
    std::replace(name.begin(), name.end(), '.', '_');
    module->register_parameter(std::move(name), named.tensor, named.tensor.requires_grad());
  }
  return module;
}

/// Several modules that are trained as one model.
/// @ingroup libtorch
using Modules = std::vector<std::shared_ptr<torch::nn::Module>>;

namespace detail {

template <class M>
Modules modules_of(const torch::nn::ModuleHolder<M>& holder) {
  return {holder.ptr()};
}
/// @throws Error (invalid_argument) for a null pointer, as the others
inline Modules modules_of(const Modules& modules) {
  for (std::size_t i = 0; i < modules.size(); ++i) {
    if (modules[i]) continue;
    throw Error(Errc::invalid_argument, "module " + std::to_string(i) + " of " + std::to_string(modules.size()) +
                                            " is a null pointer; make the module before it is given to dtrain");
  }
  return modules;
}
template <class M>
Modules modules_of(const std::shared_ptr<M>& module) {
  return modules_of(Modules{module});
}

template <class Net>
concept HasModules = requires(const Net& net) {
  modules_of(net);
};

/// Prefix of names in module `index`; empty for a single module.
inline std::string prefix(const Modules& modules, std::size_t index) {
  return modules.size() == 1 ? "" : std::to_string(index) + ".";
}

/// Every parameter once; tied parameters have their first name.
inline std::vector<ModuleTensor> parameters_of(const Modules& modules) {
  std::vector<ModuleTensor> found;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    for (const auto& item : modules[m]->named_parameters()) {
      const auto is_it = [&](const ModuleTensor& other) { return other.tensor.is_same(item.value()); };
      if (std::none_of(found.begin(), found.end(), is_it)) {
        found.push_back({prefix(modules, m) + item.key(), item.value()});
      }
    }
  }
  return found;
}

inline std::vector<ModuleTensor> buffers_of(const Modules& modules) {
  std::vector<ModuleTensor> found;
  for (std::size_t m = 0; m < modules.size(); ++m) {
    for (const auto& item : modules[m]->named_buffers()) {
      if (item.value().defined()) found.push_back({prefix(modules, m) + item.key(), item.value()});
    }
  }
  return found;
}

[[noreturn]] inline void refuse_changed(const Modules& modules, const torch::Tensor& parameter) {
  std::string name = "?";
  for (const ModuleTensor& named : parameters_of(modules)) {
    if (named.tensor.is_same(parameter)) {
      name = named.name;
    }
  }
  throw Error(Errc::invalid_argument, "parameter '" + name +
                                          "' was added or replaced after its module was wrapped; make another "
                                          "DistributedDataParallel");
}

/// @param wrapped parameters_of(modules) when they were wrapped
/// @throws Error (invalid_argument) that names a parameter that was added or replaced since
inline void require_same_parameters(const Modules& modules, const std::vector<ModuleTensor>& wrapped) {
  std::size_t distinct = 0;
  for (const auto& module : modules) {
    for (const torch::Tensor& present : module->parameters()) {
      if (distinct < wrapped.size() && present.is_same(wrapped[distinct].tensor)) {
        ++distinct;
        continue;
      }
      const auto is_it = [&](const ModuleTensor& named) { return named.tensor.is_same(present); };
      if (std::none_of(wrapped.begin(), wrapped.end(), is_it)) {
        refuse_changed(modules, present);
      }
    }
  }
}

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
/// first. A tensor with gaps in its memory has a dense mirror. Threads: the thread that trains.
class WrappedValues {
 public:
  /// @returns the value's view, or its mirror's @throws as view_of
  TensorView add(const std::string& name, const torch::Tensor& tensor) {
    torch::Tensor mirror;
    if (detail::has_gaps(tensor)) mirror = tensor.detach().contiguous();
    const TensorView view = view_of(mirror.defined() ? mirror : tensor, name);
    values_.push_back({name, tensor, tensor.options(), tensor.sizes().vec(), tensor.strides().vec(), view.data,
                       tensor.storage().getWeakStorageImpl(), 0, mirror});
    return view;
  }

  /// Strides that the gradient of parameter i has in dtrain's memory.
  torch::IntArrayRef gradient_strides(std::size_t i) const {
    const WrappedValue& value = values_.at(i);
    return value.mirror.defined() ? value.mirror.strides() : value.tensor.strides();
  }

  /// After the construction of the wrapper, which writes rank 0's values: copies the mirrors to their tensors. Until
  /// then present() leaves the mirrors as they are.
  void store_mirrors() {
    are_stored_ = true;
    const torch::NoGradGuard no_grad;
    for (const WrappedValue& value : values_) {
      if (value.mirror.defined()) torch::Tensor(value.tensor).copy_(value.mirror);
    }
  }

  /// @throws Error (unsupported) that names a parameter with gaps, whose value `writer` could not change
  void require_dense(const std::string& writer) const {
    for (const WrappedValue& value : values_) {
      if (!value.mirror.defined()) continue;
      throw Error(Errc::unsupported, writer + " writes parameters, and parameter '" + value.name +
                                         "' has gaps in memory (" + detail::kind_of_memory(value.tensor) +
                                         "): make it contiguous() where it is created, before the optimizer");
    }
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
    if (value.mirror.defined()) {
      const torch::NoGradGuard no_grad;
      if (are_stored_) value.mirror.copy_(value.tensor);
      return {view_of(value.mirror, value.name), value.moves};
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
    torch::TensorOptions options;  ///< options of the tensor when it was wrapped, as sizes and strides
    std::vector<std::int64_t> sizes;
    std::vector<std::int64_t> strides;
    const std::byte* data;  ///< address in the last add() or present()
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t moves;
    torch::Tensor mirror;  ///< contiguous memory for the values of a tensor with gaps; undefined for others
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
  static std::string text_of(torch::IntArrayRef numbers) { return "[" + detail::text_of_numbers(numbers) + "]"; }

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
  bool are_stored_ = false;  ///< whether the tensors, not the mirrors, have the values
};

}  // namespace DTRAIN_NAMESPACE::libtorch

namespace DTRAIN_NAMESPACE::group {

/// Collectives take LibTorch's contiguous tensors: `group.all_reduce(tensor)`. The elements are those of
/// libtorch::view_of. Bool is reduced by min, max and product, and complex numbers by sum and average. Autograd notices
/// the write as one in place: a backward pass that needs the values before throws.
/// Blocking for a tensor on a GPU: until all of LibTorch's work on that GPU has run.
template <>
struct BufferOf<at::Tensor> {
  /// @throws Error (unsupported) as libtorch::view_of, and for a tensor that is not contiguous: ranks, or input and
  /// output, would exchange elements of different indices.
  static BufferView view(const at::Tensor& tensor) {
    const BufferView elements = libtorch::view_of(tensor).flat();
    if (!tensor.is_contiguous()) {
      throw Error(Errc::unsupported,
                  "a tensor is not contiguous, and collectives exchange elements in the order of the memory; give its "
                  "contiguous(), and copy the result back");
    }
    if (tensor.is_cuda()) torch::cuda::synchronize(tensor.get_device());
    return elements;
  }
  static ElementMeaning meaning(const at::Tensor& tensor) {
    if (tensor.scalar_type() == torch::kBool) return ElementMeaning::flag;
    return tensor.is_complex() ? ElementMeaning::part_of_complex : ElementMeaning::number;
  }
  static void will_write(const at::Tensor& tensor) {
    if (!tensor.is_inference()) torch::autograd::impl::bump_version(tensor);
  }
};

}  // namespace DTRAIN_NAMESPACE::group
