#pragma once
/// @file
/// One channel's messages over MPI: the Wire that its routines run on.

#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/message_passing/frame_pool.hpp"
#include "dtrain/backend/message_passing/wire.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/requests.hpp"
#include "dtrain/core/error.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

using message_passing::FramePool;
using message_passing::Lane;

/// A channel is a band of tags of one MPI communicator, one tag for each lane. Threads: the one that owns MPI, but for
/// rank, size and frames (see FramePool).
class Endpoint {
 public:
  struct Ticket {
    std::uint32_t slot = 0;
  };

  /// @param world_ranks of the channel's ranks in `communicator`
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
  Ticket send(std::span<const std::byte> input, int peer, Lane lane) {
    const Calls::Inside inside(requests_.calls());
    MPI_Request request = MPI_REQUEST_NULL;
    check(
        MPI_Isend(input.data(), count_of(input.size()), MPI_BYTE, world_rank(peer), tag(lane), communicator_, &request),
        "sending a message");
    return started(request, peer, false);
  }

  Ticket recv(std::span<std::byte> output, int peer, Lane lane) {
    const Calls::Inside inside(requests_.calls());
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Irecv(output.data(), count_of(output.size()), MPI_BYTE, world_rank(peer), tag(lane), communicator_,
                    &request),
          "receiving a message");
    return started(request, peer, true);
  }

  /// A few bytes that stay where they are for ever, and that nobody need receive. @throws Error (mpi)
  void send_and_forget(std::span<const std::byte> input, int peer, Lane lane) {
    MPI_Request request = MPI_REQUEST_NULL;
    check(
        MPI_Isend(input.data(), count_of(input.size()), MPI_BYTE, world_rank(peer), tag(lane), communicator_, &request),
        "sending a last message");
    check(MPI_Request_free(&request), "sending a last message");
  }

  /// See Wire. Of one ticket at a time.
  class Awaiter {
   public:
    Awaiter(Endpoint& endpoint, Ticket ticket) noexcept : endpoint_(endpoint), ticket_(ticket) {}
    bool await_ready() const noexcept { return endpoint_.slots_[ticket_.slot].done; }
    void await_suspend(std::coroutine_handle<> waiter) const noexcept { endpoint_.wait_for(ticket_, waiter); }
    std::size_t await_resume() const { return endpoint_.take(ticket_); }

   private:
    Endpoint& endpoint_;
    Ticket ticket_;
  };
  Awaiter done(Ticket ticket) noexcept { return {*this, ticket}; }

  /// A message is complete. @returns who waits for it, to be resumed; null where nobody does yet
  std::coroutine_handle<> complete(std::uint32_t slot, std::size_t bytes, int error) noexcept {
    Slot& message = slots_[slot];
    message.done = true;
    message.bytes = bytes;
    message.error = error;
    const bool awaited = waiter_ && awaited_ == slot;
    return awaited ? std::exchange(waiter_, nullptr) : nullptr;
  }

  /// The rank of the channel that the suspended routine waits for, and whether it is to send; for a timeout's sentence.
  std::pair<int, bool> waits_for() const noexcept {
    return slots_.empty() ? std::pair(-1, true) : std::pair(slots_[awaited_].peer, slots_[awaited_].receives);
  }

  /// Nobody waits any more.
  void forget_waiter() noexcept { waiter_ = nullptr; }

 protected:
  const std::vector<int>& world_ranks() const noexcept { return world_ranks_; }
  Calls& calls() noexcept { return requests_.calls(); }

  /// A request of `peer`, or of all ranks (-1). One that `receives` can be cancelled.
  Ticket started(MPI_Request request, int peer, bool receives) {
    std::uint32_t slot = 0;
    if (free_.empty()) {
      slot = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    } else {
      slot = free_.back();
      free_.pop_back();
    }
    slots_[slot] = {false, receives, peer, MPI_SUCCESS, 0};
    requests_.add(request, {this, slot, receives});
    return {slot};
  }

 private:
  struct Slot {
    bool done = false;
    bool receives = false;
    int peer = -1;
    int error = MPI_SUCCESS;
    std::size_t bytes = 0;
  };

  static int count_of(std::size_t bytes) {
    if (bytes > 0x7fff'ffff) {
      throw Error(Errc::limit, "a message of " + std::to_string(bytes) + " bytes; MPI counts to 2^31 - 1");
    }
    return static_cast<int>(bytes);
  }

  int world_rank(int peer) const noexcept { return world_ranks_[static_cast<std::size_t>(peer)]; }
  int tag(Lane lane) const noexcept { return first_tag_ + static_cast<int>(lane); }

  void wait_for(Ticket ticket, std::coroutine_handle<> waiter) noexcept {
    awaited_ = ticket.slot;
    waiter_ = waiter;
  }

  std::size_t take(Ticket ticket) {
    const Slot message = slots_[ticket.slot];
    free_.push_back(ticket.slot);
    int kind = MPI_SUCCESS;
    if (message.error != MPI_SUCCESS) {
      check(MPI_Error_class(message.error, &kind), "asking what an error is");
      if (kind == MPI_ERR_TRUNCATE) {
        throw Error(Errc::disagreement,
                    "a message came that is longer than what was to come; do all ranks call the "
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
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_;
  std::coroutine_handle<> waiter_;
  std::uint32_t awaited_ = 0;
};

static_assert(message_passing::Wire<Endpoint>);

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
