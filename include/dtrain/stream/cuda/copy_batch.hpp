#pragma once
/// @file
/// CopyBatch: many copies within a CUDA device, enqueued together, in no order.

#include "dtrain/core/config.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

#if DTRAIN_WITH_CUDA

#include <atomic>
#include <cstddef>
#include <vector>

#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Collects device-to-device copies, then enqueues them: by one call if the runtime and the driver have such a call
/// (CUDA 12.8), else by one call for each copy. The copies are unordered: no copy may read or write what another one
/// writes. Allocates nothing for as many copies as were reserved. Threads: one at a time.
class CopyBatch {
 public:
  void reserve(std::size_t copies) {
    to_.reserve(copies);
    from_.reserve(copies);
    bytes_.reserve(copies);
  }

  void add(std::byte* to, const std::byte* from, std::size_t bytes) {
    if (bytes != 0) {
      to_.push_back(to);
      from_.push_back(from);
      bytes_.push_back(bytes);
    }
  }

  std::size_t size() const noexcept { return bytes_.size(); }
  bool empty() const noexcept { return bytes_.empty(); }

  /// Drops all copies without enqueueing them.
  void clear() noexcept {
    to_.clear();
    from_.clear();
    bytes_.clear();
  }

  /// Enqueues the copies, and empties the batch. Lifetime: the memory outlives the work, the batch need not.
  /// @throws Error (cuda); some copies may be enqueued in spite of it
  void enqueue(StreamRef stream) {
    if (!empty() && (size() == 1 || !enqueue_together(stream))) {
      for (std::size_t i = 0; i < size(); ++i) {
        check(cudaMemcpyAsync(to_[i], from_[i], bytes_[i], cudaMemcpyDeviceToDevice, stream.native()),
              "cudaMemcpyAsync");
      }
    }
    clear();
  }

 private:
  /// @returns false if one call is impossible, and the caller is to enqueue the copies one by one
  bool enqueue_together([[maybe_unused]] StreamRef stream) {
#if CUDART_VERSION >= 12080
    // Neither name of the default stream accepts batches; graphs accept them from some drivers only.
    const bool is_default = stream.native() == nullptr || stream.native() == cudaStreamLegacy;
    if (!has_batches_ || is_default || stream.is_capturing()) {
      return false;
    }
    cudaMemcpyAttributes attributes{};
    attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
    std::size_t first_copy = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t code = cudaMemcpyBatchAsync(to_.data(), from_.data(), bytes_.data(), size(), &attributes,
                                                  &first_copy, 1, stream.native());
#else
    std::size_t failed = 0;
    const cudaError_t code = cudaMemcpyBatchAsync(to_.data(), const_cast<void**>(from_.data()), bytes_.data(), size(),
                                                  &attributes, &first_copy, 1, &failed, stream.native());
#endif
    if (code != cudaSuccess) {
      refuse_batches(code);
    }
    return has_batches_;
#else
    return false;
#endif
  }

  /// Lets later copies go one by one. If the error is of earlier work and not of this call, the next call throws it.
  void refuse_batches(cudaError_t code) {
    has_batches_ = false;
    const Error error = cuda_error(code, "cudaMemcpyBatchAsync");
    static std::atomic<bool> is_logged{false};
    if (code != cudaErrorNotSupported && code != cudaErrorCallRequiresNewerDriver &&
        !is_logged.exchange(true, std::memory_order_relaxed)) {
      log(LogLevel::warning, format_text("{}; gradients are copied one by one from now on", {error.what()}));
    }
  }

  std::vector<void*> to_;
  std::vector<const void*> from_;
  std::vector<std::size_t> bytes_;
  bool has_batches_ = true;  ///< false once the driver has rejected a batch
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
