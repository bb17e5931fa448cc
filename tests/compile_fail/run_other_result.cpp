// A body whose result is no exit code.
// expect: dtrain: the body returns an exit code or nothing
// one error
#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

int start(int argc, char** argv) {
#ifdef DTRAIN_COMPILE_FAIL
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy>) { return "done"; });
#else
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy>) { return 0; });
#endif
}
