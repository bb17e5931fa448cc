#pragma once
/// @file
/// AtomicFile: replaces a checkpoint file as a whole or not at all. WritingAttempt: the elastic attempt that writes it.

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/group/group_handle.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The final target of a symbolic link, which is written instead of the link, and need not exist; any other path, and
/// links in a circle, unchanged.
std::string behind_link(const std::string& path);

/// The files whose paths begin with `beginning`, in its folder.
std::vector<std::string> files_that_begin(const std::string& beginning);

}  // namespace detail

/// The attempt of an elastic job in which a file is written. A writer may be stopped (SIGSTOP) while the next attempt
/// writes the same file: it must neither lock that attempt out nor replace the newer file when it continues.
struct WritingAttempt {
  static WritingAttempt of(const group::GroupHandle& group) { return {group.elastic_attempt(), group.failure()}; }

  std::uint64_t number = 0;                       ///< 0: the job is not elastic
  std::shared_ptr<const FailureLatch> failure{};  ///< the attempt's latch
};

/// Writes PATH.part and replaces `path` by it in commit().
/// - Until commit() `path` is unchanged. A kill, a full disk or a power loss leaves the old content or the new one.
/// - A symbolic link stays; its target is replaced. The permissions stay, and if possible the owner and the group.
/// - Where chmod fails, as on some mounts, the permissions are those that the mount and the umask give. Where fsync
/// fails, the file system alone decides when the bytes are on the disk.
/// - Without commit() no file remains. Only a killed process leaves PATH.part, which no other user may read and which
/// its owner's next writer removes.
/// - A writer locks PATH.part until its end, so that two writers do not mix their bytes. On a file system without locks
///   a second writer replaces PATH.part, and commit() of the first one throws Error (refused).
/// - In an elastic job the file is PATH.part.attempt-NUMBER. write() and commit() throw the attempt's cause once the
/// attempt has failed; commit() throws Error (refused) if another writer has replaced `path` meanwhile. A later writer
/// of an elastic job removes the file of a killed one, whatever its attempt, if the file system has locks, which show
/// that nobody writes it. Blocking: the file system. Threads: one.
class AtomicFile {
 public:
  /// @throws Error (the system's code) naming the file; (invalid_argument) for a folder, a device or a pipe; (refused)
  /// if another process is writing the file, or PATH.part belongs to another user
  explicit AtomicFile(const std::string& path, WritingAttempt attempt = {});
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile() { abandon(); }

  /// Appends `bytes`, or replaces written ones from `offset` on. @throws as the constructor
  void write(std::span<const std::byte> bytes, std::optional<std::uint64_t> offset = {});

  /// Puts the bytes on the disk, so that commit() has less to do. @throws as the constructor
  void sync();

  /// Puts the bytes on the disk and under their name. The last call on this object. @throws as the constructor
  void commit();

  /// Whether the bytes are under their name, also if commit() has thrown.
  bool has_name() const noexcept { return has_name_; }

 private:
  /// Bounds the retries: collisions are rare, but a file system with inconsistent views of a file would repeat them.
  static constexpr int most_tries = 100;

  /// After as many bytes a writer sees whether its attempt has failed.
  static constexpr std::size_t most_at_once = std::size_t{16} << 20;

  /// Rejects other than regular files: as root, renaming would replace /dev/null by a file.
  void inspect_replaced();

  /// Creates PATH.part, which only this user may open. @returns false if a retry may succeed
  bool create_and_lock();

  /// Lets only this user open PATH.part until commit(), if the file system allows chmod. @returns false if the file was
  /// removed, to be created with its final permissions
  bool narrow();

  /// Removes what killed writers of other attempts, also of earlier jobs, have left. @throws the cause if the attempt
  /// has failed: then the other files may be those of a later one
  void remove_other_parts();

  /// @throws as commit() in an elastic job whose later attempts may have written the file
  void require_latest();

  void throw_if_attempt_failed();

  /// Removes a killed writer's PATH.part. It is not reused: a process that has it open could read or write new content.
  /// @param needs_lock leave the file on a file system without locks, where nothing shows whether its writer lives
  void remove_leftover(bool needs_lock);

  /// @returns false if another process holds the lock; !needs_lock for a file system without locks
  static bool lock(const Descriptor& file, bool needs_lock) noexcept;

  [[noreturn]] void refuse_second_writer();

  [[noreturn]] void refuse(Errc code, std::string_view why, SourceLocation where = SourceLocation::current()) const;

  struct stat status_of(const Descriptor& file);

  /// Whether `name` is this file's. PATH.part may not be: its writer may have renamed it before it was locked.
  bool is_named(const Descriptor& file, const std::string& name);

  /// Never grants more than the replaced file did. If that file's group cannot be set, the group gets no permissions.
  void give_permissions();

  /// Syncs the renaming to the disk, if the file system supports fsync of a folder.
  void sync_folder();

  void abandon() noexcept;

  [[noreturn]] void fail_renaming(int number);
  [[noreturn]] void fail(int number);

  std::string path_;
  std::string part_;
  WritingAttempt attempt_;
  std::optional<struct stat> replaced_;  ///< the file that exists already
  mode_t mode_ = 0;                      ///< permissions of the file after commit()
  bool can_chmod_ = true;                ///< false once the file system has denied it
  bool has_name_ = false;
  Descriptor descriptor_;
  std::uint64_t size_ = 0;  ///< bytes written
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

namespace DTRAIN_NAMESPACE::ddp {

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
  return path;  // links in a circle, which open() rejects
}

DTRAIN_DEFINED std::vector<std::string> detail::files_that_begin(const std::string& beginning) {
  const std::size_t name_at = beginning.rfind('/') + 1;  // 0 without '/'
  const std::string folder = beginning.substr(0, name_at);
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(::opendir(folder.empty() ? "." : folder.c_str()), &::closedir);
  while (const dirent* const entry = opened ? ::readdir(opened.get()) : nullptr) {
    const std::string_view name = entry->d_name;
    if (name.starts_with(std::string_view(beginning).substr(name_at))) found.push_back(folder + entry->d_name);
  }
  return found;
}

namespace detail {

/// Whether no process has replaced the file in between. The inode number alone does not show it: a later file may get
/// the number again.
inline bool is_same_file(const struct stat& a, const struct stat& b) noexcept {
  return a.st_ino == b.st_ino && a.st_dev == b.st_dev && a.st_size == b.st_size &&
         a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec;
}

/// The system would read the name only up to its first zero byte. @throws Error (invalid_argument)
inline void require_file_name(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw_error(Errc::invalid_argument,
                "the name of the file {} has a zero byte in it, which no file's name can have; name another",
                {sanitize(path)});
  }
}

/// Calls fsync again where a signal has interrupted it, as file systems of FUSE allow: that is no error of the disk.
/// @returns whether fsync succeeded; if not, errno has the reason
inline bool sync_to_disk(const Descriptor& file) noexcept {
  while (::fsync(file.get()) != 0) {
    if (errno != EINTR) return false;
  }
  return true;
}

/// Whether the error is that of a file system without this call, or of a policy that forbids it.
inline bool is_refused_call(int number) noexcept {
  return number == EPERM || number == EACCES || number == ENOSYS || number == EINVAL || number == EOPNOTSUPP;
}

}  // namespace detail

DTRAIN_DEFINED AtomicFile::AtomicFile(const std::string& path, WritingAttempt attempt)
    : path_(detail::behind_link(path)), part_(path_ + ".part"), attempt_(std::move(attempt)) {
  detail::require_file_name(path);
  inspect_replaced();
  if (attempt_.number != 0) remove_other_parts();
  for (int tries = 1; !create_and_lock(); ++tries) {
    if (tries == most_tries) fail(EBUSY);
  }
}

DTRAIN_DEFINED void AtomicFile::write(std::span<const std::byte> bytes, std::optional<std::uint64_t> offset) {
  const BlockedWriteSignals no_signal;
  for (std::uint64_t at = offset.value_or(size_); !bytes.empty();) {
    if (attempt_.number != 0) throw_if_attempt_failed();
    const std::size_t count = std::min(bytes.size(), most_at_once);
    const ssize_t written = ::pwrite(descriptor_.get(), bytes.data(), count, static_cast<off_t>(at));
    if (written >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      at += static_cast<std::uint64_t>(written);
      size_ = std::max(size_, at);
    } else if (errno != EINTR) {
      fail(errno);
    }
  }
}

DTRAIN_DEFINED void AtomicFile::sync() {
  if (detail::sync_to_disk(descriptor_)) return;
  if (!detail::is_refused_call(errno)) fail(errno);
  // Without fsync, a file system reports a failed write when a descriptor is closed.
  const int copy = ::fcntl(descriptor_.get(), F_DUPFD_CLOEXEC, 0);
  if (copy < 0 || (::close(copy) != 0 && errno != EINTR)) fail(errno);
}

DTRAIN_DEFINED void AtomicFile::commit() {
  give_permissions();
  sync();
  if (!is_named(descriptor_, part_)) refuse_second_writer();  // a second writer found no lock
  if (attempt_.number != 0) require_latest();
  const int error = std::rename(part_.c_str(), path_.c_str()) == 0 ? 0 : errno;
  // A network file system that lost the first answer has renamed the file, and fails the second call.
  if (error != 0 && !is_named(descriptor_, path_)) fail_renaming(error);
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
  replaced_ = there;
  mode_ = there.st_mode & 0777;
}

DTRAIN_DEFINED bool AtomicFile::create_and_lock() {
  // A new file gets the permissions that the umask leaves.
  const mode_t created = !replaced_ ? 0666 : can_chmod_ ? 0600 : mode_;
  descriptor_ = Descriptor(::open(part_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, created));
  if (!descriptor_) {
    if (errno == EEXIST) {
      remove_leftover(false);
    } else if (errno != EINTR) {
      fail(errno);
    }
    return false;
  }
  if (!lock(descriptor_, false)) refuse_second_writer();
  if (!is_named(descriptor_, part_)) {
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
  if (status.st_gid != replaced_->st_gid) mode_ &= ~static_cast<mode_t>(S_IRWXG);
  abandon();
  return false;
}

DTRAIN_DEFINED void AtomicFile::remove_other_parts() {
  const std::string part = part_ + ".attempt-";  // "PATH.part.12" may be a file that the user has split
  const std::string own = part + std::to_string(attempt_.number);
  for (std::string& name : detail::files_that_begin(part)) {
    const std::string_view number = std::string_view(name).substr(part.size());
    const bool is_attempt =
        !number.empty() && number.front() != '0' && number.find_first_not_of("0123456789") == std::string_view::npos;
    if (!is_attempt || name == own) continue;
    throw_if_attempt_failed();
    part_ = std::move(name);
    try {
      remove_leftover(true);
    } catch (const Error&) {  // its writer is stopped, or the file is another user's: no writer needs the name
    }
  }
  part_ = own;
}

DTRAIN_DEFINED void AtomicFile::throw_if_attempt_failed() {
  if (!attempt_.failure->failed()) return;
  abandon();
  throw_cause(*attempt_.failure->cause());
}

DTRAIN_DEFINED void AtomicFile::require_latest() {
  struct stat there {};
  const bool exists = ::stat(path_.c_str(), &there) == 0;
  const bool is_same = exists == replaced_.has_value() && (!exists || detail::is_same_file(there, *replaced_));
  throw_if_attempt_failed();
  if (!is_same) abandon();
  if (!is_same) refuse(Errc::refused, "another process has replaced it meanwhile; give each job a file of its own");
}

DTRAIN_DEFINED void AtomicFile::remove_leftover(bool needs_lock) {
  struct stat named {};
  if (::lstat(part_.c_str(), &named) != 0) {
    if (errno == ENOENT) return;
    fail(errno);
  }
  if (named.st_uid != ::geteuid() && !(replaced_ && named.st_uid == replaced_->st_uid)) {
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
  if (!lock(left, needs_lock)) refuse_second_writer();
  if (is_named(left, part_) && ::unlink(part_.c_str()) != 0 && errno != ENOENT) fail(errno);
}

DTRAIN_DEFINED bool AtomicFile::lock(const Descriptor& file, bool needs_lock) noexcept {
  return ::flock(file.get(), LOCK_EX | LOCK_NB) == 0 || (errno != EWOULDBLOCK && !needs_lock);
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

DTRAIN_DEFINED bool AtomicFile::is_named(const Descriptor& file, const std::string& name) {
  const struct stat mine = status_of(file);
  struct stat named {};
  return ::lstat(name.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
}

DTRAIN_DEFINED void AtomicFile::give_permissions() {
  mode_t mode = mode_;
  if (replaced_ && status_of(descriptor_).st_gid != replaced_->st_gid &&
      ::fchown(descriptor_.get(), static_cast<uid_t>(-1), replaced_->st_gid) != 0) {
    mode &= ~static_cast<mode_t>(S_IRWXG);
  }
  if (::fchmod(descriptor_.get(), mode) != 0 && !detail::is_refused_call(errno)) fail(errno);
  if (replaced_ && status_of(descriptor_).st_uid != replaced_->st_uid) {
    // Last, because a process that has given a file away may not change its permissions. Only root can give a file
    // away.
    static_cast<void>(::fchown(descriptor_.get(), replaced_->st_uid, static_cast<gid_t>(-1)) == 0);
  }
}

DTRAIN_DEFINED void AtomicFile::sync_folder() {
  const std::size_t slash = path_.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
  const Descriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EBADF: some network file systems do not sync a descriptor that is open for reading only.
  if (opened && !detail::sync_to_disk(opened) && errno != EBADF && !detail::is_refused_call(errno)) {
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

#endif  // DTRAIN_DEFINITIONS
