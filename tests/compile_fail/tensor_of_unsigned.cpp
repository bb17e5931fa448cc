// An unsigned counter of 16 bits has no DType: the sentence lists the types that have one.
// expect: dtrain: tensor_view takes float, double, std::int64_t, std::int32_t, std::uint64_t, std::uint32_t,
// one error
#include <cstdint>
#include <vector>

#include "dtrain/core/types/tensor_view.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Counter = std::uint16_t;
#else
using Counter = std::int64_t;
#endif

dtrain::TensorView view(Counter& epoch) {
  return dtrain::tensor_view(&epoch, {});
}

dtrain::TensorView view(std::vector<Counter>& steps) {
  return dtrain::tensor_view(steps);
}
