#include "support/fake_group.hpp"
#include "unit/public_interface/prelude.hpp"

using dtrain::Parameter;
using support::FakeGroupState;
using FakeProcessGroup = dtrain::ProcessGroup<support::FakePolicy>;

namespace {

/// Two parameters of two elements each.
struct SmallModel {
  std::array<float, 4> values{1, 2, 3, 4};
  std::array<float, 4> gradients{};
  dtrain::Device device{};
  std::int64_t width = 2;

  std::vector<Parameter> parameters() {
    std::vector<Parameter> list{
        {"w", dtrain::tensor_view(values.data(), {width}), dtrain::tensor_view(gradients.data(), {width})},
        {"b", dtrain::tensor_view(values.data() + 2, {2}), dtrain::tensor_view(gradients.data() + 2, {2})}};
    for (Parameter& parameter : list)
      parameter.value.device = parameter.gradient.device = device;
    return list;
  }
};

struct BoundSmallModel : SmallModel {
  std::array<dtrain::TensorView, 2> bound;
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) { bound.at(i) = view; }
};

std::shared_ptr<FakeGroupState> one_rank(int rank = 0, std::shared_ptr<support::FakeJob> job = nullptr) {
  auto state = std::make_shared<FakeGroupState>();
  state->handle = support::FakeGroupHandle::of(job ? std::move(job) : std::make_shared<support::FakeJob>(1), rank, 1);
  return state;
}

}  // namespace

TEST_CASE("the model's type and the policy are deduced, and the wrapper moves but does not copy") {
  SmallModel model;
  FakeProcessGroup group(one_rank());
  DistributedDataParallel ddp{model, group};
  DistributedDataParallel with_options{model, group, {.reduce_op = dtrain::ReduceOp::sum}};
  using Ddp = DistributedDataParallel<SmallModel, support::FakePolicy>;
  static_assert(std::is_same_v<decltype(ddp), Ddp>);
  static_assert(std::is_same_v<decltype(with_options), Ddp>);
  static_assert(!std::is_copy_constructible_v<Ddp>);
  static_assert(std::is_nothrow_move_constructible_v<Ddp>);
}

TEST_CASE("construction opens a channel of its own and broadcasts every value") {
  const auto state = one_rank();
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(state)};
  CHECK(state->opened == std::vector<std::string>{"ddp"});
  CHECK(state->channel->broadcasts == 2);
  CHECK(ddp.plan().buckets.size() == 1);
}

TEST_CASE("backward reduces every gradient and counts") {
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(one_rank())};
  for (int step = 0; step < 3; ++step) {
    ddp.backward([&](Ready ready) {
      model.gradients = {1, 2, 3, 4};
      ready(1);
      ready(0);
    });
    CHECK(model.gradients == std::array<float, 4>{10, 20, 30, 40});
  }
  CHECK(ddp.statistics().steps == 3);
  CHECK(ddp.statistics().bytes_reduced == 3 * 16);
  CHECK(ddp.statistics().buckets == 1);
}

TEST_CASE("a model that binds gets its gradients placed, and its own memory stays untouched") {
  BoundSmallModel model;
  model.gradients = {5, 6, 7, 8};
  std::shared_ptr<const void> memory;
  {
    DistributedDataParallel ddp{model, FakeProcessGroup(one_rank())};
    REQUIRE(model.bound[1].data != nullptr);
    CHECK(model.bound[1].as<float>()[0] == 7);
    CHECK(reinterpret_cast<std::uintptr_t>(model.bound[0].data) % 64 == 0);
    auto moved = std::move(ddp);
    moved.backward([&](Ready ready) {
      ready(0);
      ready(1);
    });
    CHECK(model.bound[1].as<float>()[1] == 80);
    memory = moved.gradient_memory();
  }
  CHECK(model.bound[0].as<float>()[0] == 50);
  CHECK(model.gradients == std::array<float, 4>{5, 6, 7, 8});
}

TEST_CASE("an exception of the backward pass is told to the job with its text, once, and passes through") {
  const auto state = one_rank();
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(state)};
  CHECK_THROWS_WITH_AS(ddp.backward([](Ready) { throw std::runtime_error("loss is nan"); }), "loss is nan",
                       std::runtime_error);
  CHECK(state->reported == std::vector<std::string>{"loss is nan"});
  CHECK(state->handle->abandoned == std::vector<bool>{true});
  CHECK_THROWS_WITH_AS((void)ddp.begin(), doctest::Contains("loss is nan"), dtrain::Error);
}

TEST_CASE("a backward() inside another one is named as what it is") {
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(one_rank())};
  CHECK_THROWS_WITH_AS(ddp.backward([&](Ready) { ddp.backward([](Ready) {}); }),
                       "backward() came while a step was under way; finish() it first, or let the backward() that it "
                       "is in return",
                       dtrain::Error);
  const auto again = [&] { ddp.backward([](Ready) {}); };
  CHECK_THROWS_AS(again(), dtrain::Error);
}

TEST_CASE("a wrapper that an exception destroys leaves its channel to the group, any other closes it") {
  const auto state = one_rank();
  SmallModel model;
  { const DistributedDataParallel ddp{model, FakeProcessGroup(state)}; }
  CHECK(state->kept.empty());
  try {
    DistributedDataParallel ddp{model, FakeProcessGroup(state)};
    const auto moved = std::move(ddp);
    throw std::runtime_error("between two steps");
  } catch (const std::runtime_error&) {
  }
  CHECK(state->kept.size() == 1);
  state->kept.clear();
}

TEST_CASE("a model that binds can be wrapped again after an exception has destroyed its wrapper") {
  const auto state = one_rank();
  BoundSmallModel model;
  for (int repeat = 0; repeat < 2; ++repeat) {
    try {
      const DistributedDataParallel ddp{model, FakeProcessGroup(state)};
      throw std::runtime_error("between two steps");
    } catch (const std::runtime_error&) {
    }
  }
  DistributedDataParallel again{model, FakeProcessGroup(state)};
  again.backward([](Ready ready) { all_ready(ready, 2); });
  CHECK(state->kept.size() == 2);
  state->kept.clear();
}

TEST_CASE("what is thrown need not be a std::exception") {
  const auto state = one_rank();
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(state)};
  CHECK_THROWS_AS(ddp.backward([](Ready) { throw 7; }), int);
  CHECK(state->reported == std::vector<std::string>{"an exception that is not a std::exception"});
}

TEST_CASE("a failure of the job that ready throws is not reported as this rank's own") {
  const auto state = one_rank();
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(state)};
  CHECK_THROWS_AS(ddp.backward([&](Ready ready) {
    state->handle->job()->fail({dtrain::CauseKind::lost, 1, "host-1", "connection closed"});
    ready(0);
  }),
                  dtrain::PeerLost);
  CHECK(state->reported.empty());
}

TEST_CASE("a parameter without a gradient is named by the step in which it happens") {
  const auto state = one_rank();
  SmallModel model;
  DistributedDataParallel ddp{model, FakeProcessGroup(state)};
  CHECK_THROWS_WITH_AS(ddp.backward([](Ready ready) { ready(0); }), doctest::Contains("parameter 1 'b'"),
                       dtrain::Error);
  CHECK_CONTAINS(state->handle->job()->latch(0)->cause()->text, "parameter 1 'b'");
}

TEST_CASE("a device that the backend does not reduce and another reduction are refused before a channel is opened") {
  const auto state = one_rank();
  SmallModel model;
  model.device = {dtrain::DeviceKind::cuda, 3};
  CHECK_THROWS_WITH_AS((DistributedDataParallel{model, FakeProcessGroup(state)}),
                       "parameter 0 'w' is on cuda:3, which backend Fake does not reduce", dtrain::Error);
  model.device = {};
  CHECK_ERROR((DistributedDataParallel{model, FakeProcessGroup(state), {.reduce_op = dtrain::ReduceOp::max}}),
              Errc::invalid_argument, "DdpOptions::reduce_op is max");
  CHECK(state->opened.empty());
}

TEST_CASE("the same bits in every run are refused where the backend does not promise them") {
  const auto state = one_rank();
  SmallModel model;
  CHECK_ERROR(DistributedDataParallel(model, FakeProcessGroup(state), {.deterministic = true}), Errc::unsupported,
              "DdpOptions::deterministic is set, but backend Fake does not promise");
  CHECK(state->opened.empty());
}

TEST_CASE("an element type that the backend does not reduce is refused, with the parameter's name") {
  struct Bytes {
    std::array<std::uint8_t, 2> values{};
    std::array<std::uint8_t, 2> gradients{};
    std::vector<Parameter> parameters() {
      return {{"table", dtrain::tensor_view(values.data(), {2}), dtrain::tensor_view(gradients.data(), {2})}};
    }
  };
  const auto state = one_rank();
  Bytes model;
  CHECK_THROWS_WITH_AS(
      (DistributedDataParallel{model, FakeProcessGroup(state)}),
      "parameter 0 'table' has a gradient of u8, which backend Fake does not reduce; keep it in a type "
      "that the backend reduces, such as f32",
      dtrain::Error);
  CHECK(state->opened.empty());
}

TEST_CASE("two wrappers in one job are compared each with its own kind") {
  const auto job = std::make_shared<support::FakeJob>(2);
  std::array<std::string, 2> results;
  support::on_threads(2, [&](std::size_t rank) {
    SmallModel first;
    SmallModel second;
    second.width = 1;
    SmallModel third;
    third.width = rank == 0 ? 2 : 1;
    const FakeProcessGroup group(one_rank(static_cast<int>(rank), job));
    results[rank] = sentence_of([&] {
      const DistributedDataParallel a{first, group};
      const DistributedDataParallel b{second, group};
      const DistributedDataParallel c{third, group};
    });
  });
  CHECK(results[0] ==
        "ranks disagree: rank 1's parameter 0 'w' is f32 [1], rank 0's is f32 [2]; build the same model on all ranks");
  CHECK(results[1] == results[0]);
}
