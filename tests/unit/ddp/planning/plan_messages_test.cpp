#include "dtrain/ddp/planning/plan_search.hpp"
#include "unit/ddp/prelude.hpp"

TEST_CASE("all ranks together are as late as the last, and cost what the rank that waited least has measured") {
  const std::vector<RankTiming> timings{{{{1e-3, 2e-9}, {5e-3, 0}}, 0.5, {0.1, 0.4}},
                                        {{{2e-3, 1e-9}, {6e-3, 0}}, 0.6, {0.2, 0.3}}};
  const RankTiming all = combined(timings, 10, 100'000'000);
  REQUIRE(all.costs.size() == 2);
  CHECK(all.costs[0].message_seconds == 2e-3);
  CHECK(all.costs[0].byte_seconds == 1e-9);
  CHECK(all.costs[1].message_seconds == 5e-3);  // of each variant, the rank that waited least for that one
  CHECK(all.compute == 0.6);
  CHECK(all.ready == std::vector<double>{0.2, 0.4});
  CHECK(combined(timings, 1000, 1000).costs[0].message_seconds == 1e-3);
}

TEST_CASE("each parameter's time arrives, and of very many the last one's of a group") {
  const std::vector<double> few{0.3, 0.1, 0.2};
  const std::vector<std::size_t> order{1, 2, 0};
  CHECK(grouped_times(few, order) == std::vector<double>{0.1, 0.2, 0.3});
  CHECK(times_of_parameters(grouped_times(few, order), order) == few);
  std::vector<double> many(10'000);
  std::vector<std::size_t> ascending(many.size());
  std::iota(many.begin(), many.end(), 0.0);
  std::iota(ascending.begin(), ascending.end(), std::size_t{0});
  const std::vector<double> groups = grouped_times(many, ascending);
  CHECK(groups.size() == max_ready_groups);
  CHECK(groups.back() == 9'999);
  const std::vector<double> back = times_of_parameters(groups, ascending);
  for (std::size_t i = 0; i < many.size(); ++i) {
    CHECK(back[i] >= many[i]);
    CHECK(back[i] <= many[i] + 40);
  }
}

TEST_CASE("a measurement survives its bytes, and what no rank sends is refused") {
  const RankTiming sent{{{1e-4, 8e-9}, {0, 1e-9}}, 0.25, {0.125, 0.25}};
  const std::string bytes = dtrain::to_bytes(sent);
  const auto got = dtrain::from_bytes<RankTiming>(bytes, "a rank's measurement");
  REQUIRE(got.costs.size() == 2);
  CHECK(got.costs[0].message_seconds == 1e-4);
  CHECK(got.costs[0].byte_seconds == 8e-9);
  CHECK(got.costs[1].byte_seconds == 1e-9);
  CHECK(got.compute == 0.25);
  CHECK(got.ready == sent.ready);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_FALSE(dtrain::try_from_bytes<RankTiming>(bytes.substr(0, length)));
  for (const double wrong : {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_FALSE(dtrain::try_from_bytes<RankTiming>(dtrain::to_bytes(RankTiming{{{wrong, 0}}, 0, {}})));
    CHECK_FALSE(dtrain::try_from_bytes<RankTiming>(dtrain::to_bytes(RankTiming{{{0, 0}}, 0, {wrong}})));
  }
  CHECK_FALSE(dtrain::try_from_bytes<RankTiming>(
      dtrain::to_bytes(RankTiming{{{0, 0}}, 0, std::vector<double>(max_ready_groups + 1)})));
  for (const std::size_t variants : {std::size_t{0}, max_variants + 1}) {
    CHECK_FALSE(
        dtrain::try_from_bytes<RankTiming>(dtrain::to_bytes(RankTiming{std::vector<LinkCost>(variants), 0, {}})));
  }
}

TEST_CASE("settings survive their bytes, and a variant that no communicator has is refused") {
  const PlanSettings sent{{4096, 8192}, 2};
  CHECK(dtrain::from_bytes<PlanSettings>(dtrain::to_bytes(sent), "a plan") == sent);
  CHECK_FALSE(dtrain::try_from_bytes<PlanSettings>(dtrain::to_bytes(PlanSettings{{4096, 8192}, max_variants})));
}
