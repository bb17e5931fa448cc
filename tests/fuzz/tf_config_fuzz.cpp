// TF_CONFIG from anywhere: a rank among the trainers that it lists, or a sentence.

#include "fuzz/identity_invariants.hpp"

namespace identity = dtrain::identity;

std::vector<std::string> fuzz::seeds() {
  return {
      R"({"cluster": {"worker": ["h1:2222", "h2:2222"], "chief": ["h0:2222"], "ps": ["h3:1"]}, "task": {"type": "worker", "index": "1"}})",
      R"({"cluster": {"worker": ["[fd00::1]:2222", "[fd00::2]:2222"]}, "task": {"type": "worker", "index": 1}})",
      R"({"cluster": {"worker": ["h:1", "h:2"], "master": ["h"]}, "task": {"type": "master", "index": 0}})",
      R"({"cluster": {"worker": ["h:1"]}})",
      R"({"sparseCluster": {"worker": {"0": "h:1"}}, "task": {"type": "worker", "index": 0}})",
      R"({"cluster": {"chief": ["a", "b"]}, "task": {"type": "evaluator", "index": 0}})",
      "{}"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const identity::Environment environment{{"TF_CONFIG", std::string(fuzz::text_of(data, size))}};
  try {
    const identity::ProcessIdentity who = identity::process_identity(environment);
    fuzz::require_identity(who);
    const bool has_place = who.launcher == identity::TfConfigSource::name;
    fuzz::require(has_place || who.launcher == "single", "nothing else is set");
    if (has_place) {
      fuzz::require(who.local_rank && who.local_world_size && who.node_rank && who.node_count, "hosts give all facts");
      fuzz::require(who.world_size == 1 || who.provisional.size() == 4, "several entries may name one machine");
      fuzz::require(static_cast<std::size_t>(who.world_size) < size, "every rank is listed");
    }
  } catch (const identity::IdentityError& error) {
    fuzz::require_error(error);
    fuzz::require(std::string_view(error.what()).find("TF_CONFIG=") != std::string_view::npos, "it names the variable");
  }
  return 0;
}
