// topology_bench's peer: MPI_Allreduce of as many bytes, with what the library chooses by itself.
//   topology_openmpi SAMPLES
// Prints the lines that bench/intervals.hpp reads.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

namespace {

long long now_nanoseconds() {
  timespec time{};
  ::clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<long long>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr int elements = 25 << 20;
  const int samples = argc > 1 ? std::atoi(argv[1]) : 5;
  int rank = 0;
  int ranks = 0;
  bool right = MPI_Init(&argc, &argv) == MPI_SUCCESS && MPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS &&
               MPI_Comm_size(MPI_COMM_WORLD, &ranks) == MPI_SUCCESS;
  std::vector<float> values(elements);
  for (int sample = 0; right && sample <= samples; ++sample) {
    for (int i = 0; i < elements; ++i) {
      values[static_cast<std::size_t>(i)] = static_cast<float>(rank + sample + i % 7);
    }
    right = MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS;
    const long long begin = now_nanoseconds();
    right = right &&
            MPI_Allreduce(MPI_IN_PLACE, values.data(), elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD) == MPI_SUCCESS;
    const long long end = now_nanoseconds();
    for (int i = 0; right && i < elements; ++i) {
      right = values[static_cast<std::size_t>(i)] ==
              static_cast<float>(ranks * (sample + i % 7)) + static_cast<float>(ranks * (ranks - 1) / 2);
    }
    if (right && sample > 0) {
      std::printf("interval all_reduce %d %lld %lld\n", sample, begin, end);
    }
  }
  if (!right) {
    std::fprintf(stderr, "topology_openmpi: rank %d: MPI failed, or a sum is wrong\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
