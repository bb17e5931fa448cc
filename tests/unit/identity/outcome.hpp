#pragma once
// What an environment comes to, as values that a table can hold.

#include <sstream>
#include <string>
#include <vector>

#include "dtrain/identity/node_identity.hpp"
#include "dtrain/identity/resolve_identity.hpp"
#include "support/contains.hpp"

namespace outcome {

using support::contains;

/// An environment written as env(1) takes it: "RANK=0 WORLD_SIZE=2".
inline dtrain::identity::Environment variables(const std::string& assignments) {
  dtrain::identity::Environment environment;
  std::istringstream stream(assignments);
  for (std::string assignment; stream >> assignment;) {
    const std::size_t equals = assignment.find('=');
    environment[assignment.substr(0, equals)] = assignment.substr(equals + 1);
  }
  return environment;
}

/// The code and the sentence of an error; both empty for an identity.
struct Refusal {
  std::string code;
  std::string sentence;
};

template <class Function>
Refusal refusal(Function function) {
  try {
    function();
  } catch (const dtrain::identity::IdentityError& error) {
    return {std::string(name(error.reason())), error.what()};
  }
  return {};
}

inline Refusal refusal_of(const dtrain::identity::Environment& environment, std::vector<const char*> arguments = {}) {
  return refusal([&] { static_cast<void>(dtrain::identity::process_identity(environment, arguments)); });
}

inline Refusal node_refusal_of(const dtrain::identity::Environment& environment,
                               const dtrain::identity::NodeFlags& flags = {}) {
  return refusal([&] { static_cast<void>(dtrain::identity::node_identity(environment, flags)); });
}

}  // namespace outcome
