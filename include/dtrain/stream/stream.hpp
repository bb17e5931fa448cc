#pragma once
/// @file
/// The concepts Stream, Event and ExternalEvent: work that runs in order, and points in it to wait for.

#include <concepts>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::stream {
// clang-format off

/// How a blocking wait ended. A deadline that passes is an expected outcome, hence a value.
/// @ingroup streams
enum class WaitResult { complete, timed_out };

/// `is_complete()` polls without blocking, from any thread. An event never recorded is complete, as on CUDA.
/// @ingroup streams
template <class E>
concept CanPoll = requires(const E event) {
  { event.is_complete() } noexcept -> std::same_as<bool>;
};

/// Blocking: `block_until_complete(deadline)` waits in the calling thread (on a host stream it runs the queued work).
/// @ingroup streams
template <class E>
concept CanBlock = requires(E event, Deadline deadline) {
  { event.block_until_complete(deadline) } -> std::same_as<WaitResult>;
};

/// A point in a stream. Recording moves the point; reuse allocates nothing.
/// @ingroup streams
template <class E>
concept Event = std::movable<E> && CanPoll<E> && CanBlock<E>;

/// `signal()` completes the event from any host thread, without a stream; `reset()` makes it incomplete again.
/// @ingroup streams
template <class E>
concept CanSignal = requires(E event) {
  { event.signal() } noexcept -> std::same_as<void>;
  { event.reset() } noexcept -> std::same_as<void>;
};

/// An event that the host completes and streams wait for. The host also signals it on failure, so that no stream is
/// left waiting. Not movable, because streams keep its address: the event outlives the work that waits for it.
/// @ingroup streams
template <class E>
concept ExternalEvent = CanPoll<E> && CanBlock<E> && CanSignal<E>;

/// `S::Event`: the event type of its work.
/// @ingroup streams
template <class S>
concept HasEvent = requires { typename S::Event; } && Event<typename S::Event>;

/// `record(event)` enqueues: the event completes when all work enqueued before is complete.
/// @ingroup streams
template <class S>
concept CanRecord = HasEvent<S> && requires(S stream, typename S::Event& event) {
  { stream.record(event) } -> std::same_as<void>;
};

/// `wait(event)` enqueues: later work of this stream starts after the event's latest record; the host does not block.
/// @ingroup streams
template <class S>
concept CanWaitEvent = HasEvent<S> && requires(S stream, const typename S::Event& event) {
  { stream.wait(event) } -> std::same_as<void>;
};

/// `device()`: the device that runs its work.
/// @ingroup streams
template <class S>
concept HasDevice = requires(const S stream) {
  { stream.device() } noexcept -> std::same_as<Device>;
};

/// Work that runs in order. A model of Stream is a copyable reference; its owner outlives its references and all
/// enqueued work. Threads: one thread enqueues at a time; any thread may poll events and wait for them.
/// @ingroup streams
template <class S>
concept Stream = std::copyable<S> && HasDevice<S> && CanRecord<S> && CanWaitEvent<S>;

/// `wait(external, deadline)`, which not every device has, enqueues a wait for a host's signal. If the deadline passes
/// first, the stream signals the event, `timed_out()` is true, and later work of the stream runs.
/// @ingroup streams
template <class S>
concept CanWaitExternal = Stream<S> && requires { typename S::ExternalEvent; } &&
                          ExternalEvent<typename S::ExternalEvent> &&
                          requires(S stream, typename S::ExternalEvent& event, Deadline deadline) {
                            { stream.wait(event, deadline) } -> std::same_as<void>;
                            { event.timed_out() } noexcept -> std::same_as<bool>;
                          };
// clang-format on

}  // namespace DTRAIN_NAMESPACE::stream
