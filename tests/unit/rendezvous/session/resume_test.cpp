// ctest: TIMEOUT 120
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/name_service.hpp"
#include "unit/rendezvous/proxied_ranks.hpp"
#include "unit/rendezvous/raw_client.hpp"

using namespace rendezvous_test;
using dtrain_test::CuttingProxy;

namespace {

StoreOptions patient(int world_size) {
  StoreOptions options = StoreProcess::with_world_size(world_size);
  options.limits.reconnect_window = std::chrono::seconds(20);
  return options;
}

/// Breaks what goes through a proxy again and again, on a thread, while it exists: less often after a time in which
/// nothing was done, so that a slow machine comes to an end, too.
class Cutter {
 public:
  /// @param pause gives the time to the next break on a fast machine
  template <class Pause>
  Cutter(CuttingProxy& proxy, Pause pause)
      : thread_([this, &proxy, pause](const std::stop_token& stop) mutable {
          int before = 0;
          for (int i = 0, slowness = 1; !stop.stop_requested(); ++i) {
            std::this_thread::sleep_for(slowness * pause());
            proxy.cut(i % 2 == 0 ? CuttingProxy::How::reset : CuttingProxy::How::end);
            const int now = done_.load();
            slowness = now == before ? std::min(2 * slowness, 100) : std::max(slowness / 2, 1);
            before = now;
          }
        }) {}

  /// Something was done.
  void note_done() { ++done_; }

 private:
  std::atomic<int> done_{0};
  std::jthread thread_;  ///< last: it ends before what it uses
};

}  // namespace

TEST_CASE("a session outlives its connections: each request counts once, and no answer is lost") {
  StoreOptions store_options = patient(2);
  store_options.secret = Secret::of("0123456789abcdef", "a test");
  StoreProcess store(store_options);
  CuttingProxy proxy(store.port());
  constexpr int requests = 300;
  const auto errors = on_ranks(2, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 2, rank == 1 ? proxy.port() : store.port());
    options.secret = store_options.secret;
    ControlPlane control_plane(options);
    if (rank == 1) {
      Cutter cutter(proxy, [random = std::mt19937(5)]() mutable { return std::chrono::milliseconds(random() % 10); });
      for (int i = 1; i <= requests; ++i) {
        if (control_plane.store().add("sum", 1, soon()).wait() != i) {
          throw std::runtime_error("a request was lost or counted twice");
        }
        cutter.note_done();
      }
    }
    control_plane.store().barrier("done", soon()).wait();
    if (control_plane.store().get("sum", soon()).wait() != std::to_string(requests)) {
      throw std::runtime_error("a wrong sum");
    }
    control_plane.leave_blocking(soon());
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(proxy.accepted() > 2);
  CHECK(store.all_left(soon()));
}

TEST_CASE("large values come whole over a connection that keeps breaking") {
  StoreProcess store(patient(2));
  CuttingProxy proxy(store.port());
  const auto errors = on_ranks(2, [&](int rank) {
    ControlPlane control_plane(rank_options(rank, 2, rank == 1 ? proxy.port() : store.port()));
    if (rank == 0) {
      for (int i = 0; i < 20; ++i) {
        control_plane.store()
            .set("k" + std::to_string(i), std::string(300000, static_cast<char>('a' + i)), soon())
            .wait();
      }
    } else {
      Cutter cutter(proxy, [] { return std::chrono::milliseconds(15); });
      for (int i = 0; i < 20; ++i) {
        const std::string value = control_plane.store().get("k" + std::to_string(i), soon()).wait();
        if (value != std::string(300000, static_cast<char>('a' + i))) {
          throw std::runtime_error("value " + std::to_string(i) + " came wrong");
        }
        cutter.note_done();
      }
    }
    control_plane.leave_blocking(soon());
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(proxy.accepted() > 1);
}

namespace {

dtrain::async::Task<void> set_one(Store store, std::string key, int& done) {
  co_await store.set(std::move(key), std::string(1'000'000, 'y'), soon());
  ++done;
}

dtrain::async::Task<void> get_one(Store store, std::string key, int& done) {
  const std::string value = co_await store.get(std::move(key), soon());
  done += value == std::string(1'000'000, 'x') ? 1 : 0;
}

/// Requests of a rank, each of which carries a value of 1 MB.
struct LargeRequests {
  /// `count` of them: values to the store, or values from there that do not exist yet.
  void start(ControlPlane& rank, bool is_up, int count) {
    const auto spawn = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
      for (int i = 0; i < count; ++i) {
        dtrain::async::Task<void> one =
            is_up ? set_one(rank.store(), "up" + std::to_string(i), done) : get_one(rank.store(), "down", done);
        tasks.push_back(loop.spawn(std::move(one), [this](const std::exception_ptr&) { ++failed; }));
      }
      co_return;
    };
    rank.control_thread().run_blocking(spawn, soon());
  }

  /// Until all have come to an end. @returns how many did what they should
  int finish(ControlPlane& rank, int count) {
    const auto wait = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
      while (done + failed < count) {
        co_await loop.sleep_for(std::chrono::milliseconds(1));
      }
      tasks.clear();
    };
    rank.control_thread().run_blocking(wait, soon());
    return done;
  }

  int done = 0;
  int failed = 0;
  std::vector<dtrain::async::TaskHandle> tasks;
};

}  // namespace

TEST_CASE("no request is lost, however much is on its way when the connection breaks") {
  constexpr int count = 12;
  for (const bool is_up : {true, false}) {
    CAPTURE(is_up);
    StoreProcess store(patient(2));
    CuttingProxy proxy(store.port());
    const auto ranks = two_ranks(store, proxy);
    LargeRequests requests;
    if (is_up) {
      proxy.hold(true);
      requests.start(*ranks[1], is_up, count);
    } else {
      requests.start(*ranks[1], is_up, count);
      ranks[1]->store().set("the store has heard them", "", soon()).wait();
      proxy.hold(true);
      ranks[0]->store().set("down", std::string(1'000'000, 'x'), soon()).wait();
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the sockets take what they can
    proxy.cut(CuttingProxy::How::reset);
    proxy.hold(false);
    CHECK(requests.finish(*ranks[1], count) == count);
    CHECK(ranks[1]->store().try_get("up11", soon()).wait().has_value() == is_up);
    CHECK_FALSE(ranks[0]->failure()->failed());
    CHECK_FALSE(ranks[1]->failure()->failed());
  }
}

TEST_CASE("a session goes on at the address that was good, though the name service is slow just then") {
  support::NameService& names = support::NameService::get();
  names.reset();
  names.set_address("127.0.0.1");
  StoreOptions options = StoreProcess::with_world_size(1);
  options.limits.reconnect_window = std::chrono::seconds(4);
  StoreProcess store(options);
  CuttingProxy proxy(store.port());
  ControlPlaneOptions rank = rank_options(0, 1, proxy.port());
  rank.identity.master_addr = "store.test";
  ControlPlane control_plane(rank);
  names.hold(true);
  const int asked = names.asked();
  for (int i = 1; i <= 3; ++i) {
    proxy.cut(i == 2 ? CuttingProxy::How::end : CuttingProxy::How::reset);
    CHECK_NOTHROW(CHECK(control_plane.store().add("sum", 1, soon()).wait() == i));
  }
  CHECK(names.asked() == asked);
  CHECK(proxy.accepted() > 1);
  names.hold(false);
}

TEST_CASE("a session goes on where its store's name leads by now, if the address that was good is not any more") {
  support::NameService& names = support::NameService::get();
  names.reset();
  names.set_address("127.0.0.1");
  StoreProcess store(patient(1));
  CuttingProxy first(store.port());
  CuttingProxy second(store.port(), first.port(), 2);
  ControlPlaneOptions rank = rank_options(0, 1, first.port());
  rank.identity.master_addr = "store.test";
  ControlPlane control_plane(rank);
  names.set_address("127.0.0.2");
  first.refuse(true);
  first.cut(CuttingProxy::How::reset);
  CHECK(control_plane.store().add("sum", 1, soon()).wait() == 1);
  CHECK(second.accepted() == 1);
}

TEST_CASE(
    "a rank that does not come back within the reconnect window is lost, and gets the error that its session is over "
    "when it does") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.reconnect_window = std::chrono::milliseconds(200);
  StoreProcess store(options);
  CuttingProxy proxy(store.port());
  const auto ranks = two_ranks(store, proxy);
  proxy.refuse(true);
  proxy.cut(CuttingProxy::How::reset);
  const std::string of_others = cause_of(*ranks[0]->failure());
  CAPTURE(of_others);
  CHECK(of_others.find("rank 1 on host ") == 0);
  CHECK(of_others.find(" was lost: its process ended, or its connection broke, before it left the job") !=
        std::string::npos);
  const std::string own = cause_of(*ranks[1]->failure());
  CAPTURE(own);
  CHECK(own.find("the store of the job at 127.0.0.1:") != std::string::npos);
}

TEST_CASE("a token that is guessed, old or another's is refused") {
  StoreProcess store(patient(2));
  RawClient first(store.port());
  REQUIRE(first.enter(1, 2));
  const auto accepted = first.receive();
  REQUIRE(accepted);
  SessionToken token = std::get<Accepted>(*accepted).token;
  for (int wrong = 0; wrong < 2; ++wrong) {
    SessionToken guessed = token;
    (wrong == 0 ? guessed.key.back() : guessed.key.front()) ^= std::byte{1};
    guessed.session += static_cast<std::uint64_t>(wrong);
    RawClient replaying(store.port());
    replaying.send_frame(encode(RawClient::hello()));
    replaying.send_frame(encode(Resume{guessed, 0, {}}));
    const auto answer = replaying.receive();
    REQUIRE(answer);
    CHECK(std::get<Refused>(*answer).sentence.find("this session is over") == 0);
  }
  RawClient again(store.port());
  again.send_frame(encode(RawClient::hello()));
  again.send_frame(encode(Resume{token, 0, {}}));
  CHECK(again.receives<Accepted>());
  CHECK(first.is_closed());  // the session has one connection
  RawClient liar(store.port());
  liar.send_frame(encode(RawClient::hello()));
  liar.send_frame(encode(Resume{token, 1000, {}}));  // frames that were never sent
  CHECK(liar.is_closed());
}

TEST_CASE("a rank that says nothing is lost after the liveness time, though its connection stands") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.liveness = std::chrono::milliseconds(400);
  StoreProcess store(options);
  RawClient silent(store.port());
  REQUIRE(silent.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  const std::string cause = cause_of(*control_plane.failure());
  CAPTURE(cause);
  CHECK(cause.find("rank 1 on host raw-host was lost: it has sent nothing for 0.4 s") == 0);
}

TEST_CASE("a rank that was silent before its connection ended is said to have been silent") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.liveness = std::chrono::milliseconds(4000);
  StoreProcess store(options);
  RawClient starved(store.port());
  REQUIRE(starved.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  std::this_thread::sleep_for(std::chrono::milliseconds(3000));  // above half the liveness time, or all of it
  starved.close();
  const std::string cause = cause_of(*control_plane.failure());
  CAPTURE(cause);
  CHECK(cause.find("rank 1 on host raw-host was lost: it has sent nothing for ") == 0);
  CHECK(cause.find("too little processor time") != std::string::npos);
  CHECK(cause.find("DTRAIN_LIVENESS_SECONDS") != std::string::npos);
  CHECK(cause.find("its process ended") == std::string::npos);
}

TEST_CASE("ranks that only wait are not silent") {
  const auto stay = [](std::chrono::milliseconds liveness) {
    StoreOptions options = StoreProcess::with_world_size(3);
    options.limits.liveness = liveness;
    StoreProcess store(options);
    const auto errors = on_ranks(3, [&](int rank) {
      ControlPlane control_plane(rank_options(rank, 3, store.port()));
      std::this_thread::sleep_for(liveness * 5 / 2);
      control_plane.store().barrier("after", soon()).wait();
      control_plane.leave_blocking(soon());
    });
    return errors == std::vector<std::string>(3);
  };
  const bool stayed = stay(std::chrono::seconds(1)) || stay(std::chrono::seconds(5));  // a thread did not run
  CHECK(stayed);
}

TEST_CASE("a path that loses everything is noticed by both sides") {
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.liveness = std::chrono::milliseconds(400);
  StoreProcess store(options);
  CuttingProxy proxy(store.port());
  const auto ranks = two_ranks(store, proxy);
  proxy.hold(true);
  CHECK(cause_of(*ranks[0]->failure()).find("was lost: it has sent nothing for 0.4 s") != std::string::npos);
  CHECK(cause_of(*ranks[1]->failure()).find("went away") != std::string::npos);
  proxy.hold(false);
}
