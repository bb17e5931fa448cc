#pragma once
/// @file
/// DistributedSampler: the samples of a data set that this rank processes, in batches.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/data/sample_batches.hpp"
#include "dtrain/ddp/data/shuffle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Must be the same on all ranks, except for `rank`.
struct SamplerOptions {
  std::size_t dataset_size = 0;  ///< samples
  std::size_t global_batch = 0;  ///< samples of all ranks together in one step
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;  ///< a new order in every epoch; false: 0, 1, 2, ...
};

/// Every epoch has one global order of the data set, which depends only on seed and epoch. It is the same for any
/// number of ranks: step k trains on the same samples on one rank or on eight. Threads: const members concurrently.
class DistributedSampler {
 public:
  /// @throws Error (invalid_argument) for an empty data set or batch, or a rank outside 0..world_size-1.
  explicit DistributedSampler(const SamplerOptions& options);

  /// A sampler for this rank of the group: `DistributedSampler{group, {.dataset_size = n, .global_batch = b}}`. The
  /// options' rank and world_size are ignored.
  template <class Group>
  requires requires(const Group& group) {
    { group.rank() } -> std::same_as<int>;
    { group.world_size() } -> std::same_as<int>;
  }
  DistributedSampler(const Group& group, const SamplerOptions& options)
      : DistributedSampler(for_rank(options, group.rank(), group.world_size())) {}

  /// Batches for training. Step k takes positions [k*B, min((k+1)*B, N)) of the global order (B: global_batch, N:
  /// dataset_size). With n ranks and L samples in such a slice, each rank gets ceil(L/n) of them: at rank, rank+n,
  /// rank+2n, ... modulo L. So all ranks have the same number of steps, and of samples in each step.
  /// Example, L = 4 and n = 3: rank 0 gets positions 0 and 3 of the slice, rank 1 gets 1 and 0, rank 2 gets 2 and 1.
  /// Rank 0 warns in epoch 0 if n does not divide B: some samples of each step then count twice.
  SampleBatches batches(std::uint64_t epoch) const;

  /// Batches for evaluation: samples rank, rank+n, rank+2n, ... of the data set in its own order, without padding. Over
  /// all ranks, every sample occurs exactly once. Ranks may differ by one sample, and by one batch.
  SampleBatches evaluation() const;

  /// The order of the whole data set in `epoch`: the same on every rank and for any world size.
  std::vector<std::size_t> global_order(std::uint64_t epoch) const;

  /// Steps in an epoch, the same on every rank.
  std::size_t steps_per_epoch() const noexcept { return (options_.dataset_size - 1) / options_.global_batch + 1; }

  const SamplerOptions& options() const noexcept { return options_; }

 private:
  static SamplerOptions for_rank(SamplerOptions options, int rank, int world_size) {
    options.rank = rank;
    options.world_size = world_size;
    return options;
  }

  std::size_t rank() const noexcept { return static_cast<std::size_t>(options_.rank); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(options_.world_size); }

  /// ceil(length / ranks), without overflow.
  std::size_t share(std::size_t length) const noexcept { return (length - 1) / ranks() + 1; }

  SamplerOptions options_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED DistributedSampler::DistributedSampler(const SamplerOptions& options) : options_(options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw_error(Errc::invalid_argument,
                "a sampler was made for rank {} of {}; give group.rank() and group.world_size()",
                {options.rank, options.world_size});
  }
  if (options.dataset_size == 0) {
    throw_error(Errc::invalid_argument, "a sampler was made for a data set without samples; load the data first");
  }
  if (options.global_batch == 0) {
    throw_error(Errc::invalid_argument,
                "a sampler was made with a global batch of 0 samples; give the samples of all ranks in one step");
  }
}

DTRAIN_DEFINED SampleBatches DistributedSampler::batches(std::uint64_t epoch) const {
  const std::vector<std::size_t> order = global_order(epoch);
  const std::size_t slice = std::min(options_.global_batch, order.size());
  if (epoch == 0 && rank() == 0 && slice % ranks() != 0) {
    log(LogLevel::warning,
        format_text("a global batch of {} samples on {} ranks: each step has {} samples twice, so that "
                    "every rank has {}; a multiple of {} has none twice",
                    {slice, ranks(), share(slice) * ranks() - slice, share(slice), ranks()}));
  }
  std::vector<std::size_t> mine;
  mine.reserve((order.size() / slice + 1) * share(slice));
  for (std::size_t begin = 0; begin < order.size(); begin += slice) {
    const std::size_t length = std::min(slice, order.size() - begin);
    for (std::size_t taken = 0; taken < share(length); ++taken) {
      mine.push_back(order[begin + (rank() + taken * ranks()) % length]);
    }
  }
  return {std::move(mine), share(slice)};
}

DTRAIN_DEFINED SampleBatches DistributedSampler::evaluation() const {
  std::vector<std::size_t> mine;
  mine.reserve(options_.dataset_size / ranks() + 1);
  for (std::size_t sample = rank(); sample < options_.dataset_size; sample += ranks()) {
    mine.push_back(sample);
  }
  return {std::move(mine), share(std::min(options_.global_batch, options_.dataset_size))};
}

DTRAIN_DEFINED std::vector<std::size_t> DistributedSampler::global_order(std::uint64_t epoch) const {
  if (options_.shuffle) {
    return shuffled_order(options_.dataset_size, options_.seed, epoch);
  }
  std::vector<std::size_t> order(options_.dataset_size);
  std::iota(order.begin(), order.end(), std::size_t{0});
  return order;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::DistributedSampler;
using ddp::SamplerOptions;
}  // namespace DTRAIN_NAMESPACE
