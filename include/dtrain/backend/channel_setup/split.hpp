#pragma once
/// @file
/// Setup of the channels of a split by color and key, as by MPI_Comm_split: the ranks exchange colors and keys over the
/// store. ChannelOwner and NCCL's Communicator call it.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A rank's arguments to split.
struct ColorAndKey {
  int color = 0;
  int key = 0;
};

inline void fields(Serializer& of, ColorAndKey& choice) {
  of.number(choice.color);
  of.number(choice.key);
}

/// The ranks with the color of `rank`, by key, then by rank.
std::vector<int> ranks_of_color(const std::vector<ColorAndKey>& choices, int rank);

/// Collective, blocking. The context of this rank's channel after the `number`-th split of `context`'s channel.
/// @throws Error (invalid_argument) for a negative color, before this rank publishes anything; (timeout), JobFailed
ChannelContext split_context(const ChannelContext& context, std::uint64_t number, int color, int key,
                             Deadline deadline);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<int> ranks_of_color(const std::vector<ColorAndKey>& choices, int rank) {
  std::vector<int> ranks;
  for (std::size_t other = 0; other < choices.size(); ++other) {
    if (choices[other].color == choices[static_cast<std::size_t>(rank)].color) {
      ranks.push_back(static_cast<int>(other));
    }
  }
  std::stable_sort(ranks.begin(), ranks.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  return ranks;
}

DTRAIN_DEFINED ChannelContext split_context(const ChannelContext& context, std::uint64_t number, int color, int key,
                                            Deadline deadline) {
  if (color < 0) {
    throw_error(Errc::invalid_argument,
                "split with color {}; colors begin at 0: give ranks that need no group a color of their own", {color});
  }
  const std::string split = format_text("{}/split-{}", {context.name, number});
  const StoreRank self = StoreRank::of(context, deadline, format_text("splitting channel '{}'", {context.name}));
  const auto own = [=] { return ColorAndKey{color, key}; };
  const std::vector<ColorAndKey> choices = store_all_gather(self, split, own, "a rank's color and key");
  ChannelContext made = context;
  made.members = context.members.in_part_of(ranks_of_color(choices, context.members.rank));
  made.name = format_text("{}-color-{}", {split, color});
  return made;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
