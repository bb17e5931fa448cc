#include "unit/rendezvous/prelude.hpp"

TEST_CASE("what one rank sets the others get, also those who ask before") {
  run_job(4, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const int rank = control_plane.membership().rank;
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      store.set("k", std::string("a\0b", 3), soon()).wait();
    }
    CHECK(store.get("k", soon()).wait() == std::string("a\0b", 3));
    store.set("from" + std::to_string(rank), "", soon()).wait();
    store.wait({"from0", "from1", "from2", "from3"}, soon()).wait();
    CHECK(store.try_get("from3", soon()).wait() == "");
    CHECK_FALSE(store.try_get("from4", soon()).wait());
    store.wait({}, shortly()).wait();
  });
}

TEST_CASE("a value of the greatest size travels whole") {
  run_job(2, [](ControlPlane& control_plane) {
    const std::string large(max_value_bytes, 'x');
    const Store store = control_plane.store();
    if (control_plane.membership().rank == 0) {
      store.set(std::string(max_key_bytes, 'k'), large, soon()).wait();
    }
    CHECK(store.get(std::string(max_key_bytes, 'k'), soon()).wait() == large);
  });
}

TEST_CASE("additions of all ranks count once each") {
  run_job(4, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    for (int i = 0; i < 100; ++i) {
      store.add("sum", control_plane.membership().rank, soon()).wait();
    }
    store.barrier("added", soon()).wait();
    CHECK(store.add("sum", 0, soon()).wait() == 600);
    CHECK(store.get("sum", soon()).wait() == "600");
  });
}

TEST_CASE("nobody passes a barrier before all have come, in every round") {
  std::atomic<int> arrived{0};
  run_job(4, [&](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    for (int round = 1; round <= 50; ++round) {
      ++arrived;
      store.barrier("round", soon()).wait();
      CHECK(arrived.load() >= 4 * round);
    }
  });
}

TEST_CASE("prefixes keep keys and barriers apart") {
  run_job(2, [](ControlPlane& control_plane) {
    const Store first = control_plane.store().with_prefix("a/");
    const Store second = control_plane.store().with_prefix("b/").with_prefix("c/");
    CHECK(second.prefix() == "b/c/");
    first.set("k", "1", soon()).wait();
    second.set("k", "2", soon()).wait();
    CHECK(first.get("k", soon()).wait() == "1");
    CHECK(control_plane.store().get("b/c/k", soon()).wait() == "2");
    std::future<void> other = std::async(std::launch::async, [&] { second.barrier("x", soon()).wait(); });
    first.barrier("x", soon()).wait();
    other.get();
  });
}

TEST_CASE("a call of the store is done once: a second time, or moved from, it is an error and no empty answer") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    auto call = store.add("k", 1, soon());
    CHECK(call.wait() == 1);
    CHECK_ERROR(call.wait(), dtrain::Errc::invalid_argument);
    auto many = store.get_many({}, soon());
    const auto moved = std::move(many);
    CHECK_ERROR(many.wait(), dtrain::Errc::invalid_argument);
    CHECK(store.get("k", soon()).wait() == "1");
  });
}

TEST_CASE("a call of the store takes part in with_deadline as a Task does") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const auto never = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<bool> {
      auto call = dtrain::async::with_deadline(loop, store.get("never", soon()),
                                               dtrain::Deadline::after(std::chrono::milliseconds(20)));
      const std::optional<std::string> value = co_await std::move(call);
      co_return value.has_value();
    };
    CHECK_FALSE(control_plane.control_thread().run_blocking(never, soon()));
  });
}

TEST_CASE("passed deadlines name what was waited for, and the job goes on") {
  StoreProcess process(2);
  run_ranks(2, [&](int rank) {
    ControlPlane control_plane(rank_options(rank, 2, process.port()));
    const Store store = control_plane.store();
    using dtrain::Errc;
    if (rank == 0) {
      const std::string alone = sentence_of(Errc::timeout, [&] { store.get("k", shortly()).wait(); });
      CHECK(alone.find("waiting for key 'k': the deadline passed; no rank set 'k' in the ") == 0);
      CHECK_CONTAINS(alone, " s since this rank began to wait");
      store.set("there", "", soon()).wait();
      const std::string several = sentence_of(Errc::timeout, [&] {
        store.wait({"k", "there", "l"}, shortly()).wait();
      });
      CHECK(several.find("waiting for key 'k' and 2 more: the deadline passed; no rank set 'k', 'l' (2 of 3 keys) in "
                         "the ") == 0);
      const std::string barrier = sentence_of(Errc::timeout, [&] { store.barrier("b", shortly()).wait(); });
      CHECK(barrier.find("waiting in barrier 'b': the deadline passed; 1 of 2 ranks wait in it (rank 0, the first "
                         "came ") == 0);
      CHECK_CONTAINS(barrier, " s ago); rank 1 did not come");
      store.set("go", "", soon()).wait();
    }
    store.wait({"go"}, soon()).wait();
    store.barrier("b", soon()).wait();
    if (control_plane.failure()->failed() || !control_plane.leave_blocking(soon())) {
      throw std::runtime_error("the job did not go on");
    }
  });
}

TEST_CASE("what is too long, or no number, is an error of this call alone") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    using dtrain::Errc;
    CHECK_ERROR(store.get(std::string(1025, 'k'), soon()).wait(), Errc::invalid_argument,
                "it has 1025 bytes with its prefix; at most 1024");
    CHECK_ERROR(store.set("k", std::string(max_value_bytes + 1, 'v'), soon()).wait(), Errc::invalid_argument,
                "the value has 1048577 bytes");
    CHECK_ERROR(store.wait(std::vector<std::string>(1025), soon()).wait(), Errc::invalid_argument,
                "these are 1025 keys; at most 1024");
    store.set("text", "abc", soon()).wait();
    CHECK(sentence_of(Errc::refused, [&] {
            store.add("text", 1, soon()).wait();
          }).find("adding to key 'text': it holds no integer") == 0);
  });
}

TEST_CASE("coroutines use the store on the control loop, many at once") {
  run_job(2, [](ControlPlane& control_plane) {
    const Store store = control_plane.store().with_prefix("co/");
    const auto work = [&](dtrain::async::EventLoop&) -> dtrain::async::Task<std::int64_t> {
      co_await store.set("k" + std::to_string(control_plane.membership().rank), "v", soon());
      const std::string first = co_await store.get("k0", soon());
      const std::optional<std::string> second = co_await store.try_get("none", soon());
      std::int64_t sum = 0;
      for (int i = 0; i < 10; ++i) {
        sum = co_await store.add("sum", 1, soon());
      }
      co_await store.barrier("end", soon());
      co_return sum + (first == "v" && !second ? 1000 : 0);
    };
    const std::int64_t sum = control_plane.control_thread().run_blocking(work, soon());
    CHECK(sum >= 1010);
    CHECK(sum <= 1020);
  });
}

TEST_CASE("a request that is destroyed leaves the store usable and the barrier free") {
  StoreProcess process(2);
  run_ranks(2, [&](int rank) {
    ControlPlane control_plane(rank_options(rank, 2, process.port()));
    const Store store = control_plane.store();
    if (rank == 0) {
      const auto wait = [&](dtrain::async::EventLoop&) { return store.barrier("b", soon()); };
      CHECK_THROWS_AS(control_plane.control_thread().run_blocking(wait, shortly()), dtrain::Error);
      CHECK_THROWS_AS(store.barrier("b", shortly()).wait(), dtrain::Error);  // not "waits in it already"
      store.set("go", "", soon()).wait();
    }
    store.get("go", soon()).wait();
    store.barrier("b", soon()).wait();
    control_plane.leave_blocking(soon());
  });
}

TEST_CASE("a store that outlives its session says so, and calls that wait are ended") {
  StoreProcess process(1);
  std::optional<Store> store;
  std::future<std::string> waiting;
  {
    ControlPlane control_plane(rank_options(0, 1, process.port()));
    store = control_plane.store();
    waiting = std::async(std::launch::async, [handle = *store] {
      return sentence_of(dtrain::Errc::closed, [&] { handle.get("never", soon()).wait(); });
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  CHECK(waiting.get().find("other code") == std::string::npos);  // whether it had begun to wait or not
  CHECK(sentence_of(dtrain::Errc::closed, [&] { store->set("k", "v", soon()).wait(); }) ==
        "setting key 'k': this rank's process group has been destroyed");
}

TEST_CASE("after leave the store is closed to this rank") {
  StoreProcess process(1);
  ControlPlane control_plane(rank_options(0, 1, process.port()));
  const Store store = control_plane.store();
  CHECK(control_plane.leave_blocking(soon()));
  CHECK(sentence_of(dtrain::Errc::closed, [&] { store.set("k", "v", soon()).wait(); }).find("setting key 'k'") == 0);
}
