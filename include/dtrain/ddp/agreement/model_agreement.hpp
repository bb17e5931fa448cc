#pragma once
/// @file
/// Model agreement: all ranks compare their models, and all fail alike if two differ. Driver calls it for the wrapped
/// model and its optimizer, load_checkpoint() for the tensors.

#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Collective, blocking: rank 0 publishes its signature and the other ranks compare. O(1) messages for each rank if all
/// agree. Each instance in a job uses its own `prefix`, the same on all ranks. @param doing for the warning of a rank
/// that waits long for rank 0: "wrapping a model"
/// @throws Error (disagreement) on the rank that differs and JobFailed on all others, with the same sentence: the first
/// difference and both ranks; Error (limit) for a model whose signature is beyond max_signature_bytes.
void agree_blocking(const group::GroupHandle& group, const std::string& prefix, const ModelSignature& mine,
                    Deadline deadline, const std::string& doing);

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/client/value_chunks.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// Digest and length, which suffice for a rank with the same model.
inline std::string summary_of(std::string_view bytes) {
  return format_text("{} {}", {hex(Sha256().update(bytes).digest()), bytes.size()});
}

inline std::string difference_to_rank_0(const group::GroupHandle& group, const std::string& prefix,
                                        std::string_view summary, const ModelSignature& mine, Deadline deadline) {
  const int rank = group.members().rank_in_job();
  const int rank_0 = group.members().rank_in_job(0);
  const std::string_view digits = summary.substr(summary.find(' ') + 1);
  std::size_t length = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), length);
  const bool is_length = error == std::errc{} && end == digits.data() + digits.size() && length <= max_signature_bytes;
  const std::string bytes = rendezvous::join_value_chunks(
      prefix + "signature", is_length ? length : 0,
      [&](const std::string& name) { return group.store_ref().get_blocking(name, deadline); });
  const std::optional<ModelSignature> theirs =
      bytes.size() <= max_signature_bytes ? try_from_bytes<ModelSignature>(bytes) : std::nullopt;
  if (!theirs) {
    return format_text("rank {} cannot read the model signature of rank {}; do both run the same program?",
                       {rank, rank_0});
  }
  return first_difference(mine, rank, *theirs, rank_0)
      .value_or(format_text("rank {}'s model signature has another digest than rank {}'s", {rank, rank_0}));
}

}  // namespace detail

DTRAIN_DEFINED void agree_blocking(const group::GroupHandle& group, const std::string& prefix,
                                   const ModelSignature& mine, Deadline deadline, const std::string& doing) {
  const backend::StoreRef store = group.store_ref();
  const int rank = group.members().rank;
  const int self = group.members().rank_in_job();
  FailureLatch& latch = *group.failure();
  const std::string bytes = to_bytes(mine);
  if (bytes.size() > max_signature_bytes) {
    throw_error(Errc::limit,
                "the names and shapes of {} parameters take {} bytes to compare between ranks; shorten the names",
                {mine.parameters.size(), bytes.size()});
  }
  const std::string own_summary = detail::summary_of(bytes);
  std::vector<std::pair<std::string, std::string>> entries;  // that rank 0 publishes, the summary last
  if (rank == 0) {
    entries = rendezvous::value_chunks(prefix + "signature", bytes);
    entries.emplace_back(prefix + "summary", own_summary);
  }
  const auto name = [](int other) { return "rank " + std::to_string(other); };
  const backend::StoreRank here{store, rank, rank + 1, self, deadline, doing, name};
  backend::detail::LateRanks late(here, [] { return std::string("rank 0 of the group has not come"); });
  try {
    for (const auto& [key, value] : entries) {
      store.set_blocking(key, value, deadline);
    }
    const std::string summary =
        rank == 0 ? own_summary : backend::detail::get(here, prefix + "summary", deadline, late);
    if (summary != own_summary) {
      latch.report({CauseKind::disagreement, self, group.members().host,
                    detail::difference_to_rank_0(group, prefix, summary, mine, deadline)});
      latch.block_until_failed(deadline);
    }
    group.barrier_blocking(prefix + "agreed", deadline);
    for (const auto& entry : entries) {
      store.erase_blocking(entry.first, deadline);
    }
  } catch (const Error&) {
    latch.throw_if_failed(self);  // the first cause names its rank
    throw;
  }
  latch.throw_if_failed(self);
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
