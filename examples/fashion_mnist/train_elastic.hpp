#pragma once
/// @file
/// The same training in an elastic job: the others go on when a rank is lost.

#include <dtrain/dtrain.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "../shared/commit_log.hpp"
#include "train.hpp"

namespace fashion_mnist {

/// The steps that the job has not done yet, with one set of ranks. Collective, blocking.
template <class Job, class Ddp, class Model>
Epochs train_elastic_epochs(Job& job, Ddp& ddp, Model& model, typename Model::Optimizer& sgd,
                            TrainingState<Model>& state, const Dataset& dataset,
                            const dtrain::DistributedSampler& sampler, const Options& options, shared::CommitLog& log,
                            shared::Progress& progress) {
  using Clock = std::chrono::steady_clock;
  const auto& group = ddp.group();
  const std::uint64_t steps = sampler.steps_per_epoch();
  const std::uint64_t last_step = steps * static_cast<std::uint64_t>(options.epochs);
  const std::uint64_t save_after =
      options.checkpoint_steps > 0 ? static_cast<std::uint64_t>(options.checkpoint_steps) : steps;
  Batch<float> batch;
  Epochs total;
  Score seen;
  std::optional<dtrain::SampleShares> shares;
  std::optional<dtrain::SampleSteps> parts;
  const std::uint64_t first = job.step();
  const auto begin = Clock::now();
  while (job.step() < last_step) {
    const std::uint64_t step = job.step();
    if (step != first && step % save_after == 0) state.save(group);  // between two steps, so that a loss repeats it
    const std::uint64_t epoch = step / steps + 1;
    if ((!shares && !parts) || step % steps == 0) {
      options.micro_batches == 0 ? void(shares = sampler.shares(epoch)) : void(parts = sampler.steps(epoch));
      seen = {};
    }
    Score part;
    if (parts) {
      micro_batch_step(ddp, model, (*parts)[step % steps], dataset, batch, part, total.samples);
    } else {
      const dtrain::SampleShare share = (*shares)[step % steps];
      gather(dataset, share.samples, batch);
      part = score(model.forward(batch.inputs), std::span<const std::uint8_t>(batch.labels));
      ddp.backward([&](dtrain::Ready ready) { model.backward(batch, ready, share.weight); });
      total.samples += share.samples.size();
    }
    job.commit([&] {
      sgd.step(model.parameters(), shared::learning_rate(static_cast<std::int64_t>(step),
                                                         static_cast<std::int64_t>(last_step), peak_learning_rate));
      state.advance();
    });
    if (log.is_wanted()) {
      log.add(job.step(), job.attempt(), group.world_size(), group.rank(), part.cross_entropy / part.count,
              dtrain::hex(dtrain::Sha256().update(parameter_bytes(model)).digest()));
    }
    seen.cross_entropy += part.cross_entropy;
    seen.count += part.count;
    total.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    progress.update({.epoch = static_cast<std::int64_t>(epoch),
                     .epochs = options.epochs,
                     .step = static_cast<std::int64_t>(step % steps + 1),
                     .steps = static_cast<std::int64_t>(steps),
                     .loss = seen.cross_entropy / seen.count,
                     .samples_per_second = static_cast<double>(total.samples) * group.world_size() / total.seconds});
  }
  state.save(group);
  return total;
}

/// The body of every worker. @returns the exit code. @throws as train()
template <class Policy, class Model = Mlp>
int train_elastic(dtrain::Elastic<Policy> job, dtrain::Arguments arguments) {
  const Options options = parse_options(arguments);
  check_options<Model>(options);
  if (options.perturb_rank) {
    throw dtrain::Error(dtrain::Errc::usage, "--perturb-rank is for a job without --elastic, whose ranks stay");
  }
  if (options.hook.name == "local") {
    throw dtrain::Error(dtrain::Errc::usage, "--hook=local is for a job without --elastic, which commits each step");
  }
  if (options.help) {
    shared::Progress(job.local_rank() == 0, shared::stdout_is_terminal()).line(std::string(help_text));
    return 0;
  }
  const Dataset training = load_dataset(options.data, "train");
  Dataset test = load_dataset(options.data, "t10k");
  if (options.shuffle_test_labels) shuffle_labels(test, options.seed);
  shared::CommitLog log(options.commit_log);

  // What outlives the loss of a rank, and what a worker that comes later receives.
  Model model(layer_widths, options.seed);
  typename Model::Optimizer sgd = model.optimizer(momentum);
  TrainingState<Model> state(options, model, sgd);
  job.keep(state.tensors());

  return job.train([&](dtrain::ProcessGroup<Policy> group) {
    shared::Progress progress(group.rank() == 0, shared::stdout_is_terminal());
    if (job.step() == 0) {
      state.load(group);
      job.resume_at(static_cast<std::uint64_t>(state.step()));
    }
    shared::ChosenHook hook(options.hook);
    hook.set_steps(state.step());
    auto ddp = wrapped(model, group, options, hook);
    const dtrain::DistributedSampler sampler = training_sampler(group, training, options);
    print_beginning(progress, training, test, group.world_size());
    if (job.step() > 0) progress.line("going on after step " + std::to_string(job.step()));
    const Epochs epochs = train_elastic_epochs(job, ddp, model, sgd, state, training, sampler, options, log, progress);
    report(ddp, model, epochs, training, test, sampler, options, progress);
    return 0;
  });
}

}  // namespace fashion_mnist
