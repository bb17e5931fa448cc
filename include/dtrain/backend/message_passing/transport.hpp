#pragma once
/// @file
/// The concept Transport: opens, runs, interrupts and closes one channel of a message-passing backend.
/// CancellationToken: ends an operation early.

#include <concepts>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/core/deadline.hpp"

namespace DTRAIN_NAMESPACE::backend::message_passing {

/// A Transport polls it to learn whether to cancel an operation. Threads: cancelled() and stalled() from the one that
/// runs the operation, or from the transport's while the former blocks; other members from any.
class CancellationToken {
 public:
  /// Whether the channel has failed. Cheap.
  virtual bool aborted() const noexcept = 0;
  /// Whether the operation is to end. Also reads the clock.
  virtual bool cancelled() noexcept = 0;
  /// The answer of cancelled().
  virtual bool should_end() const noexcept = 0;
  /// Called after a wait of a few milliseconds, and then at least every 20 ms.
  virtual void stalled() noexcept = 0;
  /// A sentence: why this rank ends, for a Transport that has to end the process.
  virtual std::string reason() const = 0;

 protected:
  ~CancellationToken() = default;
};

// clang-format off

/// One rank's connection to a channel. The constructor takes the context, the channel's ranks in the job and a
/// deadline; it is collective, blocks and may throw. Threads: run_blocking from one at a time; interrupt from any.
///
/// - `run_blocking(routine, token)`: returns true once the routine is done, or is cancelled by the token and the
///   operation's memory is no longer used. Returns false if the library (MPI or the like) still uses the memory: then
///   the scratch is never freed.
/// - `waits_for()`: after a cancelled run, the awaited peer's rank in the channel, and whether that peer had to
///   send.
/// - `interrupt()`: the token's answers may have changed.
/// - `close(clean)`: the last call; `clean` if the channel has not failed. May notify waiting peers.
/// - `tuning(context)`: equal on every rank.
template <class T>
concept Transport = requires { typename T::Endpoint; } && Endpoint<typename T::Endpoint> &&
    std::constructible_from<T, const ChannelContext&, const std::vector<int>&, Deadline> &&
    requires(T& transport, Routine& routine, CancellationToken& token, const ChannelContext& context, bool clean) {
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
