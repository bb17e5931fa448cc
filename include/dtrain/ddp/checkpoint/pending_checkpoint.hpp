#pragma once
/// @file
/// PendingCheckpoint: a checkpoint that a thread writes while the training goes on.

#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/joining_thread.hpp"
#include "dtrain/async/start_thread.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/checkpoint/tensor_access.hpp"
#include "dtrain/ddp/rank0_task.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Tensors with copies of their elements in host memory.
class TensorSnapshot {
 public:
  TensorSnapshot() = default;

  /// Blocking: the copies. @throws as tensor_signatures, `access`
  template <class Access = HostTensorAccess>
  explicit TensorSnapshot(std::span<const NamedTensor> tensors, Access access = {})
      : TensorSnapshot(tensors, Access::takes_device_memory) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::span<const std::byte> elements = access.fetch(tensors[i].value);
      kernels::copy_bytes(tensors_[i].value.data, elements.data(), elements.size());
    }
  }

  const std::vector<NamedTensor>& tensors() const noexcept { return tensors_; }

  /// As write_checkpoint_file.
  void write(const std::string& path) const;

 private:
  /// Allocates the memory of the copies.
  TensorSnapshot(std::span<const NamedTensor> tensors, bool on_devices);

  std::unique_ptr<std::byte[]> memory_;
  std::vector<NamedTensor> tensors_;
};

/// Result of save_checkpoint_async. Threads: one at a time. Movable. A default-constructed or moved-from one has
/// nothing to wait for.
class PendingCheckpoint {
 public:
  PendingCheckpoint() = default;

  /// @param write runs on a thread of its own
  /// @param finish collective, in wait(): `finish(require_written)`, whose argument waits for the thread and throws the
  /// exception of `write`
  PendingCheckpoint(std::function<void()> write, std::function<void(const std::function<void()>&)> finish);
  PendingCheckpoint(PendingCheckpoint&&) noexcept = default;
  /// Blocking: as the destructor of the former one.
  PendingCheckpoint& operator=(PendingCheckpoint&&) noexcept = default;

  /// Blocking: until this rank's part is written. Without wait() it is not known whether the checkpoint is whole.
  ~PendingCheckpoint() = default;

  /// Collective, blocking: until the checkpoint is on the disk, without a time limit while the writing ranks are alive.
  /// Ranks with several pending checkpoints wait for them in the same order. A second call returns at once.
  /// @throws as save_checkpoint, on every rank, also for ranks that wait for different checkpoints
  void wait();

 private:
  struct Writing {
    std::exception_ptr failure;
    async::JoiningThread thread;  ///< last: destroyed, and so joined, first
  };

  std::function<void(const std::function<void()>&)> finish_;
  std::unique_ptr<Writing> work_;
};

/// As save_checkpoint, but returns when rank 0 has copied the tensors to memory; a thread then writes the copy. The
/// tensors may change meanwhile. Call wait() on every rank before the next checkpoint of that name, and at the end.
/// Blocking: on rank 0 until the copy is made. Memory: as much as the tensors, until wait() returns.
/// @throws Error (unsupported) as save_checkpoint; the job's first cause
template <class Group>
[[nodiscard]] PendingCheckpoint save_checkpoint_async(const Group& group, const std::string& path,
                                                      std::span<const NamedTensor> tensors) {
  group.check();
  detail::wait_for_weights(group, tensors);
  const auto copy = std::make_shared<TensorSnapshot>();
  if (group.rank() == 0) *copy = TensorSnapshot(tensors, tensor_access(group));
  const auto write = [copy, path, writes = group.rank() == 0] {
    if (writes) copy->write(path);
  };
  return PendingCheckpoint(write, [group, path](const std::function<void()>& require_written) {
    static_cast<void>(detail::run_on_rank0_blocking(group, "writing the file " + sanitize(path), [&] {
      require_written();
      return true;
    }));
  });
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED TensorSnapshot::TensorSnapshot(std::span<const NamedTensor> tensors, bool on_devices) {
  static_cast<void>(tensor_signatures(tensors, on_devices));
  std::size_t bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    bytes += tensor.value.bytes();
  }
  memory_.reset(new std::byte[bytes]);
  std::byte* next = memory_.get();
  for (const NamedTensor& tensor : tensors) {
    tensors_.push_back({tensor.name, {next, tensor.value.shape, tensor.value.dtype, {}}});
    next += tensor.value.bytes();
  }
}

DTRAIN_DEFINED void TensorSnapshot::write(const std::string& path) const {
  write_checkpoint_file(path, tensors_);
}

DTRAIN_DEFINED PendingCheckpoint::PendingCheckpoint(std::function<void()> write,
                                                    std::function<void(const std::function<void()>&)> finish)
    : finish_(std::move(finish)), work_(std::make_unique<Writing>()) {
  work_->thread = async::start_thread("a thread to write a checkpoint", [work = work_.get(), write = std::move(write)] {
    try {
      write();
    } catch (...) {
      work->failure = std::current_exception();
    }
  });
}

DTRAIN_DEFINED void PendingCheckpoint::wait() {
  if (const auto finish = std::exchange(finish_, nullptr)) {
    finish([work = work_.get()] {
      work->thread.join();
      if (work->failure) std::rethrow_exception(work->failure);
    });
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::PendingCheckpoint;
using ddp::save_checkpoint_async;
}  // namespace DTRAIN_NAMESPACE
