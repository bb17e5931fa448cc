#pragma once
/// @file
/// A deleter for what owns a control thread, and may lose its last owner on that very thread.

#include <thread>

#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Deletes in the thread that asks for it, except on the control thread: a coroutine there may hold the last handle,
/// and the owner waits for that thread to end. Then a thread of its own does it. In a process that was forked since the
/// owner stays, as with DeleteInOwningProcess. @pre the owner has a TaskRunner `tasks`
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
        // No thread can be had: the owner stays, and the other ranks see the end of this process.
      }
    } else {
      delete owner;
    }
  }
  OwningProcess process{};
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
