#pragma once
/// @file
/// One NCCL operation of a rank, as it runs at its place in a stream.

#include <nccl.h>

#include <cstddef>
#include <vector>

#include "communicator.hpp"
#include "reduction.hpp"

namespace emulation {

/// A send or a receive; those of one group run at once.
struct Message {
  bool is_send;
  int peer;
  std::byte* address;
  std::size_t bytes;
};

struct Operation {
  enum class Kind : std::uint32_t { all_reduce, reduce, broadcast, reduce_scatter, all_gather, messages };
  Kind kind = Kind::messages;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::size_t count = 0;  // elements of one rank's smaller buffer
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t named_reduction = ncclSum;
  Reduction reduction;
  const void* scalar_address = nullptr;
  int root = 0;
  std::vector<Message> messages;
};

/// Blocking: runs the operation to its end, or until the communicator is aborted.
void run_collective(Communicator& communicator, const Operation& operation);
void run_messages(Communicator& communicator, const std::vector<Message>& messages);

/// Adds the operation's bytes to traffic().
void count_traffic(const Communicator& communicator, const Operation& operation) noexcept;

/// What becomes of ranks that do not fit together: they hang until they are aborted, or say ncclInvalidUsage.
void mismatched(Communicator& communicator);

/// Gives the operation its place among the communicator's and returns what runs it.
Work issued(Communicator& communicator, const Operation& operation);

}  // namespace emulation
