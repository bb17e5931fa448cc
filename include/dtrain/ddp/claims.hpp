#pragma once
/// @file
/// Claims: what only one wrapper of a rank may have at a time.

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Addresses, each claimed by one owner at most. Threads: all members from any thread.
class Claims {
 public:
  /// @returns whether nobody had it.
  bool add(const void* address) {
    const std::lock_guard lock(mutex_);
    if (std::find(taken_.begin(), taken_.end(), address) != taken_.end()) {
      return false;
    }
    taken_.push_back(address);
    return true;
  }

  void remove(const void* address) noexcept {
    const std::lock_guard lock(mutex_);
    taken_.erase(std::remove(taken_.begin(), taken_.end(), address), taken_.end());
  }

 private:
  std::mutex mutex_;
  std::vector<const void*> taken_;
};

/// Owns claims until its end.
class Claim {
 public:
  explicit Claim(std::shared_ptr<Claims> claims) noexcept : claims_(std::move(claims)) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    for (const void* const address : own_) {
      claims_->remove(address);
    }
  }

  /// @returns false where somebody else has it, or this claim.
  bool add(const void* address) {
    own_.reserve(own_.size() + 1);
    if (!claims_->add(address)) {
      return false;
    }
    own_.push_back(address);
    return true;
  }

 private:
  std::shared_ptr<Claims> claims_;
  std::vector<const void*> own_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
