#pragma once
/// @file
/// all_reduce_bench --backend=gloo: dtrain over Gloo's messages, beside Gloo's own all-reduces, in the same processes.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "bench/all_reduce/goals.hpp"
#include "bench/all_reduce/message_sizes.hpp"
#include "bench/all_reduce/rank_group.hpp"
#include "bench/all_reduce/results.hpp"
#include "bench/options.hpp"

#ifndef DTRAIN_BENCH_GLOO
#define DTRAIN_BENCH_GLOO ""
#endif

namespace bench {

/// One team; it is asked for each way in turns.
class GlooBench {
 public:
  GlooBench(std::string bench, Options options)
      : bench_(std::move(bench)), options_(std::move(options)), sizes_(message_sizes(options_)) {}

  void run() {
    if (std::string(DTRAIN_BENCH_GLOO).empty()) {
      std::printf("gloo     missing: no Gloo was found when this program was built (libgloo-dev)\n");
      return;
    }
    for (const int ranks : options_.ranks) {
      measure(ranks);
    }
    goal_.print();
    rows_.write_json(options_.json);
  }

 private:
  /// dtrain's, Gloo's choice, and its other algorithm.
  static constexpr std::array<const char*, 3> ways{"foreign", "ring", "bcube"};
  using Seconds = std::array<std::vector<double>, ways.size()>;

  void measure(int ranks) {
    RankGroup team("gloo", ranks,
                   {{DTRAIN_BENCH_GLOO, "--nproc-per-node=" + std::to_string(ranks), "{socket}",
                     std::to_string(message_memory(sizes_))},
                    {}});
    std::printf("\n%d ranks, f32, microseconds over Gloo\n%10s %12s %12s %12s %14s\n", ranks, "bytes", "dtrain",
                "gloo ring", "gloo bcube", "better/dtrain");
    for (const std::uint64_t bytes : sizes_) {
      keep(take_turns(team, bytes), ranks, bytes);
    }
  }

  Seconds take_turns(RankGroup& team, std::uint64_t bytes) const {
    Request request = message_request(bytes);
    Seconds seconds;
    const int rounds = options_.samples > 0 ? options_.samples : bytes >= 64 * mebi ? 5 : 9;
    for (int round = 0; round < rounds; ++round) {
      for (std::size_t turn = 0; turn < ways.size(); ++turn) {
        const std::size_t way = (turn + static_cast<std::size_t>(round)) % ways.size();
        request.memory = ways[way];
        const Answer answer = team.ask(request);
        seconds[way].insert(seconds[way].end(), answer.seconds.begin(), answer.seconds.end());
      }
    }
    return seconds;
  }

  void keep(const Seconds& seconds, int ranks, std::uint64_t bytes) {
    const double own = median(seconds[0]);
    const double ratio = std::min(median(seconds[1]), median(seconds[2])) / own;
    std::printf("%10s %12.2f %12.2f %12.2f %14.3f\n", bytes_text(bytes).c_str(), own * 1e6, median(seconds[1]) * 1e6,
                median(seconds[2]) * 1e6, ratio);
    std::fflush(stdout);
    if (bytes >= 1 * mebi) {
      goal_.see(ranks, bytes, ratio);
    }
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const bool is_own = way == 0;
      Row row{bench_, is_own ? "dtrain" : "gloo", "all_reduce", ranks, 1, bytes, median(seconds[way])};
      row.samples = seconds[way].size();
      row = row.with("dtype", std::string("f32")).with("backend", std::string("gloo"));
      rows_.keep(is_own ? row
                        : row.with("algorithm", std::string(ways[way])).with("ratio", median(seconds[way]) / own));
    }
  }

  std::string bench_;
  Options options_;
  std::vector<std::uint64_t> sizes_;
  RatioGoal goal_{"from 1 MiB on at most 1.05 of the time of Gloo's better all-reduce", 1 / 1.05};
  ResultRows rows_;
};

}  // namespace bench
