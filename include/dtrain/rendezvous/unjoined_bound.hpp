#pragma once
/// @file
/// How many connections that have not joined a server keeps open.

#include <sys/resource.h>

#include <algorithm>
#include <cstddef>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What is wanted, but at most half of the files that this process may open: the rest is for those who join.
inline std::size_t unjoined_bound(std::size_t wanted) noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) {
    return wanted;
  }
  return std::min(wanted, std::max(static_cast<std::size_t>(files.rlim_cur / 2), std::size_t{1}));
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
