#pragma once
/// @file
/// DistributedSampler: a rank's samples of a data set, in batches or weighted shares; one order for any number of
/// ranks.

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/data/sample_steps.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A range of `std::span<const std::size_t>`, one for each batch: indices into the data set. Allocated once an epoch.
/// Lifetime: the spans point into this object.
/// @ingroup checkpoints
class SampleBatches {
 public:
  /// Every batch has `batch_size` samples (at least one); the last one has the rest.
  SampleBatches(std::vector<std::size_t> samples, std::size_t batch_size)
      : samples_(std::move(samples)), batch_size_(batch_size) {}

  using Iterator = IndexIterator<SampleBatches, std::span<const std::size_t>>;

  std::size_t size() const noexcept { return (samples_.size() + batch_size_ - 1) / batch_size_; }
  bool empty() const noexcept { return samples_.empty(); }

  /// Batch `batch`, which is less than size().
  std::span<const std::size_t> operator[](std::size_t batch) const {
    const std::size_t first = batch * batch_size_;
    return {samples_.data() + first, std::min(batch_size_, samples_.size() - first)};
  }

  /// All samples, batch after batch.
  std::span<const std::size_t> samples() const noexcept { return {samples_.data(), samples_.size()}; }

  Iterator begin() const noexcept { return {this, 0}; }
  Iterator end() const noexcept { return {this, size()}; }

 private:
  std::vector<std::size_t> samples_;
  std::size_t batch_size_;
};

/// This rank's part of one global batch.
struct SampleShare {
  std::span<const std::size_t> samples;  ///< lifetime: the SampleShares'
  /// Factor of the loss, or of the gradients, with which the ranks' average is that of the whole batch: samples x ranks
  /// / batch, exactly 1 where the ranks divide it. 0 for the one sample of a rank that has no part of a short batch;
  /// its gradients must be finite.
  float weight = 1;
};

/// The shares of one rank in the steps of an epoch.
/// @ingroup checkpoints
class SampleShares {
 public:
  SampleShares(std::vector<std::size_t> samples, std::vector<std::size_t> ends, std::vector<float> weights)
      : samples_(std::move(samples)), ends_(std::move(ends)), weights_(std::move(weights)) {}

  std::size_t size() const noexcept { return ends_.size(); }

  /// The share of step `step`, which is less than size().
  SampleShare operator[](std::size_t step) const {
    const std::size_t first = step == 0 ? 0 : ends_[step - 1];
    return {{samples_.data() + first, ends_[step] - first}, weights_[step]};
  }

 private:
  std::vector<std::size_t> samples_;
  std::vector<std::size_t> ends_;  ///< the end of each step in samples_
  std::vector<float> weights_;
};

/// SplitMix64 generator. Its bounded draw is our own, because the standard does not specify distributions' results.
class SplitMix64 {
 public:
  explicit constexpr SplitMix64(std::uint64_t state) noexcept : state_(state) {}

  constexpr std::uint64_t next() noexcept { return mix64(state_ += gamma); }

  /// Uniform in 0..bound-1 without bias: draws below 2^64 mod bound are drawn again. `bound` is not zero.
  constexpr std::uint64_t below(std::uint64_t bound) noexcept {
    const std::uint64_t excess = (0 - bound) % bound;
    std::uint64_t drawn = next();
    while (drawn < excess) {
      drawn = next();
    }
    return drawn % bound;
  }

  static constexpr std::uint64_t gamma = 0x9e3779b97f4a7c15u;

 private:
  std::uint64_t state_;
};

/// The generator of one epoch. It mixes both seed and epoch, so that neighbouring epochs have unrelated states.
constexpr SplitMix64 epoch_generator(std::uint64_t seed, std::uint64_t epoch) noexcept {
  return SplitMix64(mix64(mix64(seed + SplitMix64::gamma) + epoch));
}

/// Fisher-Yates shuffle, from the last position down, with draws of `epoch_generator(seed, epoch)`.
std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch);

/// Options of DistributedSampler. They are the same on all ranks, except for `rank`: ranks with other options train on
/// the same samples, and leave others out. A wrapper of the group that compares the ranks' values also compares them.
/// @ingroup checkpoints
struct SamplerOptions {
  std::size_t dataset_size = 0;  ///< samples
  std::size_t global_batch = 0;  ///< samples of all ranks together in one step
  int rank = 0;
  int world_size = 1;
  std::uint64_t seed = 0;
  bool shuffle = true;  ///< a new order in every epoch; false: 0, 1, 2, ...
  /// batches() and shares() leave out the last global batch of an epoch if it has fewer than global_batch samples, so
  /// that all batches have one size. With `shuffle` other samples are left out in each epoch; evaluation() has all.
  bool drop_last = false;
  /// For steps(): the parts of each global batch, at most 4096. Choose the largest number of ranks that the training
  /// will have; it stays for the whole training.
  std::size_t micro_batches = 0;
};

/// Gives each rank its samples of every global batch. Every epoch has one global order of the data set, which depends
/// only on seed and epoch. It is the same for any number of ranks: step k trains on the same samples on one rank or on
/// eight. Threads: const members concurrently.
/// @ingroup checkpoints
class DistributedSampler {
 public:
  /// @throws Error (invalid_argument) for an empty data set or batch, a rank outside 0..world_size-1, or drop_last
  /// with a data set smaller than the global batch.
  explicit DistributedSampler(const SamplerOptions& options);

  /// A sampler for this rank of the group: `DistributedSampler{group, {.dataset_size = n, .global_batch = b}}`. The
  /// options' rank and world_size are ignored. Blocking: no; sends nothing. DistributedDataParallel::compare_values()
  /// and, at its first step and its end, a warning name an option that differs between the ranks. They compare the
  /// first 8 different sets of options of each rank, if all ranks that have made samplers have equally many such sets.
  template <class Group>
  requires requires(const Group& group) {
    { group.rank() } -> std::same_as<int>;
    { group.world_size() } -> std::same_as<int>;
  }
  DistributedSampler(const Group& group, const SamplerOptions& options)
      : DistributedSampler(for_rank(options, group.rank(), group.world_size())) {
    if constexpr (requires { group::GroupAccess::of(group).noted_settings(); }) {
      group::GroupAccess::of(group).noted_settings().add(settings());
    }
  }

  /// Batches for training. Step k takes positions [k*B, min((k+1)*B, N)) of the global order (B: global_batch, N:
  /// dataset_size). With n ranks and L samples in such a slice, each rank gets ceil(L/n) of them: at rank, rank+n,
  /// rank+2n, ... modulo L. So all ranks have the same number of steps, and of samples in each step. If B does not
  /// divide N, the last batch is shorter on every rank, unless drop_last leaves it out.
  /// Example, L = 4 and n = 3: rank 0 gets positions 0 and 3 of the slice, rank 1 gets 1 and 0, rank 2 gets 2 and 1.
  /// Rank 0 warns in epoch 0 if n does not divide B: some samples of each step then count twice; and if B is above N.
  SampleBatches batches(std::uint64_t epoch) const;

  /// The same slices without padding: a rank gets the positions rank, rank+n, ... of a slice, which may be one fewer
  /// than another rank gets, and the weight that makes up for that. So each sample counts once, whatever n is: for jobs
  /// whose number of ranks changes.
  SampleShares shares(std::uint64_t epoch) const;

  /// The same slices in micro-batches, for DistributedDataParallel::backward(step, f), whose weights do not depend on
  /// the number of ranks. The same on every rank. @throws Error (invalid_argument) without
  /// SamplerOptions::micro_batches
  SampleSteps steps(std::uint64_t epoch) const;

  /// Batches for evaluation: samples rank, rank+n, rank+2n, ... of the data set in its own order, without padding. Over
  /// all ranks, every sample occurs exactly once. Ranks may differ by one sample, and by one batch.
  SampleBatches evaluation() const;

  /// The order of the whole data set in `epoch`: the same on every rank and for any world size.
  std::vector<std::size_t> global_order(std::uint64_t epoch) const;

  /// Steps in an epoch, the same on every rank.
  std::size_t steps_per_epoch() const noexcept {
    return options_.drop_last ? options_.dataset_size / options_.global_batch
                              : (options_.dataset_size - 1) / options_.global_batch + 1;
  }

  const SamplerOptions& options() const noexcept { return options_; }

 private:
  static SamplerOptions for_rank(SamplerOptions options, int rank, int world_size) {
    options.rank = rank;
    options.world_size = world_size;
    return options;
  }

  /// "dataset_size=1000 global_batch=100 seed=1 shuffle=true drop_last=false micro_batches=0"
  std::string settings() const;

  std::size_t rank() const noexcept { return static_cast<std::size_t>(options_.rank); }
  std::size_t ranks() const noexcept { return static_cast<std::size_t>(options_.world_size); }

  /// The epoch's global order, as far as its steps go.
  std::vector<std::size_t> order_of_steps(std::uint64_t epoch) const;

  void warn_of_large_batch(std::uint64_t epoch) const;

  /// ceil(length / ranks), without overflow.
  std::size_t share(std::size_t length) const noexcept { return (length - 1) / ranks() + 1; }

  SamplerOptions options_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::vector<std::size_t> shuffled_order(std::size_t count, std::uint64_t seed, std::uint64_t epoch) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  SplitMix64 generator = epoch_generator(seed, epoch);
  for (std::size_t place = count; place > 1; --place) {
    std::swap(order[place - 1], order[generator.below(place)]);
  }
  return order;
}

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
  if (options.drop_last && options.dataset_size < options.global_batch) {
    throw_error(Errc::invalid_argument,
                "a sampler was made with drop_last for {} samples and a global batch of {}: no step would be left; "
                "give a smaller batch",
                {options.dataset_size, options.global_batch});
  }
  if (options.micro_batches > most_micro_batches) {
    throw_error(Errc::invalid_argument,
                "a sampler was made with {} micro-batches; give at most {}: the largest number of ranks that the "
                "training will have",
                {options.micro_batches, most_micro_batches});
  }
}

DTRAIN_DEFINED std::string DistributedSampler::settings() const {
  const auto word = [](bool value) { return value ? "true" : "false"; };
  return format_text("dataset_size={} global_batch={} seed={} shuffle={} drop_last={} micro_batches={}",
                     {options_.dataset_size, options_.global_batch, options_.seed, word(options_.shuffle),
                      word(options_.drop_last), options_.micro_batches});
}

DTRAIN_DEFINED std::vector<std::size_t> DistributedSampler::order_of_steps(std::uint64_t epoch) const {
  std::vector<std::size_t> order = global_order(epoch);
  order.resize(std::min(order.size(), steps_per_epoch() * options_.global_batch));
  return order;
}

DTRAIN_DEFINED void DistributedSampler::warn_of_large_batch(std::uint64_t epoch) const {
  if (epoch != 0 || rank() != 0 || options_.global_batch <= options_.dataset_size) return;
  log(LogLevel::warning,
      format_text("a global batch of {} samples, and the data set has {}: an epoch is one step with all of them; give "
                  "SamplerOptions::global_batch the samples of all ranks in one step, and dataset_size those of all "
                  "ranks together",
                  {options_.global_batch, options_.dataset_size}));
}

DTRAIN_DEFINED SampleBatches DistributedSampler::batches(std::uint64_t epoch) const {
  warn_of_large_batch(epoch);
  const std::vector<std::size_t> order = order_of_steps(epoch);
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

DTRAIN_DEFINED SampleShares DistributedSampler::shares(std::uint64_t epoch) const {
  warn_of_large_batch(epoch);
  const std::vector<std::size_t> order = order_of_steps(epoch);
  std::vector<std::size_t> mine;
  std::vector<std::size_t> ends;
  std::vector<float> weights;
  for (std::size_t begin = 0; begin < order.size(); begin += std::min(options_.global_batch, order.size() - begin)) {
    const std::size_t length = std::min(options_.global_batch, order.size() - begin);
    const std::size_t before = mine.size();
    for (std::size_t position = rank(); position < length; position += ranks()) {
      mine.push_back(order[begin + position]);
    }
    const auto share = static_cast<double>(mine.size() - before);
    weights.push_back(static_cast<float>(share * static_cast<double>(ranks()) / static_cast<double>(length)));
    if (mine.size() == before) {
      mine.push_back(order[begin]);
    }
    ends.push_back(mine.size());
  }
  return {std::move(mine), std::move(ends), std::move(weights)};
}

DTRAIN_DEFINED SampleSteps DistributedSampler::steps(std::uint64_t epoch) const {
  if (options_.micro_batches == 0) {
    throw_error(Errc::invalid_argument,
                "sampler.steps() needs SamplerOptions::micro_batches: the largest number of ranks that the training "
                "will have, such as 8; it stays for the whole training");
  }
  warn_of_large_batch(epoch);
  if (epoch == 0 && rank() == 0 && ranks() > options_.micro_batches) {
    log(LogLevel::warning, format_text("{} ranks and {} micro-batches: ranks from {} on compute nothing; give "
                                       "SamplerOptions::micro_batches the largest number of ranks",
                                       {ranks(), options_.micro_batches, options_.micro_batches}));
  }
  std::vector<std::size_t> order = order_of_steps(epoch);
  const std::size_t step_samples = std::min(options_.global_batch, order.size());
  return {std::move(order), step_samples, options_.micro_batches, epoch_generator(options_.seed, epoch).next()};
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
using ddp::SampleBatches;
using ddp::SamplerOptions;
using ddp::SampleShare;
using ddp::SampleShares;
}  // namespace DTRAIN_NAMESPACE
