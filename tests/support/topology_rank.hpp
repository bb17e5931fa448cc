#pragma once
/// @file
/// A rank, as a thread of the test, with a channel of any backend, whose membership claims a node.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/stream/host/event.hpp"
#include "support/fake_store.hpp"
#include "support/thread_ranks.hpp"

namespace support {

/// The stream outlives the communicator, as it does in a ProcessGroup. `node_of[rank]`; empty: all on one.
template <class Backend>
struct TopologyRank {
  TopologyRank(const std::shared_ptr<FakeJob>& job, int rank, int size, const std::vector<int>& node_of = {},
               std::chrono::nanoseconds timeout = std::chrono::seconds(10),
               dtrain::Accumulate accumulate = dtrain::Accumulate::element)
      : latch(job->latch(rank)),
        communicator(Backend::open_blocking(context(job, rank, size, node_of, timeout, accumulate),
                                            dtrain::Deadline::after(std::chrono::seconds(10)))) {}

  /// Blocking: runs what is enqueued. @returns whether the communicator still serves.
  bool wait() {
    dtrain::stream::host::Event event;
    stream.ref().record(event);
    const auto result = event.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(30)));
    return result == dtrain::stream::WaitResult::complete && !communicator.failure();
  }

  bool all_reduce(const dtrain::ConstBufferView& input, const dtrain::BufferView& output, dtrain::ReduceOp op) {
    communicator.all_reduce(input, output, op, stream.ref());
    return wait();
  }

  static dtrain::backend::ChannelContext context(const std::shared_ptr<FakeJob>& job, int rank, int size,
                                                 const std::vector<int>& node_of, std::chrono::nanoseconds timeout,
                                                 dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
    dtrain::rendezvous::Membership members;
    members.rank = rank;
    members.world_size = size;
    members.node_rank = node_of.empty() ? 0 : node_of[static_cast<std::size_t>(rank)];
    members.node_count = static_cast<int>(std::max<std::size_t>(1, std::set(node_of.begin(), node_of.end()).size()));
    members.host = "host-" + std::to_string(rank);
    members.job = "test";
    return {members, "group", FakeStore(job, rank), job->latch(rank), timeout, {}, {}, accumulate};
  }

  std::shared_ptr<dtrain::FailureLatch> latch;
  typename Backend::StreamOwner stream;
  typename Backend::Communicator communicator;
};

/// Runs `body(TopologyRank<Backend>&, rank)` on a thread for each rank.
template <class Backend, class Body>
void run_topology_ranks(int ranks, const std::vector<int>& node_of, Body body,
                        dtrain::Accumulate accumulate = dtrain::Accumulate::element) {
  const auto job = std::make_shared<FakeJob>(ranks);
  run_thread_ranks(ranks, [&](RankThread& thread) {
    TopologyRank<Backend> self(job, thread.rank(), ranks, node_of, std::chrono::seconds(10), accumulate);
    thread.doing("running the body");
    body(self, thread.rank());
  });
}

}  // namespace support
