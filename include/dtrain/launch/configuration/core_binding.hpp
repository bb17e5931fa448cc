#pragma once
/// @file
/// Core binding: the CPUs on which each worker of a node runs (--bind). PerNode calls it before it starts workers.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/cpu_affinity.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/split.hpp"
#include "dtrain/identity/variables.hpp"
#include "dtrain/launch/diagnostics/system_files.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// - `automatic`: as `core` for several workers that compute on the host, if each can have a core; for workers that
///   compute on GPUs see gpu_binding.hpp; else as `none`.
/// - `core`: each worker has separate cores; numbers of cores differ by at most one.
/// - `numa`: each worker has the cores of one NUMA node, or of several if these are more than the workers.
/// - `none`: the system moves workers between all cores.
enum class Binding { automatic, core, numa, none };

namespace detail {

/// The CPUs of `cpus` that are in a list of the kernel's, such as "0-3,8". Source:
/// Documentation/admin-guide/cputopology and bitmap_parselist in Linux.
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

/// Drops an automatic binding that the system refuses to all processes. @param error of cpu_binding_error()
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

}  // namespace DTRAIN_NAMESPACE::launch
