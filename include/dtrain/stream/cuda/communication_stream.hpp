#pragma once
/// @file
/// CommunicationStream: the CUDA stream for the communication of a group or a DDP instance.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <optional>

#include "dtrain/stream/cuda/stream.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Owns a stream of high priority on the device that is the thread's current one when ref() is first called.
/// Threads: one at a time. Lifetime: outlives its references.
class CommunicationStream {
 public:
  CommunicationStream() noexcept = default;

  /// @throws Error (cuda)
  StreamRef ref() const {
    if (!stream_) {
      stream_.emplace(Priority::high);
    }
    return stream_->ref();
  }

 private:
  mutable std::optional<Stream> stream_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
