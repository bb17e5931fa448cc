#pragma once
/// @file
/// The same training in an elastic job: the others go on when a rank is lost.

#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "../shared/commit_log.hpp"
#include "training.hpp"

namespace gpt2 {

/// What a checkpoint has of the optimizer, for TrainingState.
template <class Group, class Model>
struct WholeState {
  bool load(const std::string& path, const std::vector<dtrain::NamedTensor>& others) {
    const bool found = dtrain::load_checkpoint(group, path, with(others));
    if (found) optimizer.take_saved();
    return found;
  }
  void save(const std::string& path, const std::vector<dtrain::NamedTensor>& others) {
    dtrain::save_checkpoint(group, path, with(others));
  }
  void average_state() {}
  std::vector<dtrain::NamedTensor> with(const std::vector<dtrain::NamedTensor>& others) {
    std::vector<dtrain::NamedTensor> all = optimizer.saved(model);
    all.insert(all.end(), others.begin(), others.end());
    return all;
  }

  const Group& group;
  WholeOptimizer& optimizer;
  Model& model;
};

/// The steps that the job has not done yet, with one set of ranks. Collective, blocking. @returns seconds of each
template <class Job, class Ddp, class Model, class Saved>
std::vector<double> run_elastic_steps(Job& job, Ddp& ddp, Model& model, WholeOptimizer& optimizer,
                                      shared::ChosenHook& hook, TrainingState& state, Saved& saved,
                                      const Sequences& sequences, const Options& options, shared::CommitLog& log,
                                      shared::Progress& progress) {
  using Clock = std::chrono::steady_clock;
  const auto& group = ddp.group();
  const dtrain::DistributedSampler sampler = sampler_of(group, sequences, options);
  const std::uint64_t per_epoch = sampler.steps_per_epoch();
  const std::uint64_t first = job.step();
  std::optional<dtrain::SampleShares> shares;
  std::optional<dtrain::SampleSteps> parts;
  Batch batch;
  std::vector<double> seconds;
  while (!state.is_last()) {
    const auto begin = Clock::now();
    const std::uint64_t step = job.step();
    if (step != first && state.is_saved()) state.save(ddp, saved, hook);  // between two steps: a loss repeats it
    const dtrain::StepOptions reduction{.clip_norm = static_cast<double>(options.clip), .master = optimizer.master()};
    double own_loss = 0;
    double loss = 0;
    if (options.micro_batches > 0) {
      if (!parts || step % per_epoch == 0) parts = sampler.steps(step / per_epoch + 1);
      loss = ddp.backward((*parts)[step % per_epoch], micro_batch_pass(model, sequences, batch), reduction);
      own_loss = loss;
    } else {
      if (!shares || step % per_epoch == 0) shares = sampler.shares(step / per_epoch + 1);
      const dtrain::SampleShare share = (*shares)[step % per_epoch];
      sequences.gather(share.samples, batch);
      own_loss = model.forward(batch);
      loss = group.all_reduce(own_loss * static_cast<double>(share.weight), dtrain::ReduceOp::average);
      ddp.backward([&](dtrain::Ready ready) { model.backward(batch, ready, share.weight); }, reduction);
    }
    job.commit([&] {
      optimizer.rule().adamw.rate = learning_rate(static_cast<std::int64_t>(step), options);
      optimizer.update(model);
      state.advance(loss);
    });
    state.have_averages();
    if (log.is_wanted()) {
      log.add(job.step(), job.attempt(), group.world_size(), group.rank(), own_loss,
              dtrain::hex(digest_of(ddp.parameters())));
    }
    seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
    if (step == 0 || job.step() % 10 == 0 || state.is_last()) {
      progress.line("step " + std::to_string(job.step()) + " of " + std::to_string(options.steps) + "  loss " +
                    shared::fixed(loss, 4) + "  " + shared::fixed(1000 * seconds.back(), 1) + " ms");
    }
  }
  state.save(ddp, saved, hook);
  return seconds;
}

/// A model of type M, which outlives the loss of a rank. @returns the exit code
template <class M, class Policy>
int train_elastic_with(dtrain::Elastic<Policy>& job, const Sequences& sequences, const Options& options) {
  check_memory(options, 1, 1);  // the least: with more ranks or a larger share it is the system that refuses
  shared::CommitLog log(options.commit_log);
  M model(options.shape, 1, options.seed);
  WholeOptimizer optimizer(model);
  TrainingState state(options);
  job.keep(optimizer.saved(model));
  job.keep(state.kept());

  return job.train([&](dtrain::ProcessGroup<Policy> group) {
    using Ddp = dtrain::DistributedDataParallel<M, Policy>;
    shared::Progress progress(group.rank() == 0, shared::stdout_is_terminal());
    print_beginning(progress, options, sequences, group.world_size());
    optimizer.take_saved();  // a bf16 model's values follow from the weights that a worker has received
    dtrain::DdpOptions ddp_options;
    if (options.bucket_bytes) ddp_options.bucket_bytes = *options.bucket_bytes;
    if (options.measures_plan) ddp_options.plan = dtrain::PlanChoice::measured();
    shared::ChosenHook hook(options.hook);
    make_folder(group, options.save);
    if (job.step() == 0 && !options.load.empty()) {
      load_pretrained(group, options.load, options.shape, model);
      optimizer.take_values();
    }
    Ddp ddp = options.hook.is_none() ? Ddp{model, group, ddp_options} : Ddp{model, group, ddp_options, std::ref(hook)};
    WholeState<dtrain::ProcessGroup<Policy>, M> saved{group, optimizer, model};
    if (job.step() == 0) {
      state.load(ddp, saved, hook);
      job.resume_at(static_cast<std::uint64_t>(state.step()));
    }
    state.have_averages();
    if (job.step() > 0) progress.line("going on after step " + std::to_string(job.step()));
    const std::vector<double> seconds =
        run_elastic_steps(job, ddp, model, optimizer, hook, state, saved, sequences, options, log, progress);
    if (!options.save.empty()) save_pretrained(group, options.save, options.shape, model);
    Summary summary = summarize(group, ddp.parameters(), state, seconds,
                                {optimizer.state_bytes(), ddp.plan().arena_bytes + optimizer.gradient_bytes()});
    summary.bytes_sent_per_step =
        bytes_sent_per_step(ddp.statistics(), hook, !options.hook.is_none(), group.world_size());
    report(summary, options, group.rank() == 0, progress);
  });
}

/// The body of every worker. @returns the exit code. @throws as train()
template <class Policy>
int train_elastic(dtrain::Elastic<Policy> job, dtrain::Arguments arguments) {
  const Options options = parse_options(arguments);
  if (options.help) {
    shared::Progress(job.local_rank() == 0, shared::stdout_is_terminal()).line(std::string(help_text));
    return 0;
  }
  const Sequences sequences = sequences_of(options);
  return options.is_bf16 ? train_elastic_with<HalfModel>(job, sequences, options)
                         : train_elastic_with<Model>(job, sequences, options);
}

}  // namespace gpt2
