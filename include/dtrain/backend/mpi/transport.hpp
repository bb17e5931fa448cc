#pragma once
/// @file
/// mpi::BasicTransport: the transport of one channel over MPI. PollingPace: when a waiting thread spins, yields,
/// sleeps.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/message_passing/algorithms/operation_header.hpp"
#include "dtrain/backend/message_passing/endpoint.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"
#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/backend/mpi/engine.hpp"
#include "dtrain/backend/mpi/progress_loop.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/serializer.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/wait_pace.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// A WaitPace whose sleeps nobody ends: they are short, and grow with the time since something moved. Also says when to
/// look for a stall. The clock is not read while it spins. Threads: one.
class PollingPace {
 public:
  explicit PollingPace(const WaitLimits& limits) noexcept : pace_(limits) {}

  /// Something has moved.
  void reset() noexcept {
    pace_.reset();
    moves_ = true;
  }

  WaitAction next() noexcept {
    const WaitAction action = pace_.next();
    const bool reads_clock = action != WaitAction::spin || ++spins_ % longest_spin == 0;
    if (reads_clock) {
      now_ = Clock::now();
      if (std::exchange(moves_, false)) {
        moved_at_ = now_;
      }
    }
    return action == WaitAction::spin && reads_clock ? WaitAction::yield : action;
  }

  void yield() noexcept { pace_.yield(); }

  /// See CancellationToken::stalled. Reads the clock of the last next() that did not spin.
  bool stall_is_due() noexcept {
    if (stall_at_ == Clock::time_point{}) {
      stall_at_ = now_ + std::chrono::milliseconds(1);
    }
    if (now_ < stall_at_) {
      return false;
    }
    stall_at_ = now_ + std::chrono::milliseconds(20);
    return true;
  }

  Deadline sleep_deadline() const noexcept {
    return Deadline::after(
        std::clamp<std::chrono::nanoseconds>((now_ - moved_at_) / 16, shortest_sleep, longest_sleep));
  }

 private:
  using Clock = WaitPace::Clock;
  static constexpr std::uint64_t longest_spin = 4096;  ///< turns until the clock is read, also while messages arrive
  static constexpr std::chrono::microseconds shortest_sleep{20};
  static constexpr std::chrono::microseconds longest_sleep{200};

  WaitPace pace_;
  std::uint64_t spins_ = 0;
  bool moves_ = true;
  Clock::time_point now_{};
  Clock::time_point moved_at_{};
  Clock::time_point stall_at_{};
};

#if DTRAIN_WITH_MPI

/// See message_passing::Transport. `E` is an Endpoint, or a CollectiveEndpoint.
template <std::derived_from<Endpoint> E>
class BasicTransport {
  static constexpr bool has_communicator = requires(E & endpoint) { endpoint.free_communicator(); };

 public:
  using Endpoint = E;

  static constexpr const char* backend_name() noexcept {
    return has_communicator ? "backend::MpiCollectives" : "backend::Mpi";
  }

  /// Collective, blocking: agrees on the channel's tags, and makes the channel's communicator if `E` has one.
  /// @throws Error (timeout, limit, mpi), JobFailed
  BasicTransport(const ChannelContext& context, const std::vector<int>& job_ranks, Deadline deadline)
      : engine_(Engine::shared_blocking(deadline)), limits_(limits_of(context.members.local_world_size)) {
    engine_->set_finalize_timeout(std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24)));
    const int first_tag = agree_on_tags(context, deadline);
    endpoint_ = std::make_shared<E>(engine_->loop().requests(), engine_->runtime().communicator(), first_tag,
                                    context.members.rank, job_ranks);
    if constexpr (has_communicator) {
      wait_for_ranks(context, deadline);  // inside MPI the engine would wait for the ranks and serve no other channel
      const auto make = [endpoint = endpoint_, first_tag](Engine::EngineState& state) {
        endpoint->make_communicator(state.runtime->communicator(), first_tag);
      };
      engine_->run_blocking(make, deadline, "making a channel's communicator");
    }
    engine_->expect_finalize();
  }

  Endpoint& endpoint() noexcept { return *endpoint_; }

  /// If all ranks share a host, each rank sends blocks directly to each other rank, and small buffers whole. Between
  /// hosts more chunks are in flight: a long message waits for the receiver's answer, which queues after the bytes that
  /// fill the link.
  static message_passing::Tuning tuning(const ChannelContext& context) noexcept {
    message_passing::Tuning tuning;
    tuning.direct_reduce_scatter = context.members.node_count == 1;
    if (tuning.direct_reduce_scatter) {  // a second message costs more than sending up to 128 KiB at once
      const auto ranks = static_cast<std::size_t>(context.members.world_size);
      tuning.small_bytes = std::clamp<std::size_t>((std::size_t{128} << 10U) / ranks, 8192, 32768);
    }
    tuning.chunks_in_flight = tuning.direct_reduce_scatter ? 4 : 8;
    return tuning;
  }

  /// Blocking: until the routine ends, or `token` cancels it. The calling thread makes MPI's progress meanwhile.
  /// @returns whether MPI has released its memory
  bool run_blocking(message_passing::Routine& routine, message_passing::CancellationToken& token) noexcept {
    RunningRoutine running{*endpoint_, routine, wakeup_, token};
    ProgressLoop& loop = engine_->loop();
    loop.enter(running);
    loop.start(running);
    PollingPace pace(limits_);
    bool cancelled = false;
    while (!running.ended.load()) {
      if (loop.drive()) {
        pace.reset();
      }
      const WaitAction action = pace.next();
      if (action == WaitAction::spin || running.ended.load()) {
        continue;
      }
      if (!cancelled && token.cancelled()) {
        cancelled = true;
        loop.cancel(running);
        continue;
      }
      if (pace.stall_is_due()) {
        token.stalled();
      }
      if (action == WaitAction::yield) {
        pace.yield();
      } else {
        wakeup_.sleep(pace.sleep_deadline(), [&] { return running.ended.load() || (!cancelled && token.aborted()); });
      }
    }
    loop.withdraw(running);
    return !running.memory_is_lost;
  }

  /// Makes run_blocking() check its token. Threads: any.
  void interrupt() noexcept { wakeup_.notify(); }

  /// After a cancelled operation: the channel's rank that the operation waited for, and whether that rank was to send.
  std::pair<int, bool> waits_for() const noexcept { return endpoint_->waits_for(); }

  /// Closes the channel. If `clean`, notifies the other ranks that this rank calls nothing more; after a failure they
  /// are notified already.
  void close(bool clean) noexcept {
    if (!clean) {
      engine_->skip_finalize();
    }
    try {  // also without a message to send: after the call the engine no longer uses this channel's wakeup
      const auto send_close = [endpoint = endpoint_, clean](Engine::EngineState& state) {
        if (clean && !state.loop.out_of_service() && !has_ended()) {
          send_close_messages(*endpoint);
          if constexpr (has_communicator) {
            endpoint->free_communicator();
          }
        }
      };
      engine_->run_blocking(send_close, Deadline::after(std::chrono::seconds(10)), "leaving a channel");
    } catch (...) {
      // The other ranks wait until their deadline.
    }
  }

 private:
  /// A launcher of MPI may have bound each rank to one core, so the cores online count. A look at MPI's
  /// messages takes longer than a pause.
  static WaitLimits limits_of(int local_ranks) {
    WaitLimits limits = WaitLimits::of_ranks(local_ranks, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
    limits.pauses = 100;
    return limits;
  }

  static constexpr int most_notified = 64;  ///< beyond this: the ranks at distances 1, 2, 4, ..., as in algorithms

  /// Chooses the channel's two tags. Rank 0 of the channel takes them from its own range of tags, so that no other
  /// channel of this process or of a peer has them. @throws Error (limit)
  int agree_on_tags(const ChannelContext& context, Deadline deadline) {
    const auto choose = [&] {
      const int own = engine_->runtime().highest_tag() / engine_->runtime().size() / message_passing::tag_class_count;
      const auto chosen = std::make_shared<int>();  // a call that runs after the deadline still writes there
      engine_->run_blocking([chosen](Engine::EngineState& state) { *chosen = state.channels++; }, deadline,
                            "choosing a channel's tags");
      const int number = *chosen;
      if (number >= own) {
        throw_error(Errc::limit,
                    "{} has tags up to {} only: this rank has opened {} channels, and cannot open more; keep groups "
                    "instead of splitting anew",
                    {engine_->runtime().version_text(), engine_->runtime().highest_tag(), number});
      }
      return to_bytes((engine_->runtime().rank() * own + number) * message_passing::tag_class_count);
    };
    const StoreRank self = StoreRank::of(context, deadline, opening(context));
    const auto tag = from_bytes<int>(store_broadcast(self, context.name + "/mpi", choose), "a channel's tag");
    if (tag < 0 || tag > engine_->runtime().highest_tag()) {
      throw_error(Errc::protocol, "{}: rank 0 gave no tag; do all ranks run one program?", {opening(context)});
    }
    return tag;
  }

  /// Blocking: until every rank is about to make the channel's communicator.
  static void wait_for_ranks(const ChannelContext& context, Deadline deadline) {
    const auto empty = [](const auto&...) { return std::string(); };
    store_gather(StoreRank::of(context, deadline, opening(context)), context.name + "/mpi-ranks", empty, empty);
  }

  static std::string opening(const ChannelContext& context) {
    return format_text("opening channel '{}'", {context.name});
  }

  /// MPI keeps a message of a few bytes even if no rank receives it. MPI reads it from static memory.
  static void send_close_messages(Endpoint& endpoint) {
    static constexpr Operation close_message{};
    const int size = endpoint.size();
    for (int distance = 1; distance < size; distance = size <= most_notified ? distance + 1 : 2 * distance) {
      for (const TagClass tag_class : {TagClass::collective, TagClass::direct}) {
        endpoint.send_detached(std::as_bytes(std::span(&close_message, 1)), (endpoint.rank() + distance) % size,
                               tag_class);
      }
    }
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<E> endpoint_;  ///< shared with a close message that is sent late
  Wakeup wakeup_;
  WaitLimits limits_;
};

using Transport = BasicTransport<Endpoint>;

#endif  // DTRAIN_WITH_MPI

}  // namespace DTRAIN_NAMESPACE::backend::mpi
