// ctest: TIMEOUT 300 RUN_SERIAL ON
// Minutes of training under a sanitizer; elastic_storm does the same with a small model.
// ctest: LABELS long no-asan no-tsan
// fashion_mnist --elastic, whose workers are killed again and again, is the undisturbed training.
//   DTRAIN_TEST_FASHION_KILLS=20 integration --source-file='*/fashion_mnist_losses_test.cpp'

#include "integration/prelude.hpp"
#include "support/fashion_mnist_program.hpp"

using fashion_mnist_program::example;

namespace {

constexpr int workers = 4;
constexpr int steps_per_epoch = 250;  // of 240 samples each, a share of which every number of ranks here divides

/// A step that one rank has committed.
struct Commit {
  unsigned long long step = 0;
  unsigned long long attempt = 0;
  int ranks = 0;
  int rank = 0;
  double loss = 0;
  char digest[65] = {};
};

/// The files of --commit-log, as they grow.
class CommitLogs {
 public:
  explicit CommitLogs(std::string folder) : folder_(std::move(folder)) {}

  /// Reads what is new.
  void read() {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("log.", 0) != 0) continue;
      std::ifstream file(entry.path());
      std::streamoff& read = read_[name];
      file.seekg(read);
      for (std::string line; std::getline(file, line) && !file.eof(); read = file.tellg()) {
        Commit commit;
        REQUIRE(
            std::sscanf(
                line.c_str(),
                R"({"step": %llu, "attempt": %llu, "world_size": %d, "rank": %d, "loss": %lf, "digest": "%64[0-9a-f]"})",
                &commit.step, &commit.attempt, &commit.ranks, &commit.rank, &commit.loss, commit.digest) == 6);
        add(commit, std::stoi(name.substr(4)));
      }
    }
  }

  unsigned long long last_step() const { return steps_.empty() ? 0 : steps_.rbegin()->first; }
  /// The processes that have committed a step in the latest attempt.
  const std::vector<int>& ranks() const { return ranks_; }

  /// The mean loss of each step over the ranks of the last attempt that has committed it; NaN where one of these was
  /// lost before it wrote its line. Checks that no step is missing, and that those ranks have the same weights.
  std::vector<double> losses() const {
    std::vector<double> found;
    for (const auto& [step, commits] : steps_) {
      REQUIRE(step == found.size() + 1);
      unsigned long long attempt = 0;
      for (const Commit& each : commits) {
        attempt = std::max(attempt, each.attempt);
      }
      double sum = 0;
      int count = 0;
      int ranks = 0;
      std::set<std::string> digests;
      for (const Commit& each : commits) {
        if (each.attempt != attempt) continue;
        sum += each.loss;
        ++count;
        ranks = each.ranks;
        digests.insert(each.digest);
      }
      CHECK_MESSAGE(digests.size() == 1, "after step " << step);
      found.push_back(count == ranks ? sum / count : std::nan(""));
    }
    return found;
  }

 private:
  void add(const Commit& commit, int process) {
    steps_[commit.step].push_back(commit);
    if (commit.attempt > attempt_) {
      attempt_ = commit.attempt;
      ranks_.clear();
    }
    if (commit.attempt == attempt_ && std::find(ranks_.begin(), ranks_.end(), process) == ranks_.end()) {
      ranks_.push_back(process);
    }
  }

  std::string folder_;
  std::map<std::string, std::streamoff> read_;
  std::map<unsigned long long, std::vector<Commit>> steps_;
  unsigned long long attempt_ = 0;
  std::vector<int> ranks_;
};

struct Trained {
  SummaryFile summary;
  std::vector<double> losses;
};

/// Trains, and kills so many workers on the way, at seeded moments, each of which leaves at least one rank.
Trained train(int epochs, int kills) {
  const TemporaryDirectory folder;
  CommitLogs logs(folder.path);
  std::mt19937 random(7);
  Program program(example, {"--nproc-per-node=" + std::to_string(workers), "--min-ranks=1", "--max-restarts=100",
                            "--elastic", "--global-batch=240", "--epochs=" + std::to_string(epochs),
                            "--summary=" + folder.path + "/summary", "--commit-log=" + folder.path + "/log"});
  program.close_input();
  std::set<int> killed;
  unsigned long long next = 5;
  const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60 + 60 * epochs));
  while (static_cast<int>(killed.size()) < kills && !deadline.passed()) {
    const bool is_over = program.wait_for("test accuracy", dtrain::Deadline::after(std::chrono::milliseconds(5)));
    REQUIRE_MESSAGE(!is_over, killed.size() << " workers were killed before the training ended");
    logs.read();
    if (logs.ranks().size() < 2 || logs.last_step() < next) continue;
    const int victim = logs.ranks()[random() % logs.ranks().size()];
    if (!killed.insert(victim).second) continue;
    REQUIRE(::kill(victim, SIGKILL) == 0);
    next = logs.last_step() + 1 + random() % 40;
  }
  const Result result = program.wait(deadline);
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  CHECK(static_cast<int>(killed.size()) == kills);
  logs.read();
  return {SummaryFile(folder.path + "/summary"), logs.losses()};
}

}  // namespace

TEST_CASE("workers that are killed again and again change nothing of a training") {
  if (!fashion_mnist_program::can_run()) return;
  const char* const wanted = std::getenv("DTRAIN_TEST_FASHION_KILLS");
  const int kills = wanted == nullptr ? 4 : std::atoi(wanted);
  const int epochs = kills < 10 ? 1 : kills;  // a place is filled later, the more often its worker was lost
  const Trained undisturbed = train(epochs, 0);
  const Trained disturbed = train(epochs, kills);
  CHECK(undisturbed.losses.size() == static_cast<std::size_t>(epochs) * steps_per_epoch);
  REQUIRE(disturbed.losses.size() == undisturbed.losses.size());
  double apart = 0;
  int incomplete = 0;
  for (std::size_t i = 0; i < undisturbed.losses.size(); ++i) {
    REQUIRE_FALSE(std::isnan(undisturbed.losses[i]));
    incomplete += std::isnan(disturbed.losses[i]) ? 1 : 0;
    apart = std::fmax(apart, std::abs(disturbed.losses[i] - undisturbed.losses[i]));  // ignores NaN
  }
  CHECK(incomplete <= kills);
  std::printf("%d kills in %zu steps: the losses of no step differ by more than %.1e\n", kills, disturbed.losses.size(),
              apart);
  CHECK(apart < 1e-3);  // other numbers of ranks add in another order
  for (const char* const field : {"final_loss", "test_accuracy"}) {
    CAPTURE(field);
    CHECK(std::abs(disturbed.summary.number(field) - undisturbed.summary.number(field)) <
          1e-3 * undisturbed.summary.number(field));
  }
}
