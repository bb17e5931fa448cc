// A LibTorch module with Adam, which lives through an elastic job's attempts, is wrapped again in each of 100:
//   wrapped_again_probe
// The two workers are threads of this process, so that a sanitizer sees both, and no LibTorch is loaded 100 times. The
// program says "holds: " and what holds; under AddressSanitizer, no tensor uses memory of a wrapper that is gone.
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include <torch/torch.h>
#include <dtrain/dtrain.hpp>
#include <dtrain/libtorch.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "expectations.hpp"
#include "support/elastic_process.hpp"
#include "support/process_holdings.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"

namespace {

using libtorch_probe::require;
using rendezvous_test::FormationProcess;
namespace nn = torch::nn;
using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

class Worker {
 public:
  Worker(const FormationProcess& launcher, int slot)
      : process_(support::elastic_process(launcher.address().port, slot, 2)),
        worker_(process_),
        job_(worker_, options_) {
    job_.keep(dtrain::libtorch::training_state(net_, adam_));
  }

  /// Trains until `ends` when an attempt begins. @param fails throws behind the first step of an attempt
  void train(const std::atomic<bool>& ends, std::optional<int> fails = {}) {
    job_.train([&](Group group) {
      if (ends) return;
      dtrain::libtorch::DistributedDataParallel ddp{net_, group};
      while (!ends) {
        adam_.zero_grad();
        const torch::Tensor inputs = torch::sin(torch::arange(24, torch::kFloat32)).view({4, 6});
        ddp.backward(ddp(inputs + static_cast<double>(job_.step() % 7)).square().mean());
        job_.commit([&] { adam_.step(); });
        if (fails) throw std::runtime_error("the mistake " + std::to_string(*fails));
      }
    });
  }

  /// Every element of parameters and buffers.
  std::vector<double> values() const {
    std::vector<double> found;
    for (const auto& tensors : {net_->parameters(), net_->buffers()}) {
      for (const torch::Tensor& each : tensors) {
        const torch::Tensor all = each.detach().to(torch::kFloat64).contiguous();
        found.insert(found.end(), all.data_ptr<double>(), all.data_ptr<double>() + all.numel());
      }
    }
    return found;
  }

 private:
  nn::Sequential net_{nn::Linear(6, 5), nn::BatchNorm1d(5), nn::Tanh(), nn::Linear(5, 3)};
  torch::optim::Adam adam_{net_->parameters(), torch::optim::AdamOptions(0.01)};
  const dtrain::launch::RankProcess process_;
  dtrain::elastic::ElasticWorker worker_;
  const dtrain::GroupOptions options_{};
  const dtrain::Elastic<Policy> job_;
};

void check() {
  torch::set_num_threads(1);
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = sizes.max_workers = 2;
  sizes.reconnect_timeout = std::chrono::milliseconds(1);  // nobody says that the thread of a worker has ended
  FormationProcess launcher(sizes);
  std::atomic<bool> ends{false};
  std::optional<support::ProcessHoldings> early;
  Worker survivor(launcher, 0);
  const std::vector<double> before = survivor.values();
  std::string why;
  std::thread living([&] {
    try {
      survivor.train(ends);
    } catch (const std::exception& error) {
      why = error.what();
    }
  });
  std::string thrown;
  for (int i = 0; i < 100; ++i) {
    if (i == 10) early.emplace();
    Worker failing(launcher, 1);
    try {
      failing.train(ends, i);
    } catch (const std::runtime_error& error) {
      thrown += error.what() + std::string("\n");
    }
  }
  const support::ProcessHoldings late;
  ends = true;  // while the survivor waits for another worker
  Worker last(launcher, 1);
  last.train(ends);
  living.join();
  std::string mistakes;
  for (int i = 0; i < 100; ++i)
    mistakes += "the mistake " + std::to_string(i) + "\n";
  require(why.empty(), "the survivor ends well, not with '" + why + "'");
  require(thrown == mistakes, "each worker ends with its own error, not with these:\n" + thrown);
  require(last.values() == survivor.values() && last.values() != before, "both have the trained values");
  // The last attempt may not be over.
  require(late.descriptors <= early->descriptors + 8, "100 attempts leave no descriptors");
  require(late.threads <= early->threads + 4, "100 attempts leave no threads");
  require(late.mappings <= early->mappings + 64, "100 attempts leave no mappings");
}

}  // namespace

int main(int, char**) {
  try {
    check();
    std::printf("holds: a module is wrapped again in each of 100 attempts\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
