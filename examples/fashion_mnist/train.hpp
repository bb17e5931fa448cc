#pragma once
/// @file
/// The training: the same for every policy, since only the types of group and DDP depend on it.

#include <dtrain/dtrain.hpp>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../shared/atomic_file.hpp"
#include "../shared/chosen_hook.hpp"
#include "../shared/collectives.hpp"
#include "../shared/learning_rate.hpp"
#include "../shared/progress.hpp"
#include "dataset.hpp"
#include "evaluation.hpp"
#include "loss.hpp"
#include "micro_batches.hpp"
#include "mlp.hpp"
#include "options.hpp"
#include "overlap_probe.hpp"
#include "perturbation.hpp"
#include "sgd.hpp"
#include "summary.hpp"
#include "training_state.hpp"

namespace fashion_mnist {

inline constexpr std::array<Eigen::Index, 4> layer_widths{image_pixels, 256, 128, class_count};
inline constexpr float peak_learning_rate = 0.06F;
inline constexpr float momentum = 0.9F;

/// What the epochs took on this rank.
struct Epochs {
  double seconds = 0;
  std::uint64_t samples = 0;
};

/// The optimizer's step. A model whose optimizer works on other memory than its parameters has `update`.
template <class Model>
void update(Model& model, typename Model::Optimizer& sgd, float rate) {
  if constexpr (requires { model.update(sgd, rate); }) {
    model.update(sgd, rate);
  } else {
    sgd.step(model.parameters(), rate);
  }
}

/// What a step does with the reduced gradients, as the model says.
template <class Model>
dtrain::StepOptions step_options(Model& model) {
  if constexpr (requires { model.step_options(); }) return model.step_options();
  return {};
}

/// The --precision that trains such a model.
template <class Model>
constexpr const char* precision() {
  if constexpr (requires { Model::precision; }) return Model::precision;
  return "f32";
}

/// Trains `model` for the steps that `state` has not done yet. Collective, blocking.
template <class Ddp, class Model>
Epochs train_epochs(Ddp& ddp, Model& model, typename Model::Optimizer& sgd, TrainingState<Model>& state,
                    shared::ChosenHook& hook, const Dataset& dataset, const dtrain::DistributedSampler& sampler,
                    const Options& options, shared::Progress& progress) {
  using Clock = std::chrono::steady_clock;
  const auto& group = ddp.group();
  const auto steps = static_cast<std::int64_t>(sampler.steps_per_epoch());
  const std::int64_t last_step = steps * options.epochs;
  const std::int64_t save_after = options.checkpoint_steps > 0 ? options.checkpoint_steps : steps;
  Batch<float> batch;
  Epochs total;
  bool perturb = options.perturb_rank == group.rank();
  group.barrier();
  const auto begin = Clock::now();
  while (state.step() < last_step) {
    const std::int64_t epoch = state.step() / steps + 1;
    std::optional<dtrain::SampleBatches> batches;
    std::optional<dtrain::SampleSteps> parts;
    options.micro_batches == 0 ? void(batches = sampler.batches(static_cast<std::uint64_t>(epoch)))
                               : void(parts = sampler.steps(static_cast<std::uint64_t>(epoch)));
    Score seen;
    for (std::int64_t done = state.step() % steps; done < steps; ++done) {
      const auto place = static_cast<std::size_t>(done);
      const auto backward = [&](dtrain::Ready ready) {
        if (!perturb) return model.backward(batch, ready);
        perturb = false;
        Perturbation perturbation(model, ready);
        model.backward(batch, dtrain::Ready(perturbation));
      };
      bool updates = true;
      if (parts) {
        updates = micro_batch_step(ddp, model, (*parts)[place], dataset, batch, seen, total.samples);
      } else {
        gather(dataset, (*batches)[place], batch);
        const Score part = score(model.forward(batch.inputs), std::span<const std::uint8_t>(batch.labels));
        updates = ddp.backward(backward, step_options(model));
        seen.cross_entropy += part.cross_entropy;
        seen.count += part.count;
        total.samples += (*batches)[place].size();
      }
      if (updates) update(model, sgd, shared::learning_rate(state.step(), last_step, peak_learning_rate));
      state.advance();
      const bool is_saved = state.step() % save_after == 0 || state.step() == last_step;
      hook.after_update(group, is_saved);
      if (is_saved) state.save(group);

      total.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      progress.update({.epoch = epoch,
                       .epochs = options.epochs,
                       .step = done + 1,
                       .steps = steps,
                       .loss = seen.cross_entropy / seen.count,
                       .samples_per_second = static_cast<double>(total.samples) * group.world_size() / total.seconds});
    }
  }
  return total;
}

/// All parameters, one after the other: raw little-endian elements in the order of parameters().
template <class Model>
std::vector<std::byte> parameter_bytes(Model& model) {
  static_assert(std::endian::native == std::endian::little);
  std::vector<std::byte> bytes;
  for (const dtrain::Parameter& parameter : model.parameters()) {
    const std::size_t before = bytes.size();
    bytes.resize(before + parameter.value.bytes());
    model.read(parameter.value, std::span(bytes).subspan(before));
  }
  return bytes;
}

/// The last steps: more than a screen shows. Collective, blocking.
template <class Ddp, class Model>
void write_timeline(const Ddp& ddp, Model& model, const std::string& path) {
  constexpr std::uint64_t shown = 50;
  std::vector<std::string> names;
  for (const dtrain::Parameter& parameter : model.parameters()) {
    names.push_back(parameter.name);
  }
  const std::uint64_t steps = ddp.statistics().steps;
  dtrain::write_timeline(ddp.group(), path, ddp.records(steps > shown ? steps - shown + 1 : 1), names);
}

inline void print_result(shared::Progress& progress, const Summary& summary, const Score& test) {
  progress.line("");
  progress.line("test accuracy      " + shared::fixed(summary.test_accuracy, 4) + "  (" +
                shared::grouped(test.correct) + " of " + shared::grouped(test.count) + " images)");
  progress.line("training loss      " + shared::fixed(summary.final_loss, 4));
  progress.line("samples a second   " + shared::grouped(summary.samples_per_second) + "  (" +
                shared::fixed(summary.seconds, 1) + " s on " + std::to_string(summary.world_size) +
                (summary.world_size == 1 ? " rank)" : " ranks)"));
}

/// What the training reached: on stdout, and in the files that the options name. Collective, blocking.
template <class Ddp, class Model>
void report(Ddp& ddp, Model& model, const Epochs& epochs, const Dataset& training, const Dataset& test,
            const dtrain::DistributedSampler& sampler, const Options& options, shared::Progress& progress) {
  const auto& group = ddp.group();
  if (!options.timeline.empty()) write_timeline(ddp, model, options.timeline);
  Summary summary;
  summary.world_size = group.world_size();
  summary.epochs = options.epochs;
  summary.bytes_reduced = ddp.statistics().bytes_reduced;
  const std::vector<std::byte> bytes = parameter_bytes(model);
  const dtrain::Sha256Digest digest = dtrain::Sha256().update(bytes).digest();
  shared::require_same_everywhere(group, digest);
  summary.parameters_digest = dtrain::hex(digest);

  const Score test_score = evaluate(group, model, test);
  const Score training_score = evaluate(group, model, training);
  summary.test_accuracy = test_score.correct / test_score.count;
  summary.final_loss = training_score.cross_entropy / training_score.count;
  summary.seconds = shared::largest(group, epochs.seconds);
  for (const double samples : shared::gather(group, std::array{static_cast<double>(epochs.samples)})) {
    summary.samples_per_rank.push_back(static_cast<std::uint64_t>(samples));
  }
  const auto all_samples =
      std::accumulate(summary.samples_per_rank.begin(), summary.samples_per_rank.end(), std::uint64_t{0});
  // None where all steps were in the checkpoint already.
  if (all_samples > 0) summary.samples_per_second = static_cast<double>(all_samples) / summary.seconds;
  const std::uint64_t epoch = options.is_elastic || options.micro_batches > 0
                                  ? 1
                                  : 0;  // that of 0 warns of padding, which elastic steps have not
  const CommunicationCost cost = probe_overlap(ddp, model, training, sampler.batches(epoch));
  summary.exposed_ms_per_step = cost.exposed_ms;
  summary.hidden_ms_per_step = cost.hidden_ms;

  if (group.rank() == 0) {
    if (!options.save_parameters.empty()) shared::write_file_atomically(options.save_parameters, bytes);
    if (!options.summary.empty()) {
      const std::string json = to_json(summary);
      shared::write_file_atomically(options.summary, std::as_bytes(std::span(json)));
    }
  }
  print_result(progress, summary, test_score);
}

/// @throws dtrain::Error (usage) for options that this program or model does not take
template <class Model>
void check_options(const Options& options) {
  if (options.precision != precision<Model>()) {
    throw dtrain::Error(dtrain::Errc::usage, "--precision is " + options.precision + ", but this program trains in " +
                                                 precision<Model>() + "; the program fashion_mnist trains in each");
  }
  if (!options.hook.is_none() &&
      (options.precision != "f32" || dtrain::ddp::device_kind_of<Model> != dtrain::DeviceKind::host)) {
    throw dtrain::Error(dtrain::Errc::usage, "--hook=" + options.hook.text + " is for f32 gradients in host memory");
  }
  if (options.micro_batches > 0 && (options.precision != "f32" || !options.hook.is_none() || options.perturb_rank)) {
    throw dtrain::Error(dtrain::Errc::usage,
                        "--micro-batches is for --precision=f32, without --hook and --perturb-rank");
  }
}

template <class Group>
dtrain::DistributedSampler training_sampler(const Group& group, const Dataset& training, const Options& options) {
  return {group,
          {.dataset_size = training.size(),
           .global_batch = options.global_batch,
           .seed = options.seed,
           .micro_batches = options.micro_batches}};
}

inline dtrain::DdpOptions ddp_options(const Options& options) {
  dtrain::DdpOptions chosen{.progress = options.progress};
  chosen.timeline = !options.timeline.empty();
  if (options.bucket_bytes) chosen.bucket_bytes = *options.bucket_bytes;
  return chosen;
}

/// The model's wrapper, with a hook where one is chosen. Collective, blocking.
template <class Policy, class Model>
dtrain::DistributedDataParallel<Model, Policy> wrapped(Model& model, const dtrain::ProcessGroup<Policy>& group,
                                                       const Options& options, shared::ChosenHook& hook) {
  if (options.hook.is_none()) return {model, group, ddp_options(options)};
  return {model, group, ddp_options(options), std::ref(hook)};
}

inline void print_beginning(shared::Progress& progress, const Dataset& training, const Dataset& test, int ranks) {
  progress.line("Fashion-MNIST: " + shared::grouped(static_cast<double>(training.size())) + " training and " +
                shared::grouped(static_cast<double>(test.size())) + " test images, ranks: " + std::to_string(ranks));
}

/// The body of every rank. @returns the exit code. @throws dtrain::Error in one sentence for bad flags and bad data.
template <class Policy, class Model = Mlp>
int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments arguments) {
  const Options options = parse_options(arguments);
  if (options.perturb_rank && *options.perturb_rank >= group.world_size()) {
    throw dtrain::Error(dtrain::Errc::usage, "--perturb-rank names rank " + std::to_string(*options.perturb_rank) +
                                                 ", but the last one is " + std::to_string(group.world_size() - 1));
  }
  if (options.is_elastic || !options.commit_log.empty()) {
    throw dtrain::Error(dtrain::Errc::usage,
                        options.is_elastic
                            ? "--elastic is not for this program, whose ranks are those of its start; the programs "
                              "fashion_mnist and fashion_mnist_gloo take it"
                            : "--commit-log is for a job with --elastic");
  }
  check_options<Model>(options);
  shared::Progress progress(group.rank() == 0, shared::stdout_is_terminal());
  if (options.help) {
    progress.line(std::string(help_text));
    return 0;
  }
  const Dataset training = load_dataset(options.data, "train");
  Dataset test = load_dataset(options.data, "t10k");
  if (options.shuffle_test_labels) shuffle_labels(test, options.seed);

  Model model(layer_widths, options.seed);
  typename Model::Optimizer sgd = model.optimizer(momentum);
  TrainingState<Model> state(options, model, sgd);
  state.load(group);
  shared::ChosenHook hook(options.hook);
  hook.set_steps(state.step());
  auto ddp = wrapped(model, group, options, hook);
  const dtrain::DistributedSampler sampler = training_sampler(group, training, options);
  print_beginning(progress, training, test, group.world_size());
  if (state.step() > 0)
    progress.line("going on from " + options.checkpoint + ", after step " + std::to_string(state.step()));
  const Epochs epochs = train_epochs(ddp, model, sgd, state, hook, training, sampler, options, progress);
  report(ddp, model, epochs, training, test, sampler, options, progress);
  return 0;
}

}  // namespace fashion_mnist
