// A rank of one of two jobs that meet at one port: adds up its job's number with the other ranks of its group.
//   two_jobs JOB MILLISECONDS      joins after so long, and prints "job JOB sum S of N": N * JOB unless two jobs mixed

#include <span>
#include "programs/prelude.hpp"

int main(int argc, char** argv) {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory, dtrain::topology::Flat>;
  if (argc != 3) return 2;
  std::this_thread::sleep_for(std::chrono::milliseconds(std::atoi(argv[2])));
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
    const double job = std::atof(arguments[1]);
    double sum = job;
    group.all_reduce(std::span(&sum, 1), dtrain::ReduceOp::sum);
    std::printf("job %.0f sum %.0f of %d\n", job, sum, group.world_size());
    return 0;
  });
}
