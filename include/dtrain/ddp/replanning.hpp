#pragma once
/// @file
/// Replanning: once, after the first step, buckets in the order in which the gradients were ready.

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "dtrain/core/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// What a reducer needs in order to plan once more. Without `agree` it stays with its first plan.
struct Replanning {
  BucketCaps caps;
  /// Collective, blocking: rank 0's order, given this rank's.
  std::function<std::vector<std::size_t>(const std::vector<std::size_t>& order)> agree;
  /// Gradient i lives at `view` now: for the model's bind_gradient. Needed where one is bound.
  std::function<void(std::size_t parameter, const TensorView& view)> bind;
  /// Given this rank's order, when its last gradient is ready: what others wait for in `agree` is not to wait for this
  /// rank's finish(), which may itself wait for them in another channel. Blocking: no. May be empty.
  std::function<void(const std::vector<std::size_t>& order)> publish{};
};

/// The plan of the same gradients for another order.
inline BucketPlan plan_again(const BucketPlan& plan, std::span<const GradientSize> sizes,
                             std::span<const std::size_t> order, const BucketCaps& caps) {
  BucketPlan next = plan_buckets(sizes, order, caps);
  if (next.arena_bytes != plan.arena_bytes) {
    throw Error(Errc::invalid_argument, "a second bucket plan needs another arena; it is not of the same gradients");
  }
  return next;
}

/// Blocking: moves all gradients to the places of `plan` and tells `bind` of those that live there; what they hold is
/// kept, and zeros are what the rest of the arena holds. On the way is the host's memory: the device's may be full.
/// @param flow copies and clears; `wait` is what it waits with
template <class Flow, class Wait>
void move_gradients(GradientTable& gradients, const BucketPlan& plan, std::byte* arena, Flow& flow, Wait&& wait,
                    const std::function<void(std::size_t, const TensorView&)>& bind) {
  const std::unique_ptr<std::byte[]> kept(new std::byte[plan.arena_bytes]);
  flow.copy(kept.get(), arena, plan.arena_bytes, wait);
  flow.clear(arena, plan.arena_bytes);
  for (std::size_t parameter = 0; parameter < gradients.size(); ++parameter) {
    const GradientSlot before = gradients[parameter];
    const TensorView view = gradients.move(parameter, plan);
    if (before.is_bound() && before.bytes != 0) {
      flow.copy(gradients[parameter].place, kept.get() + (before.place - arena), before.bytes, wait);
      if (gradients[parameter].place != before.place) {
        bind(parameter, view);
      }
    }
  }
  flow.settle(wait);  // the zeros too: a graph that replays the next step does not come after this stream
}

}  // namespace DTRAIN_NAMESPACE::ddp
