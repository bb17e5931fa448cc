#pragma once
/// @file
/// The training: the same for every policy, since only the types of group and DDP depend on it.

#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../fashion_mnist/atomic_file.hpp"
#include "../fashion_mnist/chosen_hook.hpp"
#include "../fashion_mnist/collectives.hpp"
#include "../fashion_mnist/progress.hpp"
#include "../fashion_mnist/sgd.hpp"
#include "dtrain/core/process/available_memory.hpp"
#include "model.hpp"
#include "optimizer.hpp"
#include "options.hpp"
#include "sequences.hpp"
#include "summary.hpp"
#include "text.hpp"

namespace gpt2 {

/// What the steps gave on this rank.
struct Steps {
  std::vector<double> losses;
  std::vector<double> seconds;
};

/// @throws dtrain::Error (usage) in one sentence for options that do not fit the ranks or the memory of this host.
template <class Group>
void check_options(const Options& options, const Group& group) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  if (options.batch % ranks != 0) {
    fashion_mnist::refuse("--batch is " + std::to_string(options.batch) + ", which " + std::to_string(ranks) +
                          " ranks do not divide evenly");
  }
  const auto sequences = static_cast<Index>(options.batch / ranks);
  // Weights, gradients and the optimizer's state of two floats.
  const std::uint64_t floats = 4 * parameter_count(options.shape) + activation_count(options.shape, sequences);
  const std::uint64_t wanted = floats * sizeof(float) * static_cast<std::uint64_t>(group.local_world_size());
  if (wanted > dtrain::available_memory_bytes()) {
    fashion_mnist::refuse(
        "the model and its activations take " + std::to_string(wanted >> 20) +
        " MiB, which this host does not have; a smaller --batch, --context, --width or --layers helps");
  }
}

/// Collective, blocking.
template <class Ddp>
Steps run_steps(Ddp& ddp, Model& model, const Sequences& sequences, const Options& options,
                fashion_mnist::Progress& progress, Optimizer<Ddp, Model>& optimizer) {
  using Clock = std::chrono::steady_clock;
  const auto& group = ddp.group();
  const dtrain::DistributedSampler sampler{
      group, {.dataset_size = sequences.count(), .global_batch = options.batch, .seed = options.seed}};
  const auto steps_per_epoch = static_cast<std::int64_t>(sampler.steps_per_epoch());
  std::optional<dtrain::ddp::SampleBatches> batches;
  Batch batch;
  Steps steps;
  group.barrier();
  for (std::int64_t step = 0; step < options.steps; ++step) {
    const auto begin = Clock::now();
    const std::int64_t in_epoch = step % steps_per_epoch;
    if (in_epoch == 0) batches = sampler.batches(static_cast<std::uint64_t>(step / steps_per_epoch + 1));
    sequences.gather((*batches)[static_cast<std::size_t>(in_epoch)], batch);
    steps.losses.push_back(model.forward(batch));
    optimizer.step([&](dtrain::Ready ready) { model.backward(batch, ready); },
                   fashion_mnist::learning_rate(step, options.steps, options.rate));
    steps.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    if (step == 0 || (step + 1) % 10 == 0 || step + 1 == options.steps) {
      const double loss = group.all_reduce(steps.losses.back(), dtrain::ReduceOp::average);
      progress.line("step " + std::to_string(step + 1) + " of " + std::to_string(options.steps) + "  loss " +
                    fashion_mnist::fixed(loss, 4) + "  " + fashion_mnist::fixed(1000 * steps.seconds.back(), 1) +
                    " ms");
    }
  }
  return steps;
}

inline dtrain::Sha256Digest digest_of(Model& model) {
  dtrain::Sha256 digest;
  for (const dtrain::Parameter& parameter : model.parameters()) {
    digest.update(std::span<const std::byte>(parameter.value.data, parameter.value.bytes()));
  }
  return digest.digest();
}

/// Collective, blocking. @throws dtrain::Error (disagreement) if the ranks' parameters differ.
template <class Ddp>
Summary summarize(const Ddp& ddp, Model& model, Steps steps, std::size_t state_bytes) {
  const auto& group = ddp.group();
  Summary summary;
  summary.world_size = group.world_size();
  for (const dtrain::Parameter& parameter : model.parameters()) {
    summary.parameters += static_cast<std::uint64_t>(parameter.value.shape.element_count());
  }
  group.all_reduce(std::span(steps.losses), dtrain::ReduceOp::average);
  summary.losses = steps.losses;
  const auto last = std::min<std::ptrdiff_t>(10, std::ssize(steps.losses));
  summary.final_loss = std::accumulate(steps.losses.end() - last, steps.losses.end(), 0.0) / static_cast<double>(last);
  const auto middle = steps.seconds.begin() + std::ssize(steps.seconds) / 2;
  std::nth_element(steps.seconds.begin(), middle, steps.seconds.end());
  summary.seconds_per_step = fashion_mnist::largest(group, *middle);
  const dtrain::ddp::ReducerStatistics statistics = ddp.statistics();
  summary.bytes_reduced_per_step = statistics.bytes_reduced / std::max<std::uint64_t>(statistics.steps, 1);
  summary.state_bytes = static_cast<std::uint64_t>(fashion_mnist::largest(group, static_cast<double>(state_bytes)));
  const dtrain::Sha256Digest digest = digest_of(model);
  fashion_mnist::require_same_everywhere(group, digest);
  summary.parameters_digest = dtrain::hex(digest);
  return summary;
}

/// The body of every rank. @returns the exit code. @throws dtrain::Error in one sentence for bad flags and bad text.
template <class Policy>
int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  const Options options = parse_options(arguments);
  fashion_mnist::Progress progress(group.rank() == 0, fashion_mnist::stdout_is_terminal());
  if (options.help) {
    progress.line(std::string(help_text));
    return 0;
  }
  check_options(options, group);
  const Sequences sequences(read_text(options.text), static_cast<std::size_t>(options.shape.context), options.batch);

  Model model(options.shape, static_cast<Index>(options.batch) / group.world_size(), options.seed);
  using Ddp = dtrain::DistributedDataParallel<Model, Policy>;
  fashion_mnist::ChosenHook hook(options.hook, 0);
  dtrain::DdpOptions wrapping;
  if (options.measures_plan) wrapping.plan = dtrain::PlanChoice::measured();
  Ddp ddp = options.hook == "none" ? Ddp{model, group, wrapping} : Ddp{model, group, wrapping, hook};
  Optimizer<Ddp, Model> optimizer(ddp, model, options.zero, options.clip);
  progress.line(fashion_mnist::grouped(static_cast<double>(parameter_count(options.shape))) + " parameters, " +
                fashion_mnist::grouped(static_cast<double>(sequences.text_bytes())) +
                " bytes of text, ranks: " + std::to_string(group.world_size()));

  Steps steps = run_steps(ddp, model, sequences, options, progress, optimizer);
  const Summary summary = summarize(ddp, model, std::move(steps), optimizer.state_bytes());
  if (group.rank() == 0 && !options.summary.empty()) {
    const std::string json = to_json(summary);
    fashion_mnist::write_file_atomically(options.summary, std::as_bytes(std::span(json)));
  }
  progress.line("final loss " + fashion_mnist::fixed(summary.final_loss, 4) + "  " +
                fashion_mnist::fixed(1000 * summary.seconds_per_step, 1) + " ms a step, optimizer's state " +
                fashion_mnist::grouped(static_cast<double>(summary.state_bytes)) + " bytes a rank");
  return 0;
}

}  // namespace gpt2
