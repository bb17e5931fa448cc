#pragma once
/// @file
/// Start of the helper thread that runs a wrapper's communication.

#include "dtrain/core/version.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// For streams that the host runs: starts a helper thread that runs this stream while the program computes.
/// @param local_ranks ranks of the group on this node
/// @returns why no thread was started; null if one was, or if a device runs the stream
template <class StreamOwner>
const char* start_progress([[maybe_unused]] StreamOwner& owner, [[maybe_unused]] stream::host::Progress wanted,
                           [[maybe_unused]] int local_ranks) {
  if constexpr (requires { owner.start_helper(); }) {
    using stream::host::Progress;
    if (stream::host::decide(wanted, stream::host::cores_of_all_ranks(), stream::host::available_cores(),
                             local_ranks) != Progress::thread) {
      return wanted == Progress::automatic ? "no free core; progress = thread starts a thread all the same"
                                           : "progress = caller";
    }
    owner.start_helper();
  }
  return nullptr;
}

}  // namespace DTRAIN_NAMESPACE::ddp
