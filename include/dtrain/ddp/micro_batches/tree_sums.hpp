#pragma once
/// @file
/// TreeSums: partial sums of a rank's micro-batches in a step, for each gradient in host memory.

#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/micro_batches/sum_tree.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Sums with the offsets of the wrapper's arena, where the last one lies. Steady state: allocates nothing. Threads:
/// add() concurrently for different parameters; all else between passes. Lifetime: table and plan outlive it.
class TreeSums {
 public:
  /// @throws Error (unsupported) for gradients on a device or of other types than f32 and f64
  TreeSums(const GradientTable& gradients, const BucketPlan& plan, std::vector<TreePass> passes);

  std::span<const TreePass> passes() const noexcept { return passes_; }

  /// Begins a pass: the parameters' own gradients become zeros, for models that add. @param weight of the pass's
  /// gradients
  void begin_pass(const TreePass& pass, double weight) noexcept;

  /// Adds a gradient, times the pass's weight. @param gradient null: zeros. @returns whether it is the parameter's
  /// first in this pass; a second one is not added
  bool add(std::size_t parameter, const std::byte* gradient) noexcept;
  bool is_added(std::size_t parameter) const noexcept { return is_added_[parameter] != 0; }

  /// Memory as long as the arena, with the rank's node `node`. @pre not its last one
  std::byte* finished(std::size_t node) const noexcept { return arenas_[node]; }

 private:
  struct alignas(arena_alignment) Line {
    std::byte bytes[arena_alignment];
  };

  std::byte* place(std::size_t arena, std::size_t parameter) const noexcept {
    return arenas_[arena] + plan_->offset_of[parameter];
  }

  const GradientTable* gradients_;
  const BucketPlan* plan_;
  std::vector<TreePass> passes_;
  std::vector<Line> memory_;
  std::vector<std::size_t> offsets_;  ///< the plan's, for which memory_ has zeros between gradients
  std::vector<std::byte*> arenas_;    ///< the stack of partial sums
  std::vector<unsigned char> is_added_,
      has_own_;  ///< whether each parameter's is, in this pass; and from its own memory
  TreePass pass_;
  double weight_ = 1;
};

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS

#include <algorithm>
#include <array>
#include <utility>

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/kernels/reduction.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED TreeSums::TreeSums(const GradientTable& gradients, const BucketPlan& plan, std::vector<TreePass> passes)
    : gradients_(&gradients),
      plan_(&plan),
      passes_(std::move(passes)),
      is_added_(gradients.size(), 0),
      has_own_(gradients.size(), 0) {
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const TensorView& view = gradients.view(i);
    if (view.device.kind != DeviceKind::host || (view.dtype != DType::f32 && view.dtype != DType::f64)) {
      throw_error(
          Errc::unsupported,
          "steps over micro-batches add gradients of f32 and f64 in host memory, and that of {} is of {} on {}; "
          "take sampler.batches()",
          {gradients.names().describe(i), name(view.dtype), to_string(view.device)});
    }
  }
  offsets_ = plan.offset_of;
  const std::size_t lines = (plan.arena_bytes + sizeof(Line) - 1) / sizeof(Line);
  const std::size_t arenas = deepest(passes_);
  memory_ = std::vector<Line>(lines * arenas);
  for (std::size_t arena = 0; arena < arenas; ++arena)
    arenas_.push_back(reinterpret_cast<std::byte*>(memory_.data() + arena * lines));
}

DTRAIN_DEFINED void TreeSums::begin_pass(const TreePass& pass, double weight) noexcept {
  pass_ = pass;
  weight_ = weight;
  if (offsets_ != plan_->offset_of) {  // old sums would lie in the padding between gradients, which is zeros
    std::copy(plan_->offset_of.begin(), plan_->offset_of.end(), offsets_.begin());
    if (!memory_.empty()) std::memset(memory_.data(), 0, memory_.size() * sizeof(Line));
  }
  const bool is_first = pass.micro_batch == passes_.front().micro_batch;  // the last step's result is there
  for (std::size_t i = 0; i < gradients_->size(); ++i) {
    const GradientSlot& slot = (*gradients_)[i];
    if ((is_first || has_own_[i] != 0) && slot.own != nullptr && slot.bytes != 0) std::memset(slot.own, 0, slot.bytes);
    is_added_[i] = has_own_[i] = 0;
  }
}

DTRAIN_DEFINED bool TreeSums::add(std::size_t parameter, const std::byte* gradient) noexcept {
  if (std::exchange(is_added_[parameter], 1) != 0) return false;
  const GradientSlot& slot = (*gradients_)[parameter];
  if (gradient == slot.own || gradient == nullptr) has_own_[parameter] = 1;  // one without ready() may be there, too
  const TensorView& view = gradients_->view(parameter);
  const auto count = static_cast<std::size_t>(view.shape.element_count());
  if (count == 0) return true;
  alignas(arena_alignment) static constexpr std::array<std::byte, arena_alignment> zeros{};
  const std::size_t top = pass_.depth - (pass_.adds || pass_.is_last ? 1 : 0);  // not used if the stack is empty
  std::byte* target = pass_.is_last ? slot.place : place(top, parameter);
  const kernels::Reduction weighted = kernels::Reduction::weighted_sum(view.dtype);
  const kernels::Reduction sum = kernels::Reduction::of(view.dtype, ReduceOp::sum);
  const auto run = [&](const kernels::Reduction& by, std::span<const std::byte* const> sources, const double* weights) {
    by(sources, std::span(&target, 1), count, weights);
  };
  if (gradient == nullptr) {
    // A zero is added as any other number: -0 + 0 is +0, and which rank has an empty micro-batch depends on their
    // number.
    if (!pass_.adds) {
      std::memset(target, 0, slot.bytes);
    } else {
      for (std::size_t done = 0; done < slot.bytes; done += zeros.size()) {
        std::byte* part = target + done;
        const std::array<const std::byte*, 2> sources{part, zeros.data()};
        sum(sources, std::span(&part, 1), std::min(zeros.size(), slot.bytes - done) / size_bytes(view.dtype));
      }
    }
  } else if (pass_.adds) {
    const std::array<const std::byte*, 2> sources{target, gradient};
    const std::array<double, 2> weights{1, weight_};
    run(weighted, sources, weights.data());
  } else {
    run(weighted, std::span(&gradient, 1), &weight_);
  }
  for (std::size_t merge = 0; merge < pass_.merges; ++merge) {
    std::byte* const later = target;
    std::byte* const earlier = place(top - merge - (pass_.is_last ? 0 : 1), parameter);
    if (!pass_.is_last) target = earlier;
    const std::array<const std::byte*, 2> sources{earlier, later};
    run(sum, sources, nullptr);
  }
  return true;
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
