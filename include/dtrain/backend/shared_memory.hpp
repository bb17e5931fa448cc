#pragma once
/// @file
/// backend::SharedMemory: ranks of one host reduce in memory that all of them map.

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/shared_memory/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/host/communication_stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// The default backend: needs no library and no /dev/shm, and leaves no resource behind, however a rank ends.
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
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline);
};

static_assert(Backend<SharedMemory>);

}  // namespace DTRAIN_NAMESPACE::backend

#if DTRAIN_DEFINITIONS
#include "dtrain/backend/shared_memory_definitions.hpp"
#endif
