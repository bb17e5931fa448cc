#pragma once
/// @file
/// How many files this process may have open, and raising that.

#include <dirent.h>
#include <sys/resource.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <optional>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// The soft limit before it was raised, and what it was raised to; 0 while it has not been.
inline std::atomic<rlim_t> files_before{0};
inline std::atomic<rlim_t> files_raised_to{0};

}  // namespace detail

/// How many files this process may have open; nothing where the system does not say so.
inline std::optional<std::size_t> open_files_limit() noexcept {
  rlimit files{};
  return ::getrlimit(RLIMIT_NOFILE, &files) == 0 ? std::optional<std::size_t>(files.rlim_cur) : std::nullopt;
}

/// Raises the soft limit of open files to the hard one, which needs no privilege; where that cannot be, it stays. The
/// usual 1024 protects programs that call select(), whose sets end there; a store of a large job needs more. What this
/// process starts gets the former limit back (open_files_for_children): it may call select(), or close all that it
/// could have open. Go's runtime does both alike.
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

/// The limits for what this process starts: those before raise_open_files, unless somebody has changed them since.
/// Nothing where they are this process's.
inline std::optional<rlimit> open_files_for_children() noexcept {
  rlimit files{};
  if (detail::files_before.load() == 0 || ::getrlimit(RLIMIT_NOFILE, &files) != 0 ||
      files.rlim_cur != detail::files_raised_to.load() || files.rlim_max < detail::files_before.load()) {
    return std::nullopt;
  }
  files.rlim_cur = detail::files_before.load();
  return files;
}

/// How many files this process has open; 0 where the system does not say so.
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
  return entries - 3;  // ".", ".." and the folder's own
}

/// Whether `more` files can be opened beside those that are open, once the soft limit is raised where it is too low.
inline bool make_room_for_files(std::size_t more) noexcept {
  const auto has_room = [more] {
    const std::optional<std::size_t> limit = open_files_limit();
    errno = 0;
    const std::size_t open = open_files();
    return !limit || (errno != EMFILE && open + more <= *limit);
  };
  if (!has_room()) {
    raise_open_files();
  }
  return has_room();
}

}  // namespace DTRAIN_NAMESPACE
