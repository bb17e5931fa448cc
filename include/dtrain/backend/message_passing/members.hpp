#pragma once
/// @file
/// Which ranks of the job a channel's are.

#include <charconv>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Collective, blocking for a channel of a part of the job: rank 0 gathers what all say. @throws Error (timeout,
/// protocol), JobFailed
inline std::vector<int> job_ranks_of(const ChannelContext& context, Deadline deadline) {
  const int size = context.members.world_size;
  std::vector<int> ranks(static_cast<std::size_t>(size));
  if (!context.members.job_rank) {
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  const auto key_of = [&](int rank) { return context.name + "/member-" + std::to_string(rank); };
  const std::string all = context.name + "/members";
  if (context.members.rank != 0) {
    context.store.set_blocking(key_of(context.members.rank), std::to_string(context.reporting_rank()), deadline);
  } else {
    std::string text = std::to_string(context.reporting_rank());
    for (int rank = 1; rank < size; ++rank) {
      text += ' ' + context.store.get_blocking(key_of(rank), deadline);
    }
    context.store.set_blocking(all, text, deadline);
  }
  const std::string text = context.store.get_blocking(all, deadline);
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int& rank : ranks) {
    at += at != end && *at == ' ' ? 1 : 0;
    const auto [after, error] = std::from_chars(at, end, rank);
    if (error != std::errc() || rank < 0) {
      throw Error(Errc::protocol, "the ranks of channel '" + context.name + "' came as '" +
                                      printable(text.substr(0, 64)) + "'; do all ranks run the same program?");
    }
    at = after;
  }
  return ranks;
}

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
