#pragma once
/// @file
/// The concept Endpoint: point-to-point messages between the ranks of one channel, which the algorithms are written
/// over.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "dtrain/backend/message_passing/coroutine_frame_pool.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Classes of tags, one sequence of messages each between two ranks: in each the k-th that is sent is the k-th that is
/// received.
enum class TagClass : std::uint8_t {
  collective,  ///< those of the algorithms
  direct,      ///< the user's send and recv
};
inline constexpr int tag_class_count = 2;

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// This rank (0..size-1), the number of ranks, and memory for coroutines.
template <class E>
concept HasRankAndSize = requires(E& endpoint) {
  { endpoint.rank() } noexcept -> std::same_as<int>;
  { endpoint.size() } noexcept -> std::same_as<int>;
  { endpoint.frames() } noexcept -> std::same_as<FramePool&>;
};

/// Starts a message to or from another rank, of any length, also of no bytes; a MessageHandle identifies it.
template <class E>
concept CanStartMessages =
    std::is_trivially_copyable_v<typename E::MessageHandle> && std::default_initializable<typename E::MessageHandle> &&
    requires(E& endpoint, std::span<const std::byte> input, std::span<std::byte> output, int peer, TagClass tag_class) {
      { endpoint.send(input, peer, tag_class) } -> std::same_as<typename E::MessageHandle>;
      { endpoint.recv(output, peer, tag_class) } -> std::same_as<typename E::MessageHandle>;
    };

/// `const std::size_t bytes = co_await endpoint.done(handle);`: until the message is complete, and how long it was; a
/// received one may be shorter than the memory for it. Each handle is awaited once.
template <class E>
concept CanFinishMessages = requires(E& endpoint, typename E::MessageHandle handle) {
  { endpoint.done(handle).await_ready() } -> std::same_as<bool>;
  { endpoint.done(handle).await_resume() } -> std::same_as<std::size_t>;
};

/// Lifetime: memory stays until its message is complete. Threads: the one that runs the routine.
/// Errors: a message longer than the memory for it is an Error (disagreement). Whatever ends an operation early either
/// destroys the coroutine where it is suspended, or leaves `done` as an exception: an algorithm cleans up with
/// destructors, and does not touch the endpoint in them. Messages that are then under way are handled by the endpoint.
template <class E>
concept Endpoint = HasRankAndSize<E> && CanStartMessages<E> && CanFinishMessages<E>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
