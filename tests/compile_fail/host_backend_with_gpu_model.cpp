// A model on a GPU, and a backend that reduces host memory.
// expect: dtrain: the model's device_kind is cuda and this backend reduces host memory only: use backend::Nccl
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
#ifdef DTRAIN_COMPILE_FAIL
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;
#endif
  std::vector<dtrain::Parameter> parameters() {
    return {};
  }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void wrap(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
}
