#pragma once
/// @file
/// Limit of pending connections, which a server keeps open before they join.

#include <algorithm>
#include <cstddef>

#include "dtrain/core/process/open_files.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// `wanted`, but at most half of the files that this process may open: the rest is for joined ranks.
inline std::size_t pending_connection_limit(std::size_t wanted) noexcept {
  return std::min(wanted, std::max(open_files_limit().value_or(2 * wanted) / 2, std::size_t{1}));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
