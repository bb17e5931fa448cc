#pragma once
/// @file
/// A weight matrix or vector of a layer, with its gradient: one parameter of the model.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "../shared/random.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"
#include "matrix.hpp"

namespace gpt2 {

/// Threads: none but the one that uses it.
template <class Scalar>
class Weights {
 public:
  using Map = Eigen::Map<Matrix<Scalar>>;
  using ConstMap = Eigen::Map<const Matrix<Scalar>>;

  /// A matrix [rows, columns] of zeros.
  Weights(std::string name, Index rows, Index columns)
      : Weights(std::move(name), rows, columns, dtrain::Shape{rows, columns}) {}
  /// A vector [columns] of zeros, which the layers see as a matrix of one row.
  Weights(std::string name, Index columns) : Weights(std::move(name), 1, columns, dtrain::Shape{columns}) {}
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  ConstMap value() const { return {value_.data(), rows_, columns_}; }
  Map value() { return {value_.data(), rows_, columns_}; }
  Map gradient() { return {gradient_, rows_, columns_}; }

  /// Uniform values of mean zero and the given standard deviation.
  void randomize(Scalar deviation, shared::SplitMix64& random) {
    const Scalar bound = std::sqrt(Scalar{3}) * deviation;
    std::generate(value_.begin(), value_.end(), [&] { return bound * random.symmetric(); });
  }

  /// Its index in the model's parameters().
  void set_position(std::size_t position) noexcept { position_ = position; }
  void announce(dtrain::Ready ready) const { ready(position_, dtrain::tensor_view(gradient_, shape_)); }

  dtrain::Parameter parameter() {
    return {name_, dtrain::tensor_view(value_.data(), shape_),
            dtrain::tensor_view(keeps_gradient_ ? gradient_ : nullptr, shape_)};
  }

  /// The gradient lives at `view` from now on. Lifetime: its memory outlives the last backward pass.
  void bind_gradient(const dtrain::TensorView& view) {
    gradient_ = view.as<Scalar>().data();
    own_gradient_ = {};
  }

  /// From now on the gradient is the wrapper's once it is announced, and parameter() has none. It is computed in
  /// `memory`, which other weights use too; null: in memory of its own. Lifetime: the memory outlives the last backward
  /// pass.
  void give_gradient_away(Scalar* memory) {
    keeps_gradient_ = false;
    if (memory == nullptr) return;
    gradient_ = memory;
    own_gradient_ = {};
  }

  std::size_t elements() const noexcept { return value_.size(); }

 private:
  Weights(std::string name, Index rows, Index columns, dtrain::Shape shape)
      : name_(std::move(name)),
        rows_(rows),
        columns_(columns),
        shape_(std::move(shape)),
        value_(static_cast<std::size_t>(rows * columns)),
        own_gradient_(value_.size()),
        gradient_(own_gradient_.data()) {}

  std::string name_;
  Index rows_;
  Index columns_;
  dtrain::Shape shape_;
  // Eigen's loops, and so its bits, depend on where memory begins.
  std::vector<Scalar, Eigen::aligned_allocator<Scalar>> value_;
  std::vector<Scalar, Eigen::aligned_allocator<Scalar>> own_gradient_;  // until bind_gradient or give_gradient_away
  Scalar* gradient_;
  bool keeps_gradient_ = true;
  std::size_t position_ = 0;
};

/// The weights of a model or layer in the order of its parameters().
template <class Scalar>
using WeightsList = std::vector<Weights<Scalar>*>;

}  // namespace gpt2
