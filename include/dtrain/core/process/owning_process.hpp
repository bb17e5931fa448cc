#pragma once
/// @file
/// OwningProcess: detects a forked process, where a copy must not act for the rank. ProcessOwned: a unique_ptr that
/// deletes nothing there.

#include <pthread.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// Number of forks from the program's start to this process: fork() counts in the child.
inline std::atomic<std::uint32_t> fork_count{0};

/// @returns false if the system has no memory to count forks
inline bool count_forks() noexcept {
  static const bool counts =
      ::pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1, std::memory_order_relaxed); }) == 0;
  return counts;
}

}  // namespace detail

/// Stores the process that made it. Threads: any.
class OwningProcess {
 public:
  OwningProcess() noexcept
      : process_(detail::count_forks() ? 0 : ::getpid()), forks_(detail::fork_count.load(std::memory_order_relaxed)) {}

  /// False in a process that was forked since, by a function that calls pthread_atfork's handlers: fork(), but not
  /// vfork() or clone(). Without a system call, because every collective asks.
  bool is_current() const noexcept {
    return process_ == 0 ? detail::fork_count.load(std::memory_order_relaxed) == forks_ : ::getpid() == process_;
  }

 private:
  pid_t process_;  ///< 0 if forks are counted
  std::uint32_t forks_;
};

/// Deletes the object only in the process that made it. In a forked process the object stays: that process has none of
/// the object's threads, and shares its sockets, epoll sets and memory with the rank, which still uses them.
struct DeleteInOwningProcess {
  template <class T>
  void operator()(T* object) const noexcept {
    if (process.is_current()) {
      delete object;
    }
  }
  OwningProcess process{};
};

/// A unique_ptr that destroys its object only in the process that made it.
template <class T>
using ProcessOwned = std::unique_ptr<T, DeleteInOwningProcess>;

template <class T, class... Arguments>
ProcessOwned<T> make_process_owned(Arguments&&... arguments) {
  return ProcessOwned<T>(new T(std::forward<Arguments>(arguments)...));
}

}  // namespace DTRAIN_NAMESPACE
