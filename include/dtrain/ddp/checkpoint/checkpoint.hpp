#pragma once
/// @file
/// Checkpoints of a whole job: rank 0 reads and writes the file, every rank gets the values.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/ddp/agreement/model_agreement.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/checkpoint/tensor_access.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/rank0_task.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// @throws Error (disagreement) or JobFailed if a rank's tensors differ from rank 0's in name, shape or device
template <class Group>
void agree_on_tensors_blocking(const Group& group, std::span<const NamedTensor> tensors) {
  ModelSignature signature;
  signature.parameters = tensor_signatures(tensors, decltype(tensor_access(group))::takes_device_memory);
  // Not in the file, but the device decides how the values are sent.
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    signature.parameters[i].device = tensors[i].value.device.kind;
  }
  const Deadline deadline = Deadline::after(group.timeout());
  const int count = group::GroupAccess::of(group).next_number("checkpoint");
  const FailureContext context{group::GroupAccess::of(group).failure(),
                               group.members().rank_in_job(),
                               group.members().host,
                               group.timeout(),
                               {}};
  agree_blocking(group.store(), format_text("dtrain/checkpoint/{}/", {count}), signature, group.rank(), context,
                 deadline);
}

/// Blocking: until weights that a step with overlap_forward has left to come are there. @throws the job's first cause
template <class Group>
void wait_for_weights(const Group& group, std::span<const NamedTensor> tensors) {
  std::vector<std::span<const std::byte>> memory;
  for (const NamedTensor& tensor : tensors) {
    memory.emplace_back(tensor.value.data, tensor.value.bytes());
  }
  group::GroupAccess::of(group).rank_context()->pending_weights->wait_for(memory);
}

/// The barrier of save_checkpoint. A rank that does not come may have been kept from it by `if (rank == 0)`.
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

/// Rank 0 writes its values of `tensors` to `path`, after every rank has called this with the same `path` and none has
/// failed. The other ranks' values are not read: save values that all ranks share.
/// - `path` has the old content or the new one at any moment, also after a kill (see AtomicFile).
/// - Tensors are in host memory or, with a backend of device memory, on the device. The work that writes them has run,
/// or is enqueued on the group's stream.
/// Collective, blocking: until the file is on the disk, without a time limit while rank 0 is alive.
/// @throws Error on every rank, with the same sentence, which names the writing rank, if the file cannot be written
/// (the job has not failed: a caller may catch it and continue); Error (disagreement) likewise, before anything is
/// written, for ranks that give different names;
/// Error (unsupported) for tensors of another device than the group's and the host; the job's first cause
template <class Group>
void save_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  detail::barrier_of_save(group, path);
  detail::wait_for_weights(group, tensors);
  static_cast<void>(detail::run_on_rank0_blocking(group, "writing the file " + sanitize(path), [&] {
    write_checkpoint_file(path, tensors, tensor_access(group));
    return true;
  }));
}

/// Every rank's `tensors` get the values of rank 0's file at `path`. Only rank 0 needs access to the file. Call it
/// before or after wrapping the model. Collective, blocking: as save_checkpoint.
/// @returns false on every rank if rank 0 has no such file
/// @throws Error (disagreement) or JobFailed if the ranks' tensors differ: the first difference and both ranks; Error
/// (disagreement) on every rank for ranks that give different names;
/// Error (protocol) on every rank, with the same sentence, for a file that is damaged or has other tensors; the values
/// stay as they were, unless the file changes during the read; the job's first cause
template <class Group>
bool load_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  detail::agree_on_tensors_blocking(group, tensors);
  detail::wait_for_weights(group, tensors);
  const auto read = [&] { return read_checkpoint_file(path, tensors, tensor_access(group)); };
  if (!detail::run_on_rank0_blocking(group, "reading the checkpoint " + sanitize(path), read)) {
    return false;
  }
  std::vector<TensorView> values;
  for (const NamedTensor& tensor : tensors) {
    values.push_back(tensor.value);
  }
  PackedBroadcast packed(values, group.world_size() > 1);
  packed.launch(
      group.rank() == 0, [&](const BufferView& value) { group.broadcast(value, 0); }, [](auto copy) { copy(); });
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::load_checkpoint;
using ddp::save_checkpoint;
}  // namespace DTRAIN_NAMESPACE
