#pragma once
/// @file
/// The training: the same for every policy, since only the types of group and DDP depend on it.

#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../shared/atomic_file.hpp"
#include "../shared/chosen_hook.hpp"
#include "../shared/collectives.hpp"
#include "../shared/learning_rate.hpp"
#include "../shared/progress.hpp"
#include "dtrain/core/process/control_groups.hpp"
#include "half_model.hpp"
#include "measurement.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "options.hpp"
#include "pretrained.hpp"
#include "sequences.hpp"
#include "summary.hpp"
#include "text.hpp"
#include "training_state.hpp"

namespace gpt2 {

/// The learning rate of step `step`, counted from zero. While the model learns how frequent each byte is (losses of 4
/// to 3.2), a step at a rate of 0.0016 or more can halve the deviation of the last block's activations, and the next
/// loss is then 1.5 to 2.3 times as large. With a warm-up of 50 steps to 0.002 the rate is 0.001 by then.
inline float learning_rate(std::int64_t step, const Options& options) {
  constexpr double warm_up_steps = 50;
  return shared::learning_rate(step, options.steps, options.rate, warm_up_steps / static_cast<double>(options.steps));
}

/// @param ranks on this host that have not allocated their memory yet
/// @param sequences that each computes at once
/// @throws dtrain::Error (usage) in one sentence for options that do not fit the memory of this host.
inline void check_memory(const Options& options, int ranks, std::size_t sequences) {
  // Weights, gradients and the optimizer's state of two floats; with bf16 both are there in 16 and 32 bits, and
  // computed with in 32.
  const std::uint64_t floats = (options.is_bf16 ? 6 : 4) * parameter_count(options.shape) +
                               activation_count(options.shape, static_cast<Index>(sequences));
  const std::uint64_t wanted = floats * sizeof(float) * static_cast<std::uint64_t>(ranks);
  if (wanted > dtrain::available_memory_bytes()) {
    shared::refuse(
        "the model and its activations take " + std::to_string(wanted >> 20) +
        " MiB, which this host does not have; a smaller --global-batch, --context, --channels or --layers helps");
  }
}

/// Sequences of a pass.
inline std::size_t sequences_at_once(const Options& options, std::size_t ranks) {
  return std::max<std::size_t>(1, options.global_batch / (options.micro_batches > 0 ? options.micro_batches : ranks));
}

template <class Group>
dtrain::DistributedSampler sampler_of(const Group& group, const Sequences& sequences, const Options& options) {
  return {group,
          {.dataset_size = sequences.count(),
           .global_batch = options.global_batch,
           .seed = options.seed,
           .micro_batches = options.micro_batches}};
}

/// @throws dtrain::Error (usage) in one sentence for options that do not fit the ranks or the memory of this host.
template <class Group>
void check_options(const Options& options, const Group& group) {
  if (options.is_elastic) {
    shared::refuse(
        "--elastic is not for this program, whose ranks are those of its start; the programs gpt2 and gpt2_gloo have "
        "it");
  }
  const auto ranks = static_cast<std::size_t>(group.world_size());
  if (options.micro_batches == 0 && options.global_batch % ranks != 0) {
    shared::refuse("--global-batch is " + std::to_string(options.global_batch) + ", which " + std::to_string(ranks) +
                   " ranks do not divide evenly");
  }
  check_memory(options, group.local_world_size(), sequences_at_once(options, ranks));
}

/// The steps that `state` has not done yet. Collective, blocking. @returns this rank's seconds of each
template <class Ddp, class Model>
std::vector<double> run_steps(Ddp& ddp, Model& model, Optimizer<Ddp, Model>& optimizer, shared::ChosenHook& hook,
                              TrainingState& state, const Sequences& sequences, const Options& options,
                              shared::Progress& progress) {
  using Clock = std::chrono::steady_clock;
  const auto& group = ddp.group();
  const dtrain::DistributedSampler sampler = sampler_of(group, sequences, options);
  const auto steps_per_epoch = static_cast<std::int64_t>(sampler.steps_per_epoch());
  std::optional<dtrain::SampleBatches> batches;
  std::optional<dtrain::SampleSteps> parts;
  Batch batch;
  std::vector<double> seconds;
  group.barrier();
  while (!state.is_last()) {
    const auto begin = Clock::now();
    const std::int64_t step = state.step();
    const std::int64_t in_epoch = step % steps_per_epoch;
    const auto epoch = static_cast<std::uint64_t>(step / steps_per_epoch + 1);
    double loss = 0;
    if (options.micro_batches > 0) {
      if (in_epoch == 0 || !parts) parts = sampler.steps(epoch);
      loss = optimizer.step_over((*parts)[static_cast<std::size_t>(in_epoch)],
                                 micro_batch_pass(model, sequences, batch), learning_rate(step, options));
      state.advance(loss);
      state.have_averages();
    } else {
      if (in_epoch == 0 || !batches) batches = sampler.batches(epoch);
      sequences.gather((*batches)[static_cast<std::size_t>(in_epoch)], batch);
      loss = model.forward(batch);
      optimizer.step([&](dtrain::Ready ready) { model.backward(batch, ready); }, learning_rate(step, options));
      state.advance(loss);
    }
    hook.after_update(group, state.is_saved());
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    if (state.is_saved()) state.save(ddp, optimizer, hook);
    if (step == 0 || state.step() % 10 == 0 || state.is_last()) {
      progress.line("step " + std::to_string(state.step()) + " of " + std::to_string(options.steps) + "  loss " +
                    shared::fixed(group.all_reduce(loss, dtrain::ReduceOp::average), 4) + "  " +
                    shared::fixed(1000 * seconds.back(), 1) + " ms");
    }
  }
  return seconds;
}

/// The training of `model`. Collective, blocking.
template <class Model, class Policy>
Summary train_model(Model& model, const dtrain::ProcessGroup<Policy>& group, const Sequences& sequences,
                    const Options& options, shared::Progress& progress) {
  using Ddp = dtrain::DistributedDataParallel<Model, Policy>;
  dtrain::DdpOptions ddp_options;
  if (options.bucket_bytes) ddp_options.bucket_bytes = *options.bucket_bytes;
  if (options.measures_plan) ddp_options.plan = dtrain::PlanChoice::measured();
  shared::ChosenHook hook(options.hook);
  make_folder(group, options.save);
  if (!options.load.empty()) load_pretrained(group, options.load, options.shape, model);
  Ddp ddp = options.hook.is_none() ? Ddp{model, group, ddp_options} : Ddp{model, group, ddp_options, std::ref(hook)};
  Optimizer<Ddp, Model> optimizer(ddp, model, options.zero, options.clip);
  TrainingState state(options);
  state.load(ddp, optimizer, hook);
  if (state.step() > 0) {
    progress.line("going on from " + options.checkpoint + ", after step " + std::to_string(state.step()));
  }
  const std::vector<double> seconds = run_steps(ddp, model, optimizer, hook, state, sequences, options, progress);
  if (!options.save.empty()) save_pretrained(group, options.save, options.shape, model);

  StateBytes bytes = optimizer.state();
  if constexpr (requires { model.gradient_bytes(); }) bytes.gradients += model.gradient_bytes();
  Summary summary = summarize(group, ddp.parameters(), state, seconds, bytes);
  summary.bytes_sent_per_step =
      bytes_sent_per_step(ddp.statistics(), hook, !options.hook.is_none(), group.world_size());
  summary.exposed_ms_per_step =
      exposed_ms(ddp, model, optimizer, sequences,
                 std::max<std::size_t>(1, options.global_batch / static_cast<std::size_t>(group.world_size())));
  return summary;
}

inline Sequences sequences_of(const Options& options) {
  return {read_text(options.data), static_cast<std::size_t>(options.shape.context), options.global_batch};
}

inline void print_beginning(shared::Progress& progress, const Options& options, const Sequences& sequences, int ranks) {
  progress.line(shared::grouped(static_cast<double>(parameter_count(options.shape))) + " parameters, " +
                shared::grouped(static_cast<double>(sequences.text_bytes())) +
                " bytes of text, ranks: " + std::to_string(ranks));
}

inline void report(const Summary& summary, const Options& options, bool writes, shared::Progress& progress) {
  if (writes && !options.summary.empty()) {
    const std::string json = to_json(summary);
    shared::write_file_atomically(options.summary, std::as_bytes(std::span(json)));
  }
  progress.line("final loss " + shared::fixed(summary.final_loss, 4) + "  " + shared::fixed(summary.step_ms, 1) +
                " ms a step, on a rank " + shared::grouped(static_cast<double>(summary.optimizer_bytes)) +
                " bytes of the optimizer's state and " + shared::grouped(static_cast<double>(summary.gradient_bytes)) +
                " of gradients");
}

/// A model of type M, with or without memory for gradients. Collective, blocking.
template <class M, class Policy>
Summary train_with(const dtrain::ProcessGroup<Policy>& group, const Sequences& sequences, const Options& options,
                   shared::Progress& progress) {
  const std::size_t sequences_of_pass = sequences_at_once(options, static_cast<std::size_t>(group.world_size()));
  M model(options.shape, static_cast<Index>(sequences_of_pass), options.seed);
  if (options.zero < 2) return train_model(model, group, sequences, options, progress);
  ModelWithoutGradients<M> without(model);
  return train_model(without, group, sequences, options, progress);
}

/// The body of every rank. @returns the exit code. @throws dtrain::Error in one sentence for bad flags and bad text.
template <class Policy>
int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  const Options options = parse_options(arguments);
  shared::Progress progress(group.rank() == 0, shared::stdout_is_terminal());
  if (options.help) {
    progress.line(std::string(help_text));
    return 0;
  }
  check_options(options, group);
  const Sequences sequences = sequences_of(options);
  print_beginning(progress, options, sequences, group.world_size());
  const Summary summary = options.is_bf16 ? train_with<HalfModel>(group, sequences, options, progress)
                                          : train_with<Model>(group, sequences, options, progress);
  report(summary, options, group.rank() == 0, progress);
  return 0;
}

}  // namespace gpt2
