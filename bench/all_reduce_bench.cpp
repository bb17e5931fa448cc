// How long an all-reduce of one host's ranks takes: dtrain in arena memory and in foreign memory, Open MPI, Gloo
// (through PyTorch), and the limit, which is the same loads and stores without synchronisation. All ranks of all
// systems are started once; then the systems take turns, a few samples each.
// With --backend=mpi: dtrain over MPI beside MPI_Allreduce; with --backend=gloo: dtrain over Gloo beside Gloo's own.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/all_reduce/dtrain_rank.hpp"
#include "bench/all_reduce/gloo_bench.hpp"
#include "bench/all_reduce/goals.hpp"
#include "bench/all_reduce/message_bench.hpp"
#include "bench/all_reduce/peers.hpp"
#include "bench/all_reduce/rank_group.hpp"
#include "bench/all_reduce/results.hpp"
#include "bench/options.hpp"
#include "dtrain/core/process/control_groups.hpp"

namespace {

using bench::kibi;
using bench::Measured;
using bench::mebi;
using bench::RankGroup;
using bench::Request;
using bench::SizeResult;

constexpr const char* bench_name = "all_reduce_bench";
constexpr const char* usage_line =
    "[--ranks=2,4] [--bytes=4,65536] [--backend=shared_memory|mpi|gloo] [--samples=N] [--json=FILE]";
constexpr int rounds = 5;

/// With two ranks and from 2 MiB on 128 MiB, more than a last-level cache holds.
int buffers_of(std::uint64_t bytes) {
  return static_cast<int>(std::clamp<std::uint64_t>(64 * mebi / bytes, 2, 32));
}

/// One thing to measure in turns: a team, and what it is asked for.
struct Contender {
  RankGroup* team;
  std::string name;      ///< in SizeResult
  std::string memory;    ///< in Request
  std::string settings;  ///< of several contenders of one name the fastest counts
  std::string dtype = "f32";
  std::vector<double> seconds{};
  std::string missing{};
};

class AllReduceBench {
 public:
  explicit AllReduceBench(bench::Options options) : options_(std::move(options)) {
    sizes_ = {4,          64,       1 * kibi, 4 * kibi,  16 * kibi, 64 * kibi,
              256 * kibi, 1 * mebi, 4 * mebi, 16 * mebi, 64 * mebi, 256 * mebi};
    if (!options_.bytes.empty()) {
      sizes_.assign(options_.bytes.begin(), options_.bytes.end());
    }
  }

  void run() {
    if (std::strlen(DTRAIN_BENCH_OPENMPI) == 0) {
      std::printf("openmpi  missing: no MPI was found when this program was built\n");
    }
    if (!gloo_.present()) {
      std::printf("gloo     missing: no torch with Gloo in %s (set DTRAIN_PEER_PYTHON)\n", gloo_.looked_in().c_str());
    }
    for (const int ranks : options_.ranks) {
      measure(ranks);
    }
    std::printf("\n");
    bench::print_goals(results_);
    half_.print();
    rows_.write_json(options_.json);
  }

 private:
  void measure(int ranks) {
    const std::vector<std::uint64_t> sizes = sizes_that_fit(ranks);
    std::size_t most = 0;
    for (const std::uint64_t bytes : sizes) {
      most = std::max(most, bench::buffer_stride(bytes) * static_cast<std::size_t>(buffers_of(bytes)));
    }
    RankGroup dtrain("dtrain", ranks, bench::dtrain_command(ranks, most));
    std::vector<std::unique_ptr<RankGroup>> openmpi;
    const std::vector<bench::PeerSettings> settings = bench::openmpi_settings(ranks);
    for (const bench::PeerSettings& one : settings) {
      if (std::strlen(DTRAIN_BENCH_OPENMPI) != 0) {
        openmpi.push_back(std::make_unique<RankGroup>(
            "openmpi", ranks, bench::openmpi_command(DTRAIN_BENCH_MPIRUN, DTRAIN_BENCH_OPENMPI, ranks, one)));
      }
    }
    std::unique_ptr<RankGroup> gloo;
    if (gloo_.present()) {
      gloo = std::make_unique<RankGroup>("gloo", ranks, bench::gloo_command(gloo_.path(), ranks));
    }
    bench::print_table_head(ranks);
    for (const std::uint64_t bytes : sizes) {
      std::vector<Contender> contenders{{&dtrain, "bound", "bound", ""}, {&dtrain, "foreign", "foreign", ""}};
      for (std::size_t i = 0; i < openmpi.size(); ++i) {
        contenders.push_back({openmpi[i].get(), "openmpi", "own", settings[i].text});
      }
      if (gloo) {
        contenders.push_back({gloo.get(), "gloo", "own", ""});
      }
      if (bytes >= 256 * kibi && (ranks == 2 || ranks == 4) && bench::has_limit()) {
        for (const std::string& kernel : bench::limit_kernels()) {
          contenders.push_back({&dtrain, "limit", "limit-" + kernel, kernel});
        }
      }
      take_turns(contenders, bytes);
      keep(contenders, ranks, bytes);
    }
    measure_half(dtrain, ranks, sizes);
  }

  /// Every system has its buffers at once.
  std::vector<std::uint64_t> sizes_that_fit(int ranks) const {
    std::vector<std::uint64_t> sizes;
    const std::uint64_t available = dtrain::available_memory_bytes();
    for (const std::uint64_t bytes : sizes_) {
      const std::uint64_t needed = 6 * static_cast<std::uint64_t>(ranks * buffers_of(bytes)) * bytes;
      if (bytes % 4 != 0) {
        throw dtrain::Error(dtrain::Errc::usage, "--bytes: " + bench::bytes_text(bytes) + " is no number of f32");
      }
      if (needed > available) {
        std::printf("%d ranks with %s: left out, because the host has too little memory\n", ranks,
                    bench::bytes_text(bytes).c_str());
      } else {
        sizes.push_back(bytes);
      }
    }
    return sizes;
  }

  /// The first round finds out which of several contenders of a name is the fastest (the others are not asked again),
  /// and who is slow and gives fewer samples.
  void take_turns(std::vector<Contender>& contenders, std::uint64_t bytes) const {
    Request request;
    request.bytes = bytes;
    request.buffers = buffers_of(bytes);
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
        Contender& contender = contenders[(turn + static_cast<std::size_t>(round)) % contenders.size()];
        if (!contender.missing.empty() || (round > 0 && is_slower_than_a_namesake(contender, contenders))) {
          continue;
        }
        const double sample_seconds = round == 0 ? 0 : bench::median(contender.seconds) * request.buffers;
        request.samples = samples_of(bytes, sample_seconds);
        request.warm_ups = round == 0 || sample_seconds < 0.02 ? 1 : 0;
        request.memory = contender.memory;
        request.dtype = contender.dtype;
        const bench::Answer answer = contender.team->ask(request);
        contender.missing = answer.missing;
        contender.seconds.insert(contender.seconds.end(), answer.seconds.begin(), answer.seconds.end());
      }
    }
  }

  /// In one round.
  int samples_of(std::uint64_t bytes, double sample_seconds) const {
    const int most = options_.samples > 0 ? (options_.samples + rounds - 1) / rounds
                     : bytes <= 64 * kibi ? 10
                     : bytes <= 4 * mebi  ? 3
                                          : 1;
    return sample_seconds == 0 || sample_seconds > 0.05 ? 1 : most;
  }

  static bool is_slower_than_a_namesake(const Contender& contender, const std::vector<Contender>& all) {
    return contender.name != "limit" && std::any_of(all.begin(), all.end(), [&](const Contender& other) {
             return other.name == contender.name && bench::median(other.seconds) < bench::median(contender.seconds);
           });
  }

  void keep(const std::vector<Contender>& contenders, int ranks, std::uint64_t bytes) {
    SizeResult result{ranks, bytes};
    std::map<std::string, std::size_t> most_samples;
    for (const Contender& contender : contenders) {
      most_samples[contender.name] = std::max(most_samples[contender.name], contender.seconds.size());
    }
    for (const Contender& contender : contenders) {
      Measured measured{contender.seconds, contender.settings};
      const bool whole = !contender.seconds.empty() && contender.seconds.size() == most_samples[contender.name];
      if (whole && (!result.has(contender.name) || measured.at_median() < result.seconds(contender.name))) {
        result.of[contender.name] = std::move(measured);
      }
    }
    bench::print_table_line(result);
    bench::keep_rows(rows_, bench_name, result);
    results_.push_back(std::move(result));
  }

  /// The 16-bit types beside f32, in turns.
  void measure_half(RankGroup& dtrain, int ranks, const std::vector<std::uint64_t>& sizes) {
    for (const std::uint64_t bytes : {64 * kibi, 4 * mebi, 64 * mebi}) {
      if (std::find(sizes.begin(), sizes.end(), bytes) == sizes.end()) {
        continue;
      }
      std::vector<Contender> types;
      for (const std::string dtype : {"f32", "f16", "bf16"}) {
        types.push_back({&dtrain, dtype, "bound", "", dtype});
      }
      take_turns(types, bytes);
      keep_half(types[0], types[1], ranks, bytes);
      keep_half(types[0], types[2], ranks, bytes);
    }
  }

  void keep_half(const Contender& full, const Contender& half, int ranks, std::uint64_t bytes) {
    if (!half.missing.empty()) {
      std::printf("%10s %s: missing: %s\n", bench::bytes_text(bytes).c_str(), half.name.c_str(), half.missing.c_str());
      return;
    }
    const double speed = bench::median(full.seconds) / bench::median(half.seconds);
    std::printf("%10s %11.2f %s: %.3f of f32's bytes a second (%.2f)\n", bench::bytes_text(bytes).c_str(),
                bench::median(half.seconds) * 1e6, half.name.c_str(), speed, bench::median(full.seconds) * 1e6);
    std::fflush(stdout);
    half_.see(ranks, bytes, speed);
    bench::Row row{bench_name, "dtrain", "all_reduce", ranks, 1, bytes, bench::median(half.seconds)};
    row.samples = half.seconds.size();
    rows_.keep(row.with("dtype", half.name).with("buffer", std::string("bound")).with("of_f32", speed));
  }

  bench::Options options_;
  std::vector<std::uint64_t> sizes_;
  bench::PeerPython gloo_{"import torch.distributed as d; assert d.is_gloo_available()"};
  std::vector<SizeResult> results_;
  bench::RatioGoal half_{"f16 and bf16 at least 0.8 of f32's bytes a second", 0.8};
  bench::ResultRows rows_;
};

}  // namespace

int main(int argc, char** argv) {
  if (bench::is_launched(argc, argv)) {
    return bench::run_rank<bench::Policy>(argc, argv);
  }
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    const bench::Options options = bench::Options::parse(argc, argv, {2, 4}, {"--bytes", "--backend"});
    if (options.backend.empty() || options.backend == "shared_memory") {
      AllReduceBench(options).run();
    } else if (options.backend == "gloo") {
      bench::GlooBench(bench_name, options).run();
    } else {
      bench::MessageBench(bench_name, options).run();
    }
  });
}
