// topology_bench's peer: MPI_Allreduce of as many bytes, with what the library chooses by itself; and the bytes that
// Hierarchical sends between the hosts as plain messages, without a reduction.
//   topology_openmpi SAMPLES
// Prints the lines that bench/intervals.hpp reads.

#include <mpi.h>

#include <array>
#include <cstddef>
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

/// Each rank of the first host sends all of `sent` to one of the second and receives as many bytes: messages of 256
/// KiB, 8 of them in flight each way, as dtrain's.
bool exchange(const std::vector<float>& sent, std::vector<float>& received, int rank, int ranks) {
  constexpr std::size_t chunk = (std::size_t{256} << 10) / sizeof(float);
  constexpr std::size_t in_flight = 8;
  const int peer = (rank + ranks / 2) % ranks;
  const std::size_t chunks = (sent.size() + chunk - 1) / chunk;
  std::array<std::array<MPI_Request, 2>, in_flight> requests;
  bool right = true;
  for (std::size_t m = 0; right && m < chunks + in_flight; ++m) {
    std::array<MPI_Request, 2>& pair = requests[m % in_flight];
    if (m >= in_flight && m - in_flight < chunks) {
      right = MPI_Waitall(2, pair.data(), MPI_STATUSES_IGNORE) == MPI_SUCCESS;
    }
    if (right && m < chunks) {
      const std::size_t begin = m * chunk;
      const int count = static_cast<int>(sent.size() - begin < chunk ? sent.size() - begin : chunk);
      right = MPI_Irecv(&received[begin], count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &pair[0]) == MPI_SUCCESS &&
              MPI_Isend(&sent[begin], count, MPI_FLOAT, peer, 0, MPI_COMM_WORLD, &pair[1]) == MPI_SUCCESS;
    }
  }
  return right;
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
  const std::vector<float> sent(static_cast<std::size_t>(right ? 2 * elements / ranks : 0), static_cast<float>(rank));
  std::vector<float> received(sent.size());
  for (int sample = 0; right && sample <= samples; ++sample) {
    right = MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS;
    const long long begin = now_nanoseconds();
    right = right && exchange(sent, received, rank, ranks);
    const long long end = now_nanoseconds();
    right = right && received.front() == static_cast<float>((rank + ranks / 2) % ranks) &&
            received.back() == received.front();
    if (right && sample > 0) {
      std::printf("interval messages %d %lld %lld\n", sample, begin, end);
    }
  }
  if (!right) {
    std::fprintf(stderr, "topology_openmpi: rank %d: MPI failed, or a value is wrong\n", rank);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
