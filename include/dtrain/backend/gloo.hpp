#pragma once
/// @file
/// backend::Gloo: ranks on hosts without MPI or GPUs exchange messages over Gloo's TCP connections.

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/gloo/device_address.hpp"
#include "dtrain/backend/gloo/transport.hpp"
#include "dtrain/backend/message_passing/communicator.hpp"
#include "dtrain/backend/setup/open_and_report.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

#if DTRAIN_WITH_GLOO

namespace DTRAIN_NAMESPACE::backend {

/// Collectives are dtrain's own, over Gloo's point-to-point messages, hence can be cancelled at any time: a rank that
/// fails ends the others. The ranks find each other through the job's store. Each channel has connections between all
/// of its ranks, a Gloo context and two threads of its own (Gloo's, which looks up every 10 ms, and one that waits in
/// Gloo), so that channels never wait for each other. Gloo allocates memory for every message; dtrain does not. What
/// travels is neither encrypted nor authenticated, and whoever reaches the ports can disturb the job: use it in a
/// network that you trust, and choose that with DTRAIN_INTERFACE.
struct Gloo {
  using Communicator = message_passing::Communicator<gloo::Transport>;
  using StreamOwner = stream::host::CommunicationStream;
  static constexpr Determinism determinism = Determinism::for_a_plan;  // which algorithm runs depends on lengths

  static constexpr std::string_view name() noexcept { return "Gloo"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::host; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure.
  /// @throws Error (unsupported, closed, timeout, limit, protocol), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    return open_and_report_blocking<Communicator>(context, deadline);
  }
};

static_assert(Backend<Gloo>);

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_GLOO
