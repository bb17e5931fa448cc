#pragma once
/// @file
/// topology::SubChannel: an algorithm's own channel, whose operations run one step at a time. ParallelRunner: a thread
/// for a second channel.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

#include "dtrain/async/thread.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/stream/host/queue.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// A range of a buffer's elements.
struct BufferRange {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// Block `index` of `blocks` blocks, whose lengths differ by at most one element; the longer blocks come first.
/// Example: 10 elements in 4 blocks: 3, 3, 2, 2.
constexpr BufferRange block_of(std::size_t count, int blocks, int index) noexcept {
  const auto number = static_cast<std::size_t>(blocks);
  const auto at = static_cast<std::size_t>(index);
  return {at * (count / number) + std::min(at, count % number), count / number + (at < count % number ? 1 : 0)};
}

/// Chunk `index` of a range that is divided into chunks of `length` elements; empty beyond the end of the range.
constexpr BufferRange chunk_of(BufferRange range, std::size_t length, std::size_t index) noexcept {
  const std::size_t skipped = std::min(range.count, index * length);
  return {range.begin + skipped, std::min(length, range.count - skipped)};
}

/// Number of chunks of `length` elements that cover `count` elements.
constexpr std::size_t chunks_in(std::size_t count, std::size_t length) noexcept {
  return (count + length - 1) / length;
}

/// @tparam View BufferView or ConstBufferView
template <class View>
constexpr View view_of(const View& whole, BufferRange range) noexcept {
  return {range.count == 0 ? whole.data : whole.data + range.begin * size_bytes(whole.dtype), range.count, whole.dtype,
          whole.device};
}

/// Does nothing if both are the same memory.
inline void copy(const ConstBufferView& from, const BufferView& to) noexcept {
  if (from.data != to.data && to.count != 0) {
    kernels::copy_bytes(to.data, from.data, to.bytes());
  }
}

/// An algorithm has more steps for a reduction than a stream's queue can hold. Therefore a reduction is one work item
/// on the program's stream. The stream's thread runs the steps one after the other on the SubChannel's own queue.
/// Threads: one thread calls step(); any thread calls abort() and failure().
template <backend::Communicator C>
class SubChannel {
 public:
  explicit SubChannel(C communicator)
      : queue_(std::make_unique<stream::host::Queue>()), communicator_(std::move(communicator)) {}

  /// Blocks until the operations that `start(communicator, stream)` enqueues have run, or have failed by the backend's
  /// timeout. @returns whether the channel still works. @throws the exceptions of `start`
  template <class Start>
  bool step(Start start) {
    start(communicator_, queue_->ref());
    // The loop ends, because each operation has its own deadline.
    while (queue_->block_until_complete(queue_->published(), Deadline::after(std::chrono::minutes(1))) !=
           stream::WaitResult::complete) {
    }
    return !communicator_.failure();
  }

  /// step() of one operation. @throws what its enqueue() throws
  template <class Operation>
  bool run(const Operation& operation) {
    return step([&](C& communicator, stream::host::StreamRef stream) { communicator.enqueue(operation, stream); });
  }

  C& communicator() noexcept { return communicator_; }

  void abort(const Cause& cause) noexcept { communicator_.abort(cause); }
  std::optional<Cause> failure() const { return communicator_.failure(); }

 private:
  std::unique_ptr<stream::host::Queue> queue_;
  C communicator_;
};

/// Runs two functions at the same time. Threads: one at a time. Lifetime: destroyed before the objects that its
/// functions use.
class ParallelRunner {
 public:
  /// Runs `first()` in this thread and `second()` in the other; each returns whether its channel still works. If one
  /// throws, `stop(cause)` must make the other return. Blocks until both have returned.
  /// @returns whether both channels still work. @throws the exception of first(), else of second()
  template <class First, class Second, class Stop>
  bool run_both(First first, Second second, Stop stop) {
    CallResult second_result;
    auto work = [&]() noexcept { second_result = result_of(second, stop); };
    worker_.start(work);
    const CallResult first_result = result_of(first, stop);
    // The loop ends: each operation of the channels has its own deadline.
    while (!worker_.wait(Deadline::after(std::chrono::minutes(1)))) {
    }
    for (const std::exception_ptr& thrown : {first_result.thrown, second_result.thrown}) {
      if (thrown) {
        std::rethrow_exception(thrown);
      }
    }
    return first_result.works && second_result.works;
  }

 private:
  struct CallResult {
    bool works = false;
    std::exception_ptr thrown{};
  };

  template <class Work, class Stop>
  static CallResult result_of(Work& work, Stop& stop) noexcept {
    try {
      return {work()};
    } catch (const std::exception& error) {
      Cause cause;
      cause.kind = CauseKind::exception;
      try {
        cause.text = error.what();
      } catch (...) {  // no memory for the message
      }
      stop(cause);
      return {false, std::current_exception()};
    }
  }

  async::WorkerThread worker_;
};

}  // namespace DTRAIN_NAMESPACE::topology
