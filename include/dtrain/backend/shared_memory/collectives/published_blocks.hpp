#pragma once
/// @file
/// PublishedBlocks: the lengths of all ranks' blocks in an operation, which every rank reads.

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

#include "dtrain/backend/exchange/block_exchange.hpp"
#include "dtrain/backend/shared_memory/channel.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"

namespace DTRAIN_NAMESPACE::backend::shared_memory {

/// Each rank publishes its blocks in its slot before the operation's first barrier; afterwards it may read all ranks'.
class PublishedBlocks {
 public:
  /// Publishes this rank's blocks. Lifetime: both outlive it.
  PublishedBlocks(Channel& channel, const BlockExchange& blocks) noexcept : channel_(channel), blocks_(blocks) {
    for (int peer = 0; peer < channel.size(); ++peer) {
      const auto index = static_cast<std::size_t>(peer);
      ::new (static_cast<void*>(entry(channel.rank(), peer)))
          PublishedBlock{blocks.sent[index].offset, blocks.sent[index].count, blocks.received[index].count};
    }
  }

  /// The block that rank `from` sends to rank `to`.
  BlockRange sent(int from, int to) const noexcept {
    const PublishedBlock& published = *std::launder(entry(from, to));
    return blocks_.connects(from, to) ? BlockRange{published.sent_offset, published.sent_count} : BlockRange{};
  }

  /// Compares what each rank sends with what its receiver expects. Every rank compares all, so that all report the same
  /// error. @returns false after it has failed the channel
  bool compare(const Operation& operation) const noexcept {
    for (int from = 0; from < channel_.size(); ++from) {
      for (int to = 0; to < channel_.size(); ++to) {
        const std::uint64_t expected = std::launder(entry(to, from))->received_count;
        if (blocks_.connects(from, to) && sent(from, to).count != expected) {
          fail(operation, from, to, expected);
          return false;
        }
      }
    }
    return true;
  }

 private:
  struct PublishedBlock {
    std::uint64_t sent_offset;
    std::uint64_t sent_count;
    std::uint64_t received_count;
  };
  static_assert(max_ranks * sizeof(PublishedBlock) <= slot_bytes, "dtrain: all blocks of a rank are in its slot");

  /// Of `rank`, for its blocks to and from `peer`.
  PublishedBlock* entry(int rank, int peer) const noexcept {
    return reinterpret_cast<PublishedBlock*>(channel_.small_input_of(rank, slot_bytes)) + peer;
  }

  DTRAIN_NOT_INLINED void fail(const Operation& operation, int from, int to, std::uint64_t expected) const noexcept {
    const ControlBlock& control = channel_.control();
    channel_.fail({CauseKind::disagreement, -1, "",
                   unequal_message("in " + described_on(channel_.name(), operation),
                                   {control.job_rank(from), sent(from, to).count, operation.dtype},
                                   {control.job_rank(to), expected, operation.dtype})});
  }

  Channel& channel_;
  const BlockExchange& blocks_;
};

}  // namespace DTRAIN_NAMESPACE::backend::shared_memory
