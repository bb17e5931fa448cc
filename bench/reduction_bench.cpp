// What a reduction by a function of one's own costs beside the built-in one and beside MPI_Op_create, and what the
// reduction of a table's changed rows costs beside that of the whole table.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/goal.hpp"
#include "bench/launched_job.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"

#if DTRAIN_WITH_MPI
#include <mpi.h>
#endif

namespace {

using Clock = std::chrono::steady_clock;
using Group = dtrain::ProcessGroup<bench::Policy>;

constexpr const char* bench_name = "reduction_bench";
constexpr const char* usage_line = "[--ranks=2,4] [--samples=N] [--json=FILE]";
constexpr std::size_t table_rows = 200'000;
constexpr std::size_t width = 64;
constexpr std::size_t sizes[] = {1, 1024, 4096, 131072};

/// The median of the seconds of a call, over samples of several calls each.
template <class Barrier, class Call>
double seconds_of(int samples, int calls, const Barrier& barrier, const Call& call) {
  std::vector<double> seconds;
  for (int sample = 0; sample < samples + 1; ++sample) {
    barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i)
      call();
    if (sample > 0) seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count() / calls);
  }
  return bench::median(seconds);
}

void print(const char* system, const std::string& what, std::size_t bytes, double seconds) {
  std::printf("result %s %s %zu %.9g\n", system, what.c_str(), bytes, seconds);
}

constexpr double greater(double a, double b) noexcept {
  return a > b ? a : b;
}

void measure_functions(const Group& group, int samples) {
  for (const std::size_t count : sizes) {
    std::vector<double> values(count, group.rank());
    const auto barrier = [&] { group.barrier(); };
    const int calls = count > 10'000 ? 10 : 200;
    const double built_in =
        seconds_of(samples, calls, barrier, [&] { group.all_reduce(values, dtrain::ReduceOp::max); });
    const double own = seconds_of(samples, calls, barrier, [&] { group.all_reduce(values, greater); });
    if (group.rank() == 0) {
      print("dtrain", "built_in_max", count * sizeof(double), built_in);
      print("dtrain", "own_max", count * sizeof(double), own);
    }
  }
}

void measure_rows(const Group& group, int samples) {
  std::vector<float> table(table_rows * width, 1);
  const auto barrier = [&] { group.barrier(); };
  const double dense = seconds_of(samples, 3, barrier, [&] { group.all_reduce(table); });
  if (group.rank() == 0) print("dtrain", "dense_table", table.size() * sizeof(float), dense);
  for (const int percent : {1, 10, 30}) {
    std::mt19937_64 random(static_cast<std::uint64_t>(group.rank()) + 1);
    std::vector<std::int64_t> ids;
    for (std::size_t id = 0; id < table_rows; ++id) {
      if (random() % 100 < static_cast<std::uint64_t>(percent)) ids.push_back(static_cast<std::int64_t>(id));
    }
    std::shuffle(ids.begin(), ids.end(), random);
    const std::vector<float> rows(ids.size() * width, 1);
    dtrain::group::RowSum<float> sum(width);
    const double seconds = seconds_of(samples, 3, barrier, [&] { group.all_reduce_rows(ids, rows, sum); });
    if (group.rank() == 0) {
      print("dtrain", "rows_" + std::to_string(percent) + "_percent", rows.size() * sizeof(float), seconds);
    }
  }
}

#if DTRAIN_WITH_MPI
void require(int code) {
  if (code != MPI_SUCCESS) std::abort();
}

void greater_of_arrays(void* from, void* into, int* count, MPI_Datatype* /*type*/) {
  const double* const source = static_cast<const double*>(from);
  double* const target = static_cast<double*>(into);
  for (int i = 0; i < *count; ++i)
    target[i] = greater(source[i], target[i]);
}

/// The same function by MPI_Op_create, which may not assume that it commutes.
int measure_mpi(int argc, char** argv, int samples) {
  require(MPI_Init(&argc, &argv));
  int rank = 0;
  require(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
  MPI_Op op = MPI_OP_NULL;
  require(MPI_Op_create(greater_of_arrays, 0, &op));
  for (const std::size_t count : sizes) {
    std::vector<double> values(count, rank);
    const double seconds = seconds_of(
        samples, count > 10'000 ? 10 : 200, [] { require(MPI_Barrier(MPI_COMM_WORLD)); },
        [&] {
          require(MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(count), MPI_DOUBLE, op, MPI_COMM_WORLD));
        });
    if (rank == 0) print("openmpi", "own_max", count * sizeof(double), seconds);
  }
  require(MPI_Op_free(&op));
  require(MPI_Finalize());
  return 0;
}
#endif

int run_launched(int argc, char** argv) {
  const int samples = bench::positive("samples", argv[argc - 1]);
#if DTRAIN_WITH_MPI
  if (bench::is_launched_with("mpi", argc, argv)) {
    return measure_mpi(argc, argv, samples);
  }
#endif
  return dtrain::run<bench::Policy>(argc, argv, [samples](Group group) {
    measure_functions(group, samples);
    measure_rows(group, std::max(samples / 2, 1));
    return 0;
  });
}

void measure(int ranks, const bench::Options& options, bench::ResultRows& rows) {
  const int samples = options.samples > 0 ? options.samples : 21;
  const auto add = [&](const std::vector<std::vector<std::string>>& results) {
    for (const std::vector<std::string>& result : results) {
      rows.add({bench_name,
                result.at(0),
                result.at(1),
                ranks,
                1,
                std::stoull(result.at(2)),
                std::stod(result.at(3)),
                static_cast<std::size_t>(samples),
                {{"microseconds", std::to_string(std::stod(result.at(3)) * 1e6)}, {"bytes", result.at(2)}}});
    }
  };
  add(bench::results_of_job(ranks, false, {"shared_memory", std::to_string(samples)}));
#if DTRAIN_WITH_MPI
  add(bench::results_of_job(ranks, true, {"mpi", std::to_string(samples)}));
#else
  std::printf("openmpi  missing: no MPI was found when this program was built\n");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {2, 4});
    bench::ResultRows rows;
    for (const int ranks : options.ranks) {
      measure(ranks, options, rows);
    }
    rows.write_json(options.json);
  });
}
