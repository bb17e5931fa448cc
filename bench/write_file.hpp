#pragma once
/// @file
/// Writes what a benchmark keeps.

#include <cstdio>
#include <string>

#include "dtrain/core/error.hpp"

namespace bench {

/// @throws Error (posix)
inline void write_file(const std::string& path, const std::string& text) {
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) {
    throw dtrain::errno_error("writing " + path);
  }
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  if (std::fclose(file) != 0 || !written) {
    throw dtrain::errno_error("writing " + path);
  }
}

}  // namespace bench
