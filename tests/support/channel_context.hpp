#pragma once
/// @file
/// What opens a channel of a fake job's, for ranks that are threads.

#include <chrono>
#include <memory>
#include <string>

#include "dtrain/backend/channel_context.hpp"
#include "support/fake_store.hpp"

namespace support {

inline dtrain::backend::ChannelContext channel_context(const std::shared_ptr<FakeJob>& job, int rank, int size,
                                                       const std::string& name, std::chrono::nanoseconds timeout) {
  dtrain::rendezvous::Membership members;
  members.rank = members.local_rank = rank;
  members.world_size = members.local_world_size = size;
  members.host = "host-" + std::to_string(rank);
  members.job = "test";
  return {members, name, FakeStore(job, rank), job->latch(rank), timeout};
}

}  // namespace support
