#pragma once
/// @file
/// OwningProcess: detects a forked process, whose copy of an object must not be used as the rank's.

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Stores the process that made it. Threads: any.
class OwningProcess {
 public:
  OwningProcess() noexcept : process_(::getpid()) {}

  /// False in a process that was forked since. One system call.
  bool is_current() const noexcept { return ::getpid() == process_; }

 private:
  pid_t process_;
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
