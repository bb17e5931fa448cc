#pragma once
/// @file
/// The thread that notices what goes wrong in a channel's running work, and aborts the communicator then.

#include <chrono>
#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/backend/nccl/closing.hpp"
#include "dtrain/backend/nccl/late_ranks.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/seconds_text.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/relaxed_capture.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Asks NCCL and the events twenty times a second; an abort wakes it at once. Only this thread ends the communicator,
/// so that whoever aborts or closes does not block in NCCL. It shares the channel: one that hangs in NCCL is left
/// behind.
class Watcher {
 public:
  /// @throws Error where the system gives no more threads
  explicit Watcher(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {
    // The user's signal handlers run in the user's threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([shared = channel_] { main(*shared); });
    } catch (const std::system_error& failure) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw Error(failure.code(), std::string("starting the thread that watches NCCL: ") + failure.what());
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Blocking: until the thread has ended, and the communicator with it; ten seconds at most.
  ~Watcher() {
    channel_->fate.stop_watching();
    if (channel_->fate.block_until_ended() || !channel_->fate.leave_behind()) {
      thread_.join();
      return;
    }
    thread_.detach();
    try {
      log(LogLevel::warning, "NCCL had not ended the communicator of channel '" + channel_->context.name +
                                 "' in time (10 s, 1 s after the first such) and is left behind with it, in a thread; "
                                 "it waits until all ranks of a node close theirs: destroy wrappers and groups in one "
                                 "order on all ranks, and CUDA graphs with their operations before them");
    } catch (...) {
      // No memory for the sentence.
    }
  }

 private:
  static void main(Channel& channel) noexcept {
    // The device that the channel is on and no other gets a context; what another thread captures is not its concern.
    stream::cuda::quiet(cudaSetDevice(channel.device()));
    const stream::cuda::RelaxedCapture relaxed;
    std::thread asking;
    try {
      asking = std::thread([&channel] { ask(channel); });
      bool said_late = false;
      while (channel.fate.block_while_watching(Deadline::after(std::chrono::milliseconds(50)))) {
        look(channel, said_late);
      }
    } catch (...) {
      channel.fate.fail(CauseKind::exception, "the thread that watches NCCL has failed");
    }
    if (!channel.fate.aborted()) {
      say_left(channel.context, true);  // again: an operation that was late meanwhile was written over it
    }
    end_blocking(channel);
    if (asking.joinable()) {
      asking.join();  // what it may stand in has drained
    }
    channel.fate.say_ended();
  }

  /// Asks the events, in a thread of its own: a call of CUDA's may stand until NCCL is aborted, which main() does.
  static void ask(Channel& channel) noexcept {
    stream::cuda::quiet(cudaSetDevice(channel.device()));
    const stream::cuda::RelaxedCapture relaxed;
    do {
      channel.ask_events();
    } while (channel.fate.block_while_watching(Deadline::after(std::chrono::milliseconds(50))));
  }

  /// @param said_late whether the store holds what this rank is late in
  static void look(Channel& channel, bool& said_late) {
    const Channel::Sight sight = channel.look();
    const std::string on_channel = " on channel '" + channel.context.name + "'";
    if (sight.state != ncclSuccess && sight.state != ncclInProgress) {
      channel.fate.block_for_job();  // another rank may have gone
      if (!channel.fate.aborted()) {
        channel.fate.fail(
            CauseKind::exception,
            nccl_error(sight.state, "an operation" + on_channel + " that ran", channel.caller(), sight.words).what());
      }
    } else if (sight.device != cudaSuccess) {
      channel.fate.fail(CauseKind::exception,
                        stream::cuda::cuda_error(sight.device, "an operation" + on_channel + " that ran").what());
    } else if (sight.overdue) {
      said_late = true;
      const std::optional<Cause> cause = why_late_blocking(channel.context, *sight.overdue);
      if (cause && channel.look().overdue) {  // else it has ended meanwhile, or the next look is to tell
        channel.fate.fail(*cause);
      }
    } else if (sight.is_stuck) {
      channel.fate.fail(CauseKind::timeout,
                        "CUDA has not answered for longer than the timeout of " +
                            seconds_text(channel.context.timeout) + " whether the operations" + on_channel +
                            " have run; a stream may be full of work behind one that waits for another rank, or the "
                            "device's driver hangs");
    } else if (said_late && sight.looked) {
      say_no_longer_late(channel.context);
      said_late = false;
    }
  }

  const std::shared_ptr<Channel> channel_;
  std::thread thread_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
