#include "unit/rendezvous/prelude.hpp"

TEST_CASE("exactly one of many ranks wins a compare_set, and the others see its value") {
  std::atomic<int> winners{0};
  run_job(4, [&](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const std::string mine = std::to_string(control_plane.membership().rank);
    const CompareSet first = store.compare_set("leader", std::nullopt, mine, soon()).wait();
    winners += first.swapped ? 1 : 0;
    REQUIRE(first.now);
    CHECK((*first.now == mine) == first.swapped);
    CHECK(store.get("leader", soon()).wait() == first.now);
  });
  CHECK(winners == 1);
}

TEST_CASE("compare_set counts as atomically as add does") {
  run_job(4, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    for (int i = 0; i < 20; ++i) {
      std::optional<std::string> seen = store.try_get("n", soon()).wait();
      for (;;) {
        const std::string next = std::to_string(seen ? std::stoi(*seen) + 1 : 1);
        const CompareSet result = store.compare_set("n", seen, next, soon()).wait();
        if (result.swapped) {
          break;
        }
        seen = result.now;
      }
    }
    store.barrier("counted", soon()).wait();
    CHECK(store.get("n", soon()).wait() == "80");
  });
}

TEST_CASE("compare_set says what there is where it does not set") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const CompareSet missing = store.compare_set("k", "x", "y", soon()).wait();
    CHECK_FALSE(missing.swapped);
    CHECK_FALSE(missing.now);
    CHECK_FALSE(store.try_get("k", soon()).wait());
    store.set("k", "", soon()).wait();
    const CompareSet empty = store.compare_set("k", std::nullopt, "y", soon()).wait();
    CHECK_FALSE(empty.swapped);
    CHECK(empty.now == "");
    CHECK(store.compare_set("k", "", "y", soon()).wait().swapped);
    CHECK(store.get("k", soon()).wait() == "y");
  });
}

TEST_CASE("an erased key is waited for again, and appended texts stand one after the other") {
  run_job(2, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const int rank = control_plane.membership().rank;
    CHECK(store.append("log", std::string(5, rank == 0 ? 'a' : 'b'), soon()).wait() % 5 == 0);
    store.barrier("appended", soon()).wait();
    const std::string log = store.get("log", soon()).wait();
    CHECK((log == "aaaaabbbbb" || log == "bbbbbaaaaa"));
    store.barrier("read", soon()).wait();
    if (rank == 0) {
      CHECK(store.erase("log", soon()).wait());
      CHECK_FALSE(store.erase("log", soon()).wait());
      CHECK_ERROR(store.get("log", shortly()).wait(), dtrain::Errc::timeout, "no rank set 'log'");
      store.barrier("erased", soon()).wait();
      store.set("log", "again", soon()).wait();
    } else {
      store.barrier("erased", soon()).wait();
    }
    CHECK(store.get("log", soon()).wait() == "again");
  });
}

TEST_CASE("many keys are set and got in one call each, whole or not at all") {
  run_job(2, [](ControlPlane& control_plane) {
    const Store store = control_plane.store().with_prefix("p/");
    if (control_plane.membership().rank == 0) {
      store.set_many({{"a", "1"}, {"b", std::string("\0", 1)}, {"c", ""}}, soon()).wait();
    }
    CHECK(store.get_many({"c", "a", "b", "a"}, soon()).wait() == Strings{"", "1", std::string("\0", 1), "1"});
    CHECK(control_plane.store().get("p/a", soon()).wait() == "1");
    CHECK(store.get_many({}, soon()).wait().empty());
    store.set_many({}, soon()).wait();
  });
}

TEST_CASE("what would not fit into one message is refused with the bound, on either side") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const std::string large(max_value_bytes, 'x');
    CHECK(sentence_of(dtrain::Errc::invalid_argument,
                      [&] {
                        store.set_many({{"a", large}, {"b", large}}, soon()).wait();
                      }) ==
          "setting key 'a' and 1 more: its keys and values have 2097154 bytes together; at most 1049600 are "
          "possible at once");
    CHECK_ERROR(store.compare_set("a", large, large, soon()).wait(), dtrain::Errc::invalid_argument,
                "2097153 bytes together");
    CHECK_ERROR(store.append("a", large + "x", soon()).wait(), dtrain::Errc::invalid_argument,
                "the value has 1048577 bytes; at most 1048576 are possible; split it over several keys, or send it "
                "by a");
    CHECK_ERROR(store.set_many({{"a", large + "x"}}, soon()).wait(), dtrain::Errc::invalid_argument,
                "a value has 1048577 bytes; at most 1048576 are possible; split it over");
    store.set_many({{std::string(max_key_bytes, 'k'), large}}, soon()).wait();
    store.set_many({{"b", large}}, soon()).wait();
    CHECK(store.get_many({"b"}, soon()).wait().front() == large);
    CHECK(sentence_of(dtrain::Errc::refused,
                      [&] {
                        store.get_many({"b", "b"}, soon()).wait();
                      }) ==
          "waiting for key 'b' and 1 more: the values of these 2 keys have 2097152 bytes; at most 1049600 are "
          "given at once; ask for fewer keys");
    CHECK(sentence_of(dtrain::Errc::refused, [&] { store.append("b", "x", soon()).wait(); }) ==
          "appending to key 'b': the value would have 1048577 bytes; at most 1048576 are possible; split it over "
          "several keys, or send "
          "it by a collective");
    store.set("c", "1", soon()).wait();
    CHECK(store.get_many(Strings(1024, "c"), soon()).wait() == Strings(1024, "1"));
  });
}

TEST_CASE("a call without a deadline takes as long as the store's timeout") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store().with_timeout(std::chrono::milliseconds(50)).with_prefix("t/");
    CHECK(store.timeout() == std::chrono::milliseconds(50));
    CHECK_ERROR(store.get("never").wait(), dtrain::Errc::timeout, "no rank set 't/never'");
    const auto work = [&](EventLoop&) -> Task<std::string> {
      co_await store.set("k", "v");
      std::string value = co_await store.get("k");
      co_return std::move(value);
    };
    CHECK(control_plane.control_thread().run_blocking(work, soon()) == "v");
    const auto wait = [&](EventLoop&) { return store.get("never"); };
    CHECK(sentence_of(dtrain::Errc::timeout, [&] {
            control_plane.control_thread().run_blocking(wait, soon());
          }).find("waiting for key 't/never': the deadline passed") == 0);
  });
}

TEST_CASE("with_deadline and when_all end waits of the store, and take their requests back") {
  Limits limits;
  limits.pending_requests = 4;
  StoreOptions options = StoreProcess::with_world_size(1);
  options.limits = limits;
  StoreProcess process(std::move(options));
  run_ranks(1, [&](int) {
    ControlPlane control_plane(rank_options(0, 1, process.port()));
    const Store store = control_plane.store();
    const auto work = [&](EventLoop& loop) -> Task<int> {
      int ended = 0;
      for (int round = 0; round < 20; ++round) {  // each leaves nothing pending, or the limit would be met
        Task<std::string> wait = store.get("never", soon());
        Task<std::optional<std::string>> limited =
            dtrain::async::with_deadline(loop, std::move(wait), Deadline::after(std::chrono::milliseconds(2)));
        const std::optional<std::string> value = co_await std::move(limited);
        ended += value ? 0 : 1;
        std::vector<Task<std::string>> both;
        both.push_back(store.get("never", soon()));
        both.push_back(store.get(std::string(max_key_bytes + 1, 'k'), soon()));  // throws at once
        Task<Strings> all = dtrain::async::when_all(loop, std::move(both), soon());
        try {
          const Strings values = co_await std::move(all);
        } catch (const dtrain::Error&) {
          ++ended;
        }
      }
      co_await store.set("still", "usable", soon());
      co_return ended;
    };
    CHECK(control_plane.control_thread().run_blocking(work, soon()) == 40);
    CHECK(control_plane.leave_blocking(soon()));
  });
}

TEST_CASE("many waits of one session for one key are answered in one write") {
  StoreProcess process(2);
  RawClient raw(process.port());
  run_ranks(1, [&](int) {
    std::jthread other([&] {
      CHECK(raw.enter(1, 2));
      CHECK(raw.receives<Accepted>());
      CHECK(raw.receives<Welcome>());
    });
    ControlPlane control_plane(rank_options(0, 2, process.port()));
    other.join();
    std::vector<std::byte> questions;
    for (std::uint64_t id = 1; id <= 500; ++id) {
      const RequestKind operation = id < 500 ? RequestKind::get : RequestKind::try_get;
      const std::vector<std::byte> frame = RawClient::framed(encode(Request{id, operation, {"k"}, {}, 0}));
      questions.insert(questions.end(), frame.begin(), frame.end());
    }
    CHECK(raw.send(questions));
    CHECK(raw.receives<Response>());  // to the last one, which does not wait: the store has read all
    control_plane.store().set("k", "v", soon()).wait();
    CHECK(raw.frames_of_one_read() == 499);
    CHECK(raw.send_frame(encode(Leave{})));
    CHECK(raw.receives<Left>());
    control_plane.leave_blocking(soon());
  });
}

TEST_CASE("a key with control characters is escaped in every sentence") {
  run_job(1, [](ControlPlane& control_plane) {
    const Store store = control_plane.store();
    const std::string text = sentence_of(dtrain::Errc::timeout, [&] { store.get("a\x1b[2Jb\n", shortly()).wait(); });
    CHECK(text.find("waiting for key 'a\\x1b[2Jb\\n': the deadline passed; no rank set 'a\\x1b[2Jb\\n' in the") == 0);
  });
}
