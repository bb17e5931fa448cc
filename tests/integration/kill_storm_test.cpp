// ctest: TIMEOUT 300 RUN_SERIAL ON
// Jobs that are hit at seeded moments of their lives, on one node and on two virtual ones, and what is left of them.
//   DTRAIN_TEST_STORM_ROUNDS=100 DTRAIN_TEST_STORM_SEED=1 integration --source-file='*/kill_storm_test.cpp'
// tools/kill_storm.py runs 1,000, in batches. Each round prints a line that begins with its seed; this seed and
// DTRAIN_TEST_STORM_ROUNDS=1 repeat it alone.

#include "integration/prelude.hpp"
#include "support/leftovers.hpp"
#include "support/storm_job.hpp"
#include "support/storm_round.hpp"

using std::chrono::milliseconds;
using support::Blow;
using support::Phase;
using support::StormJob;
using support::StormRound;
using support::Victim;

namespace {

constexpr int killed_code = 128 + SIGKILL;
constexpr int told_code = 128 + SIGTERM;
constexpr int lost_code = 75;
constexpr int usage_code = 2;  // also of one that finds no store at its address

/// What the launchers promise from a worker's end to their own.
const milliseconds patient_two_seconds = support::two_seconds * support::patience;
const milliseconds formation = std::chrono::seconds(support::formation_seconds);

/// What the rules say of a round: the exit codes of the launcher that is hit, of the others, and what they have in
/// common.
struct Rules {
  std::set<int> hit;
  std::set<int> other;
  bool alike = true;     ///< all launchers end with the same code
  milliseconds bound{};  ///< from the blow, where the job does not go on after it
};

Rules rules_for(const StormRound& round) {
  const bool late = round.phase == Phase::leaving || round.phase == Phase::between;  // it may be over before the blow
  const bool early = round.phase == Phase::start;  // the launchers may not have met, nor handle signals yet
  if (round.victim == Victim::grandchild) return {{0}, {0}};
  if (round.victim == Victim::worker) {
    const bool heals = round.max_restarts > 0 && !round.restarts();
    const std::set<int> codes = heals  ? std::set<int>{0}
                                : late ? std::set<int>{0, killed_code}
                                       : std::set<int>{killed_code};
    return {codes, codes, true, patient_two_seconds};
  }
  if (round.blow == Blow::terminate) {
    if (early) return {{told_code}, {told_code, lost_code, usage_code}, false, patient_two_seconds + formation};
    // A worker's end before the signal stays the reason.
    const std::set<int> codes = round.phase == Phase::leaving   ? std::set<int>{0, told_code}
                                : round.phase == Phase::between ? std::set<int>{0, killed_code, told_code}
                                                                : std::set<int>{told_code};
    return {codes, codes, round.phase != Phase::leaving, patient_two_seconds};
  }
  const std::set<int> others = late    ? std::set<int>{0, lost_code}
                               : early ? std::set<int>{lost_code, usage_code}
                                       : std::set<int>{lost_code};
  const std::set<int> hit = late ? std::set<int>{0, killed_code} : std::set<int>{killed_code};
  if (round.twice) return {hit, late ? std::set<int>{0, killed_code, lost_code} : hit, false, patient_two_seconds};
  return {hit, others, false, patient_two_seconds + (early ? formation : milliseconds(0))};
}

/// Collects sentences about what is not as it should be.
class Findings {
 public:
  void expect(bool holds, const std::string& what) {
    if (!holds) {
      text += what + "\n";
    }
  }
  std::string text;
};

std::string trained(const StormRound& round, int rank) {
  char weight[32];
  std::snprintf(weight, sizeof weight, "%.17g", -StormJob::few_steps * (round.world_size() + 1) / 2048.0);
  const std::string who = std::to_string(rank);
  return "[" + who + "] rank " + who + " of " + std::to_string(round.world_size()) + " on node " +
         std::to_string(round.node_of(rank)) + " of " + std::to_string(round.node_count()) + ": weight " + weight +
         " after " + std::to_string(StormJob::few_steps) + " steps\n";
}

/// What a launcher says has to name whom it hit, or the work has to be done.
void check_text(const StormRound& round, int node, const Result& result, Findings& findings) {
  const auto names_a_victim = [&round, &result](const std::string& before) {
    const auto names = [&](int rank) {
      return contains(result.error, before + "rank " + std::to_string(rank) + " on host ");
    };
    return names(round.rank) || (round.twice && names(round.next_rank()));
  };
  const bool is_hit = round.victim == Victim::launcher && (node == round.node || round.twice);
  if (result.exit_code == 0) {
    for (int rank = 0; rank < round.world_size(); ++rank) {
      findings.expect(round.node_of(rank) != node || contains(result.output, trained(round, rank)),
                      "rank " + std::to_string(rank) + " has not trained to the end, or not well");
    }
  }
  if (result.exit_code == 0 && round.victim == Victim::worker && !round.restarts() && round.phase != Phase::leaving) {
    findings.expect(names_a_victim("attempt 2 of 2 begins: "), "the restart does not say whose end it is due to");
  }
  if (round.victim == Victim::worker && result.exit_code == killed_code) {
    findings.expect(names_a_victim(""), "the rank is not named");
    findings.expect(contains(result.error, "killed by signal 9 (SIGKILL)"), "the signal is not named");
  }
  if (round.victim == Victim::grandchild && !round.restarts()) {
    findings.expect(!contains(result.error, "failed first"), "a grandchild's end was taken for a rank's");
  }
  if (result.exit_code == told_code && (!is_hit || round.phase != Phase::start)) {
    findings.expect(contains(result.error, "SIGTERM was forwarded") || contains(result.error, "SIGTERM came before"),
                    "SIGTERM is not named");
  }
  if (result.exit_code == lost_code) {
    findings.expect(contains(result.error, round.node == 0 ? "node 0's launcher at 127.0.0.1" : "node 1"),
                    "the lost node is not named");
  }
  if (result.exit_code == usage_code) {
    findings.expect(contains(result.error, "127.0.0.1 port"), "the address that nobody is at is not named");
  }
}

void check_ends(const StormRound& round, const StormJob& job, Findings& findings) {
  const Rules rules = rules_for(round);
  bool goes_on = false;
  for (int node = 0; node < round.node_count(); ++node) {
    const Result& result = job.results()[static_cast<std::size_t>(node)];
    const bool is_hit = round.victim != Victim::launcher || node == round.node;
    findings.expect((is_hit ? rules.hit : rules.other).count(result.exit_code) != 0,
                    "node " + std::to_string(node) + "'s launcher ended with " + std::to_string(result.exit_code));
    findings.expect(!rules.alike || result.exit_code == job.results().front().exit_code, "the exit codes differ");
    goes_on = goes_on || result.exit_code == 0;
    check_text(round, node, result, findings);
  }
  findings.expect(goes_on || job.took() <= rules.bound,
                  "it took more than " + std::to_string(rules.bound.count()) + " ms");
}

/// Nothing may be left; of a launcher that was killed, nothing but what its workers have started.
void check_leftovers(const StormRound& round, const StormJob& job, Findings& findings) {
  const bool killed = round.victim == Victim::launcher && round.blow != Blow::terminate;
  const auto describe = [](pid_t process) {
    return support::name_of(process) + " (" + support::state_of(process) + ", parent " +
           std::to_string(support::parent_of(process)) + ") is left";
  };
  const auto others_left = [&] {
    std::string found;
    for (const pid_t process : support::processes_with_variable(job.mark())) {
      const std::string name = support::name_of(process);
      if (!killed || (name != "sleep" && name != "grandchild")) {
        found += describe(process) + "; ";
      }
    }
    return found;
  };
  const auto vanishes = [](const auto& what) {
    const dtrain::Deadline deadline = dtrain::Deadline::after(patient_two_seconds);
    std::string left = what();
    while (!left.empty() && !deadline.passed()) {
      ::usleep(2000);
      left = what();
    }
    return left;
  };
  const std::string left = killed ? vanishes(others_left) : others_left();
  findings.expect(left.empty(), "processes: " + left);
  for (const pid_t process : support::processes_with_variable(job.mark()))
    ::kill(process, SIGKILL);
  const auto mark_left = [&] { return std::string(support::processes_with_variable(job.mark()).empty() ? "" : "one"); };
  findings.expect(vanishes(mark_left).empty(), "a process cannot be killed");
  const bool had_memory = !job.held().memory.empty();
  findings.expect(!job.held().sockets.empty() || round.phase == Phase::start, "its sockets were not seen");
  findings.expect(had_memory || !round.shared || round.phase != Phase::steady, "its shared memory was not seen");
  const std::string held = vanishes([&] { return support::still_held(job.held()); });
  findings.expect(held.empty(), "still held: " + held);
  const std::string sockets = vanishes([&] { return support::sockets_at(job.port()); });
  findings.expect(sockets.empty(), "sockets: " + sockets);
  for (const auto& entry : std::filesystem::directory_iterator(job.directory())) {
    // ThreadSanitizer's runtime makes and unlinks that one while a program starts.
    const bool is_the_sanitizers = entry.path().filename().string().rfind("tsan.rodata.", 0) == 0;
    findings.expect(is_the_sanitizers, "in TMPDIR: " + entry.path().string());
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
    findings.expect(!contains(entry.path().filename().string(), "dtrain"), "in /dev/shm: " + entry.path().string());
}

}  // namespace

TEST_CASE("a job that is hit at any moment ends as the rules say, says whom it hit, and leaves nothing behind") {
  const int rounds = support::setting("DTRAIN_TEST_STORM_ROUNDS", 20);
  const int seed = support::setting("DTRAIN_TEST_STORM_SEED", 1);
  for (int i = 0; i < rounds; ++i) {
    const StormRound round = support::drawn(static_cast<std::uint32_t>(seed + i));
    StormJob job(round);
    job.play();
    Findings findings;
    findings.expect(job.problem().empty(), job.problem());
    check_ends(round, job, findings);
    check_leftovers(round, job, findings);
    std::string line = to_string(round) + " -> exit codes";
    std::string said;
    for (const Result& result : job.results()) {
      line += " " + std::to_string(result.exit_code);
      said += "--- stdout\n" + result.output + "--- stderr\n" + result.error;
    }
    line += " after " + std::to_string(job.took().count()) + " ms: " + (job.was_hit() ? "" : "over before, ") +
            (findings.text.empty() ? "ok" : "FAILED");
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    CHECK_MESSAGE(findings.text.empty(), line << "\n" << findings.text << said);
  }
}
