#pragma once
/// @file
/// What both branches of a block have: a layer at their input and one at their output.

#include <string>

#include "linear.hpp"

namespace gpt2 {

template <class Scalar>
class Branch {
 public:
  /// From `channels` numbers to `inner` of them by the layer `input`, and from `outer` back.
  Branch(const std::string& name, const std::string& input, Index channels, Index inner, Index outer)
      : input_layer_(name + "." + input, channels, inner), output_layer_(name + ".c_proj", outer, channels) {}

  void randomize(Scalar deviation, Scalar output_deviation, shared::SplitMix64& random) {
    input_layer_.randomize(deviation, random);
    output_layer_.randomize(output_deviation, random);
  }

  /// Each layer's weight and bias: [channels, inner] and [inner], [outer, channels] and [channels].
  void list(WeightsList<Scalar>& list) {
    input_layer_.list(list);
    output_layer_.list(list);
  }

 protected:
  Linear<Scalar> input_layer_;
  Linear<Scalar> output_layer_;
};

}  // namespace gpt2
