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
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/libtorch/buffers.hpp"
#include "dtrain/libtorch/training_parts.hpp"

namespace DTRAIN_NAMESPACE::libtorch::detail {

/// The tensor that only a checkpoint of a sharded optimizer has.
inline constexpr std::string_view updates_tensor = "dtrain.optimizer.updates";

/// Extents of a file's tensors that depend on the training.
struct FileExtents {
  std::vector<std::int64_t> optimizers;  ///< bytes of each
  std::int64_t ranks = 0;                ///< the ranks that saved
  std::int64_t generator = 0;            ///< bytes of a generator's state
  std::int64_t updates = 0;              ///< parameters of a sharded optimizer; 0: the file has none

  friend bool operator==(const FileExtents&, const FileExtents&) = default;
};

/// @param extents with a place for each optimizer of the program @param optimizers their names in the file
/// @returns false if there is no file @throws as load_checkpoint
inline bool read_extents(const std::string& path, const std::vector<std::string>& optimizers, FileExtents& extents) {
  const std::optional<std::vector<ddp::FileTensor>> list = ddp::read_checkpoint_list(path);
  if (!list) return false;
  for (const ddp::FileTensor& tensor : *list) {
    if (!tensor.shape || !tensor.dtype) continue;  // the elements of other types may not be there
    const std::string_view name = tensor.name;
    const auto& shape = tensor.shape->extents();
    for (std::size_t i = 0; i < extents.optimizers.size(); ++i) {
      if (name == optimizers[i] && shape.size() == 1) extents.optimizers[i] = shape[0];
    }
    if (name == "dtrain.rng" && shape.size() == 2) {
      extents.ranks = shape[0];
      extents.generator = shape[1];
    } else if (name == updates_tensor && shape.size() == 1) {
      extents.updates = shape[0];
    }
  }
  return true;
}

/// Gives every rank rank 0's extents. Collective, blocking.
template <class Group>
void share_extents(const Group& group, FileExtents& extents, torch::Device device) {
  std::vector<std::int64_t> numbers{extents.ranks, extents.generator, extents.updates};
  numbers.insert(numbers.end(), extents.optimizers.begin(), extents.optimizers.end());
  torch::Tensor shared = torch::tensor(numbers, torch::kInt64).to(device);
  broadcast_tensors(group, {shared});
  shared = shared.cpu();
  const auto* const number = shared.data_ptr<std::int64_t>();
  extents.ranks = number[0];
  extents.generator = number[1];
  extents.updates = number[2];
  std::copy_n(number + 3, extents.optimizers.size(), extents.optimizers.begin());
}

/// Reads the extents, and calls `load()`. Another job may replace the file between the two: then both are done again,
/// as long as the extents have changed, and at most 100 times. Collective, blocking.
/// @param parts of the program @param extents with a place for each optimizer @returns false if there is no file
template <class Group, class Load>
bool load_with_extents(const Group& group, const std::string& path, const TrainingParts& parts, FileExtents& extents,
                       Load load) {
  constexpr int most_loads = 100;
  std::vector<std::string> optimizers;
  for (std::size_t i = 0; i < parts.optimizers.size(); ++i)
    optimizers.push_back(optimizer_name(parts, i));
  const auto read = [&] { return read_extents(path, optimizers, extents); };
  std::exception_ptr refusal;
  for (int loads = 1;; ++loads) {
    const FileExtents former = extents;
    extents = {std::vector<std::int64_t>(former.optimizers.size())};
    if (!group::handle_of(group)->on_rank_0("rank 0", "reading the checkpoint " + path, read)) {
      return false;
    }
    share_extents(group, extents, device_of(parts.modules));
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
