#pragma once
/// @file
/// all_reduce_bench --backend=mpi: dtrain over a library's messages, beside that library's own all-reduce.

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bench/all_reduce/goals.hpp"
#include "bench/all_reduce/message_sizes.hpp"
#include "bench/all_reduce/peers.hpp"
#include "bench/all_reduce/rank_group.hpp"
#include "bench/all_reduce/results.hpp"
#include "bench/options.hpp"
#include "dtrain/core/error.hpp"

#ifndef DTRAIN_BENCH_OPENMPI
#define DTRAIN_BENCH_OPENMPI ""
#define DTRAIN_BENCH_MPIRUN ""
#endif
#ifndef DTRAIN_BENCH_MPI
#define DTRAIN_BENCH_MPI ""
#endif

namespace bench {

/// Both with the same settings of mpirun; of each system the settings that are its fastest at a size count.
class MessageBench {
 public:
  MessageBench(std::string bench, Options options)
      : bench_(std::move(bench)), options_(std::move(options)), sizes_(message_sizes(options_)) {
    if (options_.backend != "mpi") {
      throw dtrain::Error(dtrain::Errc::usage,
                          "--backend=" + options_.backend + " is not known; possible are shared_memory, mpi and gloo");
    }
  }

  void run() {
    if (std::string_view(DTRAIN_BENCH_MPI).empty() || std::string_view(DTRAIN_BENCH_OPENMPI).empty()) {
      std::printf("dtrain over MPI  missing: no MPI was found when this program was built\n");
      return;
    }
    for (const int ranks : options_.ranks) {
      measure(ranks);
    }
    goal_.print();
    rows_.write_json(options_.json);
  }

 private:
  struct Contender {
    std::string system;
    std::string settings;
    std::shared_ptr<RankGroup> team;
    std::vector<double> seconds{};
  };

  void measure(int ranks) {
    std::vector<Contender> contenders;
    for (const PeerSettings& one : openmpi_settings(ranks)) {
      GroupCommand own = openmpi_command(DTRAIN_BENCH_MPIRUN, DTRAIN_BENCH_MPI, ranks, one);
      own.words.insert(own.words.end() - 1, launched_word);
      own.words.push_back(std::to_string(message_memory(sizes_)));
      const auto team = std::make_shared<RankGroup>("dtrain", ranks, std::move(own));
      contenders.push_back({"dtrain", one.text, team});
      contenders.push_back(
          {"openmpi", one.text,
           std::make_shared<RankGroup>("openmpi", ranks,
                                       openmpi_command(DTRAIN_BENCH_MPIRUN, DTRAIN_BENCH_OPENMPI, ranks, one))});
    }
    std::printf("\n%d ranks, f32, microseconds over MPI\n%10s %12s %12s %8s  settings of each\n", ranks, "bytes",
                "dtrain", "openmpi", "ratio");
    for (const std::uint64_t bytes : sizes_) {
      take_turns(contenders, bytes);
      keep(contenders, ranks, bytes);
    }
  }

  void take_turns(std::vector<Contender>& contenders, std::uint64_t bytes) const {
    Request request = message_request(bytes);
    for (Contender& contender : contenders) {
      contender.seconds.clear();
    }
    const int rounds = options_.samples > 0 ? options_.samples : bytes >= 64 * mebi ? 3 : 7;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t turn = 0; turn < contenders.size(); ++turn) {
        Contender& contender = contenders[(turn + static_cast<std::size_t>(round)) % contenders.size()];
        const Answer answer = contender.team->ask(request);
        contender.seconds.insert(contender.seconds.end(), answer.seconds.begin(), answer.seconds.end());
      }
    }
  }

  static const Contender& fastest(const std::vector<Contender>& contenders, std::string_view system) {
    const Contender* best = nullptr;
    for (const Contender& contender : contenders) {
      const bool faster = best == nullptr || median(contender.seconds) < median(best->seconds);
      best = contender.system == system && faster ? &contender : best;
    }
    return *best;
  }

  void keep(const std::vector<Contender>& contenders, int ranks, std::uint64_t bytes) {
    const Contender& own = fastest(contenders, "dtrain");
    const Contender& peer = fastest(contenders, "openmpi");
    const double ratio = median(peer.seconds) / median(own.seconds);
    std::printf("%10s %12.2f %12.2f %8.3f  %s | %s\n", bytes_text(bytes).c_str(), median(own.seconds) * 1e6,
                median(peer.seconds) * 1e6, ratio, own.settings.c_str(), peer.settings.c_str());
    std::fflush(stdout);
    if (bytes >= 1 * mebi) {
      goal_.see(ranks, bytes, ratio);
    }
    for (const Contender* one : {&own, &peer}) {
      Row row{bench_, one == &peer ? "openmpi" : "dtrain", "all_reduce", ranks, 1, bytes, median(one->seconds)};
      row.samples = one->seconds.size();
      row = row.with("dtype", std::string("f32")).with("backend", std::string("mpi")).with("settings", one->settings);
      rows_.keep(one == &peer ? row.with("ratio", ratio) : row);
    }
  }

  std::string bench_;
  Options options_;
  std::vector<std::uint64_t> sizes_;
  RatioGoal goal_{"from 1 MiB on at most 1.05 of MPI_Allreduce's time", 1 / 1.05};
  ResultRows rows_;
};

}  // namespace bench
