#pragma once
/// @file
/// A step's collectives by NCCL alone, without dtrain: what the step is compared with.

#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "dtrain/backend/nccl.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// Averages the same buckets, with a communicator of its own, in memory of the kind that dtrain's arenas have.
class BareCollectives {
 public:
  /// Collective, blocking: the benchmark's deadline ends it. @throws Error (nccl)
  BareCollectives(const dtrain::rendezvous::Store& store, int rank, int ranks, const dtrain::ddp::BucketPlan& plan)
      : plan_(plan) {
    ncclUniqueId id{};
    if (rank == 0) {
      check(ncclGetUniqueId(&id), "ncclGetUniqueId");
      store.set("bench/nccl", std::string(id.internal, sizeof id.internal)).wait();
    } else {
      const std::string text = store.get("bench/nccl").wait();
      std::memcpy(id.internal, text.data(), std::min(text.size(), sizeof id.internal));
    }
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    check(ncclCommInitRankConfig(&communicator_, ranks, id, rank, &config), "ncclCommInitRankConfig");
    check(dtrain::backend::nccl::allocate(&memory_, plan_.arena_bytes), "ncclMemAlloc");
    check(dtrain::backend::nccl::register_memory(communicator_, memory_, plan_.arena_bytes, false, registration_),
          "ncclCommRegister");
  }
  BareCollectives(const BareCollectives&) = delete;
  BareCollectives& operator=(const BareCollectives&) = delete;
  ~BareCollectives() {
    if (communicator_ != nullptr) {
      static_cast<void>(dtrain::backend::nccl::deregister_memory(communicator_, registration_));
      static_cast<void>(ncclCommDestroy(communicator_));
    }
    if (memory_ != nullptr) {
      static_cast<void>(dtrain::backend::nccl::release(memory_));
    }
  }

  /// Enqueued. @throws Error (nccl)
  void reduce() {
    for (const dtrain::ddp::PlannedBucket& bucket : plan_.buckets) {
      std::byte* const begin = static_cast<std::byte*>(memory_) + bucket.offset;
      check(ncclAllReduce(begin, begin, bucket.bytes / sizeof(float), ncclFloat, ncclAvg, communicator_,
                          stream_.ref().native()),
            "ncclAllReduce");
    }
  }

  /// Blocking: until the stream has nothing more to do.
  void synchronize() {
    dtrain::stream::cuda::check(cudaStreamSynchronize(stream_.ref().native()), "cudaStreamSynchronize");
  }

  /// Blocking.
  void fill_blocking(float value) {
    const std::vector<float> host(plan_.arena_bytes / sizeof(float), value);
    dtrain::stream::cuda::check(cudaMemcpy(memory_, host.data(), plan_.arena_bytes, cudaMemcpyHostToDevice),
                                "cudaMemcpy");
    dtrain::stream::cuda::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  /// Blocking. @throws Error (protocol) unless all is `wanted`
  void check_blocking(float wanted) {
    std::vector<float> host(plan_.arena_bytes / sizeof(float));
    dtrain::stream::cuda::check(cudaMemcpy(host.data(), memory_, plan_.arena_bytes, cudaMemcpyDeviceToHost),
                                "cudaMemcpy");
    for (const float value : host) {
      if (!(value > wanted - 1e-4F && value < wanted + 1e-4F)) {
        throw dtrain::Error(dtrain::Errc::protocol, "what NCCL alone reduced is wrong");
      }
    }
  }

 private:
  static void check(ncclResult_t code, const char* call) {
    if (code != ncclSuccess) {
      throw dtrain::Error(std::error_code(static_cast<int>(code), dtrain::backend::nccl::nccl_category()),
                          std::string(call) + ": " + dtrain::backend::nccl::name_of(code));
    }
  }

  const dtrain::ddp::BucketPlan plan_;
  dtrain::stream::cuda::Stream stream_{dtrain::stream::cuda::Priority::high};
  ncclComm_t communicator_ = nullptr;
  void* memory_ = nullptr;
  dtrain::backend::nccl::MemoryRegistration registration_;
};

}  // namespace bench
