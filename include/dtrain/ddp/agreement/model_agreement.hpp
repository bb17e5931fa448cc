#pragma once
/// @file
/// Model agreement: all ranks compare their models before training, and all fail alike if two differ.

#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/agreement/model_difference.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/failure_context.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// A signature is stored in chunks, because a store bounds its values.
inline constexpr std::size_t signature_chunk_bytes = std::size_t{256} << 10;

inline std::size_t chunks_of(std::size_t bytes) {
  return (bytes + signature_chunk_bytes - 1) / signature_chunk_bytes;
}

/// Digest and length: a rank with the same model needs no more.
inline std::string summary_of(std::string_view bytes) {
  return format_text("{} {}", {hex(Sha256().update(bytes).digest()), bytes.size()});
}

using Entries = std::vector<std::pair<std::string, std::string>>;

/// Keys and values that rank 0 publishes, the summary last.
inline Entries entries_of(const std::string& prefix, std::string_view bytes, int rank_in_job) {
  Entries entries;
  for (std::size_t chunk = 0; chunk < chunks_of(bytes.size()); ++chunk) {
    entries.emplace_back(format_text("{}signature/{}", {prefix, chunk}),
                         bytes.substr(chunk * signature_chunk_bytes, signature_chunk_bytes));
  }
  entries.emplace_back(prefix + "publisher", std::to_string(rank_in_job));
  entries.emplace_back(prefix + "summary", summary_of(bytes));
  return entries;
}

/// The number in `text`; 0 unless `text` is a number up to `most`.
inline std::size_t number_in(std::string_view text, std::size_t most) noexcept {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number <= most ? number : 0;
}

template <class Store>
std::string difference_to_rank_0(Store& store, const std::string& prefix, std::string_view summary,
                                 const ModelSignature& mine, int rank, Deadline deadline) {
  const std::size_t length = number_in(summary.substr(summary.find(' ') + 1), max_signature_bytes);
  std::string bytes;
  for (std::size_t chunk = 0; chunk < chunks_of(length); ++chunk) {
    bytes += store.get(format_text("{}signature/{}", {prefix, chunk}), deadline).wait();
  }
  const std::string name = store.get(prefix + "publisher", deadline).wait();  // rank in the job of the group's rank 0
  const int publisher = static_cast<int>(number_in(name, std::numeric_limits<int>::max()));
  const std::string other = "rank " + std::to_string(publisher);
  const std::optional<ModelSignature> theirs =
      bytes.size() <= max_signature_bytes ? try_from_bytes<ModelSignature>(bytes) : std::nullopt;
  if (!theirs) {
    return format_text("rank {} cannot read the model signature of {}; do both run the same program?", {rank, other});
  }
  return first_difference(mine, rank, *theirs, publisher)
      .value_or(format_text("rank {}'s model signature has another digest than {}'s", {rank, other}));
}

}  // namespace detail

/// Collective, blocking: rank 0 publishes its signature and the other ranks compare. O(1) messages a rank if all agree.
/// Each instance in a job uses its own `prefix`, the same on all ranks. @param rank rank in the group
/// @throws Error (disagreement) on the rank that differs and JobFailed on all others, with the same sentence: the first
/// difference and both ranks; Error (limit) for a model whose signature is beyond max_signature_bytes.
template <class Store>
void agree_blocking(Store store, const std::string& prefix, const ModelSignature& mine, int rank,
                    const FailureContext& context, Deadline deadline) {
  const std::string bytes = to_bytes(mine);
  if (bytes.size() > max_signature_bytes) {
    throw_error(Errc::limit,
                "the names and shapes of {} parameters take {} bytes to compare between ranks; shorten the names",
                {mine.parameters.size(), bytes.size()});
  }
  const detail::Entries entries = rank == 0 ? detail::entries_of(prefix, bytes, context.rank) : detail::Entries{};
  try {
    for (const auto& [key, value] : entries) {
      store.set(key, value, deadline).wait();
    }
    const std::string summary = rank == 0 ? entries.back().second : store.get(prefix + "summary", deadline).wait();
    if (summary != detail::summary_of(bytes)) {
      context.latch->report({CauseKind::disagreement, context.rank, context.host,
                             detail::difference_to_rank_0(store, prefix, summary, mine, context.rank, deadline)});
      context.latch->block_until_failed(deadline);
    }
    store.barrier(prefix + "agreed", deadline).wait();
    for (const auto& entry : entries) {
      store.erase(entry.first, deadline).wait();
    }
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // the first cause names its rank
    throw;
  }
  context.latch->throw_if_failed(context.rank);
}

}  // namespace DTRAIN_NAMESPACE::ddp
