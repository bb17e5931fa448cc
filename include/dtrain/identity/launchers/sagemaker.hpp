#pragma once
/// @file
/// Source [sagemaker]: SM_HOSTS and SM_CURRENT_HOST of a SageMaker training job, one rank on each host.

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/identity/environment/cluster_identity.hpp"
#include "dtrain/identity/environment/local_rank_argument.hpp"
#include "dtrain/identity/formats/json.hpp"

namespace DTRAIN_NAMESPACE::identity {

struct SageMakerSource {
  static constexpr const char* name = "sagemaker";

  /// The rank is the position in the list, which is sorted as text: algo-10 comes before algo-2.
  static ProcessIdentity read(const Variables& variables, Arguments) {
    constexpr int sagemaker_port = 7777;
    const std::string_view list = *variables.text("SM_HOSTS");
    const std::string_view own = *variables.text("SM_CURRENT_HOST");
    const std::vector<std::string> hosts = parse_hosts(list);
    const auto found = std::find(hosts.begin(), hosts.end(), own);
    if (found == hosts.end()) {
      throw_identity_error(IdentityErrc::sm_host, "{} is not in {}; set SM_CURRENT_HOST to one of the list",
                           {quoted("SM_CURRENT_HOST", own), quoted("SM_HOSTS", list)});
    }
    ProcessIdentity identity;
    identity.launcher = name;
    identity.rank = static_cast<int>(found - hosts.begin());
    identity.world_size = static_cast<int>(hosts.size());
    identity.local_rank = 0;
    identity.local_world_size = 1;
    identity.node_rank = identity.rank;
    identity.node_count = identity.world_size;
    identity.master_addr = hosts.size() == 1 ? loopback_address : hosts.front();
    identity.master_port = variables.port("MASTER_PORT").value_or(sagemaker_port);
    ignore_master_addr(variables, identity);
    return identity;
  }

 private:
  /// @throws IdentityError (sm-host) for a text that is not a JSON list of different host names
  static std::vector<std::string> parse_hosts(std::string_view list) {
    const std::optional<Json> parsed = parse_json(list);
    std::vector<std::string> hosts;
    if (parsed && parsed->is(Json::Type::array)) {
      for (const Json& host : parsed->items) {
        const bool is_name =
            host.is(Json::Type::string) && !host.text.empty() &&
            std::all_of(host.text.begin(), host.text.end(), [](char c) { return c > ' ' && c < '\x7f'; });
        if (!is_name) {
          fail(list, "is not a JSON list of host names");
        }
        hosts.push_back(host.text);
      }
    }
    if (hosts.empty()) {
      fail(list, "is not a JSON list of host names");
    }
    std::vector<std::string_view> sorted(hosts.begin(), hosts.end());
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
      fail(list, "names a host twice");
    }
    return hosts;
  }

  [[noreturn]] static void fail(std::string_view list, const char* problem) {
    throw_identity_error(IdentityErrc::sm_host, "{} {}; set it to a list such as [\"algo-1\", \"algo-2\"], or unset it",
                         {quoted("SM_HOSTS", list), problem});
  }
};

}  // namespace DTRAIN_NAMESPACE::identity
