#pragma once
/// @file
/// The benchmark of overlap on a GPU, in a source of its own: only that is compiled with CUDA.

#include "bench/options.hpp"
#include "bench/result_rows.hpp"

namespace bench {

/// @throws Error (unsupported) where no GPU is visible
void measure_cuda_overlap(const char* bench_name, const Options& options, ResultRows& rows);

/// A rank of it, or the launcher of its ranks: main's exit code. Its arguments are "cuda", the samples and the
/// nanoseconds that a layer computes.
int run_cuda_overlap_rank(int argc, char** argv);

}  // namespace bench
