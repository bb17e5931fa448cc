#pragma once
/// @file
/// DriverAccess: the Driver of a DistributedDataParallel, for the library's parts alone.

#include <string>

#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A wrapper's Driver, for the library's own parts.
struct DriverAccess {
  /// The Driver, with its reducer. Lifetime: the wrapper's.
  template <class Ddp>
  static auto& of(Ddp& ddp) noexcept {
    return *ddp.driver_;
  }

  /// Collective, blocking: compares what the ranks construct for the wrapper. @throws Error (disagreement) or JobFailed
  /// on every rank if two ranks construct different optimizers
  template <class Ddp>
  static void agree_on_reduction(Ddp& ddp, const std::string& reduction) {
    const auto& group = group::GroupAccess::of(ddp.group());
    group.rank_context()->require_may_block();
    of(ddp).agree_on_reduction(group, reduction);
  }
};

}  // namespace DTRAIN_NAMESPACE::ddp
