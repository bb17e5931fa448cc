#pragma once
/// @file
/// A small model's signature, for tests of signatures and their differences.

#include "dtrain/ddp/agreement/model_signature.hpp"

namespace ddp_test {

inline dtrain::ddp::ModelSignature two_layers() {
  using dtrain::DeviceKind;
  using dtrain::DType;
  return {25,
          1,
          dtrain::ReduceOp::average,
          {{"fc1.weight", {784, 256}, DType::f32, DeviceKind::host},
           {"fc1.bias", {256}, DType::f32, DeviceKind::host},
           {"scale", {}, DType::f64, DeviceKind::host}}};
}

}  // namespace ddp_test
