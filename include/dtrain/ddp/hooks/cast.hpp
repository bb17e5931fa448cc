#pragma once
/// @file
/// hooks::Cast: reduces f32 gradients as bf16 or f16, so that half of the bytes travel.

#include <string>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/bfloat16.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/float16.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/kernels/in_place_cast.hpp"

namespace DTRAIN_NAMESPACE::hooks {

/// A GradientHook: `DistributedDataParallel ddp{model, group, options, hooks::Cast<dtrain::bfloat16>{}}`. Each rank
/// rounds its f32 gradients to 16 bits in place, and the backend reduces those; sums of 16 bits are as precise as the
/// backend's (DdpOptions::accumulate). Gradients of other types are reduced as they are. Averages: each rank divides
/// before it rounds, so that the sum of gradients in range is in range. For f16, elements below 6e-8 times the number
/// of ranks become zero: scale the loss (LossScaler). Gradients are in host memory.
template <class Half>
class Cast {
 public:
  static_assert(std::is_same_v<Half, bfloat16> || std::is_same_v<Half, float16>,
                "dtrain: hooks::Cast is for dtrain::bfloat16 or dtrain::float16");

  std::string description() const { return dtype == DType::bf16 ? "hooks::Cast to bf16" : "hooks::Cast to f16"; }

  template <class C>
  void reduce(const ddp::GradientBucket<C>& bucket) {
    static_assert(ddp::RunsHostWork<typename C::Stream>,
                  "dtrain: hooks::Cast runs on the host: use it with a backend of host memory");
    const BufferView& all = bucket.values;
    if (all.dtype != DType::f32) {
      bucket.channel.all_reduce(all, all, bucket.op, bucket.stream);
      return;
    }
    const bool divides = bucket.op == ReduceOp::average;
    const float factor = divides ? 1.0F / static_cast<float>(bucket.channel.size()) : 1.0F;
    const BufferView halves{all.data, all.count, dtype, all.device};
    bucket.compress([all, factor]() noexcept { kernels::narrow_in_place(all.data, all.count, dtype, factor); });
    bucket.channel.all_reduce(halves, halves, divides ? ReduceOp::sum : bucket.op, bucket.stream);
    bucket.compress([all]() noexcept { kernels::widen_in_place(all.data, all.count, dtype); });
  }

 private:
  static constexpr DType dtype = dtype_of<Half>::value;
};

}  // namespace DTRAIN_NAMESPACE::hooks
