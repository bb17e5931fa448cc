#pragma once
/// @file
/// backend::Nccl, and NcclWith<> with options: ranks with a GPU each exchange data over NCCL; every wait has a
/// deadline.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_NCCL

#include <optional>
#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/device_selection.hpp"
#include "dtrain/backend/nccl/communicator.hpp"
#include "dtrain/backend/nccl/library.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/stream/cuda/stream.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// NCCL with options: `NcclWith<NcclOptions{.max_ctas = 8}>`. The communication stream has high priority. Every wait
/// for other ranks ends by a deadline; a failed rank ends the operations of all others. A group has a communicator
/// without operations, from which those of its channels are split; each channel has two threads that watch it.
/// Operations are launched in the calling thread, see NcclOptions::launches_in_caller.
///
/// Reductions are NCCL's own:
/// - 16-bit floats are added in their own precision. A NaN need not survive min and max.
/// - average takes floating-point elements. For 16-bit floats, each element is first multiplied by 1 / ranks, rounded
///   to its type. If the number of ranks is no power of two, all averages are therefore off by one factor (bf16 over 3,
///   6 or 12 ranks: +0.2 %).
///
/// Order: channels of one device share its processors. Therefore all ranks enqueue the operations of all channels in
/// one order; a program with one enqueuing thread does so. A different order ends by the timeout, with an error that
/// names each rank's call.
/// - NCCL 2.26 and newer: that order suffices under any load, because dtrain turns NCCL's implicit launch order on, in
///   the communicators' configuration from NCCL 2.31 on, before by NCCL_LAUNCH_ORDER_IMPLICIT=1; the user's own value
///   of that variable decides. In that order NCCL makes two threads that launch on one device at once an error, unless
///   NCCL_LAUNCH_RACE_FATAL=0: then no order between them is kept. Ranks that are threads of one process need a device
///   each: NCCL would order the operations of both ranks on it, so that the ranks would wait for each other. Opening
///   such a channel throws.
/// - Before 2.26: each operation waits on the device for the one enqueued before it on any channel. The program orders
///   captured graphs.
///
/// Close: NCCL destroys a communicator once all ranks of the node close their communicators. The first rank to close
/// waits at most ten seconds, then leaves NCCL's call in a thread. If that call still runs at the end of the process,
/// the process ends as by _exit.
/// @ingroup backends
template <NcclOptions options>
struct NcclWith {
  using Communicator = nccl::Communicator;
  using StreamOwner = stream::cuda::CommunicationStream;

  static constexpr bool joins_again = true;

  static constexpr std::string_view name() noexcept { return "Nccl"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::cuda; }
  static constexpr bool reduces(DType dtype) noexcept { return !is_float8(dtype); }
  static constexpr bool averages(DType dtype) noexcept { return nccl::averages(dtype); }

  /// Default number of ranks on a node.
  static int visible_devices() { return cuda::visible_devices(); }

  /// Selects the rank's device, before any other CUDA call; in an elastic job again in each attempt. Blocking: no.
  /// @throws Error (unsupported, usage, cuda)
  static std::shared_ptr<void> pre_join_blocking(const identity::ProcessIdentity& identity,
                                                 std::optional<rendezvous::Secret>& /*secret*/, Deadline /*deadline*/) {
    nccl::prepare_environment();
    cuda::take_device(identity, may_share());
    return nullptr;
  }

  /// See HasRejoinCheck. @throws Error (usage) for NCCL 2.26 and older
  static void require_rejoin() { nccl::require_rejoin(); }

  /// See HasDeviceError.
  static std::optional<Error> device_error(const identity::ProcessIdentity& identity) {
    return cuda::device_error(identity, may_share());
  }

  /// Collective, blocking. See CanOpen. Reports a failure of this rank to context.failure.
  /// @throws Error (unsupported, timeout, protocol, nccl, cuda), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    require_accumulation_by_element(context);
    context.failure->throw_if_failed(context.reporting_rank());
    return reporting_failure(context, [&] {
      cuda::compare_devices_blocking(context, sharing(), deadline);
      return nccl::Communicator::open_blocking(context, options, deadline);
    });
  }

  /// Collective, blocking. See CanDuplicate: ncclCommSplit. The device is that of `open`. @throws as open_blocking
  static Communicator duplicate_blocking(Communicator& open, const ChannelContext& context, Deadline deadline) {
    require_accumulation_by_element(context);
    return open.duplicate_blocking(context, deadline);
  }

 private:
  static void require_accumulation_by_element(const ChannelContext& context) {
    if (context.accumulate != Accumulate::element) {
      throw_error(Errc::unsupported,
                  "opening channel '{}' with accumulate = f32: NCCL adds 16-bit floats up in their own type; leave the "
                  "option out, or reduce f32",
                  {context.name});
    }
  }

  /// Ranks with one CUDA context have one implicit order: rank 1's operation would wait for rank 0's, which waits for
  /// rank 1.
  static cuda::DeviceSharing sharing() {
    if (!may_share()) return cuda::DeviceSharing::none;
    return nccl::has_implicit_launch_order() ? cuda::DeviceSharing::processes : cuda::DeviceSharing::any;
  }

  /// NCCL since 2.30.3 lets ranks share a device if NCCL_MULTI_RANK_GPU_ENABLE is 1; older ones fail with their own
  /// error.
  static bool may_share() {
    const identity::Environment environment = identity::snapshot_environment();
    return cuda::shares_devices(environment) ||
           identity::Variables(environment).text("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  }
};

/// NCCL with its default options.
/// @ingroup backends
using Nccl = NcclWith<NcclOptions{}>;

static_assert(Backend<Nccl>);
static_assert(HasPreJoin<Nccl>);
static_assert(HasRejoinCheck<Nccl> && HasDeviceError<Nccl>);
static_assert(CanDuplicate<Nccl>);
static_assert(CanReduceScatter<Nccl::Communicator> && CanAllGather<Nccl::Communicator>);
static_assert(CanSendRecv<Nccl::Communicator> && CanSplit<Nccl::Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend

#else

namespace DTRAIN_NAMESPACE::backend {

/// Policy's error for it names the macro.
struct Nccl;

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_NCCL
