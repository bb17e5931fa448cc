#pragma once
/// @file
/// Checkpoints of a whole job: rank 0 has the file, every rank has the values.

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"
#include "dtrain/ddp/agreement.hpp"
#include "dtrain/ddp/checkpoint_file.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/named_tensor.hpp"

namespace DTRAIN_NAMESPACE::ddp {

namespace detail {

/// How rank 0's work on a file ended, as all ranks are told: "yes", "no", or what it threw.
struct FileOutcome {
  static std::string of(const Error& error) {
    const bool posix = error.code().category() == std::generic_category();
    return (posix ? "p" : "d") + std::to_string(error.code().value()) + " " + printable(error.what());
  }

  /// @returns whether it says "yes" @throws Error, the one that rank 0 has
  static bool read(std::string_view told) {
    if (told == "yes" || told == "no") return told == "yes";
    int code = 0;
    std::size_t at = 1;
    for (; at < told.size() && told[at] >= '0' && told[at] <= '9' && at < 8; ++at) {
      code = code * 10 + (told[at] - '0');
    }
    const std::string sentence(told.substr(std::min(at + 1, told.size())));
    if (told.starts_with("p")) throw Error(std::error_code(code, std::generic_category()), sentence);
    throw Error(static_cast<Errc>(code), sentence);
  }
};

/// Runs `work()` on rank 0 and gives every rank its result or its Error. Collective, blocking.
template <class Group, class Work>
bool on_rank_0_blocking(const Group& group, Work work) {
  const auto store = group.store().with_prefix("dtrain/checkpoint/");
  group.run_enqueued();  // other ranks may wait for it before they come here
  if (group.rank() == 0) {
    std::string outcome;
    try {
      outcome = work() ? "yes" : "no";
    } catch (const Error& error) {
      outcome = FileOutcome::of(error);
    }
    store.set_blocking("outcome", outcome);
  }
  store.barrier_blocking("done");
  const std::string outcome = store.get_blocking("outcome");
  store.barrier_blocking("heard");
  if (group.rank() == 0) {
    store.erase_blocking("outcome");
  }
  return FileOutcome::read(outcome);
}

/// @throws Error (disagreement) or JobFailed where a rank's tensors are not called or shaped as rank 0's
template <class Group>
void agree_on_tensors_blocking(const Group& group, std::span<const NamedTensor> tensors) {
  ModelDescription description;
  description.parameters = describe(tensors);
  const Deadline deadline = Deadline::after(group.timeout());
  const auto count = group.store().add_blocking("dtrain/checkpoint/loads/" + std::to_string(group.rank()), 1, deadline);
  const FailureContext context{
      group.failure(), group.members().rank_in_job(), group.members().host, group.timeout(), {}};
  agree_blocking(group.store(), "dtrain/checkpoint/" + std::to_string(count) + "/", description, group.rank(), context,
                 deadline);
}

}  // namespace detail

/// Rank 0 writes its values of `tensors` to `path`, after every rank has come and none has failed. At any moment the
/// file is the old one or the new one, whole, also after a kill (see AtomicFile). The other ranks' values are not
/// looked at: what all ranks have alike is saved. Collective, blocking: until the file is on the disk, timeout() at
/// most.
/// @throws Error on every rank, with the same sentence, where the file cannot be written: who catches it can go on;
/// Error (unsupported) for tensors that are not the host's; the job's first cause
template <class Group>
void save_checkpoint_blocking(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  group.throw_if_failed();
  static_cast<void>(detail::on_rank_0_blocking(group, [&] {
    write_checkpoint_file(path, tensors);
    return true;
  }));
}

/// Every rank's `tensors` get the values of rank 0's file at `path`, which the other ranks need not see. Before or
/// after the model is wrapped. Collective, blocking. @returns false on every rank where rank 0 has no such file
/// @throws Error (disagreement) or JobFailed where the ranks' tensors differ: the first difference and both ranks;
/// Error (protocol) on every rank, with the same sentence, for a file that is damaged or has other tensors, which
/// leaves the values as they were; the job's first cause
template <class Group>
bool load_checkpoint_blocking(const Group& group, const std::string& path, std::span<const NamedTensor> tensors) {
  detail::agree_on_tensors_blocking(group, tensors);
  if (!detail::on_rank_0_blocking(group, [&] { return read_checkpoint_file(path, tensors); })) {
    return false;
  }
  for (const NamedTensor& tensor : tensors) {
    if (tensor.value.bytes() != 0) {
      group.broadcast_blocking(tensor.value.flat(), 0);
    }
  }
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::load_checkpoint_blocking;
using ddp::save_checkpoint_blocking;
}  // namespace DTRAIN_NAMESPACE
