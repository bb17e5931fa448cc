#pragma once
/// @file
/// PendingWeights of a RankContext: weights that a ShardedOptimizer's last step has yet to store; their readers wait.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Threads: all members from any thread.
class PendingWeights {
 public:
  /// Memory, as ranges that may overlap, some without bytes.
  using Ranges = std::span<const std::span<const std::byte>>;

  /// Blocking: until the optimizer's weights in that memory are there.
  using Wait = std::function<void(Ranges memory)>;

  void add(const void* owner, Wait wait);
  /// Blocking: until no `wait` runs.
  void remove(const void* owner) noexcept;

  /// Blocking: until all weights in that memory are there. Calls each optimizer's `wait` once. @throws as `wait`
  void wait_for(Ranges memory);

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

DTRAIN_DEFINED void PendingWeights::wait_for(Ranges memory) {
  const std::lock_guard lock(mutex_);
  for (const auto& optimizer : optimizers_) {
    optimizer.second(memory);
  }
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
