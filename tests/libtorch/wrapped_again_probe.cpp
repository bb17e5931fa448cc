// A LibTorch module with Adam, which lives through an elastic job's attempts, is wrapped again in each of 100:
//   wrapped_again_probe
// The two workers are threads of this process, so that no LibTorch is loaded 100 times. The program says "holds: " and
// what holds; under AddressSanitizer, no tensor uses memory of a wrapper that is gone.
// Built where LibTorch is (examples/libtorch); integration.libtorch runs it.

#include <exception>

#include "expectations.hpp"
#include "support/wrapped_again.hpp"

namespace {

namespace nn = torch::nn;

struct Models {
  void keep_in(const support::WrappedAgainJob& job) { job.keep(dtrain::libtorch::training_state(net, adam)); }

  template <class GoesOn>
  void train(const support::WrappedAgainJob& job, const support::WrappedAgainGroup& group, GoesOn goes_on) {
    dtrain::libtorch::DistributedDataParallel ddp{net, group};
    while (goes_on()) {
      adam.zero_grad();
      const torch::Tensor inputs = torch::sin(torch::arange(24, torch::kFloat32)).view({4, 6});
      ddp.backward(ddp(inputs + static_cast<double>(job.step() % 7)).square().mean());
      job.commit([&] { adam.step(); });
    }
  }

  /// Every element of parameters and buffers.
  std::vector<double> values() const {
    std::vector<double> found;
    for (const auto& tensors : {net->parameters(), net->buffers()}) {
      for (const torch::Tensor& each : tensors) {
        const torch::Tensor all = each.detach().to(torch::kFloat64).contiguous();
        found.insert(found.end(), all.data_ptr<double>(), all.data_ptr<double>() + all.numel());
      }
    }
    return found;
  }

  nn::Sequential net{nn::Linear(6, 5), nn::BatchNorm1d(5), nn::Tanh(), nn::Linear(5, 3)};
  torch::optim::Adam adam{net->parameters(), torch::optim::AdamOptions(0.01)};
};

}  // namespace

int main(int, char**) {
  torch::set_num_threads(1);
  try {
    const std::string problems = support::wrap_again_100_times<Models>();
    libtorch_probe::require(problems.empty(), "all is well:\n" + problems);
    std::printf("holds: a module is wrapped again in each of 100 attempts\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
