#pragma once
/// @file
/// The launch vectors of the unit tests as inputs: one line NAME=value for each variable, then the arguments.

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dtrain/identity/formats/json.hpp"

namespace fuzz {

/// None where the sources are not beside this program any more.
inline std::vector<std::string> environment_seeds() {
  const std::string here = __FILE__;
  std::ifstream file(here.substr(0, here.rfind('/')) + "/../unit/identity/launch_vectors.json", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> seeds;
  const auto vectors = dtrain::identity::parse_json(text);
  for (const auto& vector : vectors ? vectors->items : std::vector<dtrain::identity::Json>()) {
    std::string& seed = seeds.emplace_back();
    const dtrain::identity::Json& environment = *vector.find("env");
    for (std::size_t i = 0; i < environment.keys.size(); ++i) {
      seed += environment.keys[i] + "=" + environment.items[i].text + "\n";
    }
    if (const dtrain::identity::Json* const arguments = vector.find("argv")) {
      for (const auto& argument : arguments->items) {
        seed += argument.text + "\n";
      }
    }
  }
  return seeds;
}

}  // namespace fuzz
