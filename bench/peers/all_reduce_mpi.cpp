// A rank of dtrain over MPI for all_reduce_bench --backend=mpi: all_reduce_mpi WORD SOCKET BYTES, started by mpirun.

#include "bench/all_reduce/dtrain_rank.hpp"

int main(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi, dtrain::topology::Flat>;
  return bench::run_rank<Policy>(argc, argv);
}
