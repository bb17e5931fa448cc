#include "unit/rendezvous/prelude.hpp"

TEST_CASE("a rank that serves the store says for whom it waits when it leaves") {
  support::CapturedStderr captured;
  const std::uint16_t port = free_port();
  const std::string notice =
      "dtrain: leaving the job: this rank serves the job's store, and waits until rank 1 has left\n";
  run_ranks(2, [&](int rank) {
    ControlPlaneOptions options = rank_options(rank, 2, port);
    options.hosts_store = rank == 0;
    options.notice_after = std::chrono::milliseconds(20);
    ControlPlane control_plane(options);
    if (rank == 1) CHECK(support::holds_soon([&] { return contains(captured.text(), notice); }));
    CHECK(control_plane.leave_blocking(soon()));
  });
}
