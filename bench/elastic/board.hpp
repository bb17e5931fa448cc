#pragma once
/// @file
/// Memory that the workers of an elastic job share with the benchmark: when each has committed its last step.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace bench {

/// What the worker in a place has done. Times are those of Deadline::Clock, in nanoseconds.
struct WorkerFacts {
  std::atomic<int> process;
  std::atomic<std::uint64_t> attempt;
  std::atomic<std::uint64_t> steps;
  std::atomic<std::int64_t> first_commit;  ///< of the attempt
  std::atomic<std::int64_t> last_commit;
  std::atomic<std::int64_t> last_commit_before;  ///< of the attempt before
};

struct Board {
  static constexpr std::size_t places = 16;
  std::array<WorkerFacts, places> workers;
  std::atomic<std::int64_t> commit_nanoseconds;  ///< of one commit() beside its function; 0: not measured
};
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

/// A Board in a file, which is removed at its end by the process that made it.
class SharedBoard {
 public:
  /// Makes the file. @throws Error (posix)
  SharedBoard() {
    const char* const folder = std::getenv("TMPDIR");
    path_ = std::string(folder == nullptr ? "/tmp" : folder) + "/dtrain-elastic-bench-XXXXXX";
    const dtrain::Descriptor file(::mkstemp(path_.data()));
    if (!file || ::ftruncate(file.get(), sizeof(Board)) != 0) throw dtrain::errno_error("making the file " + path_);
    is_owner_ = true;
    map(file);
  }
  /// @throws Error (posix)
  explicit SharedBoard(const std::string& path) : path_(path) {
    const dtrain::Descriptor file(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (!file) throw dtrain::errno_error("opening the file " + path_);
    map(file);
  }
  SharedBoard(const SharedBoard&) = delete;
  SharedBoard& operator=(const SharedBoard&) = delete;
  ~SharedBoard() {
    static_cast<void>(::munmap(board_, sizeof(Board)));
    if (is_owner_) static_cast<void>(::unlink(path_.c_str()));
  }

  const std::string& path() const noexcept { return path_; }
  Board& operator*() const noexcept { return *board_; }
  Board* operator->() const noexcept { return board_; }

 private:
  void map(const dtrain::Descriptor& file) {
    void* const memory = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    if (memory == MAP_FAILED) throw dtrain::errno_error("mapping the file " + path_);
    board_ = static_cast<Board*>(memory);  // the file's zeros are a Board of zeros
  }

  std::string path_;
  Board* board_ = nullptr;
  bool is_owner_ = false;
};

}  // namespace bench
