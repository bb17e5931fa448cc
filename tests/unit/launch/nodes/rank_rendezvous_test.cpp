#include "dtrain/launch/nodes/job_coordinator.hpp"
#include "unit/launch/prelude.hpp"

namespace rendezvous = dtrain::rendezvous;

TEST_CASE("a launcher that may not open enough files for its ranks learns that before it starts a worker") {
  const std::string text = support::with_open_files(200, 200, [] {
    dtrain::async::EventLoop loop;
    rendezvous::StoreServer server(loop, dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0)),
                                   {});
    rendezvous::StoreJobOptions options;
    options.world_size = 70;
    options.owner = "the launcher on host a";
    const std::chrono::seconds join_timeout(600);
    dtrain::launch::RankRendezvous(server, options, join_timeout).open(0);
    options.further_files = dtrain::launch::files_for_workers(70);
    dtrain::launch::RankRendezvous(server, options, join_timeout).open(0);
    return std::string("nothing was thrown");
  });
  CAPTURE(text);
  CHECK(text.starts_with("threw the launcher on host a serves the store of 70 ranks and needs 2"));
  CHECK_CONTAINS(text, " open files for that, but may open 200; raise the hard limit (ulimit -Hn 2");
}
