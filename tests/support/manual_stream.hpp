#pragma once
/// @file
/// A stream that completes work only when the test says so, so that overlap and order are asserted, not hoped for.

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <type_traits>
#include <vector>

#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/stream/stream.hpp"

namespace support {

/// Owns the work. Allocates only at construction. Threads: all members concurrently.
class ManualStream {
 public:
  /// What is enqueued: a function of no state of its own.
  struct Work {
    void (*run)(void* self, dtrain::BufferView buffer) = nullptr;
    void* self = nullptr;
    dtrain::BufferView buffer{};
    alignas(std::max_align_t) std::array<std::byte, 64> stored{};  ///< a function, which is `self` if that is null
  };

  class Event {
   public:
    bool is_complete() const noexcept { return stream_ == nullptr || stream_->is_complete(ticket_); }
    dtrain::stream::WaitResult block_until_complete(dtrain::Deadline deadline) {
      return stream_ == nullptr ? dtrain::stream::WaitResult::complete : stream_->wait_for(ticket_, deadline);
    }

   private:
    friend class ManualStream;
    ManualStream* stream_ = nullptr;
    std::size_t ticket_ = 0;
  };

  class Ref {
   public:
    using Event = ManualStream::Event;
    explicit Ref(ManualStream& stream) noexcept : stream_(&stream) {}
    dtrain::Device device() const noexcept { return {}; }
    void record(Event& event) const {
      event.stream_ = stream_;
      event.ticket_ = stream_->enqueued();
    }
    void wait(const Event&) const noexcept {}
    void enqueue(const Work& work) const { stream_->enqueue(work); }

   private:
    ManualStream* stream_;
  };

  /// A reference that also takes small functions, as host streams do.
  class HostRef : public Ref {
   public:
    using Ref::Ref;
    template <class F>
    void enqueue(const F& work) const {
      static_assert(sizeof(F) <= sizeof(Work::stored) && std::is_trivially_copyable_v<F>);
      Work stored;
      stored.run = [](void* self, dtrain::BufferView) { (*static_cast<F*>(self))(); };
      std::memcpy(stored.stored.data(), &work, sizeof(F));
      Ref::enqueue(stored);
    }
  };

  HostRef host_ref() noexcept { return HostRef(*this); }

  /// `runs_when_waited_for`: a waiting thread runs the work, as on a host stream; else somebody calls run().
  explicit ManualStream(bool runs_when_waited_for = false) : runs_when_waited_for_(runs_when_waited_for) {
    work_.reserve(4096);
  }

  Ref ref() noexcept { return Ref(*this); }

  std::size_t enqueued() const {
    const std::lock_guard lock(mutex_);
    return work_.size();
  }

  std::size_t completed() const {
    const std::lock_guard lock(mutex_);
    return completed_;
  }

  /// Completes up to `count` pieces of work, in order.
  void run(std::size_t count = SIZE_MAX) {
    const std::lock_guard lock(mutex_);
    run_locked(count);
  }

  /// What was completed is forgotten, for tests of many steps.
  void forget_completed() {
    const std::lock_guard lock(mutex_);
    work_.erase(work_.begin(), work_.begin() + static_cast<std::ptrdiff_t>(completed_));
    completed_ = 0;
  }

 private:
  void enqueue(const Work& work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(work);
  }

  void run_locked(std::size_t count) {
    for (; count > 0 && completed_ < work_.size(); --count, ++completed_) {
      Work& work = work_[completed_];
      work.run(work.self != nullptr ? work.self : work.stored.data(), work.buffer);
    }
    changed_.notify_all();
  }

  bool is_complete(std::size_t ticket) const {
    const std::lock_guard lock(mutex_);
    return completed_ >= ticket;
  }

  dtrain::stream::WaitResult wait_for(std::size_t ticket, dtrain::Deadline deadline) {
    std::unique_lock lock(mutex_);
    if (runs_when_waited_for_ && completed_ < ticket) {
      run_locked(ticket - completed_);
    }
    const bool done = changed_.wait_until(lock, deadline.instant(), [&] { return completed_ >= ticket; });
    return done ? dtrain::stream::WaitResult::complete : dtrain::stream::WaitResult::timed_out;
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Work> work_;
  std::size_t completed_ = 0;
  bool runs_when_waited_for_;
};

}  // namespace support
