#pragma once
/// @file
/// backend::Mpi: processes of mpirun or srun run dtrain's algorithms over MPI's messages, so that each can be
/// cancelled. MpiCollectives: MPI's own collectives.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_MPI

#include <array>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/communicator.hpp"
#include "dtrain/backend/mpi/collective_endpoint.hpp"
#include "dtrain/backend/mpi/engine.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/transport.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Ranks of any hosts exchange data over MPI. Collectives are dtrain's own, over MPI's point-to-point messages, so they
/// can be cancelled at any time: a failed rank ends the operations of all others. The thread that waits for an
/// operation makes MPI's progress; one thread at a time is inside MPI. A thread of dtrain initializes MPI with
/// MPI_THREAD_SERIALIZED, unless the program has done so with MPI_THREAD_MULTIPLE. Each channel uses its own range of
/// tags. Needs launch::Any or PerProcess: mpirun starts the processes.
/// @ingroup backends
struct Mpi {
  using Communicator = message_passing::Communicator<mpi::Transport>;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::for_a_plan;  // lengths select the algorithm

  static constexpr std::string_view name() noexcept { return "Mpi"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }

  /// MPI's own launcher starts a process for each rank; PerNode would start them without MPI's knowledge.
  template <class Launcher>
  static constexpr bool works_with = Launcher::returns_into_user_code || requires {
    requires std::bool_constant<Launcher::also_joins>::value;
  };

  /// Collective, blocking. Initializes MPI, compares rank and size with MPI_COMM_WORLD, and distributes rank 0's secret
  /// by MPI_Bcast; rank 0 draws one if the job has none. @throws Error (identity, unsupported, timeout, mpi)
  static std::shared_ptr<void> pre_join_blocking(const identity::ProcessIdentity& identity,
                                                 std::optional<rendezvous::Secret>& secret, Deadline deadline) {
    const std::shared_ptr<mpi::Engine> engine = mpi::Engine::shared_blocking(deadline);
    if (engine->runtime().rank() != identity.rank || engine->runtime().size() != identity.world_size) {
      engine->skip_finalize();
      throw_error(Errc::identity,
                  "by its environment [{}] this is rank {} of {}, but MPI_COMM_WORLD says rank {} of {}; the program "
                  "is linked with {}: start it with that MPI's mpirun, `mpirun -n {} PROGRAM`",
                  {identity.launcher, identity.rank, identity.world_size, engine->runtime().rank(),
                   engine->runtime().size(), engine->runtime().version_text(), identity.world_size});
    }
    const auto bytes = std::make_shared<std::array<char, rendezvous::Secret::most_characters + 1>>();
    if (identity.rank == 0) {
      secret.value_or(rendezvous::Secret::drawn()).text().copy(bytes->data(), bytes->size() - 1);
    }
    const auto distribute = [bytes](mpi::Engine::EngineState& state) {
      if (state.secret.empty()) {  // only before the first channel: a rank blocked in MPI_Bcast serves no other channel
        const int count = static_cast<int>(bytes->size());
        mpi::check(MPI_Bcast(bytes->data(), count, MPI_CHAR, 0, state.runtime->communicator()),
                   "distributing the job's secret");
        state.secret = bytes->data();
      }
      bytes->fill(0);
      state.secret.copy(bytes->data(), bytes->size() - 1);
    };
    engine->run_blocking(distribute, deadline, "distributing the job's secret");
    if (!secret) {
      secret = rendezvous::Secret::of(bytes->data(), "what the backend handed out");
    }
    return engine;
  }

  /// Collective, blocking. See CanOpen. Reports a failure of this rank to context.failure.
  /// @throws Error (timeout, limit, protocol, mpi), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const Communicator::SelectedAllReduce& selected = {}) {
    return open_and_report_blocking<Communicator>(context, deadline, selected);
  }
};

/// As Mpi, with MPI's own collectives (MPI_Iallreduce and the like) on one communicator for each channel. For systems
/// whose MPI has faster ones, for example in hardware. Limits:
/// - MPI cannot cancel a collective. If one is abandoned after a peer's failure or a timeout, MPI is out of service for
///   all channels of this process, and the program can only exit.
/// - Different calls on different ranks are not detected: MPI fails, returns a wrong result, or blocks until the
///   timeout.
/// - MPI promises no reproducible bits: neither between runs nor, strictly, between ranks.
/// Messages between two ranks, and collectives of more than 2^31 - 1 bytes, work as in Mpi.
/// @ingroup backends
struct MpiCollectives : Mpi {
  using Communicator = message_passing::Communicator<mpi::BasicTransport<mpi::CollectiveEndpoint>>;
  static constexpr Determinism determinism = Determinism::none;

  static constexpr std::string_view name() noexcept { return "MpiCollectives"; }

  /// Collective, blocking. See Mpi.
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const Communicator::SelectedAllReduce& selected = {}) {
    return open_and_report_blocking<Communicator>(context, deadline, selected);
  }
};

static_assert(message_passing::Transport<mpi::Transport>);
static_assert(Backend<Mpi> && Backend<MpiCollectives>);
static_assert(HasPreJoin<Mpi> && HasPreJoin<MpiCollectives>);

}  // namespace DTRAIN_NAMESPACE::backend

#else

namespace DTRAIN_NAMESPACE::backend {

/// Policy's error for them names the macro.
struct Mpi;
struct MpiCollectives;

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_MPI
