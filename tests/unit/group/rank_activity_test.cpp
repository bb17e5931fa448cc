#include "dtrain/group/rank_activity.hpp"

#include "support/prelude.hpp"

namespace {

using dtrain::backend::ChannelActivity;
using dtrain::backend::Operation;
using dtrain::backend::OperationKind;
using dtrain::group::RankActivity;
using dtrain::rendezvous::RankPhase;
using dtrain::rendezvous::RankStatus;

Operation all_reduce(std::uint64_t sequence, std::uint64_t count = 8) {
  Operation operation;
  operation.sequence = sequence;
  operation.count = count;
  operation.kind = OperationKind::all_reduce;
  operation.op = dtrain::ReduceOp::average;
  return operation;
}

struct FakeSteps final : RankActivity::Steps {
  FakeSteps(std::uint64_t number, std::uint32_t count) : step(number), ready(count) {}
  void describe(RankStatus& status) const override {
    status.step = step;
    status.ready = ready;
    status.parameters = 4;
    status.missing = "parameter 0";
  }
  std::uint64_t step;
  std::uint32_t ready;
};

}  // namespace

TEST_CASE("a rank's status has the phase, the wrapper with the most steps, and the thread that drives them") {
  RankActivity activity;
  CHECK(activity.status().phase == RankPhase::outside);
  FakeSteps generator(3, 1);
  FakeSteps model(9, 2);
  activity.add(model);
  activity.add(generator);
  activity.enter(RankPhase::backward);
  RankStatus status = activity.status();
  CHECK(status.phase == RankPhase::backward);
  CHECK(status.step == 9);
  CHECK(status.ready == 2);
  CHECK(status.parameters == 4);
  CHECK(status.missing == "parameter 0");
  CHECK(status.thread.starts_with("runs"));
  activity.remove(model);
  CHECK(activity.status().step == 3);
  activity.remove(generator);
  CHECK(activity.status().step == 0);
}

TEST_CASE("a channel is listed while it lives, the one in an operation first, with what the operation is") {
  RankActivity activity;
  const auto group = activity.add_channel("group", {});
  auto model = activity.add_channel("ddp-0", [](const Operation& of) { return to_string(of) + " (bucket 0 of 1)"; });
  CHECK(activity.status().channels.front().call == "no operation");
  group->begin(all_reduce(5));
  group->end();
  model->begin(all_reduce(7));
  RankStatus status = activity.status();
  REQUIRE(status.channels.size() == 2);
  CHECK(status.channels[0].name == "ddp-0");
  CHECK(status.channels[0].call == "all_reduce (average) of 8 f32 (bucket 0 of 1)");
  CHECK(status.channels[0].sequence == 7);
  CHECK(status.channels[0].is_in_operation);
  CHECK(status.channels[1].sequence == 5);
  CHECK_FALSE(status.channels[1].is_in_operation);
  model->end();
  group->begin(all_reduce(0));  // point to point: the collectives keep their count
  status = activity.status();
  CHECK(status.channels[0].name == "group");
  CHECK(status.channels[0].sequence == 5);
  group->begin(all_reduce(6, 0));
  CHECK(activity.status().channels[0].call == "all_reduce");
  model.reset();
  std::vector<std::shared_ptr<ChannelActivity>> more;
  for (int i = 0; i < 9; ++i)
    more.push_back(activity.add_channel(std::to_string(i), {}));
  status = activity.status();
  CHECK(status.channels.size() == RankStatus::most_channels);
  CHECK(status.channels[0].name == "group");
  CHECK(status.channels[1].name == "8");
  more.clear();
  const auto last = activity.add_channel("last", {});
  CHECK(activity.status().channels.size() == 2);
}

TEST_CASE("a status says for how long nothing has changed: phase, step, gradients and operations count") {
  RankActivity activity;
  FakeSteps steps(1, 0);
  activity.add(steps);
  const auto channel = activity.add_channel("group", {});
  const auto changes = [&](auto change) {
    static_cast<void>(activity.status());
    std::this_thread::sleep_for(20ms);
    CHECK(activity.status().unchanged_ms >= 20);
    change();
    CHECK(activity.status().unchanged_ms == 0);
  };
  changes([&] { activity.enter(RankPhase::backward); });
  changes([&] { ++steps.ready; });
  changes([&] { activity.enter(RankPhase::finish); });
  changes([&] { channel->begin(all_reduce(1)); });
  changes([&] { channel->end(); });
  changes([&] { ++steps.step; });
  changes([&] { channel->begin(all_reduce(0, 3)); });
  activity.remove(steps);
}
