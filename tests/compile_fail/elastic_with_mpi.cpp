// A backend whose ranks are those of its start, in an elastic job. (MPI need not be here: a backend has the function of
// backend::Mpi that takes them from mpirun.)
// expect: dtrain: Elastic works with the backends SharedMemory, Gloo and Nccl, whose ranks may change
#include "dtrain/dtrain.hpp"

struct LikeMpi : dtrain::backend::SharedMemory {
#ifdef DTRAIN_COMPILE_FAIL
  static std::shared_ptr<void> pre_join_blocking(const dtrain::identity::ProcessIdentity&,
                                                 std::optional<dtrain::rendezvous::Secret>&, dtrain::Deadline);
#endif
};

int main(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, LikeMpi>;
  return dtrain::run<Policy>(
      argc, argv, [](dtrain::Elastic<Policy> job) { return job.train([](dtrain::ProcessGroup<Policy>) {}); });
}
