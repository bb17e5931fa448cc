#pragma once
/// @file
/// BatchSampler: a DistributedSampler's batches, as a sampler of LibTorch's DataLoader.

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <dtrain/dtrain.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace DTRAIN_NAMESPACE::libtorch {

namespace detail {

using NextBatch = decltype(std::declval<torch::data::samplers::Sampler<>&>().next(0));

template <template <class> class Optional, class Batch>
Optional<std::size_t> with_size(const Optional<Batch>&);

}  // namespace detail

/// This rank's batches of a DistributedSampler, in an epoch that the program sets:
///
///   dtrain::libtorch::BatchSampler batches(sampler);
///   auto loader = torch::data::make_data_loader(dataset, batches, batches.batch_size());
///   for (std::size_t epoch = 0; epoch < epochs; ++epoch) {
///     batches.set_epoch(epoch);
///     for (auto& batch : *loader) ...
///   }
///
/// Copies share the epoch and the position in it, so that set_epoch reaches the loader's copy: make a BatchSampler for
/// each loader. Threads: as a sampler of LibTorch's; set_epoch is called while no iterator of the loader exists.
/// @ingroup libtorch
class BatchSampler : public torch::data::samplers::Sampler<> {
  using Size = decltype(detail::with_size(std::declval<detail::NextBatch>()));

 public:
  explicit BatchSampler(DistributedSampler sampler) : shared_(std::make_shared<Shared>(std::move(sampler))) {}

  /// Samples of this rank in a step, for the loader's options. The last batch of an epoch may be smaller.
  std::size_t batch_size() const noexcept {
    const SamplerOptions& options = shared_->sampler.options();
    const auto ranks = static_cast<std::size_t>(options.world_size);
    return (std::min(options.global_batch, options.dataset_size) - 1) / ranks + 1;
  }

  /// The next iteration of the loader is over this epoch, from batch `first_step` on. @throws Error (invalid_argument)
  /// for a step beyond the epoch
  void set_epoch(std::uint64_t epoch, std::size_t first_step = 0) {
    if (const std::size_t steps = shared_->sampler.steps_per_epoch(); first_step > steps) {
      throw Error(Errc::invalid_argument, "an epoch was to begin with step " + std::to_string(first_step) + " of " +
                                              std::to_string(steps) + "; give a step of the epoch");
    }
    shared_->epoch = epoch;
    shared_->first_step = first_step;
  }

  void reset(Size = {}) override {
    shared_->batches.emplace(shared_->sampler.batches(shared_->epoch));
    shared_->next = shared_->first_step;
  }

  /// @throws Error (invalid_argument) unless `wanted` is batch_size()
  detail::NextBatch next(std::size_t wanted) override {
    if (wanted != batch_size()) {
      throw Error(Errc::invalid_argument, "a DataLoader asks for batches of " + std::to_string(wanted) +
                                              " samples, and this rank's batches have " + std::to_string(batch_size()) +
                                              ": give make_data_loader batches.batch_size()");
    }
    if (!shared_->batches) reset();
    if (shared_->next >= shared_->batches->size()) return {};
    const auto batch = (*shared_->batches)[shared_->next++];
    return std::vector<std::size_t>(batch.begin(), batch.end());
  }

  /// For torch::save and torch::load. @throws Error (unsupported): checkpoints have a SamplerPosition in its place
  void save(torch::serialize::OutputArchive&) const override { refuse_archive("saved"); }
  void load(torch::serialize::InputArchive&) override { refuse_archive("loaded"); }

 private:
  [[noreturn]] static void refuse_archive(const std::string& what) {
    throw Error(Errc::unsupported, "a BatchSampler was to be " + what +
                                       " by LibTorch, and does not know how far the program is; give save_checkpoint "
                                       "and load_checkpoint a SamplerPosition");
  }

  struct Shared {
    explicit Shared(DistributedSampler from) : sampler(std::move(from)) {}
    DistributedSampler sampler;
    std::uint64_t epoch = 0;
    std::size_t first_step = 0;
    std::optional<ddp::SampleBatches> batches{};
    std::size_t next = 0;
  };
  std::shared_ptr<Shared> shared_;
};

}  // namespace DTRAIN_NAMESPACE::libtorch
