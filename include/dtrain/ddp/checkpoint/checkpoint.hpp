#pragma once
/// @file
/// save_checkpoint(), load_checkpoint(): checkpoints of a job, whose file rank 0 alone accesses; save_safetensors(),
/// load_safetensors(): weights for other programs, and from them. PendingCheckpoint: one that a thread writes.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/thread.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/model.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/kernels/copy.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Takes a thread that still runs, or else joins it by destroying the pointer. @param thread whether it has ended
using DetachThread = std::function<void(std::shared_ptr<const std::atomic<bool>> thread)>;

namespace detail {

/// @throws Error (disagreement) or JobFailed if a rank's tensors differ from rank 0's in name, shape or device
template <class Group>
void agree_on_tensors_blocking(const Group& group, std::span<const NamedTensor> tensors) {
  ModelSignature signature;
  signature.parameters = tensor_signatures(tensors, tensor_access(group).takes_device_memory());
  // Not in the file, but the device decides how the values are sent.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    signature.parameters[i].device = tensors[i].value.device.kind;
    if (tensors[i].bytes != nullptr) signature.parameters[i].shape = tensors[i].value.shape;  // any length on each rank
  }
  const Deadline deadline = Deadline::after(group.timeout());
  const int count = group::GroupAccess::of(group).next_number("checkpoint");
  agree_blocking(*group::handle_of(group), format_text("dtrain/checkpoint/{}/", {count}), signature, deadline,
                 "loading a checkpoint");
}

/// Collective, blocking: NamedBytes get the length that rank 0 has read.
template <class Group>
void resize_bytes_blocking(const Group& group, std::span<const NamedTensor> tensors) {
  std::vector<std::int64_t> lengths;
  for (const NamedTensor& tensor : tensors) {
    if (tensor.bytes != nullptr) lengths.push_back(static_cast<std::int64_t>(tensor.bytes->size()));
  }
  if (lengths.empty()) return;
  group.broadcast(lengths, 0);
  auto length = lengths.begin();
  for (const NamedTensor& tensor : tensors) {
    if (tensor.bytes != nullptr) tensor.bytes->resize(static_cast<std::size_t>(*length++));
  }
}

/// Collective, blocking: the tensors get rank 0's values, NamedBytes also its lengths.
template <class Group>
void share_values_blocking(const Group& group, std::span<const NamedTensor> tensors) {
  resize_bytes_blocking(group, tensors);
  std::vector<TensorView> values;
  for (const NamedTensor& tensor : tensors) {
    values.push_back(tensor.present());
  }
  PackedBroadcast packed(values, group.world_size() > 1);
  packed.launch(
      group.rank() == 0, [&](const BufferView& value) { group.broadcast(value, 0); }, [](auto copy) { copy(); });
}

template <Model M>
std::vector<NamedTensor> values_of(M& model) {
  std::vector<NamedTensor> values;
  for (const Parameter& parameter : model.parameters()) {
    values.push_back({parameter.name, parameter.value});
  }
  return values;
}

/// For the thread of a checkpoint that is dropped after the attempt of an elastic job has failed: the next attempt does
/// not wait for it.
template <class Group>
DetachThread detach_thread(const Group& group) {
  const std::weak_ptr<group::RankContext> weak = group::GroupAccess::of(group).rank_context();
  return [weak](std::shared_ptr<const std::atomic<bool>> thread) {
    const std::shared_ptr<group::RankContext> context = weak.lock();
    if (context && context->elastic_attempt != 0 && context->control_plane.failure()->failed()) {
      context->detached.push_back(std::move(thread));
    }
  };
}

/// Runs `copy()`. @returns work for PendingCheckpoint: `write`, or, if `copy()` has thrown, the same exception. A rank
/// that threw it at once would not come to wait(), where the other ranks wait for it.
std::function<void()> copied_then(const std::function<void()>& copy, std::function<void()> write);

/// The barrier of save_checkpoint. A rank that does not come may have skipped the call by `if (rank == 0)`.
template <class Group>
void barrier_of_save(const Group& group, const std::string& path) {
  const auto context = [&] {
    return format_text(" (rank {} was in save_checkpoint of '{}': every rank calls it, and rank 0 writes)",
                       {group.members().rank_in_job(), sanitize(path)});
  };
  try {
    group.barrier();
  } catch (const JobFailed& failed) {
    Cause cause = failed.cause();
    if (cause.kind != CauseKind::disagreement && cause.kind != CauseKind::timeout) throw;
    cause.text += context();
    throw_cause(cause);
  } catch (const Error& error) {  // this rank is the first cause
    const bool waited = error.code() == make_error_code(Errc::timeout);
    if (!waited && error.code() != make_error_code(Errc::disagreement)) throw;
    throw Error(error.code(), error.what() + context()).with_rank(group.members().rank_in_job());
  }
}

}  // namespace detail

/// Rank 0 writes its values of `tensors` to `path`, a safetensors file, after every rank has called this with the same
/// `path` and none has failed. The other ranks' values are not read: save values that all ranks share.
/// - `path` has the old content or the new one at any moment, also after a kill (see AtomicFile).
/// - Names are UTF-8, and no two tensors have the same. The metadata has a digest of the whole file.
/// - Tensors are in host memory or, with a backend of device memory, on the device. The work that writes them has run,
/// or is enqueued on the group's stream.
/// Collective, blocking: until the file is on the disk, without a time limit while rank 0 is alive.
/// @throws Error on every rank, with the same sentence, which names the writing rank, if the file cannot be written
/// (the job has not failed: a caller may catch it and continue); Error (disagreement) likewise, before anything is
/// written, for ranks that give different names;
/// Error (unsupported) for tensors of another device than the group's and the host; (invalid_argument) for a name that
/// two tensors have; the job's first cause
/// @ingroup checkpoints
template <class Group>
void save_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  detail::barrier_of_save(group, path);
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "writing the file " + sanitize(path), [&] {
    write_checkpoint_file(path, tensors, tensor_access(group), WritingAttempt::of(*group::handle_of(group)));
    return true;
  }));
}

/// Every rank's `tensors` get the values of rank 0's file at `path`, NamedBytes also its length. The file has these
/// tensors and no others, in any order; another program may have written it. Only rank 0 needs access to the file. Call
/// it before or after wrapping the model. Collective, blocking: as save_checkpoint.
/// @returns false on every rank if rank 0 has no such file
/// @throws Error (disagreement) or JobFailed if the ranks' tensors differ: the first difference and both ranks; Error
/// (disagreement) on every rank for ranks that give different names;
/// Error (protocol) on every rank, with the same sentence, for a file that is damaged or has other tensors; the values
/// stay as they were, unless the file changes during the read; the job's first cause
/// @ingroup checkpoints
template <class Group>
bool load_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  detail::agree_on_tensors_blocking(group, tensors);
  const auto read = [&] { return read_checkpoint_file(path, tensors, tensor_access(group)).has_value(); };
  if (!group::handle_of(group)->on_rank_0("rank 0", "reading the checkpoint " + sanitize(path), read)) {
    return false;
  }
  detail::share_values_blocking(group, tensors);
  group::GroupAccess::of(group).rank_context()->has_loaded = true;
  return true;
}

/// Writes the weights alone to a file for other programs, as save_checkpoint of the same tensors, on whose names and
/// types these programs depend: Python reads it by safetensors.torch.load_file(path). Not all of them have f64 or 8-bit
/// floats. Collective, blocking, atomic, and @throws as save_checkpoint.
/// @ingroup checkpoints
template <class Group>
void save_safetensors(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  save_checkpoint(group, path, tensors);
}

/// The same for a model's parameters, by their names.
/// @ingroup checkpoints
template <class Group, Model M>
void save_safetensors(const Group& group, const std::string& path, M& model) {
  save_checkpoint(group, path, detail::values_of(model));
}

/// Every rank's `tensors` get the values of rank 0's file at `path`, which any program may have written: a safetensors
/// file, or an index of several (model.safetensors.index.json) that lie beside it. Only rank 0 needs access to it, and
/// reads it into its tensors one after the other; conversions take 48 MiB more. Shapes are equal: nothing is
/// transposed. Call it before or after wrapping the model; construct a ShardedOptimizer after it, since one of a 16-bit
/// model keeps f32 weights. Collective, blocking: as load_checkpoint.
/// @param options of rank 0 count: other names, tensors that either side has alone, conversions of floats
/// @throws Error on every rank, with the same sentence, before a value changes: (ENOENT) if rank 0 has no such file;
/// (protocol) for a file that is damaged or none, or if a name, shape or type is not the program's; as load_checkpoint
/// @ingroup checkpoints
template <class Group>
void load_safetensors(const Group& group, const std::string& path, std::span<const NamedTensor> tensors,
                      const SafetensorsOptions& options = {}) {
  detail::agree_on_tensors_blocking(group, tensors);
  std::vector<std::int64_t> is_read(tensors.size());
  static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "reading the weights " + sanitize(path), [&] {
    is_read = *read_checkpoint_file(path, tensors, tensor_access(group), &options);
    return true;
  }));
  if (is_read.empty()) return;
  group.broadcast(is_read, 0);
  std::vector<NamedTensor> shared;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (is_read[i] != 0) shared.push_back(tensors[i]);
  }
  detail::share_values_blocking(group, shared);
}

/// The same for a model's parameters, by their names.
/// @ingroup checkpoints
template <class Group, Model M>
void load_safetensors(const Group& group, const std::string& path, M& model, const SafetensorsOptions& options = {}) {
  load_safetensors(group, path, detail::values_of(model), options);
}

/// Tensors with copies of their elements in host memory.
class TensorSnapshot {
 public:
  TensorSnapshot() = default;

  /// Blocking: the copies. @throws as tensor_signatures, `access`
  explicit TensorSnapshot(std::span<const NamedTensor> tensors, TensorAccess&& access = {});

  const std::vector<NamedTensor>& tensors() const noexcept { return tensors_; }

  /// As write_checkpoint_file.
  void write(const std::string& path, WritingAttempt attempt) const;

 private:
  std::unique_ptr<std::byte[]> memory_;
  std::vector<NamedTensor> tensors_;
};

/// A checkpoint that save_checkpoint_async writes. Threads: one at a time. Movable. A default-constructed or moved-from
/// object has no checkpoint to wait for.
/// @ingroup checkpoints
class PendingCheckpoint {
 public:
  PendingCheckpoint() = default;

  /// @param write runs on a separate thread
  /// @param finish collective, in wait(): `finish(require_written)`, whose argument waits for the thread and throws the
  /// exception of `write`
  /// @param detach gets the thread where wait() was not called
  /// If the system cannot start a thread, the argument of `finish` throws that error, as an exception of `write`.
  PendingCheckpoint(std::function<void()> write, std::function<void(const std::function<void()>&)> finish,
                    DetachThread detach);
  PendingCheckpoint(PendingCheckpoint&&) noexcept = default;
  /// Blocking: as the destructor of the checkpoint that is replaced.
  PendingCheckpoint& operator=(PendingCheckpoint&& other) noexcept;

  /// Blocking: until this rank's part is written, but not in an elastic job whose attempt has failed. Without wait() it
  /// is not known whether the checkpoint is whole.
  ~PendingCheckpoint();

  /// Collective, blocking: until the checkpoint is on the disk, without a time limit while the writing ranks are alive.
  /// Ranks with several pending checkpoints wait for them in the same order. A second call returns at once.
  /// @throws as save_checkpoint, on every rank, also for ranks that wait for different checkpoints
  void wait();

 private:
  struct Writing {
    std::exception_ptr failure;
    std::atomic<bool> has_ended{false};
    async::JoiningThread thread;  ///< last: destroyed, and so joined, first
  };

  std::function<void(const std::function<void()>&)> finish_;
  DetachThread detach_;
  std::shared_ptr<Writing> work_;
};

/// Saves in the background, as save_checkpoint: the call returns when rank 0 has copied the tensors, and a thread
/// writes the copy. The tensors may change meanwhile. Call wait() on every rank before the next checkpoint of that
/// name, and at the end. Blocking: on rank 0 until the copy is made. Memory: a copy of the tensors, until wait()
/// returns.
/// @throws the job's first cause. Errors of rank 0, also those of the copy (unsupported), come from wait(), on every
/// rank
/// @ingroup checkpoints
template <class Group>
[[nodiscard]] PendingCheckpoint save_checkpoint_async(const Group& group, const std::string& path,
                                                      std::span<const NamedTensor> tensors) {
  group::GroupAccess::of(group).rank_context()->require_may_block();
  group.check();
  const auto copy = std::make_shared<TensorSnapshot>();
  const bool writes = group.rank() == 0;
  const auto take_copy = [&] {
    if (writes) *copy = TensorSnapshot(tensors, tensor_access(group));
  };
  const auto write = [copy, path, attempt = WritingAttempt::of(*group::handle_of(group)), writes] {
    if (writes) copy->write(path, attempt);
  };
  return PendingCheckpoint(
      detail::copied_then(take_copy, write),
      [group, path](const std::function<void()>& require_written) {
        static_cast<void>(group::handle_of(group)->on_rank_0("rank 0", "writing the file " + sanitize(path), [&] {
          require_written();
          return true;
        }));
      },
      detail::detach_thread(group));
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED std::function<void()> detail::copied_then(const std::function<void()>& copy,
                                                         std::function<void()> write) {
  try {
    copy();
    return write;
  } catch (...) {
    return [failure = std::current_exception()] { std::rethrow_exception(failure); };
  }
}

DTRAIN_DEFINED TensorSnapshot::TensorSnapshot(std::span<const NamedTensor> tensors, TensorAccess&& access) {
  static_cast<void>(tensor_signatures(tensors, access.takes_device_memory()));
  std::size_t bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    bytes += tensor.present().bytes();
  }
  memory_.reset(new std::byte[bytes]);
  std::byte* next = memory_.get();
  for (const NamedTensor& tensor : tensors) {
    const TensorView value = tensor.present();
    const std::span<const std::byte> elements = access.fetch(value);
    kernels::copy_bytes(next, elements.data(), elements.size());
    tensors_.push_back(
        {tensor.name, {next, value.shape, value.dtype, {}}, nullptr, tensor.other_names, tensor.file_type});
    next += elements.size();
  }
}

DTRAIN_DEFINED void TensorSnapshot::write(const std::string& path, WritingAttempt attempt) const {
  write_checkpoint_file(path, tensors_, {}, std::move(attempt));
}

DTRAIN_DEFINED PendingCheckpoint::PendingCheckpoint(std::function<void()> write,
                                                    std::function<void(const std::function<void()>&)> finish,
                                                    DetachThread detach)
    : finish_(std::move(finish)), detach_(std::move(detach)), work_(std::make_shared<Writing>()) {
  const auto run = [work = work_.get(), write = std::move(write)] {
    try {
      write();
    } catch (...) {
      work->failure = std::current_exception();
    }
    work->has_ended = true;
  };
  try {
    work_->thread = async::start_thread("a thread to write a checkpoint", run);
  } catch (...) {
    work_->failure = std::current_exception();
    work_->has_ended = true;
  }
}

DTRAIN_DEFINED PendingCheckpoint& PendingCheckpoint::operator=(PendingCheckpoint&& other) noexcept {
  PendingCheckpoint former(std::move(*this));
  finish_ = std::move(other.finish_);
  detach_ = std::move(other.detach_);
  work_ = std::move(other.work_);
  return *this;
}

DTRAIN_DEFINED PendingCheckpoint::~PendingCheckpoint() {
  if (work_ && !work_->has_ended) {  // also where wait() has thrown before the thread ended
    detach_({work_, &work_->has_ended});
  }
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
using ddp::checkpoint_tensors;
using ddp::CheckpointTensor;
using ddp::load_checkpoint;
using ddp::load_safetensors;
using ddp::PendingCheckpoint;
using ddp::safetensors_names;
using ddp::SafetensorsOptions;
using ddp::save_checkpoint;
using ddp::save_checkpoint_async;
using ddp::save_safetensors;
}  // namespace DTRAIN_NAMESPACE
