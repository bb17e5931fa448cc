#pragma once
/// @file
/// Ready: callback by which a model's backward pass marks a gradient as final. ReadyGradient: its argument.

#include <concepts>
#include <cstddef>
#include <optional>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/tensor_view.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A gradient that a backward pass marks as final.
/// @ingroup training
struct ReadyGradient {
  std::size_t parameter = 0;             ///< index in parameters()
  std::optional<StreamHandle> stream{};  ///< final once the work now enqueued there has run; nullopt: final already
  /// Null: the parameter's own gradient memory. The view is read during the call only, and so is host memory.
  const TensorView* memory = nullptr;
};

/// The only type of dtrain that a model's backward pass needs; no template, so that models can be in .cpp files.
/// Threads: any, concurrently for different parameters. Lifetime: the step outlives the Ready that it made.
/// Blocking: no, with two exceptions. Over NCCL the call that completes a bucket of a size for which the ranks are not
/// connected yet (backend::ConnectsAtFirstUse) waits until that bucket is complete on all ranks. In stage 2 of a
/// ShardedOptimizer a call may wait until earlier buckets are reduced, in host memory.
/// @throws Error (invalid_argument) for an index out of range, or a second call for a parameter in one step.
/// @ingroup training
class Ready {
 public:
  /// Interface of a step that a Ready notifies.
  struct Sink {
    virtual void ready(const ReadyGradient& gradient) = 0;

   protected:
    ~Sink() = default;
  };

  explicit Ready(Sink& sink) noexcept : sink_(&sink) {}

  /// Gradient `parameter` (its index in parameters()) is final in host memory. The call copies it, unless
  /// it is bound. A write of the program between the call and the end of the step is not part of the gradient; in bound
  /// memory such a write is a mistake (DdpOptions::check_ready).
  void operator()(std::size_t parameter) const { (*this)(ReadyGradient{parameter}); }

  /// The gradient is final once the work now enqueued on `stream` has run. Required, with this or other memory, on a
  /// GPU.
  void operator()(std::size_t parameter, StreamHandle stream) const { (*this)(ReadyGradient{parameter, stream}); }

  /// In this step the gradient is final in `gradient`: host memory that may lie elsewhere in each step (a graph's
  /// memory, scratch memory). Blocking: no; copies the gradient. After the call the program may write or free the
  /// memory, unless the parameter's own gradient lies there. After the step the reduced values are in the parameter's
  /// own gradient memory.
  template <std::same_as<TensorView> View>  // so that ready(i, {}) is a stream
  void operator()(std::size_t parameter, const View& gradient) const {
    (*this)(ReadyGradient{parameter, std::nullopt, &gradient});
  }

  /// The same for a gradient that is final once the work now enqueued on `stream` has run (an autograd engine's own
  /// tensor). On a GPU it stays unchanged until the step is finished; in host memory, until the call returns.
  void operator()(std::size_t parameter, const TensorView& gradient, StreamHandle stream) const {
    (*this)(ReadyGradient{parameter, stream, &gradient});
  }

  /// The general form of the other overloads.
  void operator()(const ReadyGradient& gradient) const { sink_->ready(gradient); }

 private:
  Sink* sink_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Ready;
using ddp::ReadyGradient;
}  // namespace DTRAIN_NAMESPACE
