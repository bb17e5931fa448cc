#pragma once
/// @file
/// mpi::Engine: MPI in this process, one for all channels: the thread that initialises and finalizes it.

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "dtrain/async/thread.hpp"
#include "dtrain/backend/mpi/library.hpp"
#include "dtrain/backend/mpi/progress_loop.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::backend::mpi {

/// The end of work of another thread, and the exception that ended it. Threads: any.
class CallCompletion {
 public:
  void set(std::exception_ptr thrown = nullptr) noexcept {
    const std::lock_guard lock(mutex_);
    thrown_ = std::move(thrown);
    done_ = true;
    changed_.notify_all();
  }

  /// Blocking: until set(). @returns false at the deadline
  bool block_until_set(Deadline deadline) {
    std::unique_lock lock(mutex_);
    return block_until(changed_, lock, deadline, [this] { return done_; });
  }

  /// Requires set(). @throws the exception, if there is one
  void rethrow() const {
    if (thrown_) {
      std::rethrow_exception(thrown_);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::exception_ptr thrown_;
};

/// Holds the engine. A process can start MPI only once, and must not call it after disable(): MPI may hold memory that
/// no longer exists. `E` is the engine. Threads: any.
template <class E>
class EngineRegistry {
 public:
  /// The engine if it still has an owner, otherwise the result of `make()`. Blocking: while another thread makes one.
  /// @throws Error (timeout; unsupported after disable()), exceptions of make()
  template <class Make>
  std::shared_ptr<E> shared_blocking(Make make, Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (!block_until(changed_, lock, deadline, [this] { return !making_; })) {
      throw_error(Errc::timeout,
                  "another thread of this process is still initialising MPI; see whether all ranks run, since MPI_Init "
                  "waits for them, or raise DTRAIN_TIMEOUT_SECONDS");
    }
    if (disabled_) {
      throw_error(Errc::unsupported,
                  "an earlier process group of this process ended in a failure, and with it MPI, which cannot be "
                  "started again; end the process, and start the job anew");
    }
    if (std::shared_ptr<E> engine = engine_.lock()) {
      return engine;
    }
    making_ = true;
    lock.unlock();
    std::shared_ptr<E> made;
    std::exception_ptr thrown;
    try {
      made = make();
    } catch (...) {
      thrown = std::current_exception();
    }
    lock.lock();
    making_ = false;
    engine_ = made;
    changed_.notify_all();
    if (thrown) {
      std::rethrow_exception(thrown);
    }
    return made;
  }

  /// Forbids later calls to MPI in this process.
  void disable() noexcept {
    const std::lock_guard lock(mutex_);
    disabled_ = true;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::weak_ptr<E> engine_;
  bool making_ = false;
  bool disabled_ = false;
};

#if DTRAIN_WITH_MPI

/// Owns a duplicate of MPI_COMM_WORLD, made before any message. Channels of point-to-point messages make no collective
/// MPI call after it, so that all their calls can be cancelled at any moment. Threads: one, which initialises MPI;
/// any for what is constant.
class MpiRuntime {
 public:
  /// Collective over MPI_COMM_WORLD, blocking without a deadline. Initialises MPI unless the program did.
  /// @throws Error (unsupported, mpi)
  MpiRuntime() {
    int initialized = 0;
    int finalized = 0;
    check(MPI_Initialized(&initialized), "asking whether MPI runs");
    check(MPI_Finalized(&finalized), "asking whether MPI has ended");
    if (finalized != 0) {
      throw_error(Errc::unsupported,
                  "MPI has ended in this process and cannot be started again; keep one process group until the end, "
                  "or initialise and finalize MPI in main, around all of them");
    }
    if (initialized == 0) {
      start();
    } else {
      check_thread_level();
    }
    check(MPI_Comm_dup(MPI_COMM_WORLD, &communicator_), "duplicating MPI_COMM_WORLD");
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "having errors returned");
    check(MPI_Comm_rank(communicator_, &rank_), "asking for the rank");
    check(MPI_Comm_size(communicator_, &size_), "asking for the number of ranks");
    int* bound = nullptr;
    int has_bound = 0;
    check(MPI_Comm_get_attr(communicator_, MPI_TAG_UB, &bound, &has_bound), "asking for the largest tag");
    highest_tag_ = has_bound != 0 ? *bound : 32767;  // guaranteed by the standard
    library_ = library_name();
  }
  MpiRuntime(const MpiRuntime&) = delete;
  MpiRuntime& operator=(const MpiRuntime&) = delete;

  MPI_Comm communicator() const noexcept { return communicator_; }
  /// Whether this object initialised MPI, and therefore finalizes it.
  bool is_own() const noexcept { return started_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  int highest_tag() const noexcept { return highest_tag_; }
  const std::string& version_text() const noexcept { return library_; }

  /// Collective if is_own(), and then blocking until every rank calls it.
  void end() noexcept {
    if (has_ended()) {
      return;  // the program ended it before its process group
    }
    if (started_) {
      flush();
    }
    static_cast<void>(MPI_Comm_free(&communicator_));
    if (started_) {
      static_cast<void>(MPI_Finalize());
    }
  }

 private:
  /// Receives a last message from each peer that may have sent a close message, and sends one likewise. Reasons: Open
  /// MPI aborts a process whose peer closes a connection before all bytes are written. MPI_Finalize does not wait for
  /// messages that no rank has to receive. With more than `most_notified` ranks: as channels of all ranks do.
  void flush() const noexcept {
    constexpr int most_notified = 64;  // equal to BasicTransport's
    for (int distance = 1; distance < size_; distance = size_ <= most_notified ? distance + 1 : 2 * distance) {
      char sent = 0;
      char received = 0;
      static_cast<void>(MPI_Sendrecv(&sent, 1, MPI_CHAR, (rank_ + distance) % size_, highest_tag_, &received, 1,
                                     MPI_CHAR, (rank_ + size_ - distance) % size_, highest_tag_, communicator_,
                                     MPI_STATUS_IGNORE));
    }
  }

  void start() {
    int provided = 0;
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided), "starting MPI");
    started_ = true;
    if (provided < MPI_THREAD_SERIALIZED) {
      throw_error(Errc::unsupported,
                  "{} lets one thread alone call it, and backend::Mpi calls it from each thread that waits; use an MPI "
                  "that was built with threads (MPI_THREAD_SERIALIZED or more)",
                  {library_name()});
    }
    check(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "having errors returned");
  }

  /// Requires MPI_THREAD_MULTIPLE: dtrain's threads call MPI while the program's threads may call it.
  static void check_thread_level() {
    int provided = 0;
    check(MPI_Query_thread(&provided), "asking for the level of threads");
    if (provided < MPI_THREAD_MULTIPLE) {
      throw_error(Errc::unsupported,
                  "this program initialised MPI for one thread at a time, but backend::Mpi calls it from a thread of "
                  "its own; initialise it with MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided), or not "
                  "at all");
    }
  }

  MPI_Comm communicator_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  int highest_tag_ = 0;
  bool started_ = false;
  std::string library_;
};

/// Owns the thread that initialises MPI, makes calls other than messages, and finalizes it. All channels of a process
/// share one engine. Threads: any, except where a member says otherwise. Lifetime: as long as its last owner.
class Engine {
 public:
  /// State that outlives the engine if its thread does not end.
  struct EngineState {
    std::optional<MpiRuntime> runtime;
    ProgressLoop loop;
    int channels = 0;      ///< number of channels whose tags this process has chosen
    std::string secret{};  ///< the job's, once rank 0 has distributed it
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
    loop().calls().push([state = &thread_state_->state, clean] {
      if (clean && !state->loop.out_of_service()) {
        state->runtime->end();
      }
      state->loop.stop();
    });
    if (thread_state_->ended.block_until_set(
            Deadline::after(clean ? finalize_timeout_.load() : std::chrono::seconds(2)))) {
      thread_.join();
    } else {
      log(LogLevel::warning, "MPI_Finalize did not return; this process ends without it");
      thread_.detach();
    }
  }

  const MpiRuntime& runtime() const noexcept { return *thread_state_->state.runtime; }
  ProgressLoop& loop() noexcept { return thread_state_->state.loop; }

  /// Runs `call(EngineState&)` in the thread that initialised MPI, which holds the loop's lock. Blocking: until the
  /// call returns or the deadline passes; after the deadline it may still run. @throws the call's exceptions, Error
  /// (timeout)
  void run_blocking(std::function<void(EngineState&)> call, Deadline deadline, const char* doing) {
    const auto result = std::make_shared<CallCompletion>();
    loop().calls().push([result, state = &thread_state_->state, call = std::move(call)] {
      std::exception_ptr thrown;
      try {
        call(*state);
      } catch (...) {
        thrown = std::current_exception();
      }
      result->set(thrown);
    });
    if (!result->block_until_set(deadline)) {
      throw_error(Errc::timeout, "{} took too long; have all processes of the job come as far?", {doing});
    }
    result->rethrow();
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
    EngineState state;
    CallCompletion started;
    CallCompletion ended;
  };

  explicit Engine(Deadline deadline) : thread_state_(std::make_shared<ThreadState>()) {
    thread_ = async::start_thread("the thread that calls MPI", [thread_state = thread_state_] { main(*thread_state); });
    if (!thread_state_->started.block_until_set(deadline)) {
      registry().disable();  // the thread is inside MPI_Init_thread, which a process calls once
      thread_.detach();
      throw_error(Errc::timeout, "MPI_Init_thread did not return in time; have all processes of the job started?");
    }
    thread_state_->started.rethrow();  // the thread ends if this throws
  }

  static void main(ThreadState& thread_state) noexcept {
    try {
      thread_state.state.runtime.emplace();
    } catch (...) {
      thread_state.started.set(std::current_exception());
      return;
    }
    thread_state.started.set();
    thread_state.state.loop.run(thread_state.state.runtime->is_own());
    thread_state.ended.set();
  }

  const std::shared_ptr<ThreadState> thread_state_;
  async::JoiningThread thread_;
  std::atomic<bool> opened_{false};
  std::atomic<bool> failed_{false};
  std::atomic<std::chrono::nanoseconds> finalize_timeout_{std::chrono::minutes(10)};
};

#endif  // DTRAIN_WITH_MPI

}  // namespace DTRAIN_NAMESPACE::backend::mpi
