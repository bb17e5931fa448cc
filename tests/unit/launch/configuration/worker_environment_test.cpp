#include "dtrain/launch/configuration/worker_program.hpp"
#include "unit/launch/prelude.hpp"

namespace launch = dtrain::launch;
using dtrain::identity::ProcessIdentity;

namespace {

launch::NodePlan four_workers() {
  launch::NodePlan plan;
  plan.workers = 4;
  plan.world_size = 4;
  plan.master_addr = "127.0.0.1";
  plan.master_port = 4242;
  plan.cores = 9;
  plan.launcher_process = "77";
  return plan;
}

}  // namespace

TEST_CASE("a worker reads from its environment exactly who it is, also under the names of torch") {
  const Environment base{{"RANK", "9"},
                         {"WORLD_SIZE", "10"},
                         {"DTRAIN_LAUNCHER", "torch"},
                         {"PMI_RANK", "1"},
                         {"PMIX_RANK", "1"},
                         {"OMPI_COMM_WORLD_SIZE", "7"},
                         {"MV2_COMM_WORLD_RANK", "1"},
                         {"HOME", "/root"},
                         {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  for (int rank = 0; rank < 4; ++rank) {
    Environment environment = launch::worker_environment(base, four_workers(), rank);
    const ProcessIdentity who = dtrain::identity::process_identity(environment);
    CHECK(who.launcher == "dtrain");
    CHECK(who.rank == rank);
    CHECK(who.world_size == 4);
    CHECK(who.local_rank == rank);
    CHECK(who.node_count == 1);
    CHECK(who.master_port == 4242);
    CHECK(environment["HOME"] == "/root");
    CHECK(environment["OMP_NUM_THREADS"] == "2");
    environment["DTRAIN_LAUNCHER"] = "torch";
    const ProcessIdentity torch = dtrain::identity::process_identity(environment);
    CHECK(torch.rank == rank);
    CHECK(torch.master_port == 4242);
    for (const char* gone : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK"}) {
      CHECK(environment.count(gone) == 0);
    }
  }
}

TEST_CASE("workers of uneven nodes have ranks of their own, and know which attempt they are of") {
  launch::NodePlan plan = four_workers();
  plan.workers = 2;
  plan.first_rank = 5;
  plan.world_size = 7;
  plan.node_rank = 2;
  plan.node_count = 3;
  plan.attempt = 4;
  const ProcessIdentity who = dtrain::identity::process_identity(launch::worker_environment({}, plan, 1));
  CHECK(who.rank == 6);
  CHECK(who.world_size == 7);
  CHECK(who.local_rank == 1);
  CHECK(who.local_world_size == 2);
  CHECK(who.node_rank == 2);
  CHECK(who.node_count == 3);
  CHECK(who.attempt == 4);
}

TEST_CASE("a secret that the launcher made replaces what the environment had, and no secret changes nothing") {
  launch::NodePlan plan = four_workers();
  const Environment base{{"DTRAIN_SECRET", "old"}, {"DTRAIN_SECRET_FILE", "/file"}};
  CHECK(launch::worker_environment(base, plan, 0)["DTRAIN_SECRET_FILE"] == "/file");
  plan.secret = "new";
  const Environment environment = launch::worker_environment(base, plan, 0);
  CHECK(environment.at("DTRAIN_SECRET") == "new");
  CHECK(environment.count("DTRAIN_SECRET_FILE") == 0);
}

TEST_CASE("OMP_NUM_THREADS is the user's where it is set, and never 0") {
  CHECK(launch::worker_environment({{"OMP_NUM_THREADS", "7"}}, four_workers(), 0)["OMP_NUM_THREADS"] == "7");
  launch::NodePlan crowded = four_workers();
  crowded.cores = 2;
  CHECK(launch::worker_environment({}, crowded, 0)["OMP_NUM_THREADS"] == "1");
}

TEST_CASE("only a child of the launcher that wrote the variables is a worker") {
  const Environment environment = launch::worker_environment({}, four_workers(), 1);
  CHECK(launch::is_worker_environment(environment, 77));
  CHECK(!launch::is_worker_environment(environment, 78));
  CHECK(!launch::is_worker_environment({{"DTRAIN_RANK", "0"}}, 77));
}

TEST_CASE("a launcher inside a worker forgets who that worker is, and nothing else") {
  Environment environment = launch::worker_environment({{"HOME", "/root"}}, four_workers(), 1);
  const Environment outside = launch::without_outer_job(environment);
  CHECK(dtrain::identity::process_identity(outside).launcher == "single");
  CHECK(outside.count("HOME") == 1);
  const Environment torch{{"RANK", "0"}, {"WORLD_SIZE", "1"}};
  CHECK(launch::without_outer_job(torch) == torch);
}

TEST_CASE("seconds are read strictly") {
  using std::chrono::milliseconds;
  const auto read = [](const char* text) {
    const Environment environment{{"S", text}};
    return launch::seconds_setting(Variables(environment), "S", milliseconds(1));
  };
  CHECK(read("600") == std::chrono::seconds(600));
  CHECK(read("0.25") == milliseconds(250));
  CHECK(read("") == milliseconds(1));
  CHECK(read(".5") == milliseconds(500));
  CHECK(read("0.001") == milliseconds(1));
  CHECK(read("007.1234567899") == std::chrono::nanoseconds(7'123'456'789));
  CHECK(read("10000000") == std::chrono::seconds(10'000'000));
  for (const char* bad : {"0", "-1", "1e3", "inf", "nan", "5s", " 5", "99999999", "0x10", ".", "5,5", "1.2.3", "0.0009",
                          "10000001", "99999999999999999999999999999999", "0.00000000000000000000000001"}) {
    CAPTURE(bad);
    CHECK_THROWS_AS(read(bad), dtrain::Error);
  }
}

TEST_CASE("DTRAIN_STRAGGLER_FACTOR is a factor, or 0") {
  const auto read = [](const char* text) {
    const Environment environment{{"DTRAIN_STRAGGLER_FACTOR", text}};
    return launch::straggler_factor_setting(Variables(environment));
  };
  CHECK(read("") == 1.15);
  CHECK(read("0") == 0);
  CHECK(read("1.5") == 1.5);
  CHECK(read("1.01") == 1.01);
  for (const char* bad : {"1", "1.009", "0.5", "-1", "1001", "115%", "off"}) {
    CAPTURE(bad);
    CHECK_ERROR(read(bad), dtrain::Errc::usage, "is neither 0 nor a number from 1.01 to 1000; correct it or unset it");
  }
}

TEST_CASE("DTRAIN_LOG is a level or an error that lists the levels") {
  for (const char* good : {"", "off", "error", "warning", "info", "debug"}) {
    const Environment environment{{"DTRAIN_LOG", good}};
    CHECK_NOTHROW(launch::check_log_setting(Variables(environment)));
  }
  for (const char* bad : {"abc", "Info", "1", "warn"}) {
    const Environment environment{{"DTRAIN_LOG", bad}};
    CHECK_ERROR(launch::check_log_setting(Variables(environment)), dtrain::Errc::usage,
                "off, error, warning, info or debug");
  }
}

TEST_CASE("an argument vector is like main's, and its copies keep it") {
  launch::ArgumentVector copy;
  {
    const launch::ArgumentVector original({"program", "--flag", ""});
    copy = original;
  }
  REQUIRE(copy.count() == 3);
  CHECK(std::string(copy.pointers()[1]) == "--flag");
  CHECK(copy.pointers()[3] == nullptr);
  CHECK(copy.view().size() == 3);
}

TEST_CASE("a program does not see the --local_rank that launchers add") {
  using Texts = std::vector<std::string>;
  using dtrain::identity::without_local_rank;
  CHECK(without_local_rank({"p", "--local_rank=1", "a"}) == Texts{"p", "a"});
  CHECK(without_local_rank({"p", "--local-rank", "1", "a"}) == Texts{"p", "a"});
  CHECK(without_local_rank({"p", "--local_ranks=1", "--", "--local_rank=1"}) ==
        Texts{"p", "--local_ranks=1", "--", "--local_rank=1"});
}
