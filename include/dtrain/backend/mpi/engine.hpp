#pragma once
/// @file
/// Engine: MPI in this process: its thread, which initialises and finalizes it, and the loop that drives its messages.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "dtrain/async/blocked_signals.hpp"
#include "dtrain/backend/mpi/engine_registry.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/progress_loop.hpp"
#include "dtrain/backend/mpi/runtime.hpp"
#include "dtrain/core/block_until.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_MPI

namespace DTRAIN_NAMESPACE::backend::mpi {

/// Owns the thread that initialises MPI, makes calls other than messages, and finalizes it. All channels of a process
/// share one engine. Threads: any, except where a member says otherwise. Lifetime: as long as its last owner.
class Engine {
 public:
  /// State that outlives the engine if its thread does not end.
  struct EngineState {
    std::optional<MpiRuntime> runtime;
    ProgressLoop loop;
    int channels = 0;      ///< number of channels whose tags this process has chosen
    std::string secret{};  ///< of the job, once it was handed out
  };

  /// Collective over MPI_COMM_WORLD if it is the process's first call; blocking. See EngineRegistry.
  /// @throws Error (timeout, unsupported, mpi)
  static std::shared_ptr<Engine> shared_blocking(Deadline deadline) {
    return registry().shared_blocking([deadline] { return std::shared_ptr<Engine>(new Engine(deadline)); }, deadline);
  }

  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Blocking. If nothing was cancelled, finalizes MPI with all other ranks, for at most set_finalize_timeout().
  /// Otherwise stops without MPI_Finalize, after at most two seconds.
  ~Engine() {
    const bool clean = opened_.load() && !failed_.load();
    if (!clean) {
      registry().disable();
    }
    calls().push([state = &thread_state_->state, clean] {
      if (clean && !state->loop.out_of_service()) {
        state->runtime->end();
      }
      state->loop.stop();
    });
    if (thread_state_->block_until_ended(Deadline::after(clean ? finalize_timeout_.load() : std::chrono::seconds(2)))) {
      thread_.join();
    } else {
      log(LogLevel::warning, "MPI_Finalize did not come back; this process ends without it");
      thread_.detach();
    }
  }

  /// The process's rank in MPI_COMM_WORLD, and other values of MpiRuntime.
  int rank() const noexcept { return runtime().rank(); }
  int size() const noexcept { return runtime().size(); }
  int highest_tag() const noexcept { return runtime().highest_tag(); }
  MPI_Comm communicator() const noexcept { return runtime().communicator(); }
  const std::string& version_text() const noexcept { return runtime().version_text(); }

  CallQueue& calls() noexcept { return loop().calls(); }
  ProgressLoop& loop() noexcept { return thread_state_->state.loop; }
  Requests& requests() noexcept { return thread_state_->state.loop.requests(); }

  /// Runs `call(EngineState&)` in the thread that initialised MPI, which holds the loop's lock. Blocking: until the
  /// call returns or the deadline passes; after the deadline it may still run. @throws the call's exceptions, Error
  /// (timeout)
  void run_blocking(std::function<void(EngineState&)> call, Deadline deadline, const char* doing) {
    struct PendingCall {
      std::mutex mutex;
      std::condition_variable changed;
      bool done = false;
      std::exception_ptr thrown;
    };
    const auto result = std::make_shared<PendingCall>();
    calls().push([result, state = &thread_state_->state, call = std::move(call)] {
      std::exception_ptr thrown;
      try {
        call(*state);
      } catch (...) {
        thrown = std::current_exception();
      }
      const std::lock_guard lock(result->mutex);
      result->thrown = thrown;
      result->done = true;
      result->changed.notify_all();
    });
    std::unique_lock lock(result->mutex);
    if (!block_until(result->changed, lock, deadline, [&] { return result->done; })) {
      throw_error(Errc::timeout, "{} took too long; have all processes of the job come as far?", {doing});
    }
    if (result->thrown) {
      std::rethrow_exception(result->thrown);
    }
  }

  /// Called when a channel is open: at the end all ranks finalize MPI together, unless one fails.
  void expect_finalize() noexcept { opened_.store(true); }
  /// Skips MPI_Finalize, because not all ranks will call it.
  void skip_finalize() noexcept { failed_.store(true); }
  void set_finalize_timeout(std::chrono::nanoseconds timeout) noexcept { finalize_timeout_.store(timeout); }

 private:
  /// Never destroyed: it outlives all objects that the program destroys at its end.
  static EngineRegistry<Engine>& registry() {
    static EngineRegistry<Engine>& registered = *new EngineRegistry<Engine>;
    return registered;
  }

  /// Outlives an Engine whose thread does not end.
  struct ThreadState {
    bool block_until_ended(Deadline deadline) {
      std::unique_lock lock(mutex);
      return block_until(changed, lock, deadline, [this] { return ended; });
    }

    EngineState state;
    std::mutex mutex;
    std::condition_variable changed;
    bool started = false;
    bool ended = false;
    std::exception_ptr failed;
  };

  explicit Engine(Deadline deadline) : thread_state_(std::make_shared<ThreadState>()) {
    const async::BlockedSignals blocked;
    try {
      thread_ = std::thread([thread_state = thread_state_] { main(*thread_state); });
    } catch (const std::system_error& failure) {
      throw Error(failure.code(), format_text("starting the thread that calls MPI: {}", {failure.what()}));
    }
    std::unique_lock lock(thread_state_->mutex);
    const bool has_started =
        block_until(thread_state_->changed, lock, deadline, [this] { return thread_state_->started; });
    lock.unlock();
    if (!has_started) {
      registry().disable();  // the thread is inside MPI_Init_thread, which a process calls once
      thread_.detach();
      throw_error(Errc::timeout, "MPI_Init_thread did not come back in time; have all processes of the job started?");
    }
    if (thread_state_->failed) {
      thread_.join();
      std::rethrow_exception(thread_state_->failed);
    }
  }

  static void main(ThreadState& thread_state) noexcept {
    try {
      thread_state.state.runtime.emplace();
    } catch (...) {
      thread_state.failed = std::current_exception();
    }
    set_flag(thread_state, thread_state.started);
    if (!thread_state.failed) {
      thread_state.state.loop.run(thread_state.state.runtime->is_own());
    }
    set_flag(thread_state, thread_state.ended);
  }

  static void set_flag(ThreadState& thread_state, bool& flag) noexcept {
    const std::lock_guard lock(thread_state.mutex);
    flag = true;
    thread_state.changed.notify_all();
  }

  const MpiRuntime& runtime() const noexcept { return *thread_state_->state.runtime; }

  const std::shared_ptr<ThreadState> thread_state_;
  std::thread thread_;
  std::atomic<bool> opened_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::chrono::nanoseconds> finalize_timeout_{std::chrono::minutes(10)};
};

}  // namespace DTRAIN_NAMESPACE::backend::mpi

#endif  // DTRAIN_WITH_MPI
