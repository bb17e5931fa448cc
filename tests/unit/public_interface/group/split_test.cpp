#include "support/crossed_channels.hpp"
#include "unit/public_interface/prelude.hpp"
#include "unit/rendezvous/store_job.hpp"

namespace {

double sum_of(const Group& group, double value) {
  std::array<double, 1> sum{value};
  group.all_reduce(sum, ReduceOp::sum);
  return sum[0];
}

}  // namespace

TEST_CASE("a split gives each color a group of its own, ordered by key and then by rank") {
  run_well(5, [](const Group& group) {
    const int me = group.rank();
    const Group part = group.split(me % 2, -me);  // 4, 2, 0 and 3, 1
    CHECK(part.world_size() == (me % 2 == 0 ? 3 : 2));
    CHECK(part.rank() == (me % 2 == 0 ? (4 - me) / 2 : (3 - me) / 2));
    CHECK(part.members().rank_in_job() == me);
    CHECK(group.members().rank_in_job() == me);
    CHECK(part.local_rank() == group.local_rank());
    CHECK(part.local_world_size() == 5);
    CHECK(part.timeout() == group.timeout());
    CHECK(sum_of(part, me) == (me % 2 == 0 ? 6 : 4));
    CHECK(sum_of(group, me) == 10);
    const Group tied = group.split(7);
    CHECK(tied.rank() == me);
  });
}

TEST_CASE("a part can be split again, and a rank can be alone") {
  run_well(4, [](const Group& group) {
    const int me = group.rank();
    const Group half = group.split(me / 2);
    const Group alone = half.split(half.rank());
    const Group whole = half.split(0);
    CHECK(alone.world_size() == 1);
    CHECK(alone.rank() == 0);
    CHECK(alone.members().rank_in_job() == me);
    CHECK(sum_of(alone, me) == me);
    CHECK(sum_of(whole, me) == (me < 2 ? 1 : 5));
    CHECK(sum_of(half, me) == (me < 2 ? 1 : 5));
  });
}

TEST_CASE("a part has its own part of the store, and barriers of its own ranks") {
  run_well(4, [](const Group& group) {
    const int me = group.rank();
    const Group part = group.split(me % 2);
    if (part.rank() == 0) part.store().set("color", std::to_string(me % 2)).wait();
    CHECK(part.store().get("color").wait() == std::to_string(me % 2));
    CHECK(!group.store().try_get("color").wait().has_value());

    for (int round = 0; round < 3; ++round) {  // one color alone, and a name that is used again
      if (me % 2 == 0) {
        const std::int64_t before = part.store().add("came", 1).wait();
        CHECK(before <= 2 * (round + 1));
        part.store().barrier("here").wait();
        CHECK(part.store().add("came", 0).wait() >= 2 * (round + 1));
        part.store().barrier("there").wait();
      }
    }
    group.store().barrier("all").wait();
    const bool waited = part.run([&]() -> dtrain::Task<bool> {
      co_await part.store().barrier("in a coroutine");
      co_return true;
    });
    CHECK(waited);
  });
}

TEST_CASE("a barrier of a part that a rank does not come to ends at its deadline") {
  run_well(2, [](const Group& group) {
    const Group part = group.split(0);
    if (group.rank() == 0) {
      const auto soon = dtrain::Deadline::after(std::chrono::milliseconds(50));
      CHECK_THROWS_AS(part.store().barrier("lonely", soon).wait(), dtrain::Error);
    }
    group.barrier();
  });
}

TEST_CASE("models are trained on parts, each with its own, while the whole goes on") {
  for (const auto progress : {dtrain::stream::host::Progress::caller, dtrain::stream::host::Progress::thread}) {
    run_well(4, [&](const Group& group) {
      const Group part = group.split(group.rank() / 2);
      CHECK(support::train_crossed(part, support::Crossing::both, progress, 100));
      CHECK(support::train_crossed(part, support::Crossing::collective, progress, 100));
      CHECK(support::train_crossed(group, support::Crossing::ready, progress, 100));
    });
  }
}

TEST_CASE("models that differ within a part are told by their ranks' numbers in the job") {
  const std::string same = "; build the same model on all ranks";
  expect_ends(4, {"rank 3's parameter 0 'p0' is f32 [7], rank 2's is f32 [8]" + same}, [](const Group& group) {
    const Group part = group.split(group.rank() / 2);
    support::CrossedModel model(1, group.rank() == 3 ? 7 : 8);
    const dtrain::DistributedDataParallel ddp{model, part};
    group.barrier();
  });
}

TEST_CASE("the same color everywhere is the group once more, for another thread") {
  run_well(3, [](const Group& group) {
    const Group twin = group.split(0);
    std::thread beside([&] {
      for (int round = 0; round < 200; ++round)
        CHECK(sum_of(twin, 1) == 3);
    });
    for (int round = 0; round < 200; ++round)
      CHECK(sum_of(group, 2) == 6);
    beside.join();
  });
}

TEST_CASE("collectives of a part and of the whole may come in another order on another rank, if enqueued") {
  run_well(3, [](const Group& group) {
    const Group twin = group.split(0);
    std::vector<float> a{1};
    std::vector<float> b{2};
    const auto wait = [&](const Group& one) { wait_for(one.stream(), dtrain::Deadline::after(group.timeout())); };
    group.all_reduce(a, ReduceOp::sum, group.stream());
    twin.all_reduce(b, ReduceOp::sum, twin.stream());
    wait(group.rank() == 1 ? twin : group);
    wait(group.rank() == 1 ? group : twin);
    CHECK(a[0] == 3);
    CHECK(b[0] == 6);
  });
}

TEST_CASE("the end of a part, or leaving it, does not leave the job; the job ends with the last handle") {
  run_well(2, [](const Group& group) {
    { const Group part = group.split(0); }
    const Group part = group.split(0);
    const Group same = part;
    part.leave();
    CHECK_THROWS_WITH_AS(same.barrier(), doctest::Contains("has left"), dtrain::Error);
    CHECK(sum_of(group, 1) == 2);
  });

  rendezvous_test::StoreProcess store(2);
  support::run_thread_ranks(2, [&](support::RankThread& self) {
    std::optional<Group> group = Group::join(support::rank_process_of(self.rank(), 2, store.port()));
    const Group part = group->split(0);
    group.reset();
    CHECK(sum_of(part, 1) == 2);
    CHECK(!dtrain::group::GroupAccess::of(part).failure()->failed());
  });
  CHECK(store.all_left(rendezvous_test::soon()));
}

TEST_CASE("a rank that leaves the job leaves its parts, and ranks that wait there are told") {
  const std::vector<RankEnd> ends = support::run_groups<Policy>(2, [](const Group& group) {
    const Group part = group.split(0);
    if (group.rank() == 0) {
      group.leave();
      CHECK_THROWS_WITH_AS(part.barrier(), doctest::Contains("has left"), dtrain::Error);
      return;
    }
    part.barrier();
  });
  CHECK_CONTAINS(ends[1].text, "rank 0 has left the channel");
}

TEST_CASE("an exception that unwinds through a part is every rank's end, with its text") {
  for (int repeat = 0; repeat < 5; ++repeat) {
    const std::vector<RankEnd> ends = support::run_groups<Policy>(4, [](const Group& group) {
      const Group part = group.split(group.rank() % 2);
      for (int round = 0; round < 1000; ++round) {
        if (group.rank() == 3 && round == 3) throw std::runtime_error("the disk is full");
        sum_of(part, 1);
      }
      group.barrier();
    });
    CHECK(ends[3] == RankEnd{"the disk is full", false});
    for (const std::size_t rank : {0U, 1U, 2U}) {
      CAPTURE(ends[rank].text);
      CHECK(ends[rank].job_failed);
      CHECK(ends[rank].text.find("rank 3 on host ") == 0);
      CHECK_CONTAINS(ends[rank].text, "the disk is full");
    }
  }
}

namespace {

/// Rank 1 gets no memory when it splits.
struct WithoutMemoryToSplit : dtrain::backend::SharedMemory {
  struct Communicator : SharedMemory::Communicator {
    using Whole = SharedMemory::Communicator;
    explicit Communicator(Whole&& whole) noexcept : Whole(std::move(whole)) {}
    Communicator split_blocking(int color, int key, Deadline deadline) {
      if (rank() == 1) throw std::bad_alloc();
      return Communicator(Whole::split_blocking(color, key, deadline));
    }
  };
  static Communicator open_blocking(const dtrain::backend::ChannelContext& context, Deadline deadline) {
    return Communicator(SharedMemory::open_blocking(context, deadline));
  }
};

}  // namespace

TEST_CASE("a rank that gets no memory to split ends the job, also if the program goes on") {
  support::Gate seen;
  const auto ends =
      support::run_groups<dtrain::Policy<dtrain::launch::PerProcess, WithoutMemoryToSplit>>(2, [&](const auto& group) {
        try {
          group.barrier();  // else the job may end while a rank opens its group
          group.split(0);
        } catch (const std::exception& error) {
          if (group.rank() == 0) {
            CHECK_CONTAINS(error.what(), "rank 1", "std::bad_alloc");
            seen.open();
          }
          seen.pass();
        }
      });
  CHECK(ends.size() == 2);
}

TEST_CASE("what a rank of a part reports is known by its number in the job, and thrown as its own there alone") {
  const std::vector<RankEnd> ends = support::run_groups<Policy>(4, [](const Group& group) {
    const Group part = group.split(group.rank() / 2);
    if (group.rank() == 3) {
      dtrain::group::GroupAccess::of(part).failure()->block_until_failed(
          dtrain::Deadline::after(std::chrono::seconds(60)));
      return;
    }
    if (group.rank() == 2) {
      dtrain::group::GroupAccess::of(part).rank_context()->report_exception("rank 2 of the job speaks");
      part.barrier();
    }
    group.barrier();
  });
  CHECK_FALSE(ends[2].job_failed);  // it comes from there
  CHECK_CONTAINS(ends[2].text, "rank 2 of the job speaks");
  for (const std::size_t rank : {0U, 1U}) {
    CHECK(ends[rank].job_failed);
    CHECK(ends[rank].text.find("rank 2 on host ") == 0);
  }
}

TEST_CASE("a rank that gave up a part's barrier does not count in it, and hears who did not come") {
  run_well(4, [](const Group& group) {
    const Group part = group.split(group.rank() % 2);
    const auto store = part.store();
    if (group.rank() == 1) {
      for (int attempt = 0; attempt < 2; ++attempt) {
        const std::string text = sentence_of(dtrain::Errc::timeout, [&] {
          store.barrier("x", dtrain::Deadline::after(std::chrono::milliseconds(200))).wait();
        });
        CHECK(
            text.starts_with("waiting in barrier 'split-0-1/x': the deadline passed; 1 of 2 ranks wait in it (rank 1"));
        CHECK(text.ends_with("rank 3 did not come"));
      }
    }
    group.store().barrier("rank 1 has given up").wait();
    for (int round = 0; round < 3; ++round) {
      const std::int64_t before = store.add("here " + std::to_string(round), 1).wait();
      store.barrier("x").wait();
      CHECK(before <= 2);
      CHECK(store.add("here " + std::to_string(round), 0).wait() == 2);
    }
  });
}

TEST_CASE("a part's barrier ends at once where one of its ranks leaves the job, and other parts meet on") {
  run_well(5, [](const Group& group) {
    const Group part = group.split(group.rank() % 2, -group.rank());  // 4, 2, 0 and 3, 1
    if (group.rank() == 1) {
      CHECK(sentence_of(dtrain::Errc::refused, [&] { part.store().barrier("x").wait(); }) ==
            "waiting in barrier 'split-0-1/x': it cannot complete: rank 3 left the job");
    } else if (group.rank() != 3) {
      group.store().get("rank 3 leaves").wait();
      for (int round = 0; round < 3; ++round)
        part.store().barrier("x").wait();
    } else {
      group.store().set("rank 3 leaves", "").wait();
    }
  });
}
