#pragma once
/// @file
/// What opens a channel of a fake job's, for ranks that are threads.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "support/fake_store.hpp"
#include "support/thread_ranks.hpp"

namespace support {

/// @param node_of by rank; empty: all are on one node
inline dtrain::backend::ChannelContext channel_context(const std::shared_ptr<FakeJob>& job, int rank, int size,
                                                       const std::string& name = "group",
                                                       std::chrono::nanoseconds timeout = std::chrono::seconds(10),
                                                       const std::vector<int>& node_of = {},
                                                       dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
  dtrain::rendezvous::Membership members;
  members.rank = members.local_rank = rank;
  members.world_size = members.local_world_size = size;
  members.node_rank = node_of.empty() ? 0 : node_of[static_cast<std::size_t>(rank)];
  members.node_count = static_cast<int>(std::max<std::size_t>(1, std::set(node_of.begin(), node_of.end()).size()));
  members.host = "host-" + std::to_string(rank);
  members.job = "test";
  return {members, name, FakeStore(job, rank), job->latch(rank), timeout, {}, {}, accumulate};
}

/// How many ranks, and how they open their channel: without a name as their type does by itself.
struct Ranks {
  Ranks(int ranks, std::string channel = "", std::chrono::nanoseconds operation_timeout = {},
        std::chrono::milliseconds watchdog = patience_with_ranks)
      : count(ranks), name(std::move(channel)), timeout(operation_timeout), patience(watchdog) {}

  int count;
  std::string name;
  std::chrono::nanoseconds timeout;
  std::chrono::milliseconds patience;
};

/// Runs `body(Rank&, RankThread&)` on a thread for each rank of a job of its own.
template <class Rank, class Body>
void run_ranks(const Ranks& ranks, Body body) {
  const auto job = std::make_shared<FakeJob>(ranks.count);
  const auto run = [&](RankThread& thread) {
    thread.doing("opening");
    Rank self = ranks.name.empty() ? Rank(job, thread.rank(), ranks.count)
                                   : Rank(job, thread.rank(), ranks.count, ranks.name, ranks.timeout);
    thread.doing("running the body");
    body(self, thread);
  };
  run_thread_ranks(ranks.count, run, ranks.patience);
}

}  // namespace support
