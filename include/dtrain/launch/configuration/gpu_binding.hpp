#pragma once
/// @file
/// GPU binding: computes the CPUs of each worker, next to the NUMA node of its GPU (--bind=auto), without the CUDA
/// runtime; spawn.hpp binds the worker. PerNode calls it.

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/process/cpu_affinity.hpp"
#include "dtrain/core/text/split.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/configuration/core_binding.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"

namespace DTRAIN_NAMESPACE::launch {

namespace detail {

/// A GPU as NVIDIA's driver lists it in /proc/driver/nvidia/gpus.
struct Gpu {
  std::string address;  ///< on the PCI bus: "0000:3b:00.0"
  std::string model;
  std::string uuid;  ///< "GPU-" and hexadecimal digits; empty if the driver does not say
};

/// The value of a line "Name:  value" of the driver's file; empty without the line.
inline std::string driver_value(std::string_view text, std::string_view name) {
  const std::size_t begin = text.find(name);
  if (begin == text.npos) {
    return {};
  }
  std::string_view value = text.substr(begin + name.size());
  value = value.substr(0, value.find('\n'));
  value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
  return std::string(value.substr(0, value.find_last_not_of(" \t\r") + 1));
}

/// This host's GPUs, in the order of their addresses.
inline std::vector<Gpu> gpus_of(const SystemFiles& files) {
  std::vector<Gpu> gpus;
  for (const std::string& address : files.names("/proc/driver/nvidia/gpus")) {
    const std::string text = files.text("/proc/driver/nvidia/gpus/" + address + "/information").value_or("");
    gpus.push_back({address, driver_value(text, "Model:"), driver_value(text, "GPU UUID:")});
  }
  return gpus;
}

/// The GPUs that CUDA shows a worker, in CUDA's order: that of CUDA_VISIBLE_DEVICES, whose entries are indices or the
/// beginnings of UUIDs. Without CUDA_DEVICE_ORDER=PCI_BUS_ID an index counts the fastest GPU first, which is the order
/// of addresses if all GPUs are of one model.
/// @returns empty if the order is unknown, if an entry names no GPU or a part of one (MIG), or under Slurm, whose
/// indices count the job's GPUs alone
inline std::vector<Gpu> visible_gpus(const std::vector<Gpu>& gpus, const identity::Variables& variables) {
  const bool of_one_model =
      std::all_of(gpus.begin(), gpus.end(), [&](const Gpu& gpu) { return gpu.model == gpus[0].model; });
  const bool has_order = of_one_model || variables.text("CUDA_DEVICE_ORDER") == "PCI_BUS_ID";
  if (!has_order || variables.has("SLURM_JOB_ID")) {
    return {};
  }
  std::optional<std::string_view> list = variables.text("CUDA_VISIBLE_DEVICES");
  if (!list) {
    return gpus;
  }
  std::vector<Gpu> visible;
  while (!list->empty()) {
    const std::string_view entry = next_entry(*list, ',');
    const std::optional<int> index = identity::parse_integer(entry);
    const auto found = std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
      return index ? &gpu - gpus.data() == *index : entry.starts_with("GPU-") && gpu.uuid.starts_with(entry);
    });
    if (found == gpus.end()) {
      return {};
    }
    visible.push_back(*found);
  }
  return visible;
}

/// The CPUs of `cpus` next to a GPU; empty if the system names no NUMA node of the GPU, as on most virtual machines.
inline Cpus cpus_near(const Gpu& gpu, const Cpus& cpus, const SystemFiles& files) {
  const std::string device = "/sys/bus/pci/devices/" + gpu.address;
  const std::string node = files.line(device + "/numa_node").value_or("-1");
  return identity::parse_integer(node) ? listed(cpus, files.line(device + "/local_cpulist").value_or("")) : Cpus{};
}

}  // namespace detail

/// The CPUs of each worker: those of the NUMA node of its GPU. Workers of one NUMA node share its cores out, or have
/// all of them if they are fewer than the workers. Worker i has GPU i, modulo their number (identity::choose_device).
/// @param cpus those that this process may use: no worker gets another one
/// @param visible_devices CUDA's count of visible devices, which differs if the system hides some of them, or parts of
/// one
/// @returns empty, which binds no worker, unless the system names the NUMA node of every worker's GPU
/// Source: proc driver files of NVIDIA's Linux driver README; Documentation/ABI/testing/sysfs-bus-pci in Linux.
inline std::vector<Cpus> cpus_by_gpu(int workers, const Cpus& cpus, const identity::Variables& variables,
                                     int (*visible_devices)(), const SystemFiles& files = SystemFiles()) {
  const std::vector<detail::Gpu> gpus = detail::visible_gpus(detail::gpus_of(files), variables);
  if (gpus.empty() || static_cast<std::size_t>(visible_devices()) != gpus.size()) {
    return {};
  }
  const auto count = static_cast<std::size_t>(workers);
  std::map<Cpus, std::vector<std::size_t>> workers_near;
  for (std::size_t worker = 0; worker < count; ++worker) {
    workers_near[detail::cpus_near(gpus[worker % gpus.size()], cpus, files)].push_back(worker);
  }
  if (workers_near.begin()->first.empty()) {
    return {};
  }
  std::vector<Cpus> bound(count);
  for (const auto& [near, together] : workers_near) {
    const std::vector<Cpus> cores = detail::cores_of(near, files);
    const bool suffice = cores.size() >= together.size();
    const std::vector<Cpus> shares =
        detail::shared_out(suffice ? cores : std::vector<Cpus>{near}, static_cast<int>(together.size()));
    for (std::size_t i = 0; i < together.size(); ++i) {
      bound[together[i]] = shares[i];
    }
  }
  return bound;
}

}  // namespace DTRAIN_NAMESPACE::launch
