#pragma once
/// @file
/// WrappedValues: the parameters of wrapped modules as they were wrapped, and the present addresses of their values.
/// ModuleModel owns it.

#include <c10/core/StorageImpl.h>
#include <torch/torch.h>

#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/libtorch/modules.hpp"

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

}  // namespace DTRAIN_NAMESPACE::libtorch
