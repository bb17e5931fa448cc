#pragma once
/// @file
/// What carries a channel's routines where messages go over MPI.

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/gather.hpp"
#include "dtrain/backend/message_passing/call.hpp"
#include "dtrain/backend/message_passing/opening.hpp"
#include "dtrain/backend/message_passing/routine.hpp"
#include "dtrain/backend/mpi/endpoint.hpp"
#include "dtrain/backend/mpi/engine.hpp"
#include "dtrain/backend/mpi/task.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/exit_codes.hpp"
#include "dtrain/core/log.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// See message_passing::Host. `E` is an Endpoint, or a CollectiveEndpoint.
template <std::derived_from<Endpoint> E>
class HostOver {
  static constexpr bool has_communicator = requires(E & endpoint) { endpoint.free_communicator(); };

 public:
  using Wire = E;

  static constexpr const char* backend_name() noexcept {
    return has_communicator ? "backend::MpiCollectives" : "backend::Mpi";
  }

  /// Collective, blocking: the channel's tags are agreed on, and its communicator made where it has one.
  /// @throws Error (timeout, limit, mpi), JobFailed
  HostOver(const ChannelContext& context, const std::vector<int>& job_ranks, Deadline deadline)
      : engine_(Engine::shared_blocking(deadline)) {
    engine_->end_within(std::min<std::chrono::nanoseconds>(context.timeout, std::chrono::hours(24)));
    const int first_tag = agree_on_tags(context, deadline);
    endpoint_ =
        std::make_shared<E>(engine_->requests(), engine_->communicator(), first_tag, context.members.rank, job_ranks);
    if constexpr (has_communicator) {
      meet_ranks(context, deadline);  // the engine serves no other channel while it waits for them inside MPI
      const auto make = [endpoint = endpoint_, first_tag](Engine::Inside& inside) {
        endpoint->make_communicator(inside.session->communicator(), first_tag);
      };
      engine_->run_blocking(make, deadline, "making a channel's communicator");
    }
    engine_->expect_end();
  }

  Wire& wire() noexcept { return *endpoint_; }

  /// Where all ranks share a host blocks go straight. Between hosts more is on its way: a long message waits for the
  /// receiver's answer, behind the bytes that fill the link.
  static message_passing::Tuning tuning(const ChannelContext& context) noexcept {
    message_passing::Tuning tuning;
    tuning.all_to_all = context.members.node_count == 1;
    tuning.chunks_in_flight = tuning.all_to_all ? 4 : 8;
    return tuning;
  }

  /// Blocking: until the routine is done, or `watch` gives it up. @returns whether the operation's memory is free again
  template <class Watch>
  bool run_blocking(message_passing::Routine& routine, Watch& watch) noexcept {
    Task task{*endpoint_, routine, bell_};
    engine_->orders().give({&task, nullptr, {}});
    for (int yield = 0; yield < yields && !task.ended.load(); ++yield) {
      static_cast<void>(::sched_yield());
    }
    std::chrono::milliseconds patience(1);
    bool given_up = false;
    std::optional<CallWatch> last_patience;
    while (!task.ended.load()) {
      if (!given_up && watch.gives_up()) {
        given_up = true;
        last_patience.emplace(engine_->requests().calls(), patience_with_mpi);
        engine_->orders().give({nullptr, &task, {}});
      }
      bell_.sleep(Deadline::after(std::exchange(patience, std::chrono::milliseconds(20))),
                  [&] { return task.ended.load() || (!given_up && watch.aborted()); });
      if (!task.ended.load() && !given_up) {
        watch.stalled();
      }
      if (last_patience && last_patience->hangs() && !task.ended.load()) {
        // Open MPI's TCP transport ends a process from inside a call when a peer dies, and takes seconds for it.
        log(LogLevel::error, watch.reason() + " (and a call to MPI does not come back: this process ends here)");
        ::_exit(exit_code_job_failed);
      }
    }
    return !task.memory_is_lost;
  }

  /// From any thread: run_blocking asks its watch.
  void interrupt() noexcept { bell_.ring(); }

  /// "rank 2 had not sent all of it", of ranks of the channel; after an operation that was given up.
  std::pair<int, bool> waits_for() const noexcept { return endpoint_->waits_for(); }

  /// The channel comes to its end: the others learn that this rank calls nothing any more. After a failure they know.
  void close(bool clean) noexcept {
    if (!clean) {
      engine_->expect_no_end();
    }
    try {  // also where nothing is to be said: what the engine still does with this channel's bell is then over
      const auto say = [endpoint = endpoint_, clean](Engine::Inside& inside) {
        if (clean && !inside.loop.out_of_service() && !has_ended()) {
          say_last_word(*endpoint);
          if constexpr (has_communicator) {
            endpoint->free_communicator();
          }
        }
      };
      engine_->run_blocking(say, Deadline::after(std::chrono::seconds(10)), "leaving a channel");
    } catch (...) {
      // They wait until their deadline.
    }
  }

 private:
  static constexpr int yields = 20;
  static constexpr std::chrono::milliseconds patience_with_mpi{500};  ///< with one call that does not come back
  static constexpr int most_told = 64;  ///< of more ranks those that an algorithm may have behind this one

  /// Two tags for each channel, which no other channel of this process or of a peer has: those are of the channel's
  /// rank 0, which counts its own. @throws Error (limit)
  int agree_on_tags(const ChannelContext& context, Deadline deadline) {
    const std::string key = context.name + "/mpi";
    if (context.members.rank == 0) {
      const int own = engine_->highest_tag() / engine_->size() / message_passing::lane_count;
      const auto chosen = std::make_shared<int>();  // a call that comes too late may still write there
      engine_->run_blocking([chosen](Engine::Inside& inside) { *chosen = inside.channels++; }, deadline,
                            "choosing a channel's tags");
      const int number = *chosen;
      if (number >= own) {
        throw Error(Errc::limit, engine_->version_text() + " has tags up to " + std::to_string(engine_->highest_tag()) +
                                     " only: this rank has opened " + std::to_string(number) +
                                     " channels, and cannot open more; keep groups instead of splitting anew");
      }
      const int tag = (engine_->rank() * own + number) * message_passing::lane_count;
      if (context.members.world_size > 1) {
        context.store.set_blocking(key, std::to_string(tag), deadline);
      }
      return tag;
    }
    const std::string text = context.store.take_blocking(key, context.members.world_size - 1, deadline);
    int tag = -1;
    const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), tag);
    if (error != std::errc() || after != text.data() + text.size() || tag < 0 || tag > engine_->highest_tag()) {
      throw Error(Errc::protocol,
                  "opening channel '" + context.name + "': rank 0 gave no tag; do all ranks run one program?");
    }
    return tag;
  }

  /// Every rank is about to make the channel's communicator.
  static void meet_ranks(const ChannelContext& context, Deadline deadline) {
    const auto all = [](const std::vector<std::string>&) { return std::string("all here"); };
    gather_blocking(context.store, context.name + "/mpi-ranks", context.members.rank, context.members.world_size,
                    "here", all, deadline);
  }

  /// A few bytes, which MPI keeps even where nobody receives them; where it reads them they stay for ever.
  static void say_last_word(Endpoint& endpoint) {
    static constexpr Operation word{};
    const int size = endpoint.size();
    for (int distance = 1; distance < size; distance = size <= most_told ? distance + 1 : 2 * distance) {
      for (const Lane lane : {Lane::collective, Lane::direct}) {
        endpoint.send_and_forget(std::as_bytes(std::span(&word, 1)), (endpoint.rank() + distance) % size, lane);
      }
    }
  }

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<E> endpoint_;  ///< shared with a last word that comes late
  Bell bell_;
};

using Host = HostOver<Endpoint>;

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
