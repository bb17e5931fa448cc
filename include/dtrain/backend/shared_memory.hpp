#pragma once
/// @file
/// backend::SharedMemory: ranks of one host reduce in memory that all of them have mapped.

#include <string>
#include <string_view>
#include <utility>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/open_and_tell.hpp"
#include "dtrain/backend/shared_memory/communicator.hpp"
#include "dtrain/backend/shared_memory/links.hpp"
#include "dtrain/backend/shared_memory/sharing.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// The embedded default: needs no library, nothing in /dev/shm, and leaves nothing behind, however a rank ends.
struct SharedMemory {
  using Communicator = shared_memory::Communicator;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::always;  // sums in rank order, f16 and bf16 rounded once

  static constexpr std::string_view name() noexcept { return "SharedMemory"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType) noexcept { return true; }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure, so that the others
  /// do not wait for it. @throws Error (unsupported: ranks on several hosts; limit, out_of_memory, timeout, closed),
  /// JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    check_one_host(context.members);
    context.failure->throw_if_failed(context.reporting_rank());
    try {
      return Communicator::open_blocking(context, deadline);
    } catch (const JobFailed&) {
      throw;
    } catch (const shared_memory::ToldError& error) {
      if (context.members.rank == 0) {  // the others have it from rank 0, which reports for all
        context.failure->report({CauseKind::exception, -1, "", error.what()});
      }
      throw;
    } catch (const Error& error) {
      tell_failed_opening(context, error);
      throw;
    }
  }

 private:
  static void check_one_host(const rendezvous::Membership& members) {
    if (members.other_host_rank >= 0) {
      throw Error(Errc::unsupported, "backend::SharedMemory joins the ranks of one host, but rank " +
                                         std::to_string(members.rank) + " is on " + members.host + " and rank " +
                                         std::to_string(members.other_host_rank) + " on " + members.other_host +
                                         "; use backend::Mpi, backend::Gloo or backend::Nccl for several hosts");
    }
    if (members.world_size > shared_memory::max_ranks) {
      throw Error(Errc::limit, "backend::SharedMemory joins at most " + std::to_string(shared_memory::max_ranks) +
                                   " ranks, not " + std::to_string(members.world_size) + "; use backend::Mpi");
    }
  }
};

static_assert(Backend<SharedMemory>);

}  // namespace DTRAIN_NAMESPACE::backend
