#pragma once
/// @file
/// backend::SharedMemory: ranks of one host reduce in memory that all of them have mapped.

#include <string>
#include <string_view>
#include <utility>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
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

  static constexpr std::string_view name() noexcept { return "SharedMemory"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType) noexcept { return true; }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure, so that the others
  /// do not wait for it. @throws Error (unsupported: ranks on several hosts; limit, out_of_memory, timeout, closed),
  /// JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    check_one_host(context.members);
    context.failure->throw_if_failed(context.members.rank);
    try {
      return open(context, deadline);
    } catch (const JobFailed&) {
      throw;
    } catch (const shared_memory::ToldError& error) {
      if (context.members.rank == 0) {  // the others have it from rank 0, which reports for all
        context.failure->report({CauseKind::exception, -1, "", error.what()});
      }
      throw;
    } catch (const Error& error) {
      const CauseKind kind = error.code() == make_error_code(Errc::timeout) ? CauseKind::timeout : CauseKind::exception;
      context.failure->report({kind, context.members.rank, context.members.host, error.what()});
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

  static Communicator open(const ChannelContext& context, Deadline deadline) {
    const std::size_t ranks = static_cast<std::size_t>(context.members.world_size);
    const std::size_t bytes = shared_memory::ControlBlock::bytes_for(context.members.world_size);
    shared_memory::Links links = shared_memory::Links::open(context, deadline);
    const shared_memory::Shared shared = shared_memory::Sharing(links, 1, (bytes + ranks - 1) / ranks, deadline).run();
    Communicator communicator(context, std::move(links), shared.segment);
    communicator.prove_one_memory(shared.nonce);
    return communicator;
  }
};

static_assert(Backend<SharedMemory>);

}  // namespace DTRAIN_NAMESPACE::backend
