#pragma once
/// @file
/// One rank of libtorch_bench: steps of a network that exchanges gradients in turns with steps of one that does not.

#include <time.h>

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "bench/intervals.hpp"
#include "bench/libtorch/models.hpp"

namespace bench {

/// Of this process. [s]
inline double processor_seconds() {
  timespec time{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) != 0) {
    throw std::runtime_error("clock_gettime(CLOCK_PROCESS_CPUTIME_ID) failed");
  }
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/// Tells the interval of every step, and the processor time of all steps of each kind. The kinds are "plain" and
/// "step", with ".none" where zero_grad sets the gradients to none before the step and ".kept" where it fills them.
/// @param step one forward and backward pass of `net` with an exchange of gradients: `step(inputs)`
template <class Barrier, class Step>
void measure_steps(const std::string& model, torch::nn::Sequential& net, int samples, Barrier barrier, Step step) {
  torch::nn::Sequential plain = make_network(model);
  const torch::Tensor inputs = make_inputs(model);
  torch::optim::SGD plain_optimizer(plain->parameters(), 0.001);
  torch::optim::SGD optimizer(net->parameters(), 0.001);
  std::map<std::string, double> processor;
  constexpr int warm_ups = 2;  // c10d::Reducer makes its buckets anew after the first
  for (int sample = 1 - warm_ups; sample <= samples; ++sample) {
    for (const bool is_none : {true, false}) {
      for (int turn = 0; turn < 2; ++turn) {
        const bool is_plain = (sample + turn) % 2 == 0;
        barrier();
        const double processor_begin = processor_seconds();
        const std::int64_t begin = now_nanoseconds();
        if (is_plain) {
          plain->zero_grad(is_none);
          plain->forward(inputs).square().mean().backward();
          plain_optimizer.step();
        } else {
          net->zero_grad(is_none);
          step(inputs);
          optimizer.step();
        }
        const std::int64_t end = now_nanoseconds();
        const double processor_end = processor_seconds();
        if (sample > 0) {
          const std::string kind = std::string(is_plain ? "plain" : "step") + (is_none ? ".none" : ".kept");
          tell_interval(kind.c_str(), sample, {begin, end});
          processor[kind] += processor_end - processor_begin;
        }
      }
    }
  }
  for (const auto& [kind, seconds] : processor) {
    tell_fact(("processor." + kind).c_str(), seconds / samples);
  }
}

}  // namespace bench
