// Users' coroutines on the control loop of a process group: run_blocking and spawn.

#include "unit/public_interface/prelude.hpp"

using dtrain::Task;
using dtrain::async::EventLoop;

namespace {

struct OneParameter {
  std::array<float, 2> value{};
  std::array<float, 2> gradient{};
  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(value.data(), {2}), dtrain::tensor_view(gradient.data(), {2})}};
  }
};

}  // namespace

TEST_CASE("coroutines of all ranks meet in the store, with the group's timeout where they give none") {
  run_well(4, [](const Group& group) {
    CHECK(group.store().timeout() == group.timeout());
    const auto meet = [&]() -> Task<std::string> {
      const auto store = group.store();
      const auto leader = co_await store.compare_set("leader", std::nullopt, "rank " + std::to_string(group.rank()));
      co_await store.append("all", "x");
      co_await store.barrier("met");
      const std::string all = co_await store.get("all");
      co_return leader.now.value_or("none") + " of " + std::to_string(all.size());
    };
    const std::string text = group.run(meet);
    CHECK(text == group.store().get("leader").wait() + " of 4");
  });
}

TEST_CASE("an exception of a coroutine comes out, and a deadline ends it") {
  run_well(1, [](const Group& group) {
    const auto throws = [&]() -> Task<> {
      co_await group.store().set("k", "v");
      throw std::out_of_range("mine");
    };
    CHECK_THROWS_WITH_AS(group.run(throws), "mine", std::out_of_range);
    const auto waits = [&]() -> Task<std::string> {
      std::string value = co_await group.store().get("never");
      co_return std::move(value);
    };
    CHECK_ERROR(group.run(waits, Deadline::after(std::chrono::milliseconds(20))), Errc::timeout);
    group.store().set("still", "usable").wait();
  });
}

TEST_CASE("what blocks is an error in a coroutine, never a hang") {
  run_well(2, [](const Group& group) {
    OneParameter model;
    dtrain::DistributedDataParallel ddp{model, group};
    const auto tries = [&]() -> Task<> {
      std::array<float, 1> one{};
      CHECK_ERROR(group.barrier(), Errc::invalid_argument);
      CHECK_ERROR(group.barrier(), Errc::invalid_argument);
      CHECK_ERROR(group.all_reduce(std::span<float>(one), dtrain::ReduceOp::sum), Errc::invalid_argument);
      CHECK_ERROR(group.broadcast(std::span<float>(one), 0), Errc::invalid_argument);
      CHECK_ERROR(group.store().get("never").wait(), Errc::invalid_argument);
      CHECK_ERROR(group.store().barrier("never").wait(), Errc::invalid_argument);
      CHECK_ERROR(dtrain::group::GroupAccess::of(group).open_channel("never"), Errc::invalid_argument);
      CHECK_ERROR(group.leave(), Errc::invalid_argument);
      CHECK_ERROR(group.run([]() -> Task<> { co_return; }), Errc::invalid_argument);
      CHECK_ERROR(ddp.begin(), Errc::invalid_argument);
      co_return;
    };
    group.run(tries);
    group.barrier();  // and nothing of it was begun
  });
}

TEST_CASE("the error of a collective in a coroutine says what to do instead") {
  run_well(1, [](const Group& group) {
    const auto tries = [&]() -> Task<std::string> {
      std::string text = sentence_of([&] { group.barrier(group.stream()); });
      co_return text;
    };
    CHECK_CONTAINS(group.run(tries),
                   "was made in a coroutine on the control loop, where it would wait for itself; make it "
                   "on a thread of the program: enqueue the collective there, with a stream, and co_await "
                   "its Work in the coroutine");
  });
}

TEST_CASE("a failed job ends coroutines in front and in the background, whatever they wait for") {
  std::atomic<int> ended{0};
  const std::vector<RankEnd> ends = support::run_groups<Policy>(3, [&](const Group& group) {
    if (group.rank() == 2) {
      group.store().wait({"sleeping/0", "sleeping/1"}).wait();
      throw std::runtime_error("the disk is full");
    }
    const auto sleeps = [&](EventLoop& loop) -> Task<> {
      co_await group.store().set("sleeping/" + std::to_string(group.rank()), "");
      co_await loop.sleep_for(std::chrono::hours(1));
    };
    auto background = group.spawn(sleeps);
    try {
      group.run([&](EventLoop& loop) -> Task<> { co_await loop.sleep_for(std::chrono::hours(1)); });
    } catch (const dtrain::JobFailed&) {
      ++ended;
    }
    background.wait(Deadline::after(std::chrono::seconds(60)));
  });
  CHECK(ended == 2);
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(ends[rank].job_failed);
    CHECK_CONTAINS(ends[rank].text, "failed: the disk is full");
  }
}

TEST_CASE("a background coroutine works beside collectives until its owner goes, or the rank leaves") {
  run_well(2, [](const Group& group) {
    std::atomic<int> beats{0};
    const auto beat = [&](EventLoop& loop) -> Task<int> {
      for (;;) {
        co_await group.store().add("beats", 1);
        ++beats;
        co_await loop.sleep_for(std::chrono::milliseconds(1));
      }
    };
    {
      const auto owner = group.spawn(beat);
      for (double least = 0; least < 3;) {
        least = beats;
        group.all_reduce(std::span<double>(&least, 1), dtrain::ReduceOp::min);
      }
    }
    const int after = beats;
    group.barrier();
    CHECK(beats == after);
    const auto left_to_the_end = group.spawn(beat);
    group.leave();
    CHECK(left_to_the_end.done());
    CHECK_ERROR(group.spawn(beat), Errc::closed);
  });
}

TEST_CASE("the last handle may go in a coroutine") {
  rendezvous_test::StoreProcess store(1);
  std::optional<Group> group = Group::join(support::rank_process_of(0, 1, store.port()));
  std::atomic<bool> go{false};
  auto task = group->spawn([&go, last = *group](EventLoop& loop) -> Task<> {
    while (!go)
      co_await loop.sleep_for(std::chrono::milliseconds(1));
  });
  group.reset();
  go = true;
  task.wait(Deadline::after(std::chrono::seconds(60)));
  CHECK(store.all_left(Deadline::after(std::chrono::seconds(60))));
}
