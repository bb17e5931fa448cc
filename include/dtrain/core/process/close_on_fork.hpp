#pragma once
/// @file
/// CloseOnForkDescriptor: a descriptor that a forked child closes first, so as not to hold its parent's port.

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

#include "dtrain/core/process/descriptor.hpp"
#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

namespace detail {

/// The open descriptors plus one; 0: free.
inline std::array<std::atomic<int>, 64> close_on_fork_table{};

inline void close_in_forked_child() noexcept {
  for (std::atomic<int>& each : close_on_fork_table) {
    if (const int entry = each.exchange(0); entry != 0) {
      static_cast<void>(::close(entry - 1));
    }
  }
}

/// @returns a place in the table; null if it is full, or the system has no memory for a handler of fork()
inline std::atomic<int>* add_to_close_on_fork_table(int descriptor) noexcept {
  static const bool is_handled = ::pthread_atfork(nullptr, nullptr, &close_in_forked_child) == 0;
  for (std::atomic<int>& each : close_on_fork_table) {
    int free = 0;
    if (is_handled && each.compare_exchange_strong(free, descriptor + 1)) {
      return &each;
    }
  }
  return nullptr;
}

}  // namespace detail

/// Owns its descriptor. A child made by fork(), but not by vfork() or clone(), closes it first of all; there, the copy
/// of this object owns nothing. Beyond 64 such descriptors at once, the others are ordinary ones.
class CloseOnForkDescriptor {
 public:
  explicit CloseOnForkDescriptor(Descriptor owned) noexcept
      : descriptor_(std::move(owned)),
        entry_(descriptor_ ? detail::add_to_close_on_fork_table(descriptor_.get()) : nullptr) {}
  CloseOnForkDescriptor(CloseOnForkDescriptor&& other) noexcept
      : descriptor_(std::move(other.descriptor_)), entry_(std::exchange(other.entry_, nullptr)) {}
  CloseOnForkDescriptor& operator=(CloseOnForkDescriptor&& other) noexcept {
    if (this != &other) {
      reset();
      descriptor_ = std::move(other.descriptor_);
      entry_ = std::exchange(other.entry_, nullptr);
    }
    return *this;
  }
  ~CloseOnForkDescriptor() { reset(); }

  int get() const noexcept { return descriptor_.get(); }

 private:
  void reset() noexcept {
    const bool was_closed_by_fork = entry_ != nullptr && entry_->exchange(0) == 0;
    entry_ = nullptr;
    if (was_closed_by_fork) {
      static_cast<void>(descriptor_.release());  // the number may be another file's by now
    }
    descriptor_.reset();
  }

  Descriptor descriptor_;
  std::atomic<int>* entry_;  ///< place in the table
};

}  // namespace DTRAIN_NAMESPACE
