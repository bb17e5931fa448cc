// CLUSTER_SPEC from anywhere: a rank in worker pool 0 or 1, or a sentence.

#include "fuzz/identity_invariants.hpp"

namespace identity = dtrain::identity;

std::vector<std::string> fuzz::seeds() {
  return {
      R"({"cluster": {"workerpool0": ["p0-0:2222"], "workerpool1": ["p1-0:2222", "p1-1:2222"]}, "environment": "cloud", "task": {"type": "workerpool1", "index": 1, "trial": "a"}, "job": "{}"})",
      R"({"cluster": {"workerpool0": ["h:1"], "workerpool2": ["x:1"]}, "task": {"type": "workerpool2", "index": 0}})",
      R"({"cluster": {"workerpool0": ["h:1"]}, "task": {"type": "workerpool0", "index": 7}})",
      R"({"cluster": {}, "task": {}})"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const identity::Environment environment{{"CLUSTER_SPEC", std::string(fuzz::text_of(data, size))}};
  try {
    const identity::ProcessIdentity who = identity::process_identity(environment);
    fuzz::require_identity(who);
    fuzz::require(who.launcher == identity::VertexSource::name || who.launcher == "single", "nothing else is set");
    if (who.launcher == identity::VertexSource::name) {
      fuzz::require(who.local_rank && who.local_world_size && who.node_rank && who.node_count, "hosts give all facts");
      fuzz::require(static_cast<std::size_t>(who.world_size) < size, "every rank is listed");
    }
  } catch (const identity::IdentityError& error) {
    fuzz::require_error(error);
    fuzz::require(std::string_view(error.what()).find("CLUSTER_SPEC=") != std::string_view::npos,
                  "it names the variable");
  }
  return 0;
}
