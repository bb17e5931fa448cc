// The environments of launch_vectors.json, real and documented launches, each with the identity or the error code that
// must come out. "mode": "node" is for the per-node launcher; null is learnt after connecting.

#include "unit/identity/prelude.hpp"

namespace {

/// Beside this file, whose name is whole as CMake gives it.
std::vector<Json> launch_vectors() {
  const std::string here = __FILE__;
  std::ifstream file(here.substr(0, here.rfind('/') + 1) + "launch_vectors.json", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const std::optional<Json> vectors = identity::parse_json(text);
  if (!vectors || !vectors->is(Json::Type::array)) throw std::runtime_error("launch_vectors.json cannot be read");
  return vectors->items;
}

std::string text_of(const Json& vector, const char* key) {
  const Json* const value = vector.find(key);
  return value == nullptr ? "" : value->text;
}

Environment environment_of(const Json& vector) {
  const Json& env = *vector.find("env");
  Environment environment;
  for (std::size_t i = 0; i < env.keys.size(); ++i)
    environment[env.keys[i]] = env.items[i].text;
  return environment;
}

std::set<std::string> provisional_of(const Json& vector) {
  std::set<std::string> names;
  if (const Json* const provisional = vector.find("provisional")) {
    for (const Json& name : provisional->items)
      names.insert(name.text);
  }
  return names;
}

/// A field as the file writes it: digits, text, or "null".
template <class T>
std::string shown(const std::optional<T>& field) {
  if constexpr (std::is_same_v<T, int>) {
    return field ? std::to_string(*field) : "null";
  } else {
    return field.value_or("null");
  }
}

void check_process(const Json& vector, const Environment& environment, const std::vector<const char*>& arguments) {
  const identity::ProcessIdentity who = identity::process_identity(environment, arguments);
  const Json* const expect = vector.find("expect");
  REQUIRE_MESSAGE(expect != nullptr, "an identity came out, not error ", text_of(vector, "error_code"));
  CHECK(std::to_string(who.rank) == text_of(*expect, "rank"));
  CHECK(std::to_string(who.world_size) == text_of(*expect, "world_size"));
  CHECK(shown(who.local_rank) == text_of(*expect, "local_rank"));
  CHECK(shown(who.local_world_size) == text_of(*expect, "local_world_size"));
  CHECK(shown(who.node_rank) == text_of(*expect, "node_rank"));
  CHECK(shown(who.node_count) == text_of(*expect, "node_count"));
  CHECK(shown(who.master_addr) == text_of(*expect, "master_addr"));
  CHECK(shown(who.master_port) == text_of(*expect, "master_port"));
  CHECK(who.launcher == text_of(vector, "launcher"));
  CHECK(std::set<std::string>(who.provisional.begin(), who.provisional.end()) == provisional_of(vector));
}

void check_node(const Json& vector, const Environment& environment) {
  const identity::NodeIdentity node = identity::node_identity(environment);
  const Json* const expect = vector.find("expect");
  REQUIRE_MESSAGE(expect != nullptr, "an identity came out, not error ", text_of(vector, "error_code"));
  CHECK(std::to_string(node.node_rank) == text_of(*expect, "node_rank"));
  CHECK(std::to_string(node.node_count) == text_of(*expect, "node_count"));
  CHECK(node.master_addr == text_of(*expect, "master_addr"));
  CHECK(shown(node.master_port) == text_of(*expect, "master_port"));
  CHECK(node.nproc_per_node.value_or("") == text_of(*expect, "nproc_per_node"));
  CHECK(node.launcher == text_of(vector, "launcher"));
  CHECK(std::set<std::string>(node.provisional.begin(), node.provisional.end()) == provisional_of(vector));
}

}  // namespace

TEST_CASE("every launch vector gives its identity or its error code") {
  const std::vector<Json> vectors = launch_vectors();
  CHECK(vectors.size() == 81);
  std::set<std::string> names;
  for (const Json& vector : vectors) {
    const std::string vector_name = text_of(vector, "name");
    CAPTURE(vector_name);
    CHECK(names.insert(vector_name).second);
    CHECK((vector.find("expect") == nullptr) != (vector.find("error_code") == nullptr));
    const Environment environment = environment_of(vector);
    std::vector<const char*> arguments;
    if (const Json* const argv = vector.find("argv")) {
      std::transform(argv->items.begin(), argv->items.end(), std::back_inserter(arguments),
                     [](const Json& argument) { return argument.text.c_str(); });
    }
    try {
      text_of(vector, "mode") == "node" ? check_node(vector, environment)
                                        : check_process(vector, environment, arguments);
    } catch (const identity::IdentityError& error) {
      INFO(error.what());
      CHECK(std::string(name(error.reason())) == text_of(vector, "error_code"));
    }
  }
}

TEST_CASE("an allocation of several tasks that srun did not start says so") {
  for (const Json& vector : launch_vectors()) {
    if (text_of(vector, "name") == "sbatch-without-srun") {
      const std::vector<std::string> warnings = identity::process_identity(environment_of(vector)).warnings;
      REQUIRE(warnings.size() == 1);
      CHECK(warnings[0].find("Slurm job of 4 tasks, not started with srun") == 0);
      return;
    }
  }
  FAIL("the vector is gone");
}
