#pragma once
/// @file
/// Ready: what a backward pass calls when a gradient is final.

#include <cstddef>

#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/core/types/tensor_view.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The one thing a model's backward pass needs to know of dtrain; not a template, so that models can live in .cpp
/// files. Threads: may be called from any thread, concurrently for different i. Lifetime: the step that made it.
/// Blocking: no; over NCCL the first that completes a bucket waits until it has on all ranks, which connect then.
/// @throws Error (invalid_argument) for an index out of range or a parameter that was ready before.
class Ready {
 public:
  /// Interface of a step that a Ready notifies.
  struct Sink {
    virtual void ready(std::size_t parameter) = 0;
    virtual void ready(std::size_t parameter, StreamHandle stream) = 0;
    virtual void ready(std::size_t parameter, const TensorView& gradient, StreamHandle stream) = 0;

   protected:
    ~Sink() = default;
  };

  explicit Ready(Sink& sink) noexcept : sink_(&sink) {}

  /// Gradient `parameter` (its index in parameters()) is final in host memory.
  void operator()(std::size_t parameter) const { sink_->ready(parameter); }

  /// It is final once the work that `stream` holds now has run: the only form for a gradient on a GPU, with this or
  /// other memory.
  void operator()(std::size_t parameter, StreamHandle stream) const { sink_->ready(parameter, stream); }

  /// It is in `gradient` this time (an autograd engine's own tensor), which stays unchanged until the step is finished;
  /// the reduced values are in the parameter's own gradient memory afterwards.
  void operator()(std::size_t parameter, const TensorView& gradient, StreamHandle stream) const {
    sink_->ready(parameter, gradient, stream);
  }

 private:
  Sink* sink_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Ready;
}  // namespace DTRAIN_NAMESPACE
