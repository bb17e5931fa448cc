/// @file
/// The functions of the CUDA driver that dtrain calls, found as the runtime finds them.

#include <cuda.h>

#include "api.hpp"
#include "copy.hpp"
#include "emulation.hpp"
#include "ptx.hpp"
#include "stream.hpp"

using namespace emulation;

namespace {

std::atomic<int> launches{0};

bool is_met(std::uint32_t seen, std::uint32_t value, unsigned int flags) {
  switch (flags) {
    case CU_STREAM_WAIT_VALUE_GEQ: return static_cast<std::int32_t>(seen - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return seen == value;
    case CU_STREAM_WAIT_VALUE_AND: return (seen & value) != 0;
    default: return ~(seen | value) != 0;
  }
}

/// Null where the address is not the device's to use. Host memory must be pinned.
std::uint32_t* word_at(CUdeviceptr address) {
  const End end = end_of(reinterpret_cast<const void*>(address), sizeof(std::uint32_t));
  return end.kind == End::Kind::pageable || address % 4 != 0 ? nullptr : static_cast<std::uint32_t*>(end.address);
}

CUresult CUDAAPI wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
  const RuntimeScope scope;
  const int refused = admitted("cuStreamWaitValue32");
  if (refused != 0) return static_cast<CUresult>(refused);
  if (!has_stream_memory_operations()) return CUDA_ERROR_NOT_SUPPORTED;
  std::uint32_t* const word = word_at(address);
  if (stream_of(stream) == nullptr || word == nullptr || flags > CU_STREAM_WAIT_VALUE_NOR)
    return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream)->submit([word, value, flags] {
    return [word, value, flags] {
      while (!is_met(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags)) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
      }
    };
  });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int) {
  const RuntimeScope scope;
  const int refused = admitted("cuStreamWriteValue32");
  if (refused != 0) return static_cast<CUresult>(refused);
  if (!has_stream_memory_operations()) return CUDA_ERROR_NOT_SUPPORTED;
  std::uint32_t* const word = word_at(address);
  if (stream_of(stream) == nullptr || word == nullptr) return CUDA_ERROR_INVALID_VALUE;
  stream_of(stream)->submit(
      [word, value] { return [word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); }; });
  return CUDA_SUCCESS;
}

CUresult CUDAAPI primary_context_state(CUdevice device, unsigned int* flags, int* active) {
  const int refused = admitted("cuDevicePrimaryCtxGetState");
  if (refused != 0) return static_cast<CUresult>(refused);
  if (device < 0 || device >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = has_context(device) ? 1 : 0;
  return CUDA_SUCCESS;
}

// A library and its kernel are one and the same; they stay for ever, as dtrain leaves them to the process's end.
CUresult CUDAAPI load_library(CUlibrary* library, const void* text, CUjit_option*, void**, unsigned int,
                              CUlibraryOption*, void**, unsigned int) {
  const int refused = admitted("cuLibraryLoadData");
  if (refused != 0) return static_cast<CUresult>(refused);
  count_device_wait();
  auto kernel = std::make_unique<PtxKernel>(static_cast<const char*>(text));
  if (!kernel->is_valid()) {
    std::fprintf(stderr, "emulated driver: invalid PTX: %s\n", kernel->error().c_str());
    return CUDA_ERROR_INVALID_PTX;
  }
  static auto& all =
      *new std::vector<std::unique_ptr<PtxKernel>>;  // never destroyed: streams may run them until the end
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  *library = reinterpret_cast<CUlibrary>(kernel.get());
  all.push_back(std::move(kernel));
  return CUDA_SUCCESS;
}

CUresult CUDAAPI get_kernel(CUkernel* kernel, CUlibrary library, const char* name) {
  const int refused = admitted("cuLibraryGetKernel");
  if (refused != 0) return static_cast<CUresult>(refused);
  if (reinterpret_cast<const PtxKernel*>(library)->name() != name) return CUDA_ERROR_NOT_FOUND;
  *kernel = reinterpret_cast<CUkernel>(library);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI launch_kernel(CUfunction function, unsigned int blocks, unsigned int blocks_y, unsigned int blocks_z,
                               unsigned int threads, unsigned int threads_y, unsigned int threads_z, unsigned int,
                               CUstream stream, void** arguments, void**) {
  const RuntimeScope scope;
  const int refused = admitted("cuLaunchKernel");
  if (refused != 0) return static_cast<CUresult>(refused);
  Stream* const where = stream_of(stream);
  if (where == nullptr || where->device() != current_device()) return CUDA_ERROR_INVALID_HANDLE;
  if (blocks == 0 || blocks_y != 1 || blocks_z != 1 || threads == 0 || threads > 1024 || threads_y != 1 ||
      threads_z != 1) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto* const kernel = reinterpret_cast<const PtxKernel*>(function);
  if (kernel->is_first_launch()) count_device_wait();
  launches.fetch_add(1, std::memory_order_relaxed);
  where->submit([kernel, blocks, threads, parameters = kernel->packed(arguments)] {
    return [kernel, blocks, threads, parameters] { kernel->run(blocks, threads, parameters); };
  });
  return CUDA_SUCCESS;
}

}  // namespace

int emulation::kernel_launches() {
  return launches.load(std::memory_order_relaxed);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return call("cudaGetDriverEntryPointByVersion", [&] {
    *function = nullptr;
    if (std::strcmp(symbol, "cuStreamWaitValue32") == 0) *function = reinterpret_cast<void*>(&wait_value);
    if (std::strcmp(symbol, "cuStreamWriteValue32") == 0) *function = reinterpret_cast<void*>(&write_value);
    if (std::strcmp(symbol, "cuDevicePrimaryCtxGetState") == 0) {
      *function = reinterpret_cast<void*>(&primary_context_state);
    }
    if (std::strcmp(symbol, "cuLibraryLoadData") == 0) *function = reinterpret_cast<void*>(&load_library);
    if (std::strcmp(symbol, "cuLibraryGetKernel") == 0) *function = reinterpret_cast<void*>(&get_kernel);
    if (std::strcmp(symbol, "cuLaunchKernel") == 0) *function = reinterpret_cast<void*>(&launch_kernel);
    const bool found = *function != nullptr;
    if (result != nullptr) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return found || result != nullptr ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}
