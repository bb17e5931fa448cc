#pragma once
/// @file
/// Which process owns something: a process that it forks has a copy, and is not the rank.

#include <sys/types.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

/// Remembers the process that made it. Threads: any.
class OwningProcess {
 public:
  OwningProcess() noexcept : process_(::getpid()) {}

  /// False in a process that was forked since. One system call.
  bool is_current() const noexcept { return ::getpid() == process_; }

 private:
  pid_t process_;
};

/// Deletes in the process that made it. In a process that was forked since the object stays: it has none of the
/// object's threads, and shares its sockets, epoll sets and memory with the rank, which goes on using them.
struct DeleteInOwningProcess {
  template <class T>
  void operator()(T* object) const noexcept {
    if (process.is_current()) {
      delete object;
    }
  }
  OwningProcess process{};
};

/// A unique_ptr that ends what it owns only in the process that made it.
template <class T>
using ProcessOwned = std::unique_ptr<T, DeleteInOwningProcess>;

template <class T, class... Arguments>
ProcessOwned<T> make_process_owned(Arguments&&... arguments) {
  return ProcessOwned<T>(new T(std::forward<Arguments>(arguments)...));
}

}  // namespace DTRAIN_NAMESPACE
