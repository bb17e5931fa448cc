// ctest: TIMEOUT 120
#include "unit/rendezvous/prelude.hpp"

using dtrain_test::CuttingProxy;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

dtrain::async::Task<void> get_one(Store store, std::string key, int& done) {
  const std::string value = co_await store.get(std::move(key), soon());
  done += value.size() == mebibyte ? 1 : 0;
}

dtrain::async::Task<void> set_one(Store store, std::string key, int& done) {
  co_await store.set(std::move(key), std::string(mebibyte, 'y'), soon());
  ++done;
}

/// Many large values in both directions at once.
dtrain::async::Task<void> exchange_many(dtrain::async::EventLoop& loop, Store store, int values) {
  int done = 0;
  bool failed = false;
  std::vector<dtrain::async::TaskHandle> tasks;
  const auto note = [&failed](const std::exception_ptr&) { failed = true; };
  for (int i = 0; i < values; ++i) {
    tasks.push_back(loop.spawn(get_one(store, "there", done), note));
    tasks.push_back(loop.spawn(set_one(store, "new" + std::to_string(i), done), note));
  }
  while (done < 2 * values && !failed) {
    co_await loop.sleep_for(std::chrono::milliseconds(5));
  }
  if (failed) {
    throw std::runtime_error("a request failed");
  }
}

}  // namespace

TEST_CASE("large values that go both ways at once do not wait for each other") {
  StoreProcess store(1);
  ControlPlane control_plane(rank_options(0, 1, store.port()));
  control_plane.store().set("there", std::string(mebibyte, 'x'), soon()).wait();
  const auto many = [&](dtrain::async::EventLoop& loop) { return exchange_many(loop, control_plane.store(), 40); };
  CHECK_NOTHROW(control_plane.control_thread().run_blocking(many, soon()));
  CHECK(cause_of(*control_plane.failure(), Deadline::after(std::chrono::milliseconds(0))).empty());
  CHECK(control_plane.leave_blocking(soon()));
}

namespace {

/// Whether a job is well after one of its ranks has read its answers slowly, for that time.
bool outlives_slow_reading(std::chrono::milliseconds liveness, std::chrono::milliseconds reading) {
  StoreProcess store(2, [&](StoreOptions& options) { options.limits.liveness = liveness; });
  RawClient slow(store.port());
  REQUIRE(slow.enter(1, 2));
  ControlPlane control_plane(rank_options(0, 2, store.port()));
  for (std::uint64_t id = 1; id <= 30; ++id) {
    Request get;
    get.id = id;
    get.kind = id < 30 ? RequestKind::get : RequestKind::try_get;
    get.keys = {"large"};
    REQUIRE(slow.send_frame(encode(std::move(get))));
  }
  REQUIRE(slow.receives<Accepted>());
  REQUIRE(slow.receives<Welcome>());
  REQUIRE(slow.receives<Response>());  // so it waits for the others, whose answers then come all at once
  try {
    control_plane.store().set("large", std::string(mebibyte, 'x'), soon()).wait();
  } catch (const dtrain::PeerLost&) {
    return false;
  }
  const Deadline deadline = Deadline::after(reading);
  for (int i = 0; !deadline.passed(); ++i) {  // fewer reads than the 464 that there is something for
    static_cast<void>(slow.frames_of_one_read());
    if (i % 8 == 0 && !slow.send_heartbeat()) {
      return false;
    }
    std::this_thread::sleep_for(reading / 400);
  }
  return !control_plane.failure()->failed();
}

}  // namespace

TEST_CASE("a rank that reads its answers slowly is not silent") {
  using std::chrono::milliseconds;
  if (support::is_sanitized) {  // which makes the store's loop slow
    const bool outlives = outlives_slow_reading(milliseconds(5000), milliseconds(12000)) ||
                          outlives_slow_reading(milliseconds(15000), milliseconds(32000));
    CHECK(outlives);
  } else {
    const bool outlives = outlives_slow_reading(milliseconds(1500), milliseconds(4000)) ||
                          outlives_slow_reading(milliseconds(6000), milliseconds(16000));  // a thread did not run
    CHECK(outlives);
  }
}

namespace {

/// Whether a job is well after a value has gone between a rank and the store, slowly: longer than the liveness time.
bool outlives_slow_connection(bool is_up, std::chrono::milliseconds liveness, std::chrono::milliseconds pause) {
  StoreProcess store(2, [&](StoreOptions& options) { options.limits.liveness = liveness; });
  CuttingProxy proxy(store.port());
  const auto ranks = two_ranks(store, proxy);
  proxy.throttle(pause);
  const std::string large(mebibyte - 100, 'x');
  try {
    ranks[is_up ? 1 : 0]->store().set("large", large, soon()).wait();
    const bool is_whole = ranks[is_up ? 0 : 1]->store().get("large", soon()).wait() == large;
    return is_whole && !ranks[0]->failure()->failed() && !ranks[1]->failure()->failed();
  } catch (const dtrain::JobFailed&) {
    return false;
  }
}

}  // namespace

TEST_CASE("a value that is longer on its way than the liveness time is a sign of life, to the store and from it") {
  using std::chrono::milliseconds;
  for (const bool is_up : {true, false}) {
    CAPTURE(is_up);  // 256 pauses are three times the liveness time; the second try is for a thread that did not run
    const bool outlives = outlives_slow_connection(is_up, milliseconds(400), milliseconds(5)) ||
                          outlives_slow_connection(is_up, milliseconds(3000), milliseconds(35));
    CHECK(outlives);
  }
}

namespace {

/// As rank 1 of 2 in this process would join.
Join join_of_this_process() {
  Join join = RawClient::join(1, 2);
  join.info.host_id = host_identity(std::nullopt).id;
  join.process = static_cast<std::int64_t>(::getpid());
  return join;
}

}  // namespace

TEST_CASE("a rank whose connection broke before it heard that it is in comes again and is let in") {
  StoreProcess store(2, [](StoreOptions& options) { options.limits.rejoin = std::chrono::seconds(20); });
  {
    RawClient broken(store.port());
    REQUIRE(broken.enter(join_of_this_process()));
    REQUIRE(broken.receives<Accepted>());  // it never gets to see it
  }
  run_ranks(2, [&](int rank) { join_and_leave(rank_options(rank, 2, store.port())); });
}

TEST_CASE(
    "a rank that comes again receives what was sent to its first connection: that all have joined, or the cause") {
  for (const bool has_failed : {false, true}) {
    StoreProcess store(2, [](StoreOptions& options) { options.limits.rejoin = std::chrono::seconds(20); });
    const Cause cause{CauseKind::exception, 0, "host-a", "the loss is not a number"};
    const auto errors = on_ranks(2, [&](int rank) {
      if (rank == 1) {
        RawClient broken(store.port());
        if (!broken.enter(join_of_this_process()) || !broken.receives<Accepted>() || !broken.receives<Welcome>()) {
          throw std::runtime_error("its first connection was not welcome");
        }
        if (has_failed) {
          store.post_failure(cause);
        }
      }
      join_and_leave(rank_options(rank, 2, store.port()));
    });
    CHECK(errors == std::vector<std::string>(2, has_failed ? cause.sentence() : ""));
  }
}

TEST_CASE("another process does not get the seat of one whose connection broke") {
  StoreProcess store(2, [](StoreOptions& options) { options.limits.rejoin = std::chrono::seconds(20); });
  RawClient first(store.port());
  REQUIRE(first.enter(1, 2));
  REQUIRE(first.receives<Accepted>());
  Join other = RawClient::join(1, 2);
  for (int same_process = 0; same_process < 2; ++same_process) {  // while the first is connected, nobody does
    RawClient second(store.port());
    other.process = 1 - same_process;
    REQUIRE(second.enter(other));
    CHECK(second.receives<Refused>());
  }
  first.close();
  RawClient third(store.port());
  other.process = 1;
  REQUIRE(third.enter(other));
  CHECK(third.receives<Refused>());
}

TEST_CASE("a store that is slow to answer a Join is not left for the next port") {
  StoreOptions options = StoreProcess::with_world_size(1);
  options.job.job = "slow";
  options.job.on_joined = [](int, const std::string&) { std::this_thread::sleep_for(std::chrono::milliseconds(1200)); };
  StoreProcess store(options);
  ControlPlaneOptions rank = rank_options(0, 1, store.port());
  rank.identity.job = "slow";
  rank.master_ports = 2;
  ControlPlane control_plane(rank);
  CHECK(control_plane.leave_blocking(soon()));
}

TEST_CASE("a rank that the job fails over learns so at once, also where the store may be at several ports") {
  StoreProcess store(2, [](StoreOptions& options) { options.job.job = "some"; });
  ControlPlaneOptions rank = rank_options(1, 3, store.port());
  rank.identity.job = "some";
  rank.master_ports = 2;
  rank.timeout = std::chrono::seconds(15);
  const std::string sentence = error_of_joining(rank);
  CHECK_CONTAINS(sentence, "says that the world has 3 ranks");
  CHECK(!contains(sentence, "the deadline passed"));
}

TEST_CASE("a liveness time that is longer than its fields can say is cut, not wrapped around") {
  for (const std::int64_t milliseconds : {std::int64_t{3'000'000'000}, std::int64_t{4'294'967'296}}) {
    StoreProcess store(
        1, [&](StoreOptions& options) { options.limits.liveness = std::chrono::milliseconds(milliseconds); });
    ControlPlaneOptions rank = rank_options(0, 1, store.port());
    rank.timeout = std::chrono::seconds(5);
    ControlPlane control_plane(rank);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    control_plane.store().set("a", "b", soon()).wait();
    CHECK(control_plane.leave_blocking(soon()));
  }
}
