// ctest: TIMEOUT 600 PROCESSORS 2
// Trainings of minutes under a sanitizer; the same paths run there with small models and ranks as threads
// (unit.public_interface).
// ctest: LABELS long no-asan no-tsan
// What the example promises: it learns, it is one training whatever the ranks, and its summary is right.

#include "dtrain/core/crypto.hpp"
#include "integration/prelude.hpp"
#include "support/fashion_mnist_program.hpp"

using fashion_mnist_program::can_run;
using fashion_mnist_program::example;

namespace {

/// Parameters of the network 784-256-128-10, in bytes: what one step reduces.
constexpr double gradient_bytes = 4.0 * (784 * 256 + 256 + 256 * 128 + 128 + 128 * 10 + 10);
constexpr double steps_per_epoch = 235;  // of 256 of 60,000 samples, the last one smaller

struct Trained {
  SummaryFile summary;
  std::string parameters;
};

/// One epoch with `arguments` added. Every run is to succeed.
Trained train(std::vector<std::string> arguments) {
  const TemporaryDirectory folder;
  arguments.insert(arguments.begin(), "--epochs=1");  // a later --epochs wins
  arguments.push_back("--summary=" + folder.path + "/summary");
  arguments.push_back("--save-parameters=" + folder.path + "/parameters");
  const Result result = support::run(example, arguments, {}, std::chrono::seconds(120));
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  return {SummaryFile(folder.path + "/summary"), support::file_content(folder.path + "/parameters")};
}

/// One epoch without further arguments, trained once for all test cases.
const Trained& plain(int ranks) {
  static std::map<int, Trained> trained;
  const auto found = trained.find(ranks);
  return found != trained.end()
             ? found->second
             : trained.emplace(ranks, train({"--nproc-per-node=" + std::to_string(ranks)})).first->second;
}

std::string sha256_of(const std::string& bytes) {
  return dtrain::hex(dtrain::Sha256().update(bytes).digest());
}

}  // namespace

TEST_CASE("three epochs on two ranks reach 0.86 on the test set, and the summary is right") {
  if (!can_run()) return;
  const Trained trained = train({"--nproc-per-node=2", "--epochs=3"});
  CHECK(trained.summary.number("test_accuracy") >= 0.86);
  CHECK(trained.summary.number("world_size") == 2);
  CHECK(trained.summary.number("epochs") == 3);
  CHECK(trained.summary.text("samples_per_rank") == "[90000, 90000]");
  CHECK(trained.summary.number("exposed_ms_per_step") >= 0);
  CHECK(trained.summary.number("hidden_ms_per_step") >= 0);
  CHECK(trained.summary.number("exposed_ms_per_step") + trained.summary.number("hidden_ms_per_step") > 0);
  CHECK(trained.summary.number("bytes_reduced") == 3 * steps_per_epoch * gradient_bytes);
  CHECK(static_cast<double>(trained.parameters.size()) == gradient_bytes);
  CHECK(trained.summary.text("parameters_digest") == sha256_of(trained.parameters));
  const double seconds = trained.summary.number("seconds");
  CHECK(trained.summary.number("samples_per_second") * seconds == doctest::Approx(180000));
}

TEST_CASE("one training, whatever the ranks: 1, 2 and 4 of them reach the same loss") {
  if (!can_run()) return;
  const double loss_of_1 = plain(1).summary.number("final_loss");
  for (const int ranks : {2, 4}) {
    CAPTURE(ranks);
    CHECK(std::abs(plain(ranks).summary.number("final_loss") - loss_of_1) < 1e-3 * loss_of_1);
  }
}

TEST_CASE("four ranks give the same bits again, with small and large buckets and for every progress") {
  if (!can_run()) return;
  for (const char* argument :
       {"--bucket-mib=0.25", "--bucket-mib=25", "--progress=thread", "--progress=caller", "--progress=automatic"}) {
    CAPTURE(argument);
    CHECK(train({"--nproc-per-node=4", argument}).summary.text("parameters_digest") ==
          plain(4).summary.text("parameters_digest"));
  }
}

TEST_CASE("16-bit parameters, and hooks that reduce less, reach f32's accuracy but for a hundredth after an epoch") {
  if (!can_run()) return;
  for (const char* argument : {"--precision=bf16", "--precision=f16", "--hook=bf16", "--hook=bf16:error-feedback",
                               "--hook=powersgd:4", "--hook=topk:5", "--hook=local:8"}) {
    CAPTURE(argument);
    const Trained trained = train({"--nproc-per-node=2", argument});
    CHECK(trained.summary.number("test_accuracy") >= plain(2).summary.number("test_accuracy") - 0.01);
    CHECK(trained.summary.text("parameters_digest") != plain(2).summary.text("parameters_digest"));
  }
}

TEST_CASE("one rank's perturbed gradient changes the parameters of all, and alike") {
  if (!can_run()) return;
  // The program itself compares the ranks' digests before it writes its summary.
  const std::string perturbed = train({"--nproc-per-node=2", "--perturb-rank=1"}).summary.text("parameters_digest");
  CHECK(perturbed != plain(2).summary.text("parameters_digest"));
}

TEST_CASE("the accuracy is that of the test labels: with those shuffled it is chance") {
  if (!can_run()) return;
  const double accuracy = train({"--nproc-per-node=2", "--shuffle-test-labels"}).summary.number("test_accuracy");
  CHECK(accuracy > 0.07);
  CHECK(accuracy < 0.13);
}

TEST_CASE("started once for each rank by somebody else, it is the same training, and its timeline has every rank") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  std::vector<std::unique_ptr<Program>> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<Program>(
        DTRAIN_EXAMPLES_DIR "/fashion_mnist_per_process",
        std::vector<std::string>{"--epochs=1", "--summary=" + folder.path + "/summary",
                                 "--timeline=" + folder.path + "/timeline"},
        Program::Variables{
            {"RANK", rank}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29533"}}));
  }
  for (const auto& rank : ranks) {
    const Result result = rank->wait(support::soon(std::chrono::seconds(120)));
    REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  }
  CHECK(SummaryFile(folder.path + "/summary").text("parameters_digest") == plain(2).summary.text("parameters_digest"));
  const std::string timeline = support::file_content(folder.path + "/timeline");
  for (const char* event : {"\"step 235\",\"pid\":0", "\"step 235\",\"pid\":1", "\"step 186\",\"pid\":1",
                            "\"layer3.bias\",\"pid\":1", "\"bucket 0\",\"pid\":1,\"tid\":3"}) {
    CAPTURE(event);
    CHECK_CONTAINS(timeline, event);
  }
  CHECK(timeline.find("\"step 185\"") == std::string::npos);  // it has the last 50
}
