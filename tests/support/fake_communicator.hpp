#pragma once
/// @file
/// A communicator without peers: it logs what is launched and multiplies f32 elements when the stream runs the work.

#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "dtrain/backend/communicator.hpp"
#include "support/manual_stream.hpp"

namespace support {

/// What a test sees of a communicator that it gave away.
struct FakeChannel {
  struct Launch {
    std::size_t offset = 0;  ///< in the arena
    std::size_t count = 0;
    dtrain::DType dtype = dtrain::DType::f32;
    dtrain::ReduceOp op = dtrain::ReduceOp::sum;
  };

  FakeChannel() { launches.reserve(4096); }

  int rank = 0;
  int size = 1;
  float factor = 10;                      ///< what the reduction multiplies by
  std::optional<std::size_t> refuses_at;  ///< the number of the launch that throws
  std::vector<Launch> launches;
  std::byte* arena = nullptr;
  std::size_t broadcasts = 0;

  void abort(const dtrain::Cause& cause) {
    const std::lock_guard lock(mutex);
    if (!failure) failure = cause;
  }
  std::optional<dtrain::Cause> failed() const {
    const std::lock_guard lock(mutex);
    return failure;
  }

  mutable std::mutex mutex;
  std::optional<dtrain::Cause> failure;
};

class FakeCommunicator {
 public:
  using Stream = ManualStream::Ref;

  class Allocation {
   public:
    explicit Allocation(std::size_t bytes) : memory_(new (std::align_val_t{64}) std::byte[bytes]{}), bytes_(bytes) {}
    std::byte* data() const noexcept { return memory_.get(); }
    std::size_t bytes() const noexcept { return bytes_; }

   private:
    struct Free {
      void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t{64}); }
    };
    std::unique_ptr<std::byte[], Free> memory_;
    std::size_t bytes_;
  };

  explicit FakeCommunicator(std::shared_ptr<FakeChannel> channel) : channel_(std::move(channel)) {}

  int rank() const noexcept { return channel_->rank; }
  int size() const noexcept { return channel_->size; }

  void enqueue(const dtrain::backend::AllReduce& call, Stream stream) {
    const dtrain::BufferView& output = call.output;
    if (channel_->refuses_at == channel_->launches.size()) throw std::runtime_error("the channel refuses this launch");
    if (call.input.data != output.data || (output.dtype != dtrain::DType::f32 && output.dtype != dtrain::DType::f64)) {
      throw std::runtime_error("the fake reduces f32 and f64 in place");
    }
    channel_->launches.push_back(
        {static_cast<std::size_t>(output.data - channel_->arena), output.count, output.dtype, call.op});
    stream.enqueue({&multiply, channel_.get(), output});
  }

  void enqueue(const dtrain::backend::Broadcast&, Stream stream) {
    ++channel_->broadcasts;
    stream.enqueue({[](void*, dtrain::BufferView) {}, nullptr, {}});
  }
  void enqueue(const dtrain::backend::Barrier&, Stream) {}

  Allocation allocate_blocking(std::size_t bytes, dtrain::Deadline) {
    Allocation memory(bytes);
    channel_->arena = memory.data();
    return memory;
  }

  void abort(const dtrain::Cause& cause) noexcept { channel_->abort(cause); }
  std::optional<dtrain::Cause> failure() const { return channel_->failed(); }

 private:
  /// After an abort work is skipped, as in a backend.
  static void multiply(void* self, dtrain::BufferView buffer) {
    const FakeChannel& channel = *static_cast<FakeChannel*>(self);
    if (channel.failed()) return;
    for (std::size_t i = 0; i < buffer.count; ++i) {
      if (buffer.dtype == dtrain::DType::f32) {
        reinterpret_cast<float*>(buffer.data)[i] *= channel.factor;
      } else {
        reinterpret_cast<double*>(buffer.data)[i] *= channel.factor;
      }
    }
  }

  std::shared_ptr<FakeChannel> channel_;
};

static_assert(dtrain::backend::Communicator<FakeCommunicator>);

}  // namespace support
