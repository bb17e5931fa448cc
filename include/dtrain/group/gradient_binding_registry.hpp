#pragma once
/// @file
/// Gradient binding registry: addresses of parameters whose gradients a wrapper of this rank has bound.

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

 private:
  std::mutex mutex_;
  std::vector<std::pair<const void*, const void*>> owners_;  ///< addresses, ascending, and their owners
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

 private:
  std::shared_ptr<GradientBindingRegistry> registry_;
};

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <functional>

namespace DTRAIN_NAMESPACE::group {

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

DTRAIN_DEFINED void GradientBindingRegistry::remove_all_of(const void* owner) noexcept {
  const std::lock_guard lock(mutex_);
  std::erase_if(owners_, [owner](const auto& entry) { return entry.second == owner; });
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
