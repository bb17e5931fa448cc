#pragma once
/// @file
/// rendezvous::TaskRunner: users' coroutines on a rank's control loop.

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <type_traits>
#include <utility>

#include "dtrain/async/task/with_deadline.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/control/background_task.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

namespace detail {

template <class T>
inline constexpr bool is_task = false;
template <class T>
inline constexpr bool is_task<async::Task<T>> = true;

/// make(loop), or make() if it takes no loop.
template <class Make>
auto call_with_loop(Make& make, async::EventLoop& loop) {
  if constexpr (std::is_invocable_v<Make&, async::EventLoop&>) {
    return make(loop);
  } else {
    return make();
  }
}

template <class Make>
struct TaskOf {
  using type = decltype(call_with_loop(std::declval<Make&>(), std::declval<async::EventLoop&>()));
  static_assert(is_task<type>,
                "dtrain: run and spawn take a coroutine that returns dtrain::Task<T>; write "
                "'[&]() -> dtrain::Task<int> { ... }'");
};

/// Type-erased maker of a coroutine: nvcc's compiler warns of frames that hold types without linkage.
template <class T>
class TaskFactory {
 public:
  TaskFactory() = default;
  TaskFactory(const TaskFactory&) = delete;
  TaskFactory& operator=(const TaskFactory&) = delete;
  virtual ~TaskFactory() = default;
  virtual async::Task<T> make(async::EventLoop& loop) = 0;
};

template <class T, class Make>
class FunctionTaskFactory final : public TaskFactory<T> {
 public:
  explicit FunctionTaskFactory(Make make) : make_(std::move(make)) {}
  async::Task<T> make(async::EventLoop& loop) override { return call_with_loop(make_, loop); }

 private:
  Make make_;
};

/// Value type of a coroutine made by Make.
template <class Make>
using ValueOf = typename TaskOf<std::remove_reference_t<Make>>::type::value_type;

}  // namespace detail

/// Starts coroutines. Each ends by itself, when its owner cancels it, when the job fails, or when the rank leaves.
/// Lifetime: the thread outlives it. Threads: any; the destructor and close_blocking not from the loop's.
class TaskRunner {
 public:
  TaskRunner(async::LoopThread& thread, std::shared_ptr<FailureLatch> failure, int rank)
      : thread_(thread),
        loop_(thread.loop()),
        loop_handle_(std::make_shared<LoopHandle>(thread)),
        failure_(std::move(failure)),
        rank_(rank),
        running_(std::make_shared<RunningTasks>(thread.loop())) {
    subscription_ = failure_->subscribe([loop_handle = loop_handle_, running = running_](const Cause&) {
      loop_handle->post([running] { running->stop_all(); });
    });
  }
  TaskRunner(const TaskRunner&) = delete;
  TaskRunner& operator=(const TaskRunner&) = delete;
  ~TaskRunner() { close_blocking(); }

  bool on_loop_thread() const noexcept { return thread_.is_current(); }
  async::EventLoop& loop() const noexcept { return loop_; }

  /// Starts `make(loop)` or `make()` on the loop; `make` lives as long as the coroutine.
  /// @throws the job's first cause; Error (closed) after close_blocking
  template <class Make>
  auto start(Make make) const {
    using T = detail::ValueOf<Make>;
    failure_->throw_if_failed(rank_);
    auto state = std::make_shared<detail::BackgroundState<T>>(loop_);
    std::unique_ptr<detail::TaskFactory<T>> factory =
        std::make_unique<detail::FunctionTaskFactory<T, Make>>(std::move(make));
    async::Task<T> task = drive<T>(loop_, failure_, rank_, state, std::move(factory));
    if (!loop_handle_->post(StartTask<T>(loop_, running_, state, std::move(task)))) {
      throw Error(Errc::closed, "starting a coroutine on the control loop: this rank has left the job");
    }
    return BackgroundTask<T>(std::move(state), loop_handle_);
  }

  /// Runs the coroutine of `make`, which outlives the call, and returns its value.
  /// Blocking: until the coroutine has ended; at the deadline it is cancelled, and is gone when this returns.
  /// @throws what BackgroundTask::wait throws
  template <class Make>
  auto run_blocking(Make& make, Deadline deadline) const {
    if (on_loop_thread()) {
      throw Error(Errc::invalid_argument,
                  "running a coroutine on the control loop: called on the control thread, "
                  "where it would wait for itself; co_await the coroutine instead");
    }
    auto task = start([&make](async::EventLoop& loop) { return detail::call_with_loop(make, loop); });
    return task.wait(deadline);
  }

  /// Ends all coroutines and starts no more. Blocking: until they are gone, as long as they keep the loop busy.
  void close_blocking() noexcept {
    subscription_.reset();
    try {
      const auto drain = [this](async::EventLoop&) { return end_all(running_); };
      loop_handle_->run_blocking(drain, Deadline::after(std::chrono::seconds(60)),
                                 "ending the coroutines of this rank");
    } catch (...) {
      // Closed already, or the loop has ended, and with it every coroutine.
    }
    loop_handle_->close();
  }

 private:
  /// The coroutines that have not ended. Threads: the loop's.
  struct RunningTasks {
    explicit RunningTasks(async::EventLoop& loop) noexcept : empty(loop) {}
    void stop_all() noexcept {
      for (async::ManualResetEvent* stop : stops) {
        stop->set();
      }
    }
    std::set<async::ManualResetEvent*> stops;
    async::ManualResetEvent empty;  ///< set when there are none and will be none
    bool closed = false;
  };

  /// Posted to the loop. Whether it runs or not, the state is notified when the coroutine is gone.
  template <class T>
  class StartTask {
   public:
    using State = std::shared_ptr<detail::BackgroundState<T>>;

    StartTask(async::EventLoop& loop, std::shared_ptr<RunningTasks> running, State state, async::Task<T> task)
        : loop_(loop), running_(std::move(running)), state_(std::move(state)), task_(std::move(task)) {}
    StartTask(StartTask&& other) noexcept = default;
    StartTask& operator=(StartTask&&) = delete;
    ~StartTask() {
      if (state_) {
        task_.destroy();
        state_->set_gone();
      }
    }

    void operator()() {
      if (state_->cancelled || running_->closed) {
        return;
      }
      running_->stops.insert(&state_->stop);
      state_->task = loop_.spawn(async::store_outcome(std::move(task_), state_->outcome), {},
                                 [running = running_, state = state_] { ended(*running, *state); });
      state_.reset();
    }

   private:
    async::EventLoop& loop_;
    std::shared_ptr<RunningTasks> running_;
    State state_;
    async::Task<T> task_;
  };

  /// Called when the frame of the coroutine is destroyed.
  template <class T>
  static void ended(RunningTasks& running, detail::BackgroundState<T>& state) noexcept {
    state.task.detach();
    running.stops.erase(&state.stop);
    if (running.closed && running.stops.empty()) {
      running.empty.set();
    }
    state.set_gone();
  }

  /// Runs the coroutine of `factory` until it ends or `stop` is set, because the job failed or the rank leaves.
  template <class T>
  static async::Task<T> drive(async::EventLoop& loop, std::shared_ptr<FailureLatch> failure, int rank,
                              std::shared_ptr<detail::BackgroundState<T>> state,
                              std::unique_ptr<detail::TaskFactory<T>> factory) {
    failure->throw_if_failed(rank);
    async::Outcome<T> outcome;
    {
      async::Task<T> task = factory->make(loop);
      const async::Task<void> child = async::detail::store_and_set(std::move(task), outcome, state->stop);
      child.handle().resume();
      while (!state->stop.is_set()) {
        co_await state->stop.wait(Deadline::after(std::chrono::hours(24)));
      }
    }  // destroys a child that still waits
    if (!outcome.done()) {
      failure->throw_if_failed(rank);
      throw Error(Errc::closed, "a coroutine on the control loop was ended, since this rank has left the job");
    }
    if constexpr (std::is_void_v<T>) {
      outcome.take();
    } else {
      T value = outcome.take();
      co_return std::move(value);
    }
  }

  static async::Task<void> end_all(std::shared_ptr<RunningTasks> running) {
    running->closed = true;
    running->stop_all();
    if (!running->stops.empty()) {
      co_await running->empty.wait(Deadline::after(std::chrono::seconds(60)));
    }
  }

  async::LoopThread& thread_;
  async::EventLoop& loop_;
  std::shared_ptr<LoopHandle> loop_handle_;
  std::shared_ptr<FailureLatch> failure_;
  int rank_;
  std::shared_ptr<RunningTasks> running_;
  FailureLatch::Subscription subscription_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
