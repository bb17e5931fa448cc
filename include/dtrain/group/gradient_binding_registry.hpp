#pragma once
/// @file
/// Gradient binding registry: the parameters whose gradients one wrapper of a rank has bound.

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Addresses, each of one owner at most. Threads: all members from any thread.
class GradientBindingRegistry {
 public:
  /// @returns whether `owner` has it now: no other owner had it.
  bool add(const void* address, const void* owner) {
    const std::lock_guard lock(mutex_);
    return owners_.try_emplace(address, owner).first->second == owner;
  }

  void remove_all_of(const void* owner) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [owner](const auto& entry) { return entry.second == owner; });
  }

 private:
  std::mutex mutex_;
  std::map<const void*, const void*> owners_;
};

/// Owns its entries of the registry until its end.
class GradientBinding {
 public:
  explicit GradientBinding(std::shared_ptr<GradientBindingRegistry> registry) noexcept
      : registry_(std::move(registry)) {}
  GradientBinding(const GradientBinding&) = delete;
  GradientBinding& operator=(const GradientBinding&) = delete;
  ~GradientBinding() { registry_->remove_all_of(this); }

  /// @returns false where another owner has it.
  bool add(const void* address) { return registry_->add(address, this); }

 private:
  std::shared_ptr<GradientBindingRegistry> registry_;
};

}  // namespace DTRAIN_NAMESPACE::group
