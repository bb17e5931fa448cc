#pragma once
/// @file
/// The flag --hook: which gradient hook a training has.

#include <cstddef>
#include <string>
#include <string_view>

#include "flags.hpp"

namespace shared {

/// "powersgd:4" has the name "powersgd" and the argument 4.
struct HookChoice {
  std::string text = "none";  ///< as it was given
  std::string name = "none";
  double argument = 0;

  bool is_none() const noexcept { return name == "none"; }
};

inline constexpr std::string_view hook_names =
    "none, bf16, f16, bf16:error-feedback, powersgd:RANK, topk:PERCENT or local:STEPS";

/// @throws dtrain::Error (usage) in one sentence for a value that is none of hook_names
inline HookChoice hook_choice(std::string_view flag, std::string_view value) {
  const std::size_t colon = value.find(':');
  HookChoice choice{std::string(value), std::string(value), 0};
  if (value == "none" || value == "bf16" || value == "f16" || value == "bf16:error-feedback") {
    return choice;
  }
  choice.name = value.substr(0, colon);
  const bool has_argument = colon != std::string_view::npos;
  const std::string_view argument = has_argument ? value.substr(colon + 1) : std::string_view();
  if (has_argument && choice.name == "powersgd") {
    choice.argument = number("RANK of " + std::string(flag) + "=powersgd:RANK", argument, 1, 1024);
  } else if (has_argument && choice.name == "topk") {
    choice.argument = number("PERCENT of " + std::string(flag) + "=topk:PERCENT", argument, 0.0, 100.0);
    if (choice.argument == 0) refuse(std::string(flag) + "=topk:PERCENT with 0 would send nothing; give more");
  } else if (has_argument && choice.name == "local") {
    choice.argument = number("STEPS of " + std::string(flag) + "=local:STEPS", argument, 1, 1000000);
  } else {
    refuse(std::string(flag) + " is " + quoted(value) + " instead of " + std::string(hook_names));
  }
  return choice;
}

}  // namespace shared
