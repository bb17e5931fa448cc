// A const model, of which training would change the values.
// expect: dtrain: the model is const and its parameters() is not: give a model that is not const
// one error
#include "compile_fail/host_model.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Given = const Model;
#else
using Given = Model;
#endif

void wrap(Given& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
}
