#pragma once
/// @file
/// The concept Transport: what a message-passing backend provides for a channel.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// Asked by a Transport whether to cancel an operation. `aborted` costs nothing; `cancelled` also reads the clock;
/// `stalled` is called after a wait of about a millisecond, and again at least every 20 ms. `reason` is a sentence: why
/// this rank ends, for a Transport that has to end the process.
template <class C>
concept CancellationToken = requires(C& token) {
  { token.aborted() }
  noexcept->std::same_as<bool>;
  { token.cancelled() }
  noexcept->std::same_as<bool>;
  { token.stalled() }
  noexcept->std::same_as<void>;
};

/// A CancellationToken that never cancels, for the concept.
struct NoCancellationToken {
  bool aborted() noexcept { return false; }
  bool cancelled() noexcept { return false; }
  void stalled() noexcept {}
  std::string reason() { return {}; }
};

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// One rank's end of one channel. Constructed from the context, the ranks of the job that the channel has, and a
/// deadline: collective, blocking; it may throw. Threads: run_blocking from one at a time; interrupt from any.
///
/// - `run_blocking(routine, token)`: until the routine is done, or the token cancels it and nothing will touch the
///   operation's memory; if MPI or the like could not be made to release it: false, and the scratch is never freed.
/// - `waits_for()`: after that, the rank of the channel for whose message it waited, and whether that was to send.
/// - `interrupt()`: the token's answers may have changed.
/// - `close(clean)`: the last call; `clean` if the channel had not failed. Peers that wait may be notified.
/// - `tuning(context)`: the same on every rank.
template <class T>
concept Transport = requires { typename T::Endpoint; } && Endpoint<typename T::Endpoint> &&
    std::constructible_from<T, const ChannelContext&, const std::vector<int>&, Deadline> &&
    requires(T& transport, Routine& routine, NoCancellationToken& token, const ChannelContext& context, bool clean) {
      { T::backend_name() } noexcept -> std::same_as<const char*>;
      { T::tuning(context) } noexcept -> std::same_as<Tuning>;
      { transport.endpoint() } noexcept -> std::same_as<typename T::Endpoint&>;
      { transport.run_blocking(routine, token) } noexcept -> std::same_as<bool>;
      { transport.waits_for() } noexcept -> std::same_as<std::pair<int, bool>>;
      { transport.interrupt() } noexcept -> std::same_as<void>;
      { transport.close(clean) } noexcept -> std::same_as<void>;
    };
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
