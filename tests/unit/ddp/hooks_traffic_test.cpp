// What hooks give to collectives: the bytes that their documentation names.

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "dtrain/core/types/bfloat16.hpp"
#include "dtrain/ddp/hooks/cast.hpp"
#include "dtrain/ddp/hooks/power_sgd.hpp"
#include "dtrain/ddp/hooks/top_k.hpp"
#include "support/counting_communicator.hpp"

namespace hooks_traffic_test {

using support::CountingCommunicator;
using support::Traffic;

constexpr std::size_t rows = 256;
constexpr std::size_t columns = 128;
constexpr std::size_t elements = rows * columns;

/// A matrix and as many numbers as it has rows, in one bucket.
struct Bucket {
  Bucket() : memory(elements + rows) {
    for (std::size_t i = 0; i < memory.size(); ++i)
      memory[i] = std::sin(static_cast<float>(i));
    const dtrain::TensorView matrix = dtrain::tensor_view(
        memory.data(), dtrain::Shape{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(columns)});
    const dtrain::TensorView bias =
        dtrain::tensor_view(memory.data() + elements, dtrain::Shape{static_cast<std::int64_t>(rows)});
    parameters = {{"matrix", matrix, matrix}, {"bias", bias, bias}};
    gradients = {{0, matrix}, {1, bias}};
  }

  /// Bytes that a rank gives in each of `steps` steps.
  template <class Hook>
  std::vector<std::size_t> bytes(Hook& hook, int ranks, int steps) {
    if constexpr (requires { hook.prepare(parameters); }) hook.prepare(parameters);
    std::vector<std::size_t> bytes;
    for (int step = 0; step < steps; ++step) {
      Traffic traffic;
      CountingCommunicator channel(traffic, ranks);
      hook.reduce(dtrain::GradientBucket<CountingCommunicator>{
          dtrain::buffer_view(std::span(memory)), gradients, channel, {}, dtrain::ReduceOp::average});
      bytes.push_back(traffic.bytes);
    }
    return bytes;
  }

  std::vector<float> memory;
  std::vector<dtrain::Parameter> parameters;
  std::vector<dtrain::ddp::BucketGradient> gradients;
};

constexpr std::size_t plain = 4 * (elements + rows);

TEST_CASE("hooks::Cast gives 2 bytes for each element") {
  dtrain::hooks::Cast<dtrain::bfloat16> hook;
  CHECK(Bucket().bytes(hook, 4, 2) == std::vector<std::size_t>{plain / 2, plain / 2});
}

TEST_CASE("hooks::PowerSgd gives (rows + columns) rank elements for a matrix, after its first steps") {
  for (const int rank : {1, 4, 16}) {
    CAPTURE(rank);
    dtrain::hooks::PowerSgd hook{{.rank = rank, .start_after = 1}};
    const std::size_t compressed = 4 * (static_cast<std::size_t>(rank) * (rows + columns) + rows);
    CHECK(Bucket().bytes(hook, 4, 3) == std::vector<std::size_t>{plain, compressed, compressed});
  }
}

TEST_CASE("hooks::TopK gathers 8 fraction ranks bytes for an element, where that is below 4") {
  for (const int ranks : {2, 8}) {
    CAPTURE(ranks);
    dtrain::hooks::TopK hook{{.fraction = 1.0 / 64, .start_after = 1}};
    const std::size_t compressed = 8 * ((elements + rows) / 64) * static_cast<std::size_t>(ranks);
    CHECK(Bucket().bytes(hook, ranks, 3) == std::vector<std::size_t>{plain, compressed, compressed});
  }
  dtrain::hooks::TopK hook{{.fraction = 1.0 / 64}};
  CHECK(Bucket().bytes(hook, 32, 2) == std::vector<std::size_t>{plain, plain});
}

}  // namespace hooks_traffic_test
