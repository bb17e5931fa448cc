#pragma once
/// @file
/// Claims: what only one wrapper of a rank may have at a time.

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Addresses, each claimed by one owner at most. Threads: all members from any thread.
class Claims {
 public:
  /// @returns whether `owner` has it now: nobody else had.
  bool add(const void* address, const void* owner) {
    const std::lock_guard lock(mutex_);
    return owners_.try_emplace(address, owner).first->second == owner;
  }

  void remove_all_of(const void* owner) noexcept {
    const std::lock_guard lock(mutex_);
    std::erase_if(owners_, [owner](const auto& claimed) { return claimed.second == owner; });
  }

 private:
  std::mutex mutex_;
  std::map<const void*, const void*> owners_;
};

/// Owns claims until its end.
class Claim {
 public:
  explicit Claim(std::shared_ptr<Claims> claims) noexcept : claims_(std::move(claims)) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() { claims_->remove_all_of(this); }

  /// @returns false where somebody else has it.
  bool add(const void* address) { return claims_->add(address, this); }

 private:
  std::shared_ptr<Claims> claims_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
