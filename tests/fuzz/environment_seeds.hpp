#pragma once
/// @file
/// The launch vectors of the unit tests as inputs: one line NAME=value for each variable, then the arguments.

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dtrain/identity/formats/json.hpp"
#include "fuzz/fuzz.hpp"

namespace fuzz {

/// @pre the folder of tests is where it was when this program was compiled
inline std::vector<std::string> environment_seeds() {
  std::ifstream file(DTRAIN_TESTS_DIR "/unit/identity/launch_vectors.json", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<std::string> seeds;
  const auto vectors = dtrain::identity::parse_json(text);
  require(vectors && !vectors->items.empty(), "tests/unit/identity/launch_vectors.json has vectors");
  for (const auto& vector : vectors->items) {
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
