#include "unit/cuda/prelude.hpp"

namespace {

constexpr const char* rank_variable = "DTRAIN_TEST_EMULATED_RANK";
constexpr const char* size_variable = "DTRAIN_TEST_EMULATED_SIZE";
constexpr const char* id_variable = "DTRAIN_TEST_EMULATED_ID";
constexpr const char* killed_variable = "DTRAIN_TEST_EMULATED_KILLED";
constexpr const char* delayed_variable = "DTRAIN_TEST_EMULATED_DELAYED";
constexpr const char* launches_variable = "DTRAIN_TEST_EMULATED_LAUNCHES";

bool is_rank() {
  return std::getenv(rank_variable) != nullptr;
}

std::string text_of(const ncclUniqueId& id) {
  std::string text;
  for (const char each : id.internal) {
    std::array<char, 3> digits{};
    std::snprintf(digits.data(), digits.size(), "%02x", static_cast<unsigned>(static_cast<unsigned char>(each)));
    text += digits.data();
  }
  return text;
}

ncclUniqueId id_of(const std::string& text) {
  ncclUniqueId id{};
  for (std::size_t i = 0; i < sizeof id.internal; ++i)
    id.internal[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return id;
}

/// This program, as each of the ranks; rank `killed` dies in its second operation.
std::vector<support::Result> run_ranks(int ranks, int killed) {
  ncclUniqueId id{};
  EXPECT_SUCCESS(ncclGetUniqueId(&id));
  std::vector<std::unique_ptr<Program>> programs;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::vector<std::string> arguments{"--no-skip", "--test-case=a rank of the emulated NCCL that is a process"};
    const Program::Variables variables{{rank_variable, std::to_string(rank)},
                                       {size_variable, std::to_string(ranks)},
                                       {id_variable, text_of(id)},
                                       {killed_variable, std::to_string(killed)},
                                       {"DTRAIN_EMULATED_DEVICES", std::to_string(ranks)}};
    programs.push_back(std::make_unique<Program>("/proc/self/exe", arguments, variables));
    programs.back()->close_input();
  }
  std::vector<support::Result> results;
  for (const auto& program : programs)
    results.push_back(program->wait(support::soon()));
  return results;
}

}  // namespace

TEST_CASE("a rank of the emulated NCCL that is a process" * doctest::skip(!is_rank())) {
  const int rank = std::atoi(std::getenv(rank_variable));
  const int killed = std::atoi(std::getenv(killed_variable));
  emulation::set_dead_ranks_reported(true);
  EmulatedRank self(rank, std::atoi(std::getenv(size_variable)), id_of(std::getenv(id_variable)));
  if (rank == killed) emulation::fault_in_operation(emulation::Fault::kill, 2);
  constexpr std::size_t count = 100'000;
  float* const data = self.on_device(std::vector<float>(count, static_cast<float>(rank + 1)));
  self.taken(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, self.communicator, self.stream));
  const auto sum = static_cast<float>(self.size * (self.size + 1) / 2);
  CHECK(self.on_host(data, count) == std::vector<float>(count, sum));
  if (killed < 0) return self.finalize();
  ncclResult_t state = ncclAllReduce(data, data, count, ncclFloat32, ncclSum, self.communicator, self.stream);
  while (state == ncclSuccess || state == ncclInProgress)
    EXPECT_SUCCESS(ncclCommGetAsyncError(self.communicator, &state));
  CHECK(state == ncclRemoteError);
}

TEST_CASE("a process of the emulation that makes contexts" * doctest::skip(std::getenv(delayed_variable) == nullptr)) {
  const std::chrono::milliseconds least(std::atoi(std::getenv(delayed_variable)));
  const auto began = std::chrono::steady_clock::now();
  for (int device = 0; device < 8; ++device)
    EXPECT_SUCCESS(cudaSetDevice(device));
  CHECK(std::chrono::steady_clock::now() - began >= least);
}

TEST_CASE("the emulation's contexts take random times where a seed is given") {
  // 8 times up to 150 ms, and once more at the end.
  const std::vector<std::string> arguments{"--no-skip", "--test-case=a process of the emulation that makes contexts"};
  const support::Result result = support::run("/proc/self/exe", arguments,
                                              {{delayed_variable, "100"},
                                               {"DTRAIN_EMULATED_DEVICES", "8"},
                                               {"DTRAIN_EMULATED_DELAYS", "1"},
                                               {"DTRAIN_EMULATED_DELAY_SCALE", "0.05"}});
  CHECK_MESSAGE(result.exit_code == 0, result.output << result.error);
}

TEST_CASE("a process of the emulation that launches" * doctest::skip(std::getenv(launches_variable) == nullptr)) {
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    float* const data = rank.on_device(std::vector<float>{1});
    const auto began = std::chrono::steady_clock::now();
    for (int launch = 0; launch < 200; ++launch)
      rank.taken(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, rank.communicator, rank.stream));
    CHECK(std::chrono::steady_clock::now() - began >= 250ms);
    rank.finalize();
  });
}

TEST_CASE("the threads that the emulated NCCL launches in start late where a seed is given") {
  // 200 times up to 3 ms. With this seed the rest takes less than 3 s.
  const std::vector<std::string> arguments{"--no-skip", "--test-case=a process of the emulation that launches"};
  const support::Result result =
      support::run("/proc/self/exe", arguments, {{launches_variable, "1"}, {"DTRAIN_EMULATED_DELAYS", "513"}});
  CHECK_MESSAGE(result.exit_code == 0, result.output << result.error);
}

TEST_CASE("emulated ranks may be processes") {
  for (const int ranks : {1, 2, 4}) {
    CAPTURE(ranks);
    for (const support::Result& result : run_ranks(ranks, -1)) {
      CHECK_MESSAGE(result.exit_code == 0, result.output << result.error);
    }
  }
}

TEST_CASE("the death of an emulated rank's process is reported to the others") {
  const std::vector<support::Result> results = run_ranks(3, 1);
  CHECK(results[1].exit_code == 128 + SIGKILL);
  CHECK_MESSAGE(results[0].exit_code == 0, results[0].output << results[0].error);
  CHECK_MESSAGE(results[2].exit_code == 0, results[2].output << results[2].error);
}
