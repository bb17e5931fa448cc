#pragma once
/// @file
/// FirstCalls of an NCCL channel: operations in which NCCL may connect ranks, and before which they therefore meet over
/// the store.

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/backend/operation.hpp"
#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
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

  /// Collective, blocking: until all ranks have called it as often as this one has returned from it. May be called
  /// again after a timeout. No key stays in the store.
  /// @param channel its name @param call what this rank calls: "called barrier as operation 3"
  /// @returns the calls of two ranks that differ; empty if there are none
  /// @throws Error (timeout), JobFailed; as self.check
  std::string meet_blocking(const StoreRank& self, const std::string& channel, const std::string& call) {
    const auto key = [&](auto whose) { return format_text("{}/first/{}/{}", {channel, meetings_, whose}); };
    const StoreRef store = self.named_store();
    const std::string own = format_text("rank {} {}", {self.job_rank, call});
    awaited_ = {};
    for (int rank = 0; rank < self.ranks; ++rank)
      if (rank != self.rank) awaited_.push_back({rank, key(rank)});
    LateRanks late = late_ranks(self);
    std::string differs;
    store.set_blocking(key(self.rank), own, self.deadline);
    if (self.rank != 0) {
      differs = received(backend::detail::take(self, key("all"), self.ranks - 1, self.deadline, late));
    } else {
      for (int rank = 1; rank < self.ranks && differs.empty(); ++rank) {
        const std::string other = received(backend::detail::get(self, key(rank), self.deadline, late));
        if (!other.ends_with(" " + call)) differs = format_text("{} and {}", {own, other});
      }
      if (self.ranks > 1) store.set_blocking(key("all"), differs, self.deadline);
      for (int rank = 0; rank < self.ranks; ++rank)
        store.erase_blocking(key(rank), self.deadline);
    }
    ++meetings_;
    return differs;
  }

  /// Blocking: until the rank at the other end of each path has also called it for that path. As above otherwise.
  void meet_blocking(const StoreRank& self, const std::string& channel, std::span<const MessagePath> paths) {
    const auto key = [&](MessagePath path, bool of_sender) {
      return format_text("{}/first/{}-{}/{}", {channel, path.from, path.to, of_sender ? "sends" : "receives"});
    };
    awaited_ = {};
    for (const MessagePath& path : paths)
      awaited_.push_back({path.from == self.rank ? path.to : path.from, key(path, path.from != self.rank)});
    LateRanks late = late_ranks(self);
    for (const MessagePath& path : paths)
      self.named_store().set_blocking(key(path, path.from == self.rank), "", self.deadline);
    for (const AwaitedRank& other : awaited_)
      static_cast<void>(backend::detail::take(self, other.key, 1, self.deadline, late));
  }

  /// After a timeout: the channel's ranks that have not called. Blocking: a second for each, at most.
  /// @throws JobFailed; Error (timeout), if the store does not answer
  std::vector<int> missing_blocking(const StoreRank& self) const {
    std::vector<int> missing;
    for (const AwaitedRank& other : awaited_) {
      if (!self.named_store().has_blocking(other.key, Deadline::after(std::chrono::seconds(1)))) {
        missing.push_back(other.rank);
      }
    }
    return missing;
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
    const bool connects_by_root = operation.kind != OperationKind::broadcast && operation.kind != OperationKind::reduce;
    return {operation.kind, operation.op, operation.dtype, connects_by_root ? operation.root : 0, size, size};
  }

  using LateRanks = backend::detail::LateRanks;

  struct AwaitedRank {
    int rank;
    std::string key;  ///< which it sets
  };

  LateRanks late_ranks(const StoreRank& self) const {
    return {self, [this, &self] {
              std::string names;
              for (const int rank : missing_blocking(self))
                names += (names.empty() ? "" : ", ") + self.name_of_rank(rank);
              return format_text("not come so far: {}", {names});
            }};
  }

  static std::string received(const std::string& text) { return sanitize(text.substr(0, 600)); }

  std::vector<SizeRange> seen_;
  std::vector<MessagePath> paths_;
  std::vector<AwaitedRank> awaited_;  ///< ranks of the present meeting
  std::uint64_t meetings_ = 0;
};

}  // namespace DTRAIN_NAMESPACE::backend::nccl
