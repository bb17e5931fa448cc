#pragma once
/// @file
/// Member function definitions of AtomicFile.

#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/source_location.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/atomic_file.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void detail::require_file_name(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw_error(Errc::invalid_argument,
                "the name of the file {} has a zero byte in it, which no file's name can have; name another",
                {sanitize(path)});
  }
}

DTRAIN_DEFINED std::string detail::behind_link(const std::string& path) {
  constexpr int most_links = 40;  // Linux's own bound
  std::string name = path;
  for (int links = 0; links < most_links; ++links) {
    char target[PATH_MAX];
    const ssize_t length = ::readlink(name.c_str(), target, sizeof target);
    if (length <= 0 || length == static_cast<ssize_t>(sizeof target)) {  // no link, or none that can be read
      struct stat there {};
      const bool is_no_name = ::stat(name.c_str(), &there) != 0 && ::stat(path.c_str(), &there) == 0;
      return is_no_name ? path : name;  // "pipe:[7]", the link of a process to its pipe
    }
    const std::string_view next(target, static_cast<std::size_t>(length));
    const std::size_t folder = next.front() == '/' ? 0 : name.rfind('/') + 1;  // 0 without '/'
    name = name.substr(0, folder).append(next);
  }
  return path;  // links in a circle, which open() refuses
}

namespace detail {

/// Whether a file system without this call answers so, or a policy forbids the call.
inline bool is_refused_call(int number) noexcept {
  return number == EPERM || number == EACCES || number == ENOSYS || number == EINVAL || number == EOPNOTSUPP;
}

}  // namespace detail

DTRAIN_DEFINED AtomicFile::AtomicFile(const std::string& path)
    : path_(detail::behind_link(path)), part_(path_ + ".part") {
  detail::require_file_name(path);
  inspect_replaced();
  for (int tries = 1; !create_and_lock(); ++tries) {
    if (tries == most_tries) fail(EBUSY);
  }
}

DTRAIN_DEFINED void AtomicFile::write(std::span<const std::byte> bytes) {
  const BlockedWriteSignals no_signal;
  while (!bytes.empty()) {
    const ssize_t written = ::write(descriptor_.get(), bytes.data(), bytes.size());
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

DTRAIN_DEFINED void AtomicFile::sync() {
  if (::fsync(descriptor_.get()) == 0) return;
  if (!detail::is_refused_call(errno)) fail(errno);
  // Without fsync, a file system tells of a write that failed when a descriptor is closed.
  const int copy = ::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0 || (::close(copy) != 0 && errno != EINTR)) fail(errno);
}

DTRAIN_DEFINED void AtomicFile::commit() {
  give_permissions();
  sync();
  if (!is_named(descriptor_)) refuse_second_writer();  // which found no lock
  if (std::rename(part_.c_str(), path_.c_str()) != 0) fail_renaming(errno);
  has_name_ = true;
  descriptor_.reset();
  sync_folder();
}

DTRAIN_DEFINED void AtomicFile::inspect_replaced() {
  struct stat there {};
  if (::stat(path_.c_str(), &there) != 0) {
    if (errno == ELOOP) fail(errno);
    return;
  }
  if (!S_ISREG(there.st_mode)) {
    refuse(Errc::invalid_argument, "it is no regular file, and would be replaced by one; name another");
  }
  replaced_ = {there.st_uid, there.st_gid};
  mode_ = there.st_mode & 0777;
}

DTRAIN_DEFINED bool AtomicFile::create_and_lock() {
  // A new file gets the permissions that the umask leaves.
  const mode_t created = !replaced_ ? 0666 : can_chmod_ ? 0600 : mode_;
  descriptor_ = Descriptor(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, created));
  if (!descriptor_) {
    if (errno == EEXIST) {
      remove_leftover();
    } else if (errno != EINTR) {
      fail(errno);
    }
    return false;
  }
  if (!lock(descriptor_)) refuse_second_writer();
  if (!is_named(descriptor_)) {
    descriptor_.reset();
    return false;
  }
  return narrow();
}

DTRAIN_DEFINED bool AtomicFile::narrow() {
  const struct stat status = status_of(descriptor_);
  if (!replaced_) mode_ = status.st_mode & 0777;
  if (!can_chmod_ || ::fchmod(descriptor_.get(), 0600) == 0) return true;
  if (!detail::is_refused_call(errno)) fail(errno);
  can_chmod_ = false;
  if (!replaced_) return true;
  // commit() cannot widen the permissions, so the file is created again with those that it is to have.
  if (status.st_gid != replaced_->group) mode_ &= ~static_cast<mode_t>(S_IRWXG);
  abandon();
  return false;
}

DTRAIN_DEFINED void AtomicFile::remove_leftover() {
  struct stat named {};
  if (::lstat(part_.c_str(), &named) != 0) {
    if (errno == ENOENT) return;
    fail(errno);
  }
  if (named.st_uid != ::geteuid() && !(replaced_ && named.st_uid == replaced_->owner)) {
    refuse(Errc::refused,
           format_text("{} is of user {}, this process of user {}; remove it if no process is writing it",
                       {part_, named.st_uid, ::geteuid()}));
  }
  const Descriptor left(::open(part_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!left) {
    if (errno == ENOENT || errno == EINTR) return;
    fail(errno);
  }
  if (!S_ISREG(status_of(left).st_mode)) fail(EINVAL);
  if (!lock(left)) refuse_second_writer();
  if (is_named(left) && ::unlink(part_.c_str()) != 0 && errno != ENOENT) fail(errno);
}

DTRAIN_DEFINED bool AtomicFile::lock(const Descriptor& file) noexcept {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

DTRAIN_DEFINED void AtomicFile::refuse_second_writer() {
  descriptor_.reset();  // the other writer's file is not removed
  refuse(Errc::refused, format_text("another process is writing {}; give each job a file of its own", {part_}));
}

DTRAIN_DEFINED void AtomicFile::refuse(Errc code, std::string_view why, SourceLocation where) const {
  throw_error(code, "writing the file {} failed: {}", {path_, why}, where);
}

DTRAIN_DEFINED struct stat AtomicFile::status_of(const Descriptor& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail(errno);
  return status;
}

DTRAIN_DEFINED bool AtomicFile::is_named(const Descriptor& file) {
  const struct stat mine = status_of(file);
  struct stat named {};
  return ::lstat(part_.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

DTRAIN_DEFINED void AtomicFile::give_permissions() {
  mode_t mode = mode_;
  if (replaced_ && status_of(descriptor_).st_gid != replaced_->group &&
      ::fchown(descriptor_.get(), static_cast<uid_t>(-1), replaced_->group) != 0) {
    mode &= ~static_cast<mode_t>(S_IRWXG);
  }
  if (::fchmod(descriptor_.get(), mode) != 0 && !detail::is_refused_call(errno)) fail(errno);
  if (replaced_ && status_of(descriptor_).st_uid != replaced_->owner) {
    // Last, because a process that has given a file away may not change its permissions. Only root can give it away.
    static_cast<void>(::fchown(descriptor_.get(), replaced_->owner, static_cast<gid_t>(-1)) == 0);
  }
}

DTRAIN_DEFINED void AtomicFile::sync_folder() {
  const std::size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EBADF: some network file systems do not sync what is open for reading alone.
  if (opened && ::fsync(opened.get()) != 0 && errno != EBADF && !detail::is_refused_call(errno)) {
    throw posix_error(errno, format_text("writing the folder of the file {} to its disk failed", {path_}));
  }
}

DTRAIN_DEFINED void AtomicFile::abandon() noexcept {
  if (descriptor_) {
    static_cast<void>(::unlink(part_.c_str()));
    descriptor_.reset();
  }
}

DTRAIN_DEFINED void AtomicFile::fail_renaming(int number) {
  abandon();
  const bool is_mount_point = number == EBUSY || number == EXDEV;
  throw posix_error(number, format_text("writing the file {} failed: renaming {}", {path_, part_}),
                    is_mount_point
                        ? "what was there is unchanged; the file itself seems to be mounted (into a container), and "
                          "such a file cannot be replaced: mount its folder"
                        : "what was there is unchanged; name a file in a folder whose files can be renamed");
}

DTRAIN_DEFINED void AtomicFile::fail(int number) {
  abandon();
  throw posix_error(number, "writing the file " + path_ + " failed",
                    "what was there is unchanged; name a file in a folder that can be written and has room");
}

}  // namespace DTRAIN_NAMESPACE::ddp
