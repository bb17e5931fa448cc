// ctest: TIMEOUT 300
// Elastic jobs whose workers are killed and stopped at seeded moments; each job's commits are replayed without losses.
//   DTRAIN_ELASTIC_KILLS=1000 DTRAIN_ELASTIC_SEED=1 integration_elastic_storm

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/dtrain.hpp"
#include "support/elastic_model.hpp"
#include "support/program.hpp"
#include "support/thread_group.hpp"

using support::ElasticModel;
using support::Program;
using support::Result;

namespace {

const std::string program = std::string(DTRAIN_TEST_PROGRAMS_DIR) + "/elastic_training";

int setting(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

/// A step as its ranks have committed it.
struct Commit {
  int attempt = 0;
  int size = 0;
  std::string digest;
  friend auto operator<=>(const Commit&, const Commit&) = default;
};

using Commits = std::map<int, std::set<Commit>>;  // by step

Commits commits_of(const std::string& output) {
  Commits found;
  const std::regex line("commit (\\d+) attempt (\\d+) size (\\d+) digest (\\w+)\n");
  for (std::sregex_iterator i(output.begin(), output.end(), line), end; i != end; ++i) {
    found[std::stoi((*i)[1].str())].insert({std::stoi((*i)[2].str()), std::stoi((*i)[3].str()), (*i)[4].str()});
  }
  return found;
}

/// Trains the steps on ranks as threads, with the numbers of ranks of the job. @returns the digest after each step
template <class Backend>
std::vector<std::string> replay(const std::vector<int>& sizes) {
  using Policy = dtrain::Policy<dtrain::launch::PerProcess, Backend>;
  std::vector<std::string> digests(sizes.size());
  std::vector<std::vector<float>> values = ElasticModel().values;
  for (std::size_t first = 0; first < sizes.size();) {
    const auto differs = [&](int size) { return size != sizes[first]; };
    const auto next = std::find_if(sizes.begin() + static_cast<std::ptrdiff_t>(first), sizes.end(), differs);
    const auto last = static_cast<std::size_t>(next - sizes.begin());
    std::vector<std::vector<float>> after;
    const auto ends = support::run_groups<Policy>(sizes[first], [&](const dtrain::ProcessGroup<Policy>& group) {
      ElasticModel model;
      model.values = values;
      dtrain::DistributedDataParallel ddp{model, group};
      const dtrain::DistributedSampler sampler{group, ElasticModel::samples};
      const std::size_t per_epoch = sampler.steps_per_epoch();
      for (std::size_t step = first; step < last; ++step) {
        const auto shares = sampler.shares(step / per_epoch);
        const dtrain::SampleShare share = shares[step % per_epoch];
        ddp.backward([&](dtrain::Ready ready) { model.backward(share.samples, share.weight, ready); });
        model.update();
        if (group.rank() == 0) {
          char text[9];
          std::snprintf(text, sizeof(text), "%08x", model.digest());
          digests[step] = text;
        }
      }
      group.barrier();
      if (group.rank() == 0) after = model.values;
    });
    for (const support::RankEnd& each : ends) {
      REQUIRE(each.text == "");
    }
    values = after;
    first = last;
  }
  return digests;
}

/// A worker that is hit no more, or not before it has been a rank again.
struct Hits {
  std::set<pid_t> killed;
  std::map<int, std::size_t> behind;  ///< of a worker: the length of the output when it was hit
};

/// The processes of the workers that are ranks now, as they have said, by their places.
std::vector<std::pair<int, pid_t>> running(const std::string& output, int workers, const Hits& hits) {
  std::vector<std::pair<int, pid_t>> found;
  for (int worker = 0; worker < workers; ++worker) {
    const std::string name = "worker " + std::to_string(worker);
    const std::string mark = name + " is process ";
    const std::size_t at = output.rfind(mark);
    const auto hit = hits.behind.find(worker);
    const std::size_t from = hit == hits.behind.end() ? at : std::max(at, hit->second);
    if (at == std::string::npos || output.find(name + " is rank", from) == std::string::npos) continue;
    const auto process = static_cast<pid_t>(std::stol(output.substr(at + mark.size())));
    if (!hits.killed.contains(process)) found.emplace_back(worker, process);
  }
  return found;
}

/// One job of 2 to 4 workers, up to `blows` of which are killed or stopped, always one less than there are at most.
/// @returns how many
template <class Backend>
int storm(std::uint32_t seed, int blows) {
  std::mt19937 random(seed);
  const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
  const int workers = 2 + below(3);
  const int steps = 100 + 120 * blows;
  std::vector<std::string> arguments{"--nproc-per-node=" + std::to_string(workers),
                                     "--min-ranks=1",
                                     "--max-restarts=1000",
                                     "steps=" + std::to_string(steps),
                                     "pause=2",
                                     "log"};
  if (std::is_same_v<Backend, dtrain::backend::SharedMemory>) {
    if (below(2) == 0) arguments.push_back("bound");
  } else {
    arguments.push_back("gloo");
  }
  Program job(program, arguments, {{"DTRAIN_LIVENESS_SECONDS", "2"}});
  int hit = 0;
  Hits hits;
  const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
  const auto ends_within = [&](int milliseconds) {  // and reads what the job writes
    return job.wait_for("finished as", dtrain::Deadline::after(std::chrono::milliseconds(milliseconds)));
  };
  REQUIRE(job.wait_for("commit", deadline));
  while (hit < blows && !deadline.passed() && !ends_within(below(200))) {
    auto ranks = running(job.output(), workers, hits);
    std::shuffle(ranks.begin(), ranks.end(), random);
    if (ranks.size() < 2) continue;
    ranks.resize(ranks.size() > 2 && below(4) == 0 ? 2 : 1);
    const bool stops = below(10) == 0;
    for (const auto& [worker, process] : ranks) {
      ::kill(process, stops ? SIGSTOP : SIGKILL);
      if (!stops) hits.killed.insert(process);
      hits.behind[worker] = job.output().size();
      ++hit;
      static_cast<void>(ends_within(below(50)));
    }
    if (stops) static_cast<void>(ends_within(500 + below(2500)));  // shorter and longer than the liveness time
    for (const auto& [worker, process] : ranks) {
      if (!stops) break;
      ::kill(process, SIGCONT);
      hits.behind[worker] = job.output().size();
    }
  }
  const Result result = job.wait(support::soon(std::chrono::seconds(120)));
  CAPTURE(seed);
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  const Commits commits = commits_of(result.output);
  REQUIRE(commits.size() == static_cast<std::size_t>(steps));
  std::vector<int> sizes;
  std::vector<std::string> digests;
  for (const auto& each_step : commits) {
    const std::set<Commit>& of_step = each_step.second;
    const Commit& last = *of_step.rbegin();  // earlier ones are of ranks that were lost with them
    const auto same =
        std::count_if(of_step.begin(), of_step.end(), [&](const Commit& each) { return each.attempt == last.attempt; });
    CHECK_MESSAGE(same == 1, "step " << each_step.first << " differs between ranks of attempt " << last.attempt);
    sizes.push_back(last.size);
    digests.push_back(last.digest);
  }
  CHECK(replay<Backend>(sizes) == digests);
  const std::regex end("finished as rank \\d+ of \\d+: (\\w+) after");
  int finished = 0;
  for (std::sregex_iterator i(result.output.begin(), result.output.end(), end), none; i != none; ++i, ++finished) {
    CHECK((*i)[1].str() == digests.back());
  }
  CHECK(finished >= 1);
  std::printf("seed %u: %d workers, %d killed or stopped, %d finished\n", seed, workers, hit, finished);
  return hit;
}

}  // namespace

TEST_CASE("workers that are killed and stopped at any moment lose, repeat and fork no step") {
  const int kills = setting("DTRAIN_ELASTIC_KILLS", 60);
  const int seed = setting("DTRAIN_ELASTIC_SEED", 1);
  constexpr int each = 8;
  int hit = 0;
  for (int round = 0; hit < kills; ++round) {
    REQUIRE(round < kills);
    const auto of_round = static_cast<std::uint32_t>(seed + round);
#if DTRAIN_WITH_GLOO
    if (round % 2 == 1) {
      hit += storm<dtrain::backend::Gloo>(of_round, each);
      continue;
    }
#endif
    hit += storm<dtrain::backend::SharedMemory>(of_round, each);
  }
}
