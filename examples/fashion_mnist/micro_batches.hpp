#pragma once
/// @file
/// A step over micro-batches: the same bits on any number of ranks.

#include <dtrain/dtrain.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

#include "dataset.hpp"
#include "evaluation.hpp"
#include "mlp.hpp"

namespace fashion_mnist {

/// Collective, blocking. @param seen, samples get what this rank computes @returns whether an optimizer is to update
/// @throws dtrain::Error (usage) for a model on a GPU
template <class Ddp, class Model>
bool micro_batch_step(Ddp& ddp, Model& model, const dtrain::SampleStep& step, const Dataset& dataset,
                      Batch<float>& batch, Score& seen, std::uint64_t& samples) {
  if constexpr (dtrain::ddp::device_kind_of<Model> == dtrain::DeviceKind::host) {
    const dtrain::MicroBatchLoss loss = ddp.backward(step, [&](const dtrain::MicroBatch& part, dtrain::Ready ready) {
      gather(dataset, part.samples, batch);
      const Score reached = score(model.forward(batch.inputs), std::span<const std::uint8_t>(batch.labels));
      model.backward(batch, ready);
      samples += part.samples.size();
      return reached.cross_entropy / reached.count;
    });
    seen.cross_entropy += loss * static_cast<double>(step.samples().size());
    seen.count += static_cast<double>(step.samples().size());
    return loss.updates;
  } else {
    throw dtrain::Error(dtrain::Errc::usage, "--micro-batches is for models in host memory");
  }
}

}  // namespace fashion_mnist
