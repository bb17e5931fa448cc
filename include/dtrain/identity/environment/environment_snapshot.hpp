#pragma once
/// @file
/// Environment snapshot: the only reader of the process's real environment.

#include <unistd.h>

#include <cstddef>
#include <string_view>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/identity/environment/variables.hpp"

namespace DTRAIN_NAMESPACE::identity {

/// A copy of ::environ. Entries without a name are skipped. If a name occurs twice, the first entry counts, as in
/// getenv. Threads: no other thread may change the environment meanwhile. @throws Error (limit) beyond 65,536
/// variables.
inline Environment snapshot_environment() {
  constexpr std::size_t most = 65536;
  Environment environment;
  std::size_t seen = 0;
  for (char** entry = ::environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (++seen > most) {
      throw_error(Errc::limit, "reading the environment: it has more than 65536 variables; start with fewer");
    }
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0) {
      environment.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return environment;
}

}  // namespace DTRAIN_NAMESPACE::identity
