#pragma once
/// @file
/// This program started again as a launch::PerNode program: the launcher of ranks that are measured, or one of them.

#include <algorithm>
#include <cstring>

#include "dtrain/dtrain.hpp"

namespace bench {

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

/// What tells this program that it is to be a rank or its launcher.
inline constexpr const char* launched_word = "launched-rank";

inline bool is_launched(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc,
                     [](const char* argument) { return std::strcmp(argument, launched_word) == 0; });
}

}  // namespace bench
