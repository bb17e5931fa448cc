#pragma once
/// @file
/// The flags of the training programs.

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
#include "dtrain/stream/host/progress.hpp"

namespace fashion_mnist {

struct Options {
  std::int64_t epochs = 3;
  std::size_t global_batch = 256;
  std::uint64_t seed = 1;
  std::size_t micro_batches = 0;  ///< 0: not wanted
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::optional<std::size_t> bucket_bytes;
  dtrain::Progress progress = dtrain::Progress::automatic;
  std::string save_parameters;        ///< empty: not wanted
  std::string summary;                ///< empty: not wanted
  std::string timeline;               ///< empty: not wanted
  std::string checkpoint;             ///< empty: not wanted
  std::int64_t checkpoint_steps = 0;  ///< 0: those of an epoch
  bool shuffle_test_labels = false;
  std::optional<int> perturb_rank;
  std::string precision = "f32";
  shared::HookChoice hook;
  bool is_elastic = false;
  std::string commit_log;  ///< empty: not wanted
  bool help = false;
};

inline constexpr std::string_view help_text =
    R"(Trains a small network on Fashion-MNIST, on as many ranks as the launcher starts.

  --epochs=N               passes over the 60000 training images (default 3)
  --global-batch=N         samples of all ranks together in one step (default 256)
  --seed=N                 of the initial weights and the order of samples (default 1)
  --micro-batches=N        the parts of a step that the ranks share out, such as 16: the parameters then have the same
                           bits on any number of ranks; with --precision=f32, without --hook and --perturb-rank
  --data=DIR               the folder with the four .gz files
                           (default /usr/share/datasets/fashion-mnist, from 'apt install dataset-fashion-mnist')
  --bucket-mib=X           largest bucket of gradients in MiB; 0 gives each parameter its own (default: the library's)
  --progress=WHO           who runs the communication: automatic (default), thread or caller
  --precision=TYPE         of parameters and gradients: f32 (default); bf16 or f16, with f32 master weights, and for f16
                           a scaled loss (program fashion_mnist)
  --hook=NAME              how gradients are reduced: none (default); bf16, f16 or bf16:error-feedback (16 bits travel);
                           powersgd:RANK (two thin factors of each gradient travel); topk:PERCENT (after 100 steps, the
                           part of its elements that are the largest); local:STEPS (after 100 steps, weights are
                           averaged each so many steps); in host memory, with --precision=f32
  --save-parameters=FILE   write the parameters: raw little-endian elements
  --summary=FILE           write what was reached as JSON
  --timeline=FILE          write what the last steps did when, on all ranks, as a trace for Perfetto
  --checkpoint=FILE        save the training there after each epoch, and go on from it where it exists: started again,
                           by --max-restarts or by hand, a killed training on one host ends with the same
                           parameters, but with a hook that keeps something of each rank (bf16:error-feedback,
                           powersgd, topk, local); on several hosts the order of sums, and so their bits, may differ
  --checkpoint-steps=N     save after every N steps and at the end instead
  --elastic                go on when ranks are lost, with the launcher's --min-ranks=N, and with workers that it starts in
                           their places with --max-restarts=N (programs fashion_mnist and fashion_mnist_gloo)
  --commit-log=FILE        with --elastic: each worker appends a line for each step to FILE.PROCESS, as JSON
  --shuffle-test-labels    take all meaning from the test labels: the accuracy is then about 0.1
  --perturb-rank=R         add 1 to one element of rank R's first gradient: every rank's parameters change alike
  --help                   this text

The launcher's flags (--nproc-per-node=N and others) are shown by --help-launch.
)";

namespace detail {

using Flag = shared::Flag<Options>;
using shared::number;
using shared::quoted;
using shared::refuse;

inline constexpr std::array<Flag, 19> flags{{
    {"--epochs", true,
     [](Options& o, auto name, auto value) { o.epochs = number<std::int64_t>(name, value, 1, 10000); }},
    {"--global-batch", true,
     [](Options& o, auto name, auto value) { o.global_batch = number<std::size_t>(name, value, 1, 1000000); }},
    {"--seed", true,
     [](Options& o, auto name, auto value) {
       o.seed = number<std::uint64_t>(name, value, 0, std::numeric_limits<std::uint64_t>::max());
     }},
    {"--micro-batches", true,
     [](Options& o, auto name, auto value) { o.micro_batches = number<std::size_t>(name, value, 1, 4096); }},
    {"--data", true, [](Options& o, auto, auto value) { o.data = value; }},
    {"--bucket-mib", true,
     [](Options& o, auto name, auto value) {
       o.bucket_bytes = static_cast<std::size_t>(std::llround(number<double>(name, value, 0, 1024) * 1048576));
     }},
    {"--progress", true, [](Options& o, auto, auto value) { o.progress = dtrain::stream::host::progress_from(value); }},
    {"--precision", true,
     [](Options& o, auto name, auto value) {
       if (value != "f32" && value != "bf16" && value != "f16") {
         refuse(std::string(name) + " is " + quoted(value) + " instead of f32, bf16 or f16");
       }
       o.precision = value;
     }},
    {"--hook", true, [](Options& o, auto name, auto value) { o.hook = shared::hook_choice(name, value); }},
    {"--save-parameters", true, [](Options& o, auto, auto value) { o.save_parameters = value; }},
    {"--summary", true, [](Options& o, auto, auto value) { o.summary = value; }},
    {"--timeline", true, [](Options& o, auto, auto value) { o.timeline = value; }},
    {"--checkpoint", true, [](Options& o, auto, auto value) { o.checkpoint = value; }},
    {"--checkpoint-steps", true,
     [](Options& o, auto name, auto value) { o.checkpoint_steps = number<std::int64_t>(name, value, 1, 1000000000); }},
    {"--elastic", false, [](Options& o, auto, auto) { o.is_elastic = true; }},
    {"--commit-log", true, [](Options& o, auto, auto value) { o.commit_log = value; }},
    {"--shuffle-test-labels", false, [](Options& o, auto, auto) { o.shuffle_test_labels = true; }},
    {"--perturb-rank", true,
     [](Options& o, auto name, auto value) { o.perturb_rank = number<int>(name, value, 0, 9999); }},
    {"--help", false, [](Options& o, auto, auto) { o.help = true; }},
}};

}  // namespace detail

/// @param arguments [0] is the program's name. A value follows its flag after '=' or as the next argument.
/// @throws dtrain::Error (usage) in one sentence for an unknown flag, a missing value or one that cannot be meant.
inline Options parse_options(std::span<char* const> arguments) {
  return shared::parse_flags<Options>(detail::flags, arguments);
}

}  // namespace fashion_mnist
