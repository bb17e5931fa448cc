// The least program with dtrain::libtorch: ./linear_libtorch --nproc-per-node=2

#include <dtrain/libtorch.hpp>

using Policy = dtrain::Policy<dtrain::launch::Any, dtrain::backend::SharedMemory, dtrain::topology::Flat>;

int train(dtrain::ProcessGroup<Policy> group, dtrain::Arguments) {
  torch::nn::Linear net(6, 2);
  dtrain::libtorch::DistributedDataParallel ddp{net, group};
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 100; ++step) {
    optimizer.zero_grad();
    ddp.backward(ddp(torch::randn({4, 6})).square().mean());
    optimizer.step();
  }
  return 0;
}

int main(int argc, char** argv) {
  return dtrain::run<Policy>(argc, argv, train);
}
