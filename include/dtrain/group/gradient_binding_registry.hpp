#pragma once
/// @file
/// GradientBindingRegistry of a RankContext: addresses of parameters whose gradients are bound, each with one owner,
/// beyond an attempt of an elastic job.

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Each address has at most one owner. Threads: all members from any thread.
class GradientBindingRegistry {
 public:
  /// @returns false if another owner has the address
  bool add(const void* address, const void* owner);

  void remove_all_of(const void* owner) noexcept;

  /// @name For the attempts of an elastic job. A model whose wrapper is gone uses that wrapper's memory until the model
  /// is bound again.
  /// @{
  struct KeptMemory {
    std::vector<const void*> addresses;  ///< the wrapper's addresses that are not bound again
    std::shared_ptr<const void> memory;
    bool outlives_job = false;  ///< the model is known to live as long as the job
    bool is_earlier = false;    ///< the memory is from an earlier registry
  };
  /// Later calls of keep() take effect. @param earlier take_memory() of the previous attempt's registry
  void start_keeping(std::vector<KeptMemory> earlier);
  /// @param all_are_wrapped whether a model of an earlier registry that was not bound again is gone, unless it is known
  /// to outlive the job
  std::vector<KeptMemory> take_memory(bool all_are_wrapped);
  /// Keeps the memory of a wrapper, and drops what its addresses were bound to before.
  void keep(const void* owner, std::shared_ptr<const void> memory, bool outlives_job);
  /// @}

 private:
  std::mutex mutex_;
  std::vector<std::pair<const void*, const void*>> owners_;  ///< addresses, ascending, and their owners
  bool keeps_ = false;
  std::vector<KeptMemory> kept_;
};

/// Owns entries of the registry; its destructor removes them.
class GradientBinding {
 public:
  explicit GradientBinding(std::shared_ptr<GradientBindingRegistry> registry) noexcept
      : registry_(std::move(registry)) {}
  GradientBinding(const GradientBinding&) = delete;
  GradientBinding& operator=(const GradientBinding&) = delete;
  ~GradientBinding() { registry_->remove_all_of(this); }

  /// @returns false if another owner has the address
  bool add(const void* address) { return registry_->add(address, this); }
  /// @param memory where the gradients lie
  void keep(std::shared_ptr<const void> memory, bool outlives_job) {
    registry_->keep(this, std::move(memory), outlives_job);
  }

 private:
  std::shared_ptr<GradientBindingRegistry> registry_;
};

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED bool GradientBindingRegistry::add(const void* address, const void* owner) {
  const std::lock_guard lock(mutex_);
  const auto place =
      std::lower_bound(owners_.begin(), owners_.end(), address,
                       [](const auto& entry, const void* other) { return std::less<>{}(entry.first, other); });
  if (place == owners_.end() || place->first != address) {
    owners_.insert(place, {address, owner});
    return true;
  }
  return place->second == owner;
}

DTRAIN_DEFINED void GradientBindingRegistry::start_keeping(std::vector<KeptMemory> earlier) {
  const std::lock_guard lock(mutex_);
  keeps_ = true;
  kept_ = std::move(earlier);
  for (KeptMemory& each : kept_) {
    each.is_earlier = true;
  }
}

DTRAIN_DEFINED std::vector<GradientBindingRegistry::KeptMemory> GradientBindingRegistry::take_memory(
    bool all_are_wrapped) {
  const std::lock_guard lock(mutex_);
  std::erase_if(kept_, [all_are_wrapped](const KeptMemory& each) {
    return all_are_wrapped && each.is_earlier && !each.outlives_job;
  });
  return std::exchange(kept_, {});
}

DTRAIN_DEFINED void GradientBindingRegistry::keep(const void* owner, std::shared_ptr<const void> memory,
                                                  bool outlives_job) {
  const std::lock_guard lock(mutex_);
  if (!keeps_) {
    return;
  }
  KeptMemory added{{}, std::move(memory), outlives_job};
  for (const auto& [address, of] : owners_) {
    if (of != owner) {
      continue;
    }
    added.addresses.push_back(address);
  }
  for (KeptMemory& each : kept_) {
    std::erase_if(each.addresses, [&added](const void* address) {  // owners_ ascend, and so do those added
      return std::binary_search(added.addresses.begin(), added.addresses.end(), address, std::less<>{});
    });
  }
  std::erase_if(kept_, [](const KeptMemory& each) { return each.addresses.empty(); });
  kept_.push_back(std::move(added));
}

DTRAIN_DEFINED void GradientBindingRegistry::remove_all_of(const void* owner) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(owners_, [owner](const auto& entry) { return entry.second == owner; });
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::group
