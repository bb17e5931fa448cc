#pragma once
/// @file
/// FileExtents: shapes in a LibTorch checkpoint that depend on the training. load_with_extents(): reads them first.

#include <torch/torch.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <dtrain/ddp/checkpoint/safetensors_header.hpp>
#include <dtrain/dtrain.hpp>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/optimizer_tensors.hpp"

namespace DTRAIN_NAMESPACE::libtorch::detail {

/// The tensor that only a checkpoint of a sharded optimizer has.
inline constexpr std::string_view updates_tensor = "dtrain.optimizer.updates";

/// Extents of a file's tensors that depend on the training.
struct FileExtents {
  /// For each optimizer, by its state_names(): 1 if the file has the tensor, or the number of its bytes.
  std::vector<std::vector<std::int64_t>> optimizers;
  std::int64_t ranks = 0;      ///< the ranks that saved
  std::int64_t generator = 0;  ///< bytes of a generator's state
  std::int64_t updates = 0;    ///< parameters of a sharded optimizer; 0: the file has none

  friend bool operator==(const FileExtents&, const FileExtents&) = default;
};

/// @param optimizers of the program @returns false if there is no file @throws as load_checkpoint
inline bool read_extents(const std::string& path, const std::vector<SavedOptimizer>& optimizers, FileExtents& extents) {
  const std::optional<std::vector<ddp::FileTensor>> list = ddp::read_checkpoint_list(path);
  if (!list) return false;
  std::unordered_map<std::string_view, std::span<const std::int64_t>> shape_of;
  for (const ddp::FileTensor& tensor : *list) {
    auto& shape = shape_of[tensor.name];
    if (tensor.shape && tensor.dtype) shape = tensor.shape->extents();  // the elements of other types may not be there
  }
  const auto extent = [&](const std::string_view name, std::size_t dimensions, std::size_t i) -> std::int64_t {
    const auto found = shape_of.find(name);
    return found == shape_of.end() || found->second.size() != dimensions ? 0 : found->second[i];
  };
  extents.optimizers.clear();
  for (const SavedOptimizer& optimizer : optimizers) {
    std::vector<std::int64_t>& of_names = extents.optimizers.emplace_back();
    for (const std::string& name : optimizer.state_names())
      of_names.push_back(optimizer.has_names() ? static_cast<std::int64_t>(shape_of.count(name)) : extent(name, 1, 0));
  }
  extents.ranks = extent("dtrain.rng", 2, 0);
  extents.generator = extent("dtrain.rng", 2, 1);
  extents.updates = extent(updates_tensor, 1, 0);
  return true;
}

/// Gives every rank rank 0's extents. Collective, blocking.
template <class Group>
void share_extents(const Group& group, FileExtents& extents, torch::Device device) {
  std::vector<std::int64_t> numbers{extents.ranks, extents.generator, extents.updates};
  for (const std::vector<std::int64_t>& of_names : extents.optimizers)
    numbers.insert(numbers.end(), of_names.begin(), of_names.end());
  torch::Tensor shared = torch::tensor(numbers, torch::kInt64).to(device);
  broadcast_tensors(group, {shared});
  shared = shared.cpu();
  const auto* const number = shared.data_ptr<std::int64_t>();
  extents.ranks = number[0];
  extents.generator = number[1];
  extents.updates = number[2];
  const std::int64_t* next = number + 3;
  for (std::vector<std::int64_t>& of_names : extents.optimizers) {
    std::copy_n(next, of_names.size(), of_names.begin());
    next += of_names.size();
  }
}

/// Reads the extents, and calls `load()`. Another job may replace the file between the two: then both are done again,
/// as long as the extents have changed, and at most 100 times. Collective, blocking.
/// @param optimizers of the program @param device of other tensors @returns false if there is no file
template <class Group, class Load>
bool load_with_extents(const Group& group, const std::string& path, const std::vector<SavedOptimizer>& optimizers,
                       torch::Device device, FileExtents& extents, Load load) {
  constexpr int most_loads = 100;
  const auto read = [&] { return read_extents(path, optimizers, extents); };
  std::exception_ptr refusal;
  for (int loads = 1;; ++loads) {
    const FileExtents former = extents;
    extents = {};
    for (const SavedOptimizer& optimizer : optimizers)
      extents.optimizers.emplace_back(optimizer.state_names().size());
    if (!group::handle_of(group)->on_rank_0("rank 0", "reading the checkpoint " + path, read)) {
      return false;
    }
    share_extents(group, extents, device);
    if (refusal && extents == former) std::rethrow_exception(refusal);
    try {
      return load();
    } catch (const Error& error) {  // the same on every rank
      if (error.code() != make_error_code(Errc::protocol) || loads == most_loads) throw;
      refusal = std::current_exception();
    }
  }
}

}  // namespace DTRAIN_NAMESPACE::libtorch::detail
