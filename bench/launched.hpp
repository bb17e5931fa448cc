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

/// The same for a program of several kinds of ranks: the kind is the word behind it.
inline bool is_launched_with(const char* kind, int argc, char** argv) {
  for (int i = 1; i + 1 < argc; ++i) {
    if (std::strcmp(argv[i], launched_word) == 0 && std::strcmp(argv[i + 1], kind) == 0) {
      return true;
    }
  }
  return false;
}

}  // namespace bench
