#pragma once
/// @file
/// Device selection of GPU backends: a rank takes its CUDA device before the ranks join; a node's ranks compare devices
/// when the first channel opens.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/device_choice.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"

namespace DTRAIN_NAMESPACE::backend::cuda {

/// Which ranks may compute on one device.
enum class DeviceSharing : std::uint8_t {
  none,       ///< each device belongs to one rank
  processes,  ///< ranks of different processes: those of one wait for each other in NCCL's implicit launch order
  any,
};

/// @param allowed by the user
constexpr DeviceSharing sharing(bool allowed) noexcept {
  return allowed ? DeviceSharing::any : DeviceSharing::none;
}

/// DTRAIN_SHARE_DEVICES: whether several ranks may compute on one device. @throws Error (usage) unless it is 0 or 1
inline bool shares_devices(const identity::Environment& environment = identity::snapshot_environment()) {
  const std::string_view value = identity::Variables(environment).text("DTRAIN_SHARE_DEVICES").value_or("0");
  if (value != "0" && value != "1") {
    throw_error(Errc::usage, "{} is neither 0 nor 1; 1 lets ranks share a device",
                {identity::quoted("DTRAIN_SHARE_DEVICES", value)});
  }
  return value == "1";
}

/// Number of devices that this process sees; 0 without a driver. @throws Error (cuda) for other failures
inline int visible_devices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaErrorNoDevice || code == cudaErrorInsufficientDriver) {
    static_cast<void>(stream::cuda::quiet(code));
    return 0;
  }
  stream::cuda::check(code, "cudaGetDeviceCount");
  return count;
}

/// Makes the rank's device current in the calling thread: see choose_device. Precedes all other CUDA calls.
/// @param may_share whether the backend supports several ranks on one device, and the user allows it
/// @throws Error (unsupported: no device for this rank; usage, cuda)
inline void take_device(const identity::ProcessIdentity& identity, bool may_share) {
  const DeviceChoice choice =
      choose_device({identity.local_rank, identity.local_world_size, visible_devices(), may_share});
  if (!choice.refusal.empty()) {
    throw Error(Errc::unsupported, choice.refusal).with_rank(identity.rank);
  }
  stream::cuda::check(cudaSetDevice(choice.index), "cudaSetDevice");
}

/// CUDA's error, if it fails every later call of this process on the device that take_device() selects, as after an
/// illegal address or an uncorrectable error of the memory; nullopt: the device works. Blocking: no.
inline std::optional<Error> device_error(const identity::ProcessIdentity& identity, bool may_share) {
  using namespace stream::cuda;
  try {
    const DeviceChoice choice =
        choose_device({identity.local_rank, identity.local_world_size, visible_devices(), may_share});
    if (!choice.refusal.empty()) return std::nullopt;  // take_device() says so
    const DeviceGuard guard(choice.index);
    const cudaError_t code = cudaStreamQuery(cudaStreamLegacy);
    const bool is_captured = code >= cudaErrorStreamCaptureUnsupported && code <= cudaErrorStreamCaptureWrongThread;
    if (quiet(code) || code == cudaErrorNotReady || is_captured) return std::nullopt;
    throw cuda_error(code, "cudaStreamQuery");
  } catch (const Error& error) {
    return Error(error.code(), format_text("every call of CUDA fails on the device of local rank {} ({})",
                                           {identity.local_rank.value_or(0), error.what()}));
  }
}

/// A device's name, unique on the host and equal in all processes: its UUID, or its PCI bus ID if it has none.
inline std::string device_name(int device) {
  cudaDeviceProp properties{};
  stream::cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  const auto uuid = std::as_bytes(std::span(properties.uuid.bytes));
  if (std::any_of(uuid.begin(), uuid.end(), [](std::byte byte) { return byte != std::byte{}; })) {
    return "GPU-" + hex(uuid);
  }
  std::array<char, 32> bus_id{};
  stream::cuda::check(cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device),
                      "cudaDeviceGetPCIBusId");
  return bus_id.data();
}

namespace detail {

/// A rank's device, as the rank publishes it for the other ranks of its node.
struct DeviceAssignment {
  DeviceSharing sharing = DeviceSharing::none;
  std::string device;
  int rank = 0;  ///< rank in the job
  std::string host;
  std::string process;  ///< the same for the ranks of one process
};

inline void fields(Serializer& of, DeviceAssignment& assignment) {
  of.choice(assignment.sharing, DeviceSharing::none, DeviceSharing::any);
  of.text(assignment.device, 128);
  of.number(assignment.rank);
  of.text(assignment.host, 256);
  of.text(assignment.process, 64);
}

/// Random, because containers of a host may have the same process ids.
inline const std::string& process_name() {
  static const std::string& name = *new std::string(random_job_id());  // threads may outlive main()
  return name;
}

/// The error for the first device that two ranks use and may not; empty if there is none.
inline std::string first_conflict(std::vector<DeviceAssignment> assignments) {
  const auto first_pair = [&](auto is_less, auto collide) {
    std::stable_sort(assignments.begin(), assignments.end(), is_less);
    return std::adjacent_find(assignments.begin(), assignments.end(), collide);
  };
  const auto both = first_pair([](const DeviceAssignment& a, const DeviceAssignment& b) { return a.device < b.device; },
                               [](const DeviceAssignment& a, const DeviceAssignment& b) {
                                 return a.device == b.device && std::min(a.sharing, b.sharing) == DeviceSharing::none;
                               });
  if (both != assignments.end()) {
    return format_text(
        "ranks {} and {} on host {} both compute on device {}; give each rank its own (LOCAL_RANK, "
        "CUDA_VISIBLE_DEVICES), or let them share one by DTRAIN_SHARE_DEVICES=1 (with NCCL also "
        "NCCL_MULTI_RANK_GPU_ENABLE=1, which needs NCCL 2.30.3)",
        {both->rank, (both + 1)->rank, both->host, both->device});
  }
  const auto threads = first_pair(
      [](const DeviceAssignment& a, const DeviceAssignment& b) {
        return std::tie(a.device, a.process) < std::tie(b.device, b.process);
      },
      [](const DeviceAssignment& a, const DeviceAssignment& b) {
        return a.device == b.device && a.process == b.process && std::min(a.sharing, b.sharing) != DeviceSharing::any;
      });
  if (threads == assignments.end()) {
    return {};
  }
  return format_text(
      "ranks {} and {} on host {} are threads of one process and both compute on device {}, where each would wait for "
      "the other in NCCL's implicit launch order; make each rank a process, or set NCCL_LAUNCH_ORDER_IMPLICIT=0 for "
      "the process",
      {threads->rank, (threads + 1)->rank, threads->host, threads->device});
}

}  // namespace detail

/// Devices are compared when a job's first channel opens.
inline constexpr std::string_view first_channel = "group";

/// Collective over the ranks of a node, blocking. Throws if two ranks use one device and may not share it. Every
/// rank compares the same list, and so throws the same. Does nothing unless the channel is the job's first.
/// @param sharing what this rank allows; two ranks share a device if both allow it @throws Error (unsupported), naming
/// both ranks, on every rank of the node; (timeout, protocol, cuda), JobFailed
inline void compare_devices_blocking(const ChannelContext& context, DeviceSharing sharing, Deadline deadline) {
  const rendezvous::Membership& members = context.members;
  if (context.name != first_channel || members.local_world_size == 1) {
    return;
  }
  const auto own = [&] {
    return detail::DeviceAssignment{sharing, device_name(stream::cuda::current_device()), members.rank_in_job(),
                                    members.host, detail::process_name()};
  };
  const auto name = [](int local_rank) { return "local rank " + std::to_string(local_rank); };
  const StoreRank self{context.store,
                       members.local_rank,
                       members.local_world_size,
                       members.rank_in_job(),
                       deadline,
                       "comparing the devices of the ranks on host " + members.host,
                       name};
  const std::string conflict = detail::first_conflict(
      store_all_gather(self, "devices/" + std::to_string(members.node_rank), own, "a rank's device"));
  if (!conflict.empty()) {
    throw_error(Errc::unsupported, "{}", {conflict});
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::cuda

#endif  // DTRAIN_WITH_CUDA
