#pragma once
/// @file
/// What a stream carries for a message-passing channel: one operation, until its turn comes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/message_passing/algorithms.hpp"
#include "dtrain/backend/message_passing/channel.hpp"
#include "dtrain/backend/message_passing/transfer.hpp"
#include "dtrain/core/error.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A collective: holds the channel until it has run or was dropped.
template <Host H>
struct CollectiveWork {
  Channel<H>* channel;
  std::uint64_t turn;
  Operation operation;
  Buffers buffers;

  void operator()() noexcept {
    channel->run(turn, operation, [this](auto& call) { return collective(call, buffers); });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

/// Ends of a message; -1: none.
struct Ends {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::int32_t to;
  std::int32_t from;
};

namespace detail {

/// What is sent to oneself is kept until it is received.
template <Host H>
Routine transfer_here(Call<typename H::Wire>& call, Channel<H>& channel, const Ends& ends, DType input_dtype) {
  TransferWork work{{}, {}, ends.to, ends.from, call.operation};
  work.sent.count = ends.input_count;
  work.sent.dtype = input_dtype;
  if (ends.to >= 0) {
    work.input = {ends.input, ends.input_count * size_bytes(input_dtype)};
  }
  if (ends.from >= 0) {
    work.output = {ends.output, call.operation.count * size_bytes(call.operation.dtype)};
  }
  if (ends.to == call.rank()) {
    channel.notes().push_back({work.sent, {work.input.begin(), work.input.end()}});
    work.to = -1;
  }
  if (ends.from == call.rank()) {
    if (channel.notes().empty()) {
      throw Error(Errc::disagreement, "on channel '" + call.place.channel + "', rank " +
                                          std::to_string(channel.job_rank()) +
                                          " receives from itself what it has not sent before");
    }
    const auto note = std::move(channel.notes().front());
    channel.notes().pop_front();
    if (note.operation.count != call.operation.count || note.operation.dtype != call.operation.dtype) {
      disagree_on_message(call, call.rank(), note.operation);
    }
    kernels::copy_bytes(work.output.data(), note.bytes.data(), note.bytes.size());
    work.from = -1;
  }
  Routine part = transfer(call, work);
  co_await part;
}

}  // namespace detail

/// A send, a receive or both. The operation is of what is received, where something is.
template <Host H>
struct TransferItem {
  Channel<H>* channel;
  std::uint64_t turn;
  Operation operation;
  Ends ends;
  DType input_dtype;

  void operator()() noexcept {
    channel->run(turn, operation,
                 [this](auto& call) { return detail::transfer_here(call, *channel, ends, input_dtype); });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
