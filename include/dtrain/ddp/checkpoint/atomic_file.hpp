#pragma once
/// @file
/// AtomicFile: a file that is replaced as a whole or not at all.

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/source_location.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// The system would read the name only up to its first zero byte. @throws Error (invalid_argument)
void require_file_name(const std::string& path);

/// The final target of a symbolic link, which is written instead of the link, and need not exist; any other path, and
/// links in a circle, unchanged.
std::string behind_link(const std::string& path);

}  // namespace detail

/// Writes PATH.part and replaces `path` by it in commit().
/// - Until commit() `path` is unchanged. A kill, a full disk or a power loss leaves the old content or the new one.
/// - A symbolic link stays; its target is replaced. The permissions stay, and if possible the owner and the group.
/// - Where chmod is refused, as on some mounts, the permissions are those that the mount and the umask give. Where
/// fsync is refused, the file system alone decides when the bytes are on the disk.
/// - Without commit() no file remains. Only a killed process leaves PATH.part, which no other user may read and which
/// its owner's next writer removes.
/// - A writer locks PATH.part while it lives, so that two writers do not mix. On a file system without locks a second
/// writer replaces PATH.part, and commit() of the first one throws Error (refused).
/// Blocking: the file system. Threads: one.
class AtomicFile {
 public:
  /// @throws Error (the system's code) naming the file; (invalid_argument) for a folder, a device or a pipe; (refused)
  /// if another process is writing the file, or PATH.part belongs to another user
  explicit AtomicFile(const std::string& path);
  AtomicFile(AtomicFile&&) = delete;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile() { abandon(); }

  /// Appends `bytes`. @throws as the constructor
  void write(std::span<const std::byte> bytes);

  /// Puts the bytes on the disk, so that commit() has less to do. @throws as the constructor
  void sync();

  /// Puts the bytes on the disk and under their name. The last call on this object. @throws as the constructor
  void commit();

  /// Whether the bytes are under their name, also if commit() has thrown.
  bool has_name() const noexcept { return has_name_; }

 private:
  /// Bounds the retries: collisions are rare, but a file system with inconsistent views of a file would repeat them.
  static constexpr int most_tries = 100;

  /// Rejects other than regular files: as root, renaming would replace /dev/null by a file.
  void inspect_replaced();

  /// Creates PATH.part, which no process has opened and only this user may open. @returns false if a retry may succeed
  bool create_and_lock();

  /// Lets only this user open PATH.part until commit(), if the file system allows chmod. @returns false if the file was
  /// removed, to be created with its final permissions
  bool narrow();

  /// Removes a killed writer's PATH.part. It is not reused: a process that has it open could read or write new content.
  void remove_leftover();

  /// @returns false if another process holds the lock. Without locks in the file system, every writer succeeds.
  static bool lock(const Descriptor& file) noexcept;

  [[noreturn]] void refuse_second_writer();

  [[noreturn]] void refuse(Errc code, std::string_view why, SourceLocation where = SourceLocation::current()) const;

  struct stat status_of(const Descriptor& file);

  /// Whether PATH.part still names this file: its writer may have renamed it before it was locked.
  bool is_named(const Descriptor& file);

  /// Never grants more than the replaced file did. If that file's group cannot be set, the group gets no permissions.
  void give_permissions();

  /// Syncs the renaming to the disk, if the file system supports fsync of a folder.
  void sync_folder();

  void abandon() noexcept;

  [[noreturn]] void fail_renaming(int number);
  [[noreturn]] void fail(int number);

  std::string path_;
  std::string part_;
  struct FileOwner {
    uid_t owner;
    gid_t group;
  };
  std::optional<FileOwner> replaced_;  ///< owner of the file that exists already
  mode_t mode_ = 0;                    ///< permissions of the file after commit()
  bool can_chmod_ = true;              ///< false once the file system has refused it
  Descriptor descriptor_;
  bool has_name_ = false;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/checkpoint/atomic_file_definitions.hpp"
#endif
