// A library that is no C++20 (network.cpp), trained on several ranks: only this file includes dtrain.
//   older_standard --nproc-per-node=2

#include <cstddef>
#include <cstdio>
#include <dtrain/dtrain.hpp>
#include <exception>
#include <memory>
#include <span>
#include <vector>

#include "network.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory>;

/// What the library's function pointer gets. C code lets no exception through: it is kept until the library returns.
struct Pass {
  dtrain::Step step;
  std::exception_ptr error{};

  static void ready(void* pass, std::size_t i) noexcept {
    auto& [step, error] = *static_cast<Pass*>(pass);
    try {
      if (!error) step.ready(i);
    } catch (...) {
      error = std::current_exception();
    }
  }
};

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, [](dtrain::ProcessGroup<Policy> group) {
    const std::unique_ptr<library::Network, void (*)(library::Network*)> network(library::make_network(),
                                                                                 library::destroy);
    dtrain::ParameterList list;
    for (const library::Tensor& each : library::tensors(*network)) {
      list.push_back(
          {each.name, dtrain::tensor_view(each.value, {each.size}), dtrain::tensor_view(each.gradient, {each.size})});
    }
    dtrain::DistributedDataParallel ddp{list, group};
    const dtrain::DistributedSampler sampler{group, {.dataset_size = 960, .global_batch = 48, .seed = 1}};
    double loss = 0;
    for (std::size_t epoch = 0; epoch < 20; ++epoch) {
      loss = 0;
      const dtrain::SampleBatches batches = sampler.batches(epoch);
      for (const std::span<const std::size_t> samples : batches) {
        std::vector<float> inputs;
        for (const std::size_t sample : samples)
          inputs.push_back(static_cast<float>(sample) / 480 - 1);
        Pass pass{ddp.begin()};
        loss += library::backward(*network, inputs, &Pass::ready, &pass) / static_cast<double>(batches.size());
        if (pass.error) std::rethrow_exception(pass.error);
        pass.step.finish();
        library::update(*network, 0.05);
      }
    }
    loss = group.all_reduce(loss, dtrain::ReduceOp::average);
    if (group.rank() == 0) std::printf("mean squared error %.5f in the last epoch\n", loss);
    return 0;
  });
}
