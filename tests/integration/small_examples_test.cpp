// The small examples, whoami among them, do what their first lines say.

#include <cmath>
#include <cstdint>
#include <fstream>

#include "integration/prelude.hpp"

namespace {

const std::string examples = DTRAIN_EXAMPLES_DIR "/";

}  // namespace

TEST_CASE("every rank of hello_all_reduce prints the sum of all ranks, for 1, 2, 3, 4 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CAPTURE(ranks);
    const Result result = support::run(examples + "hello_all_reduce", {"--nproc-per-node=" + std::to_string(ranks)});
    support::check_quiet(result);
    CHECK(support::count_of(result.output, "\n") == static_cast<std::size_t>(ranks));
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string line = "[" + std::to_string(rank) + "] rank " + std::to_string(rank) + " of " +
                               std::to_string(ranks) + ": sum " + std::to_string(ranks * (ranks - 1) / 2) + "\n";
      CHECK_CONTAINS(result.output, line);
    }
  }
}

TEST_CASE("word_vectors has the losses of one rank on two, and they fall") {
  const support::TemporaryDirectory files;
  const std::string file = files.path + "/text";
  {
    std::ofstream text(file);
    for (int i = 0; i < 300; ++i)  // each word has neighbours of its own
      text << (i % 2 == 0 ? "red green blue yellow violet orange " : "one two three four five six ");
  }
  std::string losses;
  for (const char* ranks : {"1", "2"}) {
    CAPTURE(ranks);
    const Result result =
        support::run(examples + "word_vectors", {std::string("--nproc-per-node=") + ranks, file, "red"});
    support::check_quiet(result);
    CAPTURE(result.output);
    const auto loss_of = [&](int epoch) {
      const std::string before = "epoch " + std::to_string(epoch) + ": loss ";
      const std::size_t begin = result.output.find(before);
      REQUIRE(begin != std::string::npos);
      return std::stod(result.output.substr(begin + before.size()));
    };
    CHECK(loss_of(9) < 0.95 * loss_of(0));
    if (losses.empty()) losses = std::to_string(loss_of(9));
    CHECK(std::abs(std::stod(losses) - loss_of(9)) < 0.003);
    CHECK_CONTAINS(result.output, "red: ");
  }
}

TEST_CASE("every rank of collectives prints what each of them gave it, for 1, 2, 3 and 4 ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const Result result = support::run(examples + "collectives", {"--nproc-per-node=" + std::to_string(ranks)});
    CAPTURE(result.output);
    support::check_quiet(result);
    CHECK(support::count_of(result.output, "\n") ==
          static_cast<std::size_t>(15 * ranks - 1));  // rank 0 receives nothing
    std::string squares;
    std::string tables;
    std::string numbers;
    std::string rows = " 1 2";
    int product = 1;
    for (int rank = 0; rank < ranks; ++rank) {
      squares += " " + std::to_string(rank * rank);
      product *= rank + 1;
      tables += " " + std::to_string(rank + 1);
      rows += rank + 1 < ranks ? " 2 4" : " 1 2";
      for (int i = 0; i <= rank; ++i)
        numbers += " " + std::to_string(rank);
    }
    for (int rank = 0; rank < ranks; ++rank) {
      const auto printed = [&](const std::string& what) {
        const std::string number = std::to_string(rank);
        return result.output.find("[" + number + "] rank " + number + ": " + what + "\n") != std::string::npos;
      };
      const int before = (rank + ranks - 1) % ranks;
      int half = 0;
      for (int other = rank % 2; other < ranks; other += 2)
        half += other;
      CHECK(printed("all_reduce " + std::to_string(ranks * (ranks - 1) / 2) + " " + std::to_string(ranks)));
      CHECK(printed("broadcast " + std::to_string(10 * (ranks - 1))));
      CHECK(printed("reduce_scatter " + std::to_string(product)));
      CHECK(printed("all_gather" + squares));
      CHECK(printed("reduce " + std::to_string(rank == 0 ? ranks * (ranks - 1) / 2 : rank)));
      CHECK(printed("gather and scatter " + std::to_string(rank * rank)));
      CHECK(printed("all_to_all" + tables));
      CHECK(printed("all_gather_v" + numbers));
      CHECK(printed("the best split is feature " + std::to_string(ranks == 1 ? 0 : 1)));
      CHECK(printed("all_reduce_rows" + rows));
      CHECK(printed("all have the settings 1"));
      CHECK(printed("send_recv " + std::to_string(before * before)));
      CHECK(printed("recv 4 " + std::to_string(rank)) == (rank > 0));
      CHECK(printed("all_reduce of its half " + std::to_string(half)));
      CHECK(printed("all_reduce on a stream 1"));
    }
  }
}

TEST_CASE("the ranks of store_coroutines take all pieces of the list, each once") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    const Result result = support::run(examples + "store_coroutines", {"--nproc-per-node=" + std::to_string(ranks)});
    CAPTURE(result.output);
    support::check_quiet(result);
    CHECK(support::count_of(result.output, "\n") == static_cast<std::size_t>(ranks));
    int taken = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string begin = "[" + std::to_string(rank) + "] rank " + std::to_string(rank) + ": rank ";
      const std::size_t line = result.output.find(begin);
      REQUIRE(line != std::string::npos);
      const std::string rest = result.output.substr(line, result.output.find('\n', line) - line);
      const std::size_t number = rest.find(" wrote the list; took ");
      REQUIRE(number != std::string::npos);
      CHECK(rest.ends_with(", all 12"));
      taken += std::stoi(rest.substr(number + std::string(" wrote the list; took ").size()));
    }
    CHECK(taken == 12);
  }
}

TEST_CASE("one_block, moved_gradients and older_standard, which are as libraries are, learn the same on all ranks") {
  for (const std::string name : {"one_block", "moved_gradients", "older_standard"}) {
    CAPTURE(name);
    const auto error_on = [&name](int ranks) {
      const Result result = support::run(examples + name, {"--nproc-per-node=" + std::to_string(ranks)});
      INFO(result.output);
      REQUIRE_MESSAGE(result.exit_code == 0, result.error);
      CHECK(result.error == "");
      const std::string begin = "[0] mean squared error ";
      REQUIRE(result.output.starts_with(begin));
      CHECK(result.output.ends_with(" in the last epoch\n"));
      return std::stod(result.output.substr(begin.size()));
    };
    const double alone = error_on(1);
    CHECK(alone < 0.02);
    for (const int ranks : {2, 3}) {
      CAPTURE(ranks);
      CHECK(std::abs(error_on(ranks) - alone) < 0.001);
    }
  }
}

/// What c_trainer's last line says; and how many ranks it had.
static std::pair<double, int> end_of_c_trainer(const Result& result) {
  INFO(result.output);
  INFO(result.error);
  CHECK(result.exit_code == 0);
  const std::size_t line = result.output.find("step 640 on ");
  REQUIRE(line != std::string::npos);
  int ranks = 0;
  double error = 0;
  REQUIRE(std::sscanf(result.output.c_str() + line, "step 640 on %d rank(s): mean squared error %lf", &ranks, &error) ==
          2);
  return {error, ranks};
}

TEST_CASE(
    "c_trainer, whose momentum lies in its gradients, learns the same on 1 to 4 ranks and after the loss of one") {
  const double alone = end_of_c_trainer(support::run(examples + "c_trainer", {"--nproc-per-node=1"})).first;
  CHECK(alone < 0.03);
  for (const int ranks : {2, 3, 4}) {
    const auto [error, ended_on] =
        end_of_c_trainer(support::run(examples + "c_trainer", {"--nproc-per-node=" + std::to_string(ranks)}));
    CHECK(ended_on == ranks);
    CHECK(std::abs(error - alone) < 5e-6);
  }
  bool landed = false;
  for (int tries = 0; tries < 20 && !landed; ++tries) {  // a kill may come too late on a loaded machine
    support::Program job(examples + "c_trainer", {"--nproc-per-node=3", "--min-ranks=1"});
    REQUIRE(job.wait_for("step 160 on "));
    const std::vector<pid_t> workers = support::children_of(job.process());
    if (!workers.empty()) ::kill(workers.back(), SIGKILL);
    const auto [error, ended_on] = end_of_c_trainer(job.wait());
    landed = ended_on == 2;
    CHECK(std::abs(error - alone) < 5e-6);  // 3e-4 if the momentum keeps the unit of three ranks
  }
  CHECK(landed);
}

TEST_CASE("same_bits ends with the same weights on 1 to 5 ranks, and after workers are killed") {
  const auto end_of = [](const Result& result) {
    INFO(result.output);
    INFO(result.error);
    CHECK(result.exit_code == 0);
    const std::size_t found = result.output.find("weights ");
    REQUIRE(found != std::string::npos);
    return result.output.substr(found);
  };
  const std::string alone = end_of(support::run(examples + "same_bits", {"--nproc-per-node=1"}));
  for (const char* ranks : {"2", "3", "5"}) {
    CAPTURE(ranks);
    CHECK(end_of(support::run(examples + "same_bits", {std::string("--nproc-per-node=") + ranks})) == alone);
  }
  support::Program job(examples + "same_bits", {"--nproc-per-node=3", "--min-ranks=1", "--max-restarts=10"});
  for (int kills = 0; kills < 3; ++kills) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const std::vector<pid_t> workers = support::children_of(job.process());
    if (workers.size() > 1) ::kill(workers[static_cast<std::size_t>(kills) % workers.size()], SIGKILL);
  }
  const Result result = job.wait();
  CHECK(end_of(result) == alone);
  CHECK_CONTAINS(result.error, "killed by signal 9");
}

TEST_CASE("wrapped_optimizer fits the line on 1, 2 and 3 ranks, and goes on from the solver's bytes") {
  const support::TemporaryDirectory folder;
  const auto line_of = [](int ranks, const std::string& checkpoint) {
    const Result result =
        support::run(examples + "wrapped_optimizer", {"--nproc-per-node=" + std::to_string(ranks), checkpoint});
    REQUIRE_MESSAGE(result.exit_code == 0, result.error);
    CHECK(result.error == "");
    float slope = 0;
    float offset = 0;
    REQUIRE(std::sscanf(result.output.c_str(), "[0] y = %f x + %f", &slope, &offset) == 2);
    return std::pair(slope, offset);
  };
  const auto [slope, offset] = line_of(1, folder.path + "/1");
  CHECK(std::abs(slope - 3) > 1e-3);  // 100 steps are not the end of it
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    const auto line = line_of(ranks, folder.path + "/" + std::to_string(ranks));
    CHECK(std::abs(line.first - slope) < 1e-4);
    CHECK(std::abs(line.second - offset) < 1e-4);
  }
  const auto further = line_of(2, folder.path + "/1");
  CHECK(std::abs(further.first - 3) < std::abs(slope - 3) / 2);
  CHECK(std::abs(further.second - 1) < 1e-3);
}

TEST_CASE("a global batch that the ranks do not divide is said once, with the samples that count twice") {
  const Result result = support::run(examples + "one_block", {"--nproc-per-node=5"});
  INFO(result.error);
  CHECK(result.exit_code == 0);
  const std::string said = "a global batch of 48 samples on 5 ranks: each step has 2 samples twice";
  const std::size_t at = result.error.find(said);
  REQUIRE(at != std::string::npos);
  CHECK(result.error.find(said, at + 1) == std::string::npos);
}

TEST_CASE("small_network learns the same on 1, 2 and 3 ranks, and goes on from its checkpoint") {
  const auto error_in = [](const Result& result) {
    INFO(result.output);
    REQUIRE_MESSAGE(result.exit_code == 0, result.error);
    const std::string begin = "[0] mean squared error ";
    REQUIRE(result.output.starts_with(begin));
    CHECK_CONTAINS(result.output, " over 960 samples after 40 epochs\n");
    return std::stod(result.output.substr(begin.size()));
  };
  const double alone = error_in(support::run(examples + "small_network", {"--nproc-per-node=1"}));
  CHECK(alone < 0.02);  // before the training it is 11
  const support::TemporaryDirectory folder;
  for (const int ranks : {3, 2}) {  // the second finds the checkpoint of the first, and has nothing left to learn
    CAPTURE(ranks);
    const Result result = support::run(examples + "small_network",
                                       {"--nproc-per-node=" + std::to_string(ranks), folder.path + "/network"});
    CHECK(std::abs(error_in(result) - alone) < 0.001);
    CHECK((result.output.find("a step of 0: ") != std::string::npos) == (ranks == 2));
  }
}

/// Of a program that fits a line in an elastic job, or in an ordinary one.
static void check_elastic_fit(const std::string& program, bool is_killed, const std::vector<std::string>& arguments) {
  std::vector<std::string> all =
      is_killed ? std::vector<std::string>{"--nproc-per-node=3", "--min-ranks=1", "--max-restarts=1"}
                : std::vector<std::string>{"--nproc-per-node=2"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  support::Program job(examples + program, all);
  pid_t victim = 0;
  for (const dtrain::Deadline deadline = support::soon(); is_killed && victim == 0 && !deadline.passed();) {
    const std::vector<pid_t> workers = support::children_of(job.process());
    victim = workers.size() == 3 ? workers.back() : 0;
  }
  CHECK((!is_killed || (victim != 0 && ::kill(victim, SIGKILL) == 0)));
  const Result result = job.wait();
  INFO(result.output);
  INFO(result.error);
  CHECK(result.exit_code == 0);
  CHECK(result.output.find("y = 3.000 x + 1.000, fitted on " + std::string(is_killed ? "3" : "2")) !=
        std::string::npos);
  CHECK((result.error.find("killed by signal 9") != std::string::npos) == is_killed);
}

TEST_CASE("elastic_fit finds the line, also where a worker is killed on the way") {
  for (const bool is_killed : {false, true}) {
    check_elastic_fit("elastic_fit", is_killed, {});
  }
}

TEST_CASE("elastic_sharded finds the line, also where a worker is killed on the way") {
  for (const bool is_killed : {false, true}) {
    const support::TemporaryFile file;
    check_elastic_fit("elastic_sharded", is_killed, {file.path});
  }
}

TEST_CASE("whoami prints the process's identity as one line of JSON") {
  const Result result = support::run(
      examples + "whoami", {"--local_rank", "1"},
      {{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h0"}, {"MASTER_PORT", ""}, {"LOCAL_RANK", ""}});
  CHECK(result.exit_code == 0);
  CHECK(result.output ==
        "{\"rank\": 3, \"world_size\": 4, \"local_rank\": 1, \"local_world_size\": null, \"node_rank\": null, "
        "\"node_count\": null, \"master_addr\": \"h0\", \"master_port\": 29500, \"launcher\": \"torch\", "
        "\"provisional\": [], \"warnings\": [], \"start\": \"per_process\"}\n");
}

TEST_CASE("whoami --node prints the node's") {
  const Result result = support::run(examples + "whoami", {"--node"},
                                     {{"PET_NODE_RANK", "1"},
                                      {"PET_NNODES", "2"},
                                      {"PET_MASTER_ADDR", "h0"},
                                      {"PET_NPROC_PER_NODE", "4"},
                                      {"MASTER_PORT", ""}});
  CHECK(result.exit_code == 0);
  CHECK(result.output ==
        "{\"node_rank\": 1, \"node_count\": 2, \"master_addr\": \"h0\", \"master_port\": 29500, "
        "\"nproc_per_node\": 4, \"launcher\": \"pet\", \"provisional\": [], \"warnings\": []}\n");
}

TEST_CASE("ranks reduce and train over the backend of write_a_backend") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Result result = support::run(examples + "write_a_backend", {"--nproc-per-node=" + std::to_string(ranks)});
    CAPTURE(result.output);
    support::check_quiet(result);
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string number = std::to_string(rank);
      const std::string line = "[" + number + "] rank " + number + " of " + std::to_string(ranks) + ": sum " +
                               std::to_string(ranks * (ranks - 1) / 2) + ", value 3.0000\n";
      CHECK_CONTAINS(result.output, line);
    }
  }
}

TEST_CASE("write_a_hook clips each rank's gradient before it is averaged") {
  const Result result = support::run(examples + "write_a_hook", {"--nproc-per-node=3"});
  CAPTURE(result.output);
  support::check_quiet(result);
  for (const char* rank : {"[0]", "[1]", "[2]"})
    CHECK_CONTAINS(result.output, std::string(rank) + " the averaged gradient is 1.000 1.000 1.000 1.000\n");
}

TEST_CASE(
    "adasum adds orthogonal gradients, keeps equal ones, and refuses other numbers of ranks than 1, 2, 4, 8, ...") {
  for (const int ranks : {1, 2, 4, 8}) {
    const Result result = support::run(examples + "adasum", {"--nproc-per-node=" + std::to_string(ranks)});
    CAPTURE(result.output);
    support::check_quiet(result);
    std::string line = "] equal gradients and orthogonal ones have become 3 3 3 3";
    for (int element = 0; element < 4; ++element)
      line += element < ranks ? " 2" : " 0";
    for (int rank = 0; rank < ranks; ++rank)
      CHECK_CONTAINS(result.output, "[" + std::to_string(rank) + line + "\n");
  }
  support::check_failed(support::run(examples + "adasum", {"--nproc-per-node=3"}),
                        {"Adasum combines pairs of ranks: start 1, 2, 4, 8, ... of them"});
}

TEST_CASE("write_an_optimizer trains with a part of the state on each rank, and goes on with another number of ranks") {
  const support::TemporaryDirectory folder;
  for (const int ranks : {2, 3}) {
    const Result result = support::run(examples + "write_an_optimizer",
                                       {"--nproc-per-node=" + std::to_string(ranks), folder.path + "/state"});
    CAPTURE(result.output);
    support::check_quiet(result);
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_CONTAINS(result.output, "[" + std::to_string(rank) + "] after " + (ranks == 2 ? "500" : "1000") +
                                        " steps the loss is 0.0");
    }
    CHECK_CONTAINS(result.output, ranks == 2 ? "this rank has 208 of 400 bytes" : "this rank has 144 of 400 bytes");
  }
}

TEST_CASE("exchange_weights saves a layer, and loads one of other names and types on every rank") {
  const support::TemporaryDirectory folder;
  const std::vector<std::string> arguments{"--nproc-per-node=2", folder.path};
  const Result saved = support::run(examples + "exchange_weights", arguments);
  support::check_quiet(saved);
  CHECK(std::filesystem::exists(folder.path + "/weights.safetensors"));
  const std::string header = R"({"model.fc.weight":{"dtype":"F64","shape":[2,3],"data_offsets":[0,48]},)"
                             R"("model.fc.bias":{"dtype":"F64","shape":[2],"data_offsets":[48,64]},)"
                             R"("lm_head":{"dtype":"F64","shape":[],"data_offsets":[64,72]}})";
  const std::uint64_t length = header.size();
  const std::vector<double> values{0.5, 2, 3, 4, 5, 6, -1, 8, 9};
  std::ofstream file(folder.path + "/model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(8 * values.size()));
  file.close();
  const Result loaded =
      support::run(examples + "exchange_weights", {"--nproc-per-node=2", folder.path, "model.safetensors"});
  CAPTURE(loaded.output);
  support::check_quiet(loaded);
  CHECK_CONTAINS(loaded.output, "the file has lm_head\n");
  for (const char* const rank : {"[0] ", "[1] "}) {
    CHECK_CONTAINS(saved.output, std::string(rank) + "the weight begins with 1, the bias with 7\n");
    CHECK_CONTAINS(loaded.output, std::string(rank) + "the weight begins with 0.5, the bias with -1\n");
  }
}

TEST_CASE("whoami reads TF_CONFIG") {
  const std::string cluster = R"({"cluster":{"chief":["h0:2222"],"worker":["h1:2222"]},)";
  const Result result =
      support::run(examples + "whoami", {}, {{"TF_CONFIG", cluster + R"("task":{"type":"worker","index":0}})"}});
  CHECK(result.exit_code == 0);
  CHECK(result.output ==
        "{\"rank\": 1, \"world_size\": 2, \"local_rank\": 0, \"local_world_size\": 1, \"node_rank\": 1, "
        "\"node_count\": 2, \"master_addr\": \"h0\", \"master_port\": 2222, \"launcher\": \"tf_config\", "
        "\"provisional\": [\"local_rank\", \"local_world_size\", \"node_rank\", \"node_count\"], \"warnings\": [], "
        "\"start\": \"per_process\"}\n");
}

TEST_CASE("whoami says what is wrong, with its code, and exits with 2") {
  const Result result =
      support::run(examples + "whoami", {}, {{"RANK", "\"1\n"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}});
  CHECK(result.exit_code == 2);
  CHECK(support::count_of(result.output, "\n") == 1);
  CHECK_CONTAINS(result.output, "\"error\": \"RANK='\\\"1\\\\n' is not", "\"error_code\": \"bad-integer\"");
}

TEST_CASE("ranks of uneven_inputs with less data make steps without data until all have ended, for 1, 2 and 3 ranks") {
  for (const int ranks : {1, 2, 3}) {
    CAPTURE(ranks);
    const Result result = support::run(examples + "uneven_inputs", {"--nproc-per-node=" + std::to_string(ranks)});
    CAPTURE(result.output);
    support::check_quiet(result);
    const std::string line = ranks == 1 ? "2.992 x + 1.004" : ranks == 2 ? "2.999 x + 1.000" : "3.000 x + 1.000";
    for (int rank = 0; rank < ranks; ++rank) {
      CHECK_CONTAINS(result.output, "[" + std::to_string(rank) + "] y = " + line + " after " +
                                        std::to_string(400 * ranks) + " steps, " + std::to_string(400 * (rank + 1)) +
                                        " of them with data\n");
    }
  }
}
