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
#include "dtrain/core/printable.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The system would take the name up to its first zero byte for another file's. @throws Error (invalid_argument)
inline void require_file_name(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    throw Error(Errc::invalid_argument, "the name of the file " + printable(path) +
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
/// names is replaced. The permissions stay. Lifetime: without commit() nothing remains. What a killed process leaves is
/// PATH.part, which the next writer takes over; it is locked as long as its writer lives, so that two writers do not
/// mix. Blocking: the file system. Threads: none but the one that uses it.
class AtomicFile {
 public:
  /// @throws Error (the system's code) naming the file; (invalid_argument) for a folder, a device or a pipe
  explicit AtomicFile(const std::string& path) : path_(detail::behind_link(path)), part_(path_ + ".part") {
    detail::require_file_name(path);
    require_replaceable();
    for (int tries = 1; !open_and_lock(); ++tries) {
      if (tries == most_tries) fail(EBUSY);
    }
    if (::ftruncate(descriptor_.get(), 0) != 0) fail(errno);
    if (mode_) give_permissions(*mode_ | S_IWUSR);  // so that the next writer can take over what a killed one leaves
  }
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile() { abandon(); }

  /// Appends. @throws as the constructor
  void write(std::span<const std::byte> bytes) {
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
    if (mode_) give_permissions(*mode_);
    if (::fsync(descriptor_.get()) != 0) fail(errno);
    if (std::rename(part_.c_str(), path_.c_str()) != 0) fail(errno);
    descriptor_.reset();
    sync_folder();
  }

 private:
  /// Two writers seldom meet; a file system whose two ways to a file disagree about it would keep this one for ever.
  static constexpr int most_tries = 100;

  /// Renaming would put a file where /dev/null was, for root.
  void require_replaceable() {
    struct stat there {};
    if (::stat(path_.c_str(), &there) != 0) return;
    mode_ = there.st_mode & 0777;
    group_ = there.st_gid;
    if (!S_ISREG(there.st_mode)) {
      throw Error(Errc::invalid_argument, "writing the file " + path_ + " failed: what is there is no regular file, " +
                                              "and would be replaced by one; name another");
    }
  }

  /// Never more than `mode`: where the group of what is replaced cannot be given, the file's own group may nothing.
  void give_permissions(mode_t mode) {
    struct stat mine {};
    if (::fstat(descriptor_.get(), &mine) != 0) fail(errno);
    if (mine.st_gid != group_ && ::fchown(descriptor_.get(), static_cast<uid_t>(-1), group_) != 0) {
      mode &= ~static_cast<mode_t>(S_IRWXG);
    }
    if ((mine.st_mode & 0777) != mode && ::fchmod(descriptor_.get(), mode) != 0) fail(errno);
  }

  /// @returns false where the file was renamed by its writer before it could be locked
  bool open_and_lock() {
    descriptor_ =
        async::Descriptor(::open(part_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (!descriptor_) {
      if (errno == EINTR) return false;
      fail(errno);
    }
    // Where the file system knows no locks, nobody is kept out.
    if (::flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      descriptor_.reset();
      throw Error(Errc::refused, "writing the file " + path_ + " failed: another process is writing " + part_ +
                                     "; give each job a file of its own");
    }
    struct stat mine {};
    struct stat named {};
    if (::fstat(descriptor_.get(), &mine) != 0) fail(errno);
    if (!S_ISREG(mine.st_mode)) {
      descriptor_.reset();  // what is not this writer's is not removed
      fail(EINVAL);
    }
    return ::stat(part_.c_str(), &named) == 0 && mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
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
  /// @name What is replaced has these permissions and this group, and so has what replaces it.
  /// @{
  std::optional<mode_t> mode_;
  gid_t group_ = 0;
  /// @}
  async::Descriptor descriptor_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
