#pragma once
/// @file
/// backend::Staged: a host backend reduces CUDA buffers through pinned host memory, with its bits, chunk by chunk.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <array>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/device_selection.hpp"
#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/backend/staged/communicator.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/stream/cuda/stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

namespace staged {

/// As many hardware queues as CUDA gives a process on a device. CUDA's default is 8, which all streams share: work
/// after a copy that waits for the host then holds up other streams of the same queue. Source: CUDA C++ Programming
/// Guide, "CUDA Environment Variables", CUDA_DEVICE_MAX_CONNECTIONS.
inline constexpr int hardware_queues = 32;
inline constexpr const char* queues_variable = "CUDA_DEVICE_MAX_CONNECTIONS";

/// A warning about fewer queues; empty if the variable is in order.
inline std::string warning_about(const identity::Environment& environment) {
  const std::optional<std::string_view> text = identity::Variables(environment).text(queues_variable);
  const std::optional<int> queues = text ? identity::parse_integer(*text) : std::nullopt;
  if (!queues || *queues >= hardware_queues) {
    return {};
  }
  return format_text(
      "{}={} is too low for backend::Staged; unset it (dtrain sets it to {}), or set it to {}. Streams that share a "
      "hardware queue hold each other up, and a job may wait until its timeout",
      {queues_variable, *queues, hardware_queues, hardware_queues});
}

/// Sets CUDA_DEVICE_MAX_CONNECTIONS=32 unless the user has set it. CUDA reads the variable when it makes its context: a
/// program that has used CUDA before keeps its number of queues. Logs a warning about fewer queues.
/// Threads: no other thread reads the environment meanwhile. @throws Error if the variable cannot be set
inline void prepare_environment() {
  if (::setenv(queues_variable, "32", 0) != 0) {
    throw errno_error("setting CUDA_DEVICE_MAX_CONNECTIONS");
  }
  if (const std::string warning = warning_about(identity::snapshot_environment()); !warning.empty()) {
    log(LogLevel::warning, warning);
  }
}

}  // namespace staged

/// `Policy<launch::PerNode, backend::Staged<backend::SharedMemory>>`: for CUDA gradients without NCCL, or with several
/// ranks on one device (DTRAIN_SHARE_DEVICES=1). Chunks are pipelined: while the host reduces chunk k, the device
/// copies chunk k+1 to the host and chunk k-1 back. A topology is applied to `Inner`. Reductions have Inner's bits.
///
/// A rank gets 32 hardware queues (CUDA_DEVICE_MAX_CONNECTIONS), unless the variable is set: a copy that waits for the
/// host holds up all streams of its queue.
///
/// On a device without stream memory operations (cuStreamWaitValue32), host functions wait in streams, and CUDA may run
/// these one at a time in a process. There, a process has one rank, and one channel with running work at a time.
/// @ingroup backends
template <class Inner>
struct Staged {
  static_assert(OnHostStreams<Inner>,
                "dtrain: backend::Staged needs a backend for host memory, such as backend::SharedMemory "
                "(OnHostStreams in dtrain/backend/backend.hpp)");

  using Communicator = staged::Communicator<typename Inner::Communicator>;
  using StreamOwner = stream::cuda::CommunicationStream;
  static constexpr Determinism determinism = determinism_of<Inner>;

  /// The host backend, and Staged over another one: topologies are applied to the host backend.
  using InnerBackend = Inner;
  template <class Other>
  using Rebind = Staged<Other>;

  /// "Staged<SharedMemory>".
  static constexpr std::string_view name() noexcept { return {name_of_both.data(), name_of_both.size()}; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::cuda; }
  static constexpr bool reduces(DType dtype) noexcept { return Inner::reduces(dtype); }

  template <class Launcher>
  static constexpr bool works_with = [] {
    if constexpr (requires { Inner::template works_with<Launcher>; }) {
      return Inner::template works_with<Launcher>;
    }
    return true;
  }();

  /// Default number of ranks on a node.
  static int visible_devices() { return cuda::visible_devices(); }

  /// Blocking; collective if `Inner`'s is. Selects this rank's device, before any other CUDA call.
  /// @throws Error (unsupported, usage, cuda), and as Inner::pre_join_blocking
  static std::shared_ptr<void> pre_join_blocking(const identity::ProcessIdentity& identity,
                                                 [[maybe_unused]] std::optional<rendezvous::Secret>& secret,
                                                 [[maybe_unused]] Deadline deadline) {
    staged::prepare_environment();
    cuda::take_device(identity, cuda::shares_devices());
    if constexpr (HasPreJoin<Inner>) {
      return Inner::pre_join_blocking(identity, secret, deadline);
    } else {
      return nullptr;
    }
  }

  /// Collective, blocking. See CanOpen. The device is the thread's current one.
  /// @throws Error (unsupported: two ranks on one device; cuda), and as Inner::open_blocking
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    reporting_failure(
        context, [&] { cuda::compare_devices_blocking(context, cuda::sharing(cuda::shares_devices()), deadline); });
    auto inner = Inner::open_blocking(context, deadline);  // reports its own failures
    return reporting_failure(context, [&] { return Communicator(context, std::move(inner), deadline); });
  }

 private:
  static constexpr auto name_of_both = [] {
    constexpr std::string_view before = "Staged<";
    constexpr std::string_view inner = Inner::name();
    std::array<char, before.size() + inner.size() + 1> text{};
    std::size_t length = 0;
    for (const std::string_view part : {before, inner, std::string_view(">")}) {
      for (const char letter : part) {
        text[length++] = letter;
      }
    }
    return text;
  }();
};

static_assert(Backend<Staged<SharedMemory>>);
static_assert(HasPreJoin<Staged<SharedMemory>>);

}  // namespace DTRAIN_NAMESPACE::backend

#else

namespace DTRAIN_NAMESPACE::backend {

/// Policy's error for it names the macro.
template <class Inner>
struct Staged;

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_CUDA
