#pragma once
/// @file
/// Split of a channel by color and key, as by MPI_Comm_split.

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/setup/store_gather.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A rank's arguments to split.
struct ColorAndKey {
  int color = 0;
  int key = 0;
};

/// "3 -1 " for each rank in turn.
inline std::string to_text(const std::vector<ColorAndKey>& choices) {
  std::string text;
  for (const ColorAndKey& choice : choices) {
    text += std::to_string(choice.color) + ' ' + std::to_string(choice.key) + ' ';
  }
  return text;
}

/// @throws Error (protocol) unless the text holds `ranks` choices
inline std::vector<ColorAndKey> colors_and_keys_from(const std::string& text, int ranks) {
  std::vector<ColorAndKey> choices(static_cast<std::size_t>(ranks));
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto read = [&](int& number) {
    const auto [after, error] = std::from_chars(at, end, number);
    if (error != std::errc() || after == end || *after != ' ') {
      throw Error(Errc::protocol, "a split's colors and keys came as '" + sanitize(text.substr(0, 64)) +
                                      "'; do all ranks run the same program?");
    }
    at = after + 1;
  };
  for (ColorAndKey& choice : choices) {
    read(choice.color);
    read(choice.key);
  }
  return choices;
}

/// The ranks with the color of `rank`, by key, then by rank.
inline std::vector<int> ranks_of_color(const std::vector<ColorAndKey>& choices, int rank) {
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

/// Collective, blocking: the color and key of every rank of the context. @throws Error (timeout), JobFailed
inline std::vector<ColorAndKey> gather_colors_and_keys(const ChannelContext& context, const std::string& purpose,
                                                       ColorAndKey own, Deadline deadline) {
  const StoreRank self = StoreRank::of(context, deadline, "splitting channel '" + context.name + "'");
  const auto joined = [](const std::vector<std::string>& texts) {
    std::vector<ColorAndKey> gathered;
    for (const std::string& text : texts) {
      gathered.push_back(colors_and_keys_from(text, 1)[0]);
    }
    return to_text(gathered);
  };
  return colors_and_keys_from(store_gather(
                                  self, purpose, [own] { return to_text({own}); }, joined),
                              self.ranks);
}

/// Collective, blocking. The context of this rank's channel after the `number`-th split of `context`'s channel.
/// @throws Error (invalid_argument) for a negative color, before this rank publishes anything; (timeout), JobFailed
inline ChannelContext split_context(const ChannelContext& context, std::uint64_t number, int color, int key,
                                    Deadline deadline) {
  if (color < 0) {
    throw Error(Errc::invalid_argument,
                "split with color " + std::to_string(color) +
                    "; colors begin at 0: give the ranks that are to be alone one of their own");
  }
  const std::string split = context.name + "/split-" + std::to_string(number);
  const auto choices = gather_colors_and_keys(context, split, {color, key}, deadline);
  ChannelContext made = context;
  made.members = context.members.in_part_of(ranks_of_color(choices, context.members.rank));
  made.name = split + "-color-" + std::to_string(color);
  return made;
}

}  // namespace DTRAIN_NAMESPACE::backend
