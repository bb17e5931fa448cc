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
#include "model_shape.hpp"

namespace gpt2 {

struct Options {
  std::int64_t steps = 100;
  ModelShape shape;
  std::size_t batch = 16;  ///< sequences of all ranks together in one step
  float rate = 2e-3F;
  float clip = 1;  ///< the most that the norm of the gradients may be; 0: whatever it is
  std::uint64_t seed = 1;
  std::string text;  ///< empty: the licenses
  int zero = 0;      ///< stage of ZeRO; 0: every rank keeps all
  std::optional<std::size_t> bucket_bytes;
  std::string hook = "none";
  bool measures_plan = false;
  std::string summary;  ///< empty: not wanted
  bool help = false;
};

inline constexpr std::string_view help_text =
    R"(Trains a small transformer of GPT-2's shape to predict the next byte of a text, on as many ranks as the launcher
starts.

  --steps=N        steps of the training (default 100)
  --layers=N       blocks of attention and feed-forward network (default 4)
  --width=N        elements of a token's activations (default 128)
  --heads=N        heads of each attention, a divisor of the width (default 4)
  --context=N      bytes of a sequence (default 64)
  --batch=N        sequences of all ranks together in one step, a multiple of the ranks (default 16)
  --rate=X         largest learning rate of AdamW (default 0.002)
  --clip=NORM      scale gradients to this norm where theirs is larger; 0: leave them (default 1)
  --seed=N         of the initial weights and the order of sequences (default 1)
  --text=FILE      the text (default: the licenses in /usr/share/common-licenses, of the package base-files)
  --zero=STAGE     what dtrain::ShardedOptimizer divides among the ranks: 0 nothing (default), 1 the optimizer's state,
                   2 the gradients too
  --bucket-mib=X   largest bucket of gradients in MiB; 0 gives each parameter its own (default: the library's)
  --hook=NAME      how gradients are reduced: none (default), bf16 or f16 (16 bits travel), power-sgd (two thin factors
                   of each gradient travel), or top-k (after 100 steps, the twentieth of its elements that are the
                   largest); not with --zero
  --plan=NAME      sizes of buckets: default, or measured (the first 29 steps choose them); not with --zero
  --summary=FILE   write what was reached as JSON
  --help           this text

The launcher's flags (--nproc-per-node=N and others) are shown by --help-launch.
)";

namespace detail {

using Flag = shared::Flag<Options>;
using shared::number;

inline constexpr auto flags = std::to_array<Flag>({
    {"--steps", true,
     [](Options& o, auto name, auto value) { o.steps = number<std::int64_t>(name, value, 1, 1000000); }},
    {"--layers", true, [](Options& o, auto name, auto value) { o.shape.layers = number<Index>(name, value, 1, 100); }},
    {"--width", true, [](Options& o, auto name, auto value) { o.shape.width = number<Index>(name, value, 1, 8192); }},
    {"--heads", true, [](Options& o, auto name, auto value) { o.shape.heads = number<Index>(name, value, 1, 128); }},
    {"--context", true,
     [](Options& o, auto name, auto value) { o.shape.context = number<Index>(name, value, 1, 4096); }},
    {"--batch", true,
     [](Options& o, auto name, auto value) { o.batch = number<std::size_t>(name, value, 1, 1000000); }},
    {"--rate", true,
     [](Options& o, auto name, auto value) { o.rate = static_cast<float>(number<double>(name, value, 0, 1)); }},
    {"--clip", true,
     [](Options& o, auto name, auto value) { o.clip = static_cast<float>(number<double>(name, value, 0, 1000000)); }},
    {"--seed", true,
     [](Options& o, auto name, auto value) {
       o.seed = number<std::uint64_t>(name, value, 0, std::numeric_limits<std::uint64_t>::max());
     }},
    {"--text", true, [](Options& o, auto, auto value) { o.text = value; }},
    {"--zero", true, [](Options& o, auto name, auto value) { o.zero = number<int>(name, value, 0, 2); }},
    {"--bucket-mib", true,
     [](Options& o, auto name, auto value) {
       o.bucket_bytes = static_cast<std::size_t>(std::llround(number<double>(name, value, 0, 1024) * 1048576));
     }},
    {"--hook", true,
     [](Options& o, auto name, auto value) {
       if (value != "none" && value != "bf16" && value != "f16" && value != "power-sgd" && value != "top-k") {
         shared::refuse(std::string(name) + " is " + shared::quoted(value) +
                        " instead of none, bf16, f16, power-sgd or top-k");
       }
       o.hook = value;
     }},
    {"--plan", true,
     [](Options& o, auto name, auto value) {
       if (value != "default" && value != "measured") {
         shared::refuse(std::string(name) + " is " + shared::quoted(value) + " instead of default or measured");
       }
       o.measures_plan = value == "measured";
     }},
    {"--summary", true, [](Options& o, auto, auto value) { o.summary = value; }},
    {"--help", false, [](Options& o, auto, auto) { o.help = true; }},
});

}  // namespace detail

/// @param arguments [0] is the program's name. A value follows its flag after '=' or as the next argument.
/// @throws dtrain::Error (usage) in one sentence for an unknown flag, a missing value or values that cannot be meant.
inline Options parse_options(std::span<char* const> arguments) {
  const Options options = shared::parse_flags<Options>(detail::flags, arguments);
  if (options.shape.width % options.shape.heads != 0) {
    shared::refuse("--width is " + std::to_string(options.shape.width) + ", which " +
                   std::to_string(options.shape.heads) + " heads do not divide evenly");
  }
  if (options.zero != 0 && options.hook != "none") {
    shared::refuse("--zero reduces gradients in its own way and cannot be used with --hook=" + options.hook);
  }
  if (options.zero != 0 && options.measures_plan) {
    shared::refuse("--zero keeps its buckets from the first step on and cannot be used with --plan=measured");
  }
  return options;
}

}  // namespace gpt2
