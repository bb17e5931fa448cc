#pragma once
/// @file
/// AtomicFile: a file that is replaced as a whole or not at all.

#include <fcntl.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/source_location.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The system would read the name only up to its first zero byte. @throws Error (invalid_argument)
inline void require_file_name(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw_error(Errc::invalid_argument,
                "the name of the file {} has a zero byte in it, which no file's name can have; name another",
                {sanitize(path)});
  }
}

/// The final target of a symbolic link, which is written instead of the link; any other path unchanged.
inline std::string behind_link(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return path;
  const std::unique_ptr<char, void (*)(void*)> target(::realpath(path.c_str(), nullptr), &std::free);
  return target ? std::string(target.get()) : path;  // dangling: the file replaces the link
}

}  // namespace detail

/// Writes PATH.part and replaces `path` by it in commit().
/// - Until commit() `path` is unchanged. A kill, a full disk or a power loss leaves the old content or the new one.
/// - A symbolic link stays; its target is replaced. The permissions stay, and if possible the owner and the group.
/// - Without commit() no file remains. Only a killed process leaves PATH.part, which no other user may read and which
/// its owner's next writer removes.
/// - A writer locks PATH.part while it lives, so that two writers do not mix.
/// Blocking: the file system. Threads: one.
class AtomicFile {
 public:
  /// @throws Error (the system's code) naming the file; (invalid_argument) for a folder, a device or a pipe; (refused)
  /// if another process is writing the file, or PATH.part belongs to another user
  explicit AtomicFile(const std::string& path) : path_(detail::behind_link(path)), part_(path_ + ".part") {
    detail::require_file_name(path);
    inspect_replaced();
    for (int tries = 1; !create_and_lock(); ++tries) {
      if (tries == most_tries) fail(EBUSY);
    }
  }
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile() { abandon(); }

  /// Appends `bytes`. @throws as the constructor
  void write(std::span<const std::byte> bytes) {
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

  /// Puts the bytes on the disk, so that commit() has less to do. @throws as the constructor
  void sync() {
    if (::fsync(descriptor_.get()) != 0) fail(errno);
  }

  /// Puts the bytes on the disk and under their name. The last call on this object. @throws as the constructor
  void commit() {
    give_permissions();
    sync();
    if (std::rename(part_.c_str(), path_.c_str()) != 0) fail(errno);
    has_name_ = true;
    descriptor_.reset();
    sync_folder();
  }

  /// Whether the bytes are under their name, also if commit() has thrown.
  bool has_name() const noexcept { return has_name_; }

 private:
  /// Bounds the retries: collisions are rare, but a file system with inconsistent views of a file would repeat them.
  static constexpr int most_tries = 100;

  /// Rejects other than regular files: as root, renaming would replace /dev/null by a file.
  void inspect_replaced() {
    struct stat there {};
    if (::stat(path_.c_str(), &there) != 0) return;
    if (!S_ISREG(there.st_mode)) {
      refuse(Errc::invalid_argument, "it is no regular file, and would be replaced by one; name another");
    }
    replaced_ = {there.st_uid, there.st_gid};
    mode_ = there.st_mode & 0777;
  }

  /// Creates PATH.part, which no process has opened and only this user may open. @returns false if a retry may succeed
  bool create_and_lock() {
    const mode_t created = replaced_ ? 0600 : 0666;  // a new file gets the permissions that the umask leaves
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
    if (!replaced_) {
      mode_ = status_of(descriptor_).st_mode & 0777;
      if (::fchmod(descriptor_.get(), 0600) != 0) fail(errno);
    }
    return true;
  }

  /// Removes a killed writer's PATH.part. It is not reused: a process that has it open could read or write new content.
  void remove_leftover() {
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

  /// @returns false if another process holds the lock. Without locks in the file system, every writer succeeds.
  static bool lock(const Descriptor& file) noexcept {
    return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  }

  [[noreturn]] void refuse_second_writer() {
    descriptor_.reset();  // the other writer's file is not removed
    refuse(Errc::refused, format_text("another process is writing {}; give each job a file of its own", {part_}));
  }

  [[noreturn]] void refuse(Errc code, std::string_view why, SourceLocation where = SourceLocation::current()) const {
    throw_error(code, "writing the file {} failed: {}", {path_, why}, where);
  }

  struct stat status_of(const Descriptor& file) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail(errno);
    return status;
  }

  /// Whether PATH.part still names this file: its writer may have renamed it before it was locked.
  bool is_named(const Descriptor& file) {
    const struct stat mine = status_of(file);
    struct stat named {};
    return ::lstat(part_.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  }

  /// Never grants more than the replaced file did. If that file's group cannot be set, the group gets no permissions.
  void give_permissions() {
    mode_t mode = mode_;
    if (replaced_ && status_of(descriptor_).st_gid != replaced_->group &&
        ::fchown(descriptor_.get(), static_cast<uid_t>(-1), replaced_->group) != 0) {
      mode &= ~static_cast<mode_t>(S_IRWXG);
    }
    if (::fchmod(descriptor_.get(), mode) != 0) fail(errno);
    if (replaced_ && status_of(descriptor_).st_uid != replaced_->owner) {
      // Last, because a process that has given a file away may not change its permissions. Only root can give it away.
      static_cast<void>(::fchown(descriptor_.get(), replaced_->owner, static_cast<gid_t>(-1)) == 0);
    }
  }

  /// Syncs the renaming to the disk, if the file system supports fsync of a folder.
  void sync_folder() {
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened && ::fsync(opened.get()) != 0 && errno != EINVAL) {
      throw posix_error(errno, format_text("writing the folder of the file {} to its disk failed", {path_}));
    }
  }

  void abandon() noexcept {
    if (descriptor_) {
      static_cast<void>(::unlink(part_.c_str()));
      descriptor_.reset();
    }
  }

  [[noreturn]] void fail(int number) {
    abandon();
    throw posix_error(number, "writing the file " + path_ + " failed",
                      "what was there is unchanged; name a file in a folder that can be written and has room");
  }

  std::string path_;
  std::string part_;
  struct FileOwner {
    uid_t owner;
    gid_t group;
  };
  std::optional<FileOwner> replaced_;  ///< owner of the file that exists already
  mode_t mode_ = 0;                    ///< permissions of the file after commit()
  Descriptor descriptor_;
  bool has_name_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp
