#pragma once
/// @file
/// Shard files: the optimizer's state of each rank in a file of its own, beside a checkpoint that names them.

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/crypto/sha256.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/ddp/sharded/sharded_parameters.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// What a checkpoint says of its shard files, as two more tensors. Lifetime: tensors() refers to it.
struct ShardIndex {
  std::int64_t id = 0;     ///< part of the files' names; of one call of save_checkpoint
  std::int64_t files = 0;  ///< as many as the ranks that saved
  std::int64_t steps = 0;  ///< updates
  std::array<std::byte, sizeof(Sha256Digest)>
      model{};  ///< digest of the parameters' names, shapes and types, and of the number of arrays

  /// Of this optimizer, without id and files.
  static ShardIndex of(const ShardedParameters& shares);

  std::vector<NamedTensor> tensors();

  /// "PATH.shard-000000000000002a-3" @param rank of the job that saved
  std::string file_name(const std::string& path, std::int64_t rank) const;
};

/// The content of this rank's file: its state. What all ranks have is in the file of rank 0.
std::vector<NamedTensor> shard_entries(ShardedParameters& shares, int rank);

/// Reads this rank's state from the files of any number of ranks. All ranks together check the digests of all files.
/// Blocking: the file system.
/// @throws Error (protocol) for files that are missing, damaged, or of another optimizer; the state is undefined then
void read_shard_files(const std::string& path, const ShardIndex& index, ShardedParameters& shares, int rank, int ranks);

/// Removes the shard files beside `path`, except those of index `kept`, and what killed writers left. Logs a warning if
/// it cannot. Blocking: the file system.
void remove_other_shard_files(const std::string& path, const ShardIndex& kept) noexcept;

/// Removes those of one index, or the one of a rank.
void remove_shard_files(const std::string& path, const ShardIndex& index, std::optional<int> rank = {}) noexcept;

}  // namespace DTRAIN_NAMESPACE::ddp

#if DTRAIN_DEFINITIONS
#include "dtrain/ddp/sharded/shard_files_definitions.hpp"
#endif
