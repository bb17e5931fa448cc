#include "unit/cuda/prelude.hpp"

namespace {

constexpr std::size_t large = 150'001;  // several pieces of the emulation's

template <class T>
T number(std::size_t value) {
  if constexpr (sizeof(T) == 2)
    return T(static_cast<float>(value));
  else
    return static_cast<T>(value);
}
template <class T>
double value(T element) {
  if constexpr (sizeof(T) == 2)
    return static_cast<double>(static_cast<float>(element));
  else
    return static_cast<double>(element);
}

/// Small integers, so that every type holds the sums exactly.
template <class T>
std::vector<T> input(int rank, std::size_t count) {
  std::vector<T> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = number<T>((i % 5 + 1) * static_cast<std::size_t>(rank + 1));
  return values;
}

template <class T>
void expect_all_reduce(EmulatedRank& rank, ncclDataType_t type, ncclRedOp_t operation, std::size_t count) {
  T* const data = rank.on_device(input<T>(rank.rank, count));
  rank.taken(ncclAllReduce(data, data, count, type, operation, rank.communicator, rank.stream));
  const std::vector<T> result = rank.on_host(data, count);
  const int n = rank.size;
  double factor = n * (n + 1) / 2.0;
  if (operation == ncclAvg) factor /= n;
  if (operation == ncclMax) factor = n;
  if (operation == ncclMin) factor = 1;
  for (std::size_t i = 0; i < count; ++i) {
    if (value(result[i]) == static_cast<double>(i % 5 + 1) * factor) continue;
    FAIL("element " << i << " of rank " << rank.rank << " is " << value(result[i]));
  }
}

}  // namespace

TEST_CASE("emulated all_reduce of 1 to 8 ranks is right for each type and operation") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    CAPTURE(ranks);
    run_emulated_ranks(ranks, [](EmulatedRank& rank) {
      for (const ncclRedOp_t operation : {ncclSum, ncclMax, ncclMin}) {
        expect_all_reduce<float>(rank, ncclFloat32, operation, 1000);
        expect_all_reduce<double>(rank, ncclFloat64, operation, 10);
        expect_all_reduce<std::int32_t>(rank, ncclInt32, operation, 10);
        expect_all_reduce<std::int64_t>(rank, ncclInt64, operation, 1);
        expect_all_reduce<std::uint8_t>(rank, ncclUint8, operation, 10);
        expect_all_reduce<dtrain::float16>(rank, ncclFloat16, operation, 10);
        expect_all_reduce<dtrain::bfloat16>(rank, ncclBfloat16, operation, 10);
      }
      expect_all_reduce<float>(rank, ncclFloat32, ncclSum, large);
      if (rank.size != 3) expect_all_reduce<float>(rank, ncclFloat32, ncclAvg, 1000);  // a third is not exact
      rank.finalize();
    });
  }
}

TEST_CASE("the other emulated collectives move what belongs where") {
  for (const int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    run_emulated_ranks(ranks, [](EmulatedRank& rank) {
      const auto n = static_cast<std::size_t>(rank.size);
      const auto self = static_cast<std::size_t>(rank.rank);
      float* const spread = rank.on_device(input<float>(rank.rank, large));
      const int root = rank.size - 1;
      rank.taken(ncclBroadcast(spread, spread, large, ncclFloat32, root, rank.communicator, rank.stream));
      CHECK(rank.on_host(spread, large) == input<float>(root, large));

      std::vector<float> all(n * large, -1);
      const std::vector<float> own = input<float>(rank.rank, large);
      std::memcpy(all.data() + self * large, own.data(), large * sizeof(float));
      float* const gathered = rank.on_device(all);
      rank.taken(ncclAllGather(gathered + self * large, gathered, large, ncclFloat32, rank.communicator, rank.stream));
      float* const scattered = rank.on_device(std::vector<float>(large, 0));
      rank.taken(ncclReduceScatter(gathered, scattered, large, ncclFloat32, ncclSum, rank.communicator, rank.stream));
      const std::vector<float> result = rank.on_host(gathered, n * large);
      const std::vector<float> part = rank.on_host(scattered, large);
      bool right = true;
      for (std::size_t i = 0; i < large; ++i) {
        for (std::size_t r = 0; r < n; ++r)
          right = right && result[r * large + i] == static_cast<float>((i % 5 + 1) * (r + 1));
        right = right && part[i] == static_cast<float>((i % 5 + 1) * (self + 1) * n);
      }
      CHECK(right);
      rank.finalize();
    });
  }
}

TEST_CASE("grouped emulated sends and receives pass each other") {
  run_emulated_ranks(3, [](EmulatedRank& rank) {
    const int next = (rank.rank + 1) % rank.size;
    const int previous = (rank.rank + 2) % rank.size;
    float* const from = rank.on_device(input<float>(rank.rank, large));
    float* const to = rank.on_device(std::vector<float>(large, 0));
    EXPECT_SUCCESS(ncclGroupStart());
    EXPECT_SUCCESS(ncclSend(from, large, ncclFloat32, next, rank.communicator, rank.stream));
    EXPECT_SUCCESS(ncclRecv(to, large, ncclFloat32, previous, rank.communicator, rank.stream));
    rank.taken(ncclGroupEnd());
    CHECK(rank.on_host(to, large) == input<float>(previous, large));
    rank.finalize();
  });
}

TEST_CASE("an emulated communicator splits by color, in the order of the keys") {
  run_emulated_ranks(4, [](EmulatedRank& rank) {
    ncclComm_t part = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // ncclSuccess while the parent is in progress, and the handle a moment later than its end.
    CHECK(ncclCommSplit(rank.communicator, rank.rank % 2, -rank.rank, &part, &config) == ncclSuccess);
    EXPECT_SUCCESS(settled(rank.communicator));
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (std::atomic_ref(part).load() == nullptr && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    REQUIRE(part != nullptr);
    EXPECT_SUCCESS(settled(part));
    int number = -1;
    EXPECT_SUCCESS(ncclCommUserRank(part, &number));
    CHECK(number == (rank.rank < 2 ? 1 : 0));
    float* const data = rank.on_device(std::vector<float>{static_cast<float>(rank.rank)});
    static_cast<void>(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, part, rank.stream));
    EXPECT_SUCCESS(settled(part));
    CHECK(rank.on_host(data, 1).front() == (rank.rank % 2 == 0 ? 2.0F : 4.0F));
    static_cast<void>(ncclCommFinalize(part));
    EXPECT_SUCCESS(settled(part));
    EXPECT_SUCCESS(ncclCommDestroy(part));
    rank.finalize();
  });
}

TEST_CASE("an emulated operator of a program's own scales what it sums") {
  run_emulated_ranks(2, [](EmulatedRank& rank) {
    ncclRedOp_t halved{};
    float scalar = 0.5F;
    EXPECT_SUCCESS(ncclRedOpCreatePreMulSum(&halved, &scalar, ncclFloat32, ncclScalarHostImmediate, rank.communicator));
    float* const data = rank.on_device(std::vector<float>{3});
    rank.taken(ncclAllReduce(data, data, 1, ncclFloat32, halved, rank.communicator, rank.stream));
    EXPECT_SUCCESS(ncclRedOpDestroy(halved, rank.communicator));
    CHECK(rank.on_host(data, 1).front() == 3.0F);
    rank.finalize();
  });
}
