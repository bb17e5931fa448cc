#pragma once
/// @file
/// MicroBatchSteps: steps whose gradients have the same bits on any number of ranks, for one wrapper.

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/data/sample_steps.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/micro_batches/sum_tree.hpp"
#include "dtrain/ddp/micro_batches/tree_sums.hpp"
#include "dtrain/ddp/micro_batches/tree_work.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/ready.hpp"
#include "dtrain/ddp/reduction/ready_check.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/ddp/step.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// The result of a step over micro-batches: `const double loss = ddp.backward(step, f);`.
/// @ingroup training
struct MicroBatchLoss {
  double loss = 0;      ///< the mean over the step's samples, in the order of the micro-batches (with sum: the sum)
  bool updates = true;  ///< whether an optimizer is to update, as Step::finish returns
  operator double() const noexcept { return loss; }
  template <std::same_as<bool> B>
  operator B() const = delete;  ///< would be the loss's: ask `updates`
};

/// Buffers of a model in a step over micro-batches: before each pass those of the step's beginning, after the step
/// those that micro-batch 0 leaves on rank 0. Buffers in host memory.
class MicroBatchBuffers {
 public:
  explicit MicroBatchBuffers(std::span<const TensorView> buffers);

  void begin_step() noexcept { copy(before_, false); }
  void begin_pass() noexcept { copy(before_, true); }
  void end_first() noexcept { copy(after_, false); }
  void end_step() noexcept { copy(after_, true); }
  BufferView sent() noexcept { return {after_.data(), after_.size(), DType::u8, {}}; }

 private:
  void copy(std::vector<std::byte>& kept, bool restores) noexcept;

  std::vector<TensorView> buffers_;
  std::vector<std::byte> before_, after_;
};

/// Takes the gradients of one pass after the other. Lifetime: the constructor's arguments outlive it; a Ready of a pass
/// is an error after that.
class MicroBatchPass final : public Ready::Sink {
 public:
  MicroBatchPass(const GradientTable& gradients, TreeSums& sums, ReadyCheck& check) noexcept
      : gradients_(&gradients), sums_(&sums), check_(&check) {}

  /// @param refused of this thread @param step gets the rank's last node, if this is the rank's last pass; else null
  void begin(const async::RefusedCalls& refused, Ready::Sink* step) noexcept {
    refused_ = &refused;
    step_ = step;
    is_open_.store(true, std::memory_order_release);
  }
  void close() noexcept { is_open_.store(false, std::memory_order_release); }

  /// @throws Error (invalid_argument) as Ready, and outside a pass
  void ready(const ReadyGradient& gradient) override;

  /// Gradients that did not come are zeros. @throws Error (missing_gradient) if they are not allowed to be;
  /// (invalid_argument) for a gradient that changed after ready(), which the step finds in the last pass (ReadyCheck)
  void finish(bool allows_unused);

  /// Instead of a pass, on a rank without micro-batches: each gradient's memory, whatever it has.
  void announce_all(const async::RefusedCalls& refused, Ready::Sink& step);

 private:
  void announce(std::size_t parameter);

  const GradientTable* gradients_;
  TreeSums* sums_;
  ReadyCheck* check_;
  std::atomic<bool> is_open_{false};
  const async::RefusedCalls* refused_ = nullptr;  ///< allows what the step does in ready()
  Ready::Sink* step_ = nullptr;
};

/// @throws Error (invalid_argument) for a step that no sampler has made: without samples, or without micro-batches
void require_samples(const SampleStep& samples);

/// @throws Error (unsupported) for buffers that the wrapper does not broadcast
void require_buffers(std::span<const TensorView> buffers, const DdpOptions& options);

/// Warns if a value or gradient does not begin at a multiple of 64: libraries peel their loops to aligned addresses,
/// and then add in another order.
void warn_of_addresses(std::span<const Parameter> parameters);

/// Makes the steps over micro-batches of one wrapper; for one number of micro-batches. Lifetime: the reducer outlives
/// each step. Threads: the thread that drives steps.
template <backend::CanExchangeBlocks C>
class MicroBatchSteps {
 public:
  /// Allocates the partial sums. Sends nothing. @throws Error (unsupported) for what such steps cannot have
  MicroBatchSteps(Reducer<C>& reducer, std::span<const Parameter> parameters, std::span<const TensorView> buffers,
                  std::size_t micro_batches)
      : reducer_(&reducer), lifetime_(reducer.lifetime()), state_(new State(reducer, buffers, micro_batches)) {
    require_buffers(buffers, reducer.options());
    warn_of_addresses(parameters);
  }
  MicroBatchSteps(const MicroBatchSteps&) = delete;
  ~MicroBatchSteps() {
    if (lifetime_->leaves_work) static_cast<void>(state_.release());  // a stream still adds there
  }

  std::size_t micro_batches() const noexcept { return state_->losses.size(); }
  StepWork<C>& work() noexcept { return state_->work; }

  /// In an open step, which has work(): calls `f` for each of this rank's micro-batches. @param refused of this thread
  /// @throws as `f`; Error (missing_gradient)
  template <class F>
  void run_passes(const SampleStep& samples, F& f, const async::RefusedCalls& refused) {
    constexpr bool has_loss = !std::is_void_v<std::invoke_result_t<F&, const MicroBatch&, Ready>>;
    const bool averages = reducer_->options().reduce_op == ReduceOp::average;
    std::fill(state_->losses.begin(), state_->losses.end(), 0.0);
    state_->buffers.begin_step();
    for (const TreePass& pass : state_->sums.passes()) {
      const MicroBatch batch = samples[pass.micro_batch];
      const double share = static_cast<double>(batch.samples.size()) / static_cast<double>(samples.samples().size());
      state_->sums.begin_pass(pass, averages ? share : 1);
      state_->buffers.begin_pass();
      if (&pass != state_->sums.passes().data()) reducer_->ready_check().begin();
      MicroBatchPass& sink = state_->pass;
      sink.begin(refused, pass.is_last ? reducer_ : nullptr);
      const ClosedAtEnd closed{sink};
      if (batch.samples.empty()) {
        sink.finish(true);
        continue;
      }
      if constexpr (has_loss) {
        state_->losses[pass.micro_batch] = static_cast<double>(f(batch, Ready(sink))) * (averages ? share : 1);
      } else {
        f(batch, Ready(sink));
      }
      if (pass.micro_batch == 0) state_->buffers.end_first();
      sink.finish(reducer_->options().allow_unused_parameters);
    }
    if (state_->sums.passes().empty()) state_->pass.announce_all(refused, *reducer_);
    state_->work.send(
        {reinterpret_cast<std::byte*>(state_->losses.data()), has_loss ? micro_batches() : 0, DType::f64, {}},
        state_->buffers.sent());
  }

  /// Ends the step. Collective, blocking and @throws as Step::finish
  MicroBatchLoss finish(Step& step) {
    MicroBatchLoss result{0, step.finish()};
    state_->buffers.end_step();
    for (const double loss : state_->losses)
      result.loss += loss;
    if (result.loss != result.loss)
      result.loss = std::numeric_limits<double>::quiet_NaN();  // else a sum's sign differs
    return result;
  }

 private:
  struct ClosedAtEnd {
    MicroBatchPass& pass;
    ~ClosedAtEnd() { pass.close(); }
  };
  struct State {
    State(Reducer<C>& reducer, std::span<const TensorView> model_buffers, std::size_t micro_batches)
        : layout(assign_micro_batches(micro_batches, static_cast<std::size_t>(reducer.communicator().size())),
                 reducer.communicator().rank()),
          sums(reducer.gradients(), reducer.plan(), tree_passes(layout.of_ranks[layout.rank])),
          buffers(model_buffers),
          pass(reducer.gradients(), sums, reducer.ready_check()),
          losses(micro_batches),
          work(reducer.norms(), reducer.plan(), reducer.gradients(), sums, layout) {}

    TreeLayout layout;
    TreeSums sums;
    MicroBatchBuffers buffers;
    MicroBatchPass pass;
    std::vector<double> losses;  ///< mean loss of each micro-batch, times its share
    TreeWork<C> work;
  };

  Reducer<C>* reducer_;
  std::shared_ptr<const ReducerLifetime> lifetime_;
  std::unique_ptr<State> state_;
};

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::MicroBatchLoss;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <cstdint>
#include <cstring>

#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/collect_parameters.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED MicroBatchBuffers::MicroBatchBuffers(std::span<const TensorView> buffers)
    : buffers_(buffers.begin(), buffers.end()) {
  std::size_t bytes = 0;
  for (const TensorView& buffer : buffers_)
    bytes += buffer.bytes();
  before_.resize(bytes);
  after_.resize(bytes);
}

DTRAIN_DEFINED void MicroBatchBuffers::copy(std::vector<std::byte>& kept, bool restores) noexcept {
  std::byte* at = kept.data();
  for (const TensorView& buffer : buffers_) {
    if (buffer.bytes() == 0) continue;
    std::memcpy(restores ? buffer.data : at, restores ? at : buffer.data, buffer.bytes());
    at += buffer.bytes();
  }
}

DTRAIN_DEFINED void MicroBatchPass::ready(const ReadyGradient& gradient) {
  gradients_->check(gradient);
  if (!is_open_.load(std::memory_order_acquire)) {
    gradients_->names().refuse_ready(gradient.parameter,
                                     "came when no micro-batch was under way; call it before the function of the step "
                                     "returns");
  }
  const std::byte* const memory = gradients_->memory_of(gradient);
  const GradientSlot& slot = (*gradients_)[gradient.parameter];
  const bool is_result_there = step_ != nullptr && slot.is_bound();  // whose digest the step takes
  if (check_->is_on() && memory == slot.own && !is_result_there) check_->take(gradient.parameter, memory);
  if (!sums_->add(gradient.parameter, memory)) {
    gradients_->names().refuse_ready(gradient.parameter,
                                     "came twice in a micro-batch; call it once, when the gradient is final");
  }
  announce(gradient.parameter);
}

DTRAIN_DEFINED void MicroBatchPass::announce(std::size_t parameter) {
  if (step_ == nullptr) return;
  TensorView sum = gradients_->view(parameter);
  sum.data = (*gradients_)[parameter].place;
  refused_->allow_in([&] { step_->ready({parameter, std::nullopt, &sum}); });
}

DTRAIN_DEFINED void MicroBatchPass::finish(bool allows_unused) {
  for (std::size_t i = 0; i < gradients_->size(); ++i) {
    if (sums_->is_added(i)) continue;
    if (!allows_unused) {
      throw_error(
          Errc::missing_gradient,
          "in a micro-batch {} got no gradient; the pass must call ready(i) for every parameter, with zeros where "
          "one took no part (or set DdpOptions::allow_unused_parameters)",
          {gradients_->names().describe(i)});
    }
    sums_->add(i, nullptr);
    announce(i);
  }
  if (step_ == nullptr) check_->require_all_unchanged();
}

DTRAIN_DEFINED void MicroBatchPass::announce_all(const async::RefusedCalls& refused, Ready::Sink& step) {
  refused_ = &refused;
  step_ = &step;
  for (std::size_t i = 0; i < gradients_->size(); ++i)
    announce(i);
}

DTRAIN_DEFINED void require_samples(const SampleStep& samples) {
  if (samples.samples().empty() || samples.micro_batches() == 0 || samples.micro_batches() > most_micro_batches) {
    throw_error(Errc::invalid_argument,
                "backward() got a step of {} samples in {} micro-batches; take it from sampler.steps()",
                {samples.samples().size(), samples.micro_batches()});
  }
}

DTRAIN_DEFINED void warn_of_addresses(std::span<const Parameter> parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (const bool is_value : {true, false}) {
      const TensorView& view = is_value ? parameters[i].value : parameters[i].gradient;
      if (view.bytes() == 0 || reinterpret_cast<std::uintptr_t>(view.data) % arena_alignment == 0) continue;
      return log(LogLevel::warning,
                 format_text("the {} of {} begins at no multiple of {}: in steps over micro-batches a library such as "
                             "Eigen or a BLAS may then compute other bits on another number of ranks; allocate values "
                             "and gradients at multiples of {}",
                             {is_value ? "value" : "gradient", describe_parameter(i, parameters[i].name),
                              arena_alignment, arena_alignment}));
    }
  }
}

DTRAIN_DEFINED void require_buffers(std::span<const TensorView> buffers, const DdpOptions& options) {
  if (!buffers.empty() && !options.broadcast_buffers) {
    throw_error(
        Errc::unsupported,
        "steps over micro-batches give every rank the buffers of micro-batch 0, and DdpOptions::broadcast_buffers "
        "is false; set it to true, or take sampler.batches()");
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
