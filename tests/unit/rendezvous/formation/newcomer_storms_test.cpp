// Many workers that come to a job within a minute, and a host whose new workers crash again and again.
//   DTRAIN_TEST_STORMS=1000 unit_rendezvous --source-file=*newcomer_storms*     # longer, by hand

#include "dtrain/rendezvous/formation/formation_state.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

using Time = std::chrono::milliseconds;
using Instant = dtrain::Deadline::Clock::time_point;

/// The workers of a FormationState, which come, train and crash in an order that the seed decides. A worker of a host
/// that crashes does so 1 ms after all ranks have joined; 100 ms later another one comes.
class CrowdedJob {
 public:
  /// @param step how long a step takes
  CrowdedJob(std::uint32_t seed, Time step, int first, int most)
      : random_(seed), step_(step), state_(*this, options_of(first, most), 7) {
    for (int i = 0; i < first; ++i) {
      add(Time(0), "a");
    }
  }

  /// A worker announces itself at that time.
  void add(Time at, const std::string& host) {
    schedule(at, [this, host] {
      workers_.push_back({host, {}, true});
      announce(static_cast<int>(workers_.size()) - 1);
    });
  }

  void run_until(Time end) {
    while (!state_.is_over()) {
      const auto event = events_.begin();
      const std::optional<Instant> due = state_.next();
      const bool is_due = due && (event == events_.end() || *due <= Instant(event->first));
      const Time next = is_due                   ? std::chrono::ceil<Time>(due->time_since_epoch())
                        : event == events_.end() ? end
                                                 : event->first;
      if (next >= end) {
        break;
      }
      now_ = next;
      if (is_due) {
        state_.on_time(instant());
      } else {
        const std::function<void()> happen = std::move(event->second);
        events_.erase(event);
        happen();
      }
    }
    now_ = end;
  }

  /// A rank of this host ends.
  void lose_rank(const std::string& host) {
    const auto found = std::find_if(ranks_.begin(), ranks_.end(), [&](int rank) { return worker(rank).host == host; });
    REQUIRE(found != ranks_.end());
    end_process(*found);
  }

  Time below(Time bound) { return Time(static_cast<std::int64_t>(random_() % static_cast<unsigned>(bound.count()))); }
  int size() const { return static_cast<int>(ranks_.size()); }
  const FormationState<CrowdedJob>& state() const { return state_; }

  std::set<std::string> crashing;    ///< hosts
  int resizes = 0;                   ///< attempts that newcomers have ended
  std::map<int, Time> reached;       ///< by number of ranks: when so many had committed a step for the first time
  std::vector<Time> commits;         ///< when; one for each step
  std::vector<Time> crashed;         ///< when
  std::vector<Time> bars;            ///< how long from the crash before; one for each worker that was told
  std::vector<Time> assigned_after;  ///< from the crash before: when a worker of the host became a rank again

 private:
  friend FormationState<CrowdedJob>;
  friend AttemptFailures<CrowdedJob>;

  struct ModelWorker {
    std::string host;
    TrainingProgress progress;
    bool is_alive = false;
  };

  static FormationOptions options_of(int least, int most) {
    FormationOptions options;
    options.min_workers = least;
    options.max_workers = most;
    options.first_formation = 0ms;
    return options;
  }

  Instant instant() const { return Instant(now_); }
  ModelWorker& worker(int index) { return workers_[static_cast<std::size_t>(index)]; }
  void schedule(Time at, std::function<void()> happen) { events_.emplace(at, std::move(happen)); }

  void announce(int index) {
    ModelWorker& of = worker(index);
    if (!of.is_alive) {
      return;
    }
    Announce announce;
    announce.worker = {of.host, index, 1};
    announce.host = of.host;
    announce.settings = "kept=all\n";
    announce.progress = of.progress;
    REQUIRE_FALSE(state_.announce(static_cast<ConnectionId>(index) + 1, announce, instant()));
  }

  void end_process(int index) {
    const std::string host = worker(index).host;
    worker(index).is_alive = false;
    crashed.push_back(now_);
    state_.process_ended(host, index, 0, "killed by signal 11 (SIGSEGV)", instant());
    add(now_ + 100ms, host);
  }

  void join(std::uint64_t attempt) {
    if (attempt != opened_ || has_failed_) {
      return;
    }
    for (const int rank : ranks_) {
      worker(rank).progress = {attempt, source_.steps};
    }
    state_.joined(attempt, instant());
    const auto bad =
        std::find_if(ranks_.begin(), ranks_.end(), [&](int rank) { return crashing.contains(worker(rank).host); });
    if (bad == ranks_.end()) {
      schedule(now_ + step_, [this, attempt] { commit(attempt); });
    } else {
      schedule(now_ + 1ms, [this, index = *bad] { end_process(index); });
    }
  }

  void commit(std::uint64_t attempt) {
    if (attempt != opened_ || has_failed_) {
      return;
    }
    commits.push_back(now_);
    for (const int rank : ranks_) {
      ++worker(rank).progress.steps;
    }
    if (!std::exchange(has_committed_, true)) {
      reached.emplace(size(), now_);
      for (const int rank : std::vector<int>(ranks_)) {  // the first report may let newcomers end the attempt
        state_.committed(static_cast<ConnectionId>(rank) + 1, {attempt}, instant());
      }
    }
    schedule(now_ + step_, [this, attempt] { commit(attempt); });
  }

  std::optional<Cause> open_attempt(std::uint64_t attempt, int) {
    opened_ = attempt;
    has_failed_ = has_committed_ = false;
    ranks_.clear();
    return std::nullopt;
  }
  void fail_attempt(const Cause& cause) {
    has_failed_ = true;
    resizes += cause.kind == CauseKind::resized ? 1 : 0;
    for (const int rank : ranks_) {  // each at its next call
      schedule(now_ + 1ms + below(step_), [this, rank] { announce(rank); });
    }
  }
  void send(ConnectionId connection, const ToWorker& message) {
    const int index = static_cast<int>(connection) - 1;
    if (const Barred* barred = std::get_if<Barred>(&message)) {
      bars.push_back(now_ + Time(barred->milliseconds) - crashed.back());
      return;
    }
    if (const CallRequest* request = std::get_if<CallRequest>(&message)) {
      schedule(now_ + below(step_),
               [this, connection, attempt = request->attempt] { state_.called(connection, attempt, instant()); });
      return;
    }
    const Assignment& assignment = std::get<Assignment>(message);
    ranks_.push_back(index);
    source_ = assignment.source;
    if (!crashed.empty() && worker(index).host == worker(static_cast<int>(workers_.size()) - 1).host &&
        !worker(index).progress.has_trained()) {
      assigned_after.push_back(now_ - crashed.back());
    }
    if (assignment.rank + 1 == assignment.world_size) {
      schedule(now_ + 5ms + below(20ms), [this, attempt = assignment.attempt] { join(attempt); });
    }
  }
  void close(ConnectionId) {}
  void warn(const std::string&) {}
  void on_end(const Cause* cause) { FAIL("the job ends: " << (cause == nullptr ? "" : cause->text)); }

  std::mt19937 random_;
  const Time step_;
  Time now_{0};
  std::multimap<Time, std::function<void()>> events_;
  std::vector<ModelWorker> workers_;
  std::vector<int> ranks_;
  TrainingProgress source_;
  std::uint64_t opened_ = 0;
  bool has_failed_ = false;
  bool has_committed_ = false;
  FormationState<CrowdedJob> state_;
};

int storms() {
  const char* const wanted = std::getenv("DTRAIN_TEST_STORMS");
  return wanted != nullptr ? std::atoi(wanted) : support::is_sanitized ? 10 : 100;
}

}  // namespace

TEST_CASE("100 workers that come within a minute end at most 5 attempts, and all are ranks 41 s after the last came") {
  for (const Time step : {10ms, 1000ms}) {
    int most = 0;
    Time longest{0};
    for (int seed = 1; seed <= storms(); ++seed) {
      CAPTURE(step.count());
      CAPTURE(seed);
      CrowdedJob job(static_cast<std::uint32_t>(seed), step, 2, 102);
      constexpr Time first = 10s;
      const bool in_hosts = seed % 2 == 0;  // of ten workers each, which come within 3 s
      Time last{0};
      for (int host = 0; host < 10; ++host) {
        const Time host_at = job.below(57s);
        for (int i = 0; i < 10; ++i) {
          const Time at = first + (in_hosts ? host_at + job.below(3s) : job.below(60s));
          last = std::max(last, at);
          job.add(at, "host " + std::to_string(host));
        }
      }
      job.run_until(first + 60s + 120s);
      REQUIRE(job.reached.contains(102));
      CHECK(job.size() == 102);
      CHECK(job.resizes <= 5);
      CHECK(job.reached.at(102) - last <= 41s + 3 * step);  // gap, collecting; the attempt's end and its first step
      CHECK(static_cast<int>(job.commits.size()) * step >= (190s - job.resizes * (2 * step + 100ms)) * 99 / 100);
      most = std::max(most, job.resizes);
      longest = std::max(longest, job.reached.at(102) - first);
    }
    MESSAGE(storms() << " storms, steps of " << step.count() << " ms: " << most
                     << " attempts ended at most, and all in " << longest.count() << " ms after the storm began");
  }
}

TEST_CASE("a host whose new workers crash is barred 1, 2, 4 ... 60 s while the others train, until one has committed") {
  constexpr Time step = 10ms;
  CrowdedJob job(1, step, 3, 4);
  job.crashing.insert("b");
  job.add(10s, "b");
  job.run_until(600s);
  REQUIRE(job.crashed.size() >= 10);
  REQUIRE(job.bars.size() >= job.crashed.size() - 1);  // the last one may not have come again
  for (std::size_t i = 0; i < job.bars.size(); ++i) {
    CHECK(job.bars[i] == std::min<Time>((1 << std::min<std::size_t>(i, 6)) * 1s, 60s));
  }
  for (std::size_t i = 0; i < job.assigned_after.size(); ++i) {
    CAPTURE(i);
    CHECK(job.assigned_after[i] >= job.bars[i]);
    const Time from = job.crashed[i];
    const auto between = std::count_if(job.commits.begin(), job.commits.end(),
                                       [&](Time at) { return at > from && at < from + job.assigned_after[i]; });
    CHECK(static_cast<int>(between) * step >= job.assigned_after[i] - 100ms);
  }
  CHECK(static_cast<int>(job.commits.size()) * step >= 598s);
  CHECK(job.size() == 3);

  job.crashing.clear();
  job.run_until(800s);
  CHECK(job.size() == 4);
  const std::size_t bars = job.bars.size();
  job.lose_rank("b");  // no newcomer any more
  job.run_until(1000s);
  CHECK(job.size() == 4);
  CHECK(job.bars.size() == bars);
  job.crashing.insert("b");
  job.lose_rank("b");
  job.run_until(1003s);
  REQUIRE(job.bars.size() > bars);
  CHECK(job.bars[bars] == 1s);  // from the crash of the newcomer that came for it
}
