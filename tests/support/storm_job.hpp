#pragma once
/// @file
/// The job of one round of a kill storm: started, watched until it is in the phase, hit, waited for.

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "support/free_port.hpp"
#include "support/launch_probe.hpp"
#include "support/leftovers.hpp"
#include "support/program.hpp"
#include "support/storm_round.hpp"
#include "support/temporary_directory.hpp"

namespace support {

inline int setting(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

/// Multiplies what may take its time, for machines that are busy with other things.
inline const int patience = setting("DTRAIN_TEST_STORM_PATIENCE", 1);

/// DTRAIN_TIMEOUT_SECONDS: how long a launcher waits for one that never comes.
inline const int formation_seconds = 8 * patience * (DTRAIN_THREAD_SANITIZER ? 3 : 1);

/// One that nobody listens at now, and that is given to no connection by chance.
inline int quiet_port() {
  for (int port = 20000 + ::getpid() % 10000;; ++port) {
    if (is_free(port) && sockets_at(port).empty()) return port;
  }
}

class StormJob {
 public:
  static constexpr int few_steps = 30;
  static constexpr int endless_steps = 100000000;

  explicit StormJob(const StormRound& round) : round_(round), mark_("STORM_MARK=" + new_mark()) {
    for (int node = 0; node < round_.node_count(); ++node) {
      launchers_.push_back(std::make_unique<Program>(training, arguments(node), variables(node)));
      launchers_.back()->close_input();
    }
  }

  /// Until all launchers have ended.
  void play() {
    if (round_.phase == Phase::leaving) {  // which is short
      await(round_.rank, "steady", 0);
      remember_holdings();
    }
    reach_phase();
    if (round_.phase != Phase::leaving) {
      remember_holdings();
    }
    ::usleep(static_cast<unsigned>(round_.delay_us));
    strike();
    const dtrain::Deadline deadline =
        soon(std::chrono::seconds(20) * patience + std::chrono::seconds(formation_seconds));
    for (const auto& launcher : launchers_)
      results_.push_back(launcher->wait(deadline));
    took_ = since_struck_.elapsed();
  }

  /// By node.
  const std::vector<Result>& results() const { return results_; }
  /// From the blow to the end of the last launcher.
  std::chrono::milliseconds took() const { return took_; }
  /// Whether the victim was still there.
  bool was_hit() const { return was_hit_; }
  /// What it had before the blow.
  const Holdings& held() const { return held_; }
  /// A variable that all its processes have.
  const std::string& mark() const { return mark_; }
  int port() const { return port_; }
  const std::string& directory() const { return directory_.path; }
  /// What did not come as it should have before the blow; empty if all is well.
  const std::string& problem() const { return problem_; }

 private:
  static inline const std::string training = DTRAIN_TEST_PROGRAMS_DIR "/store_training";
  static dtrain::Deadline in_time() { return soon(std::chrono::seconds(20) * patience); }

  /// The attempt that is hit.
  int attempt() const { return round_.phase == Phase::restarting ? 1 : 0; }
  Program& launcher() { return *launchers_[static_cast<std::size_t>(round_.node)]; }
  Program& launcher_of(int rank) { return *launchers_[static_cast<std::size_t>(round_.node_of(rank))]; }

  std::vector<std::string> arguments(int node) const {
    const bool ends_by_itself = round_.victim == Victim::grandchild || round_.phase == Phase::leaving;
    const bool ends_again = round_.phase != Phase::restarting || round_.victim == Victim::grandchild;
    const auto number = [](const char* name, int value) { return name + std::to_string(value); };
    std::vector<std::string> all{number("--nnodes=", round_.node_count()),
                                 number("--node-rank=", node),
                                 "--master-addr=127.0.0.1",
                                 number("--master-port=", port_),
                                 number("--nproc-per-node=", round_.workers[static_cast<std::size_t>(node)]),
                                 number("--max-restarts=", round_.max_restarts),
                                 std::to_string(ends_by_itself && !round_.restarts() ? few_steps : endless_steps),
                                 "2",
                                 number("again=", ends_again ? few_steps : endless_steps),
                                 number("straggle=", round_.straggle_ms),
                                 number("linger=", round_.linger_ms),
                                 "grandchild=" + round_.grandchild,
                                 "phases"};
    if (round_.shared) {
      all.push_back("shared");
    }
    return all;
  }

  Program::Variables variables(int node) const {
    return {{"DTRAIN_SECRET", "0123456789abcdef0123456789abcdef"},
            {"DTRAIN_HOST_ID", "host-" + std::to_string(node)},
            {"DTRAIN_TIMEOUT_SECONDS", std::to_string(formation_seconds)},
            {"STORM_MARK", mark_.substr(mark_.find('=') + 1)},
            {"TMPDIR", directory_.path}};
  }

  void expect(bool holds, const std::string& what) {
    if (!holds) {
      problem_ += what + "; ";
    }
  }

  /// A worker as /proc knows it; 0 for none. @param of_attempt -1 for any
  pid_t worker(int rank, int of_attempt) {
    for (const pid_t child : children_of(launcher_of(rank).process())) {
      const std::string environment = environment_of(child);
      if (has_variable(environment, "DTRAIN_RANK=" + std::to_string(rank)) &&
          (of_attempt < 0 || has_variable(environment, "DTRAIN_ATTEMPT=" + std::to_string(of_attempt)))) {
        return child;
      }
    }
    return 0;
  }

  static bool has_ended(pid_t process) {
    const char state = state_of(process);
    return state == 'Z' || state == '\0';
  }

  /// Asks until there is one; 0 where there is none in time.
  template <class Find>
  pid_t patiently(Find find) {
    const dtrain::Deadline deadline = in_time();
    pid_t found = 0;
    while ((found = find()) == 0 && !deadline.passed() && !has_ended(launcher().process()))
      ::usleep(200);
    return found;
  }

  void await(int rank, const std::string& phase, int of_attempt) {
    const std::string line =
        "[" + std::to_string(rank) + "] phase " + phase + " of attempt " + std::to_string(of_attempt) + "\n";
    expect(launcher_of(rank).wait_for(line, in_time()), "not seen: " + line);
  }

  void reach_phase() {
    if (round_.restarts()) {
      await(round_.first_rank, "steady", 0);
      const pid_t first = worker(round_.first_rank, 0);
      expect(first > 0 && ::kill(first, SIGKILL) == 0, "the first victim is not there");
    }
    if (round_.phase == Phase::restarting) {
      expect(launcher().wait_for("attempt 2 of 2 begins", in_time()), "no second attempt");
    }
    if (round_.victim == Victim::grandchild) {
      await(round_.rank,
            round_.phase == Phase::steady    ? "steady"
            : round_.phase == Phase::leaving ? "leaving"
            : round_.grandchild == "fork"    ? "joined"
                                             : "start",
            attempt());
    } else if (round_.phase == Phase::rendezvous) {
      await(round_.rank, "start", 0);
    } else if (round_.phase == Phase::first_step) {
      await(round_.rank, "joined", 0);
    } else if (round_.phase == Phase::steady) {
      await(round_.rank, "steady", 0);
    } else if (round_.phase == Phase::leaving) {
      await(round_.rank, "leaving", 0);
    }
    if (round_.victim == Victim::worker && round_.phase == Phase::start) {  // maybe before it is the program
      victim_ = patiently([this] {
        const std::vector<pid_t> children = children_of(launcher().process());
        const auto place = static_cast<std::size_t>(round_.local_rank_of(round_.rank));
        return children.size() > place ? children[place] : 0;
      });
    } else if (round_.victim == Victim::worker && round_.phase == Phase::restarting) {
      victim_ = patiently([this] { return worker(round_.rank, 1); });
    }
  }

  /// What the processes have that belong to the job now.
  void remember_holdings() {
    for (const auto& launcher : launchers_) {
      held_.add(launcher->process());
      for (const pid_t child : children_of(launcher->process()))
        held_.add(child);
    }
  }

  /// In phases in which the victim may have ended by itself, or in which there may be none, nobody is hit.
  pid_t find_victim() {
    if (round_.victim == Victim::launcher) return launcher().process();
    if (victim_ > 0) return victim_;
    if (round_.phase == Phase::between) return patiently([this] { return worker(round_.rank, -1); });
    const pid_t found = worker(round_.rank, attempt());
    if (found == 0 || round_.victim == Victim::worker) return found;
    const std::vector<pid_t> children = children_of(found);
    return children.empty() ? 0 : children.front();
  }

  /// For a blow that hits two; 0 where there is none.
  pid_t find_other_victim() {
    if (round_.victim == Victim::launcher) return launchers_[static_cast<std::size_t>(1 - round_.node)]->process();
    return worker(round_.next_rank(), round_.phase == Phase::between ? -1 : attempt());
  }

  void strike() {
    const pid_t victim = find_victim();
    const pid_t other = round_.twice ? find_other_victim() : 0;
    const bool may_have_ended =
        round_.phase == Phase::leaving || round_.victim == Victim::grandchild || round_.phase == Phase::between;
    expect(victim > 0 || may_have_ended, "there is nobody to hit");
    since_struck_ = Stopwatch();
    if (victim <= 0 || has_ended(victim)) return;
    was_hit_ = true;
    if (round_.blow == Blow::stop_and_kill) {
      ::kill(victim, SIGSTOP);
      ::usleep(static_cast<unsigned>(round_.stopped_us));
      since_struck_ = Stopwatch();
    }
    const int signal = round_.blow == Blow::terminate ? SIGTERM : SIGKILL;
    ::kill(victim, signal);
    if (other > 0) {
      ::kill(other, signal);
    }
  }

  StormRound round_;
  std::string mark_;
  int port_ = quiet_port();
  TemporaryDirectory directory_;
  Holdings held_;
  pid_t victim_ = 0;  ///< where it was found before the blow
  bool was_hit_ = false;
  Stopwatch since_struck_;
  std::chrono::milliseconds took_{0};
  std::vector<Result> results_;
  std::string problem_;
  std::vector<std::unique_ptr<Program>> launchers_;
};

}  // namespace support
