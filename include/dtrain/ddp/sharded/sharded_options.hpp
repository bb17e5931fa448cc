#pragma once
/// @file
/// ShardedOptions of a ShardedOptimizer: the stage of ZeRO (Rajbhandari et al. 2020), and when a step stores new
/// weights.

#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Data that a ShardedOptimizer divides among the ranks. The same on every rank.
/// @ingroup sharding
struct ShardedOptions {
  /// 1: the optimizer's state. 2: also the reduced gradients, of which each rank keeps 1 / ranks. In stage 2:
  /// - The arena holds two buckets at a time. ready() waits until bucket k-2 is reduced and copies a gradient of bucket
  /// k to the arena; after the call the model may use the gradient's memory again. New weights are gathered after the
  /// backward pass, or with early_update during it: then ready() waits until the weights of bucket k-2 are stored.
  /// - A model whose bind_gradient puts gradients into the arena is rejected. Gradients need no memory (see Parameter).
  /// - The wrapper rejects steps without such an optimizer. Steps under no_sync() accumulate in the model's memory.
  /// - A gradient of bucket k that is ready before bucket k-2 is launched is copied to a side buffer.
  int stage = 1;

  /// Whether ready(i) also says that the backward pass no longer uses the value of parameter i. A layer no longer uses
  /// its values once it has computed the gradient of its input. New weights are gathered, and stored in the model,
  /// during the backward pass. Steps whose function inspects all gradients, or whose rule measures norms, gather after
  /// the pass. Values do not move during the pass. A job that fails in such a step may leave some weights new and
  /// others old.
  bool early_update = false;

  bool divides_gradients() const noexcept { return stage == 2; }
};

/// @throws Error (invalid_argument) for another stage than 1 and 2
void require_valid(const ShardedOptions& options);

}  // namespace DTRAIN_NAMESPACE::ddp

namespace DTRAIN_NAMESPACE {
using ddp::ShardedOptions;
}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::ddp {

DTRAIN_DEFINED void require_valid(const ShardedOptions& options) {
  if (options.stage == 1 || options.stage == 2) return;
  throw_error(Errc::invalid_argument,
              "ShardedOptions::stage is {}; give 1, which divides the optimizer's state, or 2, which also divides the "
              "gradients{}",
              {options.stage, options.stage == 3 ? "; dtrain does not divide the weights themselves" : ""});
}

}  // namespace DTRAIN_NAMESPACE::ddp

#endif  // DTRAIN_DEFINITIONS
