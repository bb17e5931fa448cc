#pragma once
/// @file
/// What a job leaves in its store, of all that its ranks tell each other through it.

#include <doctest/doctest.h>

#include <chrono>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "dtrain/ddp/profile/timeline.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "support/temporary_directory.hpp"
#include "support/thread_group.hpp"

namespace support {

struct LeftoverModel {
  std::vector<float> value = std::vector<float>(3);
  std::vector<float> gradient = std::vector<float>(3);

  std::vector<dtrain::Parameter> parameters() {
    return {{"weight", dtrain::tensor_view(value.data(), {3}), dtrain::tensor_view(gradient.data(), {3})}};
  }
};

/// Wraps a model, takes two steps, asks for the slowest rank, saves, loads, and writes the timeline.
template <class Policy>
void use_group(const dtrain::ProcessGroup<Policy>& group, const std::string& file) {
  LeftoverModel model;
  {
    dtrain::DistributedDataParallel ddp(model, group);
    for (int step = 0; step < 2; ++step)
      ddp.backward([](const dtrain::Ready& ready) { ready(0); });
    ddp.slowest_rank();
    dtrain::write_timeline(group, file + ".json", ddp.records());
  }
  const std::vector<dtrain::NamedTensor> state{{"weight", dtrain::tensor_view(model.value.data(), {3})}};
  dtrain::save_checkpoint(group, file, state);
  if (!dtrain::load_checkpoint(group, file, state)) throw std::logic_error("there is no file");
}

/// The numbers of keys and bytes in the store after each of two rounds, in which the group and a part of it are used.
template <class Policy>
std::vector<std::pair<std::size_t, std::size_t>> left_in_store(int ranks, const std::vector<std::string>& hosts = {}) {
  const TemporaryDirectory folder;
  rendezvous_test::StoreProcess store(ranks);
  std::vector<std::pair<std::size_t, std::size_t>> left;
  const auto ends = run_groups_at<Policy>(
      store, ranks,
      [&](const dtrain::ProcessGroup<Policy>& group) {
        for (int round = 0; round < 2; ++round) {
          const std::string file = folder.path + "/" + std::to_string(round);
          use_group(group, file);
          const int color = group.rank() % 2;
          const auto part = group.split(color, -group.rank());
          use_group(part, file + "-" + std::to_string(color));
          group.store().barrier("done").wait();
          if (group.rank() == 0) {  // the comparison at a wrapper's end takes its keys in the background
            static_cast<void>(holds_soon([&] { return store.contents().first == 0; }));
            left.push_back(store.contents());
          }
          group.store().barrier("counted").wait();
        }
      },
      std::chrono::seconds(60), hosts);
  expect_well(ends);
  return left;
}

}  // namespace support
