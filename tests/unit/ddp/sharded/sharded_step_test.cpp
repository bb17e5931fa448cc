// What a sharded step waits for, on a stream that runs only what somebody waits for.

#include "dtrain/ddp/sharded/sharded_reduction.hpp"
#include "unit/ddp/prelude.hpp"

namespace sharded_step_test {

/// The only rank: a reduction copies.
class OnlyRank {
 public:
  using Stream = support::ManualStream::HostRef;
  using Allocation = support::FakeCommunicator::Allocation;

  int rank() const noexcept { return 0; }
  int size() const noexcept { return 1; }
  void enqueue(const dtrain::backend::ReduceScatter& call, Stream stream) {
    const std::size_t bytes = call.output.bytes();
    stream.enqueue([from = call.input.data, to = call.output.data, bytes]() noexcept {
      if (from != to) std::copy_n(from, bytes, to);
    });
  }
  void enqueue(const dtrain::backend::AllGather&, Stream stream) {
    stream.enqueue([]() noexcept {});
  }
  void enqueue(const dtrain::backend::AllReduce& call, Stream stream) {
    enqueue(dtrain::backend::ReduceScatter{call.input, call.output, call.op}, stream);
  }
  void enqueue(const dtrain::backend::Broadcast&, Stream) {}
  void enqueue(const dtrain::backend::Barrier&, Stream) {}
  Allocation allocate_blocking(std::size_t bytes, dtrain::Deadline) { return Allocation(bytes); }
  void abort(const dtrain::Cause&) noexcept {}
  std::optional<dtrain::Cause> failure() const { return *cause; }

  std::shared_ptr<std::optional<dtrain::Cause>> cause = std::make_shared<std::optional<dtrain::Cause>>();
};

/// With others it would read their memory.
struct ReadingRank : OnlyRank {
  using OnlyRank::enqueue;
  void enqueue(const dtrain::backend::ReadBlocks&, Stream) {}
};
static_assert(dtrain::backend::CanReadBlocks<ReadingRank>);

using Weights = std::vector<float>;

template <class R>
dtrain::ddp::ShardedParameters::Rule erased(R rule) {
  return dtrain::ddp::ShardedParameters::Rule::of(std::make_shared<const R>(std::move(rule)));
}

/// Six parameters, each a bucket, whose update is value - gradient.
template <class Channel = OnlyRank>
struct Rank {
  explicit Rank(const dtrain::ShardedOptions& options) {
    for (std::size_t i = 0; i < 6; ++i) {
      values.emplace_back(32, 0.0F);
      gradients.emplace_back(32, 1.0F);
    }
    for (std::size_t i = 0; i < 6; ++i)
      parameters.push_back({"p", dtrain::tensor_view(values[i]), dtrain::tensor_view(gradients[i])});
    const dtrain::ddp::FailureContext context{latch, 0, "host", std::chrono::seconds(10), {}};
    reducer = std::make_unique<dtrain::ddp::Reducer<Channel>>(
        channel, stream.host_ref(), parameters,
        dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters), {0, 0}), dtrain::DdpOptions(), context);
    if (options.divides_gradients()) reducer->reuse_memory();
    const auto rule = [](std::span<float> weights, std::span<const float> g, const dtrain::StepInfo&) {
      for (std::size_t k = 0; k < weights.size(); ++k)
        weights[k] -= g[k];
    };
    update = std::make_unique<dtrain::ddp::ShardedReduction<Channel>>(
        dtrain::ddp::ShardedParameters(parameters, reducer->plan(), 0, 1, 0, erased(rule)), reducer->plan(), options,
        reducer->norms());
  }

  dtrain::Step begin() { return reducer->begin("begin()", {}, update.get()); }
  void run_step() {
    dtrain::Step step = begin();
    for (std::size_t i = 6; i-- > 0;)
      step.ready(i);
    step.finish();
  }
  /// Of parameter 0, 1, ...
  Weights weights() const {
    Weights firsts;
    for (const std::vector<float>& value : values)
      firsts.push_back(value[17]);
    return firsts;
  }

  Channel channel;
  std::shared_ptr<dtrain::FailureLatch> latch = std::make_shared<dtrain::FailureLatch>();
  support::ManualStream stream{true};
  std::vector<std::vector<float>> values;
  std::vector<std::vector<float>> gradients;
  std::vector<dtrain::Parameter> parameters;
  std::unique_ptr<dtrain::ddp::Reducer<Channel>> reducer;
  std::unique_ptr<dtrain::ddp::ShardedReduction<Channel>> update;
};

TEST_CASE("a step ends with all weights stored, in both stages") {
  for (const int stage : {1, 2}) {
    CAPTURE(stage);
    Rank<> rank({.stage = stage});
    rank.run_step();
    CHECK(rank.weights() == Weights{-1, -1, -1, -1, -1, -1});
    rank.run_step();
    CHECK(rank.weights() == Weights{-2, -2, -2, -2, -2, -2});
  }
}

template <class Channel>
void check_storing(int stage, bool at_once) {
  Rank<Channel> rank({.stage = stage, .early_update = at_once});
  dtrain::Step step = rank.begin();
  step.ready(5);
  step.ready(4);
  rank.stream.run();
  const float last = at_once ? -1 : 0;
  CHECK(rank.weights() == Weights{0, 0, 0, 0, last, last});
  for (std::size_t i = 4; i-- > 0;)
    step.ready(i);
  step.finish();
  CHECK(rank.weights() == Weights{-1, -1, -1, -1, -1, -1});
}

TEST_CASE("new weights are stored during the backward pass with early_update, and only then") {
  for (const bool at_once : {false, true}) {
    for (const int stage : {1, 2}) {
      check_storing<OnlyRank>(stage, at_once);
      check_storing<ReadingRank>(stage, at_once);
    }
  }
}

template <class Channel>
void check_failed_channel(int stage) {
  Rank<Channel> rank({.stage = stage, .early_update = true});
  dtrain::Step step = rank.begin();
  step.ready(5);
  rank.stream.run();
  step.ready(4);
  *rank.channel.cause = dtrain::Cause(dtrain::CauseKind::lost, 1, "host", "the peer is gone");
  rank.stream.run();
  CHECK(rank.weights() == Weights{0, 0, 0, 0, 0, -1});
}

TEST_CASE("after a failure of the channel, whose gradients are then not reduced, no new weights are stored") {
  for (const int stage : {1, 2}) {
    check_failed_channel<OnlyRank>(stage);
    check_failed_channel<ReadingRank>(stage);
  }
}

TEST_CASE("in stage 2 a gradient waits for the bucket two before its own, and for no later one") {
  Rank<> rank({.stage = 2});
  dtrain::Step step = rank.begin();
  step.ready(5);
  const std::size_t of_first = rank.stream.enqueued();
  step.ready(4);
  const std::size_t of_two = rank.stream.enqueued();
  const std::size_t bytes = rank.update->gradient_bytes();
  step.ready(0);  // the bucket two before its own is not launched: a copy is kept
  CHECK(rank.update->gradient_bytes() == bytes + 32 * sizeof(float));
  CHECK(rank.stream.completed() == 0);
  std::fill(rank.gradients[0].begin(), rank.gradients[0].end(), 99.0F);
  step.ready(3);
  CHECK(rank.stream.completed() > 0);
  CHECK(rank.stream.completed() <= of_first);
  step.ready(2);
  CHECK(rank.stream.completed() > of_first);
  CHECK(rank.stream.completed() <= of_two);
  step.ready(1);
  step.finish();
  CHECK(rank.weights() == Weights{-1, -1, -1, -1, -1, -1});
}

TEST_CASE("in stage 2 a gradient whose bucket is two behind the next one to be launched is copied, too") {
  Rank<> rank({.stage = 2});
  dtrain::Step step = rank.begin();
  step.ready(5);
  step.ready(4);
  const std::size_t bytes = rank.update->gradient_bytes();
  step.ready(1);  // bucket 4 shares memory with bucket 2, which is the next one to be launched
  CHECK(rank.update->gradient_bytes() == bytes + 32 * sizeof(float));
  step.ready(2);  // bucket 3 shares memory with bucket 1, which is launched
  CHECK(rank.update->gradient_bytes() == bytes + 32 * sizeof(float));
  step.ready(3);
  step.ready(0);
  step.finish();
  CHECK(rank.weights() == Weights{-1, -1, -1, -1, -1, -1});
}

TEST_CASE("in stage 2 a gradient that was copied in one step is none of the next step, where it comes in order") {
  Rank<> rank({.stage = 2});
  {
    dtrain::Step step = rank.begin();
    for (const std::size_t i : {0U, 5U, 4U, 3U, 2U, 1U})
      step.ready(i);
    step.finish();
  }
  REQUIRE(rank.weights() == Weights{-1, -1, -1, -1, -1, -1});
  for (std::vector<float>& gradient : rank.gradients)
    std::fill(gradient.begin(), gradient.end(), 2.0F);
  rank.run_step();
  CHECK(rank.weights() == Weights{-3, -3, -3, -3, -3, -3});
}

}  // namespace sharded_step_test
