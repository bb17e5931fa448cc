#pragma once
/// @file
/// Allocation: zeroed device memory, registered with NCCL.

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "dtrain/backend/nccl/channel.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/stream.hpp"

#if DTRAIN_WITH_NCCL

namespace DTRAIN_NAMESPACE::backend::nccl {

/// Blocking: until the memory is filled. @throws Error (timeout, cuda)
inline void fill_with_zeros(void* data, std::size_t bytes, int device, Deadline deadline) {
  const stream::cuda::Stream stream(stream::cuda::Priority::normal, device);
  stream::cuda::Event done;
  stream::cuda::check(cudaMemsetAsync(data, 0, bytes, stream.ref().native()), "cudaMemsetAsync");
  stream.ref().record(done);
  if (done.block_until_complete(deadline) != stream::WaitResult::complete) {
    throw_error(Errc::timeout,
                "filling {} bytes of device memory with zeros had not ended in time; is the device busy?", {bytes});
  }
}

/// Owns `bytes()` bytes on the channel's device. Movable; may outlive the communicator. Destruction waits for the
/// device, as that of other device memory does.
class Allocation {
 public:
  Allocation() noexcept = default;

  /// Collective, blocking. @throws Error (out_of_memory, timeout, nccl, cuda); the job's first cause
  Allocation(std::shared_ptr<Channel> channel, std::size_t bytes, Deadline deadline)
      : memory_(new RegisteredMemory{std::move(channel), bytes}) {
    RegisteredMemory& memory = *memory_;
    memory.channel->status.check();
    const stream::cuda::DeviceGuard guard(memory.channel->device());
    const std::size_t length = std::max<std::size_t>(bytes, 1);
    const ncclResult_t code = allocate(&memory.data, length);
    if (code != ncclSuccess) {
      memory.data = nullptr;
      stream::cuda::quiet(cudaGetLastError());
      throw Error(Errc::out_of_memory,
                  format_text("no {} bytes of memory of device {} could be had: ncclMemAlloc says {}, {}",
                              {bytes, memory.channel->device(), name_of(code),
                               nccl_category().message(static_cast<int>(code))}))
          .with_rank(memory.channel->context.reporting_rank());
    }
    fill_with_zeros(memory.data, length, memory.channel->device(), deadline);
    memory.handle = memory.channel->register_memory(data(), length, deadline);
    memory.registered = true;
  }

  std::byte* data() const noexcept { return memory_ ? static_cast<std::byte*>(memory_->data) : nullptr; }
  std::size_t bytes() const noexcept { return memory_ ? memory_->bytes : 0; }

 private:
  struct RegisteredMemory {
    RegisteredMemory(std::shared_ptr<Channel> of, std::size_t count) : channel(std::move(of)), bytes(count) {}
    RegisteredMemory(const RegisteredMemory&) = delete;
    RegisteredMemory& operator=(const RegisteredMemory&) = delete;
    ~RegisteredMemory() {
      if (data == nullptr) {
        return;
      }
      try {
        const stream::cuda::DeviceGuard guard(channel->device());
        if (channel->status.aborted()) {
          channel->status.block_until_ended();  // the streams drain with it
        }
        // As cudaFree does: streams may still use the memory, which NCCL unmaps at once.
        static_cast<void>(stream::cuda::quiet(cudaDeviceSynchronize()));
        if (registered) {
          channel->deregister_memory(handle);
        }
        static_cast<void>(release(data));
      } catch (...) {
        // A device that cannot be made the current one has no memory any more.
      }
    }

    const std::shared_ptr<Channel> channel;
    const std::size_t bytes;
    void* data = nullptr;
    Channel::RegistrationHandle handle{};
    bool registered = false;
  };

  ProcessOwned<RegisteredMemory> memory_;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl

#endif  // DTRAIN_WITH_NCCL
