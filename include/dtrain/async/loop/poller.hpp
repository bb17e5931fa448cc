#pragma once
/// @file
/// Poller: the epoll set of an EventLoop's Scheduler, with the coroutines that wait for each descriptor.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

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
  /// @throws Error (posix) if epoll refuses it: a regular file (EPERM), a closed descriptor (EBADF).
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

}  // namespace DTRAIN_NAMESPACE::async

#if DTRAIN_DEFINITIONS

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <utility>

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

}  // namespace DTRAIN_NAMESPACE::async

#endif  // DTRAIN_DEFINITIONS
