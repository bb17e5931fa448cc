#pragma once
/// @file
/// The files of a made-up machine, below a folder: CPUs, NUMA nodes, GPUs, and any other.

#include <filesystem>
#include <fstream>
#include <string>

#include "dtrain/core/process/system_files.hpp"
#include "support/temporary_directory.hpp"

namespace support {

/// A machine in a folder.
class Machine {
 public:
  /// @param node -1: the system does not say
  void has_gpu(const std::string& address, int node, const std::string& cpus, const std::string& model = "NVIDIA H100",
               const std::string& uuid = "") const {
    write("/proc/driver/nvidia/gpus/" + address + "/information",
          "Model: \t\t " + model + "\nIRQ:   \t\t 17\nGPU UUID: \t " + uuid + "\nDevice Minor: \t 0");
    write("/sys/bus/pci/devices/" + address + "/numa_node", std::to_string(node));
    write("/sys/bus/pci/devices/" + address + "/local_cpulist", cpus);
  }
  void has_node(int node, const std::string& cpus) const {
    write("/sys/devices/system/node/node" + std::to_string(node) + "/cpulist", cpus);
  }
  /// CPU i and CPU i + cores are one core's.
  void has_hyper_threads(int cores) const {
    for (int cpu = 0; cpu < 2 * cores; ++cpu) {
      const int core = cpu % cores;
      write("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
            std::to_string(core) + "," + std::to_string(core + cores));
    }
  }
  dtrain::SystemFiles files() const { return dtrain::SystemFiles(folder_.path); }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_.path + path).parent_path());
    std::ofstream(folder_.path + path, std::ios::binary) << text << "\n";
  }

 private:
  TemporaryDirectory folder_;
};

}  // namespace support
