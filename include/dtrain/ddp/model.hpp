#pragma once
/// @file
/// The concept Model: anything with parameters().

#include <concepts>
#include <cstddef>
#include <iterator>

#include "dtrain/core/types/device.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// What every model has; the concepts below say of what kind it is, each so that an error can name it.
template <class M>
concept HasParameters = requires(M& model) {
  model.parameters();
};

/// `parameters()` gives a range that knows its size, by value or by reference, in the same order each time.
template <class M>
concept ParametersAreSized = HasParameters<M> && requires(M& model) {
  { std::size(model.parameters()) } -> std::convertible_to<std::size_t>;
};

/// The range's elements are dtrain::Parameter, or convert to it.
template <class M>
concept ParametersAreParameters = HasParameters<M> && requires(M& model) {
  { *std::begin(model.parameters()) } -> std::convertible_to<const Parameter&>;
  std::end(model.parameters());
};

/// The user's model. Its parameters stay where they are when DistributedDataParallel is constructed; parameters() is
/// called again now and then, between and at the end of steps, to see that they did (DdpOptions::check_addresses).
template <class M>
concept Model = HasParameters<M> && ParametersAreSized<M> && ParametersAreParameters<M>;

/// A Model that lets DistributedDataParallel place its gradients: `bind_gradient(i, view)` makes gradient i live at
/// `view` from now on (same shape, dtype and device as before; its content was copied there). Called at construction
/// and at most once more, at the end of the first step, for gradients that move (DdpOptions::reorder_gradients).
template <class M>
concept BindsGradients = Model<M> && requires(M& model, std::size_t index, const TensorView& gradient) {
  model.bind_gradient(index, gradient);
};

/// A Model with state that is no parameter, such as the running means of batch normalisation: `buffers()` gives a range
/// of TensorView that knows its size. Each step gives all ranks rank 0's (DdpOptions::broadcast_buffers).
template <class M>
concept HasBuffers = Model<M> && requires(M& model) {
  { std::size(model.buffers()) } -> std::convertible_to<std::size_t>;
  { *std::begin(model.buffers()) } -> std::convertible_to<const TensorView&>;
  std::end(model.buffers());
};

/// Where a model's parameters are. On a GPU it says so: `static constexpr dtrain::DeviceKind device_kind =
/// dtrain::DeviceKind::cuda;`. One that does not say is on the host.
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
