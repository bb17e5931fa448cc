#pragma once
/// @file
/// Rank 0 task: a file operation that rank 0 runs and whose result every rank gets.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/duration_text.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/sanitize.hpp"
#include "dtrain/group/group_internals.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

/// Result of rank 0's task in the store: "yes", "no", or the error that it threw and the rank.
struct Rank0Result {
  static std::string of(const Error& error, int rank) {
    const bool posix = error.code().category() == std::generic_category();
    const bool own = error.code().category() == dtrain_category();
    const int code = posix || own ? error.code().value() : static_cast<int>(Errc::unsupported);  // a device's error
    return (posix ? "p" : "d") + std::to_string(code) + " " + std::to_string(rank) + " " + sanitize(error.what());
  }

  /// @returns whether `text` is "yes" @throws the Error of rank 0
  static bool read(std::string_view text) {
    if (text == "yes" || text == "no") return text == "yes";
    std::string_view unread = text.substr(std::min<std::size_t>(1, text.size()));
    const int code = take_number(unread);
    const int rank = take_number(unread);
    const std::error_code as = text.starts_with("p") ? std::error_code(code, std::generic_category())
                                                     : make_error_code(static_cast<Errc>(code));
    throw Error(as, std::string(unread)).with_rank(rank);
  }

 private:
  /// Removes the number at the front of `text`, and the space after it. @returns the number
  static int take_number(std::string_view& text) {
    int number = 0;
    std::size_t at = 0;
    for (; at < text.size() && text[at] >= '0' && text[at] <= '9' && at < 8; ++at) {
      number = number * 10 + (text[at] - '0');
    }
    text.remove_prefix(std::min(at + 1, text.size()));
    return number;
  }
};

/// Blocking: as long as rank 0 works and is alive. Logs a warning every timeout().
template <class Group, class Store>
std::string rank0_result_blocking(const Group& group, const Store& store, const std::string& key,
                                  const std::string& doing) {
  const Deadline::Clock::time_point began = Deadline::Clock::now();
  for (;;) {
    try {
      static_cast<void>(store.get(key, Deadline::after(group.timeout())).wait());
      break;
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
      log(LogLevel::warning, "rank " + std::to_string(group.members().rank_in_job()) + ": after " +
                                 duration_text(Deadline::Clock::now() - began) + " rank " +
                                 std::to_string(group.members().rank_in_job(0)) + " is still " + doing +
                                 "; this rank waits as long as that one is alive");
    }
  }
  return store.take(key, group.world_size() - 1).wait();  // erased once every rank has taken it
}

/// Runs `work()` on rank 0. Every rank gets its result or its Error, which names rank 0 and its host.
/// Collective, blocking: as long as rank 0 works. @param doing for sentences: "writing the file x"
template <class Group, class Work>
bool run_on_rank0_blocking(const Group& group, const std::string& doing, Work work) {
  const auto store = group.store().with_prefix("dtrain/rank 0/");
  const std::string key = std::to_string(group::GroupAccess::of(group).next_number("rank 0"));
  group.start_pending();  // other ranks may wait for this work before they call this
  if (group.rank() != 0) {
    return Rank0Result::read(rank0_result_blocking(group, store, key, doing));
  }
  const int rank = group.members().rank_in_job();
  const std::string where = group.world_size() == 1 ? std::string()
                                                    : " (on rank " + std::to_string(rank) + " on host " +
                                                          group.members().host + ", which does it for all ranks)";
  std::string result;
  try {
    result = work() ? "yes" : "no";
  } catch (const Error& error) {
    result = Rank0Result::of(Error(error.code(), error.what() + where), rank);
  } catch (const std::exception& error) {  // such as out of memory; the other ranks wait for a result
    result = Rank0Result::of(Error(Errc::limit, doing + " ended by " + error.what() + where), rank);
  }
  if (group.world_size() > 1) {
    store.set(key, result).wait();
  }
  return Rank0Result::read(result);
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail
