#pragma once
/// @file
/// CountedChannel: a communicator's operations, with a count of the bytes that a hook sends by them.

#include <cstdint>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/compressed_traffic.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/reduce_op.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Borrows a communicator, whose contract each operation has (backend/communicator.hpp).
template <backend::Communicator C>
class CountedChannel {
 public:
  using Stream = typename C::Stream;

  /// @param traffic null: counts nothing. Lifetime: both outlive this object
  // NOLINTNEXTLINE(google-explicit-constructor): a communicator that counts nothing.
  CountedChannel(C& channel, TrafficCounter* traffic = nullptr) noexcept : channel_(&channel), traffic_(traffic) {}

  int rank() const noexcept { return channel_->rank(); }
  int size() const noexcept { return channel_->size(); }
  TrafficCounter* traffic() const noexcept { return traffic_; }

  void all_reduce(ConstBufferView input, BufferView output, ReduceOp op, Stream stream) const {
    if (traffic_ != nullptr) traffic_->sends_all_reduce(output.bytes());
    channel_->all_reduce(input, output, op, stream);
  }
  void broadcast(BufferView buffer, int root, Stream stream) const {
    count(buffer);
    channel_->broadcast(buffer, root, stream);
  }
  void barrier(Stream stream) const { channel_->barrier(stream); }
  void reduce_scatter(ConstBufferView input, BufferView output, ReduceOp op,
                      Stream stream) const requires backend::CanReduceScatter<C> {
    count(input);
    channel_->reduce_scatter(input, output, op, stream);
  }
  void all_gather(ConstBufferView input, BufferView output, Stream stream) const requires backend::CanAllGather<C> {
    count(output);
    channel_->all_gather(input, output, stream);
  }
  void exchange_blocks(const backend::BlockExchange& blocks, ConstBufferView input, BufferView output,
                       Stream stream) const requires backend::CanExchangeBlocks<C> {
    count(input);
    channel_->exchange_blocks(blocks, input, output, stream);
  }
  void reduce_blocks(const backend::BlockExchange& blocks, ConstBufferView input, BufferView output, ReduceOp op,
                     Stream stream) const requires backend::CanReduceBlocks<C> {
    count(input);
    channel_->reduce_blocks(blocks, input, output, op, stream);
  }
  void send(ConstBufferView input, int peer, Stream stream) const requires backend::CanSendRecv<C> {
    count_message(input);
    channel_->send(input, peer, stream);
  }
  void recv(BufferView output, int peer, Stream stream) const requires backend::CanSendRecv<C> {
    channel_->recv(output, peer, stream);
  }
  void send_recv(ConstBufferView input, int to, BufferView output, int from,
                 Stream stream) const requires backend::CanSendRecv<C> {
    count_message(input);
    channel_->send_recv(input, to, output, from, stream);
  }

 private:
  void count(const ConstBufferView& sent) const noexcept {
    if (traffic_ != nullptr) traffic_->sends(sent.bytes());
  }

  /// Of n bytes that a collective counts, a rank sends n (size - 1) / size.
  void count_message(const ConstBufferView& sent) const noexcept {
    const auto ranks = static_cast<std::uint64_t>(size());
    if (traffic_ != nullptr && ranks > 1) traffic_->sends(sent.bytes() * ranks / (ranks - 1));
  }

  C* channel_;
  TrafficCounter* traffic_;
};

/// Work of a stream whose time counts.
template <class Work>
struct TimedWork {
  void operator()() noexcept {
    if (traffic == nullptr) {
      work();
    } else {
      traffic->time(work);
    }
  }
  void drop() noexcept requires requires(Work& dropped) { dropped.drop(); }
  { work.drop(); }

  Work work;
  TrafficCounter* traffic;
};

}  // namespace DTRAIN_NAMESPACE::ddp
