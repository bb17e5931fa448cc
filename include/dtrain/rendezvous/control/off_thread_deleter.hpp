#pragma once
/// @file
/// Deleter for the owner of a control thread, whose last reference may end on that very thread.

#include <thread>

#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Deletes on the calling thread; if that is the control thread, on a new one. A coroutine on the control thread may
/// hold the last handle, and the owner's destructor waits for that thread. In a process that was forked since, the
/// owner is not deleted, as with DeleteInOwningProcess. @pre the owner has a TaskRunner `tasks`
struct OffThreadDeleter {
  template <class Owner>
  void operator()(Owner* owner) const noexcept {
    if (!process.is_current()) {
      return;
    }
    if (owner->tasks.on_loop_thread()) {
      try {
        std::thread([owner] { delete owner; }).detach();
      } catch (...) {
        // No thread can be created: the owner stays, and the other ranks see the end of this process.
      }
    } else {
      delete owner;
    }
  }
  OwningProcess process{};
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
