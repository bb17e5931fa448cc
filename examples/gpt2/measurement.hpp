#pragma once
/// @file
/// What a training has reached and cost.

#include <dtrain/dtrain.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "../shared/chosen_hook.hpp"
#include "../shared/collectives.hpp"
#include "../shared/step_times.hpp"
#include "optimizer.hpp"
#include "sequences.hpp"
#include "summary.hpp"
#include "training_state.hpp"

namespace gpt2 {

/// The median milliseconds that a step takes on this rank beyond the same step without communication, both without the
/// update of the weights, which stay as they are. @param batch_size sequences of a rank in a step. Collective,
/// blocking: some seconds.
template <class Ddp, class Model>
double exposed_ms(Ddp& ddp, Model& model, Optimizer<Ddp, Model>& optimizer, const Sequences& sequences,
                  std::size_t batch_size) {
  const auto& group = ddp.group();
  if (group.world_size() == 1) return 0;
  Batch batch;
  const auto compute = [&](dtrain::Ready ready) {
    model.forward(batch);
    model.backward(batch, ready);
  };
  std::vector<std::size_t> samples(batch_size);
  std::iota(samples.begin(), samples.end(), static_cast<std::size_t>(group.rank()) * samples.size());
  sequences.gather(samples, batch);
  const auto [step, alone] = shared::median_seconds(
      group, [](std::size_t) {}, [&] { optimizer.step_without_update(compute); },
      [&] { optimizer.step_without_communication(compute); });
  return 1e3 * std::max(step - alone, 0.0);
}

/// What this rank has sent in a step, in one direction, by the library's counts: those of the hook, or the gradients'
/// bytes. They are of all-reduces, in which a rank sends 2 (ranks - 1) / ranks of them (dtrain::CompressedTraffic).
inline std::uint64_t bytes_sent_per_step(const dtrain::ReducerStatistics& statistics, const shared::ChosenHook& hook,
                                         bool has_hook, int ranks) {
  const std::uint64_t reduced =
      has_hook ? statistics.hook.bytes_sent + hook.averaged_bytes() : statistics.bytes_reduced;
  const auto others = static_cast<std::uint64_t>(ranks - 1);
  return 2 * others * reduced / static_cast<std::uint64_t>(ranks) / std::max<std::uint64_t>(statistics.steps, 1);
}

inline dtrain::Sha256Digest digest_of(std::span<const dtrain::Parameter> parameters) {
  dtrain::Sha256 digest;
  for (const dtrain::Parameter& parameter : parameters) {
    digest.update(std::span<const std::byte>(parameter.value.data, parameter.value.bytes()));
  }
  return digest.digest();
}

/// What the training reached, but for the communication. Collective, blocking.
/// @throws dtrain::Error (disagreement) if the ranks' parameters differ.
template <class Group>
Summary summarize(const Group& group, std::span<const dtrain::Parameter> parameters, TrainingState& state,
                  const std::vector<double>& seconds, const StateBytes& bytes) {
  Summary summary;
  summary.world_size = group.world_size();
  summary.steps = state.step();
  for (const dtrain::Parameter& parameter : parameters) {
    summary.parameters += static_cast<std::uint64_t>(parameter.value.shape.element_count());
  }
  summary.losses = state.losses(group);
  const auto last = std::min<std::ptrdiff_t>(10, std::ssize(summary.losses));
  summary.final_loss =
      std::accumulate(summary.losses.end() - last, summary.losses.end(), 0.0) / static_cast<double>(last);
  // None where all steps were in the checkpoint already.
  summary.step_ms = shared::largest(group, seconds.empty() ? 0 : 1e3 * shared::median(seconds));
  const auto most = [&](std::size_t own) {
    return static_cast<std::uint64_t>(shared::largest(group, static_cast<double>(own)));
  };
  summary.optimizer_bytes = most(bytes.optimizer);
  summary.gradient_bytes = most(bytes.gradients);
  summary.state_bytes_per_rank = most(bytes.optimizer + bytes.gradients);
  const dtrain::Sha256Digest digest = digest_of(parameters);
  shared::require_same_everywhere(group, digest);
  summary.parameters_digest = dtrain::hex(digest);
  return summary;
}

}  // namespace gpt2
