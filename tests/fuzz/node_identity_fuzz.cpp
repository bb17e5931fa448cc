// A launcher's environment and flags from anywhere: a consistent node, the same each time, or a sentence.

#include "dtrain/identity/node_identity.hpp"

#include "fuzz/environment_seeds.hpp"
#include "fuzz/identity_invariants.hpp"

namespace identity = dtrain::identity;

namespace {

/// A flag's value after its name, from an argument --nnodes=2.
std::optional<std::string> flag(const fuzz::Start& start, const std::string& name) {
  for (const std::string& argument : start.arguments) {
    if (argument.rfind(name + "=", 0) == 0) {
      return argument.substr(name.size() + 1);
    }
  }
  return std::nullopt;
}

void require_node(const identity::NodeIdentity& node) {
  fuzz::require_below(node.node_rank, node.node_count, "the node rank is below the node count");
  fuzz::require(!node.master_addr.empty(), "there is a master");
  fuzz::require(node.master_port || node.node_count == 1, "only one node lets the system choose a port");
  fuzz::require(!node.master_port || (*node.master_port >= 1 && *node.master_port <= 65535), "a port is one");
  fuzz::require(!node.launcher.empty(), "the source has a name");
  fuzz::require(!node.nproc_per_node || *node.nproc_per_node == "auto" ||
                    identity::parse_integer(*node.nproc_per_node).value_or(0) > 0,
                "the workers are counted, or auto");
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  std::vector<std::string> all = environment_seeds();
  for (const char* flags :
       {"--nnodes=2\n--node-rank=1\n--master-addr=h0", "--nnodes=1:4", "--node-rank=1\nNNODES=2",
        "--nproc-per-node=auto\n--master-port=1234", "PET_NODE_RANK=1\nPET_NNODES=2\nMASTER_ADDR=h"}) {
    all.emplace_back(flags);
  }
  return all;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::Start start = fuzz::start_of(fuzz::text_of(data, size));
  identity::NodeFlags flags;
  flags.node_count = flag(start, "--nnodes");
  flags.node_rank = flag(start, "--node-rank");
  flags.master_addr = flag(start, "--master-addr");
  flags.master_port = flag(start, "--master-port");
  flags.nproc_per_node = flag(start, "--nproc-per-node");
  try {
    const identity::NodeIdentity node = identity::node_identity(start.environment, flags);
    require_node(node);
    fuzz::require(node == identity::node_identity(start.environment, flags), "the same gives the same");
    flags.node_count = "3";
    flags.node_rank = "2";
    flags.master_addr = "flag";
    const identity::NodeIdentity given = identity::node_identity(start.environment, flags);
    fuzz::require(given.node_rank == 2 && given.node_count == 3 && given.master_addr == "flag", "flags win");
  } catch (const identity::IdentityError& error) {
    fuzz::require_error(error);
  }
  return 0;
}
