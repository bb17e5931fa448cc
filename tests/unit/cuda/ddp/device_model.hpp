#pragma once
/// @file
/// Models whose parameters are on the rank's device.

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "support/cuda_memory.hpp"

/// Parameters of any types; some streams compute their gradients, in turn.
class DeviceModel {
 public:
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  explicit DeviceModel(std::size_t streams = 1) : streams_(streams) {}

  /// Adds a parameter whose every element is `value`, with a gradient of zeros.
  template <class T>
  void add(const char* name, std::size_t count, T value) {
    values_.push_back(support::on_device(std::vector<T>(count, value)));
    gradients_.push_back(support::on_device(std::vector<T>(count)));
    sources_.emplace_back((count + 1) * sizeof(T));
    const dtrain::Shape shape{static_cast<std::int64_t>(count)};
    const dtrain::DType dtype = dtrain::dtype_of<T>::value;
    list_.push_back(
        {name, {values_.back().data(), shape, dtype, device_}, {gradients_.back().data(), shape, dtype, device_}});
  }

  const std::vector<dtrain::Parameter>& parameters() const { return list_; }
  std::size_t size(std::size_t i) const { return list_[i].gradient.shape.element_count(); }
  support::StreamRef stream(std::size_t i = 0) const { return streams_[i % streams_.size()].ref(); }

  /// Blocking: until the streams have run what they hold.
  void block() const {
    for (const dtrain::stream::cuda::Stream& stream : streams_)
      CHECK(support::completes(stream.ref()));
  }

  /// What "the backward pass" computes next for gradient i. Not while it is being computed.
  template <class T>
  void prepare(std::size_t i, const std::vector<T>& values) {
    if (!values.empty()) std::memcpy(sources_[i].data(), values.data(), values.size() * sizeof(T));
  }

  /// The same: element k is `element(i, k)`.
  template <class T, class Element>
  void prepare_each(std::size_t i, Element element) {
    std::vector<T> values(size(i));
    for (std::size_t k = 0; k < values.size(); ++k)
      values[k] = static_cast<T>(element(i, k));
    prepare(i, values);
  }
  /// The same: random values, the last one `last` if that is given.
  template <class T>
  void prepare_random(std::size_t i, std::mt19937& random, const float* last) {
    std::normal_distribution<float> normal;
    prepare_each<T>(i, [&](std::size_t, std::size_t k) {
      const float value = normal(random);
      return last != nullptr && k + 1 == size(i) ? *last : value;
    });
  }

  /// Enqueues the computation of gradient i, and announces it.
  void compute(std::size_t i, const dtrain::Ready& ready) const {
    const dtrain::TensorView& gradient = list_[i].gradient;
    if (gradient.bytes() != 0) {
      support::check(cudaMemcpyAsync(gradient.data, sources_[i].data(), gradient.bytes(), cudaMemcpyHostToDevice,
                                     stream(i).native()),
                     "cudaMemcpyAsync");
    }
    ready(i, stream(i).handle());
  }

  /// Blocking: gradient i for what comes next on its stream, as elements or bytes.
  template <class T = std::byte>
  std::vector<T> gradient(std::size_t i) const {
    block();
    return support::on_host<T>(list_[i].gradient.data, list_[i].gradient.bytes() / sizeof(T));
  }

  /// Blocking: whether every element of gradient i is `value`.
  template <class T>
  bool holds(std::size_t i, T value) const {
    return gradient<T>(i) == std::vector<T>(size(i), value);
  }

 protected:
  const dtrain::Device device_{dtrain::DeviceKind::cuda, dtrain::stream::cuda::current_device()};
  std::vector<dtrain::Parameter> list_;

 private:
  std::vector<support::DeviceBuffer> values_;
  std::vector<support::DeviceBuffer> gradients_;
  std::vector<dtrain::stream::cuda::PinnedBuffer> sources_;
  std::vector<dtrain::stream::cuda::Stream> streams_;
};

/// The same model, whose gradients are where DistributedDataParallel wants them.
template <class Model>
struct Binding : Model {
  using Model::Model;
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { this->list_[i].gradient = view; }
};

/// One parameter of two whole numbers.
struct WholeNumbers : DeviceModel {
  WholeNumbers() { add<std::int32_t>("table", 2, 1); }
};
