// A training step of dtrain::libtorch::DistributedDataParallel beside one of PyTorch's DistributedDataParallel in
// Python and one of c10d::Reducer in C++, both over Gloo: what a step exposes of the communication, measured against
// steps of the same network without any, which take turns with it.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <unistd.h>

#include "bench/command.hpp"
#include "bench/goal.hpp"
#include "bench/intervals.hpp"
#include "bench/launched.hpp"
#include "bench/libtorch/rank.hpp"
#include "bench/options.hpp"
#include "bench/peer_python.hpp"
#include "bench/result_rows.hpp"
#if DTRAIN_BENCH_REDUCER
#include "bench/libtorch/reducer_rank.hpp"
#endif

namespace {

constexpr const char* bench_name = "libtorch_bench";
constexpr const char* usage_line = "[--samples=N] [--json=FILE]";
constexpr int runs = 5;  ///< of each system, in turns
constexpr const char* modes[] = {"none", "kept"};

using Group = dtrain::ProcessGroup<bench::Policy>;

void measure_dtrain(const Group& group, const std::string& model, int samples) {
  torch::nn::Sequential net = bench::make_network(model);
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  bench::measure_steps(
      model, net, samples, [&] { group.barrier(); },
      [&](const torch::Tensor& inputs) { ddp.backward(ddp(inputs).square().mean()); });
}

/// The arguments end with the word launched_word, the system, the network, the number of samples and a file.
int run_rank(const Group& group, dtrain::Arguments arguments) {
  const std::size_t count = arguments.size();
  const std::string system = arguments[count - 4];
  const std::string model = arguments[count - 3];
  const int samples = bench::positive("samples", arguments[count - 2]);
  torch::set_num_threads(1);
  torch::manual_seed(1);
  if (system == "dtrain") {
    measure_dtrain(group, model, samples);
    return 0;
  }
#if DTRAIN_BENCH_REDUCER
  bench::measure_reducer(model, samples, group.rank(), group.world_size(), arguments[count - 1]);
  return 0;
#else
  return 2;
#endif
}

/// What one system's runs measured, of each kind of step. [s]
struct Measured {
  std::map<std::string, std::vector<double>> steps{};      ///< of each run the median
  std::map<std::string, std::vector<double>> exposed{};    ///< of each run and mode; see difference()
  std::map<std::string, std::vector<double>> processor{};  ///< of each run and mode, over steps without an exchange

  void add(bench::Told& told) {
    for (const std::string mode : modes) {
      for (const char* what : {"plain.", "step."}) {
        steps[what + mode].push_back(bench::median(told.seconds[what + mode]));
      }
      exposed[mode].push_back(difference(told.seconds["step." + mode], told.seconds["plain." + mode]));
      processor[mode].push_back(
          difference(told.facts["processor.step." + mode], told.facts["processor.plain." + mode]));
    }
  }

 private:
  /// The median of what steps take longer than those without an exchange right before or after them.
  static double difference(const std::vector<double>& with, const std::vector<double>& without) {
    std::vector<double> differences;
    for (std::size_t i = 0; i < std::min(with.size(), without.size()); ++i) {
      differences.push_back(with[i] - without[i]);
    }
    return bench::median(differences);
  }
};

void run_once(const std::string& system, const std::string& model, int ranks, int samples,
              const bench::PeerPython& python, Measured& measured) {
  std::vector<std::string> command{
      bench::own_path(),      "--nproc-per-node=" + std::to_string(ranks), bench::launched_word, system, model,
      std::to_string(samples)};
  const std::string meeting = "/tmp/dtrain_libtorch_bench." + std::to_string(::getpid());
  if (system == "PyTorch") {
    command = {python.path(), std::string(DTRAIN_BENCH_DIR) + "/peers/libtorch_pytorch.py", std::to_string(ranks),
               model, std::to_string(samples)};
  }
  command.push_back(meeting);
  const bench::CommandOutput output = bench::run_command(command, dtrain::Deadline::after(std::chrono::seconds(300)));
  ::unlink(meeting.c_str());
  bench::Told told = bench::Told::from(output.text);
  if (!output.succeeded || told.facts["processor.step.none"].size() != static_cast<std::size_t>(ranks)) {
    throw dtrain::Error(dtrain::Errc::protocol, "a job of " + system + " with " + model + " failed");
  }
  measured.add(told);
}

void add_row(bench::ResultRows& rows, const std::string& system, const std::string& model, const std::string& mode,
             int ranks, int samples, Measured& measured) {
  bench::Row row{bench_name,
                 system,
                 "zero_grad " + mode,
                 ranks,
                 1,
                 0,
                 bench::median(measured.steps["step." + mode]),
                 static_cast<std::size_t>(runs * samples)};
  rows.add(row.with("model", model)
               .with("plain_seconds", bench::median(measured.steps["plain." + mode]))
               .with("exposed_seconds", bench::median(measured.exposed[mode]))
               .with("processor_seconds_over_plain", bench::median(measured.processor[mode])));
}

void measure(const std::string& model, int samples, const std::vector<std::string>& systems,
             const bench::PeerPython& python, bench::ResultRows& rows) {
  std::map<std::string, Measured> measured;
  Measured alone;
  for (int run = 0; run < runs; ++run) {
    for (const std::string& system : systems) {
      run_once(system, model, 2, samples, python, measured[system]);
    }
    run_once("dtrain", model, 1, samples, python, alone);
  }
  for (const std::string mode : modes) {
    Measured& own = measured["dtrain"];
    for (const std::string& system : systems) {
      Measured& peer = measured[system];
      add_row(rows, system, model, mode, 2, samples, peer);
      if (system != "dtrain") {
        const double ratio = bench::median(own.exposed[mode]) / bench::median(peer.exposed[mode]);
        bench::print_goal("exposed communication at most 1/5 of " + system + "'s", ratio <= 0.2,
                          bench::text_of(ratio, " times"));
        const double steps = bench::median(own.steps["step." + mode]) / bench::median(peer.steps["step." + mode]);
        bench::print_goal("a step no slower than " + system + "'s", steps <= 1, bench::text_of(steps, " times"));
      }
    }
    add_row(rows, "dtrain", model, mode, 1, samples, alone);
    const double overhead = bench::median(alone.exposed[mode]) / bench::median(alone.steps["plain." + mode]);
    bench::print_goal("on one rank at most 1% more than without dtrain", overhead <= 0.01,
                      bench::text_of(100 * overhead, "%"));
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return dtrain::run<bench::Policy>(
        argc, argv, [](Group group, dtrain::Arguments arguments) { return run_rank(group, arguments); });
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {});
    const int samples = options.samples > 0 ? options.samples : 5;
    std::vector<std::string> systems{"dtrain"};
#if DTRAIN_BENCH_REDUCER
    systems.emplace_back("c10d::Reducer");
#else
    std::printf("c10d::Reducer: missing, because LibTorch is older than 2 or Gloo's headers (libgloo-dev) were not found\n");
#endif
    const std::string version = std::to_string(TORCH_VERSION_MAJOR) + "." + std::to_string(TORCH_VERSION_MINOR) + ".";
    const bench::PeerPython python("import torch.distributed; assert torch.distributed.is_available(); assert torch." +
                                   std::string("__version__.startswith('") + version + "')");
    if (python.present()) {
      systems.emplace_back("PyTorch");
    } else {
      std::printf("PyTorch: missing, because none of %s has torch.distributed of %sx\n", python.looked_in().c_str(),
                  version.c_str());
    }
    bench::ResultRows rows;
    for (const char* model : bench::torch_models) {
      measure(model, samples, systems, python, rows);
    }
    rows.write_json(options.json);
  });
}
