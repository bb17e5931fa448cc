#pragma once
/// @file
/// The headers that most tests of examples/ use.

#include "examples/gpt2/model.hpp"
#include "loss.hpp"
#include "support/prelude.hpp"

namespace examples_test {

/// Notes who was ready, in which order.
struct Recorder final : dtrain::Ready::Sink {
  void ready(const dtrain::ReadyGradient& gradient) override { order.push_back(gradient.parameter); }
  std::vector<std::size_t> order;
};

/// The elements of all gradients, one parameter after the other.
inline std::vector<double> gradients_of(const std::vector<dtrain::Parameter>& parameters) {
  std::vector<double> all;
  for (const dtrain::Parameter& parameter : parameters) {
    const auto values = parameter.gradient.as<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// What a program's parse_options makes of the flags.
template <class Parse>
auto parsed(Parse parse_options, std::vector<std::string> flags) {
  flags.insert(flags.begin(), "program");
  std::vector<char*> pointers;
  for (std::string& flag : flags)
    pointers.push_back(flag.data());
  return parse_options(pointers);
}

}  // namespace examples_test

using examples_test::Recorder;
