#pragma once
/// @file
/// The benchmark of steps on GPUs, in a source of its own: only that is compiled with CUDA and NCCL.

#include "bench/options.hpp"
#include "bench/result_rows.hpp"

namespace bench {

/// @throws Error (unsupported) where no GPU is visible
void measure_cuda_steps(const char* bench_name, const Options& options, ResultRows& rows);

/// A rank of it, or the launcher of its ranks: main's exit code. Its arguments are "cuda", the model and the samples.
int run_cuda_step_rank(int argc, char** argv);

}  // namespace bench
