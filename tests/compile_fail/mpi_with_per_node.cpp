// A backend whose processes mpirun has to start, with a launcher that starts them itself. (MPI need not be here: a
// backend says so in the way of backend::Mpi.)
// expect: dtrain: backend::Mpi needs launch::PerProcess; start one process for each rank with mpirun or srun
#include "dtrain/dtrain.hpp"

struct LikeMpi : dtrain::backend::SharedMemory {
  template <class Launcher>
  static constexpr bool works_with = Launcher::returns_into_user_code;
};

#ifdef DTRAIN_COMPILE_FAIL
using Launcher = dtrain::launch::PerNode;
#else
using Launcher = dtrain::launch::PerProcess;
#endif

dtrain::Policy<Launcher, LikeMpi> policy;
