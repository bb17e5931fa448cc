#pragma once
/// @file
/// Driver of a DistributedDataParallel: stream, reducer and counters, whatever the model's type.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/process/core_count.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/core/types/tensor_view.hpp"
#include "dtrain/ddp/agreement/model_signature.hpp"
#include "dtrain/ddp/agreement/value_checks.hpp"
#include "dtrain/ddp/agreement/value_comparison.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/data/zero_gradients.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/planning/measured_plan.hpp"
#include "dtrain/ddp/precision/master_weights.hpp"
#include "dtrain/ddp/profile/step_meter.hpp"
#include "dtrain/ddp/reduction/accumulation.hpp"
#include "dtrain/ddp/reduction/bucket_rebuild.hpp"
#include "dtrain/ddp/reduction/bucket_reduction.hpp"
#include "dtrain/ddp/reduction/ready_check.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/ddp/setup/backend_check.hpp"
#include "dtrain/ddp/setup/scaled_averages.hpp"
#include "dtrain/ddp/step.hpp"
#include "dtrain/ddp/step_options.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/group_handle.hpp"
#include "dtrain/group/group_state.hpp"
#include "dtrain/stream/host/progress.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Facts of a wrapped model for an elastic job, whose commit() reads them. @param values of the parameters @param read
/// their present addresses; empty: they do not move @param weights_differ of the hook; empty: ranks have equal weights
/// after each step
/// @throws Error (unsupported) for weights in device memory that may differ
void describe_weights(group::WrappedModel& wrapped, const std::vector<TensorView>& values, const ReadValue& read,
                      std::function<bool()> weights_differ);

/// For streams that the host runs: starts a helper thread that runs this stream while the program computes.
/// @param local_ranks ranks of the group on this node
/// @returns why no thread was started; null if one was, or if a device runs the stream
template <class StreamOwner>
const char* start_progress([[maybe_unused]] StreamOwner& owner, [[maybe_unused]] stream::host::Progress wanted,
                           [[maybe_unused]] int local_ranks) {
  if constexpr (requires { owner.start_helper(); }) {
    using stream::host::Progress;
    if (stream::host::decide(wanted, cores_of_all_ranks(), available_cores(), local_ranks) != Progress::thread) {
      return wanted == Progress::automatic ? "no free core; progress = thread starts a thread all the same"
                                           : "progress = caller";
    }
    owner.start_helper();
  }
  return nullptr;
}

/// @param identities an address for each parameter, null for one that may be in several wrappers, being empty; or
/// nothing: the addresses of the values are taken
/// @returns an object that prevents other wrappers from binding these gradients while it lives
/// @throws Error (invalid_argument) if one is bound already
std::unique_ptr<group::GradientBinding> register_gradient_bindings(
    std::shared_ptr<group::GradientBindingRegistry> registry, std::span<const Parameter> parameters,
    std::span<const void* const> identities);

/// Steps point into it, so it does not move with its wrapper. The reducer is destroyed before its stream.
/// @tparam Backend of the group's channels
/// @tparam Group as group::GroupState
template <class Backend, class Group>
struct Driver {
  using Communicator = typename Backend::Communicator;

  explicit Driver(const Group& group);
  ~Driver();

  /// Collective, blocking: opens a channel for `model` and makes the reducer, which keeps `group` until drop_callbacks.
  /// @throws as DistributedDataParallel
  void construct(const Group& group, ModelFunctions model, const DdpOptions& options, HookFunctions<Communicator> hook);

  /// Collective, blocking: compares what the ranks construct for this wrapper. @throws Error (disagreement) or
  /// JobFailed on every rank, which names two ranks and what each of them reduces gradients by
  void agree_on_reduction(const Group& group, const std::string& reduction);

  /// Parameters of the model, with the present addresses of values that move. @throws as ReadValue
  const std::vector<Parameter>& present_parameters() {
    for (std::size_t i = 0; read_value && i < parameters.size(); ++i)
      parameters[i].value = read_value(i).view;
    return parameters;
  }

  /// Whether steps reduce: outside the scope of every NoSync.
  bool reduces() const noexcept { return wrapped->no_sync_depth == 0; }

  /// Begins a step without an optimizer, or a pass under no_sync(). @throws as DistributedDataParallel::begin
  Step begin(const Group& group, const char* caller, StepOptions options);

  /// A step that reduces has begun.
  void count_step(const Group& group) noexcept {
    wrapped->has_unreduced = false;
    if (--wrapped->steps_to_reminder == 0) group.rank_context()->remind_of_commit();
  }

  /// In a handler of an exception of an open step: reports it to the job, unless a failure of the job may have caused
  /// it.
  void report_exception(const Group& group) {
    if (!group.failure()->failed()) group.rank_context()->report_exception(exception_text());
  }

  /// As DistributedDataParallel::step_without_data, without an optimizer.
  bool step_without_data(const Group& group, StepOptions options);

  /// Begins a step of a rank that has no samples. @throws Error (unsupported) for hooks::LocalSgd
  void begin_without_data();

  /// Collective, blocking: compares the values of the ranks. @throws as compare_values_blocking; Error
  /// (invalid_argument) during a step
  void compare_values(const Group& group, const char* caller) {
    reducer->throw_if_unusable(caller);
    reducer->check_addresses(true);
    const std::shared_ptr<const group::GroupHandle> handle = group.handle();
    const std::vector<Parameter>& present = present_parameters();
    compare_values_blocking(
        *handle, prefix + "values", {present.data(), present.size()}, Deadline::after(handle->timeout()),
        format_text("after {} {}", {reducer->steps(), reducer->steps() == 1 ? "step" : "steps"}), prefix + "end");
  }
  /// Before a step: the same where DTRAIN_CHECK_VALUES says so; before the first one the settings of the samplers, in
  /// the background, but for newcomers of an elastic job, whom it rejects.
  void compare_if_due(const Group& group, const char* caller) {
    if (checks_.is_due(reducer->steps())) compare_now(group, caller);
  }
  /// Compares a digest of the values in the background, if there were steps, and warns if they are those that the ranks
  /// began with. Blocking: no, but for the digest.
  void compare_values_at_end(const Group& group) noexcept;

  /// Drops the references to the group and to the model, before the group keeps this object.
  void drop_callbacks() noexcept;

  typename Backend::StreamOwner stream;
  std::string prefix;                       ///< prefix of this wrapper's keys in the store
  std::vector<Parameter> parameters;        ///< the model's parameters at the construction
  ReadValue read_value;                     ///< empty: values stay where they are
  std::vector<TensorView> buffers;          ///< the model's
  std::shared_ptr<void> micro_batch_steps;  ///< MicroBatchSteps, if there were such steps; streams use its memory
  std::shared_ptr<group::WrappedModel> wrapped = std::make_shared<group::WrappedModel>();
  std::unique_ptr<group::GradientBinding> gradient_binding;
  std::unique_ptr<Reducer<Communicator>> reducer;
  std::optional<Accumulation> accumulation;
  const char* why_nothing_is_hidden = nullptr;
  bool program_drives_steps = false;  ///< ReducerStatistics::program_drives_steps

 private:
  void compare_now(const Group& group, const char* caller);
  void note_values() noexcept;
  /// @throws Error (invalid_argument) if values have moved
  std::uint64_t present_digest();

  ValueChecks checks_;
  int agreements_ = 0;
  bool has_local_steps_ = false;   ///< the hook is hooks::LocalSgd, or another with weights_differ()
  bool sends_buffers_ = false;     ///< each step gives the other ranks this rank's; false once that is warned of
  std::string compared_settings_;  ///< this rank's
  std::optional<std::uint64_t> first_values_;  ///< digest of the values at first, if they are compared at the end
  BucketRebuild bucket_rebuild(const std::shared_ptr<const group::GroupHandle>& group, const DdpOptions& options,
                               bool binds_gradients, const Communicator& communicator) const;
};

// Defined apart from the class, so that what is instantiated with the definitions is not instantiated again.

template <class Backend, class Group>
Driver<Backend, Group>::Driver(const Group& group) : stream(group.open_stream(stream::host::StreamKind::step)) {}

template <class Backend, class Group>
Driver<Backend, Group>::~Driver() = default;

template <class Backend, class Group>
void Driver<Backend, Group>::begin_without_data() {
  if (has_local_steps_) {
    throw_error(Errc::unsupported,
                "a step without data was made with hooks::LocalSgd, whose local steps exchange nothing; give all ranks "
                "the same number of steps (DistributedSampler), or use another hook");
  }
  reducer->leave_out_step();
  if (std::exchange(sends_buffers_, false)) warn_of_constant_buffers();
}

template <class Backend, class Group>
Step Driver<Backend, Group>::begin(const Group& group, const char* caller, StepOptions options) {
  group.rank_context()->require_may_block();
  if (!reduces()) {
    reducer->throw_if_unusable(caller);
    wrapped->has_unreduced = true;
    return accumulation->begin();
  }
  compare_if_due(group, caller);
  if (first_values_ && are_values_noted_after(reducer->steps())) note_values();
  if (options.master != nullptr) options.master->require_of(parameters, caller);
  Step step = reducer->begin(caller, std::move(options));
  count_step(group);
  return step;
}

template <class Backend, class Group>
std::uint64_t Driver<Backend, Group>::present_digest() {
  reducer->check_addresses(false);
  const std::vector<Parameter>& present = present_parameters();
  return digest_of_values({present.data(), present.size()});
}

template <class Backend, class Group>
void Driver<Backend, Group>::note_values() noexcept {
  try {
    reducer->note_values(present_digest());
  } catch (...) {
    // Values have moved, or become another kind of tensor: the step says so.
  }
}

template <class Backend, class Group>
bool Driver<Backend, Group>::step_without_data(const Group& group, StepOptions options) {
  begin_without_data();
  const ZeroGradients zeros(parameters);
  Step step = begin(group, "backward()", std::move(options));
  try {
    zeros(step.ready());
  } catch (...) {
    report_exception(group);
    throw;
  }
  return step.finish();
}

template <class Backend, class Group>
void Driver<Backend, Group>::drop_callbacks() noexcept {
  gradient_binding.reset();
  wrapped.reset();
  if (reducer) reducer->drop_callbacks();
}

template <class Backend, class Group>
void Driver<Backend, Group>::construct(const Group& group, ModelFunctions model, const DdpOptions& options,
                                       HookFunctions<Communicator> hook) {
  const rendezvous::Membership& members = group.members();
  const std::shared_ptr<const group::GroupHandle> handle = group.handle();
  const FailureContext context = FailureContext::of(handle);
  parameters = std::move(model.parameters);
  read_value = std::move(model.read_value);
  buffers = model.buffers;
  has_local_steps_ = hook.weights_differ != nullptr;
  checks_ = value_checks(std::getenv("DTRAIN_CHECK_VALUES"), {parameters.data(), parameters.size()}, !has_local_steps_);
  const bool may_differ = handle->is_elastic() ? handle->has_newcomers() : checks_.compares_settings();
  if (may_differ && members.world_size > 1) checks_.compare_settings();
  check_options(options);
  check_backend(abilities_of<Backend>(), parameters, model.buffers, options, stream.ref().device());
  if (model.bind_gradient) {
    gradient_binding = register_gradient_bindings(group.gradient_bindings(), parameters, model.identities);
  }
  prefix = format_text("ddp/{}/", {group.next_number("ddp")});
  const bool scales =
      !hook.reduce && scales_averages<Communicator>(parameters, options.reduce_op, members.world_size, stream.ref());
  ModelSignature signature = model_signature(parameters, options, model.buffers, scales, hook.description);
  signature.check_values_every = checks_.every();
  agree_blocking(*handle, prefix, signature, Deadline::after(context.timeout), "wrapping a model");

  std::vector<TensorView> values;
  std::transform(parameters.begin(), parameters.end(), std::back_inserter(values),
                 [](const Parameter& parameter) { return parameter.value; });
  if (handle->is_elastic()) describe_weights(*wrapped, values, read_value, std::move(hook.weights_differ));
  values.insert(values.begin(), model.buffers.begin(), model.buffers.end());
  std::erase_if(values, [&](const TensorView& each) { return handle->is_equal_on_all_ranks(each); });
  if (handle->is_elastic()) handle->add_wrapped(wrapped);
  // Before the communicator: see broadcast_values.
  PackedBroadcast packed(values, RunsHostWork<typename Communicator::Stream> && members.world_size > 1);
  ReducerParts parts;
  parts.running = std::make_shared<RunningBucket>();
  auto communicator = group.open_channel(
      "ddp", options.accumulate,
      [running = parts.running](const backend::Operation& operation) { return running->describe(operation); });
  if constexpr (Reducer<Communicator>::GradientCopier::copies_on_stream) {
    Reducer<Communicator>::GradientCopier::order_behind(stream.ref(), options.producer_stream);
  }
  broadcast_values(communicator, stream.ref(), packed, context);
  parts.read_parameters = model.read_parameters;
  parts.rebuild = bucket_rebuild(handle, options, model.bind_gradient != nullptr, communicator);
  parts.rebuild.bind = model.bind_gradient;
  if (options.broadcast_buffers) parts.buffers = model.buffers;
  sends_buffers_ = !parts.buffers.empty() && members.rank == 0 && members.world_size > 1;
  parts.scales_averages = scales;
  const std::vector<GradientSize> sizes = gradient_sizes({parameters.data(), parameters.size()});
  const auto read_values = std::move(hook.read_values);
  BucketPlan plan = plan_buckets({sizes.data(), sizes.size()}, options.caps());
  parts.late_writes = checked_late_writes(options);
  reducer = std::make_unique<Reducer<Communicator>>(std::move(communicator), stream.ref(), parameters, std::move(plan),
                                                    options, context, std::move(parts), std::move(hook));
  wrapped->is_step_open = {reducer->lifetime(), &reducer->lifetime()->is_step_open};
  if (read_values) read_values(read_value);
  accumulation.emplace(reducer->accumulation());
  for (std::size_t i = 0; model.bind_gradient && i < parameters.size(); ++i) {
    model.bind_gradient(i, reducer->bind(i));
  }
  if (gradient_binding) {
    gradient_binding->keep(reducer->gradient_memory(),
                           std::any_of(parameters.begin(), parameters.end(), [&handle](const Parameter& parameter) {
                             return handle->is_kept(parameter.value);
                           }));
  }
  reducer->remember_addresses();
  if (checks_.at_end() && !handle->is_elastic())
    first_values_ = digest_of_values({parameters.data(), parameters.size()});
  why_nothing_is_hidden = start_progress(stream, options.progress, members.local_world_size);
}

template <class Backend, class Group>
void Driver<Backend, Group>::compare_now(const Group& group, const char* caller) {
  const ValueChecks::Due due = checks_.take(reducer->steps());
  const std::shared_ptr<const group::GroupHandle> handle = due.settings ? group.handle() : nullptr;
  if (due.settings) reducer->throw_if_unusable(caller);
  if (due.settings && handle->is_elastic()) {
    compare_settings_blocking(*handle, prefix + "settings", "before the first step");
  } else if (due.settings) {
    compared_settings_ = compare_settings_in_background(*handle, prefix + "settings");
  }
  if (due.values) compare_values(group, caller);
}

template <class Backend, class Group>
void Driver<Backend, Group>::compare_values_at_end(const Group& group) noexcept {
  try {
    const std::shared_ptr<const group::GroupHandle> handle = group.handle();
    const bool is_due = reducer && reducer->steps() > 0 && first_values_;
    if (!is_due || handle->failure()->failed()) return;
    group.rank_context()->require_may_block();
    reducer->throw_if_unusable();
    const std::uint64_t digest = present_digest();
    if (digest == first_values_ && handle->members().rank == 0) warn_of_unchanged_values(reducer->steps());
    if (handle->members().world_size > 1) {
      compare_values_in_background(*handle, prefix + "end", digest, compared_settings_);
    }
  } catch (...) {
    // A step is open or has failed, the rank has left, or values have moved or become another kind of tensor: no
    // comparison.
  }
}

template <class Backend, class Group>
void Driver<Backend, Group>::agree_on_reduction(const Group& group, const std::string& reduction) {
  ModelSignature signature;
  signature.hook = reduction;
  const std::shared_ptr<const group::GroupHandle> handle = group.handle();
  agree_blocking(*handle, format_text("{}reduction/{}/", {prefix, agreements_++}), signature,
                 Deadline::after(handle->timeout()), "constructing a ShardedOptimizer");
}

template <class Backend, class Group>
BucketRebuild Driver<Backend, Group>::bucket_rebuild(const std::shared_ptr<const group::GroupHandle>& group,
                                                     const DdpOptions& options, bool binds_gradients,
                                                     [[maybe_unused]] const Communicator& communicator) const {
  BucketRebuild rebuild;
  rebuild.ranks_on_host = group->members().local_world_size;
  if (options.plan.is_measured()) {
    std::vector<const char*> variants;
    if constexpr (backend::HasVariants<Communicator>) variants = communicator.variants();
    rebuild.planner = options.plan.make()({options, parameters, binds_gradients, group, prefix, std::move(variants)});
  }
  if (options.reorder_gradients && !options.deterministic) {
    set_up_order_broadcast(rebuild, group, prefix);
  }
  return rebuild;
}

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINED void describe_weights(group::WrappedModel& wrapped, const std::vector<TensorView>& values,
                                     const ReadValue& read, std::function<bool()> weights_differ) {
  const auto is_on_device = [](const TensorView& each) { return each.device.kind != DeviceKind::host; };
  if (weights_differ && std::any_of(values.begin(), values.end(), is_on_device)) {
    throw_error(Errc::unsupported,
                "a hook that leaves each rank its own weights, as hooks::LocalSgd does, was given a model in device "
                "memory in an elastic job, which puts back weights in host memory only; train without the hook, or "
                "start the job without --min-ranks");
  }
  wrapped.list_weights = [values, read] {
    std::vector<TensorView> present = values;
    for (std::size_t i = 0; read && i < present.size(); ++i)
      present[i] = read(i).view;
    return present;
  };
  wrapped.weights_differ = std::move(weights_differ);
  wrapped.wait_for_commit();
}

DTRAIN_DEFINED std::unique_ptr<group::GradientBinding> register_gradient_bindings(
    std::shared_ptr<group::GradientBindingRegistry> registry, std::span<const Parameter> parameters,
    std::span<const void* const> identities) {
  auto binding = std::make_unique<group::GradientBinding>(std::move(registry));
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const TensorView& value = parameters[i].value;
    const void* const identity = !identities.empty() ? identities[i] : value.bytes() != 0 ? value.data : nullptr;
    if (identity != nullptr && !binding->add(identity)) {  // add() accepts a tied parameter twice
      throw_error(
          Errc::invalid_argument,
          "the gradient of {} is bound to another DistributedDataParallel: a model with bind_gradient is wrapped "
          "once at a time; destroy the other one first",
          {describe_parameter(i, parameters[i].name)});
    }
  }
  return binding;
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::ddp
