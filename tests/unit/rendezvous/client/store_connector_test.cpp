// ctest: TIMEOUT 120
#include "dtrain/rendezvous/client/store_connector.hpp"
#include "support/name_service.hpp"
#include "unit/rendezvous/prelude.hpp"

using dtrain_test::CuttingProxy;

TEST_CASE("ranks wait for a name that nobody knows yet, rank 0 that listens there too, and join once it is known") {
  support::NameService& names = support::NameService::get();
  names.reset();
  const std::uint16_t port = free_port();
  std::atomic<int> ended{0};
  std::jthread known_later([&](const std::stop_token& stop) {
    const int tries = 2 * 13;  // of each rank more than there are in five seconds
    while (names.asked() < tries && ended == 0 && !stop.stop_requested()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    CHECK(ended == 0);
    names.set_address("127.0.0.1");
  });
  run_ranks(2, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 2, port);
    options.identity.master_addr = "train-0.train.test";
    options.hosts_store = rank == 0;
    try {
      ControlPlane control_plane(options);
      control_plane.store().barrier("all", soon()).wait();
      ++ended;
      control_plane.leave_blocking(soon());
    } catch (...) {
      ++ended;
      throw;
    }
  });
}

TEST_CASE("a name that can be none is refused at once, also where the store may be at several ports") {
  for (const std::uint16_t ports : {std::uint16_t{1}, std::uint16_t{3}}) {
    const std::string error = on_ranks(1, [&](int) {
                                ControlPlaneOptions options = rank_options(1, 2, 29500);
                                options.identity.master_addr = "no-such-host.invalid";
                                options.master_ports = ports;
                                const ControlPlane control_plane(options);
                              }).front();
    CHECK(error.find("resolving host 'no-such-host.invalid': no name that ends in .invalid exists; set MASTER_ADDR") ==
          0);
  }
}

TEST_CASE("a rank whose connection is cut in the handshake again and again tries again, and joins once") {
  std::atomic<int> joined{0};
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.rejoin = std::chrono::seconds(30);
  options.job.on_joined = [&](int rank, const std::string&) { joined += rank == 1 ? 1 : 0; };
  StoreProcess store(std::move(options));
  CuttingProxy proxy(store.port());
  proxy.mute(true);  // it does not receive Accepted
  std::string error;
  std::jthread cut(
      [&] { error = on_ranks(1, [&](int) { join_and_leave(rank_options(1, 2, proxy.port())); }).front(); });
  const Deadline deadline = soon();
  for (int times = 1; times <= 6; ++times) {
    support::holds_before(deadline, [&] { return proxy.accepted() >= times && (times <= 3 || joined != 0); });
    proxy.cut(times % 2 == 0 ? CuttingProxy::How::reset : CuttingProxy::How::end);
  }
  proxy.mute(false);
  const auto errors = on_ranks(1, [&](int) { join_and_leave(rank_options(0, 2, store.port())); });
  cut.join();
  CHECK(errors.front() == "");
  CHECK(error == "");
  CHECK(joined == 1);
  CHECK(proxy.accepted() > 6);
}

TEST_CASE("a rank that loses its connection after its Join comes again at once, however long it has waited before") {
  std::counting_semaphore<> joined{0};
  StoreOptions options = StoreProcess::with_world_size(2);
  options.limits.rejoin = std::chrono::milliseconds(900);  // less than the longest pause between tries
  options.job.on_joined = [&](int rank, const std::string&) {
    if (rank == 1) {
      joined.release();
    }
  };
  StoreProcess store(std::move(options));
  CuttingProxy proxy(store.port());
  proxy.refuse(true);
  std::string error;
  std::jthread waiting(
      [&] { error = on_ranks(1, [&](int) { join_and_leave(rank_options(1, 2, proxy.port())); }).front(); });
  support::holds_before(soon(), [&] { return proxy.refused() >= 8; });  // now it pauses for a second between its tries
  proxy.mute(true);
  proxy.refuse(false);
  REQUIRE(joined.try_acquire_for(std::chrono::seconds(30)));
  proxy.cut(CuttingProxy::How::reset);  // it has not received Accepted
  proxy.mute(false);
  const auto errors = on_ranks(1, [&](int) { join_and_leave(rank_options(0, 2, store.port())); });
  waiting.join();
  CHECK(errors.front() == "");
  CHECK(error == "");
}
