#pragma once
/// @file
/// Node facts: inputs and result of a node's identity; launcher flags as additional variables.

#include <optional>
#include <string>
#include <vector>

#include "dtrain/identity/environment/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// The launcher's flags as unparsed text. Each flag overrides the environment's variables for its field.
struct NodeFlags {
  std::optional<std::string> node_count;      ///< --nnodes
  std::optional<std::string> node_rank;       ///< --node-rank
  std::optional<std::string> master_addr;     ///< --master-addr
  std::optional<std::string> master_port;     ///< --master-port
  std::optional<std::string> nproc_per_node;  ///< --nproc-per-node
};

/// A launcher's node in its job, and the address of the launchers' store.
struct NodeIdentity {
  int node_rank = 0;
  int node_count = 1;
  std::string master_addr = "127.0.0.1";
  std::optional<int> master_port;             ///< nullopt: the launcher binds port 0
  std::optional<std::string> nproc_per_node;  ///< decimal digits or "auto"
  std::string launcher;
  std::vector<std::string> provisional;
  std::vector<std::string> warnings;

  friend bool operator==(const NodeIdentity&, const NodeIdentity&) = default;
};

/// Node rank and node count from one source. For several nodes, also node 0's address if the source has it.
struct NodeFacts {
  int node_rank = 0;
  int node_count = 1;
  std::optional<std::string> master_addr;
  std::optional<int> master_port;
  bool master_is_guess = false;
  std::string launcher;
  std::vector<std::string> warnings;
};

/// `environment` with each flag as an entry under its own name, such as "--nnodes". Therefore flags are read, and named
/// in sentences, like variables.
inline Environment with_flags(const Environment& environment, const NodeFlags& flags) {
  Environment joined = environment;
  const auto put = [&joined](const char* flag, const std::optional<std::string>& value) {
    joined.erase(flag);
    if (value) {
      joined[flag] = *value;
    }
  };
  put("--nnodes", flags.node_count);
  put("--node-rank", flags.node_rank);
  put("--master-addr", flags.master_addr);
  put("--master-port", flags.master_port);
  put("--nproc-per-node", flags.nproc_per_node);
  return joined;
}

/// A number of nodes. @throws IdentityError: elastic-range for "1:4", bad-integer
inline std::optional<int> read_node_count(const Variables& variables, const char* variable) {
  const std::optional<std::string> value = variables.text(variable);
  if (value && value->find(':') != std::string::npos) {
    throw IdentityError(IdentityErrc::elastic_range,
                        quoted(variable, *value) + " is a range of nodes; a job has a fixed size here: set one number");
  }
  return variables.count(variable);
}

}  // namespace DTRAIN_NAMESPACE::identity
