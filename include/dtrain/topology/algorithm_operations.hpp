#pragma once
/// @file
/// Order of the operations of a topology's algorithm; AllReduceVariant: a way in which it reduces.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/failure/first_cause.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/ordered_channel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// A variant of all_reduce that an algorithm's communicator offers.
struct AllReduceVariant {
  const char* name = "";
  bool is_by_algorithm = true;  ///< else by the backend
  bool casts = true;            ///< to the algorithm's wire type, if it has one
};

/// The order of an algorithm's operations. Uses the state until close() only; operations after close() are skipped.
/// @tparam State has `algorithm`, `inner`, the backend's communicator, and failure(), the first cause of any of them
template <class State>
class AlgorithmOrder : public backend::OrderedChannel<AlgorithmOrder<State>> {
  using Order = backend::OrderedChannel<AlgorithmOrder<State>>;

 public:
  AlgorithmOrder(const backend::ChannelContext& context, State& state) : Order(context), state_(state) {}

  /// Runs in the stream's thread. An exception of the algorithm becomes the channel's failure.
  /// @param operation `operation(algorithm)` returns whether the algorithm's channels still work
  template <class Operation>
  void run(std::uint64_t number, backend::OperationKind kind, const Operation& operation) noexcept {
    const auto work = [&]() noexcept {
      try {
        if (!state_.failure() && !operation(state_.algorithm)) {
          if (const std::optional<Cause> cause = state_.failure()) {
            abort(*cause);
          }
        }
      } catch (const std::exception& error) {
        fail_operation(kind, error.what());
      }
    };
    Order::run_in_order(number, work,
                        [&]() noexcept { fail_operation(kind, std::string("it ") + backend::began_early); });
  }

  /// Ends all channels of the communicator; during close(), only if an operation runs. The first cause is kept.
  void abort(const Cause& cause) noexcept {
    if (this->cause_.set(cause) && (!is_closing_.load() || Order::is_in_operation())) {
      state_.inner.abort(cause);
      state_.algorithm.abort(cause);
    }
  }

  /// Blocks until the first `count` operations have run. Between waits it calls `help()`, which may run them.
  /// @returns false at the deadline
  template <class Help>
  bool wait_until_run(std::uint64_t count, Deadline deadline, Help help) const {
    while (!Order::has_run(count) && !deadline.passed()) {
      help();
      if (!Order::has_run(count)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return Order::has_run(count);
  }

  /// See OrderedChannel::close_order. Unless an operation was interrupted, the channels close as after a complete run.
  void close(std::uint64_t enqueued) noexcept {
    const bool has_failed = Order::aborted();
    is_closing_.store(true);
    if (Order::close_order(enqueued) && !has_failed) {
      backend::report_quietly(*this->failure_, *Order::failure());
    }
  }

 private:
  friend Order;

  ~AlgorithmOrder() = default;

  DTRAIN_NOT_INLINED void fail_operation(backend::OperationKind kind, std::string_view text) noexcept {
    const std::string_view operation = name(kind);
    Order::fail({CauseKind::exception, this->job_rank_, this->host_,
                 format_text("{} {} on channel '{}': {}",
                             {operation.starts_with('a') ? "an" : "a", operation, this->name_, text})});
  }

  State& state_;
  std::atomic<bool> is_closing_{false};
};

}  // namespace DTRAIN_NAMESPACE::topology
