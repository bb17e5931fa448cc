#pragma once
/// @file
/// Pending weights: the optimizers of a rank whose steps leave new weights to come, for what reads weights by address.

#include <cstddef>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Threads: all members from any thread.
class PendingWeights {
 public:
  /// Blocking: until the optimizer's weights in that memory have come, if it has some there.
  using Wait = std::function<void(const std::byte* begin, std::size_t bytes)>;

  void add(const void* owner, Wait wait);
  /// Blocking: until no `wait` runs.
  void remove(const void* owner) noexcept;

  /// Blocking: until all weights in that memory have come. @throws as `wait`
  void wait_for(const std::byte* begin, std::size_t bytes);

 private:
  std::mutex mutex_;
  std::vector<std::pair<const void*, Wait>> optimizers_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void PendingWeights::add(const void* owner, Wait wait) {
  const std::lock_guard lock(mutex_);
  optimizers_.emplace_back(owner, std::move(wait));
}

DTRAIN_DEFINED void PendingWeights::remove(const void* owner) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(optimizers_, [owner](const auto& optimizer) { return optimizer.first == owner; });
}

DTRAIN_DEFINED void PendingWeights::wait_for(const std::byte* begin, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& optimizer : optimizers_) {
    optimizer.second(begin, bytes);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
