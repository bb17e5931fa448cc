// A user's program: which of the 60 samples of an epoch two ranks take, all of them once.
#include <dtrain/core/version.hpp>
#include <dtrain/ddp/data/sampler.hpp>

#include <cstddef>
#include <cstdio>
#include <set>
#include <span>
#include <string>

// A component's target switches its part on, and knows where the library's header is.
#if defined(EXPECT_MPI) && !(DTRAIN_WITH_MPI && __has_include(<mpi.h>))
#error "dtrain::mpi is linked, and DTRAIN_WITH_MPI or mpi.h is not there"
#endif
#if defined(EXPECT_GLOO) && !(DTRAIN_WITH_GLOO && __has_include(<gloo/context.h>))
#error "dtrain::gloo is linked, and DTRAIN_WITH_GLOO or gloo/context.h is not there"
#endif
#if defined(EXPECT_CUDA) && !(DTRAIN_WITH_CUDA && __has_include(<cuda_runtime_api.h>))
#error "dtrain::cuda is linked, and DTRAIN_WITH_CUDA or cuda_runtime_api.h is not there"
#endif
#if defined(EXPECT_NCCL) && !(DTRAIN_WITH_NCCL && __has_include(<nccl.h>))
#error "dtrain::nccl is linked, and DTRAIN_WITH_NCCL or nccl.h is not there"
#endif

int main() {
  const std::string version = std::to_string(dtrain::version.major) + "." + std::to_string(dtrain::version.minor) +
                              "." + std::to_string(dtrain::version.patch);
  if (version != EXPECTED_VERSION) {
    std::fprintf(stderr, "the header has version %s, the package %s\n", version.c_str(), EXPECTED_VERSION);
    return 1;
  }
  std::multiset<std::size_t> taken;
  for (const int rank : {0, 1}) {
    const dtrain::DistributedSampler sampler{{.dataset_size = 60, .global_batch = 20, .rank = rank, .world_size = 2}};
    for (const std::span<const std::size_t> batch : sampler.batches(0))
      taken.insert(batch.begin(), batch.end());
  }
  std::set<std::size_t> different(taken.begin(), taken.end());
  return taken.size() == 60 && different.size() == 60 && *different.rbegin() == 59 ? 0 : 1;
}
