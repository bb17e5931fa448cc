#pragma once
/// @file
/// GradientScaling: multiplies reduced gradients in device memory, in the order of the streams that produced them.

#include <algorithm>
#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/stream_handle.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/reduction/cuda/producer_events.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::ddp {

/// Steady state: allocates nothing. Threads: one at a time.
class GradientScaling {
 public:
  /// Enqueues the products on `stream`, after the work now on the producers and before the producers' later work.
  /// Requires: ScaledCopyBatch is loaded for the gradients' types. Lifetime: the producers exist. @throws Error (cuda)
  void enqueue(const GradientTable& gradients, double factor, const ProducerStreams& producers,
               stream::cuda::StreamRef stream) {
    events_.clear();
    for (const StreamHandle producer : producers) {
      events_.add(producer);
    }
    events_.record();
    events_.make_wait(stream);
    for (std::size_t parameter = 0; parameter < gradients.size(); ++parameter) {
      const BufferView gradient = gradients.view(parameter).flat();
      if (gradient.count != 0) {
        batch_of(gradient.dtype, gradients.size()).add(gradient.data, gradient.data, gradient.count);
      }
    }
    for (TypedBatch& typed : batches_) {
      typed.batch.enqueue(factor, stream);
    }
    stream.record(scaled_);
    for (const StreamHandle producer : producers) {
      stream::cuda::with_stream(producer, [this](stream::cuda::StreamRef waiting) { waiting.wait(scaled_); });
    }
  }

 private:
  struct TypedBatch {
    DType dtype;
    stream::cuda::ScaledCopyBatch batch;
  };

  stream::cuda::ScaledCopyBatch& batch_of(DType dtype, std::size_t gradients) {
    const auto found = std::find_if(batches_.begin(), batches_.end(),
                                    [dtype](const TypedBatch& typed) { return typed.dtype == dtype; });
    if (found != batches_.end()) {
      return found->batch;
    }
    batches_.push_back({dtype, stream::cuda::ScaledCopyBatch(dtype, dtype)});
    batches_.back().batch.reserve(gradients);
    return batches_.back().batch;
  }

  ProducerEvents events_;
  std::vector<TypedBatch> batches_;
  stream::cuda::Event scaled_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_WITH_CUDA
