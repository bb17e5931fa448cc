#pragma once
/// @file
/// Reduction kernels for any processor, of all dtypes and operations, in 16-byte vectors.

#include <cstdint>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/arithmetic/arithmetic.hpp"
#include "dtrain/kernels/arithmetic/half_arithmetic.hpp"
#include "dtrain/kernels/block_loop.hpp"
#include "dtrain/kernels/kernel_arguments.hpp"

namespace DTRAIN_NAMESPACE::kernels {

template <class Arithmetic>
DTRAIN_OPTIMIZED void baseline_kernel(const KernelArguments& arguments) noexcept {
  reduce_blocks<Arithmetic>(arguments);
}

/// Sum (Add), average (Average), weighted sum (AddWeighted) or product (Multiply) of a floating-point type; null for
/// integers.
template <class Operation>
Kernel baseline_float_kernel(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return &baseline_kernel<FloatArithmetic<double, 16, Operation>>;
    case DType::f32: return &baseline_kernel<FloatArithmetic<float, 16, Operation>>;
    case DType::f16: return &baseline_kernel<HalfArithmetic<F16Words<16>, OfF16<Operation>>>;
    case DType::bf16: return &baseline_kernel<HalfArithmetic<Bf16Words<16>, Operation>>;
    default: return nullptr;
  }
}

inline Kernel baseline_min_max_kernel(DType dtype) noexcept {
  switch (size_bytes(dtype)) {
    case 8: return &baseline_kernel<MinMax<std::int64_t, 16>>;
    case 4: return &baseline_kernel<MinMax<std::int32_t, 16>>;
    case 2: return &baseline_kernel<MinMax<std::int16_t, 16>>;
    default: return &baseline_kernel<MinMax<std::int8_t, 16>>;
  }
}

/// Sum, product or average of an integer type; null for others.
inline Kernel baseline_integer_kernel(DType dtype, ReduceOp op) noexcept {
  switch (dtype) {
    case DType::i64:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint64_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint64_t>
                                       : &integer_average<std::int64_t, WideInteger>;
    case DType::i32:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint32_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint32_t>
                                       : &integer_average<std::int32_t, std::int64_t>;
    case DType::u64:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint64_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint64_t>
                                       : &integer_average<std::uint64_t, WideUnsigned>;
    case DType::u32:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint32_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint32_t>
                                       : &integer_average<std::uint32_t, std::uint64_t>;
    case DType::u8:
      return op == ReduceOp::sum       ? &baseline_kernel<IntegerSum<std::uint8_t, 16>>
             : op == ReduceOp::product ? &integer_product<std::uint8_t>
                                       : &integer_average<std::uint8_t, std::uint32_t>;
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
    case DType::f8e4m3:
    case DType::f8e5m2: break;
  }
  return nullptr;
}

/// Never null for a type that is reduced.
inline Kernel baseline_kernel_for(DType dtype, ReduceOp op) noexcept {
  if (op == ReduceOp::min || op == ReduceOp::max) {
    return baseline_min_max_kernel(dtype);
  }
  if (!is_float(dtype)) {
    return baseline_integer_kernel(dtype, op);
  }
  return op == ReduceOp::product   ? baseline_float_kernel<Multiply>(dtype)
         : op == ReduceOp::average ? baseline_float_kernel<Average>(dtype)
                                   : baseline_float_kernel<Add>(dtype);
}

}  // namespace DTRAIN_NAMESPACE::kernels
