// Steps on GPUs over NCCL: beside them the same collectives by NCCL alone, and what PyTorch's DDP does with gradients
// of the same sizes. Host time is what begin, all ready and finish take of the thread that calls them; of PyTorch's it
// is what a step with DDP takes longer than one without (peers/ddp_step_pytorch.py), and never what a GPU is waited
// for.

#include "bench/ddp_step/cuda_steps.hpp"

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bench/command.hpp"
#include "bench/cuda/machine.hpp"
#include "bench/ddp_step/cuda_rank.hpp"
#include "bench/ddp_step/cuda_shard_rank.hpp"
#include "bench/ddp_step/models.hpp"
#include "bench/goal.hpp"
#include "bench/launched.hpp"
#include "bench/peer_python.hpp"
#include "bench/phase.hpp"

namespace bench {
namespace {

constexpr int usual_samples = 15;
constexpr std::chrono::seconds job_time(120);

/// Medians: of a step, by the slowest rank; of what a step takes of one rank's thread.
struct StepSeconds {
  double step = 0;
  double host = 0;
};

StepSeconds seconds_of(Told& told, const char* step, const char* host) {
  return {median(told.seconds[step]) / steps_together, median(told.facts[host])};
}

/// One model on some ranks.
class CudaSteps {
 public:
  CudaSteps(const char* bench_name, const CudaMachine& machine, ModelShapes model, int ranks, int samples,
            ResultRows& rows)
      : bench_name_(bench_name),
        machine_(machine),
        model_(std::move(model)),
        ranks_(ranks),
        samples_(samples),
        rows_(rows) {}

  void run(const PeerPython& python) {
    tell_phase(std::to_string(ranks_) + " ranks of dtrain with " + model_.name);
    Told told = told_by({own_path(), "--nproc-per-node=" + std::to_string(ranks_), launched_word, "cuda", model_.name,
                         std::to_string(samples_)});
    const double buckets = told.facts["buckets"].front();
    dtrain_ = seconds_of(told, "step", "host_step");
    const StepSeconds bare = seconds_of(told, "bare", "host_bare");
    const auto plan = [&](Row row) { return row.with("plan", text_of(buckets, " buckets")); };
    rows_.add(plan(row("dtrain", "step without overlap", dtrain_.step)).with("times_limit", dtrain_.step / bare.step));
    rows_.add(row("nccl", "its collectives alone", bare.step).with("ratio", bare.step / dtrain_.step));
    rows_.add(plan(row("dtrain", "host time of a step", dtrain_.host)));
    rows_.add(row("nccl", "host time of these", bare.host).with("ratio", bare.host / dtrain_.host));
    if (communicates()) {
      print_goal("a step on " + std::to_string(ranks_) + " ranks at most 1.02 times its collectives alone",
                 dtrain_.step <= 1.02 * bare.step, text_of(dtrain_.step / bare.step, " times"));
    } else {
      std::printf(
          "         1 rank: no communication; the collectives alone are kernels of NCCL's that copy in place\n");
    }
    run_adamw();
    try {
      run_peer(python);
    } catch (const dtrain::Error& error) {
      std::printf("pytorch: %s\n", error.what());  // dtrain's rows stay
    }
  }

 private:
  /// One rank shows what dtrain itself takes, and nothing of NCCL.
  bool communicates() const noexcept { return ranks_ > 1; }

  Row row(const char* system, const char* what, double seconds) const {
    Row row{bench_name_, system,
            what,        ranks_,
            1,           static_cast<std::uint64_t>(model_.elements()) * sizeof(float),
            seconds,     static_cast<std::size_t>(samples_)};
    row.with("backend", "nccl").with("model", model_.name);
    if (!communicates()) row.with("note", "no communication");
    if (ranks_ > machine_.devices) row.with("note", "ranks share a GPU: host times count, device times do not");
    return machine_.describe(row);
  }

  void run_adamw() {
    tell_phase(std::to_string(ranks_) + " ranks of dtrain with AdamW and " + model_.name);
    Told told = told_by({own_path(), "--nproc-per-node=" + std::to_string(ranks_), launched_word, "adamw", model_.name,
                         std::to_string(samples_)});
    const StepSeconds whole = seconds_of(told, "whole", "host_whole");
    sharded_ = seconds_of(told, "sharded", "host_sharded");
    rows_.add(row("dtrain", "step, AdamW on every rank", whole.step));
    rows_.add(row("dtrain", "step, ShardedOptimizer", sharded_.step).with("ratio", sharded_.step / whole.step));
    rows_.add(row("dtrain", "host time, AdamW on every rank", whole.host));
    rows_.add(row("dtrain", "host time, ShardedOptimizer", sharded_.host).with("ratio", sharded_.host / whole.host));
    if (communicates()) {
      print_goal("on two ranks or more, a step with ShardedOptimizer at most 1.05 times one with AdamW on every rank",
                 sharded_.step <= 1.05 * whole.step, text_of(sharded_.step / whole.step, " times"));
    } else {
      std::printf(
          "         1 rank: ShardedOptimizer moves 28 / 1 + 8 bytes of a parameter, AdamW 28: 1.29 times by bytes; "
          "%s\n",
          text_of(sharded_.step / whole.step, " times in fact").c_str());
    }
  }

  Told told_by(std::vector<std::string> command, std::string* output_text = nullptr) const {
    const CommandOutput output = run_command(std::move(command), dtrain::Deadline::after(job_time));
    Told told = Told::from(output.text);
    if (!output.succeeded || told.facts["buckets"].size() != static_cast<std::size_t>(ranks_)) {
      throw dtrain::Error(dtrain::Errc::protocol, "a job of " + std::to_string(ranks_) + " ranks with " + model_.name +
                                                      " failed, or took longer than " +
                                                      std::to_string(job_time.count()) + " s");
    }
    if (output_text != nullptr) {
      *output_text = output.text;
    }
    return told;
  }

  /// PyTorch's own backward pass is taken off: what is left is DDP's.
  void run_peer(const PeerPython& python) {
    if (!python.present()) {
      std::printf("pytorch: missing: no torch with CUDA in %s; DTRAIN_PEER_PYTHON names a Python that has it\n",
                  python.looked_in().c_str());
      return;
    }
    tell_phase(std::to_string(ranks_) + " ranks of PyTorch with " + model_.name);
    std::string sizes;
    for (const std::int64_t size : model_.sizes) {
      sizes += (sizes.empty() ? "" : ",") + std::to_string(size);
    }
    std::string text;
    Told told = told_by({python.path(), std::string(DTRAIN_BENCH_DIR) + "/peers/ddp_step_pytorch.py", "cuda",
                         std::to_string(ranks_), std::to_string(samples_), std::to_string(steps_together), sizes},
                        &text);
    const StepSeconds ddp = seconds_of(told, "ddp", "host_ddp");
    const StepSeconds plain = seconds_of(told, "plain", "host_plain");
    const auto add = [&](const char* what, double with, double without, double own) {
      Row added = row("pytorch", what, with - without);
      added.with("ratio", (with - without) / own).with("with_ddp_seconds", with).with("without_ddp_seconds", without);
      rows_.add(added.with("peer", version(text)));
    };
    add("step, DDP's share", ddp.step, plain.step, dtrain_.step);
    add("host time, DDP's share", ddp.host, plain.host, dtrain_.host);
    const StepSeconds zero = seconds_of(told, "zero", "host_zero");
    add("step, DDP and ZeroRedundancyOptimizer", zero.step, plain.step, sharded_.step);
    add("host time, DDP and ZeroRedundancyOptimizer", zero.host, plain.host, sharded_.host);
    const double zero_share = sharded_.host / (zero.host - plain.host);
    print_goal("host time with ShardedOptimizer at most 1/5 of ZeroRedundancyOptimizer's",
               zero_share > 0 && zero_share <= 0.2, text_of(zero_share, " of it"));
    const double share = dtrain_.host / (ddp.host - plain.host);
    print_goal(
        communicates() ? "host time at most 1/5 of PyTorch's" : "host time without communication below PyTorch's",
        share > 0 && share <= (communicates() ? 0.2 : 1), text_of(share, " of it"));
  }

  /// What the line "version TEXT" says.
  static std::string version(const std::string& text) {
    const std::size_t begin = text.find("version ");
    return begin == std::string::npos ? "unknown" : text.substr(begin + 8, text.find('\n', begin) - begin - 8);
  }

  const char* bench_name_;
  const CudaMachine& machine_;
  ModelShapes model_;
  int ranks_;
  int samples_;
  ResultRows& rows_;
  StepSeconds dtrain_;
  StepSeconds sharded_;  ///< with ShardedOptimizer
};

/// "2.28.9", of the library and not of its header.
std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) {
    return "unknown";
  }
  return dtrain::backend::nccl::version_text(code);
}

/// NCCL from 2.30.3 on lets ranks share a GPU where it is told to.
bool ranks_may_share_a_device() {
  const char* const allowed = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  return allowed != nullptr && std::strcmp(allowed, "1") == 0;
}

}  // namespace

void measure_cuda_steps(const char* bench_name, const Options& options, ResultRows& rows) {
  CudaMachine machine = CudaMachine::look();
  machine.versions += ", NCCL " + nccl_version();
  std::vector<int> all_ranks = options.ranks;
  if (all_ranks.empty()) {
    all_ranks = machine.devices > 1 ? std::vector<int>{1, machine.devices} : std::vector<int>{1};
  }
  std::printf("%s (%d of them), %s\nlibraries: %s\n", machine.device.c_str(), machine.devices, machine.versions.c_str(),
              machine.libraries.c_str());
  tell_phase("looking for PyTorch");
  const PeerPython python("import sys, torch; sys.exit(not torch.cuda.is_available())");
  for (const int ranks : all_ranks) {
    if (ranks > machine.devices && !ranks_may_share_a_device()) {
      std::printf(
          "%d ranks: left out: %d GPUs are visible; NCCL_MULTI_RANK_GPU_ENABLE=1 lets ranks of NCCL 2.30.3 "
          "share one\n",
          ranks, machine.devices);
      continue;
    }
    for (const ModelShapes& model : models_of(options.model)) {
      CudaSteps(bench_name, machine, model, ranks, options.samples > 0 ? options.samples : usual_samples, rows)
          .run(python);
      rows.write_json(options.json);  // what has ended stays if a time limit ends this program
    }
  }
}

int run_cuda_step_rank(int argc, char** argv) {
  return dtrain::run<NcclPolicy>(argc, argv, [](dtrain::ProcessGroup<NcclPolicy> group, dtrain::Arguments arguments) {
    if (arguments.size() < 5) {
      return 2;
    }
    const std::vector<std::int64_t> sizes = model_named(arguments[3]).sizes;
    const int samples = positive("samples", arguments[4]);
    if (arguments[2] == std::string("adamw")) {
      CudaShardRank(std::move(group), sizes).measure(samples);
    } else {
      CudaStepRank(std::move(group), sizes).measure(samples);
    }
    return 0;
  });
}

}  // namespace bench
