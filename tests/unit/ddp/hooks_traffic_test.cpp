// What hooks give to collectives: the bytes that their documentation names.

#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/ddp/hooks/cast.hpp"
#include "dtrain/ddp/hooks/power_sgd.hpp"
#include "dtrain/ddp/hooks/top_k.hpp"
#include "support/communicator_archetypes.hpp"
#include "unit/ddp/prelude.hpp"

namespace hooks_traffic_test {

using namespace dtrain::backend;
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
      hook.reduce(bucket(channel));
      bytes.push_back(traffic.bytes);
    }
    return bytes;
  }

  dtrain::GradientBucket<CountingCommunicator> bucket(dtrain::ddp::CountedChannel<CountingCommunicator> channel) {
    return {dtrain::buffer_view(std::span(memory)), gradients, channel, {}, dtrain::ReduceOp::average};
  }

  /// What the wrapper's summary says that a step sends.
  template <class Hook>
  std::size_t sent(Hook& hook, int ranks) {
    if constexpr (requires { hook.prepare(parameters); }) hook.prepare(parameters);
    Traffic traffic;
    CountingCommunicator channel(traffic, ranks);
    dtrain::TrafficCounter counter;
    hook.reduce(bucket({channel, &counter}));
    return counter.total().bytes_sent;
  }

  std::vector<float> memory;
  std::vector<dtrain::Parameter> parameters;
  std::vector<dtrain::BucketGradient> gradients;
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

TEST_CASE("the summary counts all-reduces once, and what sends each element once by half") {
  dtrain::hooks::Cast<dtrain::bfloat16> cast;
  CHECK(Bucket().sent(cast, 4) == plain / 2);
  dtrain::hooks::PowerSgd power{{.rank = 4}};
  CHECK(Bucket().sent(power, 4) == 4 * (4 * (rows + columns) + rows));
  dtrain::hooks::TopK top{{.fraction = 1.0 / 64}};
  CHECK(Bucket().sent(top, 8) == 8 * ((elements + rows) / 64) * 8 / 2);
}

struct FourRanks : archetype::Communicator<> {
  int size() const noexcept { return 4; }
};

TEST_CASE("the channel of a hook counts each operation as the all-reduce by which a rank sends as much") {
  FourRanks communicator;
  const auto sent = [&communicator](const auto& operation) {
    dtrain::TrafficCounter counter;
    dtrain::ddp::CountedChannel<FourRanks>(communicator, &counter).enqueue(operation, {});
    return counter.total().bytes_sent;
  };
  std::vector<float> memory(200);
  const dtrain::BufferView all = dtrain::buffer_view(std::span(memory).first(96));
  const dtrain::BufferView other = dtrain::buffer_view(std::span(memory).last(96));
  const dtrain::BufferView block = dtrain::buffer_view(std::span(memory).last(24));
  const BlockExchange blocks = blocks_of_all_to_all(all, {}, other, {}, {0, 4});
  const std::uint64_t bytes = all.bytes();
  CHECK(sent(AllReduce{all, all, dtrain::ReduceOp::sum}) == bytes);
  CHECK(sent(Barrier{}) == 0);
  CHECK(sent(Broadcast{all, 0}) == bytes / 2);
  CHECK(sent(ReduceScatter{all, block, dtrain::ReduceOp::sum}) == bytes / 2);
  CHECK(sent(AllGather{block, all}) == bytes / 2);
  CHECK(sent(ExchangeBlocks{blocks, all, other}) == bytes / 2);
  CHECK(sent(ReduceBlocks{blocks, all, block, dtrain::ReduceOp::sum}) == bytes / 2);
  const std::uint64_t message = block.bytes() * 4 / (2 * 3);  // an all-reduce of n bytes on 4 ranks sends 2 * 3 n / 4
  CHECK(sent(Send{block, 1}) == message);
  CHECK(sent(SendRecv{block, 1, all, 2}) == message);
  CHECK(sent(Recv{all, 1}) == 0);
}

/// A hook of a program: reduces as reduce-scatter and all-gather, and compresses for some time.
struct InTwoHalves {
  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    const std::size_t own = bucket.values.count / static_cast<std::size_t>(bucket.channel.size());
    bucket.compress([]() noexcept { std::this_thread::sleep_for(3ms); });
    bucket.channel.enqueue(ReduceScatter{bucket.values, bucket.part(0, own), bucket.op}, bucket.stream);
    bucket.channel.enqueue(AllGather{bucket.part(0, own), bucket.values}, bucket.stream);
    bucket.channel.enqueue(Broadcast{bucket.part(0, 10), 0}, bucket.stream);
  }
};

TEST_CASE("a program's own hook is counted, too, and so is the time that it compresses") {
  Bucket bucket;
  Traffic traffic;
  CountingCommunicator channel(traffic, 4);
  dtrain::TrafficCounter counter;
  counter.replaces(plain);
  for (int step = 1; step <= 3; ++step) {
    InTwoHalves().reduce(bucket.bucket({channel, &counter}));
    const dtrain::CompressedTraffic total = counter.total();
    CHECK(total.bytes == plain);
    CHECK(total.bytes_sent == static_cast<std::size_t>(step) * (plain + 20));
    CHECK(total.compressing >= step * 3ms);
  }
  InTwoHalves().reduce(bucket.bucket(channel));  // as a test of the program's own: nobody counts
  CHECK(counter.total().bytes_sent == 3 * (plain + 20));
}

/// The channel leaves the elements as they were sent. Only the matrix has error feedback.
template <class Half>
void check_error_feedback(int ranks) {
  CAPTURE(ranks);
  using dtrain::hooks::Cast;
  Cast<Half> hook{{.error_feedback = [](const dtrain::Parameter& parameter) { return parameter.name == "matrix"; }}};
  Bucket bucket;
  hook.prepare(bucket.parameters);
  std::vector<double> exact(bucket.memory.size());
  std::vector<double> sent(bucket.memory.size());
  std::vector<double> last(bucket.memory.size());
  std::size_t wrong = 0;
  std::size_t further = 0;
  for (int step = 0; step < 40; ++step) {
    for (std::size_t i = 0; i < exact.size(); ++i) {
      // Multiples of 2^-14 below 4: few sums with an error are not exact in f32.
      const auto whole = static_cast<int>((i * 7919 + static_cast<std::size_t>(step) * 104729) % 131071) - 65535;
      bucket.memory[i] = static_cast<float>(whole) / 16384;
      exact[i] += static_cast<double>(bucket.memory[i]);
    }
    Traffic traffic;
    CountingCommunicator channel(traffic, ranks);
    hook.reduce(bucket.bucket(channel));
    for (std::size_t i = 0; i < exact.size(); ++i) {
      last[i] = ranks * static_cast<double>(bucket.memory[i]);
      sent[i] += last[i];
      // Half a unit in the last place of the last value, and the roundings of f32.
      const double half_unit = std::is_same_v<Half, dtrain::bfloat16> ? 1.0 / 256 : 1.0 / 2048;
      const bool is_near = std::abs(exact[i] - sent[i]) <= half_unit * std::abs(last[i]) + 1e-5;
      (i < elements ? wrong : further) += is_near ? 0 : 1;
    }
  }
  CHECK(wrong == 0);
  CHECK(further > 0);  // without feedback, roundings add up
}

TEST_CASE("with error feedback the sum of what was sent is the sum of the gradients, but for one rounding") {
  for (const int ranks : {1, 2, 3, 7}) {
    check_error_feedback<dtrain::bfloat16>(ranks);
    check_error_feedback<dtrain::float16>(ranks);
  }
}

TEST_CASE("an element that is not finite, or not in 16 bits, ends its own error alone") {
  dtrain::hooks::Cast<dtrain::float16> hook{{.error_feedback = dtrain::hooks::every_parameter}};
  Bucket bucket;
  hook.prepare(bucket.parameters);
  const auto step = [&](float first, float second) {
    std::fill(bucket.memory.begin(), bucket.memory.end(), 1.0F + 0x1p-12F);
    bucket.memory[0] = first;
    bucket.memory[1] = second;
    Traffic traffic;
    CountingCommunicator channel(traffic, 1);
    hook.reduce(bucket.bucket(channel));
  };
  step(std::numeric_limits<float>::infinity(), 1e5F);
  CHECK(std::isinf(bucket.memory[0]));
  CHECK(std::isinf(bucket.memory[1]));
  step(0.25F, 0.5F);
  CHECK(bucket.memory[0] == 0.25F);
  CHECK(bucket.memory[1] == 0.5F);
  CHECK(bucket.memory[2] == 1.0F);  // 2^-11 behind: half a unit, rounded to even
  step(0.25F, 0.5F);
  CHECK(bucket.memory[2] == 1.0F + 0x1p-10F);
}

}  // namespace hooks_traffic_test
