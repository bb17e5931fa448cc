#include "dtrain/ddp/planning/measured_plan.hpp"

#include "unit/ddp/prelude.hpp"

using dtrain::PlanChoice;
using std::chrono::nanoseconds;

namespace {

constexpr std::size_t mib = std::size_t{1} << 20;
constexpr int timed_steps = static_cast<int>(dtrain::ddp::plan_trial_steps + dtrain::ddp::given_plan_steps);
constexpr int last_step = 4 + timed_steps;

bool are_same(const BucketPlan& one, const BucketPlan& other) {
  return one.bucket_of == other.bucket_of;
}

/// Ranks that reduce layers of 2 MiB over a network of the given cost. Nothing waits: the records have modelled times.
struct Simulation {
  int ranks = 2;
  std::size_t layers = 50;
  LinkCost cost{1e-4, 1 / 125e6};
  std::vector<double> layer_seconds{0.018, 0.018};  ///< by rank
  /// Of the communicator, with the cost of each after the first; empty: it has none.
  std::vector<const char*> variants{};
  std::vector<LinkCost> other_costs{};
  bool overlaps = true;
  dtrain::DdpOptions options{.plan = PlanChoice::measured()};
  /// Time that a rank's step takes besides, by the step's number and plan.
  std::function<double(int step, const BucketPlan& plan)> delay = [](int, const BucketPlan&) { return 0.0; };
  std::optional<int> delayed_rank{};  ///< the only one; none: every rank

  /// What a rank did.
  struct Rank {
    std::vector<BucketPlan> plans;  ///< of each step, and at last of the next one
    dtrain::ddp::SavedPlanNumbers saved{};
    int settled_after = 0;                ///< a step's number; 0: never
    std::vector<std::size_t> variants{};  ///< as plans
    std::vector<bool> timed{};            ///< of each step: whether its ready times were recorded
  };

  /// @param saved the plan that the ranks have loaded
  std::vector<Rank> run(dtrain::ddp::SavedPlanNumbers saved = {}) const {
    std::vector<Rank> results(static_cast<std::size_t>(ranks));
    const auto job = std::make_shared<support::FakeJob>(ranks);
    support::on_threads(results.size(),
                        [&](std::size_t rank) { run_rank(job, static_cast<int>(rank), saved, results[rank]); });
    return results;
  }

  std::vector<dtrain::Parameter> parameters() const {
    static float memory[2 * mib / sizeof(float)];
    const dtrain::TensorView view = dtrain::tensor_view(memory, {2 * mib / sizeof(float)});
    return std::vector<dtrain::Parameter>(layers, {"layer", view, view});
  }

  /// Of a plan whose trial takes place.
  int last_step_of_all() const { return last_step + 2 * static_cast<int>(other_costs.size()); }

  BucketPlan given() const { return plan_buckets(dtrain::ddp::gradient_sizes(parameters()), options.caps()); }

 private:
  void run_rank(const std::shared_ptr<support::FakeJob>& job, int rank, const dtrain::ddp::SavedPlanNumbers& saved,
                Rank& result) const {
    const std::shared_ptr<const dtrain::group::GroupHandle> group = support::FakeGroupHandle::of(job, rank, ranks);
    const std::vector<dtrain::Parameter> all = parameters();
    const std::string prefix = "ddp/0/";
    const std::shared_ptr<BucketPlanner> planner = options.plan.make()({options, all, true, group, prefix, variants});
    planner->saved() = saved;
    BucketPlan plan = given();
    StepRecorder recorder(1024);
    for (int step = 1; step <= last_step_of_all() + 3; ++step) {
      result.plans.push_back(plan);
      result.variants.push_back(planner->variant());
      result.timed.push_back(planner->wants_ready_times());
      const nanoseconds duration = record(recorder, step, rank, plan, planner->variant());
      if (planner->is_settled()) continue;
      if (std::optional<BucketPlan> next =
              planner->after_step({}, {static_cast<std::uint64_t>(step), duration, recorder})) {
        plan = std::move(*next);
      }
      if (planner->is_settled()) result.settled_after = step;
    }
    if (planner->is_settled()) planner->saved() = {};  // a checkpoint without a plan, loaded too late to be used
    result.saved = planner->saved();
  }

  /// Writes the records of a step. @returns its duration
  nanoseconds record(StepRecorder& recorder, int step, int rank, const BucketPlan& plan, std::size_t variant) const {
    const LinkCost& link = variant == 0 ? cost : other_costs[variant - 1];
    const auto begin = dtrain::ddp::StepRecord::Clock::time_point(std::chrono::seconds(10 * step));
    const auto note = [&](StepEvent event, std::size_t index, double seconds) {
      const auto time = std::chrono::duration_cast<nanoseconds>(std::chrono::duration<double>(seconds));
      recorder.note(static_cast<std::uint64_t>(step), event, index, begin + time);
      return time;
    };
    const auto ready_at = [&](int of, std::size_t layer) {
      return layer_seconds[static_cast<std::size_t>(of)] * static_cast<double>(layers - layer);
    };
    note(StepEvent::begun, 0, 0);
    for (std::size_t layer = layers; layer-- > 0;)
      note(StepEvent::ready, layer, ready_at(rank, layer));
    const double computed = ready_at(rank, 0);
    note(StepEvent::waiting, 0, computed);
    double own_free_at = overlaps ? 0 : computed;
    for (std::size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      const std::size_t last = plan.buckets[bucket].parameters.back();
      double started = std::max(own_free_at, ready_at(rank, last));
      note(StepEvent::started, bucket, started);
      for (int other = 0; other < ranks; ++other)
        started = std::max(started, overlaps ? ready_at(other, last) : ready_at(other, 0));
      own_free_at = started + link.seconds(1, static_cast<double>(plan.buckets[bucket].bytes));
      note(StepEvent::reduced, bucket, own_free_at);
    }
    const bool is_delayed = delayed_rank.value_or(rank) == rank;
    return note(StepEvent::finished, 0, std::max(own_free_at, computed) + (is_delayed ? delay(step, plan) : 0.0));
  }
};

}  // namespace

TEST_CASE("on a network as fast as the backward pass all ranks choose a bucket for each layer, and keep it") {
  const std::vector<Simulation::Rank> ranks = Simulation{}.run();
  const BucketPlan given = Simulation{}.given();
  for (const Simulation::Rank& rank : ranks) {
    CHECK(rank.settled_after == last_step);
    CHECK(rank.plans.back().buckets.size() == 50);
    for (int step = 1; step <= last_step + 3; ++step) {
      const auto i = static_cast<std::size_t>(step) - 1;
      CAPTURE(step);
      CHECK(are_same(rank.plans[i], ranks[0].plans[i]));
      CHECK(rank.timed[i] == (step >= 2 && step <= 4));
      const bool is_given = step <= 2 || (step >= 25 && step <= 29);
      if (step != 3 && step != 4) CHECK(are_same(rank.plans[i], given) == is_given);
    }
    const std::optional<SavedPlan> saved = SavedPlan::from(rank.saved);
    REQUIRE(saved);
    CHECK(saved->conditions.world_size == 2);
    CHECK(saved->settings.caps.bucket_bytes == 2 * mib);
  }
}

TEST_CASE("a rank that is slow decides when gradients are ready, and the others' waiting is no cost of a reduction") {
  Simulation simulation;
  simulation.layer_seconds = {0.001, 0.018};
  const std::vector<Simulation::Rank> ranks = simulation.run();
  CHECK(ranks[0].plans.back().buckets.size() == 50);
  CHECK(are_same(ranks[0].plans.back(), ranks[1].plans.back()));
}

TEST_CASE("where nothing is reduced beside the backward pass, latency alone counts: one bucket") {
  Simulation simulation;
  simulation.overlaps = false;
  simulation.cost = {0.01, 1e-9};
  CHECK(simulation.run()[0].plans.back().buckets.size() == 1);
}

TEST_CASE("the given sizes stay after step 4 where the model finds none that gain") {
  Simulation simulation;
  simulation.cost = {0, 1e-12};
  for (const Simulation::Rank& rank : simulation.run()) {
    CHECK(rank.settled_after == 4);
    CHECK(are_same(rank.plans.back(), simulation.given()));
    CHECK(SavedPlan::from(rank.saved)->settings.caps.bucket_bytes == simulation.options.bucket_bytes);
  }
}

TEST_CASE("a plan whose steps take longer than with the given sizes is given up, on every rank") {
  for (const std::optional<int> slowest : {std::optional<int>(), std::optional(0), std::optional(1)}) {
    CAPTURE(slowest.value_or(-1));
    Simulation simulation;
    const std::size_t given_buckets = simulation.given().buckets.size();
    simulation.delay = [=](int step, const BucketPlan& plan) {
      return step > 4 && plan.buckets.size() != given_buckets ? 1.0 : 0.0;
    };
    simulation.delayed_rank = slowest;
    for (const Simulation::Rank& rank : simulation.run()) {
      CHECK(rank.plans[4].buckets.size() == 50);
      CHECK(rank.settled_after == last_step);
      CHECK(are_same(rank.plans.back(), simulation.given()));
      CHECK(SavedPlan::from(rank.saved)->settings.caps.bucket_bytes == simulation.options.bucket_bytes);
    }
  }
}

TEST_CASE("a few slow steps in the trial change nothing: its median counts") {
  Simulation simulation;
  simulation.delay = [](int step, const BucketPlan&) { return step >= 5 && step < 12 ? 1.0 : 0.0; };
  CHECK(simulation.run()[0].plans.back().buckets.size() == 50);
}

TEST_CASE("a saved plan is used from the second step on for the same ranks and model, else measured anew") {
  const dtrain::ddp::SavedPlanNumbers saved = Simulation{}.run()[0].saved;
  for (const Simulation::Rank& rank : Simulation{}.run(saved)) {
    CHECK(rank.settled_after == 1);
    CHECK(rank.plans[1].buckets.size() == 50);
    CHECK(rank.saved == saved);
  }
  Simulation more;
  more.ranks = 3;
  more.layer_seconds = {0.018, 0.018, 0.018};
  CHECK(more.run(saved)[2].settled_after == last_step);
  Simulation smaller;
  smaller.layers = 49;
  CHECK(smaller.run(saved)[1].settled_after == last_step);
}

TEST_CASE("numbers that are those of no plan are none") {
  const dtrain::ddp::SavedPlanNumbers good = SavedPlan{{4, 2, -7}, {{mib, 2 * mib}}}.numbers();
  REQUIRE(SavedPlan::from(good));
  CHECK(SavedPlan::from(good)->numbers() == good);
  CHECK(good[0] == 1);  // as before there were variants
  const dtrain::ddp::SavedPlanNumbers other = SavedPlan{{4, 2, -7}, {{mib, 2 * mib}, 7}}.numbers();
  REQUIRE(SavedPlan::from(other));
  CHECK(SavedPlan::from(other)->settings.variant == 7);
  CHECK(SavedPlan::from(other)->numbers() == other);
  CHECK_FALSE(SavedPlan::from({}));
  CHECK(SavedPlan::from(SavedPlan{{4, 2, -7}, {{mib, SIZE_MAX}}}.numbers()));
  for (const auto& [index, value] : {std::pair<std::size_t, std::int64_t>{0, 2},
                                     {0, 257 + 1},
                                     {0, 1 + 8 * 256},
                                     {0, -255},
                                     {1, 0},
                                     {1, std::int64_t{1} << 40},
                                     {2, 0},
                                     {4, -1},
                                     {5, -1}}) {
    dtrain::ddp::SavedPlanNumbers wrong = good;
    wrong[index] = value;
    CHECK_FALSE(SavedPlan::from(wrong));
  }
}

namespace {

/// Ranks of a Hierarchical policy, where Flat is ten times as fast or as slow.
Simulation two_ways(double flat) {
  Simulation simulation;
  simulation.cost = {1e-4, 1 / 40e6};  // slower than the backward pass
  simulation.variants = {"Hierarchical", "Flat"};
  simulation.other_costs = {{flat * 1e-4, flat / 40e6}};
  return simulation;
}

}  // namespace

TEST_CASE("each variant is measured with the sizes to probe with and the given ones, and the fastest is used") {
  const Simulation simulation = two_ways(0.1);
  const std::vector<Simulation::Rank> ranks = simulation.run();
  CHECK(simulation.last_step_of_all() == 31);
  for (const Simulation::Rank& rank : ranks) {
    CHECK(rank.settled_after == 31);
    CHECK(rank.variants == ranks[0].variants);
    for (int step = 1; step <= 34; ++step) {
      const auto i = static_cast<std::size_t>(step) - 1;
      CAPTURE(step);
      CHECK(are_same(rank.plans[i], ranks[0].plans[i]));
      CHECK(rank.timed[i] == (step >= 2 && step <= 6));
      const bool is_trial = step >= 7 && step <= 26;
      CHECK(rank.variants[i] == (step == 5 || step == 6 || is_trial || step > 31 ? 1 : 0));
    }
    CHECK(are_same(rank.plans[4], rank.plans[3]));
    CHECK(are_same(rank.plans[5], simulation.given()));
    CHECK(are_same(rank.plans[28], simulation.given()));
    const std::optional<SavedPlan> saved = SavedPlan::from(rank.saved);
    REQUIRE(saved);
    CHECK(saved->settings.variant == 1);
  }
}

TEST_CASE("a variant that is slower, or faster by less than the model is precise, leaves the policy's own") {
  for (const double flat : {10.0, 1.0, 0.995}) {
    CAPTURE(flat);
    const Simulation simulation = two_ways(flat);
    for (const Simulation::Rank& rank : simulation.run()) {
      CHECK(rank.settled_after == 6);  // nothing else is faster than what is given
      CHECK(are_same(rank.plans.back(), simulation.given()));
      CHECK(rank.variants.back() == 0);
      CHECK(SavedPlan::from(rank.saved)->settings.variant == 0);
    }
  }
}

TEST_CASE("of three variants the last may be the fastest, and its sizes are its own") {
  Simulation simulation = two_ways(10);
  simulation.variants = {"Hierarchical", "Hierarchical in f32", "Flat"};
  simulation.other_costs.push_back({0.2, 1e-12});  // few buckets are best
  for (const Simulation::Rank& rank : simulation.run()) {
    CHECK(rank.settled_after == 33);
    CHECK(rank.variants.back() == 2);
    CHECK(rank.plans.back().buckets.size() < 5);
  }
}

TEST_CASE("a variant whose steps take longer in the trial is given up") {
  Simulation simulation = two_ways(0.1);
  simulation.delay = [](int step, const BucketPlan&) { return step >= 7 && step <= 26 ? 10.0 : 0.0; };
  for (const Simulation::Rank& rank : simulation.run()) {
    CHECK(rank.variants[6] == 1);
    CHECK(rank.variants.back() == 0);
    CHECK(are_same(rank.plans.back(), simulation.given()));
  }
}

TEST_CASE("the variant alone may change, of a model of one parameter too") {
  Simulation simulation = two_ways(0.1);
  simulation.layers = 1;
  for (const Simulation::Rank& rank : simulation.run()) {
    CHECK(rank.settled_after == 31);
    CHECK(rank.plans.back().buckets.size() == 1);
    CHECK(rank.variants.back() == 1);
  }
}

TEST_CASE("a saved variant is used again where the variants are the same, and the plan is measured anew elsewhere") {
  const Simulation simulation = two_ways(0.1);
  const dtrain::ddp::SavedPlanNumbers saved = simulation.run()[0].saved;
  for (const Simulation::Rank& rank : simulation.run(saved)) {
    CHECK(rank.settled_after == 1);
    CHECK(rank.variants[1] == 1);
    CHECK(rank.saved == saved);
  }
  CHECK(Simulation{}.run(saved)[1].settled_after == last_step);
  Simulation others = simulation;
  others.variants = {"Hierarchical in f16", "Flat"};
  CHECK(others.run(saved)[0].settled_after == 31);
  CHECK(simulation.run(Simulation{}.run()[0].saved)[0].settled_after == 31);
  dtrain::ddp::SavedPlanNumbers third = saved;  // the conditions hold, but there is no such variant
  third[0] = 1 + 2 * 256;
  REQUIRE(SavedPlan::from(third)->settings.variant == 2);
  CHECK(simulation.run(third)[0].settled_after == 31);
}

TEST_CASE("a model of one parameter has one plan: nothing is measured") {
  Simulation simulation;
  simulation.layers = 1;
  for (const Simulation::Rank& rank : simulation.run()) {
    CHECK(rank.settled_after == 1);
    CHECK(rank.plans.back().buckets.size() == 1);
  }
}

/// @param variants how many
void check_refused(const std::vector<dtrain::Parameter>& parameters, std::size_t variants, const char* sentence) {
  const dtrain::DdpOptions options{.plan = PlanChoice::measured()};
  const auto job = std::make_shared<support::FakeJob>(1);
  const std::string prefix = "ddp/0/";
  const std::shared_ptr<const dtrain::group::GroupHandle> group = support::FakeGroupHandle::of(job, 0, 1);
  CHECK_THROWS_WITH_AS(
      options.plan.make()({options, parameters, true, group, prefix, std::vector<const char*>(variants, "a way")}),
      sentence, dtrain::Error);
}

TEST_CASE("gradients that are not in host memory are refused, and more ways to reduce than are measured") {
  std::vector<dtrain::Parameter> parameters = Simulation().parameters();
  check_refused(parameters, 9,
                "DdpOptions::plan measures up to 8 ways to reduce, but the backend offers 9; set "
                "DdpOptions::bucket_bytes instead");
  parameters[7].gradient.device = {dtrain::DeviceKind::cuda, 1};
  check_refused(parameters, 0,
                "DdpOptions::plan measures how gradients in host memory are reduced, but one is on cuda:1; set "
                "DdpOptions::bucket_bytes instead");
}
