#pragma once
/// @file
/// Limit of this process's open files, raised for a store of many ranks; child processes get the former limit.

#include <dirent.h>
#include <sys/resource.h>

#include <atomic>
#include <cstddef>
#include <optional>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// The soft limit before and after raise_open_files(); 0 before that call.
inline std::atomic<rlim_t> files_before{0};
inline std::atomic<rlim_t> files_raised_to{0};

}  // namespace detail

/// Maximum number of open files of this process; empty if the system cannot answer.
inline std::optional<std::size_t> open_files_limit() noexcept {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) == 0 ? std::optional<std::size_t>(files.rlim_cur) : std::nullopt;
}

/// Raises the soft limit of open files to the hard one, without privileges; if that fails, the limit stays. The usual
/// 1024 protects programs that call select(), whose sets have that size; a store of a large job needs more. Child
/// processes get the former limit back (open_files_for_children), because they may call select(), or close every
/// possible descriptor. Go's runtime does both in the same way.
inline void raise_open_files() noexcept {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= files.rlim_max) {
    return;
  }
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = files.rlim_max;
  if (::setrlimit(RLIMIT_NOFILE, &files) == 0) {
    rlim_t none = 0;
    detail::files_before.compare_exchange_strong(none, before);
    detail::files_raised_to.store(files.rlim_max);
  }
}

/// The limits for child processes: those before raise_open_files, unless they were changed since. Empty if children
/// inherit the limits of this process.
inline std::optional<rlimit> open_files_for_children() noexcept {
  rlimit files{};
  if (detail::files_before.load() == 0 || ::getrlimit(RLIMIT_NOFILE, &files) != 0 ||
      files.rlim_cur != detail::files_raised_to.load() || files.rlim_max < detail::files_before.load()) {
    return std::nullopt;
  }
  files.rlim_cur = detail::files_before.load();
  return files;
}

/// Number of open files of this process; 0 if the system cannot answer.
inline std::size_t open_files() noexcept {
  ::DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) {
    return 0;
  }
  std::size_t entries = 0;
  while (::readdir(folder) != nullptr) {
    ++entries;
  }
  static_cast<void>(::closedir(folder));
  return entries - 3;  // ".", ".." and the folder's own descriptor
}

}  // namespace DTRAIN_NAMESPACE
