#pragma once
/// @file
/// Variants of Hierarchical's all_reduce: as the policy says, without the wire type, and the backend's own.

#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/topology/algorithm_operations.hpp"
#include "dtrain/topology/hierarchical/node_layout.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Those that make a difference in a layout: inside one node there is one way; where each node has one rank, the
/// backend's own is Hierarchical without a wire type. @param wire of f32 elements between nodes: f32, bf16 or f16
std::span<const AllReduceVariant> hierarchical_variants(const NodeLayout& layout, DType wire) noexcept;

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::span<const AllReduceVariant> hierarchical_variants(const NodeLayout& layout, DType wire) noexcept {
  static constexpr AllReduceVariant in_f32{"Hierarchical in f32", true, false};
  static constexpr AllReduceVariant flat{"Flat", false, false};
  static constexpr AllReduceVariant plain[] = {{"Hierarchical"}, flat};
  static constexpr AllReduceVariant with_bf16[] = {{"Hierarchical in bf16"}, in_f32, flat};
  static constexpr AllReduceVariant with_f16[] = {{"Hierarchical in f16"}, in_f32, flat};
  const bool is_flat = layout.ranks == layout.nodes;  // without the wire type
  if (layout.nodes == 1 || (is_flat && wire == DType::f32)) return {};
  if (wire == DType::f32) return plain;
  const std::span<const AllReduceVariant> all = wire == DType::bf16 ? with_bf16 : with_f16;
  return is_flat ? all.first(2) : all;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::topology
