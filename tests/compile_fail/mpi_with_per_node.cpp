// A backend whose processes mpirun has to start, with a launcher that starts them itself. (MPI need not be here: a
// backend says so in the way of backend::Mpi.)
// expect: dtrain: backend::Mpi needs launch::Any or launch::PerProcess; start one process for each rank with mpirun or
// srun
#include "dtrain/dtrain.hpp"

struct LikeMpi : dtrain::backend::SharedMemory {
  template <class Launcher>
  static constexpr bool works_with = dtrain::launch::joins_other_launchers<Launcher>;
};

#ifdef DTRAIN_COMPILE_FAIL
using Launcher = dtrain::launch::PerNode;
#else
using Launcher = dtrain::launch::Any;
#endif

dtrain::Policy<Launcher, LikeMpi> policy;
