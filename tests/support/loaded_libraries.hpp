#pragma once
/// @file
/// Which NCCL and CUDA runtime this process has loaded.

#include <link.h>

#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/error.hpp"

namespace support {

/// Paths of the loaded shared libraries whose file names begin with `name`, each once.
inline std::vector<std::string> loaded_libraries(std::string_view name) {
  struct Search {
    std::string_view name;
    std::vector<std::string> found;
  } search{name, {}};
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* argument) {
        Search& into = *static_cast<Search*>(argument);
        const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
        if (path.substr(path.rfind('/') + 1).starts_with(into.name)) into.found.emplace_back(path);
        return 0;
      },
      &search);
  return search.found;
}

/// "NAME's path", or "linked statically". @throws dtrain::Error (unsupported) if there are two
inline std::string loaded_library(std::string_view name) {
  const std::vector<std::string> paths = loaded_libraries(name);
  if (paths.size() > 1) {
    throw dtrain::Error(dtrain::Errc::unsupported, "this process has loaded two of " + std::string(name) + ", " +
                                                       paths[0] + " and " + paths[1] +
                                                       ": put the folder of one of them first in LD_LIBRARY_PATH");
  }
  return paths.empty() ? "linked statically" : paths[0];
}

}  // namespace support
