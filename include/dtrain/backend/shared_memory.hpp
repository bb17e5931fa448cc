#pragma once
/// @file
/// backend::SharedMemory, the default backend: ranks of one host reduce in memory that all of them map, which ends with
/// their processes.

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/shared_memory/communicator.hpp"
#include "dtrain/backend/shared_memory/control_block.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// The default backend: needs no library and no /dev/shm, and its memory is freed however a rank ends.
/// @ingroup backends
struct SharedMemory {
  using Communicator = shared_memory::Communicator;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::always;  // sums in rank order, f16 and bf16 rounded once

  static constexpr int most_ranks = 256;  ///< all on one host

  static constexpr std::string_view name() noexcept { return "SharedMemory"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }

  /// Collective, blocking. See CanOpen. Reports a failure of this rank to context.failure, so that others do not wait
  /// for it. @throws Error (unsupported: ranks on several hosts; limit, out_of_memory, timeout, closed), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const Communicator::SelectedAllReduce& selected = {});
};

static_assert(Backend<SharedMemory>);

#if DTRAIN_DEFINITIONS

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

DTRAIN_DEFINED SharedMemory::Communicator SharedMemory::open_blocking(const ChannelContext& context, Deadline deadline,
                                                                      const Communicator::SelectedAllReduce& selected) {
  shared_memory::check_one_host(context.members);
  return open_and_report_blocking<Communicator>(context, deadline, selected);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::backend
