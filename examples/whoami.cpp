// Prints, as one line of JSON, who this process is by its environment, and how launch::Any would start it; opens no
// connection.
//   RANK=0 WORLD_SIZE=1 whoami
//   whoami --node      who this node is, as launch::PerNode would read it
//   whoami --verbose   also says on stderr, for people, where the others find this host and what makes that slow

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#if __has_include(<dtrain/identity/choose_start.hpp>)
#include <dtrain/identity/choose_start.hpp>
#include <dtrain/identity/node_identity.hpp>
#include <dtrain/identity/process_identity.hpp>
#include <dtrain/identity/variables.hpp>
#include <dtrain/launch/configuration/worker_program.hpp>
#include <dtrain/launch/diagnostics/network_report.hpp>
#else  // with the single header
#include <dtrain/dtrain.hpp>
#endif
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace identity = dtrain::identity;

namespace {

std::string json(std::string_view text) {
  std::string quoted = "\"";
  for (const char byte : text) {
    if (byte == '"' || byte == '\\') {
      quoted += '\\';
      quoted += byte;
    } else if (static_cast<unsigned char>(byte) < 0x20) {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\u%04x", static_cast<unsigned>(byte));
      quoted += escaped;
    } else {
      quoted += byte;
    }
  }
  return quoted + '"';
}

std::string json(int number) {
  return std::to_string(number);
}

template <class T>
std::string json(const std::optional<T>& value) {
  return value ? json(*value) : "null";
}

std::string json(const std::vector<std::string>& texts) {
  std::string list = "[";
  for (const std::string& text : texts) {
    list += (list.size() > 1 ? ", " : "") + json(text);
  }
  return list + "]";
}

/// As launch::Any chooses it for a backend that works with all launchers.
const char* start_of(const identity::Environment& environment, identity::Arguments arguments) {
  const bool is_worker = dtrain::launch::is_worker_environment(environment, ::getppid());
  const identity::Environment own = is_worker ? environment : dtrain::launch::without_outer_job(environment);
  return identity::choose_start(own, arguments) == identity::Start::per_node ? "per_node" : "per_process";
}

std::string to_json(const identity::ProcessIdentity& who, std::string_view start) {
  return "{\"rank\": " + json(who.rank) + ", \"world_size\": " + json(who.world_size) +
         ", \"local_rank\": " + json(who.local_rank) + ", \"local_world_size\": " + json(who.local_world_size) +
         ", \"node_rank\": " + json(who.node_rank) + ", \"node_count\": " + json(who.node_count) +
         ", \"master_addr\": " + json(who.master_addr) + ", \"master_port\": " + json(who.master_port) +
         ", \"launcher\": " + json(std::string_view(who.launcher)) + ", \"provisional\": " + json(who.provisional) +
         ", \"warnings\": " + json(who.warnings) + ", \"start\": " + json(start) + "}";
}

std::string to_json(const identity::NodeIdentity& node) {
  const std::optional<int> workers = identity::parse_integer(node.nproc_per_node.value_or(""));
  return "{\"node_rank\": " + json(node.node_rank) + ", \"node_count\": " + json(node.node_count) +
         ", \"master_addr\": " + json(std::string_view(node.master_addr)) +
         ", \"master_port\": " + json(node.master_port) +
         ", \"nproc_per_node\": " + (workers ? json(*workers) : json(node.nproc_per_node)) +
         ", \"launcher\": " + json(std::string_view(node.launcher)) + ", \"provisional\": " + json(node.provisional) +
         ", \"warnings\": " + json(node.warnings) + "}";
}

/// Nothing is sent, nobody is asked: what the machine itself knows.
void explain(const identity::Environment& environment, const std::string& who, const std::optional<std::string>& master,
             bool several_hosts) {
  const identity::Variables variables(environment);
  const dtrain::launch::NetworkReport network = dtrain::launch::local_network_report(variables, master, several_hosts);
  std::fprintf(stderr, "%s\n%s\n", who.c_str(), network.interface.c_str());
  for (const std::string& warning : network.warnings) {
    std::fprintf(stderr, "slow path: %s\n", warning.c_str());
  }
}

bool has_flag(int argc, char** argv, std::string_view flag) {
  return std::find(argv, argv + argc, flag) != argv + argc;
}

}  // namespace

int main(int argc, char** argv) {
  std::string line;
  int exit_code = 0;
  try {
    const identity::Environment environment = identity::snapshot_environment();
    const bool verbose = has_flag(argc, argv, "--verbose");
    if (has_flag(argc, argv, "--node")) {
      const identity::NodeIdentity node = identity::node_identity(environment);
      line = to_json(node);
      if (verbose) {
        explain(environment,
                "node " + std::to_string(node.node_rank) + " of " + std::to_string(node.node_count) + " by " +
                    node.launcher,
                node.master_addr, node.node_count > 1);
      }
    } else {
      const identity::Arguments arguments(argv, static_cast<std::size_t>(argc));
      const identity::ProcessIdentity who = identity::process_identity(environment, arguments);
      line = to_json(who, start_of(environment, arguments));
      if (verbose) {
        explain(environment, to_string(who), who.master_addr, dtrain::launch::spans_hosts(who));
      }
    }
  } catch (const identity::IdentityError& error) {
    line =
        "{\"error\": " + json(std::string_view(error.what())) + ", \"error_code\": " + json(name(error.reason())) + "}";
    exit_code = 2;
  } catch (const std::exception& error) {
    line = "{\"error\": " + json(std::string_view(error.what())) + ", \"error_code\": null}";
    exit_code = 2;
  }
  if (std::puts(line.c_str()) < 0 || std::fflush(stdout) != 0) {
    std::perror("whoami: printing the identity on stdout");
    return 1;
  }
  return exit_code;
}
