// A rank of all_reduce_bench's peer Open MPI: all_reduce_openmpi SOCKET, started by mpirun.

#include <mpi.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "bench/all_reduce/measure.hpp"

namespace {

void check(int result) {
  if (result != MPI_SUCCESS) {
    throw std::runtime_error("MPI says " + std::to_string(result));
  }
}

void serve(const char* socket, int rank, int ranks) {
  bench::RequestSource source(socket, rank);
  const bench::Pattern pattern(rank, ranks, "f32");
  std::byte* memory = nullptr;
  std::size_t room = 0;
  std::uint64_t iteration = 0;
  for (bench::Request request; source.next(request);) {
    const std::size_t needed = bench::buffer_stride(request.bytes) * static_cast<std::size_t>(request.buffers);
    if (needed > room) {
      std::free(memory);
      room = (needed + 4095) / 4096 * 4096;
      memory = static_cast<std::byte*>(std::aligned_alloc(4096, room));
    }
    const auto meet = [] { check(MPI_Barrier(MPI_COMM_WORLD)); };
    const auto count = static_cast<int>(request.bytes / sizeof(float));
    const auto reduce = [count](std::byte* buffer) {
      check(MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    };
    source.answer(bench::measure(request, pattern, memory, iteration, meet, reduce));
  }
  std::free(memory);
}

}  // namespace

int main(int argc, char** argv) {
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS || argc != 2) {
    return 2;
  }
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  try {
    serve(argv[1], rank, ranks);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "all_reduce_openmpi: %s\n", error.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
