#pragma once
/// @file
/// Definition of backend::SharedMemory::open_blocking.

#include <string>

#include "dtrain/backend/setup/open_and_report.hpp"
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace shared_memory {

static_assert(SharedMemory::most_ranks == max_ranks);

inline void check_one_host(const rendezvous::Membership& members) {
  if (members.other_host_rank >= 0) {
    throw Error(Errc::unsupported, "backend::SharedMemory joins the ranks of one host, but rank " +
                                       std::to_string(members.rank) + " is on " + members.host + " and rank " +
                                       std::to_string(members.other_host_rank) + " on " + members.other_host_text() +
                                       "; use backend::Mpi, backend::Gloo or backend::Nccl for several hosts");
  }
  if (members.world_size > max_ranks) {
    throw Error(Errc::limit, "backend::SharedMemory joins at most " + std::to_string(max_ranks) + " ranks, not " +
                                 std::to_string(members.world_size) + "; use backend::Gloo or backend::Mpi");
  }
}

}  // namespace shared_memory

DTRAIN_DEFINED SharedMemory::Communicator SharedMemory::open_blocking(const ChannelContext& context,
                                                                      Deadline deadline) {
  shared_memory::check_one_host(context.members);
  return open_and_report_blocking<Communicator>(context, deadline);
}

}  // namespace DTRAIN_NAMESPACE::backend
