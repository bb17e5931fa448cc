// A whole environment from anywhere: a complete consistent identity, the same each time, or a sentence.

#include "fuzz/environment_seeds.hpp"
#include "fuzz/identity_invariants.hpp"

namespace identity = dtrain::identity;

std::vector<std::string> fuzz::seeds() {
  return environment_seeds();
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Start start = fuzz::start_of(fuzz::text_of(data, size));
  const std::vector<const char*> arguments = start.pointers();
  try {
    const identity::ProcessIdentity who = identity::process_identity(start.environment, arguments);
    fuzz::require_identity(who);
    fuzz::require_not_lonely(who, start.environment);
    fuzz::require(who == identity::process_identity(start.environment, arguments), "the same gives the same");
    start.environment["OMPI_UNIVERSE_SIZE"] = "9";
    start.environment["OMPI_COMM_WORLD_NODE_RANK"] = "9";
    start.environment["SLURM_LAUNCH_NODE_IPADDR"] = "192.0.2.9";
    fuzz::require(who == identity::process_identity(start.environment, arguments),
                  "what means nothing changes nothing");
  } catch (const identity::IdentityError& error) {
    fuzz::require_error(error);
  }
  start.environment["DTRAIN_LAUNCHER"] = "none";
  start.environment.erase("MASTER_PORT");
  const identity::ProcessIdentity alone = identity::process_identity(start.environment, arguments);
  fuzz::require_identity(alone);
  fuzz::require(alone.launcher == "single" && alone.world_size == 1, "'none' is one process whatever is set");
  return 0;
}
