#include "dtrain/launch/configuration/known_variables.hpp"
#include "support/captured_stderr.hpp"
#include "unit/launch/prelude.hpp"

namespace {

/// What is said of an environment with this variable alone.
std::string said_of(const std::string& name, const std::string& value = "1") {
  const Words sentences = unknown_variables({{name, value}});
  CHECK(sentences.size() <= 1);
  return sentences.empty() ? "" : sentences.front();
}

const std::string misspelt = "DTRAIN_TIMEOUT_SECOND is not a variable of dtrain; did you mean DTRAIN_TIMEOUT_SECONDS?";

/// What a process with these variables, and a misspelt one, writes to stderr when a program joins its job.
std::string warned(Environment environment) {
  environment.emplace("DTRAIN_TIMEOUT_SECOND", "5");
  support::CapturedStderr captured;
  try {
    static_cast<void>(rank_process_of({}, Takes::elastic, Variables(environment)));
  } catch (const dtrain::Error&) {
    return "thrown: " + captured.text();
  }
  return captured.text();
}

}  // namespace

TEST_CASE("a variable that dtrain does not read is named with the one that may be meant") {
  CHECK(said_of("DTRAIN_TIMEOUT_SECOND") == misspelt);
  CHECK(said_of("DTRAIN_RNK") == "DTRAIN_RNK is not a variable of dtrain; did you mean DTRAIN_RANK?");
  CHECK(said_of("DTRAIN_MASTER_PROT") ==
        "DTRAIN_MASTER_PROT is not a variable of dtrain; did you mean DTRAIN_MASTER_PORT?");
  CHECK(said_of("DTRAIN_TIMEOUT") ==
        "DTRAIN_TIMEOUT is not a variable of dtrain; did you mean DTRAIN_TIMEOUT_SECONDS?");
  CHECK(said_of("DTRAIN_LOG_LEVEL") == "DTRAIN_LOG_LEVEL is not a variable of dtrain; did you mean DTRAIN_LOG?");
  const std::string own =
      " is not a variable of dtrain; unset it, or begin the names of your own variables with DTRAIN_USER_";
  CHECK(said_of("DTRAIN_EPOCHS") == "DTRAIN_EPOCHS" + own);
  CHECK(said_of("DTRAIN_") == "DTRAIN_" + own);
  CHECK(said_of("DTRAIN_WRAPPER") == "DTRAIN_WRAPPER" + own);  // DTRAIN_WRAPPED is the launcher's
}

TEST_CASE("nothing is said of variables that are known, free, empty or others'") {
  for (const auto& name : dtrain::launch::user_variables)
    CHECK(said_of(std::string(name)) == "");
  for (const std::string name :
       {"DTRAIN_ATTEMPT", "DTRAIN_REPORT_DESCRIPTOR", "DTRAIN_PEER_PYTHON", "DTRAIN_TORCH_PREFIX", "DTRAIN_USER_EPOCHS",
        "DTRAIN_TEST_JOB", "DTRAIN_EMULATED_DEVICES", "DTRAIN_WITH_MPI", "DTRAINING", "DTRAIM_LOG", "XDTRAIN_LOGS",
        "dtrain_log", "PATH"}) {
    CHECK(said_of(name) == "");
  }
  CHECK(said_of("DTRAIN_TIMEOUT_SECOND", "") == "");
}

TEST_CASE("nothing is said of what Kubernetes sets for a service that is named after dtrain") {
  const Environment of_services{{"DTRAIN_SERVICE_HOST", "10.0.0.1"},     {"DTRAIN_SERVICE_PORT_STORE", "29500"},
                                {"DTRAIN_PORT", "tcp://10.0.0.1:29500"}, {"DTRAIN_PORT_29500_TCP_ADDR", "10.0.0.1"},
                                {"DTRAIN_B_SERVICE_PORT", "29500"},      {"DTRAIN_B_PORT", "udp://10.0.0.1:29500"}};
  CHECK(unknown_variables(of_services).empty());
  CHECK_CONTAINS(said_of("DTRAIN_MASTR_PORT", "29500"), "did you mean DTRAIN_MASTER_PORT?");
}

TEST_CASE("names from the environment are shown without what a terminal would interpret, and not at any length") {
  CHECK_CONTAINS(said_of("DTRAIN_\x1b[2J\nLOG"), "DTRAIN_\\x1b[2J\\nLOG is not a variable of dtrain");
  const std::string longest = said_of("DTRAIN_" + std::string(100'000, 'X'));
  CHECK_CONTAINS(longest, "XXX... is not a variable of dtrain; unset it");
  CHECK(longest.size() < 200);
  CHECK(said_of("DTRAIN_LOGS", "a secret") == "DTRAIN_LOGS is not a variable of dtrain; did you mean DTRAIN_LOG?");
  Environment many{{"PATH", "/bin"}, {"DTRAIN_LOG", "info"}};
  for (int i = 10; i < 30; ++i)
    many.emplace("DTRAIN_X" + std::to_string(i), "1");
  const Words sentences = unknown_variables(many);
  REQUIRE(sentences.size() == 9);
  CHECK_CONTAINS(sentences[7], "DTRAIN_X17 is not");
  CHECK(sentences[8] == "12 further variables that begin with DTRAIN_ are none of dtrain");
}

TEST_CASE("rank 0 warns of unknown variables, and each process that cannot tell its rank") {
  const std::string line = "dtrain: " + misspelt + "\n";
  CHECK(warned({}) == line);
  Environment several{{"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"LOCAL_RANK", "0"}, {"RANK", "0"}};
  const std::string first = warned(several);
  CHECK_CONTAINS(first, "rank 0 of 2");
  CHECK(support::count_of(first, line) == 1);
  several["RANK"] = "1";
  CHECK(warned(several) == "");
  several.erase("RANK");
  CHECK(warned(several) == "thrown: " + line);
  Environment elastic{{"DTRAIN_WORLD_SIZE", "1:2"}, {"MASTER_ADDR", "127.0.0.1"}, {"DTRAIN_RANK", "0"}};
  CHECK(warned(elastic) == line);
  elastic["DTRAIN_RANK"] = "1";
  CHECK(warned(elastic) == "");
}

TEST_CASE("a process that is alone warns of unknown variables, and a launcher's worker does not") {
  Environment environment{{"DTRAIN_LOGS", "info"}};
  support::CapturedStderr captured;
  static_cast<void>(rank_process_alone(Variables(environment), {"train"}));
  const std::string alone = captured.text();
  environment.insert({{"DTRAIN_RANK", "0"},
                      {"DTRAIN_WORLD_SIZE", "1"},
                      {"DTRAIN_LOCAL_RANK", "0"},
                      {"DTRAIN_MASTER_ADDR", "127.0.0.1"},
                      {"DTRAIN_MASTER_PORT", "29500"}});
  static_cast<void>(rank_process_of_launcher(Variables(environment), {"train"}));
  CHECK(alone == "dtrain: DTRAIN_LOGS is not a variable of dtrain; did you mean DTRAIN_LOG?\n");
  CHECK(captured.text() == alone);
}
