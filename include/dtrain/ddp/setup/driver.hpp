#pragma once
/// @file
/// Driver: stream, reducer and counters of a DistributedDataParallel, whatever its model's type.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/algorithm_choice.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/ddp/agreement/model_agreement.hpp"
#include "dtrain/ddp/broadcast/broadcast_values.hpp"
#include "dtrain/ddp/broadcast/bucket_order_broadcast.hpp"
#include "dtrain/ddp/broadcast/packed_broadcast.hpp"
#include "dtrain/ddp/bucket_plan.hpp"
#include "dtrain/ddp/collect_parameters.hpp"
#include "dtrain/ddp/ddp_options.hpp"
#include "dtrain/ddp/failure_context.hpp"
#include "dtrain/ddp/hooks/gradient_hook.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/planning/bucket_planner.hpp"
#include "dtrain/ddp/planning/measured_plan.hpp"
#include "dtrain/ddp/present_value.hpp"
#include "dtrain/ddp/profile/running_bucket.hpp"
#include "dtrain/ddp/reduction/accumulation.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/ddp/reduction/scaled_averages.hpp"
#include "dtrain/ddp/setup/backend_checks.hpp"
#include "dtrain/ddp/setup/model_functions.hpp"
#include "dtrain/ddp/setup/reducer_parts.hpp"
#include "dtrain/ddp/setup/register_gradient_bindings.hpp"
#include "dtrain/ddp/setup/start_progress.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/group_state.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Steps point into it, so it does not move with its wrapper. The reducer is destroyed before its stream.
/// @tparam Backend of the group's channels
/// @tparam Group a handle as group::GroupInternals
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

  /// Drops the references to the group and to the model, before the group keeps this object.
  void drop_callbacks() noexcept;

  typename Backend::StreamOwner stream;
  std::string prefix;                 ///< of this wrapper's keys in the store
  std::vector<Parameter> parameters;  ///< as the model had them at the construction
  ReadValue read_value;               ///< empty: values stay where they are
  std::unique_ptr<group::GradientBinding> gradient_binding;
  std::unique_ptr<Reducer<Communicator>> reducer;
  std::optional<Accumulation> accumulation;
  int no_sync_depth = 0;  ///< number of live NoSync objects
  const char* why_nothing_is_hidden = nullptr;

 private:
  static FailureContext failure_context(const Group& group);

  int agreements_ = 0;
  BucketRebuild bucket_rebuild(const Group& group, const DdpOptions& options, const FailureContext& context,
                               bool binds_gradients, const Communicator& communicator) const;
};

// Defined apart from the class, so that what is instantiated with the definitions is not instantiated again.

template <class Backend, class Group>
Driver<Backend, Group>::Driver(const Group& group) : stream(group.open_stream()) {}

template <class Backend, class Group>
Driver<Backend, Group>::~Driver() = default;

template <class Backend, class Group>
void Driver<Backend, Group>::drop_callbacks() noexcept {
  gradient_binding.reset();
  if (reducer) reducer->drop_callbacks();
}

template <class Backend, class Group>
void Driver<Backend, Group>::construct(const Group& group, ModelFunctions model, const DdpOptions& options,
                                       HookFunctions<Communicator> hook) {
  const rendezvous::Membership& members = group.members();
  const FailureContext context = failure_context(group);
  parameters = std::move(model.parameters);
  read_value = std::move(model.read_value);
  check_options(options);
  check_backend(abilities_of<Backend>(), parameters, model.buffers, options, stream.ref().device());
  if (model.bind_gradient) {
    gradient_binding = register_gradient_bindings(group.gradient_bindings(), parameters, model.identities);
  }
  prefix = format_text("ddp/{}/", {group.next_number("ddp")});
  group.start_pending();  // other ranks may wait for this work before they construct theirs
  const bool scales =
      !hook.reduce && scales_averages<Communicator>(parameters, options.reduce_op, members.world_size, stream.ref());
  agree_blocking(group.store(), prefix, model_signature(parameters, options, model.buffers, scales, hook.description),
                 members.rank, context, Deadline::after(context.timeout));

  std::vector<TensorView> values = model.buffers;
  std::transform(parameters.begin(), parameters.end(), std::back_inserter(values),
                 [](const Parameter& parameter) { return parameter.value; });
  // Before the communicator: see broadcast_values.
  PackedBroadcast packed(values, RunsHostWork<typename Communicator::Stream> && members.world_size > 1);
  ReducerParts parts;
  parts.running = std::make_shared<RunningBucket>();
  auto communicator = group.open_channel(
      "ddp", options.accumulate,
      [running = parts.running](const backend::Operation& operation) { return running->describe(operation); },
      options.algorithms());
  if constexpr (Reducer<Communicator>::GradientCopier::copies_on_stream) {
    Reducer<Communicator>::GradientCopier::order_behind(stream.ref(), options.producer_stream);
  }
  broadcast_values(communicator, stream.ref(), packed, context);
  parts.read_parameters = model.read_parameters;
  parts.rebuild = bucket_rebuild(group, options, context, model.bind_gradient != nullptr, communicator);
  parts.rebuild.bind = model.bind_gradient;
  if (options.broadcast_buffers) parts.buffers = model.buffers;
  parts.scales_averages = scales;
  const std::vector<GradientSize> sizes = gradient_sizes({parameters.data(), parameters.size()});
  const auto read_values = std::move(hook.read_values);
  reducer = std::make_unique<Reducer<Communicator>>(std::move(communicator), stream.ref(), parameters,
                                                    plan_buckets({sizes.data(), sizes.size()}, options.caps()), options,
                                                    context, std::move(parts), std::move(hook));
  if (read_values) read_values(read_value);
  accumulation.emplace(reducer->accumulation());
  for (std::size_t i = 0; model.bind_gradient && i < parameters.size(); ++i) {
    model.bind_gradient(i, reducer->bind(i));
  }
  reducer->remember_addresses();
  why_nothing_is_hidden = start_progress(stream, options.progress, members.local_world_size);
}

template <class Backend, class Group>
void Driver<Backend, Group>::agree_on_reduction(const Group& group, const std::string& reduction) {
  ModelSignature signature;
  signature.hook = reduction;
  const FailureContext context = failure_context(group);
  group.start_pending();  // other ranks may wait for this work before they call this
  agree_blocking(group.store(), format_text("{}reduction/{}/", {prefix, agreements_++}), signature,
                 group.members().rank, context, Deadline::after(context.timeout), "constructing a ShardedOptimizer");
}

template <class Backend, class Group>
FailureContext Driver<Backend, Group>::failure_context(const Group& group) {
  return {group.failure(), group.members().rank_in_job(), group.members().host, group.timeout(),
          [group](bool unwinding) { group.report_abandoned_step(unwinding); }};
}

template <class Backend, class Group>
BucketRebuild Driver<Backend, Group>::bucket_rebuild(const Group& group, const DdpOptions& options,
                                                     const FailureContext& context, bool binds_gradients,
                                                     [[maybe_unused]] const Communicator& communicator) const {
  BucketRebuild rebuild;
  rebuild.ranks_on_host = group.members().local_world_size;
  const std::function<void()> start_pending = [group] { group.start_pending(); };
  if (options.plan.is_measured()) {
    std::vector<const char*> variants;
    if constexpr (backend::HasVariants<Communicator>) variants = communicator.variants();
    rebuild.planner = options.plan.make()({options, parameters, binds_gradients, group.store(), prefix, group.members(),
                                           context, start_pending, std::move(variants)});
  }
  if (options.reorder_gradients && !options.deterministic) {
    set_up_order_broadcast(
        rebuild, group.store(), group.members(), prefix, context,
        [group](group::StoreEntries entries) { return group.set_in_background(std::move(entries)); }, start_pending);
  }
  return rebuild;
}

}  // namespace DTRAIN_NAMESPACE::ddp
