#pragma once
/// @file
/// The score of a model on a whole data set, each rank taking its share of the samples.

#include <array>
#include <cstddef>
#include <span>

#include "dataset.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/data/sampler.hpp"
#include "loss.hpp"
#include "mlp.hpp"

namespace fashion_mnist {

/// Every sample counts exactly once, whatever the number of ranks. Collective, blocking.
template <class Group, class Model>
Score evaluate(const Group& group, Model& model, const Dataset& dataset) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const dtrain::DistributedSampler sampler{group,
                                           {.dataset_size = dataset.size(),
                                            .global_batch = 512 * ranks,

                                            .shuffle = false}};
  Batch<float> batch;
  std::array<double, 3> sums{};
  for (const std::span<const std::size_t> samples : sampler.evaluation()) {
    gather(dataset, samples, batch);
    const Score part = score(model.forward(batch.inputs), std::span<const std::uint8_t>(batch.labels));
    sums[0] += part.cross_entropy;
    sums[1] += part.correct;
    sums[2] += part.count;
  }
  group.all_reduce(std::span<double>(sums), dtrain::ReduceOp::sum);
  return {sums[0], sums[1], sums[2]};
}

}  // namespace fashion_mnist
