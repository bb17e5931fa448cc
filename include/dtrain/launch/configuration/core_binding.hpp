#pragma once
/// @file
/// Core binding (--bind): the CPUs of each of a launcher's workers, by default next to its GPU.

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/cpu_affinity.hpp"
#include "dtrain/core/process/system_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// - `automatic`: as `core` for several workers that compute on the host, if each can have a core; for workers that
///   compute on GPUs see cpus_by_gpu(); else as `none`.
/// - `core`: each worker has separate cores; numbers of cores differ by at most one.
/// - `numa`: each worker has the cores of one NUMA node, or of several if these are more than the workers.
/// - `none`: the system moves workers between all cores.
enum class Binding { automatic, core, numa, none };

namespace detail {

/// The CPUs of `cpus` that are in a list of the kernel's ("0-3,8"). Source: Documentation/admin-guide/cputopology and
/// bitmap_parselist in Linux.
inline Cpus listed(const Cpus& cpus, std::string_view list) {
  Cpus found;
  while (!list.empty()) {
    const std::string_view range = next_entry(list, ',');
    const std::size_t dash = range.find('-');
    const std::optional<int> first = identity::parse_integer(range.substr(0, dash));
    const std::optional<int> last = dash == range.npos ? first : identity::parse_integer(range.substr(dash + 1));
    for (const int cpu : cpus) {
      if (first && last && *first <= cpu && cpu <= *last) {
        found.push_back(cpu);
      }
    }
  }
  return found;
}

/// The CPUs of each NUMA node that has some of `cpus`; all together if the system does not name nodes.
inline std::vector<Cpus> numa_nodes_of(const Cpus& cpus, const SystemFiles& files) {
  std::vector<Cpus> nodes;
  std::size_t count = 0;
  for (const std::string& name : files.names("/sys/devices/system/node")) {
    if (name.rfind("node", 0) == 0) {
      if (Cpus node = listed(cpus, files.line("/sys/devices/system/node/" + name + "/cpulist").value_or(""));
          !node.empty()) {
        count += node.size();
        nodes.insert(std::upper_bound(nodes.begin(), nodes.end(), node), std::move(node));
      }
    }
  }
  return count == cpus.size() ? nodes : std::vector<Cpus>{cpus};
}

/// Cores, each with its logical CPUs (two with hyper-threading), NUMA node by NUMA node.
inline std::vector<Cpus> cores_of(const Cpus& cpus, const SystemFiles& files) {
  std::vector<Cpus> cores;
  for (const Cpus& node : numa_nodes_of(cpus, files)) {
    Cpus left = node;
    while (!left.empty()) {
      const std::string path = format_text("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", {left[0]});
      Cpus core = listed(left, files.line(path).value_or(""));
      if (core.empty() || core.front() != left.front()) {
        core = {left.front()};
      }
      std::erase_if(left, [&core](int cpu) { return std::binary_search(core.begin(), core.end(), cpu); });
      cores.push_back(std::move(core));
    }
  }
  return cores;
}

/// Shares `parts` out in order: worker i gets the parts from i * parts / workers on; at least one, if there are any.
inline std::vector<Cpus> shared_out(const std::vector<Cpus>& parts, int workers) {
  std::vector<Cpus> shares;
  const auto count = static_cast<std::size_t>(workers);
  for (std::size_t worker = 0; worker < count; ++worker) {
    const std::size_t begin = worker * parts.size() / count;
    const std::size_t end = std::max(begin + 1, (worker + 1) * parts.size() / count);
    Cpus& share = shares.emplace_back();
    for (std::size_t part = begin; part < end; ++part) {
      share.insert(share.end(), parts[part].begin(), parts[part].end());
    }
    std::sort(share.begin(), share.end());
  }
  return shares;
}

/// A GPU as NVIDIA's driver lists it in /proc/driver/nvidia/gpus.
struct Gpu {
  std::string address;  ///< the address on the PCI bus: "0000:3b:00.0"
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

/// "auto", "core", "numa" or "none". @throws Error (usage) for anything else
inline Binding binding_from(std::string_view text) {
  if (text == "auto") return Binding::automatic;
  if (text == "core") return Binding::core;
  if (text == "numa") return Binding::numa;
  if (text == "none") return Binding::none;
  throw_error(Errc::usage, "--bind='{}' is none of auto, core, numa and none", {text.substr(0, 64)});
}

/// The CPUs of each worker; empty if workers are not bound.
/// @param cpus those that this process may use: no worker gets another one
/// @throws Error (usage) for `core` with more workers than CPUs
inline std::vector<Cpus> cpus_of_workers(Binding binding, int workers, const Cpus& cpus,
                                         const SystemFiles& files = SystemFiles()) {
  const bool suffice = cpus.size() >= static_cast<std::size_t>(workers);
  if (binding == Binding::core && !suffice) {
    throw_error(Errc::usage,
                "--bind=core gives each worker a core of its own, but {} workers may use {} CPUs; start fewer workers, "
                "or leave --bind out",
                {workers, cpus.size()});
  }
  const bool is_wanted = binding != Binding::automatic || (workers > 1 && suffice);
  if (binding == Binding::none || !is_wanted || cpus.empty()) {
    return {};
  }
  if (binding == Binding::numa) {
    return detail::shared_out(detail::numa_nodes_of(cpus, files), workers);
  }
  std::vector<Cpus> cores = detail::cores_of(cpus, files);
  if (cores.size() < static_cast<std::size_t>(workers)) {  // hyper-threads: one of a core's CPUs each
    std::vector<Cpus> single;
    for (const Cpus& core : cores) {
      for (const int cpu : core) {
        single.push_back({cpu});
      }
    }
    cores = std::move(single);
  }
  return detail::shared_out(cores, workers);
}

/// Drops an automatic binding that the system denies to all processes. @param error of cpu_binding_error()
/// @returns a sentence for the log; empty if the workers can be bound, or are not to be
/// @throws Error (posix) if the user has asked for the binding (--bind=core, --bind=numa)
inline std::string drop_refused_binding(std::vector<Cpus>& cpus, Binding binding, int error) {
  if (cpus.empty() || error == 0) {
    return {};
  }
  if (binding != Binding::automatic) {
    throw_posix(error, "binding workers to CPUs for --bind={} by sched_setaffinity",
                {binding == Binding::core ? "core" : "numa"},
                "let the container's policy (seccomp) allow this system call, or leave --bind out");
  }
  cpus.clear();
  return format_text("workers are not bound to CPUs: sched_setaffinity: {}", {std::generic_category().message(error)});
}

/// "0-3,8": CPUs as the kernel writes them. @pre sorted
inline std::string text_of(const Cpus& cpus) {
  return joined(rendezvous::rank_ranges(cpus, cpus.size()), ",");
}

/// The CPUs of each worker: those of the NUMA node of its GPU. Workers of one NUMA node share its cores out, or have
/// all of them if they are fewer than the workers. Worker i has GPU i, modulo their number (backend::choose_device).
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
