#pragma once
/// @file
/// What streams are given while they are captured: lanes of steps, which a graph then replays on streams of its own.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "event.hpp"
#include "stream.hpp"

namespace emulation {

/// One thing that a captured stream was given: work, the record of an event, or the wait for one.
struct Step {
  enum class Kind { work, record, wait };
  Kind kind;
  int lane;
  std::size_t record;  // of Kind::record and Kind::wait
  MakeWork make;       // of Kind::work
};

/// The captured steps in the order in which they were given. Lane 0 is the stream that the capture began with, the
/// others joined it by a wait.
struct Steps {
  std::vector<Step> list;
  int lanes = 0;
  std::size_t records = 0;
};

/// A capture under way, or over: it stays, because events may name it. Threads: one at a time, as CUDA wants it; what
/// disturbs it comes from any.
class Capture {
 public:
  static void begin(Stream& origin, cudaStreamCaptureMode mode);
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Lets go of the streams.
  void end();
  bool is_over() const noexcept { return over_.load(std::memory_order_relaxed); }

  void add(int lane, MakeWork make);
  std::size_t add_record(int lane);
  void add_wait(int lane, std::size_t record);
  void join(Stream& stream);

  bool began_with(const Stream& stream) const noexcept { return streams_.front() == &stream; }
  /// Whether the first stream has waited for all that the others were given.
  bool is_joined() const;

  bool is_valid() const noexcept { return valid_.load(std::memory_order_relaxed); }
  void invalidate() noexcept { valid_.store(false, std::memory_order_relaxed); }
  /// Whether a call that CUDA takes for unsafe, by this thread in that mode, breaks it.
  bool is_broken_by(cudaStreamCaptureMode caller, std::thread::id thread) const noexcept {
    const bool own = thread == thread_ && mode_ != cudaStreamCaptureModeRelaxed;
    return !is_over() && (own || (caller == cudaStreamCaptureModeGlobal && mode_ == cudaStreamCaptureModeGlobal));
  }
  Steps take() { return std::move(steps_); }

 private:
  explicit Capture(cudaStreamCaptureMode mode) : mode_(mode) {}

  Steps steps_;
  std::vector<Stream*> streams_;
  const cudaStreamCaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> valid_{true};
  std::atomic<bool> over_{false};
};

/// cudaStreamWaitEvent where the stream or the event is captured.
cudaError_t captured_wait(Stream& stream, const Event& event);

/// Why a call that could disturb captures is refused now to the calling thread; cudaSuccess where it is not. The
/// captures that forbid it are invalid then.
cudaError_t refused_while_capturing() noexcept;

}  // namespace emulation
