#pragma once
/// @file
/// AtomicFile: a file that appears whole or not at all.

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

#include "dtrain/async/descriptor.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/sanitize.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The system would take the name up to its first zero byte for another file's. @throws Error (invalid_argument)
inline void require_file_name(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(Errc::invalid_argument, "the name of the file " + sanitize(path) +
                                            " has a zero byte in it, which no file's name can have; name another");
  }
}

/// What a symbolic link names in the end, which is to be written instead of the link; any other path as it is.
inline std::string behind_link(const std::string& path) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || !S_ISLNK(status.st_mode)) return path;
  const std::unique_ptr<char, void (*)(void*)> target(::realpath(path.c_str(), nullptr), &std::free);
  return target ? std::string(target.get()) : path;  // to nothing: then it becomes the file
}

}  // namespace detail

/// Takes bytes for `path`, which commit() puts there in place of what it was; until then that is unchanged, and a kill,
/// a full disk or a lost power supply leaves either the old content or the new one. A symbolic link stays one: what it
/// names is replaced. The permissions stay, and where the system allows it the owner and the group. Lifetime: without
/// commit() nothing remains. What a killed process leaves is PATH.part, which no other user may read and which its
/// owner's next writer removes; it is locked as long as its writer lives, so that two writers do not mix. Blocking: the
/// file system. Threads: none but the one that uses it.
class AtomicFile {
 public:
  /// @throws Error (the system's code) naming the file; (invalid_argument) for a folder, a device or a pipe; (refused)
  /// where another process is writing it, or a PATH.part is another user's
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

  /// Appends. @throws as the constructor
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

  /// The bytes are on the disk and under their name. Nothing may follow. @throws as the constructor
  void commit() {
    give_permissions();
    if (::fsync(descriptor_.get()) != 0) fail(errno);
    if (std::rename(part_.c_str(), path_.c_str()) != 0) fail(errno);
    descriptor_.reset();
    sync_folder();
  }

 private:
  /// Two writers seldom meet; a file system whose two ways to a file disagree about it would keep this one for ever.
  static constexpr int most_tries = 100;

  /// Renaming would put a file where /dev/null was, for root.
  void inspect_replaced() {
    struct stat there {};
    if (::stat(path_.c_str(), &there) != 0) return;
    if (!S_ISREG(there.st_mode)) {
      throw Error(Errc::invalid_argument, "writing the file " + path_ + " failed: it is no regular file, " +
                                              "and would be replaced by one; name another");
    }
    replaced_ = {there.st_uid, there.st_gid};
    mode_ = there.st_mode & 0777;
  }

  /// A file that no process has opened before, and that only this user may open. @returns false where another try may
  /// find it free
  bool create_and_lock() {
    const mode_t created = replaced_ ? 0600 : 0666;  // what is new has the permissions that the umask leaves it
    descriptor_ =
        async::Descriptor(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, created));
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

  /// What a killed writer left: whoever has it open is not to read or write what comes now, so it is not used again.
  void remove_leftover() {
    struct stat named {};
    if (::lstat(part_.c_str(), &named) != 0) {
      if (errno == ENOENT) return;
      fail(errno);
    }
    if (named.st_uid != ::geteuid() && !(replaced_ && named.st_uid == replaced_->owner)) {
      throw Error(Errc::refused, "writing the file " + path_ + " failed: " + part_ + " is of user " +
                                     std::to_string(named.st_uid) + ", this process of user " +
                                     std::to_string(::geteuid()) + "; remove it if no process is writing it");
    }
    const async::Descriptor left(::open(part_.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!left) {
      if (errno == ENOENT || errno == EINTR) return;
      fail(errno);
    }
    if (!S_ISREG(status_of(left).st_mode)) fail(EINVAL);
    if (!lock(left)) refuse_second_writer();
    if (is_named(left) && ::unlink(part_.c_str()) != 0 && errno != ENOENT) fail(errno);
  }

  /// @returns false where another process has it. Where the file system has no locks, no process is kept out.
  static bool lock(const async::Descriptor& file) noexcept {
    return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  }

  [[noreturn]] void refuse_second_writer() {
    descriptor_.reset();  // what is not this writer's is not removed
    throw Error(Errc::refused, "writing the file " + path_ + " failed: another process is writing " + part_ +
                                   "; give each job a file of its own");
  }

  struct stat status_of(const async::Descriptor& file) {
    struct stat status {};
    if (::fstat(file.get(), &status) != 0) fail(errno);
    return status;
  }

  /// Whether PATH.part is this file still: its writer may have renamed it before it could be locked.
  bool is_named(const async::Descriptor& file) {
    const struct stat mine = status_of(file);
    struct stat named {};
    return ::lstat(part_.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  }

  /// Never more than what is replaced had: where its group cannot be given, the file's own group may nothing.
  void give_permissions() {
    mode_t mode = mode_;
    if (replaced_ && status_of(descriptor_).st_gid != replaced_->group &&
        ::fchown(descriptor_.get(), static_cast<uid_t>(-1), replaced_->group) != 0) {
      mode &= ~static_cast<mode_t>(S_IRWXG);
    }
    if (::fchmod(descriptor_.get(), mode) != 0) fail(errno);
    if (replaced_ && status_of(descriptor_).st_uid != replaced_->owner) {
      // Last: who has given a file away may not change its permissions. Only root may; others keep the file.
      static_cast<void>(::fchown(descriptor_.get(), replaced_->owner, static_cast<gid_t>(-1)) == 0);
    }
  }

  /// The renaming itself is on the disk, where the file system can say so of a folder.
  void sync_folder() {
    const std::size_t slash = path_.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    const async::Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (opened && ::fsync(opened.get()) != 0 && errno != EINVAL) {
      throw posix_error(errno, "writing the folder of the file " + path_ + " to its disk failed");
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
  std::optional<FileOwner> replaced_;  ///< whose the file is that is there already
  mode_t mode_ = 0;                    ///< of the file in the end
  async::Descriptor descriptor_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
