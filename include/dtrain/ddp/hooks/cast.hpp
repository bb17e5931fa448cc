#pragma once
/// @file
/// hooks::Cast: reduces f32 gradients as bf16 or f16, so that half of the bytes travel.

#include <cstddef>
#include <string>
#include <type_traits>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/bfloat16.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/float16.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Work of a stream: rounds f32 elements, multiplied by `factor`, to the first half of their memory.
struct NarrowInPlace {
  std::byte* elements;
  std::size_t count;
  DType to;
  float factor;
  void operator()() const noexcept;
};

/// Work of a stream: the reverse, without a factor. Exact.
struct WidenInPlace {
  std::byte* elements;
  std::size_t count;
  DType from;
  void operator()() const noexcept;
};

}  // namespace DTRAIN_NAMESPACE::ddp

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
    bucket.stream.enqueue(ddp::NarrowInPlace{all.data, all.count, dtype, factor});
    bucket.channel.all_reduce(halves, halves, divides ? ReduceOp::sum : bucket.op, bucket.stream);
    bucket.stream.enqueue(ddp::WidenInPlace{all.data, all.count, dtype});
  }

 private:
  static constexpr DType dtype = dtype_of<Half>::value;
};

}  // namespace DTRAIN_NAMESPACE::hooks

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <cstring>
#include <span>

#include "dtrain/kernels/conversion.hpp"
#include "dtrain/kernels/float_environment.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {
inline constexpr std::size_t cast_block = 1024;  ///< elements that are converted through memory on the stack
}  // namespace detail

DTRAIN_DEFINED void NarrowInPlace::operator()() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  alignas(64) std::byte scaled[4 * detail::cast_block];
  std::byte* const target = scaled;
  const double weight = factor;
  for (std::size_t begin = 0; begin < count; begin += detail::cast_block) {
    const std::size_t block = std::min(detail::cast_block, count - begin);
    const std::byte* const source = elements + 4 * begin;
    kernels::Reduction::weighted_sum(DType::f32)({&source, 1}, {&target, 1}, block, &weight);
    kernels::convert(DType::f32, scaled, to, elements + 2 * begin, block);  // before the next block's elements
  }
}

DTRAIN_DEFINED void WidenInPlace::operator()() const noexcept {
  const kernels::DefaultFloatEnvironment environment;
  alignas(64) std::byte halves[2 * detail::cast_block];
  std::size_t end = count;
  while (end > 0) {  // from the end: a block's result covers only halves that were read before
    const std::size_t block = (end - 1) % detail::cast_block + 1;
    end -= block;
    std::memcpy(halves, elements + 2 * end, 2 * block);
    kernels::convert(from, halves, DType::f32, elements + 4 * end, block);
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
