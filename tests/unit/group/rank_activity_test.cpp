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
  dtrain::rendezvous::ComputingWindow computing(dtrain::Deadline::Clock::time_point) override { return window; }
  dtrain::rendezvous::ValuesDigest values() const override { return {8, step, 2}; }
  dtrain::rendezvous::ComputingWindow window;
  std::uint64_t step;
  std::uint32_t ready;
};

}  // namespace

TEST_CASE("a rank's status has the phase, the wrapper whose step it is, and the thread that drives them") {
  const auto owner = std::make_shared<RankActivity>();
  RankActivity& activity = *owner;
  CHECK(activity.status().phase == RankPhase::outside);
  FakeSteps generator(3, 1);
  FakeSteps model(9, 2);
  activity.add(model);
  activity.add(generator);
  activity.enter(RankPhase::backward, &model);
  RankStatus status = activity.status();
  CHECK(status.phase == RankPhase::backward);
  CHECK(status.step == 9);
  CHECK(status.ready == 2);
  CHECK(status.parameters == 4);
  CHECK(status.missing == "parameter 0");
  CHECK(status.thread.starts_with("runs"));
  activity.enter(RankPhase::finish, &generator);
  CHECK(activity.status().step == 3);  // the one that makes a step, not the one that has made most
  activity.remove(generator);
  CHECK(activity.status().step == 9);
  activity.enter(RankPhase::outside);
  CHECK(activity.status().missing == "");
  CHECK(activity.status().computing.steps == 0);
  model.window = {21, 70, 50, 9, 10, 11, 8, 2, 4, 0};
  FakeSteps later(1, 1);
  later.window = {21, 70, 60, 9, 10, 11, 8, 2, 4, 0};
  activity.add(later);
  CHECK(activity.status().computing.steps == 50);  // of the wrapper that was made first, on every rank
  CHECK(activity.status().process == static_cast<std::uint32_t>(::getpid()));
  activity.remove(later);
  activity.remove(model);
  CHECK(activity.status().step == 9);  // a rank is no less advanced when its wrappers have ended
}

TEST_CASE("a channel is listed while it lives, the one in an operation first, with what the operation is") {
  const auto owner = std::make_shared<RankActivity>();
  RankActivity& activity = *owner;
  const auto group = activity.add_channel("group", {});
  auto model = activity.add_channel("ddp-0", [](const Operation& of) { return to_string(of) + " (bucket 0 of 1)"; });
  CHECK(activity.status().channels.front().call == "no operation");
  group->call(all_reduce(5));
  group->begin(all_reduce(5));
  group->end();
  model->call(all_reduce(7));
  model->begin(all_reduce(7));
  RankStatus status = activity.status();
  REQUIRE(status.channels.size() == 2);
  CHECK(status.channels[0].name == "ddp-0");
  CHECK(status.channels[0].call == "all_reduce (average) of 8 f32 (bucket 0 of 1)");
  CHECK(status.channels[0].sequence == 7);
  CHECK(status.channels[0].is_in_operation);
  CHECK(status.channels[1].sequence == 5);
  CHECK(status.channels[1].called == 5);
  CHECK_FALSE(status.channels[1].is_in_operation);
  model->end();
  group->call(all_reduce(0));
  group->begin(all_reduce(0));  // point to point: the collectives keep their count
  status = activity.status();
  CHECK(status.channels[0].name == "group");
  CHECK(status.channels[0].sequence == 0);
  CHECK(status.channels[0].called == 5);
  group->begin(all_reduce(6, 0));
  CHECK(activity.status().channels[0].call == "all_reduce");
  model.reset();
  std::vector<std::shared_ptr<ChannelActivity>> more;
  for (int i = 0; i < 9; ++i)
    more.push_back(activity.add_channel(std::to_string(i), {}));
  status = activity.status();
  CHECK(status.channels.size() == RankStatus::most_channels);
  CHECK(status.channels[0].name == "group");
  group->end();
  static_cast<void>(activity.status());
  more[2]->call(all_reduce(1));
  static_cast<void>(activity.status());
  CHECK(activity.status().channels[0].name == "2");  // the one used last, though others are newer
  more.clear();
  const auto last = activity.add_channel("last", {});
  CHECK(activity.status().channels.size() == 2);
}

TEST_CASE("a channel that is split from another is listed as well, until its list has ended") {
  auto owner = std::make_shared<RankActivity>();
  const auto group = owner->add_channel("group", {});
  const auto part = group->split("group/split-1");
  REQUIRE(part);
  part->begin(all_reduce(3));
  CHECK(owner->status().channels.front().name == "group/split-1");
  owner.reset();
  CHECK(group->split("late") == nullptr);
  CHECK(ChannelActivity("alone", {}).split("part") == nullptr);
}

TEST_CASE("a status says for how long nothing has changed: phase, step, gradients and operations count") {
  const auto owner = std::make_shared<RankActivity>();
  RankActivity& activity = *owner;
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
  changes([&] { channel->call(all_reduce(1)), channel->begin(all_reduce(1)); });
  changes([&] { channel->end(); });
  changes([&] { ++steps.step; });
  changes([&] { channel->begin(all_reduce(0, 3)); });
  activity.remove(steps);
}
