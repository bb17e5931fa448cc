#pragma once
/// @file
/// Definition of backend::SharedMemory::open_blocking.

#include "dtrain/backend/setup/open_and_report.hpp"
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace shared_memory {

static_assert(SharedMemory::most_ranks == max_ranks);

inline void check_one_host(const rendezvous::Membership& members) {
  if (members.other_host_rank >= 0) {
    throw_error(Errc::unsupported,
                "backend::SharedMemory joins the ranks of one host, but rank {} is on {} and rank {} on {}; use "
                "backend::Mpi, backend::Gloo or backend::Nccl for several hosts",
                {members.rank, members.host, members.other_host_rank, members.other_host_text()});
  }
  if (members.world_size > max_ranks) {
    throw_error(Errc::limit, "backend::SharedMemory joins at most {} ranks, not {}; use backend::Gloo or backend::Mpi",
                {max_ranks, members.world_size});
  }
}

}  // namespace shared_memory

DTRAIN_DEFINED SharedMemory::Communicator SharedMemory::open_blocking(const ChannelContext& context,
                                                                      Deadline deadline) {
  shared_memory::check_one_host(context.members);
  return open_and_report_blocking<Communicator>(context, deadline);
}

}  // namespace DTRAIN_NAMESPACE::backend
