#pragma once
/// @file
/// What holds for every identity, whatever the environment was, and how bytes become an environment.

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/process_sources.hpp"
#include "dtrain/identity/resolve_identity.hpp"
#include "fuzz/fuzz.hpp"

namespace fuzz {

namespace identity = dtrain::identity;

struct Start {
  identity::Environment environment;
  std::vector<std::string> arguments{"program"};

  std::vector<const char*> pointers() const {
    std::vector<const char*> list;
    for (const std::string& argument : arguments) {
      list.push_back(argument.c_str());
    }
    return list;
  }
};

/// Lines NAME=value, the first of a name counts; a line without '=', or that begins with '-', is an argument.
inline Start start_of(std::string_view text) {
  Start start;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t equals = line.find('=');
    if (equals == std::string_view::npos || line.front() == '-') {
      start.arguments.emplace_back(line.substr(0, line.find('\0')));
    } else {
      start.environment.emplace(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return start;
}

inline void require_error(const identity::IdentityError& error) {
  require_sentence(error.what());
  require(name(error.reason()) != "unknown", "an error has one of the listed codes");
}

/// `part` below `whole`, where both are known.
inline void require_below(std::optional<int> part, std::optional<int> whole, const char* sentence) {
  require(!part || *part >= 0, sentence);
  require(!whole || *whole >= 1, sentence);
  require(!part || !whole || *part < *whole, sentence);
}

/// Nobody is alone whom a variable calls one of several, unless the user says so.
inline void require_not_lonely(const identity::ProcessIdentity& who, const identity::Environment& environment) {
  const identity::Variables variables(environment);
  if (who.launcher != identity::SingleSource::name || variables.has("DTRAIN_LAUNCHER")) {
    return;
  }
  for (const char* rank : {"RANK", "DTRAIN_RANK", "HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "JSM_NAMESPACE_RANK",
                           "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK", "PMI_RANK", "PALS_RANKID", "SM_CURRENT_HOST"}) {
    require(!variables.has(rank), "a process with a rank is not alone");
  }
  for (const char* nodes : {"SKYPILOT_NUM_NODES", "LWS_GROUP_SIZE", "DSTACK_NODES_NUM", "AWS_BATCH_JOB_NUM_NODES"}) {
    require(variables.integer(nodes).value_or(1) <= 1, "a process on one of several nodes is not alone");
  }
}

/// Consistent, with an address and a port; complete where there is one process.
inline void require_identity(const identity::ProcessIdentity& who) {
  require_below(who.rank, who.world_size, "the rank is below the world size");
  require_below(who.local_rank, who.local_world_size, "the local rank is below the local size");
  require_below(who.node_rank, who.node_count, "the node rank is below the node count");
  require(who.local_world_size.value_or(1) <= who.world_size, "a node has at most all ranks");
  require(who.master_addr && !who.master_addr->empty(), "there is a master");
  require(who.master_port && *who.master_port >= 1 && *who.master_port <= 65535, "there is a port");
  require(who.attempt >= 0, "an attempt is counted");
  const bool known = std::any_of(identity::sources.begin(), identity::sources.end(),
                                 [&](const identity::IdentitySource& source) { return source.name == who.launcher; });
  require(known, "the launcher is one of the sources");
  if (who.world_size == 1) {
    require(who.local_rank == 0 && who.local_world_size == 1 && who.node_rank == 0 && who.node_count == 1,
            "one process is complete");
    require(who.provisional.empty(), "for one process nothing is a guess");
  }
  const std::set<std::string> guesses(who.provisional.begin(), who.provisional.end());
  require(guesses.size() == who.provisional.size(), "a guess is named once");
  for (const std::string& field : guesses) {
    const bool given = (field == "local_rank" && who.local_rank) ||
                       (field == "local_world_size" && who.local_world_size) ||
                       (field == "node_rank" && who.node_rank) || (field == "node_count" && who.node_count) ||
                       (field == "master_addr" && who.master_addr);
    require(given, "a guess is given all the same");
  }
  require_sentence(to_string(who));
}

}  // namespace fuzz
