// A per-node launcher never returns into user code, so there is no group to return.
// expect: dtrain: init_process_group needs launch::Any or launch::PerProcess
#include "dtrain/dtrain.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Launcher = dtrain::launch::PerNode;
#else
using Launcher = dtrain::launch::Any;
#endif

using Policy = dtrain::Policy<Launcher, dtrain::backend::SharedMemory>;

auto join() {
  return dtrain::init_process_group<Policy>();
}
