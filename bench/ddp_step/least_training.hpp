#pragma once
/// @file
/// LeastTraining: a training with the least computing that there can be.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "bench/launched.hpp"
#include "bench/shape_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// The backward pass reads each weight and writes each gradient once, and the optimizer updates each weight once. The
/// gradients are bound.
struct LeastTraining {
  LeastTraining(const std::vector<std::int64_t>& sizes, const dtrain::ProcessGroup<Policy>& group,
                const dtrain::DdpOptions& options)
      : model(sizes), ddp(model, group, options) {
    for (const dtrain::Parameter& parameter : model.parameters())
      std::ranges::fill(parameter.value.as<float>(), 1.0F);
  }

  void step() {
    ddp.backward([this](dtrain::Ready ready) {
      for (std::size_t i = model.parameters().size(); i-- > 0;) {
        std::ranges::transform(values(i), model.gradient(i).begin(), [](float value) { return 0.5F * value; });
        ready(i);
      }
    });
    for (std::size_t i = 0; i < model.parameters().size(); ++i) {
      std::ranges::transform(values(i), model.gradient(i), values(i).begin(),
                             [](float value, float gradient) { return value - 0.01F * gradient; });
    }
  }

  std::span<float> values(std::size_t i) { return model.parameters()[i].value.as<float>(); }

  ShapeModel model;
  dtrain::DistributedDataParallel<ShapeModel, Policy> ddp;
};

}  // namespace bench
