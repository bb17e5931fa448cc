#pragma once
/// @file
/// Scheduler of an EventLoop: ready queue, timers and waiting coroutines. Poller: its epoll set.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "dtrain/async/task.hpp"
#include "dtrain/async/timer_heap.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/descriptor.hpp"

namespace DTRAIN_NAMESPACE::async {

/// Kind of readiness that a waiter waits for.
enum class Interest : std::uint8_t { read = 1, write };

/// A descriptor is in the epoll set exactly while a coroutine waits for it. So closing a descriptor without waiters
/// needs no clean-up, and a forked copy of it wakes no coroutine. A generation distinguishes events of earlier
/// registrations of the same number.
class Poller {
 public:
  /// Watches `wakeup` for reading for the poller's lifetime.
  explicit Poller(int wakeup);

  /// Registers a waiter for a descriptor.
  /// @throws Error (posix) if epoll rejects it: a regular file (EPERM), a closed descriptor (EBADF).
  void add(Waiter& waiter, int descriptor, Interest interest);

  /// Removes a waiter; one that waits for no descriptor stays as it is.
  void remove(Waiter& waiter) noexcept;

  /// Waits up to `timeout_ms` (-1: without end), removes the waiters whose descriptors are ready, and appends them to
  /// `ready`. Returns whether the wake-up descriptor is readable.
  bool poll(int timeout_ms, IntrusiveList<Waiter>& ready);

  /// Number of descriptors with waiters.
  std::size_t registered_count() const noexcept { return registered_count_; }

 private:
  static constexpr std::uint64_t wakeup_tag = ~std::uint64_t{0};

  struct DescriptorWaiters {
    IntrusiveList<Waiter> readers;
    IntrusiveList<Waiter> writers;
    std::uint32_t generation = 0;
    std::uint32_t registered = 0;
  };

  /// Updates the epoll set to the entry's waiters. `fresh`: the number may be a new file since the last call, so the
  /// system is called even if nothing seems to change.
  bool apply(int descriptor, DescriptorWaiters& entry, bool fresh) noexcept;

  /// One change of the epoll set; an added file gets a new generation.
  int control(int operation, int descriptor, DescriptorWaiters& entry, std::uint32_t wanted) noexcept;

  Descriptor epoll_;
  std::vector<std::unique_ptr<DescriptorWaiters>> entries_;
  std::size_t registered_count_ = 0;
};

/// The part of an EventLoop that awaiters use. Threads: the loop's.
class Scheduler {
 public:
  /// `wakeup` is readable when poll() is to return at once.
  explicit Scheduler(int wakeup) : poller_(wakeup) {}
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  /// @name For awaiters
  /// @{

  /// Suspends `coroutine` at `waiter` until wake() or the deadline.
  DTRAIN_NOT_INLINED void add(Waiter& waiter, std::coroutine_handle<> coroutine, Deadline deadline) {
    waiter.coroutine = coroutine;
    waiter.record = current_;
    timers_.insert(waiter, deadline);
  }

  /// As add(), and also until the descriptor is ready. @throws Error (posix) if epoll rejects it
  void add(Waiter& waiter, std::coroutine_handle<> coroutine, Deadline deadline, int descriptor, Interest interest) {
    add(waiter, coroutine, deadline);
    poller_.add(waiter, descriptor, interest);
  }

  /// Resumes a waiter in the next turn, or in this one if it has not reached resume_ready().
  DTRAIN_NOT_INLINED void wake(Waiter& waiter, WakeReason outcome = WakeReason::ready) noexcept {
    remove(waiter);
    waiter.outcome = outcome;
    ready_.push_back(waiter);
  }

  /// Removes a waiter from everything that it waits in.
  DTRAIN_NOT_INLINED void remove(Waiter& waiter) noexcept {
    timers_.remove(waiter);
    poller_.remove(waiter);
    waiter.unlink();
  }
  /// @}

  /// Adds a record, which starts in the next turn.
  void start(TaskRecord& record) noexcept {
    record.start.coroutine = record.task.handle();
    record.start.record = &record;
    records_.push_back(record);
    ready_.push_back(record.start);
  }

  /// Waits for a ready descriptor or the next timer; returns at once with `return_at_once`. Descriptors come before
  /// timers, so that a ready descriptor wins over a deadline that has passed.
  /// @returns whether the wake-up descriptor is readable
  bool poll(bool return_at_once);

  /// Resumes the ready waiters. Waiters woken meanwhile wait for the next call, so that waiters that wake each other do
  /// not delay the others without end.
  /// @throws the exception of a task without a handler; the other waiters run in the next call
  void resume_ready();

  void destroy_all() noexcept {
    while (TaskRecord* record = records_.front()) {
      record->end();
    }
  }

  std::size_t registered_descriptors() const noexcept { return poller_.registered_count(); }
  std::size_t pending_timers() const noexcept { return timers_.size(); }

 private:
  int poll_timeout_ms() const;

  void resume(Waiter& waiter);

  static void retire(TaskRecord& record);

  Poller poller_;
  TimerHeap timers_;
  IntrusiveList<TaskRecord> records_;
  IntrusiveList<Waiter> ready_;
  IntrusiveList<Waiter> batch_;
  TaskRecord* current_ = nullptr;  ///< the task whose coroutine runs now
};

/// Waits until its deadline. Base of the other awaiters: destruction removes it from everything that it waits in.
class [[nodiscard]] DeadlineAwaiter : public Waiter {
 public:
  DeadlineAwaiter(Scheduler& scheduler, Deadline deadline) noexcept : scheduler_(scheduler), deadline_(deadline) {}
  ~DeadlineAwaiter() { scheduler_.remove(*this); }

  bool await_ready() const noexcept { return false; }
  void await_suspend(std::coroutine_handle<> parent) { scheduler_.add(*this, parent, deadline_); }
  WakeReason await_resume() const noexcept { return outcome; }

 protected:
  Scheduler& scheduler_;
  const Deadline deadline_;
};

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include <sys/epoll.h>

#include <array>
#include <cerrno>

#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::async {

DTRAIN_DEFINED bool Poller::poll(int timeout_ms, IntrusiveList<Waiter>& ready) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
  if (count < 0 && errno != EINTR) {
    throw_errno("waiting for events");
  }
  const auto release = [&ready](IntrusiveList<Waiter>& waiters) {
    while (Waiter* waiter = waiters.front()) {
      waiter->descriptor = -1;
      ready.push_back(*waiter);
    }
  };
  bool woken = false;
  for (std::size_t i = 0; count > 0 && i < static_cast<std::size_t>(count); ++i) {
    const std::uint64_t tag = events[i].data.u64;
    if (tag == wakeup_tag) {
      woken = true;
      continue;
    }
    const auto descriptor = static_cast<int>(tag & 0xffffffffU);
    DescriptorWaiters& entry = *entries_[static_cast<std::size_t>(descriptor)];
    if (entry.generation == static_cast<std::uint32_t>(tag >> 32)) {
      if ((events[i].events & (EPOLLERR | EPOLLHUP | EPOLLIN | EPOLLRDHUP)) != 0) {
        release(entry.readers);
      }
      if ((events[i].events & (EPOLLERR | EPOLLHUP | EPOLLOUT)) != 0) {
        release(entry.writers);
      }
      apply(descriptor, entry, false);
    }
  }
  return woken;
}

DTRAIN_DEFINED Poller::Poller(int wakeup) : epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!epoll_) {
    throw errno_error("creating an epoll set", "raise the limit of open files (ulimit -n)");
  }
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = wakeup_tag;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wakeup, &event) != 0) {
    throw_errno("adding the wake-up descriptor to an epoll set");
  }
}

DTRAIN_DEFINED void Poller::add(Waiter& waiter, int descriptor, Interest interest) {
  if (descriptor < 0) {
    throw_posix(EBADF, "waiting for a descriptor that is not open");
  }
  const auto index = static_cast<std::size_t>(descriptor);
  if (index >= entries_.size()) {
    entries_.resize(index + 1 + index / 2);
  }
  if (!entries_[index]) {
    entries_[index] = std::make_unique<DescriptorWaiters>();
  }
  DescriptorWaiters& entry = *entries_[index];
  (interest == Interest::read ? entry.readers : entry.writers).push_back(waiter);
  if (!apply(descriptor, entry, true)) {
    const int reason = errno;
    waiter.unlink();
    apply(descriptor, entry, false);
    throw_posix(reason, "waiting for descriptor {}", {descriptor});
  }
  waiter.descriptor = descriptor;
}

DTRAIN_DEFINED void Poller::remove(Waiter& waiter) noexcept {
  if (waiter.descriptor < 0) {
    return;
  }
  waiter.unlink();
  const int descriptor = std::exchange(waiter.descriptor, -1);
  apply(descriptor, *entries_[static_cast<std::size_t>(descriptor)], false);
}

DTRAIN_DEFINED bool Poller::apply(int descriptor, DescriptorWaiters& entry, bool fresh) noexcept {
  const std::uint32_t wanted = (entry.readers.empty() ? 0U : std::uint32_t{EPOLLIN} | std::uint32_t{EPOLLRDHUP}) |
                               (entry.writers.empty() ? 0U : std::uint32_t{EPOLLOUT});
  if (wanted == entry.registered && !fresh) {
    return true;
  }
  int result = 0;
  if (wanted == 0) {
    // A failure means that the descriptor was closed meanwhile, which has removed it from the set.
    static_cast<void>(control(EPOLL_CTL_DEL, descriptor, entry, 0));
  } else {
    const bool anew = entry.registered == 0;
    result = control(anew ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, entry, wanted);
    if (result != 0 && errno == ENOENT) {
      result = control(EPOLL_CTL_ADD, descriptor, entry, wanted);  // closed and opened again meanwhile
    } else if (result != 0 && errno == EEXIST) {
      result = control(EPOLL_CTL_MOD, descriptor, entry, wanted);
    }
  }
  const std::uint32_t now = result == 0 ? wanted : 0;
  if ((now != 0) != (entry.registered != 0)) {
    now != 0 ? ++registered_count_ : --registered_count_;
  }
  entry.registered = now;
  return result == 0;
}

DTRAIN_DEFINED int Poller::control(int operation, int descriptor, DescriptorWaiters& entry,
                                   std::uint32_t wanted) noexcept {
  entry.generation += operation == EPOLL_CTL_ADD ? 1 : 0;
  epoll_event event{};
  event.events = wanted;
  event.data.u64 = (std::uint64_t{entry.generation} << 32) | static_cast<std::uint32_t>(descriptor);
  return ::epoll_ctl(epoll_.get(), operation, descriptor, &event);
}

DTRAIN_DEFINED bool Scheduler::poll(bool return_at_once) {
  const bool busy = return_at_once || !ready_.empty() || !batch_.empty();
  IntrusiveList<Waiter> ready;
  const bool woken = poller_.poll(busy ? 0 : poll_timeout_ms(), ready);
  while (Waiter* waiter = ready.front()) {
    wake(*waiter);
  }
  const Deadline::Clock::time_point now = Deadline::Clock::now();
  for (Waiter* timer = timers_.earliest(); timer != nullptr && timer->instant <= now; timer = timers_.earliest()) {
    wake(*timer, WakeReason::timed_out);
  }
  return woken;
}

DTRAIN_DEFINED void Scheduler::resume_ready() {
  batch_.splice_back(ready_);
  while (Waiter* waiter = batch_.pop_front()) {
    resume(*waiter);
  }
}

DTRAIN_DEFINED int Scheduler::poll_timeout_ms() const {
  if (timers_.empty()) {
    return -1;
  }
  const auto left = Deadline::at(timers_.earliest()->instant).remaining();
  const auto longest = std::chrono::milliseconds(std::chrono::hours(1));
  return static_cast<int>(std::min(std::chrono::ceil<std::chrono::milliseconds>(left), longest).count());
}

DTRAIN_DEFINED void Scheduler::resume(Waiter& waiter) {
  TaskRecord* record = waiter.record;
  if (record == nullptr) {
    waiter.coroutine.resume();
    return;
  }
  current_ = record;
  record->busy = true;
  waiter.coroutine.resume();  // the waiter is in the coroutine's frame: do not use it from here on
  record->busy = false;
  current_ = nullptr;
  if (record->task.done() || record->abandoned) {
    retire(*record);
  }
}

DTRAIN_DEFINED void Scheduler::retire(TaskRecord& record) {
  std::exception_ptr exception;
  record.busy = true;  // the frame's parameters may own the TaskHandle
  if (record.task.done()) {
    try {
      record.task.take();
    } catch (...) {
      exception = std::current_exception();
    }
  }
  const ExceptionHandler handler = std::move(record.on_exception);
  record.end();
  if (exception && !handler) {
    std::rethrow_exception(exception);
  }
  if (exception) {
    handler(exception);
  }
}

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
