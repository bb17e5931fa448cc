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
#include "dtrain/backend/entering.hpp"
#include "dtrain/backend/message_passing/communicator.hpp"
#include "dtrain/backend/mpi/collective_endpoint.hpp"
#include "dtrain/backend/mpi/engine.hpp"
#include "dtrain/backend/mpi/host.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/open_and_tell.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/rendezvous/secret.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend {

/// Collectives are dtrain's own, over MPI's point-to-point messages, hence can be given up at any time: a rank that
/// fails ends the others. One thread of dtrain's makes every call to MPI; it starts MPI, unless the program did with
/// MPI_THREAD_MULTIPLE. Channels are bands of tags. Needs launch::PerProcess: mpirun starts the processes.
struct Mpi {
  using Communicator = message_passing::Communicator<mpi::Host>;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::for_a_plan;  // which algorithm runs depends on lengths

  static constexpr std::string_view name() noexcept { return "Mpi"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }

  /// MPI's own launcher starts a process for each rank; PerNode would start them without MPI's knowledge.
  template <class Launcher>
  static constexpr bool works_with = Launcher::returns_into_user_code;

  /// Collective, blocking: starts MPI, compares the ranks, and hands rank 0's secret to all by MPI_Bcast, one drawn for
  /// this job where it has none. @throws Error (identity, unsupported, timeout, mpi)
  static Entry enter_blocking(const Newcomer& newcomer, Deadline deadline) {
    const std::shared_ptr<mpi::Engine> engine = mpi::Engine::shared_blocking(deadline);
    if (engine->rank() != newcomer.rank || engine->size() != newcomer.world_size) {
      engine->expect_no_end();
      throw Error(Errc::identity, "by its environment [" + newcomer.launcher + "] this is rank " +
                                      std::to_string(newcomer.rank) + " of " + std::to_string(newcomer.world_size) +
                                      ", but MPI_COMM_WORLD says rank " + std::to_string(engine->rank()) + " of " +
                                      std::to_string(engine->size()) + "; the program is linked with " +
                                      engine->version_text() + ": start it with that MPI's mpirun, `mpirun -n " +
                                      std::to_string(newcomer.world_size) + " PROGRAM`");
    }
    std::string secret = newcomer.secret.value_or(newcomer.rank == 0 ? rendezvous::Secret::drawn().text() : "");
    const auto bytes = std::make_shared<std::array<char, rendezvous::Secret::most_characters + 1>>();
    if (newcomer.rank == 0) {
      std::memcpy(bytes->data(), secret.data(), std::min(secret.size(), bytes->size() - 1));
    }
    const auto hand_out = [bytes](mpi::Engine::Inside& inside) {
      if (inside.secret.empty()) {  // only before the first channel: a rank that waits in here serves no other one
        const int count = static_cast<int>(bytes->size());
        mpi::check(MPI_Bcast(bytes->data(), count, MPI_CHAR, 0, inside.session->communicator()),
                   "handing out the job's secret");
        inside.secret = bytes->data();
      }
      bytes->fill(0);
      inside.secret.copy(bytes->data(), bytes->size() - 1);
    };
    engine->run_blocking(hand_out, deadline, "handing out the job's secret");
    return {engine, newcomer.secret ? secret : std::string(bytes->data())};
  }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure.
  /// @throws Error (timeout, limit, protocol, mpi), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    return open_and_tell_blocking<Communicator>(context, deadline);
  }
};

/// The same, but that collectives are MPI's own (MPI_Iallreduce and its like), on a communicator for each channel: for
/// systems whose MPI has better ones, in hardware perhaps. Their price:
/// - MPI cannot cancel them. A collective that is given up, because a peer fell or it took too long, takes MPI out of
///   service in this process, for all channels; the program can only end.
/// - Ranks that call different things are not noticed: MPI fails, gives a wrong result or waits for the timeout.
/// - MPI promises no bits: not from one run to the next, nor, strictly, the same on all ranks.
/// Messages between two ranks, and collectives of more than 2^31 - 1 bytes, are as those of Mpi.
struct MpiCollectives : Mpi {
  using Communicator = message_passing::Communicator<mpi::HostOver<mpi::CollectiveEndpoint>>;
  static constexpr Determinism determinism = Determinism::none;

  static constexpr std::string_view name() noexcept { return "MpiCollectives"; }

  /// Collective, blocking. See Mpi.
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    return open_and_tell_blocking<Communicator>(context, deadline);
  }
};

static_assert(message_passing::Host<mpi::Host>);
static_assert(Backend<Mpi> && Backend<MpiCollectives>);
static_assert(Enters<Mpi> && Enters<MpiCollectives>);

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_MPI
