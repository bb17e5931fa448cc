#pragma once
/// @file
/// Model: concept of a user's class with parameters() at fixed addresses. BindsGradients, HasBuffers, MovesValues: what
/// else it may have.

#include <concepts>
#include <cstddef>
#include <iterator>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// `parameters()`: the basis of Model. The concepts are separate, so that a compile error names the one that fails.
/// @ingroup training
template <class M>
concept HasParameters = requires(M& model) {
  model.parameters();
};

/// `parameters()` returns a sized range, by value or by reference, in the same order each time.
/// @ingroup training
template <class M>
concept ParametersAreSized = HasParameters<M> && requires(M& model) {
  { std::size(model.parameters()) } -> std::convertible_to<std::size_t>;
};

/// The range's elements are dtrain::Parameter, or convert to it.
/// @ingroup training
template <class M>
concept ParametersAreParameters = HasParameters<M> && requires(M& model) {
  { *std::begin(model.parameters()) } -> std::convertible_to<const Parameter&>;
  std::end(model.parameters());
};

/// The user's model, whose parameters keep their addresses once DistributedDataParallel is constructed. To check the
/// addresses, the wrapper reads parameters() again at the beginning and at the end of steps
/// (DdpOptions::check_addresses).
/// @ingroup training
template <class M>
concept Model = HasParameters<M> && ParametersAreSized<M> && ParametersAreParameters<M>;

/// A list, which has no parameters(): wrappers of lists are DistributedDataParallel<ParameterList, P>.
template <class M>
concept IsParameterList = std::same_as<M, ParameterList>;

/// Whether M is a complete type at the first use of this concept: a class is not while its members are declared.
template <class M>
concept IsComplete = requires {
  sizeof(M);
};

/// A Model whose gradients DistributedDataParallel may place. After `bind_gradient(i, view)`, gradient i lives at
/// `view`: same shape, dtype and device as before. The memory has the gradient's content: copy nothing, since the
/// memory that it had before may have another content by now. Called at construction, and once more at the end of the
/// first step for gradients that move (DdpOptions::reorder_gradients); with DdpOptions::plan, in models of several
/// element types, also after a few more steps.
/// @ingroup training
template <class M>
concept BindsGradients = Model<M> && requires(M& model, std::size_t index, const TensorView& gradient) {
  model.bind_gradient(index, gradient);
};

/// A Model with state besides parameters (the running means of batch normalisation): `buffers()` returns a sized range
/// of TensorView. Each step broadcasts rank 0's buffers (DdpOptions::broadcast_buffers).
/// @ingroup training
template <class M>
concept HasBuffers = Model<M> && requires(M& model) {
  { std::size(model.buffers()) } -> std::convertible_to<std::size_t>;
  { *std::begin(model.buffers()) } -> std::convertible_to<const TensorView&>;
  std::end(model.buffers());
};

/// A Model whose values may get other memory between steps, as values of LibTorch modules do by torch::load.
/// parameters() keeps the values' addresses at the construction; `value_reader()` returns a function that gives the
/// present values. `identity(i)` is an address that is parameter i's alone, whatever the memory of its value.
/// @ingroup training
template <class M>
concept MovesValues = Model<M> && requires(const M& model, std::size_t index) {
  { model.value_reader() } -> std::convertible_to<ReadValue>;
  { model.identity(index) } -> std::convertible_to<const void*>;
};

/// Device kind of a model's parameters: host, unless the model declares `static constexpr dtrain::DeviceKind
/// device_kind = dtrain::DeviceKind::cuda;`.
/// @ingroup training
template <class M>
inline constexpr DeviceKind device_kind_of = DeviceKind::host;
template <class M>
requires requires {
  { M::device_kind } -> std::convertible_to<DeviceKind>;
}
inline constexpr DeviceKind device_kind_of<M> = M::device_kind;

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Model;
}  // namespace DTRAIN_NAMESPACE
