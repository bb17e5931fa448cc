#pragma once
/// @file
/// mpi::Endpoint: one channel's messages over MPI, by a range of tags. Requests: all pending MPI requests, tested
/// together. HangDetector: whether a call hangs.

#include <atomic>
#include <chrono>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

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

using message_passing::FramePool;
using message_passing::TagClass;

/// A channel is a range of tags of one MPI communicator, one tag for each class. Threads: the one that holds the
/// ProgressLoop's lock; any for rank(), size() and frames() (see FramePool).
class Endpoint {
 public:
  struct MessageHandle {
    std::uint32_t slot = 0;
  };

  /// @param world_ranks the channel's ranks, as ranks of `communicator`
  Endpoint(Requests& requests, MPI_Comm communicator, int first_tag, int rank, std::vector<int> world_ranks)
      : requests_(requests),
        communicator_(communicator),
        first_tag_(first_tag),
        rank_(rank),
        world_ranks_(std::move(world_ranks)) {}
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(world_ranks_.size()); }
  FramePool& frames() noexcept { return frames_; }

  /// At most 2^31 - 1 bytes. @throws Error (mpi, limit)
  MessageHandle send(std::span<const std::byte> input, int peer, TagClass tag_class) {
    const CallMonitor::InCall in_call(requests_.call_monitor());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(input.data(), count_of(input.size()), MPI_BYTE, world_rank(peer), tag(tag_class), communicator_,
                    &request),
          "sending a message");
    return started(request, peer, false);
  }

  MessageHandle recv(std::span<std::byte> output, int peer, TagClass tag_class) {
    const CallMonitor::InCall in_call(requests_.call_monitor());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(output.data(), count_of(output.size()), MPI_BYTE, world_rank(peer), tag(tag_class), communicator_,
                    &request),
          "receiving a message");
    return started(request, peer, true);
  }

  /// Sends a few bytes that no rank need receive. Lifetime: `input` is never freed. @throws Error (mpi)
  void send_detached(std::span<const std::byte> input, int peer, TagClass tag_class) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(input.data(), count_of(input.size()), MPI_BYTE, world_rank(peer), tag(tag_class), communicator_,
                    &request),
          "sending a last message");
    check(MPI_Request_free(&request), "sending a last message");
  }

  /// See message_passing::Endpoint. Waits for one handle at a time.
  class Awaiter {
   public:
    Awaiter(Endpoint& endpoint, MessageHandle handle) noexcept : endpoint_(endpoint), handle_(handle) {}
    bool await_ready() const noexcept { return endpoint_.messages_[handle_.slot].done; }
    void await_suspend(std::coroutine_handle<> waiter) const noexcept { endpoint_.wait_for(handle_, waiter); }
    std::size_t await_resume() const { return endpoint_.take(handle_); }

   private:
    Endpoint& endpoint_;
    MessageHandle handle_;
  };
  Awaiter done(MessageHandle handle) noexcept { return {*this, handle}; }

  /// Marks a message complete. @returns the coroutine that waits for it, to be resumed; null if none waits yet
  std::coroutine_handle<> complete(std::uint32_t slot, std::size_t bytes, int error) noexcept {
    PendingMessage& message = messages_[slot];
    message.done = true;
    message.bytes = bytes;
    message.error = error;
    const bool awaited = waiter_ && awaited_ == slot;
    return awaited ? std::exchange(waiter_, nullptr) : nullptr;
  }

  /// The channel's rank that the suspended routine waits for, and whether that rank is to send. For a timeout's error.
  std::pair<int, bool> waits_for() const noexcept {
    return messages_.empty() ? std::pair(-1, true) : std::pair(messages_[awaited_].peer, messages_[awaited_].receives);
  }

  void clear_waiter() noexcept { waiter_ = nullptr; }

 protected:
  const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  CallMonitor& call_monitor() noexcept { return requests_.call_monitor(); }

  /// Records a request to or from `peer`, or a collective's request (-1). A request that `receives` can be cancelled.
  MessageHandle started(MPI_Request request, int peer, bool receives) {
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(messages_.size());
      messages_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    messages_[slot] = {false, receives, peer, MPI_SUCCESS, 0};
    requests_.add(request, {this, slot, receives});
    return {slot};
  }

 private:
  struct PendingMessage {
    bool done = false;
    bool receives = false;
    int peer = -1;
    int error = MPI_SUCCESS;
    std::size_t bytes = 0;
  };

  static int count_of(std::size_t bytes) {
    if (bytes > 0x7fff'ffff) {
      throw_error(Errc::limit, "a message of {} bytes; MPI counts to 2^31 - 1", {bytes});
    }
    return static_cast<int>(bytes);
  }

  int world_rank(int peer) const noexcept { return world_ranks_[static_cast<std::size_t>(peer)]; }
  int tag(TagClass tag_class) const noexcept { return first_tag_ + static_cast<int>(tag_class); }

  void wait_for(MessageHandle handle, std::coroutine_handle<> waiter) noexcept {
    awaited_ = handle.slot;
    waiter_ = waiter;
  }

  std::size_t take(MessageHandle handle) {
    const PendingMessage message = messages_[handle.slot];
    free_.push_back(handle.slot);
    int kind = MPI_SUCCESS;
    if (message.error != MPI_SUCCESS) {
      check(MPI_Error_class(message.error, &kind), "asking what an error is");
      if (kind == MPI_ERR_TRUNCATE) {
        throw_error(Errc::disagreement,
                    "a received message is longer than expected; do all ranks call the "
                    "same collectives in the same order, with the same counts?");
      }
      throw mpi_error(message.error, message.receives ? "receiving a message" : "sending a message");
    }
    return message.bytes;
  }

  Requests& requests_;
  const MPI_Comm communicator_;
  const int first_tag_;
  const int rank_;
  const std::vector<int> world_ranks_;
  FramePool frames_;
  std::vector<PendingMessage> messages_;
  std::vector<std::uint32_t> free_;
  std::coroutine_handle<> waiter_;
  std::uint32_t awaited_ = 0;
};

static_assert(message_passing::Endpoint<Endpoint>);

#endif  // DTRAIN_WITH_MPI

}  // namespace DTRAIN_NAMESPACE::backend::mpi
