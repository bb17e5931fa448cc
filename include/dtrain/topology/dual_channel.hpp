#pragma once
/// @file
/// topology::DualChannel: two channels of an algorithm, for even and odd chunks.

#include <cstddef>
#include <optional>
#include <string>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/channel_context.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/topology/parallel_runner.hpp"
#include "dtrain/topology/sub_channel.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// The chunks first, first + stride, first + 2 * stride, ...
struct ChunkRun {
  std::size_t first = 0;
  std::size_t stride = 1;
};

/// A channel runs one operation at a time, so its links are idle while a rank reduces a chunk. With two channels, the
/// links carry a chunk of the other channel during that time.
/// Threads: one run() at a time; abort() and failure() from any.
template <backend::Backend B>
class DualChannel {
 public:
  using SubChannel = topology::SubChannel<typename B::Communicator>;

  /// Collective, blocking. @throws as B::open_blocking
  DualChannel(const backend::ChannelContext& context, const char* purpose, Deadline deadline)
      : first_(B::open_blocking(sub_channel_context(context, purpose), deadline)),
        second_(B::open_blocking(sub_channel_context(context, std::string(purpose) + "-2"), deadline)) {}

  int rank() const noexcept { return first_.rank(); }
  int size() const noexcept { return first_.size(); }

  /// `work(channel, run)` processes the chunks of a run on a channel and returns whether the channel still works. With
  /// two or more chunks, two runs are processed in parallel.
  /// Blocking. @returns whether the channels still work. @throws what `work` throws
  template <class Work>
  bool run(std::size_t chunks, Work work) {
    if (chunks < 2) {
      return work(first_, ChunkRun{});
    }
    return runner_.run_both(
        [&] {
          return work(first_, ChunkRun{0, 2});
        },
        [&] {
          return work(second_, ChunkRun{1, 2});
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
  /// Context with the same ranks as the group's own channel, and another name.
  static backend::ChannelContext sub_channel_context(const backend::ChannelContext& context,
                                                     const std::string& purpose) {
    backend::ChannelContext made = context;
    made.name += "/" + purpose;
    return made;
  }

  SubChannel first_;
  SubChannel second_;
  ParallelRunner runner_;  ///< destroyed first
};

}  // namespace DTRAIN_NAMESPACE::topology
