// ctest: TIMEOUT 300 PROCESSORS 2
// ctest: LABELS long no-asan no-tsan
// <dtrain/libtorch.hpp> against LibTorch alone on one process with the samples of all ranks; the example with LibTorch
// trains as LibTorch alone does, whatever the ranks.

#include "integration/prelude.hpp"
#include "support/worker_process.hpp"

namespace {

const std::string folder = DTRAIN_EXAMPLES_DIR "/";

bool can_run(const std::string& needed = "") {
  return dtrain_test::needs(std::filesystem::exists(folder + "fashion_mnist_libtorch"),
                            "fashion_mnist_libtorch was not built: it needs LibTorch (libtorch-dev) and zlib") &&
         dtrain_test::needs(needed.empty() || std::filesystem::exists(needed),
                            "the images are missing: install the package dataset-fashion-mnist");
}

Result run(const std::string& program, const std::vector<std::string>& arguments) {
  return support::run(folder + program, arguments, {}, std::chrono::seconds(120));
}

/// After how many images: enough for another gradient to be another loss.
double loss_after_6000_images(const std::vector<std::string>& arguments) {
  std::vector<std::string> all{"--epochs=1", "--images=6000"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const Result result = run("fashion_mnist_libtorch", all);
  REQUIRE_MESSAGE(result.exit_code == 0, result.error);
  const std::string before = "training loss ";
  const std::size_t found = result.output.find(before);
  REQUIRE(found != std::string::npos);
  return std::stod(result.output.substr(found + before.size()));
}

/// What libtorch_probe does on each rank, in the order of its checks.
const std::vector<std::string> checks{
    "kept gradients",
    "gradients set to none",
    "order of gradients",
    "buffers",
    "two forward passes",
    "unused parameters",
    "gradient hooks",
    "passes under no_sync",
    "passes that are given up",
    "tied and frozen parameters",
    "element types and layouts",
    "odd tensors",
    "sparse gradients",
    "changes after wrapping",
    "the end of the wrapper",
    "collectives of tensors",
    "meanings of elements",
    "tensors that a collective writes to",
    "orders of elements",
    "batches of a DataLoader",
    "buffers of several modules",
    "norms of gradients",
    "recomputed layers",
    "uneven inputs",
    "late samples",
    "refused steps without data",
    "steps without data after passes that are held",
    "a hundred wrappers",
};

/// What each rank of elastic_probe has at its end.
std::vector<std::vector<double>> ends_of(const std::string& output) {
  std::vector<std::vector<double>> ends;
  for (const std::string& line : lines_of(output)) {
    const std::string mark = "finished:";
    const std::size_t at = line.find(mark);
    if (at == std::string::npos) continue;
    std::istringstream numbers(line.substr(at + mark.size()));
    ends.emplace_back(std::istream_iterator<double>(numbers), std::istream_iterator<double>());
  }
  return ends;
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  REQUIRE(a.size() == b.size());
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    largest = std::max(largest, std::abs(a[i] - b[i]) / std::max(1.0, std::abs(b[i])));
  }
  return largest;
}

}  // namespace

TEST_CASE("the smallest LibTorch program ends with nothing to say, on 1 and 3 ranks") {
  if (!can_run()) return;
  for (const char* ranks : {"1", "3"}) {
    CAPTURE(ranks);
    const Result result = run("linear_libtorch", {std::string("--nproc-per-node=") + ranks});
    support::check_quiet(result);
    CHECK(result.output.empty());
  }
}

TEST_CASE("a model whose parameters become more trains on 1, 2 and 3 ranks") {
  if (!can_run()) return;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Result result = run("growing_libtorch", {std::string("--nproc-per-node=") + ranks});
    support::check_quiet(result);
    CHECK_CONTAINS(result.output, "12 bumps, mean square error 0.0");
  }
}

TEST_CASE("a DataLoader with a BatchSampler trains to one loss, and saves weights for Python, on 1, 2 and 3 ranks") {
  if (!can_run()) return;
  const support::TemporaryDirectory files;
  std::string first;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const std::string file = files.path + "/" + ranks + ".safetensors";
    const Result result = run("data_loader_libtorch", {std::string("--nproc-per-node=") + ranks, file});
    support::check_quiet(result);
    const std::string weights = support::file_content(file);
    for (const char* weight :
         {R"("0.weight":{"dtype":"F32","shape":[16, 1],)", R"("2.bias":{"dtype":"F32","shape":[1],)"}) {
      CHECK_CONTAINS(weights, weight);
    }
    if (first.empty()) first = result.output;
    CHECK_CONTAINS(first, "[0] mean squared error 0.0");
    CHECK(result.output == first);
  }
}

TEST_CASE("an elastic job keeps a LibTorch module, its buffers, its optimizer and its scheduler through a loss") {
  if (!can_run()) return;
  const support::TemporaryDirectory files;
  struct Round {
    std::string optimizer;
    int victim;
    bool reloads;
  };
  for (const Round& round : std::vector<Round>{{"adam", 1, false},
                                               {"adam", 0, true},
                                               {"adamw", 2, false},
                                               {"sgd", 1, true},
                                               {"rmsprop", 1, false},
                                               {"adagrad", 0, false}}) {
    CAPTURE(round.optimizer);
    CAPTURE(round.victim);
    const std::vector<std::vector<double>> whole =
        ends_of(run("elastic_probe", {"--nproc-per-node=1", round.optimizer, "60"}).output);
    REQUIRE(whole.size() == 1);
    std::vector<std::string> arguments{
        "--nproc-per-node=3", "--min-ranks=1", "--max-restarts=2", round.optimizer, "60", "3"};
    if (round.reloads) arguments.push_back(files.path + "/" + round.optimizer);
    Program job(folder + "elastic_probe", arguments);
    REQUIRE(job.wait_for("holds at step 20\n", support::soon(std::chrono::seconds(60))));
    const std::string before = job.output();
    ::kill(support::process_of_worker(before, round.victim), SIGKILL);
    const Result result = job.wait(support::soon(std::chrono::seconds(120)));
    CAPTURE(result.output);
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    CHECK(support::process_of_worker(result.output, round.victim) != support::process_of_worker(before, round.victim));
    CHECK(result.error.find("its state differs") == std::string::npos);
    const std::vector<std::vector<double>> ends = ends_of(result.output);
    REQUIRE(ends.size() == 3);
    for (const std::vector<double>& end : ends) {
      CHECK(end == ends[0]);
      CHECK(largest_difference(end, whole[0]) < 2e-4);
    }
  }
}

TEST_CASE("an elastic job whose optimizer is not kept ends, because the ranks' weights differ") {
  if (!can_run()) return;
  Program job(folder + "elastic_probe",
              {"--nproc-per-node=2", "--min-ranks=1", "--max-restarts=2", "adam-not-kept", "60", "2"});
  REQUIRE(job.wait_for("holds at step 20\n", support::soon(std::chrono::seconds(60))));
  ::kill(support::process_of_worker(job.output(), 1), SIGKILL);
  const Result result = job.wait(support::soon(std::chrono::seconds(120)));
  support::check_failed(result, {"differ from another rank's after the first step of attempt"});
}

TEST_CASE("a LibTorch module with Adam that lives through 100 attempts is wrapped again in each") {
  if (!can_run()) return;
  const Result result = run("wrapped_again_probe", {});
  support::check_printed(result, {"holds: a module is wrapped again in each of 100 attempts\n"});
}

TEST_CASE("a training with LibTorch reaches the loss of LibTorch alone, on 1, 2 and 4 ranks") {
  if (!can_run("/usr/share/datasets/fashion-mnist/train-images-idx3-ubyte.gz")) return;
  const double plain = loss_after_6000_images({"--nproc-per-node=1", "--plain"});
  CHECK(plain < 2);  // 2.3 is chance
  for (const char* ranks : {"1", "2", "4"}) {
    CAPTURE(ranks);
    const double loss = loss_after_6000_images({std::string("--nproc-per-node=") + ranks});
    CHECK(std::abs(loss - plain) < 1e-4 * plain);
    const double sharded = loss_after_6000_images({std::string("--nproc-per-node=") + ranks, "--zero"});
    CHECK(std::abs(sharded - plain) < 1e-4 * plain);
  }
}

TEST_CASE("wrapped LibTorch modules get the gradients of LibTorch alone, on 1, 2 and 3 ranks") {
  if (!can_run()) return;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Result result = run("libtorch_probe", {std::string("--nproc-per-node=") + ranks});
    CAPTURE(result.output);
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    for (const std::string& check : checks) {
      CAPTURE(check);
      CHECK_CONTAINS(result.output, "[0] holds: " + check + "\n");
    }
  }
}

TEST_CASE("what dtrain does otherwise than LibTorch alone is said once") {
  if (!can_run()) return;
  const auto check = [](const std::string& errors, const std::string& text) {
    CAPTURE(errors);
    CAPTURE(text);
    const std::size_t said = errors.find(text);
    REQUIRE(said != std::string::npos);
    CHECK(errors.find(text, said + 1) == std::string::npos);
  };
  const Result result = run("libtorch_probe", {"--nproc-per-node=1"});
  check(result.error, "loss.backward() ran outside a step: the gradient of 'weight' is this rank's own");
  check(result.error, "the gradient of 'weight' is sparse; it is reduced as a dense one");
  for (const char* ranks : {"--nproc-per-node=1", "--nproc-per-node=2"}) {
    const Result replaced = run("libtorch_probe", {ranks, "replaced"});
    check(replaced.error, "in steps 11 to 13 no parameter of the wrapped modules took part in the loss on any rank");
  }
  check(run("libtorch_probe", {"--nproc-per-node=1", "cleared"}).error,
        "' was set to none after a pass under no_sync(), so that this pass is lost");
}

TEST_CASE("a generator's pass through a wrapped discriminator is no reason for a warning") {
  if (!can_run()) return;
  const Result result = run("libtorch_probe", {"--nproc-per-node=2", "adversarial"});
  CAPTURE(result.error);
  CHECK(result.exit_code == 0);
  CHECK(result.error.find("ran outside a step") == std::string::npos);
}

TEST_CASE("a pass that adds to a gradient again after it was final is told which graph policy to give") {
  if (!can_run()) return;
  for (const auto& [act, text] : std::vector<std::pair<std::string, std::string>>{
           {"recomputed", "autograd added to the gradient of parameter '1.bias' again after it was final"},
           {"recomputed-static", "in the first pass it added less often; give GraphPolicy::dynamic_graph"},
           {"no-group", "the SyncBatchNorm '' has no group; call convert_sync_batchnorm(*net, group)"}}) {
    CAPTURE(act);
    const Result result = run("libtorch_probe", {"--nproc-per-node=1", act});
    support::check_ended(result, 1, {text});
  }
}

TEST_CASE("a parameter that has changed after wrapping is named, with what has changed") {
  if (!can_run()) return;
  struct Change {
    std::string act, text;
  };
  const auto check = [](const std::string& program, std::vector<std::string> arguments, const Change& change) {
    CAPTURE(program);
    CAPTURE(change.act);
    arguments.push_back(change.act);
    const Result result = run(program, arguments);
    support::check_ended(result, 1, {change.text});
  };
  for (const Change& change : std::vector<Change>{
           {"added", "parameter 'late' was added or replaced after its module was wrapped"},
           {"converted",
            "parameter 'weight' has another type than when it was wrapped (Double, not Float); make another"},
           {"reshaped", "parameter 'bias' has another shape than when it was wrapped ([1], not [2])"},
           {"frozen", "parameter 'bias' needed a gradient when it was wrapped, and needs none now"},
           {"unfrozen", "parameter 'bias' needed no gradient when it was wrapped, and needs one now"}}) {
    check("libtorch_probe", {"--nproc-per-node=1"}, change);
  }
  for (const Change& change : std::vector<Change>{
           {"strided", "parameter '0.weight' has other strides than when it was wrapped ([1, 5], not [6, 1])"},
           {"tied", "the values of parameter 0 '0.weight' and parameter 1 '0.bias' share memory"},
           {"loaded", "parameter '2.bias' has another shape than when it was wrapped ([1], not [3])"},
           {"unfrozen", "parameter '0.bias' needed no gradient when it was wrapped, and needs one now"}}) {
    check("sharded_probe", {"--nproc-per-node=2", "unused"}, change);
  }
}

TEST_CASE("a parameter whose use changes in a static graph is named") {
  if (!can_run()) return;
  const Result added = run("libtorch_probe", {"--nproc-per-node=1", "static"});
  CAPTURE(added.error);
  CHECK(added.output == "[0] step\n[0] step\n[0] step\n");
  support::check_failed(added, {"parameter '1.weight' took part in the loss of this step and not of the first one"});
  const Result dropped = run("libtorch_probe", {"--nproc-per-node=1", "dropped"});
  support::check_failed(dropped, {"parameter '1.weight' took part in the loss of the first step and not of this one"});
}

TEST_CASE("SyncBatchNorm is BatchNorm over the samples of all ranks, within 1e-6") {
  if (!can_run()) return;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Result result = run("sync_batch_norm_probe", {std::string("--nproc-per-node=") + ranks});
    support::check_printed(result, {"[0] holds: SyncBatchNorm is BatchNorm over all samples\n"});
  }
}

TEST_CASE("a sharded optimizer updates LibTorch modules as LibTorch's optimizers do, on 1, 2 and 3 ranks") {
  if (!can_run()) return;
  const support::TemporaryDirectory files;
  for (const std::string ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Result result = run("sharded_probe", {"--nproc-per-node=" + ranks, files.path + "/" + ranks});
    CAPTURE(result.output);
    CAPTURE(result.error);
    CHECK(result.exit_code == 0);
    const std::vector<std::string> of_each_type{"AdamW's updates",
                                                "Adam's updates",
                                                "SGD's updates",
                                                "RMSprop's updates",
                                                "Adagrad's updates",
                                                "unused parameters",
                                                "refused updates",
                                                "divided gradients",
                                                "memory of divided gradients",
                                                "layouts of divided gradients",
                                                "a checkpoint",
                                                "a checkpoint in an optimizer that is not sharded",
                                                "a checkpoint in one of two optimizers"};
    std::vector<std::string> all{"versions of parameters",
                                 "shares of the state",
                                 "refused optimizers",
                                 "values that moved",
                                 "values that were swapped",
                                 "averages of values that moved",
                                 "bindings of values that moved",
                                 "a checkpoint of values that moved",
                                 "refused mixtures of types"};
    for (const std::string& check : of_each_type) {
      all.push_back(check);
      all.push_back(check + " in Double");
    }
    for (const std::string& check : all) {
      CAPTURE(check);
      CHECK_CONTAINS(result.output, "[0] holds: " + check + "\n");
    }
  }
  const Result fewer = run("sharded_probe", {"--nproc-per-node=2", files.path + "/3", "load"});
  CAPTURE(fewer.error);
  CHECK(fewer.exit_code == 0);
}

TEST_CASE("a training goes on from its checkpoint with the bits of an undisturbed one") {
  if (!can_run()) return;
  const support::TemporaryDirectory files;
  for (const std::string ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const std::string file = files.path + "/" + ranks;
    const Result result = run("checkpoint_probe", {"--nproc-per-node=" + ranks, file});
    support::check_printed(result,
                           {"[0] holds: a resumed training has the bits of an undisturbed one\n",
                            "[0] holds: checkpoints have several optimizers and schedules, and need no sampler\n",
                            "[0] holds: a checkpoint that is replaced while it is loaded is loaded as the new one\n",
                            "[0] holds: weights have the names of state_dict()\n",
                            "[0] holds: shared tensors are saved once, and elements by their types\n",
                            "[0] holds: optimizers are saved by the names of PyTorch's flattened state\n",
                            "[0] holds: checkpoints of other trainings are refused\n"});
  }
  const Result fewer = run("checkpoint_probe", {"--nproc-per-node=2", files.path + "/3", "ranks"});
  support::check_ended(fewer, 0, {"has the random numbers of 3 ranks and the group has 2"});
}

TEST_CASE("the example that goes on where it stopped has the loss of one run") {
  if (!can_run()) return;
  const support::TemporaryDirectory files;
  const auto loss = [&](const std::string& file, const std::string& epochs) {
    const Result result = run("resumed_libtorch", {"--nproc-per-node=2", files.path + "/" + file, epochs});
    REQUIRE_MESSAGE(result.exit_code == 0, result.error);
    return result.output;
  };
  const std::string whole = loss("whole", "4");
  const std::string half = loss("parts", "2");
  CHECK(half != whole);
  CHECK(loss("parts", "4") == whole);
}

TEST_CASE("a parameter that takes no part in the loss is named") {
  if (!can_run()) return;
  const Result result = run("libtorch_probe", {"--nproc-per-node=1", "leave-out"});
  support::check_failed(result, {"these parameters got no gradient: parameter 2 '1.weight', parameter 3 '1.bias'"});
}

TEST_CASE("what a rank throws in its backward pass comes out of autograd on the others") {
  if (!can_run()) return;
  const Result result = run("libtorch_probe", {"--nproc-per-node=2", "throw"});
  CAPTURE(result.output);
  CAPTURE(result.error);
  CHECK(result.exit_code != 0);
  const std::size_t said = result.output.find("[0] autograd ended with: ");
  REQUIRE(said != std::string::npos);
  CHECK(result.output.find("the second rank gives up", said) != std::string::npos);
}
