// ctest: TIMEOUT 300
// Elastic jobs whose workers are killed and stopped at seeded moments; each job's commits are replayed without losses.
//   DTRAIN_TEST_ELASTIC_KILLS=1000 DTRAIN_TEST_ELASTIC_HOST_KILLS=200 DTRAIN_TEST_ELASTIC_SEED=1
//   integration_elastic_storm
// In half of the jobs the ranks evaluate in their own code for DTRAIN_TEST_ELASTIC_EVALUATION_MS, and are hit
// meanwhile, too.

#include <regex>

#include "dtrain/dtrain.hpp"
#include "integration/prelude.hpp"
#include "support/elastic_hosts.hpp"
#include "support/elastic_model.hpp"
#include "support/thread_group.hpp"
#include "support/virtual_cluster.hpp"

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
    const auto ends = support::run_groups<Policy>(
        sizes[first],
        [&](const dtrain::ProcessGroup<Policy>& group) {
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
        },
        std::chrono::seconds(120));
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

/// Whether a launcher whose job has finished may end so: with 128 + SIGKILL if a worker was killed between the job's
/// end and that of its process. Such a worker is not among the lost ones.
bool is_good_end(const Result& result, const std::set<pid_t>& killed) {
  if (result.exit_code != 128 + SIGKILL) return result.exit_code == 0;
  const std::regex loss("dtrain: worker \\d+ was lost: killed by signal 9");
  const auto lost = std::distance(std::sregex_iterator(result.error.begin(), result.error.end(), loss), {});
  return static_cast<std::size_t>(lost) < killed.size();
}

/// Each step is committed in the end by all ranks of one attempt, with the weights that a job without losses gets.
template <class Backend>
void check_training(const std::string& output, int steps) {
  const Commits commits = commits_of(output);
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
  for (std::sregex_iterator i(output.begin(), output.end(), end), none; i != none; ++i, ++finished) {
    CHECK((*i)[1].str() == digests.back());
  }
  CHECK(finished >= 1);
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
  const std::chrono::milliseconds evaluation(setting("DTRAIN_TEST_ELASTIC_EVALUATION_MS", 1500));
  if (below(2) == 0) {
    arguments.push_back("evaluate=" + std::to_string(10 + below(50)));
    arguments.push_back("evaluation=" + std::to_string(evaluation.count()));
  }
  Program job(program, arguments, {{"DTRAIN_LIVENESS_SECONDS", "2"}});
  int hit = 0;
  Hits hits;
  const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60) + evaluation);
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
  // A newcomer evaluates, too, and another one after its loss: each in its turn.
  const Result result = job.wait(support::soon(std::chrono::seconds(120) + blows * evaluation));
  CAPTURE(seed);
  REQUIRE_MESSAGE(is_good_end(result, hits.killed), "exit code " << result.exit_code << "\n" << result.error);
  check_training<Backend>(result.output, steps);
  std::printf("seed %u: %d workers, %d killed or stopped\n", seed, workers, hit);
  return hit;
}

#if DTRAIN_WITH_GLOO

/// A worker that is a rank now.
struct HostRank {
  int node = 0;
  int worker = 0;
  pid_t process = 0;  ///< on its host
};

/// A job on two hosts. Each blow leaves one rank at least, and one on node 0 if it hits all of node 1.
class HostStorm {
 public:
  HostStorm(const support::VirtualCluster& cluster, std::uint32_t seed, int blows)
      : cluster_(cluster),
        random_(seed),
        blows_(blows),
        steps_(100 + 120 * blows),
        workers_(1 + below(2)),
        job_(cluster,
             {"--nproc-per-node=" + std::to_string(workers_), "--max-restarts=1000", "steps=" + std::to_string(steps_),
              "pause=2"},
             "2") {}

  /// @param pauses gets times from a kill to the next commit of the others @returns how many workers were hit
  int run(std::vector<std::chrono::milliseconds>& pauses) {
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(90));
    while (!has(0, "commit") && !deadline.passed()) {
      read(20);
    }
    while (hit_ < blows_ && !deadline.passed() && !has(0, "finished as") && !has(1, "finished as")) {
      read(below(200));
      std::vector<HostRank> ranks = ranks_now();
      std::shuffle(ranks.begin(), ranks.end(), random_);
      const bool has_first =
          std::any_of(ranks.begin(), ranks.end(), [](const HostRank& each) { return each.node == 0; });
      const int kind = below(8);
      if (kind == 0 && has_first) {
        lose_second_node();
      } else if (kind == 1 && has_first && job_.has_links()) {
        cut_link();
      } else if (ranks.size() >= 2) {
        ranks.resize(ranks.size() > 2 && below(4) == 0 ? 2 : 1);
        kind == 2 ? stop(ranks.front()) : kill(ranks, pauses);
      }
    }
    const std::vector<Result> results = job_.results(std::chrono::seconds(120));
    REQUIRE_MESSAGE(is_good_end(results[0], hits_[0].killed), "exit code " << results[0].exit_code << "\n"
                                                                           << results[0].error);
    const int second = results[1].exit_code;  // 75: it has come when the store had gone
    CHECK_MESSAGE((is_good_end(results[1], hits_[1].killed) || second == dtrain::exit_code_job_failed),
                  results[1].error);
    check_training<dtrain::backend::Gloo>(results[0].output + results[1].output, steps_);
    return hit_;
  }

 private:
  int below(int bound) { return static_cast<int>(random_() % static_cast<unsigned>(bound)); }
  void read(int milliseconds) { job_.read(std::chrono::milliseconds(milliseconds)); }
  bool has(int node, const std::string& text) { return job_.output(node).find(text) != std::string::npos; }

  std::vector<HostRank> ranks_now() {
    std::vector<HostRank> found;
    for (const int node : {0, 1}) {
      for (const auto& [worker, process] : running(job_.output(node), workers_, hits(node))) {
        found.push_back({node, worker, process});
      }
    }
    return found;
  }

  Hits& hits(int node) { return hits_[static_cast<std::size_t>(node)]; }
  void note(const HostRank& rank) { hits(rank.node).behind[rank.worker] = job_.output(rank.node).size(); }
  void note_second_node() {
    for (int worker = 0; worker < workers_; ++worker) {
      note({1, worker});
    }
  }

  void kill(const std::vector<HostRank>& ranks, std::vector<std::chrono::milliseconds>& pauses) {
    const int before = last_attempt();
    const support::Stopwatch since_kill;
    for (const HostRank& each : ranks) {
      const pid_t process = job_.process_of(each.node, each.process);
      if (process != 0) ::kill(process, SIGKILL);
      hits(each.node).killed.insert(each.process);
      note(each);
      ++hit_;
      read(below(50));
    }
    if (ranks.size() > 1 || below(2) == 0) return;
    while (last_attempt() == before && since_kill.elapsed() < std::chrono::seconds(10) && !has(0, "finished as")) {
      read(4);
    }
    if (!has(0, "finished as")) pauses.push_back(since_kill.elapsed());
  }

  void stop(const HostRank& rank) {
    const pid_t process = job_.process_of(rank.node, rank.process);
    if (process == 0) return;
    ::kill(process, SIGSTOP);
    read(500 + below(2500));  // shorter and longer than the liveness time
    ::kill(process, SIGCONT);
    note(rank);
    ++hit_;
  }

  void lose_second_node() {
    support::signal_all(job_.processes(1, true), SIGKILL);
    read(below(1500));
    job_.start(1);
    note_second_node();
    hit_ += workers_;
  }

  void cut_link() {
    cluster_.cut(1);
    read(500 + below(3500));
    cluster_.mend(1);
    note_second_node();
    ++hit_;
  }

  /// Of a commit that was read.
  int last_attempt() {
    int last = 0;
    for (const int node : {0, 1}) {
      const std::string output = job_.output(node);
      const std::size_t at = output.rfind(" attempt ");
      if (at != std::string::npos) last = std::max(last, std::atoi(output.c_str() + at + 9));
    }
    return last;
  }

  const support::VirtualCluster& cluster_;
  std::mt19937 random_;
  const int blows_;
  const int steps_;
  const int workers_;  ///< on each host
  support::ElasticHosts job_;
  std::array<Hits, 2> hits_;
  int hit_ = 0;
};

#endif

}  // namespace

TEST_CASE("workers that are killed and stopped at any moment lose, repeat and fork no step") {
  const int kills = setting("DTRAIN_TEST_ELASTIC_KILLS", 60);
  const int seed = setting("DTRAIN_TEST_ELASTIC_SEED", 1);
  constexpr int each = 8;
  int hit = 0;
#if !DTRAIN_WITH_GLOO
  std::printf("no job over Gloo and none on two hosts is stormed: dtrain was built without Gloo\n");
#endif
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

#if DTRAIN_WITH_GLOO
TEST_CASE("workers, a node and a link that are lost at any moment on two hosts lose, repeat and fork no step") {
  const int kills = setting("DTRAIN_TEST_ELASTIC_HOST_KILLS", 8);
  const int seed = setting("DTRAIN_TEST_ELASTIC_SEED", 1);
  const support::VirtualCluster cluster(2);
  if (!cluster.problem.empty()) std::printf("no link is cut, for lack of virtual hosts: %s\n", cluster.problem.c_str());
  std::vector<std::chrono::milliseconds> pauses;
  int hit = 0;
  for (int round = 0; hit < kills; ++round) {
    REQUIRE(round < kills);
    CAPTURE(seed + round);
    const int of_round = HostStorm(cluster, static_cast<std::uint32_t>(seed + round), 8).run(pauses);
    std::printf("seed %d on two hosts: %d killed, stopped or cut off\n", seed + round, of_round);
    hit += of_round;
  }
  std::sort(pauses.begin(), pauses.end());
  if (pauses.empty()) return;
  const auto milliseconds = [](std::chrono::milliseconds time) { return static_cast<int>(time.count()); };
  std::printf("%d kills of a worker to the next commit: median %d ms, longest %d ms\n", static_cast<int>(pauses.size()),
              milliseconds(pauses[pauses.size() / 2]), milliseconds(pauses.back()));
}
#endif
