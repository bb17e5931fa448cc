// ctest: TIMEOUT 120
// One thread reads what is refused here; under ThreadSanitizer the examples are not built.
// ctest: LABELS no-tsan
// Input that cannot be followed: one sentence that says what, where and what to do, and nothing left behind.

#include "integration/prelude.hpp"
#include "support/fashion_mnist_program.hpp"

using fashion_mnist_program::can_run;
using fashion_mnist_program::images;
const std::string& per_node = fashion_mnist_program::example;

namespace {

using Variables = Program::Variables;

const std::string per_process = DTRAIN_EXAMPLES_DIR "/fashion_mnist_per_process";
const std::string whoami = DTRAIN_EXAMPLES_DIR "/whoami";

void check_says(const Result& result, int exit_code, std::initializer_list<std::string> parts) {
  INFO(result.output);
  support::check_ended(result, exit_code, parts);
}

/// Starts one process for each set of variables and returns how each ended.
std::vector<Result> run_ranks(const std::vector<Variables>& ranks) {
  std::vector<std::unique_ptr<Program>> programs;
  for (const Variables& variables : ranks)
    programs.push_back(std::make_unique<Program>(per_process, std::vector<std::string>{"--epochs=1"}, variables));
  std::vector<Result> results;
  for (const auto& program : programs)
    results.push_back(program->wait(support::soon(std::chrono::seconds(60))));
  return results;
}

}  // namespace

TEST_CASE("data that is missing, cut short or something else is named with its file and a remedy") {
  if (!can_run()) return;
  const TemporaryDirectory folder;
  check_says(support::run(per_node, {"--nproc-per-node=2", "--data=" + folder.path + "/nowhere"}), 1,
             {folder.path + "/nowhere/train-images-idx3-ubyte.gz", "dataset-fashion-mnist"});

  for (const auto& entry : std::filesystem::directory_iterator(images))
    std::filesystem::copy(entry.path(), folder.path + "/" + entry.path().filename().string());
  std::filesystem::resize_file(folder.path + "/train-images-idx3-ubyte.gz", 100000);
  check_says(support::run(per_node, {"--nproc-per-node=2", "--data=" + folder.path}), 1,
             {folder.path + "/train-images-idx3-ubyte.gz", "--data"});

  std::ofstream(folder.path + "/train-images-idx3-ubyte.gz") << "not a gzip file";
  check_says(support::run(per_node, {"--nproc-per-node=2", "--data=" + folder.path}), 1,
             {folder.path + "/train-images-idx3-ubyte.gz"});
  CHECK(support::all_gone(folder.path, support::soon(std::chrono::seconds(5))));
}

TEST_CASE("an unknown flag is a usage error that one rank says") {
  if (!can_run()) return;
  const Result result = support::run(per_node, {"--nproc-per-node=4", "--epoch=1"});
  check_says(result, 2, {"--epoch"});
  int said = 0;
  std::istringstream lines(result.error);
  for (std::string line; std::getline(lines, line);) {
    const bool of_a_rank = line.starts_with("[") && line.find("ends because") == std::string::npos;
    said += of_a_rank && line.find("the flag \"--epoch=1\" is not known") != std::string::npos ? 1 : 0;
  }
  CHECK(said == 1);
  check_says(support::run(per_node, {"--nprocs-per-node=4"}), 2, {"--nprocs-per-node", "--nproc-per-node"});
  check_says(support::run(per_node, {"--nproc-per-node=0"}), 2, {"--nproc-per-node"});
}

TEST_CASE("a rank beyond the world size is an identity error") {
  if (!can_run()) return;
  const Variables variables{{"RANK", "5"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
  check_says(support::run(per_process, {"--epochs=1"}, variables), 2, {"RANK", "5", "2"});
  const Result told = support::run(whoami, {}, variables);
  CHECK(told.exit_code == 2);
  CHECK_CONTAINS(told.output, "\"error_code\": \"rank-out-of-range\"");
}

TEST_CASE("ranks that were told different world sizes end with both sizes, each of them") {
  if (!can_run()) return;
  integration::TakenPort port;
  port.release();
  const Variables meeting{{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port.number}};
  Variables first = meeting;
  first.insert({{"RANK", "0"}, {"WORLD_SIZE", "2"}});
  Variables second = meeting;
  second.insert({{"RANK", "1"}, {"WORLD_SIZE", "3"}});
  for (const Result& result : run_ranks({first, second})) {
    INFO(result.error);
    CHECK((result.exit_code == 1 || result.exit_code == 75));
    CHECK_CONTAINS(result.error, "rank 1", "3", "2", "world size");
    CHECK(result.time < std::chrono::seconds(30));
  }
}

TEST_CASE("a port in use is named, with what to set, by both ways to start") {
  if (!can_run()) return;
  const integration::TakenPort port;
  const Variables variables{
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port.number}};
  check_says(support::run(per_process, {"--epochs=1"}, variables), 1, {port.number, "in use", "MASTER_PORT"});
  check_says(support::run(per_node, {"--nproc-per-node=2", "--master-port=" + port.number}), 2,
             {port.number, "in use", "--master-port"});
}

TEST_CASE("a master host that does not resolve is named, with what to set") {
  if (!can_run()) return;
  const Variables variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "no-such-host.invalid"}};
  const Result result = support::run(per_process, {"--epochs=1"}, variables);
  check_says(result, 1, {"no-such-host.invalid", "MASTER_ADDR"});
  CHECK(result.time < std::chrono::seconds(30));
}
