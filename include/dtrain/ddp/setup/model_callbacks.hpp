#pragma once
/// @file
/// Callbacks by which a reducer reaches the model and its group, to read addresses and to plan the buckets again.

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/address_check.hpp"
#include "dtrain/ddp/broadcast/bucket_order_broadcast.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/ddp/setup/reducer_parts.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The callbacks keep the group until the reducer drops them. Lifetime: the model outlives them.
/// @param group a ProcessGroup
/// @param prefix of this wrapper's keys in the store
template <class M, class Group>
ReducerParts model_callbacks(M& model, const Group& group, const std::string& prefix, const FailureContext& context,
                             const DdpOptions& options) {
  ReducerParts parts;
  parts.read_parameters = AddressCheck::reading(model);
  if (options.reorder_gradients && !options.deterministic) {
    set_up_order_broadcast(
        parts.rebuild, group.store(), group.members(), prefix, context,
        [group](group::StoreEntries entries) {
          return group::GroupAccess::of(group).set_in_background(std::move(entries));
        },
        [group] { group.start_pending(); });
    if constexpr (BindsGradients<M>) {
      parts.rebuild.bind = [&model](std::size_t i, const TensorView& view) { model.bind_gradient(i, view); };
    }
  }
  return parts;
}

}  // namespace DTRAIN_NAMESPACE::ddp
