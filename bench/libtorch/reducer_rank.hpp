#pragma once
/// @file
/// The peer of libtorch_bench in C++: c10d::Reducer and ProcessGroupGloo, which LibTorch exports, driven as PyTorch's
/// DistributedDataParallel drives them.

#define USE_C10D_GLOO 1

#include <algorithm>
#include <cstddef>
#include <string>
#include <tuple>
#include <vector>

#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "bench/libtorch/rank.hpp"

namespace bench {

/// @param meeting a file that all ranks use and no other job
inline void measure_reducer(const std::string& model, int samples, int rank, int ranks, const std::string& meeting) {
  constexpr std::size_t first_bucket = 1024 * 1024;
  constexpr std::size_t other_buckets = 25 * first_bucket;
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  const auto store = c10::make_intrusive<c10d::FileStore>(meeting, ranks);
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, rank, ranks);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO,
                    c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, ranks, options));
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
  torch::nn::Sequential net = make_network(model);
  const std::vector<torch::Tensor> parameters = net->parameters();
  const std::vector<torch::Tensor> buffers = net->buffers();
  {
    const torch::NoGradGuard no_grad;
    c10d::broadcast_coalesced(group, parameters, other_buckets, 0);
  }
  std::vector<std::vector<std::size_t>> buckets =
      std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, {first_bucket, other_buckets}));
  std::reverse(buckets.begin(), buckets.end());
  c10d::Reducer reducer(parameters, buckets, group, std::vector<bool>(parameters.size(), false), other_buckets, false,
                        true, {}, first_bucket, false, false, {});
  const auto barrier = [&] { group->barrier()->wait(); };
  measure_steps(model, net, samples, barrier, [&](const torch::Tensor& inputs) {
    static_cast<void>(reducer.rebuild_buckets());
    reducer.prepare_for_forward();
    if (!buffers.empty()) {
      c10d::broadcast_coalesced(group, buffers, other_buckets, 0);  // as with DistributedDataParallel
    }
    const torch::Tensor loss = net->forward(inputs).square().mean();
    reducer.prepare_for_backward({});
    loss.backward();
  });
  barrier();
}

}  // namespace bench
