// One all-reduce of 100 MiB between two virtual hosts of two ranks, joined at 1 Gbit/s, along each topology; MPI's own
// beside them, and as many bytes as Hierarchical sends in MPI's messages alone. A reduce-scatter and an all-gather
// after it, as in a step of a sharded optimizer, along Hierarchical and Flat. S / B is what the bytes of either take on
// the link.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/goal.hpp"
#include "bench/hosts/policies.hpp"
#include "bench/hosts/virtual_job.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"

namespace {

constexpr const char* bench_name = "topology_bench";
constexpr const char* usage_line = "[--samples=N] [--json=FILE]";
constexpr std::size_t elements = std::size_t{25} << 20;
constexpr std::size_t bytes = elements * sizeof(float);
constexpr const char* all_reduce = "all_reduce";
constexpr const char* scatter_and_gather = "scatter_and_gather";

bench::VirtualHosts two_by_two() {
  bench::VirtualHosts hosts;
  hosts.ranks_per_host = 2;
  return hosts;
}

/// The longest that a topology may take, in S / B.
struct Goal {
  const char* topology;
  double times;
};
constexpr Goal goals[] = {{"Hierarchical", 1.10}, {"Ring", 1.65}};

template <class P>
class TopologyRank {
 public:
  explicit TopologyRank(dtrain::ProcessGroup<P> group)
      : group_(std::move(group)),
        channel_(dtrain::group::GroupAccess::of(group_).open_channel("bench")),
        memory_(channel_.allocate_blocking(bytes, dtrain::Deadline::after(group_.timeout()))) {}

  void measure(int samples) {
    measure(all_reduce, samples, [this](const dtrain::BufferView& view) {
      channel_.enqueue(dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum}, group_.stream());
    });
    using Topology = typename P::Topology;
    if constexpr (std::is_same_v<Topology, dtrain::topology::Flat> ||
                  std::is_same_v<Topology, dtrain::topology::Hierarchical<dtrain::backend::SharedMemory>>) {
      measure(scatter_and_gather, samples, [this](const dtrain::BufferView& view) {
        const std::size_t block = elements / static_cast<std::size_t>(group_.world_size());
        const dtrain::BufferView own{view.data + static_cast<std::size_t>(group_.rank()) * block * sizeof(float), block,
                                     view.dtype, view.device};
        channel_.enqueue(dtrain::backend::ReduceScatter{view, own, dtrain::ReduceOp::sum}, group_.stream());
        channel_.enqueue(dtrain::backend::AllGather{own, view}, group_.stream());
      });
    }
  }

 private:
  /// The first sample is a warm-up. @param enqueue `enqueue(view)` makes every rank's elements their sums
  template <class Enqueue>
  void measure(const char* what, int samples, Enqueue enqueue) {
    const std::span<float> values(reinterpret_cast<float*>(memory_.data()), elements);
    for (int sample = 0; sample <= samples; ++sample) {
      for (std::size_t i = 0; i < elements; ++i) {
        values[i] = value(sample, i) + static_cast<float>(group_.rank());
      }
      group_.barrier();
      const std::int64_t begin = bench::now_nanoseconds();
      enqueue(dtrain::buffer_view(values));
      dtrain::stream::host::Event event;
      group_.stream().record(event);
      dtrain::backend::block_until_complete(event, channel_, *dtrain::group::GroupAccess::of(group_).failure(),
                                            group_.timeout(), group_.rank());
      const std::int64_t end = bench::now_nanoseconds();
      if (sample > 0) {
        bench::tell_interval(what, sample, {begin, end});
      }
      const float ranks = static_cast<float>(group_.world_size());
      for (std::size_t i = 0; i < elements; ++i) {
        if (values[i] != ranks * value(sample, i) + ranks * (ranks - 1) / 2) {
          throw dtrain::Error(dtrain::Errc::protocol, "a sum is wrong");
        }
      }
    }
  }

  static float value(int sample, std::size_t i) noexcept {
    return static_cast<float>(sample % 5) + static_cast<float>(i % 7);
  }

  dtrain::ProcessGroup<P> group_;
  typename dtrain::ProcessGroup<P>::Communicator channel_;
  typename dtrain::ProcessGroup<P>::Communicator::Allocation memory_;
};

template <class P>
int run_rank(int argc, char** argv) {
  return dtrain::run<P>(argc, argv, [](dtrain::ProcessGroup<P> group, dtrain::Arguments arguments) {
    TopologyRank<P>(std::move(group)).measure(bench::positive("samples", arguments.back()));
    return 0;
  });
}

/// The policies of one launcher and backend. @returns -1 where this is no rank of theirs
template <class Launcher, class Backend>
int run_launched_on(const std::string& backend, int argc, char** argv) {
  namespace topology = dtrain::topology;
  int code = -1;
  const auto run_if = [&]<class T>(const char* name, std::type_identity<T>) {
    if (code < 0 && bench::is_launched_with((backend + "-" + name).c_str(), argc, argv)) {
      code = run_rank<dtrain::Policy<Launcher, Backend, T>>(argc, argv);
    }
  };
  run_if("Flat", std::type_identity<topology::Flat>{});
  run_if("Ring", std::type_identity<topology::Ring>{});
  run_if("Tree", std::type_identity<topology::Tree>{});
  run_if("Hierarchical", std::type_identity<topology::Hierarchical<dtrain::backend::SharedMemory>>{});
  run_if("HierarchicalBf16",
         std::type_identity<topology::Hierarchical<dtrain::backend::SharedMemory, dtrain::wire::Bf16>>{});
  run_if("ParameterServer", std::type_identity<topology::ParameterServer<2>>{});
  return code;
}

int run_launched(int argc, char** argv) {
  int code = -1;
#if DTRAIN_WITH_MPI
  code = run_launched_on<dtrain::launch::PerProcess, dtrain::backend::Mpi>("mpi", argc, argv);
#endif
#if DTRAIN_WITH_GLOO
  code = code >= 0 ? code : run_launched_on<dtrain::launch::PerNode, dtrain::backend::Gloo>("gloo", argc, argv);
#endif
  if (code < 0) {
    std::fprintf(stderr, "%s: no backend that this program was built with is asked for\n", bench_name);
    static_cast<void>(argc);
    static_cast<void>(argv);
    return 2;
  }
  return code;
}

class Bench {
 public:
  explicit Bench(const bench::Options& options)
      : samples_(std::to_string(options.samples > 0 ? options.samples : 5)), json_(options.json) {}

  void run() {
#if DTRAIN_WITH_MPI
    run_backend("mpi", [this](const std::string& kind) { return job_.run_mpi({kind, samples_}); });
#else
    std::printf("dtrain on Mpi, and MPI's own: built without MPI\n");
#endif
#if DTRAIN_WITH_GLOO
    run_backend("gloo", [this](const std::string& kind) { return job_.run_per_node({kind, samples_}); });
#else
    std::printf("dtrain on Gloo: built without Gloo\n");
#endif
#ifdef DTRAIN_BENCH_TOPOLOGY_OPENMPI
    bench::Told told = job_.run_mpi_program(DTRAIN_BENCH_TOPOLOGY_OPENMPI, {samples_});
    add("openmpi", "mpi", "its own", all_reduce, told);
    add("limit", "mpi", "Hierarchical", "messages", told);
#endif
    rows_.write_json(json_);
  }

 private:
  template <class Run>
  void run_backend(const char* backend, Run run) {
    for (const char* topology : {"Hierarchical", "HierarchicalBf16", "Ring", "Tree", "ParameterServer", "Flat"}) {
      bench::Told told = run(std::string(backend) + "-" + topology);
      const double times = add("dtrain", backend, topology, all_reduce, told);
      for (const Goal& goal : goals) {
        if (goal.topology == std::string(topology)) {
          bench::print_goal(std::string(topology) + " at most " + bench::text_of(goal.times, " S / B"),
                            times <= goal.times, bench::text_of(times, ""));
        }
      }
      if (!told.seconds[scatter_and_gather].empty()) {
        add("dtrain", backend, topology, scatter_and_gather, told);
      }
    }
  }

  double add(const char* system, const char* backend, const char* topology, const char* what, bench::Told& told) {
    const std::vector<double>& samples = told.seconds[what];
    const double seconds = bench::median(samples);
    const double times = seconds / (static_cast<double>(bytes) / hosts_.bytes_per_second);
    rows_.add(bench::Row{bench_name, system, what, hosts_.ranks(), hosts_.hosts, bytes, seconds, samples.size()}
                  .with("backend", backend)
                  .with("topology", topology)
                  .with("times_link", times));
    return times;
  }

  const bench::VirtualHosts hosts_ = two_by_two();
  const bench::VirtualJob job_{two_by_two()};
  const std::string samples_;
  const std::string json_;
  bench::ResultRows rows_;
};

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return run_launched(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {4});
    if (!bench::VirtualJob::possible()) {
      std::printf("virtual hosts cannot be made here: nothing was measured\n");
      return;
    }
    Bench(options).run();
  });
}
