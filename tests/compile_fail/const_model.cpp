// A const model, of which training would change the values.
// expect: dtrain: the model is const and its parameters() is not: give a model that is not const
// one error
#include <vector>

#include "dtrain/dtrain.hpp"

struct Model {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

#ifdef DTRAIN_COMPILE_FAIL
using Given = const Model;
#else
using Given = Model;
#endif

void wrap(Given& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
}
