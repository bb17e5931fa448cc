#pragma once
/// @file
/// FirstCalls of NCCL's Channel: operations in which NCCL may connect ranks, and the wait for the other ranks before
/// such a one.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/core/types/reduce_op.hpp"

namespace DTRAIN_NAMESPACE::backend::nccl {

/// A message's way: from one rank of a channel to another.
struct MessagePath {
  int from = 0;
  int to = 0;
  friend bool operator==(const MessagePath&, const MessagePath&) = default;
};

/// NCCL chooses an algorithm by an operation's kind and bytes, and connects the ranks when an algorithm is first used;
/// the ranks of a message when the first one goes that way. A call in which it connects waits for the other ranks,
/// where it cannot be aborted if the communicator launches in the calling thread. Therefore the ranks meet over the
/// store before each operation that may be such a call: one that has fewer or more bytes than all of its kind before.
/// Sizes up to 4 KiB count as equal, and others up to a power of four. All ranks call the same collectives, so all
/// meet, or none does. Threads: one at a time.
class FirstCalls {
 public:
  FirstCalls() { seen_.reserve(16); }

  /// Whether NCCL may connect ranks in this collective.
  bool may_connect(const Operation& operation) const noexcept {
    const SizeRange wanted = range_of(operation);
    return std::none_of(seen_.begin(), seen_.end(), [&](const SizeRange& each) {
      return each.is_kind_of(wanted) && each.lowest <= wanted.lowest && wanted.highest <= each.highest;
    });
  }

  /// Whether NCCL may connect ranks in a message on this path.
  bool may_connect(MessagePath path) const noexcept {
    return std::find(paths_.begin(), paths_.end(), path) == paths_.end();
  }

  /// NCCL has launched the operation.
  /// @{
  void add(const Operation& operation) {
    const SizeRange made = range_of(operation);
    for (SizeRange& each : seen_) {
      if (each.is_kind_of(made)) {
        each.lowest = std::min(each.lowest, made.lowest);
        each.highest = std::max(each.highest, made.highest);
        return;
      }
    }
    seen_.push_back(made);
  }
  void add(MessagePath path) { paths_.push_back(path); }
  /// @}

  /// Collective, blocking: until all ranks have called it as often as this one. No key stays in the store.
  /// @param channel its name @param call what this rank calls: "called barrier as operation 3"
  /// @returns the calls of two ranks that differ; empty if there are none @throws Error (timeout), JobFailed; as
  /// self.check
  std::string meet_blocking(const StoreRank& self, const std::string& channel, const std::string& call) {
    const auto key = [&, meeting = ++meetings_](auto whose) {
      return format_text("{}/first/{}/{}", {channel, meeting, whose});
    };
    const std::string own = format_text("rank {} {}", {self.job_rank, call});
    int rank = 0;  // that is waited for
    backend::detail::LateRanks late(self, [&] { return format_text("{} has not come", {self.name_of_rank(rank)}); });
    const auto take = [&](auto whose, int readers) {
      return sanitize(backend::detail::take(self, key(whose), readers, self.deadline, late).substr(0, longest_text));
    };
    if (self.rank != 0) {
      self.named_store().set_blocking(key(self.rank), own, self.deadline);
      return take("all", self.ranks - 1);
    }
    std::string differs;
    for (rank = 1; rank < self.ranks; ++rank) {
      const std::string other = take(rank, 1);
      if (differs.empty() && !other.ends_with(" " + call)) differs = format_text("{} and {}", {own, other});
    }
    if (self.ranks > 1) self.named_store().set_blocking(key("all"), differs, self.deadline);
    return differs;
  }

  /// Blocking: until the rank at the other end of each path has called it for that path, too. As above otherwise.
  static void meet_blocking(const StoreRank& self, const std::string& channel, std::span<const MessagePath> paths) {
    const auto key = [&](MessagePath path, bool of_sender) {
      return format_text("{}/first/{}-{}/{}", {channel, path.from, path.to, of_sender ? "sends" : "receives"});
    };
    int rank = 0;
    backend::detail::LateRanks late(self, [&] { return format_text("{} has not come", {self.name_of_rank(rank)}); });
    for (const MessagePath& path : paths)
      self.named_store().set_blocking(key(path, path.from == self.rank), "", self.deadline);
    for (const MessagePath& path : paths) {
      rank = path.from == self.rank ? path.to : path.from;
      static_cast<void>(backend::detail::take(self, key(path, path.from != self.rank), 1, self.deadline, late));
    }
  }

 private:
  /// Collectives of one kind, and the smallest and largest of their sizes.
  struct SizeRange {
    OperationKind kind;
    ReduceOp op;
    DType dtype;
    std::int32_t root;
    int lowest;
    int highest;

    bool is_kind_of(const SizeRange& other) const noexcept {
      return kind == other.kind && op == other.op && dtype == other.dtype && root == other.root;
    }
  };

  static SizeRange range_of(const Operation& operation) noexcept {
    const auto bits = static_cast<int>(std::bit_width(operation.count * size_bytes(operation.dtype)));
    const int size = std::max(0, bits - 11) / 2;
    return {operation.kind, operation.op, operation.dtype, operation.root, size, size};
  }

  static constexpr std::size_t longest_text = 600;

  std::vector<SizeRange> seen_;
  std::vector<MessagePath> paths_;
  std::uint64_t meetings_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl
