#pragma once
/// @file
/// backend::Nccl: ranks with a GPU each exchange data over NCCL.

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/cuda/devices.hpp"
#include "dtrain/backend/nccl/communicator.hpp"
#include "dtrain/backend/nccl/environment_setup.hpp"
#include "dtrain/backend/nccl/nccl_options.hpp"
#include "dtrain/backend/setup/open_and_report.hpp"
#include "dtrain/backend/setup/pre_join.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/identity/environment/environment_snapshot.hpp"
#include "dtrain/identity/environment/variables.hpp"
#include "dtrain/stream/cuda/communication_stream.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend {

/// NCCL with options of its own: `NcclWith<NcclOptions{.max_ctas = 8}>`; the communication stream has high priority.
/// Every call to NCCL returns at once and ends by a deadline; a rank that fails ends the others. Each channel has a
/// communicator and two threads that watch it. An average is NCCL's own, of floating-point elements; those of 16 and
/// 8 bits are added up in their own precision, and a NaN need not survive min and max. For an average of those of 16
/// bits each element is first multiplied by 1 / ranks, rounded to its type, so that over a number of ranks that is no
/// power of two all averages are off by one factor (bf16 over 3, 6 or 12 ranks +0.2 %). Floats of 8 bits are reduced
/// with NCCL 2.24 and newer on GPUs of compute capability 9.0 and more: sums saturate at the largest finite value, and
/// for an average each element is first multiplied by 1 / ranks, rounded to its type (over 3 ranks 0.344 in f8e4m3,
/// 0.312 in f8e5m2), which is refused beyond 64 ranks in f8e4m3, 16384 in f8e5m2.
///
/// Order: on a device NCCL's channels share the processors, hence operations of all channels of a job are enqueued in
/// one order on all ranks, which a program does that runs one thread. From NCCL 2.26 on that suffices under any load,
/// because NCCL_LAUNCH_ORDER_IMPLICIT is set to 1 where the user has not set it; NCCL_LAUNCH_RACE_FATAL=1 makes an
/// error of threads that race. Before 2.26 the program makes channels' streams wait for each other. What differs ends
/// by the timeout, with an error that says what each rank called.
///
/// Ends: NCCL ends a communicator once all ranks of the node close theirs. Who closes first waits for ten seconds at
/// most; then NCCL is left behind in a thread, and where it is there still at the end of the process, that ends as by
/// _exit.
template <NcclOptions options>
struct NcclWith {
  using Communicator = nccl::Communicator;
  using StreamOwner = stream::cuda::CommunicationStream;

  static constexpr std::string_view name() noexcept { return "Nccl"; }
  static constexpr bool supports(DeviceKind kind) noexcept { return kind == DeviceKind::cuda; }
  static constexpr bool reduces(DType dtype) noexcept { return nccl::reduces(dtype); }
  static constexpr bool averages(DType dtype) noexcept { return nccl::averages(dtype); }

  /// How many ranks a node takes where nobody says.
  static int visible_devices() { return cuda::visible_devices(); }

  /// Chooses the rank's device, before anything else of CUDA. Blocking: no. @throws Error (unsupported, usage, cuda)
  static PreJoinResult pre_join_blocking(const ProcessInfo& process_info, Deadline /*deadline*/) {
    nccl::prepare_environment();
    cuda::take_device(process_info, may_share());
    return {nullptr, process_info.secret};
  }

  /// Collective, blocking. See CanOpen. What goes wrong on one rank is reported to context.failure.
  /// @throws Error (unsupported, timeout, protocol, nccl, cuda), JobFailed
  static Communicator open_blocking(const ChannelContext& context, Deadline deadline) {
    if (context.accumulate != Accumulate::element) {
      throw Error(Errc::unsupported, "opening channel '" + context.name +
                                         "' with accumulate = f32: NCCL adds 16-bit floats up in their own type; leave "
                                         "the option out, or reduce f32");
    }
    return open_and_report_blocking<Opened>(context, deadline);
  }

 private:
  /// The communicator, opened with the options.
  struct Opened : nccl::Communicator {
    static Opened open_blocking(const ChannelContext& context, Deadline deadline) {
      cuda::compare_devices_blocking(context, may_share(), deadline);
      return {nccl::Communicator::open_blocking(context, options, deadline)};
    }
  };

  /// Since 2.30.3 NCCL lets ranks share a device where this variable says so. Where it does not, its own error follows.
  static bool may_share() {
    const identity::Environment environment = identity::snapshot_environment();
    return cuda::shares_devices(environment) ||
           identity::Variables(environment).text("NCCL_MULTI_RANK_GPU_ENABLE") == "1";
  }
};

using Nccl = NcclWith<NcclOptions{}>;

static_assert(Backend<Nccl>);
static_assert(HasPreJoin<Nccl>);
static_assert(CanReduceScatter<Nccl::Communicator> && CanAllGather<Nccl::Communicator>);
static_assert(CanSendRecv<Nccl::Communicator> && CanSplit<Nccl::Communicator>);

}  // namespace DTRAIN_NAMESPACE::backend

#endif  // DTRAIN_WITH_NCCL
