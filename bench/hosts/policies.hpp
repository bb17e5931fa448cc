#pragma once
/// @file
/// The policies that benchmarks run between hosts, each where its library was found.

#include <cstdio>

#include "bench/launched.hpp"
#include "dtrain/dtrain.hpp"

namespace bench {

#if DTRAIN_WITH_MPI
using MpiPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Mpi>;
#endif
#if DTRAIN_WITH_GLOO
using GlooPolicy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::Gloo>;
#endif

/// A rank, or its launcher, on the backend that the word behind launched_word names. @returns 2 without that backend
/// @param run_rank with the arguments and a policy as its template argument: its exit code
template <class Run>
int run_on_named_backend(const char* bench_name, [[maybe_unused]] int argc, [[maybe_unused]] char** argv,
                         [[maybe_unused]] Run run_rank) {
#if DTRAIN_WITH_MPI
  if (is_launched_with("mpi", argc, argv)) {
    return run_rank.template operator()<MpiPolicy>(argc, argv);
  }
#endif
#if DTRAIN_WITH_GLOO
  if (is_launched_with("gloo", argc, argv)) {
    return run_rank.template operator()<GlooPolicy>(argc, argv);
  }
#endif
  std::fprintf(stderr, "%s: this program was built without the backend that it was started with\n", bench_name);
  return 2;
}

}  // namespace bench
