#pragma once
/// @file
/// Variants of Hierarchical's all_reduce: as the policy says, without the wire type, and the backend's own.

#include <array>
#include <span>

#include "dtrain/core/config.hpp"
#include "dtrain/topology/algorithm_operations.hpp"
#include "dtrain/topology/hierarchical/node_layout.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Those that make a difference in a layout: inside one node there is one way; where each node has one rank, the
/// backend's own is Hierarchical without a wire type. @param narrows whether there is a wire type
std::span<const AllReduceVariant> hierarchical_variants(const NodeLayout& layout, bool narrows) noexcept;

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::span<const AllReduceVariant> hierarchical_variants(const NodeLayout& layout,
                                                                       bool narrows) noexcept {
  static constexpr AllReduceVariant flat{"Flat", false, false};
  static constexpr std::array plain{AllReduceVariant{"Hierarchical"}, flat};
  static constexpr std::array with_wire{AllReduceVariant{"Hierarchical"},
                                        AllReduceVariant{"Hierarchical in f32", true, false}, flat};
  const std::span<const AllReduceVariant> all = narrows ? std::span<const AllReduceVariant>(with_wire) : plain;
  const bool is_flat = layout.ranks == layout.nodes;  // without the wire type
  if (layout.nodes == 1 || (is_flat && !narrows)) return {};
  return is_flat ? all.first(2) : all;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::topology
