// A body of another signature.
// expect: dtrain: run() calls body(group) or body(group, arguments), with a dtrain::ProcessGroup<Policy>
// one error
#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

int start(int argc, char** argv) {
#ifdef DTRAIN_COMPILE_FAIL
  return dtrain::run<Policy>(argc, argv, [](int rank) { return rank; });
#else
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) { return group.rank(); });
#endif
}
