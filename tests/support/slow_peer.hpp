#pragma once
/// @file
/// Ranks that wait for each other, and what they print.

#include <array>
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

}  // namespace support
