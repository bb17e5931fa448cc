#pragma once
/// @file
/// Checkpoints of a whole job: rank 0 has the file, every rank has the values.

#include <cstddef>
#include <span>
#include <string>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/sanitize.hpp"
#include "dtrain/ddp/agreement/model_agreement.hpp"
#include "dtrain/ddp/agreement/rank0_task.hpp"
#include "dtrain/ddp/checkpoint/checkpoint_file.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/checkpoint/tensor_access.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// @throws Error (disagreement) or JobFailed where a rank's tensors differ from rank 0's in name, shape or device
template <class Group>
void agree_on_tensors_blocking(const Group& group, std::span<const NamedTensor> tensors) {
  ModelSignature signature;
  signature.parameters = tensor_signatures(tensors, decltype(tensor_access(group))::takes_device_memory);
  // No file has it, but it decides how the values travel.
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
  agree_blocking(group.store(), "dtrain/checkpoint/" + std::to_string(count) + "/", signature, group.rank(), context,
                 deadline);
}

}  // namespace detail

/// Rank 0 writes its values of `tensors` to `path`, after every rank has come and none has failed. At any moment the
/// file is the old one or the new one, whole, also after a kill (see AtomicFile). The other ranks' values are not
/// looked at: what all ranks have alike is saved. Tensors are in host memory or, with a backend of device memory, on
/// the device; then what writes them has run, or is enqueued on the group's stream. Collective, blocking: until the
/// file is on the disk, however long that takes a rank 0 that is alive.
/// @throws Error on every rank, with the same sentence, which names the rank that writes, where the file cannot be
/// written: who catches it can go on;
/// Error (unsupported) for tensors of another device than the group's and the host; the job's first cause
template <class Group>
void save_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  group.barrier();
  static_cast<void>(detail::run_on_rank0_blocking(group, "writing the file " + sanitize(path), [&] {
    write_checkpoint_file(path, tensors, tensor_access(group));
    return true;
  }));
}

/// Every rank's `tensors` get the values of rank 0's file at `path`, which the other ranks need not see. Before or
/// after the model is wrapped. Collective, blocking: as save_checkpoint. @returns false on every rank where
/// rank 0 has no such file
/// @throws Error (disagreement) or JobFailed where the ranks' tensors differ: the first difference and both ranks;
/// Error (protocol) on every rank, with the same sentence, for a file that is damaged or has other tensors, which
/// leaves the values as they were unless the file changes while it is read; the job's first cause
template <class Group>
bool load_checkpoint(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  detail::agree_on_tensors_blocking(group, tensors);
  const auto read = [&] { return read_checkpoint_file(path, tensors, tensor_access(group)); };
  if (!detail::run_on_rank0_blocking(group, "reading the checkpoint " + sanitize(path), read)) {
    return false;
  }
  for (const NamedTensor& tensor : tensors) {
    if (tensor.value.bytes() != 0) {
      group.broadcast(tensor.value.flat(), 0);
    }
  }
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::load_checkpoint;
using ddp::save_checkpoint;
}  // namespace DTRAIN_NAMESPACE
