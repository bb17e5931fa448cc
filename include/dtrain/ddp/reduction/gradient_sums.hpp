#pragma once
/// @file
/// GradientSums: sums of the gradients of passes under no_sync(Adds::wrapper), in memory of dtrain's. Accumulation adds
/// to them, BucketReduction owns them.

#include <cstddef>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// A sum is rounded to the gradient's element type with each pass. Gradients in host memory. Steady state: allocates
/// nothing. Threads: `add` concurrently, for different parameters; everything else between passes. Lifetime: the table
/// outlives it.
class GradientSums {
 public:
  explicit GradientSums(const GradientTable& gradients) noexcept : gradients_(&gradients) {}

  /// Memory for all sums; once. @throws Error (unsupported) for gradients on a GPU
  void allocate();
  bool is_allocated() const noexcept { return !sums_.empty(); }

  /// Begins a pass under no_sync().
  void begin_pass() noexcept;

  /// Adds a gradient in a pass. @throws Error (invalid_argument) for a second call in the pass
  void add_in_pass(std::size_t parameter, const std::byte* gradient);

  /// Ends a pass: gradients that were added from their own memory become zeros, so that a model that adds up its passes
  /// adds to zeros.
  void end_pass() noexcept;

  /// Whether passes have left a sum of the parameter.
  bool has(std::size_t parameter) const noexcept { return is_allocated() && sums_[parameter].has_passes; }

  /// Adds a gradient, or nothing if that is null. @returns the sum's memory
  const std::byte* add(std::size_t parameter, const std::byte* gradient) noexcept;

  /// A step has reduced the sums, or they are discarded.
  void clear() noexcept;

 private:
  struct alignas(arena_alignment) Line {
    std::byte bytes[arena_alignment];
  };
  struct Sum {
    std::byte* memory = nullptr;
    bool has_passes = false;
    bool is_in_pass = false;  ///< whether this pass has added to it
    bool clears_own = false;  ///< whether this pass has added from the gradient's own memory
  };

  const GradientTable* gradients_;
  std::vector<Line> memory_;
  std::vector<Sum> sums_;  ///< of each parameter
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <array>
#include <cstring>

#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void GradientSums::allocate() {
  if (is_allocated()) return;
  std::vector<std::size_t> first_line;
  std::size_t lines = 0;
  for (std::size_t i = 0; i < gradients_->size(); ++i) {
    if (gradients_->view(i).device.kind != DeviceKind::host) {
      throw_error(Errc::unsupported,
                  "no_sync(Adds::wrapper) adds gradients in host memory, and that of {} is on {}; let the model add up "
                  "its passes, under no_sync()",
                  {gradients_->names().describe(i), to_string(gradients_->view(i).device)});
    }
    first_line.push_back(lines);
    lines += detail::padded((*gradients_)[i].bytes) / sizeof(Line);
  }
  memory_ = std::vector<Line>(lines);
  std::vector<Sum> sums(gradients_->size());
  for (std::size_t i = 0; i < sums.size(); ++i) {
    sums[i].memory = reinterpret_cast<std::byte*>(memory_.data() + first_line[i]);
  }
  sums_ = std::move(sums);
}

DTRAIN_DEFINED void GradientSums::begin_pass() noexcept {
  for (Sum& sum : sums_) {
    sum.is_in_pass = sum.clears_own = false;
  }
}

DTRAIN_DEFINED void GradientSums::add_in_pass(std::size_t parameter, const std::byte* gradient) {
  Sum& sum = sums_[parameter];
  if (sum.is_in_pass) {
    gradients_->names().refuse_ready(
        parameter, "came twice in a pass under no_sync(Adds::wrapper); call it once, when the gradient is final");
  }
  sum.is_in_pass = true;
  sum.clears_own = gradient == (*gradients_)[parameter].own;
  add(parameter, gradient);
  sum.has_passes = true;
}

DTRAIN_DEFINED void GradientSums::end_pass() noexcept {
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    const GradientSlot& slot = (*gradients_)[i];
    if (sums_[i].clears_own && slot.bytes != 0) std::memset(slot.own, 0, slot.bytes);
  }
}

DTRAIN_DEFINED const std::byte* GradientSums::add(std::size_t parameter, const std::byte* gradient) noexcept {
  const Sum& sum = sums_[parameter];
  const TensorView& view = gradients_->view(parameter);
  if (gradient == nullptr || view.bytes() == 0) return sum.memory;
  if (!sum.has_passes) {
    kernels::copy_bytes(sum.memory, gradient, view.bytes());
    return sum.memory;
  }
  const std::array<const std::byte*, 2> sources{sum.memory, gradient};
  const std::array<std::byte*, 1> targets{sum.memory};
  kernels::Reduction::of(view.dtype, ReduceOp::sum)({sources.data(), sources.size()}, {targets.data(), targets.size()},
                                                    static_cast<std::size_t>(view.shape.element_count()));
  return sum.memory;
}

DTRAIN_DEFINED void GradientSums::clear() noexcept {
  for (Sum& sum : sums_) {
    sum.has_passes = false;
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
