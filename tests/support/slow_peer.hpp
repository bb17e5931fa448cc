#pragma once
/// @file
/// Ranks that wait for each other, and what they print.

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtrain/backend/channel_context.hpp"

#include "support/captured_stderr.hpp"
#include "support/gate.hpp"
#include "support/host_rank.hpp"

namespace support {

/// Rank 1 sums 8 floats with rank 0 only after `notice` is on stderr. @returns whether that was in time, and the sum
/// was right
template <class Backend>
bool is_noticed(const std::string& notice) {
  const auto job = std::make_shared<FakeJob>(2);
  CapturedStderr captured;
  std::array<bool, 2> well{};
  run_thread_ranks(2, [&](RankThread& thread) {
    dtrain::backend::ChannelContext context = channel_context(job, thread.rank(), 2, "group", std::chrono::hours(1));
    context.notice_after = std::chrono::milliseconds(1);
    HostRank<Backend> self(job->latch(thread.rank()),
                           Backend::open_blocking(context, dtrain::Deadline::after(std::chrono::seconds(60))));
    thread.doing("waiting for the other rank, or for its notice");
    const bool is_in_time =
        thread.rank() == 0 || holds_soon([&] { return captured.text().find(notice) != std::string::npos; });
    std::vector<float> values(8, 1);
    const dtrain::BufferView view = dtrain::buffer_view(std::span(values));
    const bool sums = self.all_reduce(view, view, dtrain::ReduceOp::sum) && values == std::vector<float>(8, 2);
    well[static_cast<std::size_t>(thread.rank())] = is_in_time && sums;
  });
  return well[0] && well[1];
}

/// Rank 0 times out on channel "group" while rank 1 waits on channel "other". @returns what they print
template <class Backend>
std::string said_when_crossed() {
  const auto job = std::make_shared<FakeJob>(2);
  CapturedStderr captured;
  std::atomic<bool> is_open{false};
  std::atomic<bool> waits{false};
  std::atomic<bool> has_ended{false};
  run_thread_ranks(2, [&](RankThread& thread) {
    const auto open = [&](const char* name, std::chrono::nanoseconds timeout) {
      dtrain::backend::ChannelContext context = channel_context(job, thread.rank(), 2, name, timeout);
      context.on_stall = [&, is_first = thread.rank() == 0] {
        if (!is_first && is_open) waits = true;
      };
      return HostRank<Backend>(job->latch(thread.rank()),
                               Backend::open_blocking(context, dtrain::Deadline::after(std::chrono::seconds(60))));
    };
    HostRank<Backend> group = open("group", std::chrono::milliseconds(100));
    HostRank<Backend> other = open("other", std::chrono::hours(1));
    thread.doing("waiting in its own channel");
    if (thread.rank() == 0) {
      holds_soon([&] { return waits.load(); });
    }
    is_open = is_open || thread.rank() == 1;
    HostRank<Backend>& own = thread.rank() == 0 ? group : other;
    own.communicator.enqueue(dtrain::backend::Barrier{}, own.stream.ref());
    static_cast<void>(own.wait());
    if (thread.rank() == 1) {
      has_ended = true;
    } else {
      holds_soon([&] { return has_ended.load(); });  // rank 1 is to see the timeout, not a channel that closes
    }
  });
  return captured.text();
}

}  // namespace support
