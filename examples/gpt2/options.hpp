#pragma once
/// @file
/// The flags of the program gpt2.

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "../shared/flags.hpp"
#include "../shared/hook_choice.hpp"
#include "model_shape.hpp"

namespace gpt2 {

struct Options {
  std::int64_t steps = 200;
  std::size_t global_batch = 16;  ///< sequences of all ranks together in one step
  ModelShape shape;
  float rate = 2e-3F;  ///< after the warm-up
  float clip = 1;      ///< the most that the norm of the gradients may be; 0: whatever it is
  std::uint64_t seed = 1;
  std::string data;  ///< empty: the licenses
  bool is_bf16 = false;
  int zero = 0;  ///< stage of ZeRO; 0: every rank keeps all
  std::optional<std::size_t> bucket_bytes;
  shared::HookChoice hook;
  bool measures_plan = false;
  std::size_t micro_batches = 0;  ///< 0: not wanted
  std::string load;               ///< empty: random weights
  std::string save;               ///< empty: not wanted
  std::string checkpoint;         ///< empty: not wanted
  std::int64_t checkpoint_steps = 50;
  bool is_elastic = false;
  std::string commit_log;  ///< empty: not wanted
  std::string summary;     ///< empty: not wanted
  bool help = false;
};

inline constexpr std::string_view help_text =
    R"(Trains a small transformer of GPT-2's shape to predict the next byte of a text, on as many ranks as the launcher
starts.

  --steps=N             steps of the training (default 200)
  --global-batch=N      sequences of all ranks together in one step, a multiple of the ranks (default 16)
  --layers=N            blocks of attention and feed-forward network (default 4)
  --channels=N          elements of a token's activations (default 128)
  --heads=N             heads of each attention, a divisor of the channels (default 4)
  --context=N           bytes of a sequence (default 128)
  --rate=X              largest learning rate of AdamW, after a warm-up of 50 steps (default 0.002)
  --clip=NORM           scale gradients to this norm where theirs is larger; 0: leave them (default 1)
  --seed=N              of the initial weights and the order of sequences (default 1)
  --data=FILE           the text (default: the licenses in /usr/share/common-licenses, of the package base-files)
  --dtype=TYPE          of parameters and gradients: f32 (default), or bf16 with f32 master weights
  --zero=STAGE          what dtrain::ShardedOptimizer divides among the ranks: 0 nothing (default), 1 the optimizer's
                        state, 2 the gradients too
  --bucket-mib=X        largest bucket of gradients in MiB; 0 gives each parameter its own (default: the library's)
  --hook=NAME           how gradients are reduced: none (default); bf16, f16 or bf16:error-feedback (16 bits travel);
                        powersgd:RANK (two thin factors of each gradient travel); topk:PERCENT (after 100 steps, the
                        part of its elements that are the largest); local:STEPS (after 100 steps, weights are averaged
                        each so many steps); not with --zero or --dtype=bf16
  --plan=NAME           sizes of buckets: default, or measured (the first 29 steps choose them); not with --zero
  --micro-batches=N     the parts of a step that the ranks share out, such as 16: the weights then have the same bits on
                        any number of ranks; not with --dtype=bf16, --zero or --hook
  --load=FOLDER         begin with the weights in FOLDER/model.safetensors, which --save or the Python package
                        transformers has written for a model of these sizes
  --save=FOLDER         at the end, write the weights to FOLDER/model.safetensors, and a config.json for transformers
  --checkpoint=FILE     save the training there, and go on from it where it exists, on any number of ranks
  --checkpoint-steps=N  save after every N steps and at the end (default 50)
  --elastic             go on when ranks are lost, with the launcher's --min-ranks=N, and with workers that it starts
                        in their place; not with --zero or --hook=local
  --commit-log=FILE     with --elastic: each worker appends a line for each step to FILE.PROCESS, as JSON
  --summary=FILE        write what was reached as JSON; with --elastic without the milliseconds that are exposed
  --help                this text

The launcher's flags (--nproc-per-node=N and others) are shown by --help-launch.
)";

namespace detail {

using Flag = shared::Flag<Options>;
using shared::number;

/// @returns whether `value` is `second` @throws dtrain::Error (usage) if it is neither
inline bool one_of(std::string_view name, std::string_view value, std::string_view first, std::string_view second) {
  if (value != first && value != second) {
    shared::refuse(std::string(name) + " is " + shared::quoted(value) + " instead of " + std::string(first) + " or " +
                   std::string(second));
  }
  return value == second;
}

inline constexpr auto flags = std::to_array<Flag>({
    {"--steps", true,
     [](Options& o, auto name, auto value) { o.steps = number<std::int64_t>(name, value, 1, 1000000); }},
    {"--layers", true, [](Options& o, auto name, auto value) { o.shape.layers = number<Index>(name, value, 1, 100); }},
    {"--channels", true,
     [](Options& o, auto name, auto value) { o.shape.channels = number<Index>(name, value, 1, 8192); }},
    {"--heads", true, [](Options& o, auto name, auto value) { o.shape.heads = number<Index>(name, value, 1, 128); }},
    {"--context", true,
     [](Options& o, auto name, auto value) { o.shape.context = number<Index>(name, value, 1, 4096); }},
    {"--global-batch", true,
     [](Options& o, auto name, auto value) { o.global_batch = number<std::size_t>(name, value, 1, 1000000); }},
    {"--rate", true,
     [](Options& o, auto name, auto value) { o.rate = static_cast<float>(number<double>(name, value, 0, 1)); }},
    {"--clip", true,
     [](Options& o, auto name, auto value) { o.clip = static_cast<float>(number<double>(name, value, 0, 1000000)); }},
    {"--seed", true,
     [](Options& o, auto name, auto value) {
       o.seed = number<std::uint64_t>(name, value, 0, std::numeric_limits<std::uint64_t>::max());
     }},
    {"--data", true, [](Options& o, auto, auto value) { o.data = value; }},
    {"--dtype", true, [](Options& o, auto name, auto value) { o.is_bf16 = one_of(name, value, "f32", "bf16"); }},
    {"--zero", true, [](Options& o, auto name, auto value) { o.zero = number<int>(name, value, 0, 2); }},
    {"--bucket-mib", true,
     [](Options& o, auto name, auto value) {
       o.bucket_bytes = static_cast<std::size_t>(std::llround(number<double>(name, value, 0, 1024) * 1048576));
     }},
    {"--hook", true, [](Options& o, auto name, auto value) { o.hook = shared::hook_choice(name, value); }},
    {"--plan", true,
     [](Options& o, auto name, auto value) { o.measures_plan = one_of(name, value, "default", "measured"); }},
    {"--micro-batches", true,
     [](Options& o, auto name, auto value) { o.micro_batches = number<std::size_t>(name, value, 1, 4096); }},
    {"--load", true, [](Options& o, auto, auto value) { o.load = value; }},
    {"--save", true, [](Options& o, auto, auto value) { o.save = value; }},
    {"--checkpoint", true, [](Options& o, auto, auto value) { o.checkpoint = value; }},
    {"--checkpoint-steps", true,
     [](Options& o, auto name, auto value) { o.checkpoint_steps = number<std::int64_t>(name, value, 1, 1000000); }},
    {"--elastic", false, [](Options& o, auto, auto) { o.is_elastic = true; }},
    {"--commit-log", true, [](Options& o, auto, auto value) { o.commit_log = value; }},
    {"--summary", true, [](Options& o, auto, auto value) { o.summary = value; }},
    {"--help", false, [](Options& o, auto, auto) { o.help = true; }},
});

}  // namespace detail

/// @param arguments [0] is the program's name. A value follows its flag after '=' or as the next argument.
/// @throws dtrain::Error (usage) in one sentence for an unknown flag, a missing value or values that cannot be meant.
inline Options parse_options(std::span<char* const> arguments) {
  const Options options = shared::parse_flags<Options>(detail::flags, arguments);
  if (options.shape.channels % options.shape.heads != 0) {
    shared::refuse("--channels is " + std::to_string(options.shape.channels) + ", which " +
                   std::to_string(options.shape.heads) + " heads do not divide evenly");
  }
  if (!options.hook.is_none() && (options.zero != 0 || options.is_bf16)) {
    shared::refuse("--hook=" + options.hook.text + " is for whole f32 gradients and cannot be used with " +
                   (options.zero != 0 ? "--zero" : "--dtype=bf16"));
  }
  if (options.zero != 0 && options.measures_plan) {
    shared::refuse("--zero keeps its buckets from the first step on and cannot be used with --plan=measured");
  }
  if (options.micro_batches > 0 && (options.zero != 0 || options.is_bf16 || !options.hook.is_none())) {
    shared::refuse("--micro-batches is for whole f32 gradients and cannot be used with --dtype=bf16, --zero or --hook");
  }
  if (options.is_elastic && (options.zero != 0 || options.hook.name == "local")) {
    shared::refuse("--elastic is for ranks of equal weights with a whole state and cannot be used with " +
                   std::string(options.zero != 0 ? "--zero" : "--hook=local"));
  }
  if (!options.is_elastic && !options.commit_log.empty()) shared::refuse("--commit-log is for a job with --elastic");
  return options;
}

}  // namespace gpt2
