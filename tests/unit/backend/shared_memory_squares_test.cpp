// The sum of squares that comes with an all-reduce: its value on every path, its bits, and ranks that do not ask.

#include "dtrain/core/types/small_floats.hpp"
#include "unit/backend/prelude.hpp"

namespace {

template <class T>
double value_of(T element) {
  if constexpr (std::is_same_v<T, double>) {
    return element;
  } else {
    return static_cast<double>(static_cast<float>(element));
  }
}

template <class T>
void fill_randomly(std::span<T> values, int rank) {
  std::mt19937_64 random(values.size() * 31 + static_cast<std::uint64_t>(rank));
  std::normal_distribution<float> normal;
  for (T& value : values)
    value = static_cast<T>(normal(random));
}

template <class T>
long double plain_sum(std::span<const T> values) {
  long double sum = 0;
  for (const T value : values) {
    const long double wide = value_of(value);
    sum += wide * wide;
  }
  return sum;
}

struct Result {
  bool served = false;
  double sum = -1;
};

/// @param asks whether this rank asks for the sum
Result reduce(SharedMemoryRank& self, const dtrain::BufferView& view, bool asks) {
  Result result;
  self.communicator.enqueue(
      dtrain::backend::AllReduceWithSquares{{view, view, ReduceOp::average}, asks ? &result.sum : nullptr},
      self.stream.ref());
  result.served = self.wait();
  return result;
}

/// One reduction of `values`, which lie in an arena or not: checks this rank's sum. @returns its bits
template <class T>
std::uint64_t check_sum(SharedMemoryRank& self, int rank, std::span<T> values) {
  fill_randomly(values, rank);
  const Result result = reduce(self, dtrain::buffer_view(values), true);
  const long double expected = plain_sum(std::span<const T>(values));
  CHECK(result.served);
  CHECK(std::abs(static_cast<long double>(result.sum) - expected) <= 1e-13L * expected);
  return std::bit_cast<std::uint64_t>(result.sum);
}

template <class T>
void check_type(int ranks) {
  // Zero elements; one that each rank copies; slices of which the last ranks have none; rests; many pieces.
  for (const std::size_t count : {std::size_t{0}, std::size_t{3}, std::size_t{2100}, std::size_t{4097},  //
                                  std::size_t{150'001}}) {
    CAPTURE(ranks);
    CAPTURE(count);
    for (const bool in_arena : {true, false}) {
      std::vector<std::uint64_t> bits(static_cast<std::size_t>(ranks));
      run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
        const auto arena = self.communicator.allocate_blocking(count * sizeof(T) + 64, Deadline::after(60s));
        std::vector<T> own(count);
        const std::span<T> values = in_arena ? std::span(reinterpret_cast<T*>(arena.data()), count) : std::span(own);
        bits[static_cast<std::size_t>(thread.rank())] = check_sum<T>(self, thread.rank(), values);
      });
      CHECK(std::all_of(bits.begin(), bits.end(), [&](std::uint64_t one) { return one == bits[0]; }));
    }
  }
}

}  // namespace

TEST_CASE_TEMPLATE("the sum is that of the reduced elements as stored, with equal bits on all ranks", T, double, float,
                   dtrain::float16, dtrain::bfloat16) {
  for (const int ranks : {1, 2, 3, 9})
    check_type<T>(ranks);
}

TEST_CASE("an element that is not finite makes the sum of all ranks so, whichever slice has it") {
  constexpr std::size_t count = 40'000;
  run_ranks<SharedMemoryRank>(3, [&](SharedMemoryRank& self, RankThread& thread) {
    const auto arena = self.communicator.allocate_blocking(count * sizeof(double), Deadline::after(60s));
    const std::span<double> values(reinterpret_cast<double*>(arena.data()), count);
    for (const std::size_t place : {std::size_t{0}, count / 2, count - 1}) {
      for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN(),
                               std::numeric_limits<double>::max() / 4}) {  // whose square is infinite
        std::ranges::fill(values, 1.0);
        if (thread.rank() == 1) values[place] = bad;
        const Result result = reduce(self, dtrain::buffer_view(values), true);
        CHECK(result.served);
        CHECK(!std::isfinite(result.sum));
      }
    }
    std::ranges::fill(values, 2.0);
    CHECK(reduce(self, dtrain::buffer_view(values), true).sum == 4.0 * count);
  });
}

TEST_CASE("a rank that does not ask changes no other rank's sum, on any path, and integers have none") {
  constexpr std::size_t most = 40'000;
  run_ranks<SharedMemoryRank>(3, [&](SharedMemoryRank& self, RankThread& thread) {
    const auto arena = self.communicator.allocate_blocking(most * sizeof(float), Deadline::after(60s));
    std::vector<float> own(most);
    int turn = 0;
    for (const std::size_t count : {std::size_t{5}, std::size_t{5000}, most}) {
      for (float* const memory : {reinterpret_cast<float*>(arena.data()), own.data()}) {
        for (int asking = 0; asking < 8; ++asking) {
          const std::span<float> values(memory, count);
          const float value = static_cast<float>(++turn);
          std::ranges::fill(values, value);
          const bool asks = (asking >> thread.rank()) % 2 != 0;
          const Result result = reduce(self, dtrain::buffer_view(values), asks);
          CHECK(result.served);
          CHECK(result.sum == (asks ? static_cast<double>(value * value) * static_cast<double>(count) : -1));
          CHECK(std::ranges::all_of(values, [&](float element) { return element == value; }));
        }
      }
    }
    std::vector<std::int32_t> integers(most, 3);
    CHECK(reduce(self, dtrain::buffer_view(std::span(integers)), true).sum == 0);
  });
}
