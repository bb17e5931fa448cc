#pragma once
/// @file
/// A stream: a thread that does what it is given, in order, and shares nothing with other streams' threads.

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <functional>

namespace emulation {

class Capture;
struct HardwareQueue;
struct Record;

using Work = std::function<void()>;
/// Called by the thread that issues, each time the work is issued: once, or at each launch of a graph.
using MakeWork = std::function<Work()>;

/// Whether the calling thread is a stream's, which may make no CUDA or NCCL call.
bool in_stream_thread() noexcept;

/// A queue of many producers and one consumer (Dmitry Vyukov's). All order between threads is: an item's producer
/// before its work; a stream's work before whoever saw it complete.
class Stream {
 public:
  explicit Stream(int device);
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  /// Blocking: while the stream holds as much as it can, some thousand things (most_held). Threads: any.
  void enqueue(Work work);
  /// Beyond what it can hold: what waits for a device is no launch.
  void enqueue_beyond(Work work);
  /// Enqueues the work, or notes it in the graph that is being captured.
  void submit(MakeWork make);

  /// Completes the record when everything enqueued before has been done.
  void enqueue_mark(Record* mark);

  bool is_complete() const noexcept;
  /// Also where the stream is just coming back from a mark, the last thing that it was given.
  bool has_nothing_to_do() const noexcept;
  /// Blocking: until everything enqueued before has been done.
  void block_until_complete() const noexcept;

  /// The thread ends, and the stream with it, when everything enqueued has been done. Waits for nothing.
  void end();

  int device() const noexcept { return device_; }

  /// What is being captured of this stream; null where nothing is. Threads: those that issue on the stream.
  Capture* capture() const noexcept { return capture_.load(std::memory_order_relaxed); }
  int lane() const noexcept { return lane_; }
  void set_capture(Capture* capture, int lane) noexcept;

  static constexpr std::uint64_t most_held = 1024;

 private:
  struct Item {
    Work work;
    std::atomic<Item*> next{nullptr};
  };
  ~Stream();
  void push(Item* item) noexcept;
  Item* next_blocking() noexcept;
  void run() noexcept;

  const int device_;
  HardwareQueue* const queue_;  // null where each stream runs by itself
  std::atomic<Capture*> capture_{nullptr};
  int lane_ = 0;
  std::atomic<Item*> newest_;
  Item* oldest_;  // done already; the thread's own
  std::atomic<std::uint32_t> counter_{0};
  std::atomic<bool> is_let_go_{false};  // nobody else will touch the stream
  std::atomic<std::uint64_t> issued_{0};
  std::atomic<std::uint64_t> completed_{0};
  std::atomic<bool> is_marked_{false};  // what runs is a mark, which is done
  mutable std::atomic<std::uint32_t> completion_counter_{0};
};

/// The stream that a handle names. The default stream is the calling thread's device's own, made when first used; no
/// other synchronises with it, for all others are non-blocking. Null for the per-thread default stream: there is none.
Stream* stream_of(cudaStream_t handle) noexcept;
cudaStream_t handle_of(Stream* stream) noexcept;

/// Blocking: what the device's default stream has been given before; nothing where it has not been used.
void block_until_default_stream_complete(int device) noexcept;

/// Whether the handle is that of a default stream, which lives for ever and cannot be captured.
bool is_default_stream(cudaStream_t handle) noexcept;

/// Blocking: while a thread stands in a launch on a full stream of the device: it holds the driver's lock, which events
/// are recorded and queried with, too.
void block_while_driver_is_held(int device) noexcept;

/// Whether no stream of the device, but those that were destroyed, has anything to do.
bool is_device_complete(int device) noexcept;

/// Blocking: until every stream of the device, those included that were destroyed with work in them, has done what was
/// enqueued before.
void block_until_device_complete(int device) noexcept;

}  // namespace emulation
