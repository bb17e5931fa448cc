#pragma once
/// @file
/// WorkItem: a small callable in a host queue, stored in place.

#include <concepts>
#include <cstddef>
#include <new>
#include <type_traits>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::stream::host {

/// Maximum size of a callable with its captures. Larger data belongs behind a pointer.
inline constexpr std::size_t work_item_bytes = 112;

/// A callable that a queue stores: no allocation, no exceptions, no destructor. A callable that holds a reference has
/// `drop()` to release it if it never runs.
template <class F>
concept WorkFunction = std::is_trivially_copyable_v<F> && std::is_nothrow_invocable_r_v<void, F&> &&
                           sizeof(F) <= work_item_bytes
                       && alignof(F) <= alignof(std::max_align_t);

/// Work with a `drop()`.
template <class F>
concept DroppableWork = WorkFunction<F> && requires(F& work) {
  { work.drop() }
  noexcept->std::same_as<void>;
};

/// A slot for work; two cache lines, so that neighbours in a ring share none.
class alignas(64) WorkItem {
 public:
  template <WorkFunction F>
  void store(const F& work) noexcept {
    ::new (static_cast<void*>(storage_)) F(work);
    act_ = [](std::byte* storage, bool run) noexcept {
      F& stored = *std::launder(reinterpret_cast<F*>(storage));
      if (run) {
        stored();
      } else if constexpr (DroppableWork<F>) {
        stored.drop();
      }
    };
  }

  void run() noexcept { act_(storage_, true); }
  void drop() noexcept { act_(storage_, false); }

 private:
  alignas(std::max_align_t) std::byte storage_[work_item_bytes];
  void (*act_)(std::byte*, bool) noexcept = nullptr;
};

static_assert(sizeof(WorkItem) == 128, "dtrain: a work item is two cache lines");

}  // namespace DTRAIN_NAMESPACE::stream::host
