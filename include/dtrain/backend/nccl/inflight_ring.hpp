#pragma once
/// @file
/// InflightRing of an NCCL channel: events of the operations in flight. diagnose_timeout_blocking(): after a timeout,
/// whether ranks called different operations.

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_NCCL

/// NCCL does not compare calls: ranks that call different operations wait for each other. A rank that times out writes
/// its operation to the store, under its rank, and reads the next rank's. If not all ranks are in the same operation,
/// some rank differs from the next one.
namespace DTRAIN_NAMESPACE::backend::nccl {

/// Value in the store for a rank that has closed its end.
inline constexpr const char* has_left = "has left the channel";

inline std::string timeout_key(const ChannelContext& context, int rank) {
  return format_text("{}/timeout/{}", {context.name, rank});
}

/// Maximum time between the timeouts of two ranks. A caller that waits for the stream waits twice the timeout.
inline std::chrono::nanoseconds grace_period(std::chrono::nanoseconds timeout) {
  return std::min<std::chrono::nanoseconds>(timeout / 3, std::chrono::seconds(5));
}

/// "called all_reduce (sum) of 8 f32 as operation 3".
inline std::string call_text(const Operation& operation) {
  const std::string called = "called " + to_string(operation);
  return operation.sequence == 0 ? called : format_text("{} as operation {}", {called, operation.sequence});
}

/// Two ranks differ. @param calls "rank 0 called barrier as operation 3 and rank 1 called ..."
inline Cause differing_calls(const ChannelContext& context, const std::string& calls) {
  return {CauseKind::disagreement, -1, "",
          format_text("on channel '{}', {}; every rank calls the same collectives in the same order",
                      {context.name, calls})};
}

/// "rank 1, rank 2 of the channel are in none; REMEDY".
inline std::string missing_text(const std::vector<int>& ranks, const std::string& remedy) {
  std::string names;
  for (const int rank : ranks)
    names += (names.empty() ? "rank " : ", rank ") + std::to_string(rank);
  return format_text("{} of the channel {} in none; {}", {names, ranks.size() == 1 ? "is" : "are", remedy});
}

/// Blocking: at most three times grace_period(timeout). @returns why `operation` has not ended; empty once the job has
/// failed
/// @param missing ranks of the channel that are known not to have called it
inline std::optional<Cause> diagnose_timeout_blocking(const ChannelContext& context, const Operation& operation,
                                                      const std::vector<int>& missing = {}) {
  const std::string ordinal = operation.sequence == 0 ? "" : " as operation " + std::to_string(operation.sequence);
  const std::string called = " " + call_text(operation);
  const std::string own = format_text("rank {}{}", {context.reporting_rank(), called});
  const int size = context.members.world_size;
  std::string detail =
      "does every rank call it, and the operations of all channels in the same order? DTRAIN_TIMEOUT_SECONDS is how "
      "long it may take";
  try {
    const Deadline deadline = Deadline::after(grace_period(context.timeout));
    context.store.set_blocking(timeout_key(context, context.members.rank), own, deadline);
    const int next = (context.members.rank + 1) % size;
    const std::string other = sanitize(context.store.get_blocking(timeout_key(context, next), deadline).substr(0, 300));
    if (operation.sequence != 0 && other.ends_with(ordinal) && !other.ends_with(called)) {
      return differing_calls(context, format_text("{} and {}", {own, other}));
    }
    if (!other.ends_with(called)) {  // the rank has left, or is in another operation, maybe an earlier one
      detail = other + "; every rank calls the same collectives in the same order";
    } else if (context.failure->block_until_failed(Deadline::after(2 * grace_period(context.timeout)))) {
      return std::nullopt;  // two other ranks differ; a rank that timed out later may still wait for its next rank
    }
  } catch (const JobFailed&) {
    return std::nullopt;
  } catch (const Error&) {
    detail = missing_text({(context.members.rank + 1) % size}, detail);
  }
  if (!missing.empty()) detail = missing_text(missing, detail);
  return Cause{CauseKind::timeout, context.reporting_rank(), context.members.host,
               format_text("{}: it had not ended after {}; {}",
                           {described_on(context.name, operation), duration_text(context.timeout), detail})};
}

/// Erases this rank's operation, which has ended after all: otherwise the previous rank could read it later, during
/// another operation. Blocking: a second at most.
inline void retract_timeout(const ChannelContext& context) noexcept {
  try {
    context.store.erase_blocking(timeout_key(context, context.members.rank), Deadline::after(std::chrono::seconds(1)));
  } catch (...) {
    // If the job has not failed, a message will name an earlier operation.
  }
}

/// The last rank to leave erases all entries: no rank will read them.
inline void erase_after_last_departure(const ChannelContext& context, Deadline deadline) {
  const std::string left = context.name + "/timeout/left";
  if (context.store.add_blocking(left, 1, deadline) == context.members.world_size) {
    for (int rank = 0; rank < context.members.world_size; ++rank) {
      context.store.erase_blocking(timeout_key(context, rank), deadline);
    }
    context.store.erase_blocking(left, deadline);
  }
}

/// Publishes that this rank has left, for a rank that waits for it. @param last whether this rank publishes nothing
/// more. Blocking: a second at most.
inline void publish_departure(const ChannelContext& context, bool last) noexcept {
  try {
    if (context.members.world_size > 1 && !context.failure->failed()) {
      const Deadline deadline = Deadline::after(std::chrono::seconds(1));
      context.store.set_blocking(timeout_key(context, context.members.rank),
                                 format_text("rank {} {}", {context.reporting_rank(), has_left}), deadline);
      if (last) {
        erase_after_last_departure(context, deadline);
      }
    }
  } catch (...) {
    // The other ranks detect it later without this entry.
  }
}

/// Records an event before and after each operation, in a fixed ring. No lock is held during a CUDA call, because any
/// may block while a stream is full. Threads: one enters operations at a time, any polls.
class InflightRing {
 public:
  /// State of the first operation, if any.
  struct View {
    cudaError_t failure = cudaSuccess;  ///< the device's error
    std::optional<Operation> running{};
    Deadline::Clock::time_point since{};
  };

  /// The most operations in flight. So many fill neither CUDA's queue of 1024 nor NCCL's for its proxy thread.
  static constexpr std::size_t capacity = 32;

  /// An operation, from before to after it is enqueued. Destruction without end() takes it out of the ring.
  class TrackedOperation {
   public:
    /// Precondition: is_full() is false. @throws Error (cuda)
    TrackedOperation(InflightRing& ring, const Operation& operation, stream::cuda::StreamRef stream) : ring_(&ring) {
      ring.begin(operation, stream);
    }
    TrackedOperation(const TrackedOperation&) = delete;
    TrackedOperation& operator=(const TrackedOperation&) = delete;
    ~TrackedOperation() {
      if (!is_ended_) ring_->drop_last();
    }

    /// @throws Error (cuda)
    void end(stream::cuda::StreamRef stream) {
      stream.record(ring_->last().after);
      ring_->mark_enqueued();
      is_ended_ = true;
    }

   private:
    InflightRing* ring_;
    bool is_ended_ = false;
  };

  /// Makes all events in advance. @throws Error (cuda)
  explicit InflightRing(int device) {
    const stream::cuda::Stream first(stream::cuda::Priority::normal, device);
    for (InflightOperation& slot : operations_) {
      first.ref().record(slot.before);
      first.ref().record(slot.after);
    }
  }

  /// Queries the events and removes complete operations; does nothing while another thread polls. Precondition: the
  /// thread captures no stream.
  void poll() {
    const std::unique_lock one(polling_, std::try_to_lock);
    if (!one) {
      return;
    }
    set_polling_since(Deadline::Clock::now());
    View view;
    const std::size_t complete = count_complete(view.failure);
    if (complete > 0) {
      progress_.fetch_add(complete, std::memory_order_relaxed);
      const std::lock_guard lock(mutex_);
      front_ = (front_ + complete) % capacity;
      count_ -= complete;
    }
    if (!stream::cuda::quiet(view.failure) && view.failure == cudaErrorNotReady) {
      view.failure = cudaSuccess;
    }
    InflightOperation* const front = front_not_begun();
    const bool begins = front != nullptr && front->before.is_complete();
    const std::lock_guard lock(mutex_);
    if (begins) {
      front->began = Deadline::Clock::now();
    }
    if (count_ > 0 && at(0).began) {
      view.running = at(0).operation;
      view.since = *at(0).began;
    }
    last_view_ = view;
    polling_since_.reset();
  }

  /// Number of slots that polls found complete.
  std::uint64_t progress() const noexcept { return progress_.load(std::memory_order_relaxed); }

  /// Result of the last poll.
  View last_view() const {
    const std::lock_guard lock(mutex_);
    return last_view_;
  }

  /// Whether no operation was in flight after the last poll, and none was entered since.
  bool is_idle() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0;
  }

  /// The first operation that no poll has found complete, without a call to CUDA; empty if there is none.
  std::optional<Operation> oldest() const {
    const std::lock_guard lock(mutex_);
    return count_ == 0 ? std::nullopt : std::optional(operations_[front_].operation);
  }

  /// Whether polls have seen the first operation that is not complete begin to run.
  bool has_begun() const {
    const std::lock_guard lock(mutex_);
    return count_ > 0 && operations_[front_].began.has_value();
  }

  /// Whether polls have found so many operations not complete that another one has no place.
  bool is_full() const {
    const std::lock_guard lock(mutex_);
    return count_ == capacity;
  }

  /// When the current poll began; empty if none is running.
  std::optional<Deadline::Clock::time_point> polling_since() const {
    const std::lock_guard lock(mutex_);
    return polling_since_;
  }

 private:
  struct InflightOperation {
    Operation operation{};
    stream::cuda::Event before;
    stream::cuda::Event after;
    bool enqueued = false;  ///< and `after` recorded
    std::optional<Deadline::Clock::time_point> began{};
  };

  void begin(const Operation& operation, stream::cuda::StreamRef stream) {
    InflightOperation& next = first_free();
    stream.record(next.before);
    const std::lock_guard lock(mutex_);
    next.operation = operation;
    next.began.reset();
    next.enqueued = false;
    ++count_;
  }

  InflightOperation& first_free() {
    const std::lock_guard lock(mutex_);
    return at(count_);
  }

  void mark_enqueued() noexcept {
    const std::lock_guard lock(mutex_);
    at(count_ - 1).enqueued = true;
  }
  void drop_last() noexcept {
    const std::lock_guard lock(mutex_);
    --count_;
  }

  /// Slot of the operation entered last, which stays in the ring until it is enqueued.
  InflightOperation& last() {
    const std::lock_guard lock(mutex_);
    return at(count_ - 1);
  }

  /// Operations at the front that are complete, by few queries: those of a channel run in the order of the calls.
  /// @param failure result of the last query, cudaErrorNotReady where not all are complete
  std::size_t count_complete(cudaError_t& failure) {
    const std::size_t enqueued = count_enqueued();
    std::size_t complete = 0;
    std::size_t running = enqueued;  // the first that is known to run; `enqueued` if none is
    for (std::size_t next = 0; complete < running; next = next == 0 ? running - 1 : (complete + running) / 2) {
      const cudaError_t result = cudaEventQuery(event_after(next).native());
      if (result == cudaSuccess) {
        complete = next + 1;
      } else {
        failure = result;
        if (result != cudaErrorNotReady) break;
        stream::cuda::quiet(result);
        running = next;
      }
    }
    return complete;
  }

  std::size_t count_enqueued() const {
    const std::lock_guard lock(mutex_);
    std::size_t enqueued = 0;
    while (enqueued < count_ && operations_[(front_ + enqueued) % capacity].enqueued)
      ++enqueued;
    return enqueued;
  }
  const stream::cuda::Event& event_after(std::size_t index) {
    const std::lock_guard lock(mutex_);
    return at(index).after;
  }
  InflightOperation* front_not_begun() {
    const std::lock_guard lock(mutex_);
    return count_ > 0 && !at(0).began ? &at(0) : nullptr;
  }

  void set_polling_since(Deadline::Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    polling_since_ = now;
  }

  InflightOperation& at(std::size_t index) noexcept { return operations_[(front_ + index) % capacity]; }

  std::atomic<std::uint64_t> progress_{0};
  std::mutex polling_;
  mutable std::mutex mutex_;  ///< guards all members below, except the events
  std::array<InflightOperation, capacity> operations_;
  std::size_t front_ = 0;
  std::size_t count_ = 0;
  View last_view_{};
  std::optional<Deadline::Clock::time_point> polling_since_{};
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
