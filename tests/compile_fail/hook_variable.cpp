// A hook given as a plain variable, of which the wrapper would have a copy.
// expect: dtrain: the hook is a variable: give std::ref(hook), which outlives the wrapper, or std::move(hook)
// one error
#include <functional>

#include "compile_fail/host_model.hpp"

void wrap(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::hooks::PowerSgd hook;
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::DistributedDataParallel ddp{model, group, {}, hook};
#else
  dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
#endif
}
