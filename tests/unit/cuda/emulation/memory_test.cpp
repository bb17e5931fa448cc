#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "unit/cuda/prelude.hpp"

namespace {

/// How a forked child ends that reads, or writes, the byte: 128 + the signal, or 0.
int end_of_child(volatile char* byte, bool writes) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);  // no sanitizer's report
    if (writes)
      *byte = 1;
    else
      static_cast<void>(*byte);
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

struct Reset {
  ~Reset() { emulation::reset(); }
};

}  // namespace

TEST_CASE("the host dies when it reads or writes emulated device memory") {
  void* memory = nullptr;
  EXPECT_SUCCESS(cudaMalloc(&memory, 100));
  CHECK(end_of_child(static_cast<char*>(memory), false) == 128 + SIGSEGV);
  CHECK(end_of_child(static_cast<char*>(memory), true) == 128 + SIGSEGV);
  auto* const shadow = static_cast<char*>(emulation::host_address(memory));
  CHECK(end_of_child(shadow, true) == 0);
  EXPECT_SUCCESS(cudaFree(memory));
}

TEST_CASE("the emulation says whose memory a pointer names") {
  const Reset reset;
  emulation::set_device_count(3);
  EXPECT_SUCCESS(cudaSetDevice(2));
  void* device = nullptr;
  void* pinned = nullptr;
  std::vector<char> host(5000);
  EXPECT_SUCCESS(cudaMalloc(&device, 100));
  EXPECT_SUCCESS(cudaSetDevice(0));
  EXPECT_SUCCESS(cudaHostAlloc(&pinned, 100, cudaHostAllocDefault));
  cudaPointerAttributes attributes{};
  EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, static_cast<char*>(device) + 50));
  CHECK(attributes.type == cudaMemoryTypeDevice);
  CHECK(attributes.device == 2);
  EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, pinned));
  CHECK(attributes.type == cudaMemoryTypeHost);
  EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, host.data()));
  CHECK(attributes.type == cudaMemoryTypeUnregistered);
  EXPECT_SUCCESS(cudaHostRegister(host.data(), host.size(), cudaHostRegisterDefault));
  EXPECT_SUCCESS(cudaPointerGetAttributes(&attributes, host.data() + 4000));
  CHECK(attributes.type == cudaMemoryTypeHost);
  EXPECT_SUCCESS(cudaHostUnregister(host.data()));
  EXPECT_SUCCESS(cudaFree(device));
  EXPECT_SUCCESS(cudaFreeHost(pinned));
}

TEST_CASE("an emulated copy beyond an allocation's end is refused") {
  void* memory = nullptr;
  EXPECT_SUCCESS(cudaMalloc(&memory, 100));
  std::vector<char> host(200);
  CHECK(cudaMemcpy(memory, host.data(), 101, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaMemcpy(static_cast<char*>(memory) + 50, host.data(), 50, cudaMemcpyHostToDevice) == cudaSuccess);
  CHECK(cudaMemcpy(memory, host.data(), 10, cudaMemcpyDeviceToHost) == cudaErrorInvalidMemcpyDirection);
  EXPECT_SUCCESS(cudaFree(memory));
  CHECK(cudaMemcpy(memory, host.data(), 10, cudaMemcpyHostToDevice) == cudaErrorInvalidValue);
  CHECK(cudaFree(memory) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("an emulated allocation fails where a test wants it, and where nothing is left") {
  const Reset reset;
  emulation::fail("cudaMalloc", 2, cudaErrorMemoryAllocation);
  void* first = nullptr;
  void* second = nullptr;
  EXPECT_SUCCESS(cudaMalloc(&first, 10));
  CHECK(cudaMalloc(&second, 10) == cudaErrorMemoryAllocation);
  CHECK(cudaPeekAtLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaErrorMemoryAllocation);
  CHECK(cudaGetLastError() == cudaSuccess);
  CHECK(cudaMalloc(&second, std::size_t{1} << 40) == cudaErrorMemoryAllocation);
  EXPECT_SUCCESS(cudaFree(first));
}

TEST_CASE("the emulation says that it is one") {
  cudaDeviceProp properties{};
  EXPECT_SUCCESS(cudaGetDeviceProperties(&properties, 0));
  CHECK(std::string(properties.name) == "emulated device (dtrain tests; no GPU)");
}
