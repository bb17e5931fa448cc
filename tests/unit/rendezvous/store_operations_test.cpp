#include <doctest/doctest.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/when_all.hpp"
#include "dtrain/async/with_deadline.hpp"
#include "dtrain/rendezvous/store.hpp"
#include "raw_client.hpp"
#include "store_job.hpp"

using namespace rendezvous_test;
using dtrain::async::EventLoop;
using dtrain::async::Task;

namespace {

using Strings = std::vector<std::string>;

}  // namespace

TEST_CASE("exactly one of many ranks wins a compare_set, and the others see its value") {
  std::atomic<int> winners{0};
  run_job(4, [&](Participant& participant) {
    const Store store = participant.store();
    const std::string mine = std::to_string(participant.membership().rank);
    const CompareSet first = store.compare_set_blocking("leader", std::nullopt, mine, soon());
    winners += first.swapped ? 1 : 0;
    REQUIRE(first.now);
    CHECK((*first.now == mine) == first.swapped);
    CHECK(store.get_blocking("leader", soon()) == first.now);
  });
  CHECK(winners == 1);
}

TEST_CASE("compare_set counts as atomically as add does") {
  run_job(4, [](Participant& participant) {
    const Store store = participant.store();
    for (int i = 0; i < 20; ++i) {
      std::optional<std::string> seen = store.try_get_blocking("n", soon());
      for (;;) {
        const std::string next = std::to_string(seen ? std::stoi(*seen) + 1 : 1);
        const CompareSet result = store.compare_set_blocking("n", seen, next, soon());
        if (result.swapped) {
          break;
        }
        seen = result.now;
      }
    }
    store.barrier_blocking("counted", soon());
    CHECK(store.get_blocking("n", soon()) == "80");
  });
}

TEST_CASE("compare_set says what there is where it does not set") {
  run_job(1, [](Participant& participant) {
    const Store store = participant.store();
    const CompareSet missing = store.compare_set_blocking("k", "x", "y", soon());
    CHECK_FALSE(missing.swapped);
    CHECK_FALSE(missing.now);
    CHECK_FALSE(store.try_get_blocking("k", soon()));
    store.set_blocking("k", "", soon());
    const CompareSet empty = store.compare_set_blocking("k", std::nullopt, "y", soon());
    CHECK_FALSE(empty.swapped);
    CHECK(empty.now == "");
    CHECK(store.compare_set_blocking("k", "", "y", soon()).swapped);
    CHECK(store.get_blocking("k", soon()) == "y");
  });
}

TEST_CASE("an erased key is waited for again, and appended texts stand one after the other") {
  run_job(2, [](Participant& participant) {
    const Store store = participant.store();
    const int rank = participant.membership().rank;
    CHECK(store.append_blocking("log", std::string(5, rank == 0 ? 'a' : 'b'), soon()) % 5 == 0);
    store.barrier_blocking("appended", soon());
    const std::string log = store.get_blocking("log", soon());
    CHECK((log == "aaaaabbbbb" || log == "bbbbbaaaaa"));
    store.barrier_blocking("read", soon());
    if (rank == 0) {
      CHECK(store.erase_blocking("log", soon()));
      CHECK_FALSE(store.erase_blocking("log", soon()));
      CHECK(error_of(dtrain::Errc::timeout, [&] { store.get_blocking("log", shortly()); }).find("no rank set 'log'") !=
            std::string::npos);
      store.barrier_blocking("erased", soon());
      store.set_blocking("log", "again", soon());
    } else {
      store.barrier_blocking("erased", soon());
    }
    CHECK(store.get_blocking("log", soon()) == "again");
  });
}

TEST_CASE("many keys are set and got in one call each, whole or not at all") {
  run_job(2, [](Participant& participant) {
    const Store store = participant.store().with_prefix("p/");
    if (participant.membership().rank == 0) {
      store.set_many_blocking({{"a", "1"}, {"b", std::string("\0", 1)}, {"c", ""}}, soon());
    }
    CHECK(store.get_many_blocking({"c", "a", "b", "a"}, soon()) == Strings{"", "1", std::string("\0", 1), "1"});
    CHECK(participant.store().get_blocking("p/a", soon()) == "1");
    CHECK(store.get_many_blocking({}, soon()).empty());
    store.set_many_blocking({}, soon());
  });
}

TEST_CASE("what would not fit into one message is refused with the bound, on either side") {
  run_job(1, [](Participant& participant) {
    const Store store = participant.store();
    const std::string large(max_value_bytes, 'x');
    CHECK(error_of(dtrain::Errc::invalid_argument,
                   [&] {
                     store.set_many_blocking({{"a", large}, {"b", large}}, soon());
                   }) ==
          "setting key 'a' and 1 more: its keys and values have 2097154 bytes together; at most 1049600 are "
          "possible at once");
    CHECK(error_of(dtrain::Errc::invalid_argument, [&] {
            store.compare_set_blocking("a", large, large, soon());
          }).find("2097153 bytes together") != std::string::npos);
    CHECK(error_of(dtrain::Errc::invalid_argument, [&] {
            store.append_blocking("a", large + "x", soon());
          }).find("the value has 1048577 bytes; at most 1048576") != std::string::npos);
    CHECK(error_of(dtrain::Errc::invalid_argument, [&] {
            store.set_many_blocking({{"a", large + "x"}}, soon());
          }).find("a value has 1048577 bytes") != std::string::npos);
    store.set_many_blocking({{std::string(max_key_bytes, 'k'), large}}, soon());
    store.set_many_blocking({{"b", large}}, soon());
    CHECK(store.get_many_blocking({"b"}, soon()).front() == large);
    CHECK(error_of(dtrain::Errc::refused,
                   [&] {
                     store.get_many_blocking({"b", "b"}, soon());
                   }) ==
          "waiting for key 'b' and 1 more: the values of these 2 keys have 2097152 bytes; at most 1049600 are "
          "given at once; ask for fewer keys");
    CHECK(error_of(dtrain::Errc::refused, [&] { store.append_blocking("b", "x", soon()); }) ==
          "appending to key 'b': the value would have 1048577 bytes; at most 1048576 are possible");
    store.set_blocking("c", "1", soon());
    CHECK(store.get_many_blocking(Strings(1024, "c"), soon()) == Strings(1024, "1"));
  });
}

TEST_CASE("a call without a deadline takes as long as the store's timeout") {
  run_job(1, [](Participant& participant) {
    const Store store = participant.store().with_timeout(std::chrono::milliseconds(50)).with_prefix("t/");
    CHECK(store.timeout() == std::chrono::milliseconds(50));
    CHECK(error_of(dtrain::Errc::timeout, [&] { store.get_blocking("never"); }).find("no rank set 't/never'") !=
          std::string::npos);
    const auto work = [&](EventLoop&) -> Task<std::string> {
      co_await store.set("k", "v");
      std::string value = co_await store.get("k");
      co_return std::move(value);
    };
    CHECK(participant.control_thread().run_blocking(work, soon()) == "v");
    const auto wait = [&](EventLoop&) { return store.get("never"); };
    CHECK(error_of(dtrain::Errc::timeout, [&] {
            participant.control_thread().run_blocking(wait, soon());
          }).find("waiting for key 't/never': the deadline passed") == 0);
  });
}

TEST_CASE("with_deadline and when_all end waits of the store, and take their requests back") {
  Limits limits;
  limits.pending_requests = 4;
  StoreOptions options = StoreProcess::with_world_size(1);
  options.limits = limits;
  StoreProcess process(std::move(options));
  const auto errors = on_ranks(1, [&](int) {
    Participant participant(rank_options(0, 1, process.port()));
    const Store store = participant.store();
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
    CHECK(participant.control_thread().run_blocking(work, soon()) == 40);
    CHECK(participant.leave_blocking(soon()));
  });
  CHECK(errors == Strings(1));
}

TEST_CASE("many waits of one session for one key are answered in one write") {
  StoreProcess process(2);
  RawClient raw(process.port());
  const auto errors = on_ranks(1, [&](int) {
    std::jthread other([&] {
      CHECK(raw.enter(1, 2));
      CHECK(raw.receives<Accepted>());
      CHECK(raw.receives<Welcome>());
    });
    Participant participant(rank_options(0, 2, process.port()));
    other.join();
    std::vector<std::byte> questions;
    for (std::uint64_t id = 1; id <= 500; ++id) {
      const Operation operation = id < 500 ? Operation::get : Operation::try_get;
      const std::vector<std::byte> frame = RawClient::framed(encode(Request{id, operation, {"k"}, {}, 0}));
      questions.insert(questions.end(), frame.begin(), frame.end());
    }
    CHECK(raw.send(questions));
    CHECK(raw.receives<Response>());  // to the last one, which does not wait: the store has read all
    participant.store().set_blocking("k", "v", soon());
    CHECK(raw.frames_of_one_read() == 499);
    CHECK(raw.send_frame(encode(Leave{})));
    CHECK(raw.receives<Left>());
    participant.leave_blocking(soon());
  });
  CHECK(errors == Strings(1));
}

TEST_CASE("a key with control characters is escaped in every sentence") {
  run_job(1, [](Participant& participant) {
    const Store store = participant.store();
    const std::string text = error_of(dtrain::Errc::timeout, [&] { store.get_blocking("a\x1b[2Jb\n", shortly()); });
    CHECK(text.find("waiting for key 'a\\x1b[2Jb\\n': the deadline passed; no rank set 'a\\x1b[2Jb\\n' in the") == 0);
  });
}
