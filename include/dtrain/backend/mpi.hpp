#pragma once
/// @file
/// backend::Mpi: ranks that mpirun or srun started exchange messages over MPI.

#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/communicator.hpp"
#include "dtrain/backend/mpi/collective_endpoint.hpp"
#include "dtrain/backend/mpi/engine.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/transport.hpp"
#include "dtrain/backend/setup/open_and_report.hpp"
#include "dtrain/backend/setup/pre_join.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend {

/// Collectives are dtrain's own, over MPI's point-to-point messages, hence can be cancelled at any time: a rank that
/// fails ends the others. One thread of dtrain's makes every call to MPI; it starts MPI, unless the program did with
/// MPI_THREAD_MULTIPLE. Channels are bands of tags. Needs launch::PerProcess: mpirun starts the processes.
struct Mpi {
  using Communicator = message_passing::Communicator<mpi::Transport>;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::for_a_plan;  // which algorithm runs depends on lengths

  static constexpr std::string_view name() noexcept { return "Mpi"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }

  /// MPI's own launcher starts a process for each rank; PerNode would start them without MPI's knowledge.
  template <class Launcher>
  static constexpr bool works_with = Launcher::returns_into_user_code;

  /// Collective, blocking: starts MPI, compares the ranks, and distributes rank 0's secret by MPI_Bcast, one drawn for
  /// this job where it has none. @throws Error (identity, unsupported, timeout, mpi)
  static PreJoinResult pre_join_blocking(const ProcessInfo& process_info, Deadline deadline) {
    const std::shared_ptr<mpi::Engine> engine = mpi::Engine::shared_blocking(deadline);
    if (engine->rank() != process_info.rank || engine->size() != process_info.world_size) {
      engine->skip_finalize();
      throw Error(Errc::identity, "by its environment [" + process_info.launcher + "] this is rank " +
                                      std::to_string(process_info.rank) + " of " +
                                      std::to_string(process_info.world_size) + ", but MPI_COMM_WORLD says rank " +
                                      std::to_string(engine->rank()) + " of " + std::to_string(engine->size()) +
                                      "; the program is linked with " + engine->version_text() +
                                      ": start it with that MPI's mpirun, `mpirun -n " +
                                      std::to_string(process_info.world_size) + " PROGRAM`");
    }
    std::string secret = process_info.secret.value_or(process_info.rank == 0 ? rendezvous::Secret::drawn().text() : "");
    const auto bytes = std::make_shared<std::array<char, rendezvous::Secret::most_characters + 1>>();
    if (process_info.rank == 0) {
      std::memcpy(bytes->data(), secret.data(), std::min(secret.size(), bytes->size() - 1));
    }
    const auto distribute = [bytes](mpi::Engine::EngineState& state) {
      if (state.secret.empty()) {  // only before the first channel: a rank that waits in here serves no other one
        const int count = static_cast<int>(bytes->size());
        mpi::check(MPI_Bcast(bytes->data(), count, MPI_CHAR, 0, state.runtime->communicator()),
                   "distributing the job's secret");
        state.secret = bytes->data();
      }
      bytes->fill(0);
      state.secret.copy(bytes->data(), bytes->size() - 1);
    };
    engine->run_blocking(distribute, deadline, "distributing the job's secret");
    return {engine, process_info.secret ? secret : std::string(bytes->data())};
  }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure.
  /// @throws Error (timeout, limit, protocol, mpi), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    return open_and_report_blocking<Communicator>(context, deadline);
  }
};

/// The same, but that collectives are MPI's own (MPI_Iallreduce and its like), on a communicator for each channel: for
/// systems whose MPI has better ones, in hardware perhaps. Their price:
/// - MPI cannot cancel them. A collective that is abandoned, because a peer failed or it took too long, takes MPI out
/// of
///   service in this process, for all channels; the program can only end.
/// - Ranks that call different things are not noticed: MPI fails, gives a wrong result or waits for the timeout.
/// - MPI promises no bits: not from one run to the next, nor, strictly, the same on all ranks.
/// Messages between two ranks, and collectives of more than 2^31 - 1 bytes, are as those of Mpi.
struct MpiCollectives : Mpi {
  using Communicator = message_passing::Communicator<mpi::BasicTransport<mpi::CollectiveEndpoint>>;
  static constexpr Determinism determinism = Determinism::none;

  static constexpr std::string_view name() noexcept { return "MpiCollectives"; }

  /// Collective, blocking. See Mpi.
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    return open_and_report_blocking<Communicator>(context, deadline);
  }
};

static_assert(message_passing::Transport<mpi::Transport>);
static_assert(Backend<Mpi> && Backend<MpiCollectives>);
static_assert(HasPreJoin<Mpi> && HasPreJoin<MpiCollectives>);

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_MPI
