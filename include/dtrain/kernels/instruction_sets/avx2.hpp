#pragma once
/// @file
/// Reduction kernels for AVX2 and F16C: the common dtypes and operations only.

#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/arithmetic/half_arithmetic.hpp"
#include "dtrain/kernels/block_loop.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"

namespace DTRAIN_NAMESPACE::kernels {

#if DTRAIN_X86_64
/// A separate function with an explicit target, so that it is not inlined into code for lesser processors.
template <class Arithmetic>
DTRAIN_OPTIMIZED __attribute__((target("avx2,f16c"))) void avx2_kernel(const KernelArguments& arguments) noexcept {
  reduce_blocks<Arithmetic>(arguments);
}

/// Sum (Add), average (Average) or weighted sum (AddWeighted) of a floating-point type; null for integers.
template <class Operation>
Kernel avx2_float_kernel(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return &avx2_kernel<FloatArithmetic<double, 32, Operation>>;
    case DType::f32: return &avx2_kernel<FloatArithmetic<float, 32, Operation>>;
    case DType::f16: return &avx2_kernel<HalfArithmetic<F16Native, OfF16<Operation>>>;
    case DType::bf16: return &avx2_kernel<HalfArithmetic<Bf16Words<32>, Operation>>;
    default: return nullptr;
  }
}

/// Null if the baseline's is as fast.
inline Kernel avx2_kernel_for(DType dtype, ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return avx2_float_kernel<Add>(dtype);
    case ReduceOp::average: return avx2_float_kernel<Average>(dtype);
    case ReduceOp::product: return nullptr;
    default: break;
  }
  switch (size_bytes(dtype)) {
    case 8: return &avx2_kernel<MinMax<std::int64_t, 32>>;
    case 4: return &avx2_kernel<MinMax<std::int32_t, 32>>;
    case 2: return &avx2_kernel<MinMax<std::int16_t, 32>>;
    default: return nullptr;
  }
}
#else
template <class Operation>
Kernel avx2_float_kernel(DType /*dtype*/) noexcept {
  return nullptr;
}
inline Kernel avx2_kernel_for(DType /*dtype*/, ReduceOp /*op*/) noexcept {
  return nullptr;
}
#endif

}  // namespace DTRAIN_NAMESPACE::kernels
