#pragma once
/// @file
/// Model agreement: all ranks compare their models before training, and all fail alike if two differ.

#include <functional>
#include <string>

#include "dtrain/backend/channel_setup/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/rendezvous/client/store.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// @param reach_barrier blocks until every rank has called it; as agree_blocking below
void agree_blocking(const backend::StoreRef& store, const std::function<void()>& reach_barrier,
                    const std::string& prefix, const ModelSignature& mine, int rank, const FailureContext& context,
                    Deadline deadline, const std::string& doing = "wrapping a model");

/// Collective, blocking: rank 0 publishes its signature and the other ranks compare. O(1) messages a rank if all agree.
/// Each instance in a job uses its own `prefix`, the same on all ranks. @param rank rank in the group @param doing for
/// the warning of a rank that waits long for rank 0: "wrapping a model"
/// @throws Error (disagreement) on the rank that differs and JobFailed on all others, with the same sentence: the first
/// difference and both ranks; Error (limit) for a model whose signature is beyond max_signature_bytes.
template <class Store>
void agree_blocking(Store store, const std::string& prefix, const ModelSignature& mine, int rank,
                    const FailureContext& context, Deadline deadline, const std::string& doing = "wrapping a model") {
  agree_blocking(
      store, [&] { store.barrier(prefix + "agreed", deadline).wait(); }, prefix, mine, rank, context, deadline, doing);
}

/// The same over the job's store.
void agree_blocking(const rendezvous::Store& store, const std::string& prefix, const ModelSignature& mine, int rank,
                    const FailureContext& context, Deadline deadline, const std::string& doing = "wrapping a model");

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/agreement/model_agreement_definitions.hpp"
#endif
