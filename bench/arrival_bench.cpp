// How long a collective and a step take behind the last arrival: ranks that compute for 0 to 300 us before each call,
// as real trainers do, and one rank that is late, with the processor time that a waiting rank uses meanwhile. The
// delays are known to all ranks, so what a job would take without dtrain is the sum of the latest. With --beside=N, N
// busy loops in sessions of their own want the cores, too.

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <string>
#include <utility>
#include <vector>

#include "bench/goal.hpp"
#include "bench/launched_job.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"
#include "bench/shape_model.hpp"

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* bench_name = "arrival_bench";
constexpr const char* usage_line =
    "[--ranks=2,4] [--backend=shared_memory|mpi] [--beside=N] [--only=WORD] [--samples=N] [--json=FILE]";
constexpr int calls_of_a_round = 50;
constexpr int default_rounds = 41;
constexpr std::size_t block_bytes = 81'600;

double microseconds(Clock::duration duration) {
  return std::chrono::duration<double, std::micro>(duration).count();
}

double processor_microseconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) throw dtrain::errno_error("reading the processor time");
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

/// 0 to 299 us, the same on all ranks.
double jitter(unsigned call, unsigned rank) {
  unsigned x = call * 2654435761U + rank * 40503U * 977U;
  x ^= x >> 15U;
  x *= 2246822519U;
  x ^= x >> 13U;
  return x % 300;
}

/// The delays of a row: before each call, of each rank.
struct Arrival {
  std::string name;
  double late = -1;  ///< us by which rank 0 is late; below 0: jitter of all ranks
  double of(unsigned call, unsigned rank) const { return late < 0 ? jitter(call, rank) : rank == 0 ? late : 0; }
};

void compute(double duration) {
  for (const auto begin = Clock::now(); microseconds(Clock::now() - begin) < duration;) {
  }
}

template <class P>
class ArrivalRank {
 public:
  ArrivalRank(dtrain::ProcessGroup<P> group, int rounds, std::string only)
      : group_(std::move(group)), rounds_(rounds), only_(std::move(only)) {}

  void measure() const {
    const auto ranks = static_cast<std::size_t>(group_.world_size());
    std::vector<double> one(1);
    const std::vector<std::byte> part(500);
    std::vector<std::byte> parts(part.size() * ranks), out(block_bytes * ranks), in(out.size());
    std::vector<double> block(block_bytes / sizeof(double)), blocks(block.size() * ranks);
    const std::vector<std::size_t> part_counts(ranks, part.size()), byte_counts(ranks, block_bytes),
        block_counts(ranks, block.size());
    const Arrival jitters{"jitter"};
    const auto reduce_one = [&] { group_.all_reduce(one); };
    row("all_reduce_8_B", jitters, reduce_one);
    row("all_gather_v_500_B", jitters, [&] { group_.all_gather_v(part, parts, part_counts); });
    row("all_to_all_v_81600_B", jitters, [&] { group_.all_to_all_v(out, byte_counts, in, byte_counts); });
    row("reduce_scatter_v_81600_B", jitters, [&] { group_.reduce_scatter_v(blocks, block, block_counts); });
    for (const std::int64_t elements : {1'000, 100'000}) {
      bench::ShapeModel model(std::vector<std::int64_t>{elements});
      dtrain::DistributedDataParallel ddp{model, group_};
      row("step_of_" + std::to_string(elements) + "_floats", jitters,
          [&] { ddp.backward([&](dtrain::Ready ready) { model.announce(ready); }); });
    }
    for (const double late : {50.0, 150.0, 290.0, 400.0, 1000.0, 5000.0}) {
      row("all_reduce_8_B", {"late_" + std::to_string(static_cast<int>(late)) + "_us", late}, reduce_one);
    }
  }

 private:
  template <class Call>
  void row(const std::string& what, const Arrival& arrival, const Call& call) const {
    if ((what + " " + arrival.name).find(only_) == std::string::npos) return;
    const auto me = static_cast<unsigned>(group_.rank());
    const auto ranks = static_cast<unsigned>(group_.world_size());
    const int calls = arrival.late > 900 ? 20 : calls_of_a_round;
    std::vector<double> behind, used;
    for (int round = 0; round < rounds_; ++round) {
      group_.barrier();
      double ideal = 0, own = 0;
      const double used_before = processor_microseconds();
      const auto begin = Clock::now();
      for (unsigned i = 0; i < static_cast<unsigned>(calls); ++i) {
        double latest = 0;
        for (unsigned rank = 0; rank < ranks; ++rank)
          latest = std::max(latest, arrival.of(i, rank));
        ideal += latest;
        own += arrival.of(i, me);
        compute(arrival.of(i, me));
        call();
      }
      behind.push_back((microseconds(Clock::now() - begin) - ideal) / calls);
      used.push_back((processor_microseconds() - used_before - own) / calls);
    }
    if (group_.rank() == group_.world_size() - 1) {  // a rank that waits, in every row
      std::printf("result %s %s %.9g %.9g %.9g\n", what.c_str(), arrival.name.c_str(),
                  *std::min_element(behind.begin(), behind.end()), bench::median(behind), bench::median(used));
    }
  }

  dtrain::ProcessGroup<P> group_;
  int rounds_;
  std::string only_;
};

template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const std::size_t last = arguments.size() - 1;
    ArrivalRank<P>(std::move(group), bench::positive("rounds", arguments[last - 1]),
                   std::string(arguments[last]).substr(1))
        .measure();
    return 0;
  });
}

int run_launched(int argc, char** argv) {
#if DTRAIN_WITH_MPI
  if (bench::is_launched_with("mpi", argc, argv)) {
    return run_rank<dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi>>(argc, argv);
  }
#endif
  return run_rank<bench::Policy>(argc, argv);
}

/// Processes that always compute, each in its own session: the scheduler gives each session its own share.
class BusyLoops {
 public:
  explicit BusyLoops(int count) {
    for (int i = 0; i < count; ++i) {
      const pid_t process = ::fork();
      if (process < 0) throw dtrain::errno_error("starting a busy loop");
      if (process == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        static_cast<void>(::setsid());
        for (;;)
          compute(1e6);
      }
      processes_.push_back(process);
    }
  }
  BusyLoops(const BusyLoops&) = delete;
  BusyLoops& operator=(const BusyLoops&) = delete;
  ~BusyLoops() {
    for (const pid_t process : processes_) {
      static_cast<void>(::kill(process, SIGKILL));
      static_cast<void>(::waitpid(process, nullptr, 0));
    }
  }

 private:
  std::vector<pid_t> processes_;
};

void measure(int ranks, const bench::Options& options, bench::ResultRows& rows) {
  const bool mpi = options.backend == "mpi";
  const int rounds = options.samples > 0 ? options.samples : default_rounds;
  const BusyLoops beside(options.beside);
  for (const std::vector<std::string>& result :
       bench::results_of_job(ranks, mpi, {mpi ? "mpi" : "shared_memory", std::to_string(rounds), "=" + options.only})) {
    const double median = std::stod(result.at(3));
    bench::Row row{bench_name, "dtrain", result.at(0), ranks, 1, 0, median * 1e-6, static_cast<std::size_t>(rounds)};
    rows.add(row.with("arrival", result.at(1))
                 .with("best_us", std::stod(result.at(2)))
                 .with("median_us", median)
                 .with("waiters_processor_us", std::stod(result.at(4)))
                 .with("backend", std::string(mpi ? "mpi" : "shared_memory"))
                 .with("beside", static_cast<double>(options.beside)));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {2, 4}, {"--backend", "--beside", "--only"});
    bench::ResultRows rows;
    for (const int ranks : options.ranks) {
      measure(ranks, options, rows);
    }
    rows.write_json(options.json);
  });
}
