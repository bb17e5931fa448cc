#pragma once
/// @file
/// The concept Endpoint: point-to-point messages of one channel, which algorithms/ send and receive. Gloo, MPI and
/// SharedMemory have one each. TagClass: messages of an algorithm, or of the user.

#include <concepts>
#include <coroutine>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "dtrain/backend/message_passing/routine.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Each class has its own message sequence for each direction between two ranks: the k-th recv gets the k-th send.
enum class TagClass : std::uint8_t {
  collective,  ///< messages of the algorithms
  direct,      ///< the user's send and recv
};
inline constexpr int tag_class_count = 2;

/// `done` of an endpoint that blocks. The routine is suspended only if the wait was ended, and then never resumed.
template <class E>
struct BlockingAwaiter {
  E& endpoint;
  typename E::MessageHandle handle;

  bool await_ready() const { return endpoint.block_until_done(handle); }
  void await_suspend(std::coroutine_handle<>) const noexcept {}
  std::size_t await_resume() const { return endpoint.take(handle); }
};

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// This rank (0..size-1), the number of ranks, and the pool for coroutine frames.
template <class E>
concept HasRankAndSize = requires(E& endpoint) {
  { endpoint.rank() } noexcept -> std::same_as<int>;
  { endpoint.size() } noexcept -> std::same_as<int>;
  { endpoint.frames() } noexcept -> std::same_as<FramePool&>;
};

/// Starts a message to or from another rank. Any length, including 0; the MessageHandle identifies it.
template <class E>
concept CanStartMessages =
    std::is_trivially_copyable_v<typename E::MessageHandle> && std::default_initializable<typename E::MessageHandle> &&
    requires(E& endpoint, std::span<const std::byte> input, std::span<std::byte> output, int peer, TagClass tag_class) {
      { endpoint.send(input, peer, tag_class) } -> std::same_as<typename E::MessageHandle>;
      { endpoint.recv(output, peer, tag_class) } -> std::same_as<typename E::MessageHandle>;
    };

/// `const std::size_t bytes = co_await endpoint.done(handle);` waits until the message is complete and returns its
/// length, which may be below a receiver's memory. Each handle is awaited once.
template <class E>
concept CanFinishMessages = requires(E& endpoint, typename E::MessageHandle handle) {
  { endpoint.done(handle).await_ready() } -> std::same_as<bool>;
  { endpoint.done(handle).await_resume() } -> std::same_as<std::size_t>;
};

/// Lifetime: memory outlives its message. Threads: the one that runs the routine.
/// Errors: a message longer than its memory is an Error (disagreement). An operation that ends early either throws out
/// of `done`, or its suspended coroutine is destroyed. Algorithms therefore clean up in destructors, which must not use
/// the endpoint. The endpoint itself handles messages that are then in flight.
template <class E>
concept Endpoint = HasRankAndSize<E> && CanStartMessages<E> && CanFinishMessages<E>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
