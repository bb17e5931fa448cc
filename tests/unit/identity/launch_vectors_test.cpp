// The environments of launch_vectors.json, real and documented launches, each with the identity or the error code that
// must come out. "mode": "node" is for the per-node launcher; null is learnt after connecting. "start" is what
// launch::Any does there, or the error code of that; "mode": "start" has nothing else, and names the rule.

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

std::vector<const char*> arguments_of(const Json& vector) {
  std::vector<const char*> arguments;
  if (const Json* const argv = vector.find("argv")) {
    std::transform(argv->items.begin(), argv->items.end(), std::back_inserter(arguments),
                   [](const Json& argument) { return argument.text.c_str(); });
  }
  return arguments;
}

/// "per_node", "per_process", "alone", "rejected", or the code of an error.
std::string start_of(const Environment& environment, const std::vector<const char*>& arguments, bool over_mpi) {
  try {
    switch (identity::choose_start(environment, arguments, over_mpi)) {
      case identity::Start::per_node: return "per_node";
      case identity::Start::per_process: return "per_process";
      case identity::Start::alone: return "alone";
      case identity::Start::rejected: return "rejected";
    }
    return "none of them";
  } catch (const identity::IdentityError& error) {
    return std::string(name(error.reason()));
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
  std::size_t checked = 0;
  std::set<std::string> names;
  for (const Json& vector : launch_vectors()) {
    const std::string vector_name = text_of(vector, "name");
    CAPTURE(vector_name);
    CHECK(names.insert(vector_name).second);
    if (text_of(vector, "mode") == "start") continue;
    checked += 1;
    CHECK((vector.find("expect") == nullptr) != (vector.find("error_code") == nullptr));
    const Environment environment = environment_of(vector);
    const std::vector<const char*> arguments = arguments_of(vector);
    try {
      text_of(vector, "mode") == "node" ? check_node(vector, environment)
                                        : check_process(vector, environment, arguments);
    } catch (const identity::IdentityError& error) {
      INFO(error.what());
      CHECK(std::string(name(error.reason())) == text_of(vector, "error_code"));
    }
  }
  CHECK(checked == 81);
}

TEST_CASE("every launch vector starts a program with launch::Any as it says, each rule among them") {
  std::size_t checked = 0;
  std::set<std::string> rules;
  for (const Json& vector : launch_vectors()) {
    const std::string vector_name = text_of(vector, "name");
    CAPTURE(vector_name);
    const bool over_mpi = text_of(vector, "backend") == "mpi";
    CHECK(start_of(environment_of(vector), arguments_of(vector), over_mpi) == text_of(vector, "start"));
    if (text_of(vector, "mode") == "start") rules.insert(text_of(vector, "source"));
    checked += 1;
  }
  CHECK(checked == 153);
  CHECK(rules.size() == 10);
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
