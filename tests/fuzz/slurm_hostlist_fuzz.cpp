// A Slurm host list from anywhere: its first host is a name made of the list's own bytes, or the list is refused.

#include "dtrain/identity/environment/slurm_step.hpp"

#include "fuzz/fuzz.hpp"

namespace identity = dtrain::identity;

std::vector<std::string> fuzz::seeds() {
  return {"gpu-a,node[001-003,007]", "rack[0-1]node[0-2]", "node[3-1]", "a,,b", "node[1", "node[09-10]-ib,x.y_z"};
}

/// The hosts, where there are not too many to be read.
static std::vector<std::string> hosts_of(const std::string& list) {
  try {
    return identity::slurm_hosts("L", list);
  } catch (const identity::IdentityError& error) {
    fuzz::require(error.reason() == identity::IdentityErrc::bad_hostlist, "the only error is bad-hostlist");
    return {};
  }
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string list(fuzz::text_of(data, size));
  try {
    const std::string host = identity::first_slurm_host("SLURM_STEP_NODELIST", list);
    fuzz::require(!host.empty() && host.size() <= list.size(), "a host's name is not longer than the list");
    for (const char byte : host) {
      fuzz::require(identity::is_host_name_byte(byte), "a host's name has no brackets and no spaces");
    }
    fuzz::require(identity::first_slurm_host("L", host) == host, "a plain name stands for itself");
    fuzz::require(identity::first_slurm_host("L", list + ",z[9-10]") == host, "what follows does not change the first");
    fuzz::require(identity::first_slurm_host("L", "z," + list) == "z", "lists are not sorted");
    const std::vector<std::string> hosts = hosts_of(list);
    fuzz::require(hosts.empty() || hosts.front() == host, "the first of all hosts is the first host");
    fuzz::require(hosts.size() <= 65536, "the number of hosts is bounded");
  } catch (const identity::IdentityError& error) {
    fuzz::require(error.reason() == identity::IdentityErrc::bad_hostlist, "the only error is bad-hostlist");
    fuzz::require_sentence(error.what());
    bool longer_is_refused = false;
    try {
      static_cast<void>(identity::first_slurm_host("L", "z," + list));
    } catch (const identity::IdentityError&) {
      longer_is_refused = true;
    }
    fuzz::require(longer_is_refused, "all of a list is checked, not its beginning only");
  }
  return 0;
}
