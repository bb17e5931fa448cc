#pragma once
/// @file
/// Jobs over SharedMemory whose ranks are threads of the test, and models to train on them.

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/thread_group.hpp"

namespace front_test {

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

/// support::run_well over shared memory, or as another policy says.
template <class OfRanks = Policy>
void run_well(int ranks, const support::GroupBody<OfRanks>& body,
              std::chrono::seconds patience = support::patience_with_ranks, const std::vector<std::string>& hosts = {},
              const std::vector<dtrain::GroupOptions>& options = {}) {
  support::run_well<OfRanks>(ranks, body, patience, hosts, options);
}

/// Zeros in parameters of these sizes.
template <class Element>
struct BasicModel {
  explicit BasicModel(const std::vector<std::size_t>& elements) {
    for (const std::size_t size : elements) {
      values.emplace_back(size, Element{0});
      gradients.emplace_back(size, Element{0});
      const dtrain::Shape shape{static_cast<std::int64_t>(size)};
      list.push_back({"layer" + std::to_string(list.size()), dtrain::tensor_view(values.back().data(), shape),
                      dtrain::tensor_view(gradients.back().data(), shape)});
    }
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list; }

  std::vector<std::vector<Element>> values;
  std::vector<std::vector<Element>> gradients;
  std::vector<dtrain::Parameter> list;
};
using Model = BasicModel<float>;

/// Its gradients are where DistributedDataParallel wants them.
struct BindingModel : Model {
  using Model::Model;
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) {
    list[i].gradient = view;
    ++bindings;
  }
  void write(std::size_t i, float value) {
    const auto gradient = list[i].gradient.as<float>();
    std::fill(gradient.begin(), gradient.end(), value);
  }
  bool holds(std::size_t i, float value) const {
    const auto gradient = list[i].gradient.as<float>();
    return std::all_of(gradient.begin(), gradient.end(), [value](float element) { return element == value; });
  }

  int bindings = 0;
};

}  // namespace front_test
