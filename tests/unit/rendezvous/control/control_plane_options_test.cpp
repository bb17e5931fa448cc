#include "unit/rendezvous/prelude.hpp"

namespace {

ControlPlaneOptions rank_1_of_2(const std::string& master_addr) {
  ControlPlaneOptions worker;
  worker.identity.rank = 1;
  worker.identity.world_size = 2;
  worker.identity.master_addr = master_addr;
  worker.identity.master_port = 29500;
  return worker;
}

}  // namespace

TEST_CASE("a rank that cannot reach the store at every address says so before it tries") {
  CHECK_NOTHROW(check_master_address(rank_1_of_2("192.0.2.1")));
  for (const std::string any : {"0.0.0.0", "::"}) {
    ControlPlaneOptions worker = rank_1_of_2(any);
    CHECK_ERROR(check_master_address(worker), dtrain::Errc::identity,
                "rank 1 cannot connect to the job's store at " + any);
    worker.secret = dtrain::rendezvous::Secret::drawn();
    CHECK_NOTHROW(check_master_address(worker));  // rank 0 listens everywhere, and may be on this host
    worker.identity.node_rank = 1;
    CHECK_ERROR(check_master_address(worker), dtrain::Errc::identity, "set MASTER_ADDR to an address of that host");
    worker.identity.provisional = {"node_rank"};
    CHECK_NOTHROW(check_master_address(worker));
    worker.hosts_store = true;
    worker.secret.reset();
    CHECK_NOTHROW(check_master_address(worker));  // the store itself says what it needs
  }
}

TEST_CASE("several ranks without an address of the store are an error that names what to set") {
  ControlPlaneOptions worker = rank_1_of_2("192.0.2.1");
  worker.identity.master_addr.reset();
  CHECK_ERROR(check_master_address(worker), dtrain::Errc::identity,
              "rank 1 of 2 does not know the address of the job's store");
}
