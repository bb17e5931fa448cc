#include "dtrain/process_group.hpp"

#include <sys/wait.h>

#include "unit/public_interface/prelude.hpp"

using dtrain::backend::AllReduce;

TEST_CASE("ranks that are threads of one process reduce, broadcast and wait for each other") {
  for (const int world_size : {1, 2, 3, 4, 8}) {
    run_well(world_size, [&](const Group& group) {
      CHECK(group.world_size() == world_size);
      CHECK(group.node_count() == 1);
      CHECK(group.local_world_size() == world_size);
      CHECK(group.local_rank() == group.rank());

      std::array<double, 3> values{static_cast<double>(group.rank()), 1.0, 0.5};
      group.all_reduce(std::span<double>(values), ReduceOp::sum);
      CHECK(values[0] == world_size * (world_size - 1) / 2);
      CHECK(values[1] == world_size);

      std::array<float, 2> from_last{static_cast<float>(group.rank()), 7.0F};
      group.broadcast(std::span<float>(from_last), world_size - 1);
      CHECK(from_last[0] == static_cast<float>(world_size - 1));
      group.barrier();
      group.barrier();
    });
  }
}

TEST_CASE("two ranks that enqueue on the group's stream see the work done after the event") {
  run_well(2, [](const Group& group) {
    std::array<float, 1> value{1.0F};
    const auto view = dtrain::buffer_view(std::span<float>(value));
    group.all_reduce(view, view, ReduceOp::sum, group.stream());
    group.all_reduce(view, view, ReduceOp::sum, group.stream());
    wait_for(group.stream(), dtrain::Deadline::after(group.timeout()));
    CHECK(value[0] == 4.0F);
  });
}

TEST_CASE("an exception on one rank is the cause that every other rank throws") {
  const std::vector<RankEnd> ends = support::run_groups<Policy>(4, [](const Group& group) {
    std::array<float, 1> value{0};
    for (int round = 0;; ++round) {
      if (round == 3 && group.rank() == 2) throw std::runtime_error("the disk is full");
      group.all_reduce(std::span<float>(value), ReduceOp::sum);
    }
  });
  CHECK(ends[2] == RankEnd{"the disk is full", false});
  for (const std::size_t rank : {0U, 1U, 3U}) {
    INFO(ends[rank].text);
    CHECK(ends[rank].job_failed);
    CHECK(ends[rank].text.find("rank 2 on host ") == 0);
    CHECK(ends[rank].text.find("failed: the disk is full") != std::string::npos);
  }
}

TEST_CASE("after a failure every later call throws the same cause") {
  support::run_groups<Policy>(2, [](const Group& group) {
    std::array<float, 1> value{0};
    const auto deadline = dtrain::Deadline::after(group.timeout());
    if (group.rank() == 0) {
      group.store().get("rank 1 has joined", deadline).wait();
      throw std::runtime_error("first");
    }
    group.store().set("rank 1 has joined", "yes", deadline).wait();
    for (int call = 0; call < 3; ++call)
      CHECK_THROWS_AS(group.all_reduce(std::span<float>(value), ReduceOp::sum), dtrain::JobFailed);
    CHECK_THROWS_AS(group.barrier(), dtrain::JobFailed);
    CHECK_THROWS_AS(group.store().get("never", dtrain::Deadline::after(std::chrono::seconds(60))).wait(),
                    dtrain::JobFailed);
  });
}

TEST_CASE("a group that is destroyed while an exception unwinds has failed; one that goes normally has left") {
  rendezvous_test::StoreProcess store(2);
  std::string other;
  support::run_thread_ranks(2, [&](support::RankThread& self) {
    try {
      const Group group = Group::join(support::rank_process_of(self.rank(), 2, store.port(), 60s));
      if (self.rank() == 0) throw std::runtime_error("unseen by the group");
      group.barrier();
    } catch (const dtrain::JobFailed& failed) {
      other = failed.what();
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()) == "unseen by the group");
    }
  });
  CHECK(other.find("an exception ended the process group") != std::string::npos);

  rendezvous_test::StoreProcess calm(2);
  support::run_thread_ranks(2, [&](support::RankThread& self) {
    const Group group = Group::join(support::rank_process_of(self.rank(), 2, calm.port(), 60s));
    group.barrier();
  });
  CHECK(calm.all_left(rendezvous_test::soon()));
}

TEST_CASE("the ranks share a store, and a channel of one's own never meets another's messages") {
  run_well(3, [](const Group& group) {
    const auto deadline = dtrain::Deadline::after(group.timeout());
    if (group.rank() == 1) {
      group.store().set("colour", "green", deadline).wait();
    }
    CHECK(group.store().get("colour", deadline).wait() == "green");

    auto first = dtrain::group::GroupAccess::of(group).open_channel("first");
    auto second = dtrain::group::GroupAccess::of(group).open_channel("second");
    dtrain::stream::host::Queue queue;
    std::array<float, 1> a{1};
    std::array<float, 1> b{10};
    const auto view_a = dtrain::buffer_view(std::span<float>(a));
    const auto view_b = dtrain::buffer_view(std::span<float>(b));
    if (group.rank() == 0) {  // another order on one rank: the channels do not wait for each other
      second.enqueue(AllReduce{view_b, view_b, ReduceOp::sum}, queue.ref());
      first.enqueue(AllReduce{view_a, view_a, ReduceOp::sum}, queue.ref());
    } else {
      dtrain::stream::host::Queue other;
      std::thread beside([&] {
        first.enqueue(AllReduce{view_a, view_a, ReduceOp::sum}, other.ref());
        wait_for(other.ref(), deadline);
      });
      second.enqueue(AllReduce{view_b, view_b, ReduceOp::sum}, queue.ref());
      wait_for(queue.ref(), deadline);
      beside.join();
    }
    wait_for(queue.ref(), deadline);
    CHECK(a[0] == 3);
    CHECK(b[0] == 30);
  });
}

TEST_CASE("a rank that leaves early does not keep one that still reduces waiting") {
  const std::vector<RankEnd> ends = support::run_groups<Policy>(2, [](const Group& group) {
    if (group.rank() == 1) {
      group.barrier();
    }
  });
  CHECK(ends[0].text == "");
  CHECK(ends[1].text.find("rank 0 has left the channel") != std::string::npos);
}

TEST_CASE("a group that was left takes no more collectives") {
  run_well(1, [](const Group& group) {
    group.leave();
    CHECK_THROWS_WITH_AS(group.barrier(), doctest::Contains("has left"), dtrain::Error);
  });
}

TEST_CASE("init_process_group joins as the identity that it is given") {
  dtrain::launch::JoinOptions options;
  options.identity = dtrain::identity::ProcessIdentity{};
  options.timeout = std::chrono::seconds(30);
  const Group group = dtrain::init_process_group<Policy>(options);
  CHECK(group.rank() == 0);
  CHECK(group.world_size() == 1);
  std::array<double, 1> value{2};
  group.all_reduce(std::span<double>(value), ReduceOp::average);
  CHECK(value[0] == 2);
}

TEST_CASE("a process that a rank forks leaves the group's copy alone and is told what it is, and the rank goes on") {
  dtrain::launch::JoinOptions options;
  options.identity = dtrain::identity::ProcessIdentity{};
  options.timeout = std::chrono::seconds(30);
  std::optional<Group> group(dtrain::init_process_group<Policy>(options));
  std::optional<Group> part(group->split(0));
  const auto beat = [&](dtrain::async::EventLoop& loop) -> dtrain::Task<int> {
    for (;;)
      co_await loop.sleep_for(std::chrono::milliseconds(1));
  };
  auto background = std::make_optional(group->spawn(beat));
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);
    const std::string sentence = sentence_of([&] { group->store().set("key", "the child's").wait(); });
    dtrain::group::GroupAccess::of(*group).rank_context()->report_exception("the child's own trouble");
    background.reset();
    part.reset();
    group.reset();
    ::_exit(sentence.find("this process was forked from a rank, and is none") != std::string::npos ? 7 : 8);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK((WIFEXITED(status) && WEXITSTATUS(status) == 7));
  CHECK(!background->done());
  CHECK(!dtrain::group::GroupAccess::of(*group).failure()->failed());
  part->barrier();
  group->store().set("key", "the rank's").wait();
  CHECK(group->store().get("key").wait() == "the rank's");
  CHECK_NOTHROW(group->barrier());
}

TEST_CASE("several ranks without an address to meet at are told what to set") {
  dtrain::launch::RankProcess worker = support::rank_process_of(0, 2, 1, 60s);
  worker.identity.master_addr.reset();
  CHECK_THROWS_WITH_AS(Group::join(worker), doctest::Contains("set MASTER_ADDR and MASTER_PORT"), dtrain::Error);
}
