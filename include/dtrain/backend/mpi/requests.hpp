#pragma once
/// @file
/// Requests: the pending MPI requests of this process, tested together, which Endpoint starts; CallMonitor: whether a
/// thread is inside a call to MPI; HangDetector: whether that call does not return. ProgressLoop owns them.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Counts each call's begin and end; calls do not nest. Threads: InCall in the one that holds the ProgressLoop's lock,
/// number() from any.
class CallMonitor {
 public:
  class InCall {
   public:
    explicit InCall(CallMonitor& monitor) noexcept : monitor_(monitor) {
      monitor_.number_.fetch_add(1, std::memory_order_relaxed);
    }
    InCall(const InCall&) = delete;
    InCall& operator=(const InCall&) = delete;
    ~InCall() { monitor_.number_.fetch_add(1, std::memory_order_relaxed); }

   private:
    CallMonitor& monitor_;
  };

  /// Odd inside a call.
  std::uint64_t number() const noexcept { return number_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> number_{0};
};

/// Distinguishes a call that does not return from a thread that is busy: reducing, or without a core.
class HangDetector {
 public:
  HangDetector(const CallMonitor& monitor, std::chrono::milliseconds timeout) noexcept
      : monitor_(monitor), timeout_(timeout), last_number_(monitor.number()), deadline_(Deadline::after(timeout)) {}

  /// Whether the thread has been inside one call since a check that is at least `timeout` old.
  bool hangs() noexcept {
    const std::uint64_t now = monitor_.number();
    if (now != last_number_ || now % 2 == 0) {
      last_number_ = now;
      deadline_ = Deadline::after(timeout_);
    }
    return deadline_.passed();
  }

 private:
  const CallMonitor& monitor_;
  const std::chrono::milliseconds timeout_;
  std::uint64_t last_number_;
  Deadline deadline_;
};

#if DTRAIN_WITH_MPI

class Endpoint;

/// Endpoint and message slot that a request belongs to.
struct RequestOwner {
  Endpoint* endpoint;
  std::uint32_t slot;
  bool receives;
};

/// Threads: the one that holds the ProgressLoop's lock.
class Requests {
 public:
  struct Completed {
    RequestOwner owner;
    std::size_t bytes;
    int error;
  };

  bool empty() const noexcept { return requests_.empty(); }

  /// Counts all MPI calls about messages. Threads: as CallMonitor.
  CallMonitor& call_monitor() noexcept { return call_monitor_; }

  /// Drops all requests; their owners may end. The requests stay pending in MPI, which is not called again.
  void forget() noexcept {
    requests_.clear();
    owners_.clear();
  }

  void add(MPI_Request request, const RequestOwner& owner) {
    requests_.push_back(request);
    owners_.push_back(owner);
  }

  /// Calls `each(Completed)` for each complete request, once all of these are removed; `each` may add requests.
  /// @returns whether any was complete. @throws Error (mpi) if MPI cannot test them
  template <class Each>
  bool test(Each each) {
    int count = 0;
    indices_.resize(requests_.size());
    statuses_.resize(requests_.size());
    const int code = test_some(count);
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
      throw mpi_error(code, "waiting for messages");
    }
    if (count == MPI_UNDEFINED || count == 0) {
      return false;
    }
    completed_.clear();
    for (int i = 0; i < count; ++i) {
      const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
      const RequestOwner& owner = owners_[static_cast<std::size_t>(indices_[static_cast<std::size_t>(i)])];
      completed_.push_back(completed(owner, status, code == MPI_ERR_IN_STATUS ? status.MPI_ERROR : MPI_SUCCESS));
    }
    drop_complete();
    for (const Completed& one : completed_) {
      each(one);
    }
    return true;
  }

  /// Removes all requests of `endpoint`, and cancels its receives that have no message yet.
  /// @returns whether MPI no longer uses any of their memory
  bool abandon(const Endpoint& endpoint) noexcept {
    bool clean = true;
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (owners_[i].endpoint == &endpoint) {
        clean = end(requests_[i], owners_[i].receives) && clean;
        requests_[i] = MPI_REQUEST_NULL;  // MPI keeps a request that has not ended
      }
    }
    drop_complete();
    return clean;
  }

 private:
  int test_some(int& count) noexcept {
    const CallMonitor::InCall in_call(call_monitor_);
    return MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count, indices_.data(),
                        statuses_.data());
  }

  static Completed completed(const RequestOwner& owner, const MPI_Status& status, int error) noexcept {
    int bytes = 0;
    if (owner.receives && error == MPI_SUCCESS) {
      error = MPI_Get_count(&status, MPI_BYTE, &bytes);
    }
    return {owner, static_cast<std::size_t>(bytes < 0 ? 0 : bytes), error};
  }

  bool end(MPI_Request& request, bool receives) noexcept {
    const CallMonitor::InCall in_call(call_monitor_);
    int done = 0;
    if (receives && MPI_Cancel(&request) != MPI_SUCCESS) {
      return false;
    }
    return MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && done != 0;
  }

  void drop_complete() noexcept {
    for (std::size_t i = 0; i < requests_.size();) {
      if (requests_[i] == MPI_REQUEST_NULL) {
        requests_[i] = requests_.back();
        owners_[i] = owners_.back();
        requests_.pop_back();
        owners_.pop_back();
      } else {
        ++i;
      }
    }
  }

  CallMonitor call_monitor_;
  std::vector<MPI_Request> requests_;
  std::vector<RequestOwner> owners_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;
  std::vector<Completed> completed_;
};

#endif  // DTRAIN_WITH_MPI

}  // namespace DTRAIN_NAMESPACE::backend::mpi
