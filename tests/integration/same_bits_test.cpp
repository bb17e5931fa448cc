// ctest: TIMEOUT 900 PROCESSORS 2
// Trainings of minutes under a sanitizer; micro_batches_test does the same with ranks as threads.
// ctest: LABELS long no-asan no-tsan
// fashion_mnist and gpt2 over micro-batches: one sha256 on any number of ranks, over any backend, after kills, after a
// restart on another number of ranks.
//   DTRAIN_TEST_SAME_BITS_KILLS=20 integration --source-file='*/same_bits_test.cpp'

#include "dtrain/core/crypto.hpp"
#include "integration/prelude.hpp"
#include "support/fashion_mnist_program.hpp"
#include "support/gpt2_program.hpp"

namespace {

using Arguments = std::vector<std::string>;

const std::string mpirun = DTRAIN_TEST_MPIRUN;  // empty without MPI
const Program::Variables as_root{{"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"}};

/// A program, and how it is told to write its weights.
struct Example {
  std::string program;
  Arguments flags;
  std::string save;  ///< before a path
  std::string file;  ///< behind it

  std::string digest(const std::string& path) const {
    const std::string bytes = support::file_content(path + file);
    REQUIRE(!bytes.empty());
    return dtrain::hex(dtrain::Sha256().update(bytes).digest());
  }
};

const Example fashion_mnist{
    fashion_mnist_program::example, {"--epochs=1", "--micro-batches=16"}, "--save-parameters=", ""};
const Example gpt2{
    gpt2_program::example,
    {"--layers=2", "--channels=64", "--context=32", "--steps=30", "--global-batch=19", "--micro-batches=16"},
    "--save=",
    "/model.safetensors"};

/// The digest of the weights. @param before arguments before the program's own, or a launcher's @param kills so many
/// workers, at moments by `seed`
std::string trained(const Example& example, const std::string& program, Arguments before, int kills = 0,
                    unsigned seed = 0) {
  const TemporaryDirectory folder;
  before.insert(before.end(), example.flags.begin(), example.flags.end());
  before.push_back(example.save + folder.path + "/weights");
  Program job(program, before, as_root);
  job.close_input();
  std::mt19937 random(seed);
  for (int killed = 0; killed < kills; ++killed) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100 + random() % 500));
    const std::vector<pid_t> workers = support::children_of(job.process());
    if (workers.size() > 1) ::kill(workers[random() % workers.size()], SIGKILL);
  }
  const Result result = job.finish(support::soon(std::chrono::seconds(120)));
  INFO(result.output);
  INFO(result.error);
  return example.digest(folder.path + "/weights");
}

std::string trained(const Example& example, int ranks) {
  return trained(example, example.program, {"--nproc-per-node=" + std::to_string(ranks)});
}

void expect_one_digest(const Example& example) {
  const std::string expected = trained(example, 1);
  for (const int ranks : {2, 3, 4, 5, 6, 8}) {
    CAPTURE(ranks);
    CHECK(trained(example, ranks) == expected);
  }
  if (std::filesystem::exists(example.program + "_gloo")) {
    for (const int ranks : {2, 3, 5})
      CHECK(trained(example, example.program + "_gloo", {"--nproc-per-node=" + std::to_string(ranks)}) == expected);
  }
  if (!mpirun.empty() && std::filesystem::exists(example.program + "_mpi")) {
    for (const char* ranks : {"2", "3"})
      CHECK(trained(example, mpirun, {"--oversubscribe", "-n", ranks, example.program + "_mpi"}) == expected);
  }
  const char* const wanted = std::getenv("DTRAIN_TEST_SAME_BITS_KILLS");
  const int schedules = wanted != nullptr ? std::atoi(wanted) : 3;
  for (int schedule = 0; schedule < schedules; ++schedule) {
    CAPTURE(schedule);
    const auto seed = static_cast<unsigned>(schedule);
    const std::string workers = std::to_string(2 + schedule % 4);
    CHECK(trained(example, example.program,
                  {"--nproc-per-node=" + workers, "--min-ranks=1", "--max-restarts=100", "--elastic"}, 6,
                  seed) == expected);
  }
}

}  // namespace

TEST_CASE("fashion_mnist over micro-batches ends with one sha256") {
  if (!fashion_mnist_program::can_run()) return;
  expect_one_digest(fashion_mnist);
}

TEST_CASE("gpt2 over micro-batches ends with one sha256") {
  if (!gpt2_program::can_run()) return;
  expect_one_digest(gpt2);
}

TEST_CASE("a training that ends on 3 ranks goes on from its checkpoint on 2, to the same sha256") {
  if (!fashion_mnist_program::can_run()) return;
  const support::TemporaryFile checkpoint;
  const Arguments flags{"--epochs=1", "--micro-batches=16", "--checkpoint=" + checkpoint.path, "--checkpoint-steps=20"};
  Arguments first = flags;
  first.insert(first.begin(), "--nproc-per-node=3");
  {
    Program job(fashion_mnist.program, first);
    job.close_input();
    const dtrain::Deadline deadline = support::soon(std::chrono::seconds(60));
    while (!std::filesystem::exists(checkpoint.path) && !deadline.passed())
      REQUIRE(!job.wait_for("test accuracy", dtrain::Deadline::after(std::chrono::milliseconds(20))));
    REQUIRE(std::filesystem::exists(checkpoint.path));
  }  // killed
  Example resumed = fashion_mnist;
  resumed.flags = flags;
  const std::string expected = trained(fashion_mnist, 1);
  CHECK(trained(resumed, 2) == expected);

  Arguments others{"--nproc-per-node=2", "--epochs=1", "--micro-batches=8", "--checkpoint=" + checkpoint.path};
  const Result refused = support::run(fashion_mnist.program, others, {}, std::chrono::seconds(60));
  CHECK(refused.exit_code != 0);
  CHECK_CONTAINS(refused.error,
                 "is the checkpoint of a training with --epochs=1 --global-batch=256 --seed=1 "
                 "--micro-batches=16");
}
