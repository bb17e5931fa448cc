// SM_HOSTS from anywhere: this host's place in the list, or a sentence.

#include "fuzz/identity_invariants.hpp"

namespace identity = dtrain::identity;

std::vector<std::string> fuzz::seeds() {
  return {R"(["algo-1", "algo-10", "algo-2"])", R"(["algo-2"])", R"(["algo-2", "algo-2"])", R"(["algo-1", 2])", "[]"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string list(fuzz::text_of(data, size));
  try {
    const identity::ProcessIdentity who =
        identity::process_identity({{"SM_HOSTS", list}, {"SM_CURRENT_HOST", "algo-2"}});
    fuzz::require_identity(who);
    fuzz::require(!list.empty() && who.launcher == "sagemaker", "an empty list is as good as unset");
    fuzz::require(who.local_rank == 0 && who.local_world_size == 1 && who.node_rank == who.rank &&
                      who.node_count == who.world_size && who.provisional.empty(),
                  "every host is one rank");
    fuzz::require((who.rank == 0 && who.world_size > 1) == (who.master_addr == "algo-2"), "the first is the master");
  } catch (const identity::IdentityError& error) {
    fuzz::require_error(error);
    fuzz::require(
        error.reason() == (list.empty() ? identity::IdentityErrc::half_identity : identity::IdentityErrc::sm_host),
        "the only error is sm-host, or half an identity without a list");
    fuzz::require(std::string_view(error.what()).find(list.empty() ? "SM_HOSTS is not set" : "SM_HOSTS=") !=
                      std::string_view::npos,
                  "it names the variable");
  }
  return 0;
}
