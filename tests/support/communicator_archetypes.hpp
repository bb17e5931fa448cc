#pragma once
/// @file
/// The least that models Communicator with every further ability, and for each requirement a type that lacks only that.

#include <cstddef>
#include <optional>

#include "dtrain/backend/communicator.hpp"
#include "support/stream_archetypes.hpp"

namespace archetype {

struct Allocation {
  std::byte* data() const noexcept { return nullptr; }
  std::size_t bytes() const noexcept { return 0; }
};

enum class CommunicatorLacks {
  nothing,
  ranks,
  moving,
  all_reduce,
  broadcast,
  barrier,
  reduce_scatter,
  all_gather,
  exchange_blocks,
  reduce_blocks,
  send,
  recv,
  send_recv,
  split,
  members,
  allocate,
  abort,
  failure,
};

template <CommunicatorLacks Lack = CommunicatorLacks::nothing, class StreamType = archetype::Stream<>>
struct Communicator {
  using Stream = StreamType;
  using Allocation = archetype::Allocation;

  Communicator() = default;
  Communicator(Communicator&&) requires(Lack != CommunicatorLacks::moving) = default;
  Communicator& operator=(Communicator&&) requires(Lack != CommunicatorLacks::moving) = default;

  int rank() const noexcept requires(Lack != CommunicatorLacks::ranks) { return 0; }
  int size() const noexcept { return 1; }
  const dtrain::rendezvous::Membership& members() const noexcept requires(Lack != CommunicatorLacks::members) {
    return members_of_nobody;
  }
  void enqueue(const dtrain::backend::AllReduce&, Stream) requires(Lack != CommunicatorLacks::all_reduce) {}
  void enqueue(const dtrain::backend::Broadcast&, Stream) requires(Lack != CommunicatorLacks::broadcast) {}
  void enqueue(const dtrain::backend::Barrier&, Stream) requires(Lack != CommunicatorLacks::barrier) {}
  void enqueue(const dtrain::backend::ReduceScatter&, Stream) requires(Lack != CommunicatorLacks::reduce_scatter) {}
  void enqueue(const dtrain::backend::AllGather&, Stream) requires(Lack != CommunicatorLacks::all_gather) {}
  void enqueue(const dtrain::backend::ExchangeBlocks&, Stream) requires(Lack != CommunicatorLacks::exchange_blocks) {}
  void enqueue(const dtrain::backend::ReduceBlocks&, Stream) requires(Lack != CommunicatorLacks::reduce_blocks) {}
  void enqueue(const dtrain::backend::Send&, Stream) requires(Lack != CommunicatorLacks::send) {}
  void enqueue(const dtrain::backend::Recv&, Stream) requires(Lack != CommunicatorLacks::recv) {}
  void enqueue(const dtrain::backend::SendRecv&, Stream) requires(Lack != CommunicatorLacks::send_recv) {}
  Communicator split_blocking(int, int, dtrain::Deadline) requires(Lack != CommunicatorLacks::split) { return {}; }
  Allocation allocate_blocking(std::size_t, dtrain::Deadline) requires(Lack != CommunicatorLacks::allocate) {
    return {};
  }
  void abort(const dtrain::Cause&) noexcept requires(Lack != CommunicatorLacks::abort) {}
  std::optional<dtrain::Cause> failure() const requires(Lack != CommunicatorLacks::failure) { return std::nullopt; }

  dtrain::rendezvous::Membership members_of_nobody;
};

}  // namespace archetype
