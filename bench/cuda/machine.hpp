#pragma once
/// @file
/// What the CUDA half of a benchmark ran on, for its rows.

#include <cuda_runtime_api.h>

#include <fstream>
#include <string>

#include "bench/result_rows.hpp"
#include "dtrain/dtrain.hpp"
#include "tests/support/loaded_libraries.hpp"

namespace bench {

/// The GPUs of this machine and the versions of what drives them.
struct CudaMachine {
  int devices = 0;
  std::string device{};     ///< "NVIDIA H200"
  std::string versions{};   ///< "driver 580.65.06, CUDA 13.0"
  std::string libraries{};  ///< paths of the CUDA runtime and of NCCL that are loaded

  /// @throws Error (unsupported) where no GPU is visible, or two of a library are loaded; Error (cuda)
  static CudaMachine look() {
    CudaMachine machine;
    machine.devices = dtrain::backend::cuda::visible_devices();
    if (machine.devices == 0) {
      throw dtrain::Error(dtrain::Errc::unsupported,
                          "no CUDA device is visible, hence nothing was measured; is there a driver, and does "
                          "CUDA_VISIBLE_DEVICES leave one?");
    }
    cudaDeviceProp properties{};
    dtrain::stream::cuda::check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    machine.device = properties.name;
    int runtime = 0;
    dtrain::stream::cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
    std::string driver;
    std::ifstream("/sys/module/nvidia/version") >> driver;
    machine.versions = "driver " + (driver.empty() ? "unknown" : driver) + ", CUDA " + std::to_string(runtime / 1000) +
                       "." + std::to_string(runtime % 1000 / 10);
    machine.libraries = support::loaded_library("libcudart.so") + ", " + support::loaded_library("libnccl.so");
    return machine;
  }

  Row& describe(Row& row) const {
    return row.with("device", device).with("versions", versions).with("libraries", libraries);
  }
};

}  // namespace bench
