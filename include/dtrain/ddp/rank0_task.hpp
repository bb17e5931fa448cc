#pragma once
/// @file
/// Rank 0 task: work that rank 0 alone does, mostly on files, and whose result or error every rank gets.

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

/// Blocking: as long as rank 0 works and is alive. Logs a warning every timeout(). @returns its result, as store_gather
/// encodes it
template <class Group>
std::string wait_for_rank0_blocking(const Group& group, const backend::StoreRef& store, const std::string& key,
                                    const std::string& doing) {
  const Deadline::Clock::time_point began = Deadline::Clock::now();
  for (;;) {
    try {
      return store.get_blocking(key, Deadline::after(group.timeout()));
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
      log(LogLevel::warning,
          format_text("rank {}: after {} rank {} is still {}; this rank waits until that rank has finished or is lost",
                      {group.members().rank_in_job(), duration_text(Deadline::Clock::now() - began),
                       group.members().rank_in_job(0), doing}));
    }
  }
}

/// The Error of ranks that are doing different things; nullopt if all do the same. @param doing of each rank
template <class Group>
std::optional<Error> different_work(const Group& group, const std::vector<std::string>& doing) {
  for (std::size_t other = 1; other < doing.size(); ++other) {
    if (doing[other] != doing[0]) {
      const int rank = group.members().rank_in_job(static_cast<int>(other));
      return Error(
                 make_error_code(Errc::disagreement),
                 format_text("rank {} is {}, but rank {} is {}; give the same name on every rank, and wait for pending "
                             "checkpoints in the same order",
                             {group.members().rank_in_job(0), doing[0], rank, doing[other]}))
          .with_rank(rank);
    }
  }
  return std::nullopt;
}

/// Runs `work()` on rank 0, once every rank has called this with the same `doing`. Every rank gets its result or its
/// Error, which names rank 0 and its host. Collective, blocking: as long as rank 0 works.
/// @param doing for sentences: "writing the file x"
/// @throws Error (disagreement) on every rank, with the same sentence, if a rank is doing something else;
/// (timeout) if a rank does not come
template <class Group, class Work>
bool run_on_rank0_blocking(const Group& group, const std::string& doing, Work work) {
  group::GroupAccess::of(group).rank_context()->require_may_block();
  const backend::StoreRef store = with_call_purpose(group.store().with_prefix("dtrain/rank 0/"), doing);
  const std::string key = std::to_string(group::GroupAccess::of(group).next_number("rank 0"));
  group.start_pending();  // other ranks may wait for this work before they call this
  const int rank = group.members().rank_in_job();
  std::string result;  // of rank 0, on the others
  if (group.rank() != 0) {
    store.set_blocking(format_text("{}/{}", {key, group.rank()}), "=" + doing, Deadline::after(group.timeout()));
    result = wait_for_rank0_blocking(group, store, key, doing);
  }
  backend::StoreRank self{
      store, group.rank(), group.world_size(), rank, Deadline::after(group.timeout()), doing, [&group](int other) {
        return format_text("rank {}", {group.members().rank_in_job(other)});
      }};
  if (group.rank() != 0) self.notice_after = std::chrono::milliseconds(0);  // wait_for_rank0_blocking has waited
  const auto run = [&]() -> std::string {
    std::vector<std::string> all{doing};
    backend::detail::take_texts(self, key, all);
    if (const std::optional<Error> difference = different_work(group, all)) throw *difference;
    const std::string where =
        group.world_size() == 1
            ? std::string()
            : format_text(" (on rank {} on host {}, which does it for all ranks)", {rank, group.members().host});
    try {
      return backend::detail::with_error(doing, work) ? "yes" : "no";
    } catch (const Error& error) {
      throw Error(error.code(), error.what() + where).with_rank(rank);
    }
  };
  try {
    return backend::store_broadcast(self, key, run) == "yes";
  } catch (const JobFailed&) {
    if (result.starts_with('!')) static_cast<void>(backend::detail::decode(result));  // throws what the others throw
    throw;
  }
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail
