#pragma once
/// @file
/// Work items of a stream: operations of a message-passing channel.

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/backend/message_passing/algorithms/algorithm_selection.hpp"
#include "dtrain/backend/message_passing/algorithms/point_to_point.hpp"
#include "dtrain/backend/message_passing/channel.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A collective. Holds a reference to the channel, and owns `buffers.blocks`, until it has run or was dropped.
template <Transport T>
struct EnqueuedCollective {
  Channel<T>* channel;
  std::uint64_t turn;
  Operation operation;
  Buffers buffers;
  Routine (*algorithm)(OperationContext<typename T::Endpoint>& context, const Buffers& buffers);

  void operator()() noexcept {
    channel->run(turn, operation, [this](auto& context) { return algorithm(context, buffers); });
    drop();
  }
  void drop() noexcept {
    delete buffers.blocks;
    channel->release();
  }
};

/// Buffers of a message, and its peers (-1: none).
struct PointToPointBuffers {
  const std::byte* input;
  std::byte* output;
  std::uint64_t input_count;
  std::int32_t to;
  std::int32_t from;
};

namespace detail {

/// Like point_to_point, but a message to this rank itself is stored until its recv.
template <Transport T>
Routine point_to_point_or_self(OperationContext<typename T::Endpoint>& context, Channel<T>& channel,
                               const PointToPointBuffers& buffers, DType input_dtype) {
  PointToPoint work{{}, {}, buffers.to, buffers.from, context.operation, TagClass::direct, nullptr};
  work.sent.count = buffers.input_count;
  work.sent.dtype = input_dtype;
  if (buffers.to >= 0) {
    work.input = {buffers.input, buffers.input_count * size_bytes(input_dtype)};
  }
  if (buffers.from >= 0) {
    work.output = {buffers.output, context.operation.count * size_bytes(context.operation.dtype)};
  }
  if (buffers.to == context.rank()) {
    channel.self_messages().push_back({work.sent, {work.input.begin(), work.input.end()}});
    work.to = -1;
  }
  if (buffers.from == context.rank()) {
    if (channel.self_messages().empty()) {
      throw_error(Errc::disagreement, "on channel '{}', rank {} receives from itself what it has not sent before",
                  {context.channel.name, channel.job_rank()});
    }
    const auto message = std::move(channel.self_messages().front());
    channel.self_messages().pop_front();
    if (message.operation.count != context.operation.count || message.operation.dtype != context.operation.dtype) {
      disagree_on_message(context, context.rank(), message.operation);
    }
    kernels::copy_bytes(work.output.data(), message.bytes.data(), message.bytes.size());
    work.from = -1;
  }
  Routine routine = point_to_point(context, work);
  co_await routine;
}

}  // namespace detail

/// A send, a recv, or both. `operation` describes the received message, or the sent one if there is no recv.
template <Transport T>
struct EnqueuedPointToPoint {
  Channel<T>* channel;
  std::uint64_t turn;
  Operation operation;
  PointToPointBuffers buffers;
  DType input_dtype;

  void operator()() noexcept {
    channel->run(turn, operation, [this](auto& context) {
      return detail::point_to_point_or_self(context, *channel, buffers, input_dtype);
    });
    channel->release();
  }
  void drop() noexcept { channel->release(); }
};

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
