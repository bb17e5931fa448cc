#pragma once
/// @file
/// mpi::Endpoint: one channel's messages over MPI. BasicTransport owns one.

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/requests.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

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

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
