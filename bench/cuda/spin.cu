// A kernel that looks at the GPU's clock until the time is over, in one thread: the other processors stay free.

#include "bench/cuda/spin.hpp"

namespace bench {
namespace {

__device__ unsigned long long now_nanoseconds() {
  unsigned long long now = 0;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void spin(unsigned long long nanoseconds) {
  const unsigned long long begin = now_nanoseconds();
  while (now_nanoseconds() - begin < nanoseconds) {
  }
}

}  // namespace

cudaError_t enqueue_spin(cudaStream_t stream, std::chrono::nanoseconds time) {
  spin<<<1, 1, 0, stream>>>(static_cast<unsigned long long>(time.count()));
  return cudaGetLastError();
}

}  // namespace bench
