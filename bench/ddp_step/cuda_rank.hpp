#pragma once
/// @file
/// One rank of the steps on a GPU.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/all_reduce/protocol.hpp"
#include "bench/cuda/model.hpp"
#include "bench/ddp_step/bare_collectives.hpp"
#include "bench/intervals.hpp"
#include "bench/phase.hpp"
#include "dtrain/backend/nccl.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

using NcclPolicy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Nccl>;

/// Steps of a timed interval: the host may run ahead of the device, as it does in a training.
inline constexpr int steps_together = 10;

inline void tell_phase_on_rank_0(const dtrain::ProcessGroup<NcclPolicy>& group, const std::string& phase) {
  if (group.rank() == 0) {
    tell_phase(phase);
  }
}

/// Collective. @param kind of the interval of many steps  @param host of what the host spends on a single one, while
/// the device has nothing else to do: with many the host would wait where the device's queue is full
/// @param sample 0: nothing is told
template <class Run, class Wait>
void time_steps(const dtrain::ProcessGroup<NcclPolicy>& group, const char* kind, const char* host, int sample, Run run,
                Wait wait) {
  group.barrier();
  const std::int64_t begin = now_nanoseconds();
  for (int i = 0; i < steps_together; ++i) {
    run();
  }
  wait();
  const std::int64_t end = now_nanoseconds();
  group.barrier();
  const std::int64_t single = now_nanoseconds();
  run();
  const std::int64_t enqueued = now_nanoseconds();
  wait();
  if (sample > 0) {
    tell_interval(kind, sample, {begin, end});
    tell_fact(host, static_cast<double>(enqueued - single) * 1e-9);
  }
}

inline void synchronize(const dtrain::stream::cuda::Stream& stream) {
  dtrain::stream::cuda::check(cudaStreamSynchronize(stream.ref().native()), "cudaStreamSynchronize");
}

/// Its lines go to the benchmark.
class CudaStepRank {
 public:
  CudaStepRank(dtrain::ProcessGroup<NcclPolicy> group, const std::vector<std::int64_t>& sizes)
      : group_(std::move(group)), model_(sizes), ddp_(model_, group_) {}

  /// The first sample of each is a warm-up, and the very first step decides how the buckets are planned.
  void measure(int samples) {
    doing("the first step");
    model_.fill_blocking([](std::size_t) { return 0.0F; });
    step();
    synchronize();
    doing("a communicator of NCCL alone");
    bare_.emplace(group_.store(), group_.rank(), group_.world_size(), ddp_.plan());
    for (int sample = 0; sample <= samples; ++sample) {
      const std::string name = "sample " + std::to_string(sample);
      doing(name + " is filled");
      const float rank = static_cast<float>(group_.rank());
      model_.fill_blocking([&](std::size_t i) { return value(sample, i, rank); });
      bare_->fill_blocking(value(sample, 0, rank));
      for (const bool step_first : {sample % 2 == 0, sample % 2 != 0}) {
        doing(name + (step_first ? ": steps" : ": NCCL alone"));
        if (step_first) {
          time_steps(
              group_, "step", "host_step", sample, [this] { step(); }, [this] { synchronize(); });
        } else {
          time_steps(
              group_, "bare", "host_bare", sample, [this] { bare_->reduce(); }, [this] { bare_->synchronize(); });
        }
      }
      doing(name + " is checked");
      const float mean_rank = static_cast<float>(group_.world_size() - 1) / 2;
      model_.check_blocking([&](std::size_t i) { return value(sample, i, mean_rank); });
      bare_->check_blocking(value(sample, 0, mean_rank));
    }
    doing("the end");
    tell_fact("buckets", static_cast<double>(ddp_.statistics().buckets));
    group_.barrier();
    bare_.reset();
  }

 private:
  void doing(const std::string& phase) const { tell_phase_on_rank_0(group_, phase); }

  void step() {
    dtrain::Step step = ddp_.begin();
    model_.announce(step, compute_.ref().handle());
    step.finish();
  }

  void synchronize() { bench::synchronize(compute_); }

  /// Stays what it is when it is averaged once more.
  static float value(int sample, std::size_t gradient, float rank) noexcept {
    return rank + static_cast<float>(sample % 5) + static_cast<float>(gradient % 7);
  }

  dtrain::ProcessGroup<NcclPolicy> group_;
  CudaModel model_;
  dtrain::stream::cuda::Stream compute_;
  dtrain::DistributedDataParallel<CudaModel, NcclPolicy> ddp_;
  std::optional<BareCollectives> bare_;
};

}  // namespace bench
