#include "dtrain/identity/node_identity.hpp"

#include <doctest/doctest.h>

#include <string>

namespace identity = dtrain::identity;
using identity::Environment;
using identity::node_identity;
using identity::NodeFlags;
using identity::NodeIdentity;

namespace {

std::string error_code_of(const Environment& environment, const NodeFlags& flags = {}) {
  try {
    static_cast<void>(node_identity(environment, flags));
  } catch (const identity::IdentityError& error) {
    return std::string(name(error.reason()));
  }
  return "";
}

}  // namespace

TEST_CASE("nothing set is node 0 of 1 on the loopback address with a port to be chosen") {
  const NodeIdentity node = node_identity({});
  CHECK(node.node_rank == 0);
  CHECK(node.node_count == 1);
  CHECK(node.master_addr == "127.0.0.1");
  CHECK(!node.master_port);
  CHECK(!node.nproc_per_node);
  CHECK(node.launcher == "single");
}

TEST_CASE("flags win over the environment field by field") {
  const Environment pet{{"PET_NODE_RANK", "1"},
                        {"PET_NNODES", "2"},
                        {"PET_MASTER_ADDR", "h0"},
                        {"PET_MASTER_PORT", "1234"},
                        {"PET_NPROC_PER_NODE", "4"}};
  NodeFlags flags;
  flags.master_port = "4321";
  flags.nproc_per_node = "auto";
  const NodeIdentity node = node_identity(pet, flags);
  CHECK(node.node_rank == 1);
  CHECK(node.node_count == 2);
  CHECK(node.master_addr == "h0");
  CHECK(node.master_port == 4321);
  CHECK(node.nproc_per_node == "auto");
  CHECK(node.launcher == "pet");
  flags.node_count = "1";
  CHECK(node_identity(pet, flags).node_rank == 0);
  CHECK(node_identity(pet, flags).launcher == "node");
}

TEST_CASE("DTRAIN_NODE, then PET, then NODE_RANK, then the process rules") {
  Environment everything{{"RANK", "3"},       {"WORLD_SIZE", "4"},       {"MASTER_ADDR", "h"},
                         {"NODE_RANK", "2"},  {"NNODES", "5"},           {"PET_NODE_RANK", "1"},
                         {"PET_NNODES", "6"}, {"DTRAIN_NODE_RANK", "0"}, {"DTRAIN_NODE_COUNT", "7"}};
  CHECK(node_identity(everything).node_count == 7);
  everything.erase("DTRAIN_NODE_RANK");
  CHECK(node_identity(everything).node_count == 6);
  everything.erase("PET_NODE_RANK");
  CHECK(node_identity(everything).node_count == 5);
  everything.erase("NODE_RANK");
  CHECK(node_identity(everything).node_rank == 3);
  CHECK(node_identity(everything).node_count == 4);
  CHECK(node_identity(everything).launcher == "torch");
}

TEST_CASE("several nodes want a master and have port 29500 where none is given") {
  NodeFlags flags;
  flags.node_count = "2";
  flags.node_rank = "1";
  CHECK(error_code_of({}, flags) == "no-master-addr");
  flags.master_addr = "h0";
  CHECK(node_identity({}, flags).master_port == 29500);
}

TEST_CASE("node facts that cannot be are errors with their codes") {
  CHECK(error_code_of({{"PET_NODE_RANK", "0"}, {"PET_NNODES", "1:4"}}) == "elastic-range");
  CHECK(error_code_of({{"PET_NODE_RANK", "2"}, {"PET_NNODES", "2"}, {"MASTER_ADDR", "h"}}) == "rank-out-of-range");
  CHECK(error_code_of({{"PET_NPROC_PER_NODE", "gpu"}}) == "bad-integer");
  CHECK(error_code_of({{"PET_NPROC_PER_NODE", "0"}}) == "bad-integer");
  NodeFlags flags;
  flags.master_port = "99999";
  CHECK(error_code_of({}, flags) == "bad-port");
  flags = {};
  flags.node_count = "x";
  CHECK(error_code_of({}, flags) == "bad-integer");
}

TEST_CASE("DTRAIN_LAUNCHER forces whose word counts for a node") {
  Environment both{{"PET_NODE_RANK", "0"}, {"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "h"},
                   {"NODE_RANK", "2"},     {"NNODES", "3"},     {"DTRAIN_LAUNCHER", "node"}};
  CHECK(node_identity(both).node_count == 3);
  both["DTRAIN_LAUNCHER"] = "pet";
  CHECK(node_identity(both).node_count == 2);
  both["DTRAIN_LAUNCHER"] = "none";
  CHECK(node_identity(both).node_count == 1);
  both["DTRAIN_LAUNCHER"] = "torch";
  CHECK(error_code_of(both) == "unknown-launcher");
}
