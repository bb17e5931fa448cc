// A backend whose library is not switched on, which every program can name.
// expect: dtrain: this backend is declared and not defined, because its library is not switched on: Mpi and
// expect: need -DDTRAIN_WITH_MPI=1 (with CMake: link dtrain::mpi), Gloo -DDTRAIN_WITH_GLOO=1
#include "dtrain/dtrain.hpp"

#ifdef DTRAIN_COMPILE_FAIL
using Backend = dtrain::backend::Mpi;
#else
using Backend = dtrain::backend::SharedMemory;
#endif

dtrain::Policy<dtrain::launch::PerProcess, Backend> policy;
