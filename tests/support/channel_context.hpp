#pragma once
/// @file
/// What opens a channel of a test's job, and how its ranks run: as threads, if their type does not say otherwise.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "support/fake_store.hpp"
#include "support/gate.hpp"
#include "support/thread_ranks.hpp"

namespace support {

/// @param job has a Store, and latch(rank): a FakeJob, or another World's
/// @param node_of by rank; empty: all are on one node
template <class Job>
dtrain::backend::ChannelContext channel_context(const std::shared_ptr<Job>& job, int rank, int size,
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
  return {members, name, typename Job::Store(job, rank), job->latch(rank), timeout, {}, {}, accumulate};
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

/// All ranks of a job are threads of this process.
struct ThreadWorld {
  using Job = FakeJob;

  /// Runs `body(RankThread&)` for each rank that this process has, and returns when all ranks have ended.
  static void run(int ranks, const std::function<void(RankThread&)>& body,
                  std::chrono::milliseconds patience = patience_with_ranks) {
    run_thread_ranks(ranks, body, patience);
  }
};

template <class Rank>
struct WorldOf {
  using Type = ThreadWorld;
};
template <class Rank>
requires requires {
  typename Rank::World;
}
struct WorldOf<Rank> {
  using Type = typename Rank::World;
};
template <class Rank>
using World = typename WorldOf<Rank>::Type;

/// Runs `body(Rank&, RankThread&)` for each rank of a job of its own.
template <class Rank>
void run_ranks(const Ranks& ranks, const std::function<void(Rank&, RankThread&)>& body) {
  const auto job = std::make_shared<typename World<Rank>::Job>(ranks.count);
  const auto run = [&](RankThread& thread) {
    thread.doing("opening");
    Rank self = ranks.name.empty() ? Rank(job, thread.rank(), ranks.count)
                                   : Rank(job, thread.rank(), ranks.count, ranks.name, ranks.timeout);
    thread.doing("running the body");
    body(self, thread);
  };
  World<Rank>::run(ranks.count, run, ranks.patience);
}

/// run_ranks of threads whose bodies begin when all ranks have opened: no opening hears of a failure, and none takes of
/// an operation's timeout.
template <class Rank>
void run_opened_ranks(const Ranks& ranks, const std::function<void(Rank&, RankThread&)>& body) {
  std::atomic<int> opened{0};
  run_ranks<Rank>(ranks, [&](Rank& self, RankThread& thread) {
    ++opened;
    thread.doing("waiting for the other ranks' openings");
    holds_soon([&] { return opened == ranks.count; });
    thread.doing("running the body");
    body(self, thread);
  });
}

}  // namespace support
