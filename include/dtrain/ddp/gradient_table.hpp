#pragma once
/// @file
/// The gradient table: for each parameter its gradient's slot, and what may be announced for it.

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "dtrain/core/error.hpp"
#include "dtrain/core/stream_handle.hpp"
#include "dtrain/core/tensor_view.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_slot.hpp"
#include "dtrain/ddp/parameter.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Threads: const members concurrently. Indices are in range, except where a member says that it checks.
class GradientTable {
 public:
  /// @param arena where the plan's arena begins; null only where it has no bytes
  /// @throws Error (unsupported) for gradients that are not in host memory.
  GradientTable(std::span<const Parameter> parameters, const BucketPlan& plan, std::byte* arena) {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const TensorView& gradient = parameters[i].gradient;
      names_.push_back(parameters[i].name);
      views_.push_back(gradient);
      const std::size_t bytes = gradient.bytes();
      slots_.push_back({gradient.data, bytes == 0 ? gradient.data : arena + plan.offset_of[i], bytes});
      if (gradient.device.kind != DeviceKind::host) {
        throw Error(Errc::unsupported, "the gradient of " + describe(i) + " is on " + to_string(gradient.device) +
                                           "; this reducer takes gradients in host memory");
      }
    }
  }

  const GradientSlot& operator[](std::size_t parameter) const noexcept { return slots_[parameter]; }

  /// Gradient i lives in the arena from now on; what it holds is copied there. Checks the index. @returns where.
  TensorView bind(std::size_t parameter) {
    GradientSlot& slot = slots_.at(parameter);
    if (slot.own != nullptr) {
      slot.pack();
    }
    slot.own = slot.place;
    views_[parameter].data = slot.place;
    return views_[parameter];
  }

  /// @throws Error (unsupported) for a stream whose work the host cannot see the end of.
  void require_host(std::size_t parameter, StreamHandle stream) const {
    if (stream.device.kind != DeviceKind::host) {
      throw Error(Errc::unsupported, announcement(parameter) + " came with a stream of " + to_string(stream.device) +
                                         "; this backend reduces host memory: copy the gradient to the host first");
    }
  }

  /// @throws Error (invalid_argument) unless `gradient` has as many elements of the same kind as the parameter's own.
  void require_same_kind(std::size_t parameter, const TensorView& gradient) const {
    const TensorView& own = views_[parameter];
    const bool there = gradient.data != nullptr || gradient.bytes() == 0;
    const bool same = gradient.shape.element_count() == own.shape.element_count() && gradient.dtype == own.dtype &&
                      gradient.device == own.device;
    if (!same || !there) {
      throw Error(Errc::invalid_argument, announcement(parameter) + ", which is " + kind(own) + ", came with " +
                                              (there ? "" : "no memory of ") + kind(gradient));
    }
  }

  /// "parameter 3 'fc1.weight'".
  std::string describe(std::size_t parameter) const {
    return "parameter " + std::to_string(parameter) + " '" + names_[parameter] + "'";
  }

  const std::vector<std::string>& names() const noexcept { return names_; }

 private:
  std::string announcement(std::size_t parameter) const {
    return "ready(" + std::to_string(parameter) + ") for " + describe(parameter);
  }

  static std::string kind(const TensorView& view) {
    return std::string(name(view.dtype)) + " " + to_string(view.shape) + " on " + to_string(view.device);
  }

  std::vector<std::string> names_;
  std::vector<TensorView> views_;
  std::vector<GradientSlot> slots_;
};

}  // namespace DTRAIN_NAMESPACE::ddp
