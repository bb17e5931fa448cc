#include "dtrain/rendezvous/server/port_conflict.hpp"

#include <doctest/doctest.h>

#include <chrono>
#include <semaphore>
#include <string>
#include <thread>

#include "unit/rendezvous/store_fixture.hpp"

using namespace rendezvous_test;

namespace {

std::uint16_t free_port() {
  const StoreProcess probe(1);
  return probe.port();  // free in a moment
}

/// Rank 0 of 2, which opens the store. Two such in one process are told apart by their hosts' ids.
ControlPlaneOptions opener(std::uint16_t port, const std::string& host_id, const std::string& job = {}) {
  ControlPlaneOptions options = rank_options(0, 2, port);
  options.hosts_store = true;
  options.host_id = host_id;
  options.identity.job = job;
  return options;
}

std::string error_of_opening(const ControlPlaneOptions& options) {
  return on_ranks(1, [&](int) { const ControlPlane control_plane(options); }).front();
}

/// Waits until somebody listens there, without a word to a store.
void wait_for_store(std::uint16_t port) {
  dtrain::async::LoopThread thread;
  const auto connect = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
    const dtrain::net::Connection connection =
        co_await dtrain::net::connect_with_backoff(loop, "127.0.0.1", port, soon());
  };
  thread.run_blocking(connect, soon());
}

}  // namespace

TEST_CASE("a second rank 0 at the port of a job that forms ends that job, and itself, with both hosts") {
  const std::uint16_t port = free_port();
  std::string first;
  std::jthread forming([&] { first = error_of_opening(opener(port, "a")); });
  wait_for_store(port);
  const std::string second = error_of_opening(opener(port, "b"));
  forming.join();
  CAPTURE(first);
  CAPTURE(second);
  CHECK(first.find("ranks disagree: rank 0 on host ") == 0);
  CHECK(first.find(" claims a place that rank 0 on host ") != std::string::npos);
  CHECK(first.find(", while the job forms: two jobs have met at one port, or a rank was given twice; give each job a "
                   "port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its own") != std::string::npos);
  CHECK(second.find("port " + std::to_string(port) +
                    " on 127.0.0.1 is in use by another program, or by another rank "
                    "0") == 0);
  CHECK(second.find("; the store of dtrain's there says: ranks disagree: rank 0 on host ") != std::string::npos);
}

TEST_CASE("a rank 0 of another name is refused with both names, and the job that has the port forms") {
  const std::uint16_t port = free_port();
  std::string first;
  std::jthread forming([&] {
    first = on_ranks(1, [&](int) {
              ControlPlane control_plane(opener(port, "a", "monday"));
              control_plane.leave_blocking(soon());
            }).front();
  });
  wait_for_store(port);
  const std::string second = error_of_opening(opener(port, "b", "tuesday"));
  CHECK(second.find(" belongs to the job 'tuesday', and this is the store of 'monday', which rank 0 on host ") !=
        std::string::npos);
  ControlPlaneOptions rank_1 = rank_options(1, 2, port);
  rank_1.identity.job = "monday";
  ControlPlane other(rank_1);
  CHECK(other.leave_blocking(soon()));
  forming.join();
  CHECK(first == "");
}

TEST_CASE("a rank 0 that comes to a job that has formed is refused, and the job goes on") {
  const std::uint16_t port = free_port();
  std::counting_semaphore<> formed{0};
  std::counting_semaphore<> refused{0};
  std::jthread late([&] {
    REQUIRE(formed.try_acquire_for(std::chrono::seconds(30)));
    const std::string error = error_of_opening(opener(port, "b"));
    CHECK(error.find("has opened this store, for another job; give each job a port") != std::string::npos);
    refused.release(2);
  });
  const auto errors = on_ranks(2, [&](int rank) {
    ControlPlaneOptions options = rank == 0 ? opener(port, "a") : rank_options(1, 2, port);
    ControlPlane control_plane(options);
    if (rank == 0) {
      formed.release();
    }
    if (!refused.try_acquire_for(std::chrono::seconds(30))) throw std::runtime_error("nobody came");
    control_plane.store().barrier("still here", soon()).wait();
    control_plane.leave_blocking(soon());
  });
  CHECK(errors == std::vector<std::string>(2));
}
