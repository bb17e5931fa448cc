// A backend that reduces on GPUs only, as backend::Nccl, and a model that does not say that it is on one.
// expect: dtrain: this backend reduces on GPUs only and the model is on the host: a model on a GPU says
#include <vector>

#include "dtrain/dtrain.hpp"

struct OnGpusOnly : dtrain::backend::SharedMemory {
  static constexpr bool supports(dtrain::DeviceKind kind) noexcept { return kind == dtrain::DeviceKind::cuda; }
};

struct Model {
#ifndef DTRAIN_COMPILE_FAIL
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;
#endif
  std::vector<dtrain::Parameter> parameters() {
    return {};
  }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, OnGpusOnly>;

void wrap(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
}
