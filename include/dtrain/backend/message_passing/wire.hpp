#pragma once
/// @file
/// The concept Wire: point-to-point messages between the ranks of one channel, which the algorithms are written over.

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "dtrain/backend/message_passing/frame_pool.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// The two sequences of messages between two ranks: in each the k-th that is sent is the k-th that is received.
enum class Lane : std::uint8_t {
  collective,  ///< those of the algorithms
  direct,      ///< the user's send and recv
};
inline constexpr int lane_count = 2;

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// This rank (0..size-1), the number of ranks, and memory for coroutines.
template <class W>
concept HasPlace = requires(W& wire) {
  { wire.rank() } noexcept -> std::same_as<int>;
  { wire.size() } noexcept -> std::same_as<int>;
  { wire.frames() } noexcept -> std::same_as<FramePool&>;
};

/// Starts a message to, or from, another rank; a Ticket stands for it. Messages may be of no bytes and of any length.
template <class W>
concept CanStartMessages =
    std::is_trivially_copyable_v<typename W::Ticket> && std::default_initializable<typename W::Ticket> &&
    requires(W& wire, std::span<const std::byte> input, std::span<std::byte> output, int peer, Lane lane) {
      { wire.send(input, peer, lane) } -> std::same_as<typename W::Ticket>;
      { wire.recv(output, peer, lane) } -> std::same_as<typename W::Ticket>;
    };

/// `const std::size_t bytes = co_await wire.done(ticket);`: until the message is complete, and how long it was; a
/// received one may be shorter than the memory for it. Each ticket is awaited once.
template <class W>
concept CanFinishMessages = requires(W& wire, typename W::Ticket ticket) {
  { wire.done(ticket).await_ready() } -> std::same_as<bool>;
  { wire.done(ticket).await_resume() } -> std::same_as<std::size_t>;
};

/// Lifetime: memory stays until its message is complete. Threads: the one that runs the routine.
/// Errors: a message longer than the memory for it is an Error (disagreement). Whatever ends an operation early either
/// destroys the coroutine where it is suspended, or leaves `done` as an exception: an algorithm cleans up with
/// destructors, and does not touch the wire in them. Messages that are then under way are the wire's to deal with.
template <class W>
concept Wire = HasPlace<W> && CanStartMessages<W> && CanFinishMessages<W>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
