// What gradient hooks save: the step of overlap_bench on two virtual hosts joined at 1 Gbit/s, 50 layers of 2 MiB, with
// no hook, with 16 bits, with PowerSGD, with the largest elements alone and with adaptive summation.

#include <cstdio>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "bench/goal.hpp"
#include "bench/hosts/policies.hpp"
#include "bench/hosts/virtual_job.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/overlap/overlap_rank.hpp"
#include "bench/result_rows.hpp"

namespace {

constexpr const char* bench_name = "hook_bench";
constexpr const char* usage_line = "[--samples=N] [--json=FILE]";

/// Runs a rank with the hook of that name. @returns whether there is one
template <class P>
bool measure(dtrain::ProcessGroup<P> group, const std::string& hook, int samples) {
  using bench::OverlapRank;
  if (hook == "none") {
    OverlapRank<P>(std::move(group), bench::no_timeline).measure(samples);
  } else if (hook == "bf16") {
    OverlapRank<P>(std::move(group), bench::no_timeline, 0.0F, dtrain::hooks::Cast<dtrain::bfloat16>())
        .measure(samples);
  } else if (hook == "bf16, error feedback") {
    OverlapRank<P>(std::move(group), bench::no_timeline, 0.0F,
                   dtrain::hooks::Cast<dtrain::bfloat16>({.error_feedback = dtrain::hooks::every_parameter}))
        .measure(samples);
  } else if (hook == "PowerSgd(4)") {
    OverlapRank<P>(std::move(group), bench::no_timeline, 1e-4F, dtrain::hooks::PowerSgd({.rank = 4})).measure(samples);
  } else if (hook == "TopK(0.01)") {  // whose step reduces a hundredth of the elements: none is checked
    constexpr float any = std::numeric_limits<float>::infinity();
    OverlapRank<P>(std::move(group), bench::no_timeline, any, dtrain::hooks::TopK({.fraction = 0.01})).measure(samples);
  } else {
    return false;
  }
  return true;
}

/// Its arguments are the backend's name, the number of samples and the hook.
template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    const int samples = bench::positive("samples", arguments[arguments.size() - 2]);
    return measure(std::move(group), arguments.back(), samples) ? 0 : 2;
  });
}

int run_launched(int argc, char** argv) {
  return bench::run_on_named_backend(bench_name, argc, argv,
                                     []<class P>(int count, char** words) { return run_rank<P>(count, words); });
}

/// All hooks on one backend. @param run starts the ranks with the arguments
template <class Run>
void measure_hooks(const char* backend, const std::string& samples, Run run, bench::ResultRows& rows) {
  const bench::VirtualHosts hosts;
  double plain_communication = 0;
  double plain_exposed = 0;
  constexpr double no_goal = 0;
  for (const auto& [hook, goal] : {std::pair<const char*, double>{"none", no_goal},
                                   {"bf16", 0.55},
                                   {"bf16, error feedback", 0.55},
                                   {"PowerSgd(4)", 0.15},
                                   {"TopK(0.01)", 0.15}}) {
    bench::Told told = run({backend, samples, hook});
    const double communication = bench::median(told.seconds["communication"]);
    const double step = bench::median(told.seconds["step"]);
    const double exposed = step - bench::compute_seconds;
    if (plain_exposed == 0) {  // the first row
      plain_communication = communication;
      plain_exposed = exposed;
    }
    bench::Row row{bench_name,  "dtrain",         "step", hosts.ranks(),
                   hosts.hosts, bench::all_bytes, step,   told.seconds["step"].size()};
    rows.add(row.with("backend", backend)
                 .with("hook", hook)
                 .with("exposed_seconds", exposed)
                 .with("exposed_ratio", exposed / plain_exposed)
                 .with("communication_seconds", communication)
                 .with("communication_ratio", communication / plain_communication));
    if (goal != no_goal) {
      bench::print_goal(bench::text_of(goal, " of the exposed communication without a hook, at most"),
                        exposed <= goal * plain_exposed, bench::text_of(exposed / plain_exposed, ""));
    }
  }
}

void measure_hosts(const bench::Options& options, bench::ResultRows& rows) {
  const std::string samples = std::to_string(options.samples > 0 ? options.samples : 5);
  if (!bench::VirtualJob::possible()) {
    std::printf("virtual hosts cannot be made here: nothing was measured\n");
    return;
  }
  const bench::VirtualJob job{bench::VirtualHosts{}};
#if DTRAIN_WITH_MPI
  measure_hooks(
      "mpi", samples, [&](std::initializer_list<std::string> arguments) { return job.run_mpi(arguments); }, rows);
#else
  std::printf("dtrain on Mpi: built without MPI\n");
#endif
#if DTRAIN_WITH_GLOO
  measure_hooks(
      "gloo", samples, [&](std::initializer_list<std::string> arguments) { return job.run_per_node(arguments); }, rows);
#else
  std::printf("dtrain on Gloo: built without Gloo\n");
#endif
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {}, {});
    bench::ResultRows rows;
    measure_hosts(options, rows);
    rows.write_json(options.json);
  });
}
