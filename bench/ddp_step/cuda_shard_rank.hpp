#pragma once
/// @file
/// One rank of steps with AdamW on a GPU: all weights on every rank, and divided among the ranks.

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/ddp_step/cuda_rank.hpp"

namespace bench {

/// Its lines go to the benchmark.
class CudaShardRank {
 public:
  CudaShardRank(dtrain::ProcessGroup<NcclPolicy> group, const std::vector<std::int64_t>& sizes)
      : group_(std::move(group)),
        whole_model_(sizes),
        whole_(whole_model_, group_),
        sharded_model_(sizes),
        sharded_(sharded_model_, group_) {}

  /// The first sample of each is a warm-up, and the very first steps decide how the buckets are planned.
  void measure(int samples) {
    tell_phase_on_rank_0(group_, "the first steps with AdamW");
    whole_model_.fill_blocking([](std::size_t) { return 1.0F; });
    sharded_model_.fill_blocking([](std::size_t) { return 1.0F; });
    for (auto [model, ddp] : {std::pair(&whole_model_, &whole_), std::pair(&sharded_model_, &sharded_)}) {
      announce(*model, ddp->begin());
    }
    synchronize(compute_);
    optimizer_.emplace(sharded_, rule_);
    allocate_whole_state();
    sharded_step();
    synchronize(compute_);
    check_first_update();
    for (int sample = 0; sample <= samples; ++sample) {
      tell_phase_on_rank_0(group_, "sample " + std::to_string(sample) + " with AdamW");
      for (const bool whole_first : {sample % 2 == 0, sample % 2 != 0}) {
        if (whole_first) {
          time_steps(
              group_, "whole", "host_whole", sample, [this] { whole_step(); }, [this] { synchronize(compute_); });
        } else {
          time_steps(
              group_, "sharded", "host_sharded", sample, [this] { sharded_step(); }, [this] { synchronize(compute_); });
        }
      }
    }
    tell_fact("buckets", static_cast<double>(sharded_.statistics().buckets));
    group_.barrier();
  }

 private:
  using Ddp = dtrain::DistributedDataParallel<CudaModel, NcclPolicy>;

  void announce(const CudaModel& model, dtrain::Step step) {
    model.announce(step, compute_.ref().handle());
    step.finish();
  }

  void sharded_step() { announce(sharded_model_, sharded_.begin(*optimizer_)); }

  /// One kernel for all weights, which lie as their gradients do.
  void whole_step() {
    announce(whole_model_, whole_.begin());
    const std::array<dtrain::BufferView, 2> states{view(2), view(3)};
    dtrain::ddp::enqueue_rule(rule_, view(1), view(0), states, {.step = ++updates_}, compute_.ref());
  }

  /// Array 0 are the gradients, 1 the weights, 2 and 3 the state.
  dtrain::BufferView view(std::size_t array) const {
    const dtrain::Device device{dtrain::DeviceKind::cuda, state_.device()};
    std::byte* const data = array == 0 ? gradients_ : state_.data() + (array - 1) * elements_ * sizeof(float);
    return {data, elements_, dtrain::DType::f32, device};
  }

  void allocate_whole_state() {
    std::byte* end = nullptr;
    for (const dtrain::Parameter& each : whole_model_.parameters()) {
      gradients_ = gradients_ == nullptr ? each.gradient.data : std::min(gradients_, each.gradient.data);
      end = std::max(end, each.gradient.data + each.gradient.bytes());
    }
    elements_ = static_cast<std::size_t>(end - gradients_) / sizeof(float);
    state_ = dtrain::stream::cuda::DeviceBuffer(3 * elements_ * sizeof(float));
    dtrain::stream::cuda::check(cudaMemset(state_.data(), 0, state_.bytes()), "cudaMemset");
  }

  /// AdamW's first update of a weight that is 0 is the rate, whatever the gradient is.
  void check_first_update() {
    for (const dtrain::Parameter& each : sharded_model_.parameters()) {
      std::vector<float> host(each.value.bytes() / sizeof(float));
      dtrain::stream::cuda::check(cudaMemcpy(host.data(), each.value.data, each.value.bytes(), cudaMemcpyDeviceToHost),
                                  "cudaMemcpy");
      const float wanted = -rule_.rate;
      if (std::any_of(host.begin(), host.end(),
                      [wanted](float v) { return !(v > 1.001F * wanted && v < 0.999F * wanted); })) {
        throw dtrain::Error(dtrain::Errc::protocol, "a weight is wrong after the first update");
      }
    }
  }

  dtrain::ProcessGroup<NcclPolicy> group_;
  dtrain::optimizers::AdamW rule_{.rate = 1e-3F};
  dtrain::stream::cuda::Stream compute_;
  CudaModel whole_model_;
  Ddp whole_;
  CudaModel sharded_model_;
  Ddp sharded_;
  std::optional<Ddp::Sharded<dtrain::optimizers::AdamW>> optimizer_;
  std::byte* gradients_ = nullptr;  ///< of whole_model_, all of them with what lies between
  std::size_t elements_ = 0;
  dtrain::stream::cuda::DeviceBuffer state_;
  std::uint64_t updates_ = 0;
};

}  // namespace bench
