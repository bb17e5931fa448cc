#pragma once
/// @file
/// A ShapeModel that has memory for its gradients.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/shape_model.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

/// With gradients of its own, which each step copies: stage 2 binds none.
class OwningModel : private ShapeModel {
 public:
  explicit OwningModel(const std::vector<std::int64_t>& sizes) : ShapeModel(sizes), gradients_(elements()) {
    std::size_t offset = 0;
    for (std::size_t i = 0; i < parameters().size(); ++i) {
      const dtrain::Shape shape = parameters()[i].value.shape;
      bind_gradient(i, dtrain::tensor_view(&gradients_[offset], shape));
      offset += static_cast<std::size_t>(shape.element_count());
    }
  }

  using ShapeModel::announce;
  using ShapeModel::gradient;
  using ShapeModel::parameters;

 private:
  std::vector<float> gradients_;
};

}  // namespace bench
