#pragma once
/// @file
/// backend::Gloo: ranks on hosts without MPI or GPUs run dtrain's algorithms over messages of Gloo's TCP connections.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_GLOO

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/gloo/mesh.hpp"
#include "dtrain/backend/gloo/transport.hpp"
#include "dtrain/backend/message_passing/communicator.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// Ranks of any hosts exchange data over Gloo. Collectives are dtrain's own, over Gloo's point-to-point messages, so
/// they can be cancelled at any time: a failed rank ends the operations of all others. Ranks exchange their addresses
/// through the job's store.
///
/// Each channel has connections between all its ranks, a Gloo context and two threads: Gloo's, which polls every 10 ms,
/// and one that blocks in Gloo. Hence channels never wait for each other. Gloo allocates memory for each message;
/// dtrain does not.
///
/// Messages are neither encrypted nor authenticated, and any client that reaches the ports can disturb the job. Use a
/// trusted network, selected with DTRAIN_INTERFACE.
/// @ingroup backends
struct Gloo {
  using Communicator = message_passing::Communicator<gloo::Transport>;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::for_a_plan;  // lengths select the algorithm

  static constexpr std::string_view name() noexcept { return "Gloo"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }

  /// Collective, blocking. See CanOpen. Reports a failure of this rank to context.failure.
  /// @throws Error (unsupported, closed, timeout, limit, protocol), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline,
                                    const Communicator::SelectedAllReduce& selected = {}) {
    return open_and_report_blocking<Communicator>(context, deadline, selected);
  }
};

static_assert(Backend<Gloo>);

}  // namespace DTRAIN_NAMESPACE::backend

#else

namespace DTRAIN_NAMESPACE::backend {

/// Policy's error for it names the macro.
struct Gloo;

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_GLOO
