#pragma once
/// @file
/// dtrain's element types and reductions as NCCL's.

#include <string>

#include "dtrain/backend/nccl/version.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/reduce_op.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// @throws Error (invalid_argument) for what is no DType
inline ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u8: return ncclUint8;
  }
  throw Error(Errc::invalid_argument, std::string("NCCL has no elements of ") + name(dtype));
}

/// NCCL adds integers up modulo 2^bits and then divides, which is no average where the sum overflows.
constexpr bool averages(DType dtype) noexcept {
  return dtype != DType::i64 && dtype != DType::i32 && dtype != DType::u8;
}

/// @throws Error (unsupported) for an average of integers; (invalid_argument) for what is no ReduceOp
inline ncclRedOp_t reduction_of(ReduceOp op, DType dtype) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return ncclProd;
    case ReduceOp::average:
      if (!averages(dtype)) {
        throw Error(Errc::unsupported, std::string("an average of ") + name(dtype) +
                                           " by NCCL would be wrong where the sum overflows; reduce with "
                                           "ReduceOp::sum in a type that holds it, and divide");
      }
      return ncclAvg;
  }
  throw Error(Errc::invalid_argument, std::string("NCCL does not know the reduction ") + name(op));
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
