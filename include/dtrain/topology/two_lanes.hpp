#pragma once
/// @file
/// topology::TwoLanes: an algorithm's pieces go by two channels in turn.

#include <cstddef>
#include <optional>
#include <string>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/topology/companion.hpp"
#include "dtrain/topology/lane.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Every second piece, from `first` on; or all of them.
struct PieceRun {
  std::size_t first = 0;
  std::size_t stride = 1;
};

/// A channel has one operation under way, and its links rest while a piece is reduced, or turns round at a rank. With
/// two channels they carry a piece of the other one meanwhile.
/// Threads: run one at a time, abort() and failure() from any.
template <backend::Backend B>
class TwoLanes {
 public:
  using Lane = topology::Lane<typename B::Communicator>;

  /// Collective, blocking. @throws as B::open_blocking
  TwoLanes(const backend::ChannelContext& context, const char* purpose, Deadline deadline)
      : first_(B::open_blocking(beside(context, purpose), deadline)),
        second_(B::open_blocking(beside(context, std::string(purpose) + "-2"), deadline)) {}

  int rank() const noexcept { return first_.rank(); }
  int size() const noexcept { return first_.size(); }

  /// `work(lane, run)` carries the pieces of a run along a lane; two runs at once where there are two pieces or more.
  /// Blocking. @returns whether the channels still serve. @throws what `work` throws
  template <class Work>
  bool run(std::size_t pieces, Work work) {
    if (pieces < 2) {
      return work(first_, PieceRun{});
    }
    return companion_.run_both(
        [&] {
          return work(first_, PieceRun{0, 2});
        },
        [&] {
          return work(second_, PieceRun{1, 2});
        },
        [&](const Cause& cause) { abort(cause); });
  }

  void abort(const Cause& cause) noexcept {
    first_.abort(cause);
    second_.abort(cause);
  }

  std::optional<Cause> failure() const {
    std::optional<Cause> cause = first_.failure();
    return cause ? cause : second_.failure();
  }

 private:
  /// The context of a channel for an algorithm, beside the group's own of the same ranks.
  static backend::ChannelContext beside(const backend::ChannelContext& context, const std::string& purpose) {
    backend::ChannelContext made = context;
    made.name += "/" + purpose;
    return made;
  }

  Lane first_;
  Lane second_;
  Companion companion_;  ///< goes first
};

}  // namespace DTRAIN_NAMESPACE::topology
