#pragma once
/// @file
/// Conversion of element types and reductions to NCCL's.

#include <string>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/stream/cuda/check.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// The type in which NCCL moves elements: bytes for 8-bit floats, which every version moves on every device.
/// @throws Error (invalid_argument) for a value that is no DType
inline ncclDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f64: return ncclFloat64;
    case DType::f32: return ncclFloat32;
    case DType::f16: return ncclFloat16;
    case DType::bf16: return ncclBfloat16;
    case DType::i64: return ncclInt64;
    case DType::i32: return ncclInt32;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: return ncclUint8;
  }
  throw Error(Errc::invalid_argument, std::string("NCCL has no elements of ") + name(dtype));
}

constexpr bool reduces(DType dtype) noexcept {
  return reduces_float8 || !is_float8(dtype);
}

/// The type in which NCCL reduces elements on the device. A refused operation makes a communicator unusable; therefore
/// this function refuses it before NCCL does. @throws Error (unsupported, invalid_argument, cuda)
inline ncclDataType_t reduced_type_of(DType dtype, int device) {
  if (!is_float8(dtype)) {
    return type_of(dtype);
  }
  if (!reduces(dtype)) {
    throw Error(Errc::unsupported, std::string("the program was compiled with NCCL ") +
                                       version_text(NCCL_VERSION_CODE) + ", which does not reduce " + name(dtype) +
                                       "; compile with NCCL 2.24 or newer, or reduce f16, bf16 or f32");
  }
  int capability = 0;
  stream::cuda::check(cudaDeviceGetAttribute(&capability, cudaDevAttrComputeCapabilityMajor, device),
                      "cudaDeviceGetAttribute");
  if (capability < 9) {
    throw Error(Errc::unsupported,
                std::string("NCCL reduces ") + name(dtype) + " on GPUs of compute capability 9.0 and more, and cuda:" +
                    std::to_string(device) + " has " + std::to_string(capability) + ".x; reduce f16, bf16 or f32");
  }
  return dtype == DType::f8e4m3 ? float8_e4m3_type : float8_e5m2_type;
}

/// Whether NCCL's averages are correct. NCCL adds integers modulo 2^bits and then divides: wrong if the sum overflows.
constexpr bool averages(DType dtype) noexcept {
  return dtype != DType::i64 && dtype != DType::i32 && dtype != DType::u8;
}

/// Maximum number of ranks for which 1 / ranks is a normal number of an 8-bit type. NCCL multiplies every element by
/// it, rounded: with more ranks it loses digits, until it is 0 (src/enqueue.cc, hostToDevRedOp).
constexpr int max_averaged_ranks(DType dtype) noexcept {
  return dtype == DType::f8e4m3 ? 1 << 6 : 1 << 14;
}

/// @throws Error (unsupported) for an average that would be wrong; (invalid_argument) for a value that is no ReduceOp
inline ncclRedOp_t reduction_of(ReduceOp op, DType dtype, int ranks) {
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
      if (is_float8(dtype) && ranks > max_averaged_ranks(dtype)) {
        throw Error(Errc::unsupported, std::string("an average of ") + name(dtype) + " over " + std::to_string(ranks) +
                                           " ranks by NCCL would be wrong, because that type has few digits or none "
                                           "for 1/" +
                                           std::to_string(ranks) + "; average f16, bf16 or f32");
      }
      return is_float8(dtype) && ranks == 1 ? ncclSum : ncclAvg;  // up to 2.30 NCCL refuses 8 bits with one rank
  }
  throw Error(Errc::invalid_argument, std::string("NCCL does not know the reduction ") + name(op));
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
