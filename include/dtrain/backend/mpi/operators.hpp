#pragma once
/// @file
/// Operators: MPI datatypes and reduction operators; dtrain's kernels where MPI's operators give other results.

#include <array>
#include <cstddef>
#include <map>
#include <span>
#include <utility>

#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/reduction.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// The MPI datatype of the elements: 16-bit and 8-bit integers for f16, bf16 and 8-bit floats, which MPI lacks.
inline MPI_Datatype datatype_of(DType dtype) noexcept {
  switch (dtype) {
    case DType::f64: return MPI_DOUBLE;
    case DType::f32: return MPI_FLOAT;
    case DType::i64: return MPI_INT64_T;
    case DType::i32: return MPI_INT32_T;
    case DType::f16:
    case DType::bf16: return MPI_UINT16_T;
    case DType::u8:
    case DType::f8e4m3:
    case DType::f8e5m2: break;
  }
  return MPI_UINT8_T;
}

/// The operators of one channel. An average is a sum of values from kernels::PartialReduction. MPI defines neither the
/// order of a sum nor a minimum with a NaN, so the latter is dtrain's. Threads: the one that holds the ProgressLoop's
/// lock.
class Operators {
 public:
  Operators() = default;
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;

  /// @throws Error (mpi)
  MPI_Op of(DType dtype, ReduceOp op) {
    const bool half = dtype == DType::f16 || dtype == DType::bf16;
    const bool real = half || dtype == DType::f32 || dtype == DType::f64;
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::average: return half ? made(dtype, ReduceOp::sum) : MPI_SUM;
      case ReduceOp::product: return half ? made(dtype, op) : MPI_PROD;
      case ReduceOp::min: return real ? made(dtype, op) : MPI_MIN;
      case ReduceOp::max: break;
    }
    return real ? made(dtype, ReduceOp::max) : MPI_MAX;
  }

  /// Precondition: MPI runs.
  void free() noexcept {
    for (auto& [key, op] : made_) {
      static_cast<void>(MPI_Op_free(&op));
    }
    made_.clear();
  }

 private:
  template <DType dtype, ReduceOp op>
  static void combine(void* from, void* into, int* count, MPI_Datatype* /*type*/) {
    auto* const target = static_cast<std::byte*>(into);
    const std::array<const std::byte*, 2> sources{static_cast<const std::byte*>(from), target};
    const std::array<std::byte*, 1> targets{target};
    kernels::Reduction::of(dtype, op)(sources, targets, static_cast<std::size_t>(*count));
  }

  template <DType dtype>
  static MPI_User_function* function_for(ReduceOp op) noexcept {
    switch (op) {
      case ReduceOp::min: return combine<dtype, ReduceOp::min>;
      case ReduceOp::max: return combine<dtype, ReduceOp::max>;
      case ReduceOp::product: return combine<dtype, ReduceOp::product>;
      default: return combine<dtype, ReduceOp::sum>;
    }
  }

  static MPI_User_function* function_for(DType dtype, ReduceOp op) noexcept {
    switch (dtype) {
      case DType::f64: return function_for<DType::f64>(op);
      case DType::f32: return function_for<DType::f32>(op);
      case DType::f16: return function_for<DType::f16>(op);
      default: return function_for<DType::bf16>(op);
    }
  }

  MPI_Op made(DType dtype, ReduceOp op) {
    const auto [entry, is_new] = made_.try_emplace(std::pair(dtype, op), MPI_OP_NULL);
    if (is_new) {
      constexpr int commutes = 1;
      check(MPI_Op_create(function_for(dtype, op), commutes, &entry->second), "making an operator");
    }
    return entry->second;
  }

  std::map<std::pair<DType, ReduceOp>, MPI_Op> made_;
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
