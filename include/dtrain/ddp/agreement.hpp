#pragma once
/// @file
/// Agreement: before training all ranks compare their models, and all fail alike where two differ.

#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/sha256.hpp"
#include "dtrain/ddp/description.hpp"
#include "dtrain/ddp/description_bytes.hpp"
#include "dtrain/ddp/difference.hpp"
#include "dtrain/ddp/failure_context.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// A description is cut into values that a store takes.
inline constexpr std::size_t description_piece_bytes = std::size_t{256} << 10;

inline std::size_t pieces_of(std::size_t bytes) {
  return (bytes + description_piece_bytes - 1) / description_piece_bytes;
}

/// Digest and length: all that a rank whose model is the same needs to read.
inline std::string summary_of(std::string_view bytes) {
  return hex(Sha256().update(bytes).digest()) + " " + std::to_string(bytes.size());
}

template <class Store>
void publish(Store& store, const std::string& prefix, std::string_view bytes, int rank_in_job, Deadline deadline) {
  for (std::size_t piece = 0; piece < pieces_of(bytes.size()); ++piece) {
    const std::size_t first = piece * description_piece_bytes;
    store
        .set(prefix + "description/" + std::to_string(piece), std::string(bytes.substr(first, description_piece_bytes)),
             deadline)
        .wait();
  }
  store.set(prefix + "publisher", std::to_string(rank_in_job), deadline).wait();
  store.set(prefix + "summary", summary_of(bytes), deadline).wait();
}

/// What publish set is gone.
template <class Store>
void erase_published(Store& store, const std::string& prefix, std::string_view bytes, Deadline deadline) {
  for (std::size_t piece = 0; piece < pieces_of(bytes.size()); ++piece) {
    store.erase(prefix + "description/" + std::to_string(piece), deadline).wait();
  }
  store.erase(prefix + "publisher", deadline).wait();
  store.erase(prefix + "summary", deadline).wait();
}

/// 0 for anything else than a number up to `most`.
inline std::size_t number_in(std::string_view text, std::size_t most) noexcept {
  std::size_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc{} && end == text.data() + text.size() && number <= most ? number : 0;
}

template <class Store>
std::string difference_to_rank_0(Store& store, const std::string& prefix, std::string_view summary,
                                 const ModelDescription& mine, int rank, Deadline deadline) {
  const std::size_t length = number_in(summary.substr(summary.find(' ') + 1), max_description_bytes);
  std::string bytes;
  for (std::size_t piece = 0; piece < pieces_of(length); ++piece) {
    bytes += store.get(prefix + "description/" + std::to_string(piece), deadline).wait();
  }
  const std::string name = store.get(prefix + "publisher", deadline).wait();  // of rank 0 of the group in the job
  const int publisher = static_cast<int>(number_in(name, std::numeric_limits<int>::max()));
  const std::string other = "rank " + std::to_string(publisher);
  const std::optional<ModelDescription> theirs = parse_description(bytes);
  if (!theirs) {
    return "rank " + std::to_string(rank) + " cannot read the model description of " + other +
           "; do both run the same program?";
  }
  return first_difference(mine, rank, *theirs, publisher)
      .value_or("rank " + std::to_string(rank) + "'s model description has another digest than " + other + "'s");
}

}  // namespace detail

/// Collective, blocking. Rank 0 publishes its description, the others compare: O(1) messages a rank where all agree.
/// Each instance in a job uses its own `prefix`, the same on all ranks. @param rank in the group whose ranks compare
/// @throws Error (disagreement) on the rank that differs and JobFailed on all others, with the same sentence: the first
/// difference and both ranks. Error (limit) for a model whose description is beyond max_description_bytes.
template <class Store>
void agree_blocking(Store store, const std::string& prefix, const ModelDescription& mine, int rank,
                    const FailureContext& context, Deadline deadline) {
  const std::string bytes = serialise(mine);
  if (bytes.size() > max_description_bytes) {
    throw Error(Errc::limit, "the names and shapes of " + std::to_string(mine.parameters.size()) + " parameters take " +
                                 std::to_string(bytes.size()) + " bytes to compare between ranks; shorten the names");
  }
  try {
    if (rank == 0) {
      detail::publish(store, prefix, bytes, context.rank, deadline);
    } else if (const std::string summary = store.get(prefix + "summary", deadline).wait();
               summary != detail::summary_of(bytes)) {
      context.latch->report({CauseKind::disagreement, context.rank, context.host,
                             detail::difference_to_rank_0(store, prefix, summary, mine, context.rank, deadline)});
      context.latch->block_until_failed(deadline);
    }
    store.barrier(prefix + "agreed", deadline).wait();
    if (rank == 0) {
      detail::erase_published(store, prefix, bytes, deadline);
    }
  } catch (const Error&) {
    context.latch->throw_if_failed(context.rank);  // says it as the rank that it came from
    throw;
  }
  context.latch->throw_if_failed(context.rank);
}

}  // namespace DTRAIN_NAMESPACE::ddp
