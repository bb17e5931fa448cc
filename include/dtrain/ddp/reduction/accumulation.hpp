#pragma once
/// @file
/// NoSync: scope in which a wrapper's steps reduce nothing. Accumulation: their target. GradientSums: their gradients,
/// added up.

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/gradient_table.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/reduction/ready_check.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/kernels/copy.hpp"
#include "dtrain/kernels/reduction.hpp"

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
  std::vector<Sum> sums_;  ///< sums of each parameter
};

/// Who adds up the gradients of the passes under no_sync().
/// @ingroup training
enum class Adds {
  model,    ///< each backward pass adds to the gradients that earlier passes have left
  wrapper,  ///< dtrain, in further memory: for libraries whose backward pass overwrites or clears gradients
};

/// Scope in which steps of a DistributedDataParallel reduce nothing. Movable. Threads: the thread that drives steps.
/// @ingroup training
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<int> depth) noexcept : depth_(std::move(depth)) { ++*depth_; }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;
  ~NoSync() {
    if (depth_) {
      --*depth_;
    }
  }

 private:
  std::shared_ptr<int> depth_;
};

/// Stream of each gradient that steps under no_sync() have left unreduced; nullopt for other parameters. With
/// allow_unused_parameters, the next step that reduces includes these gradients without another ready().
using AccumulationStreams = std::vector<std::optional<StreamHandle>>;

/// Target of steps under no_sync(): ready gradients stay in place, or are added to GradientSums. Lifetime: the
/// constructor's arguments outlive it.
class Accumulation final : public Step::Target {
 public:
  /// For a step that reduces and gets a gradient in other memory than the parameter's own, which has accumulated.
  static constexpr const char* why_not_elsewhere =
      "came with other memory, and what steps under no_sync() left in its own would be lost; add to that, and call "
      "ready(i)";

  Accumulation(const GradientTable& gradients, const BucketPlan& plan, AccumulationStreams& accumulated,
               const FailureContext& context, StepMeter& meter, ReadyCheck& check, GradientSums& sums) noexcept
      : gradients_(&gradients),
        plan_(&plan),
        accumulated_(&accumulated),
        context_(&context),
        meter_(&meter),
        check_(&check),
        sums_(&sums) {}

  /// Chooses for the next passes. Allocates memory for the sums, once. @param is_nested within a scope of no_sync()
  /// @throws Error (invalid_argument) for a scope within one of the other choice; (unsupported) for gradients on a GPU
  void use(Adds adds, bool is_nested);

  Step begin() noexcept {
    meter_->begin_unreduced();
    check_->begin();
    context_->enter(rendezvous::RankPhase::backward);
    sums_->begin_pass();
    return Step(*this);
  }

  /// @throws Error (invalid_argument) with Adds::model if the gradient is in other memory than the parameter's own: the
  /// next step does not read other memory; with Adds::wrapper for a second call in the pass
  void ready(const ReadyGradient& gradient) override;

  /// @throws the job's first cause; Error (invalid_argument) for a gradient that changed after ready() (ReadyCheck)
  bool finish() override;
  /// No other rank waits for this step. With Adds::wrapper the gradients that were ready stay in the sums.
  void abandon(bool) noexcept override {
    context_->enter(rendezvous::RankPhase::outside);
    sums_->end_pass();
  }

 private:
  const GradientTable* gradients_;
  const BucketPlan* plan_;  ///< whose reuses_memory lets the model use a gradient's memory again after its ready()
  AccumulationStreams* accumulated_;
  const FailureContext* context_;
  StepMeter* meter_;
  ReadyCheck* check_;
  GradientSums* sums_;
  Adds adds_ = Adds::model;
};

#if DTRAIN_DEFINITIONS

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

DTRAIN_DEFINED void Accumulation::use(Adds adds, bool is_nested) {
  if (is_nested && adds != adds_) {
    throw_error(Errc::invalid_argument,
                "no_sync() came within a no_sync() with another choice of dtrain::Adds; end that scope first");
  }
  if (adds == Adds::wrapper) sums_->allocate();
  adds_ = adds;
}

DTRAIN_DEFINED void Accumulation::ready(const ReadyGradient& gradient) {
  gradients_->check(gradient);
  const std::size_t parameter = gradient.parameter;
  const std::byte* const memory = gradients_->memory_of(gradient);
  const bool is_own = memory == (*gradients_)[parameter].own;
  if (adds_ == Adds::model && !is_own) {
    gradients_->names().refuse_ready(
        parameter,
        "came with other memory under no_sync(); add the gradient to the parameter's own, "
        "which the next step without no_sync() reduces, or use no_sync(Adds::wrapper) and give "
        "each pass's gradient alone");
  }
  if (!context_->is_elastic) context_->latch->throw_if_failed(context_->rank);  // else finish() throws
  if (adds_ == Adds::wrapper) {
    sums_->add_in_pass(parameter, memory);
    if (check_->is_on() && is_own && !plan_->reuses_memory) check_->take(parameter, memory);
  } else {
    (*accumulated_)[parameter] = gradient.stream.value_or(StreamHandle{});
  }
}

DTRAIN_DEFINED bool Accumulation::finish() {
  meter_->finished_unreduced();
  context_->enter(rendezvous::RankPhase::outside);
  context_->latch->throw_if_failed(context_->rank);
  try {
    check_->require_all_unchanged();
  } catch (const Error&) {
    context_->report_exception(exception_text());  // the other ranks do not wait for this step, but for later ones
    throw;
  }
  sums_->end_pass();
  for (std::size_t i = 0; check_->is_on() && i < accumulated_->size(); ++i) {
    if ((*accumulated_)[i]) check_->hold(i);
  }
  return false;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::Adds;
using ddp::NoSync;
}  // namespace DTRAIN_NAMESPACE
