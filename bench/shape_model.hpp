#pragma once
/// @file
/// A model that is nothing but its parameters: what dtrain sees of a real one.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/dtrain.hpp"

namespace bench {

/// Its gradients live where dtrain places them; until then where the values do, which nobody reads.
class ShapeModel {
 public:
  /// @param sizes of the parameters, in elements, in the order of the forward pass
  explicit ShapeModel(const std::vector<std::int64_t>& sizes) : ShapeModel(shapes_of(sizes)) {}

  explicit ShapeModel(const std::vector<dtrain::Shape>& shapes) {
    std::size_t elements = 0;
    for (const dtrain::Shape& shape : shapes) {
      elements += static_cast<std::size_t>(shape.element_count());
    }
    values_.resize(elements);
    std::size_t offset = 0;
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      const dtrain::TensorView view = dtrain::tensor_view(&values_[offset], shapes[i]);
      parameters_.push_back({"parameter" + std::to_string(i), view, view});
      offset += static_cast<std::size_t>(shapes[i].element_count());
    }
  }

  std::vector<dtrain::Parameter>& parameters() noexcept { return parameters_; }
  void bind_gradient(std::size_t i, const dtrain::TensorView& gradient) { parameters_[i].gradient = gradient; }

  std::span<float> gradient(std::size_t i) { return parameters_[i].gradient.as<float>(); }
  std::size_t elements() const noexcept { return values_.size(); }

  /// Announces every gradient, the last parameter's first, as a backward pass does.
  template <class Ready>
  void announce(const Ready& ready) const {
    for (std::size_t i = parameters_.size(); i > 0; --i) {
      ready(i - 1);
    }
  }

 private:
  static std::vector<dtrain::Shape> shapes_of(const std::vector<std::int64_t>& sizes) {
    std::vector<dtrain::Shape> shapes;
    for (const std::int64_t size : sizes) {
      shapes.push_back({size});
    }
    return shapes;
  }

  std::vector<float> values_;
  std::vector<dtrain::Parameter> parameters_;
};

}  // namespace bench
