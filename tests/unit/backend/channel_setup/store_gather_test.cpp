// What the ranks of a channel exchange over the store, and how it ends where one fails or does not come.

#include "dtrain/backend/channel_setup/store_gather.hpp"

#include <sstream>

#include "dtrain/backend/channel_context.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::Error;
using dtrain::backend::store_all_gather;
using dtrain::backend::store_broadcast;
using dtrain::backend::store_gather;
using dtrain::backend::StoreRank;
using support::FakeStore;

StoreRank store_rank(const std::shared_ptr<FakeJob>& job, const RankThread& self,
                     std::chrono::nanoseconds timeout = 20s) {
  return StoreRank::of(support::channel_context(job, self.rank(), self.size(), "group", timeout),
                       Deadline::after(timeout), "comparing");
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts)
    all += text + ";";
  return all;
}

/// Checks that every rank's `call` throws an Error with this code, sentence and rank.
template <class Call>
void check_error_of_all(int ranks, std::error_code code, const std::string& sentence, int origin, Call call) {
  const auto job = std::make_shared<FakeJob>(ranks);
  std::atomic<int> right{0};
  run_thread_ranks(ranks, [&](RankThread& self) {
    const Error error = support::error_of([&] { call(store_rank(job, self)); });
    right += error.code() == code && error.what() == sentence && error.rank().value_or(origin) == origin ? 1 : 0;
  });
  CHECK(right == ranks);
  for (const char* key : {"text", "text/all", "text/1", "text/2"})
    CHECK_FALSE(FakeStore(job, 0).contains(key));
}

}  // namespace

TEST_CASE("every rank gets what rank 0 makes of all texts in rank order, and no key stays in the store") {
  for (const int ranks : {1, 2, 5}) {
    const auto job = std::make_shared<FakeJob>(ranks);
    std::atomic<int> right{0};
    run_thread_ranks(ranks, [&](RankThread& self) {
      const StoreRank rank = store_rank(job, self);
      const auto own = [&] { return std::string("!") + std::to_string(self.rank()) + std::string(1, '\0'); };
      std::string expected;
      for (int other = 0; other < ranks; ++other)
        expected += "!" + std::to_string(other) + std::string(1, '\0') + ";";
      right += store_gather(rank, "texts", own, joined) == expected ? 1 : 0;
      right += store_broadcast(rank, "text", own) == std::string("!0") + '\0' ? 1 : 0;
    });
    CHECK(right == 2 * ranks);
    for (const char* key : {"texts/all", "texts/1", "texts/2", "texts/3", "texts/4", "text"})
      CHECK_FALSE(FakeStore(job, 0).contains(key));
  }
}

TEST_CASE("every rank gets the values of all ranks in rank order, and malformed bytes are every rank's error") {
  const auto job = std::make_shared<FakeJob>(3);
  std::atomic<int> right{0};
  run_thread_ranks(3, [&](RankThread& self) {
    const StoreRank rank = store_rank(job, self);
    const auto squares = store_all_gather(
        rank, "square", [&] { return self.rank() * self.rank(); }, "a square");
    right += squares == std::vector<int>{0, 1, 4} ? 1 : 0;
  });
  CHECK(right == 3);
  const std::string sentence =
      "a square came as 'x', which ends too early (byte 0 of 1); do all ranks run the same program?";
  check_error_of_all(2, make_error_code(Errc::protocol), sentence, 0, [](const StoreRank& self) {
    if (self.rank == 0) {
      store_all_gather(
          self, "text", [] { return 1; }, "a square");
    } else {
      store_gather(
          self, "text", [] { return std::string("x"); }, [](const auto&) { return std::string(); });
    }
  });
}

TEST_CASE("an error of one rank is every rank's, with its code, sentence and rank") {
  const auto text = [] { return std::string("x"); };
  for (const std::error_code code :
       {std::error_code(EMFILE, std::generic_category()), make_error_code(Errc::out_of_memory)}) {
    const auto fail = [&]() -> std::string { throw Error(code, "no more sockets on rank"); };
    check_error_of_all(3, code, "no more sockets on rank", 0,
                       [&](const StoreRank& rank) { store_broadcast(rank, "text", fail); });
    check_error_of_all(3, code, "no more sockets on rank", 0, [&](const StoreRank& rank) {
      store_gather(rank, "text", text, [&](const auto&) { return fail(); });
    });
    check_error_of_all(3, code, "no more sockets on rank", 2, [&](const StoreRank& rank) {
      store_gather(
          rank, "text", [&] { return rank.rank == 2 ? fail() : text(); }, joined);
    });
  }
}

TEST_CASE("memory that one rank could not get is every rank's error, which names that rank") {
  const auto text = [] { return std::string("x"); };
  const auto fail = []() -> std::string { throw std::bad_alloc(); };
  check_error_of_all(2, make_error_code(Errc::limit), "comparing on rank 1 ended by std::bad_alloc", 1,
                     [&](const StoreRank& rank) {
                       store_gather(
                           rank, "text", [&] { return rank.rank == 1 ? fail() : text(); }, joined);
                     });
  check_error_of_all(3, make_error_code(Errc::limit), "comparing on rank 0 ended by std::bad_alloc", 0,
                     [&](const StoreRank& rank) { store_broadcast(rank, "text", fail); });
}

TEST_CASE("memory that a rank could not get when it opened a channel is the job's failure") {
  const auto job = std::make_shared<FakeJob>(2);
  const auto context = support::channel_context(job, 1, 2);
  const auto open = []() -> int { throw std::bad_alloc(); };
  CHECK_THROWS_AS(dtrain::backend::reporting_failure(context, open), std::bad_alloc);
  const dtrain::Cause cause = job->latch(0)->cause().value_or(dtrain::Cause{});
  CHECK(cause.kind == CauseKind::exception);
  CHECK(cause.rank == 1);
  CHECK(cause.host == "host-1");
  CHECK_CONTAINS(cause.text, "memory could not be had: std::bad_alloc");
}

/// Whether a line of `text` begins and ends so.
bool has_line(const std::string& text, std::string_view begin, std::string_view end) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(begin) && line.ends_with(end)) return true;
  }
  return false;
}

TEST_CASE("a rank that waits long for others names them in the log") {
  support::CapturedStderr captured;
  const auto job = std::make_shared<FakeJob>(4);
  std::atomic<bool> is_said{false};
  run_thread_ranks(4, [&](RankThread& self) {
    const Deadline deadline = Deadline::after(30s);
    while (self.rank() == 2 && !is_said && !deadline.passed()) {
      std::this_thread::sleep_for(1ms);
      is_said = has_line(captured.text(), "dtrain: rank 0: still waits in comparing, after ",
                         " s; not come so far: rank 2, rank 3") &&
                has_line(captured.text(), "dtrain: rank 1: still waits in comparing, after ",
                         " s; no result so far: rank 0, or a rank that it waits for, has not come");
    }
    while (self.rank() == 3 && !is_said && !deadline.passed())
      std::this_thread::sleep_for(1ms);
    StoreRank rank = store_rank(job, self, 40s);
    rank.notice_after = 100ms;
    store_gather(
        rank, "text", [] { return std::string("x"); }, joined);
  });
  CHECK(is_said);
}

/// A store that does not say in time whether a key is there.
struct SlowStore : FakeStore {
  using FakeStore::FakeStore;
  support::FinishedCall<std::optional<std::string>> try_get(const std::string&, Deadline) const {
    dtrain::throw_error(Errc::timeout, "the store did not answer", {});
  }
};

TEST_CASE("a store that does not say in time who has come ends no wait") {
  support::CapturedStderr captured;
  const auto job = std::make_shared<FakeJob>(4);
  std::atomic<int> right{0};
  run_thread_ranks(4, [&](RankThread& self) {
    StoreRank rank = store_rank(job, self, 40s);
    if (self.rank() == 0) {
      rank.store = SlowStore(job, 0);
      rank.notice_after = 50ms;
    }
    const Deadline deadline = Deadline::after(30s);
    while (self.rank() == 1 && !deadline.passed() &&
           captured.text().find("not come so far: rank 1 and maybe others\n") == std::string::npos) {
      std::this_thread::sleep_for(1ms);
    }
    const std::string all = store_gather(
        rank, "text", [] { return std::string("x"); }, joined);
    right += !deadline.passed() && all == "x;x;x;x;" ? 1 : 0;
  });
  CHECK(right == 4);
}

TEST_CASE("ranks that do not come are all named, also to the ranks that did") {
  const auto job = std::make_shared<FakeJob>(5);
  std::atomic<int> named{0};
  run_thread_ranks(5, [&](RankThread& self) {
    if (self.rank() == 1 || self.rank() == 4) return;
    const auto text = [] { return std::string("x"); };
    const Error error = support::error_of([&] { store_gather(store_rank(job, self, 2s), "text", text, joined); });
    const std::string sentence = "comparing: rank 1, rank 4 did not come by the deadline";
    named += error.code() == Errc::timeout ? 1 : 0;
    named += error.what() == sentence ? 1 : 0;
  });
  CHECK(named == 6);
}

TEST_CASE("a rank that gets no result says that rank 0, or one for which it waits, has not come") {
  const auto job = std::make_shared<FakeJob>(3);
  std::string sentence;
  run_thread_ranks(3, [&](RankThread& self) {
    if (self.rank() != 2) return;
    const auto text = [] { return std::string("x"); };
    sentence = support::error_of([&] { store_gather(store_rank(job, self, 10ms), "text", text, joined); }).what();
  });
  CHECK(sentence ==
        "comparing: the deadline passed; no result so far: rank 0, or a rank that it waits for, has not come");
}

TEST_CASE("who waits for a text hears the job's first cause") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(1, [&](RankThread&) {
    const RankThread second(1, 2);
    job->fail({dtrain::CauseKind::lost, 0, "elsewhere", "its connection closed"});
    CHECK_THROWS_AS(store_broadcast(store_rank(job, second), "text", [] { return std::string(); }), dtrain::PeerLost);
  });
}

TEST_CASE("what another program has written under a key is refused") {
  for (const char* text : {"", "x", "!", "!d", "!d0 1 x", "!d-3 1 x", "!q3 1 x", "!p99999999999999999999 1 x"}) {
    CAPTURE(text);
    const auto job = std::make_shared<FakeJob>(2);
    FakeStore(job, 0).set("text", text).wait();
    const RankThread second(1, 2);
    CHECK_THROWS_WITH_AS(store_broadcast(store_rank(job, second), "text", [] { return std::string(); }),
                         doctest::Contains("do all ranks run the same program?"), Error);
  }
}
