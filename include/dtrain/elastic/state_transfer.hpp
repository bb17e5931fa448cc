#pragma once
/// @file
/// transfer_state(): ranks of an elastic attempt that lack rank 0's state receive it. Collective.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/elastic/kept_state.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/rendezvous/formation/progress.hpp"

namespace DTRAIN_NAMESPACE::elastic {

/// Rule 7 of a formation: which ranks receive. A rank receives if it has not the source's progress, or has it with
/// another digest: the program has written to the rank's state outside of a commit.
/// @param cards of each rank: whether it has the source's progress, and its digest
inline std::vector<bool> receivers(const std::vector<std::int64_t>& cards) {
  std::vector<bool> found(cards.size() / 2);
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    found[rank] = cards[2 * rank] == 0 || cards[2 * rank + 1] != cards[1];
  }
  return found;
}

/// @returns views of other memory for all kept tensors, without values @param memory owns it
std::vector<TensorView> stage(const KeptState& state, std::unique_ptr<std::byte[]>& memory);

/// Collective, blocking: gives every rank the state of rank 0. A rank that has trained, and each rank before the first
/// commit, keeps its state until the source's is here as a whole (rule 4 of a formation). @throws as the group's
/// collectives
template <class Group>
void transfer_state(const Group& group, KeptState& state, const rendezvous::Assignment& assignment,
                    const rendezvous::TrainingProgress& own) {
  if (!assignment.source.has_trained()) {
    return;  // the states are those of the programs' beginning, which the wrappers make equal
  }
  const bool is_current = own == assignment.source;
  const auto rank = static_cast<std::size_t>(group.rank());
  std::vector<std::int64_t> cards(2 * static_cast<std::size_t>(group.world_size()));
  const std::uint64_t digest = is_current ? state.digest() : 0;
  cards[2 * rank] = is_current ? 1 : 0;
  std::memcpy(&cards[2 * rank + 1], &digest, sizeof(digest));
  group.all_reduce(cards, ReduceOp::sum);  // a gathering: the others have zeros there; every backend sums host memory
  const std::vector<bool> receives = receivers(cards);
  const auto count = std::count(receives.begin(), receives.end(), true);
  if (count == 0) return;
  // Before the first step the programs' beginnings may differ.
  if (is_current && receives[rank] && own.steps > 0 && !state.may_differ()) {
    log(LogLevel::warning,
        format_text(
            "rank {}: its state differs from rank 0's after as many steps, and is replaced: what is kept was written "
            "outside of commit(), or this host's processor or libraries round a step differently",
            {rank}));
  }
  // Where no step was committed, a rank that has not trained may be the next source: what it has also stays whole.
  const bool stages = receives[rank] && (own.has_trained() || assignment.source.steps == 0);
  std::unique_ptr<std::byte[]> staged;
  const std::vector<TensorView> places = stages ? stage(state, staged) : state.values();
  const auto send = [&](const Group& among) {
    ddp::PackedBroadcast packed(places, true);
    packed.launch(
        rank == 0, [&among](const BufferView& value) { among.broadcast(value, 0); }, [](auto copy) { copy(); });
  };
  if (count + 1 == group.world_size()) {
    send(group);
  } else {  // the others have no need to copy a large state
    const bool takes_part = rank == 0 || receives[rank];
    const Group among = group.split(takes_part ? 0 : 1);
    if (takes_part) {
      send(among);
    }
  }
  for (std::size_t i = 0; stages && i < places.size(); ++i) {
    std::copy_n(places[i].data, places[i].bytes(), state.tensors()[i].value.data);
  }
  state.commit();
}

}  // namespace DTRAIN_NAMESPACE::elastic

#if DTRAIN_DEFINITIONS

#include "dtrain/ddp/bucket_plan.hpp"

namespace DTRAIN_NAMESPACE::elastic {

DTRAIN_DEFINED std::vector<TensorView> stage(const KeptState& state, std::unique_ptr<std::byte[]>& memory) {
  std::vector<TensorView> places = state.values();
  std::size_t bytes = 0;
  for (const TensorView& place : places) {
    bytes += ddp::detail::padded(place.bytes());
  }
  memory.reset(new std::byte[bytes]);
  std::byte* next = memory.get();
  for (TensorView& place : places) {
    place.data = next;
    next += ddp::detail::padded(place.bytes());
  }
  return places;
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
