#pragma once
/// @file
/// Conversion of element types and reductions to NCCL's, and a check of devices.

#include <string>

#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/backend/operations.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// The type of elements; for 8-bit floats bytes, which every version moves on every device.
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
  throw_error(Errc::invalid_argument, "NCCL has no elements of {}", {name(dtype)});
}

/// Whether NCCL's averages are correct. NCCL adds integers modulo 2^bits and then divides: wrong if the sum overflows.
constexpr bool averages(DType dtype) noexcept {
  return dtype != DType::i64 && dtype != DType::i32 && dtype != DType::u8;
}

/// One rank's average is its sum: NCCL would run a kernel that multiplies by 1, and does nothing for a sum in place.
/// @throws Error (unsupported) for an average that would be wrong; (invalid_argument) for a value that is no ReduceOp
inline ncclRedOp_t reduction_of(ReduceOp op, DType dtype, int ranks) {
  switch (op) {
    case ReduceOp::sum: return ncclSum;
    case ReduceOp::min: return ncclMin;
    case ReduceOp::max: return ncclMax;
    case ReduceOp::product: return ncclProd;
    case ReduceOp::average:
      if (!averages(dtype)) {
        throw_error(Errc::unsupported,
                    "an average of {} by NCCL would be wrong where the sum overflows; reduce with ReduceOp::sum in a "
                    "type that holds it, and divide",
                    {name(dtype)});
      }
      return ranks == 1 ? ncclSum : ncclAvg;
  }
  throw_error(Errc::invalid_argument, "NCCL does not know the reduction {}", {name(op)});
}

/// @throws Error (invalid_argument) unless the buffers and the stream are on device `own`; (unsupported) for host
/// memory
DTRAIN_NOT_INLINED inline void check_devices(const std::string& channel, int own, const Devices& buffers,
                                             Device stream) {
  const Device expected{DeviceKind::cuda, own};
  for (const Device device : buffers) {
    if (device != expected) {
      throw_error(device.kind == expected.kind ? Errc::invalid_argument : Errc::unsupported,
                  "NCCL's channel '{}' takes memory of {}, not memory of {}; give the view the device that its "
                  "memory is on",
                  {channel, to_string(expected), to_string(device)});
    }
  }
  if (stream != expected) {
    throw_error(Errc::invalid_argument, "NCCL's channel '{}' takes streams of {}, not one of {}",
                {channel, to_string(expected), to_string(stream)});
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
