// Users' coroutines on the control loop of a process group: run_blocking and spawn.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/run.hpp"
#include "support/thread_group.hpp"

using dtrain::Deadline;
using dtrain::Errc;
using dtrain::Task;
using dtrain::async::EventLoop;
using support::RankEnd;

namespace {

using ThreadPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using ThreadGroup = dtrain::ProcessGroup<ThreadPolicy>;

/// support::run_groups where every rank is to return.
template <class Body>
void run_well(int ranks, Body body) {
  const std::vector<RankEnd> ends = support::run_groups<ThreadPolicy>(ranks, body);
  for (const RankEnd& end : ends) {
    CHECK(end.text == "");
  }
}

/// The code of the dtrain::Error that `call` throws, and its text.
template <class Call>
std::pair<std::error_code, std::string> error_of(Call call) {
  try {
    call();
  } catch (const dtrain::Error& error) {
    return {error.code(), error.what()};
  }
  return {{}, "nothing was thrown"};
}

struct OneParameter {
  std::array<float, 2> value{};
  std::array<float, 2> gradient{};
  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(value.data(), {2}), dtrain::tensor_view(gradient.data(), {2})}};
  }
};

}  // namespace

TEST_CASE("coroutines of all ranks meet in the store, with the group's timeout where they give none") {
  run_well(4, [](const ThreadGroup& group) {
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
  run_well(1, [](const ThreadGroup& group) {
    const auto throws = [&]() -> Task<> {
      co_await group.store().set("k", "v");
      throw std::out_of_range("mine");
    };
    CHECK_THROWS_WITH_AS(group.run(throws), "mine", std::out_of_range);
    const auto waits = [&]() -> Task<std::string> {
      std::string value = co_await group.store().get("never");
      co_return std::move(value);
    };
    const auto late = error_of([&] { group.run(waits, Deadline::after(std::chrono::milliseconds(20))); });
    CHECK(late.first == dtrain::make_error_code(Errc::timeout));
    group.store().set("still", "usable").wait();
  });
}

TEST_CASE("what blocks is an error in a coroutine, never a hang") {
  run_well(2, [](const ThreadGroup& group) {
    OneParameter model;
    dtrain::DistributedDataParallel ddp{model, group};
    const auto tries = [&]() -> Task<std::vector<std::error_code>> {
      std::array<float, 1> one{};
      std::vector<std::error_code> codes;
      codes.push_back(error_of([&] { group.barrier(); }).first);
      codes.push_back(error_of([&] { group.barrier(); }).first);
      codes.push_back(error_of([&] { group.all_reduce(std::span<float>(one), dtrain::ReduceOp::sum); }).first);
      codes.push_back(error_of([&] { group.broadcast(std::span<float>(one), 0); }).first);
      codes.push_back(error_of([&] { group.store().get("never").wait(); }).first);
      codes.push_back(error_of([&] { group.store().barrier("never").wait(); }).first);
      codes.push_back(
          error_of([&] { static_cast<void>(dtrain::group::GroupAccess::of(group).open_channel("never")); }).first);
      codes.push_back(error_of([&] { group.leave(); }).first);
      codes.push_back(error_of([&] { group.run([]() -> Task<> { co_return; }); }).first);
      codes.push_back(error_of([&] { static_cast<void>(ddp.begin()); }).first);
      co_return std::move(codes);
    };
    const std::vector<std::error_code> codes = group.run(tries);
    REQUIRE(codes.size() == 10);
    for (const std::error_code& code : codes) {
      CHECK(code == dtrain::make_error_code(Errc::invalid_argument));
    }
    group.barrier();  // and nothing of it was begun
  });
}

TEST_CASE("the error of a collective in a coroutine says what to do instead") {
  run_well(1, [](const ThreadGroup& group) {
    const auto tries = [&]() -> Task<std::string> {
      std::string text = error_of([&] { group.barrier(group.stream()); }).second;
      co_return text;
    };
    CHECK(group.run(tries).find("was made in a coroutine on the control loop, where it would wait for itself; make it "
                                "on a thread of the program: enqueue the collective there, with a stream, and co_await "
                                "its Work in the coroutine") != std::string::npos);
  });
}

TEST_CASE("a failed job ends coroutines in front and in the background, whatever they wait for") {
  std::atomic<int> ended{0};
  const std::vector<RankEnd> ends = support::run_groups<ThreadPolicy>(3, [&](const ThreadGroup& group) {
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
    background.wait(Deadline::after(std::chrono::seconds(10)));
  });
  CHECK(ended == 2);
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(ends[rank].job_failed);
    CHECK(ends[rank].text.find("failed: the disk is full") != std::string::npos);
  }
}

TEST_CASE("a background coroutine works beside collectives until its owner goes, or the rank leaves") {
  run_well(2, [](const ThreadGroup& group) {
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
    CHECK(error_of([&] { static_cast<void>(group.spawn(beat)); }).first == dtrain::make_error_code(Errc::closed));
  });
}

TEST_CASE("the last handle may go in a coroutine") {
  rendezvous_test::StoreProcess store(1);
  dtrain::launch::RankProcess worker;
  worker.identity.rank = 0;
  worker.identity.world_size = 1;
  worker.identity.master_addr = "127.0.0.1";
  worker.identity.master_port = store.port();
  worker.timeout = std::chrono::seconds(20);
  std::optional<ThreadGroup> group = ThreadGroup::join(worker);
  std::atomic<bool> go{false};
  auto task = group->spawn([&go, last = *group](EventLoop& loop) -> Task<> {
    while (!go) {
      co_await loop.sleep_for(std::chrono::milliseconds(1));
    }
  });
  group.reset();
  go = true;
  task.wait(Deadline::after(std::chrono::seconds(10)));
  CHECK(store.all_left(Deadline::after(std::chrono::seconds(10))));
}
