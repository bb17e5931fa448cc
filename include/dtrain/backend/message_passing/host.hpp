#pragma once
/// @file
/// The concept Host: what a backend brings along to be a message-passing one.

#include <chrono>
#include <concepts>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/message_passing/wire.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// How a Host learns that it is to give an operation up. `aborted` costs nothing; `gives_up` looks at the clock too;
/// `stalled` is called after a wait of about a millisecond, and again at least every 20 ms. `reason` is a sentence: why
/// this rank ends, for a Host that has to end the process.
template <class W>
concept Watch = requires(W& watch) {
  { watch.aborted() }
  noexcept->std::same_as<bool>;
  { watch.gives_up() }
  noexcept->std::same_as<bool>;
  { watch.stalled() }
  noexcept->std::same_as<void>;
};

/// A Watch that never gives up, for the concept.
struct NoWatch {
  bool aborted() noexcept { return false; }
  bool gives_up() noexcept { return false; }
  void stalled() noexcept {}
  std::string reason() { return {}; }
};

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// One rank's end of one channel. Constructed from the context, the ranks of the job that the channel has, and a
/// deadline: collective, blocking; it may throw. Threads: run_blocking from one at a time; interrupt from any.
///
/// - `run_blocking(routine, watch)`: until the routine is done, or the watch gives it up and nothing will touch the
///   operation's memory; if MPI or the like could not be made to let go of it: false, and the scratch is never freed.
/// - `waits_for()`: after that, the rank of the channel for whose message it waited, and whether that was to send.
/// - `interrupt()`: the watch has news.
/// - `close(clean)`: the last call; `clean` if the channel had not failed. Peers that wait for this rank may be told.
/// - `tuning(context)`: the same on every rank.
template <class H>
concept Host = requires { typename H::Wire; } && Wire<typename H::Wire> &&
    std::constructible_from<H, const ChannelContext&, const std::vector<int>&, Deadline> &&
    requires(H& host, Routine& routine, NoWatch& watch, const ChannelContext& context, bool clean) {
      { H::backend_name() } noexcept -> std::same_as<const char*>;
      { H::tuning(context) } noexcept -> std::same_as<Tuning>;
      { host.wire() } noexcept -> std::same_as<typename H::Wire&>;
      { host.run_blocking(routine, watch) } noexcept -> std::same_as<bool>;
      { host.waits_for() } noexcept -> std::same_as<std::pair<int, bool>>;
      { host.interrupt() } noexcept -> std::same_as<void>;
      { host.close(clean) } noexcept -> std::same_as<void>;
    };
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend::message_passing
