#pragma once
/// @file
/// Work on a file that rank 0 does, and whose outcome every rank gets.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/printable.hpp"
#include "dtrain/core/seconds_text.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

/// How rank 0's work on a file ended, as all ranks are told: "yes", "no", or what it threw and which rank that is.
struct FileOutcome {
  static std::string of(const Error& error, int rank) {
    const bool posix = error.code().category() == std::generic_category();
    const bool own = error.code().category() == dtrain_category();
    const int code = posix || own ? error.code().value() : static_cast<int>(Errc::unsupported);  // a device's failure
    return (posix ? "p" : "d") + std::to_string(code) + " " + std::to_string(rank) + " " + printable(error.what());
  }

  /// @returns whether it says "yes" @throws Error, the one that rank 0 has
  static bool read(std::string_view told) {
    if (told == "yes" || told == "no") return told == "yes";
    std::string_view rest = told.substr(std::min<std::size_t>(1, told.size()));
    const int code = take_number(rest);
    const int rank = take_number(rest);
    const std::error_code as = told.starts_with("p") ? std::error_code(code, std::generic_category())
                                                     : make_error_code(static_cast<Errc>(code));
    throw Error(as, std::string(rest)).with_rank(rank);
  }

 private:
  /// The digits at the front of `text`, which it is cut off from with the space behind them.
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

/// Blocking: as long as rank 0 works and is alive; after each timeout() a warning says so.
template <class Group, class Store>
std::string outcome_blocking(const Group& group, const Store& store, const std::string& key, const std::string& doing) {
  const Deadline::Clock::time_point began = Deadline::Clock::now();
  for (;;) {
    try {
      static_cast<void>(store.get(key, Deadline::after(group.timeout())).wait());
      break;
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
      log(LogLevel::warning, "rank " + std::to_string(group.members().rank_in_job()) + ": after " +
                                 seconds_text(Deadline::Clock::now() - began) + " rank " +
                                 std::to_string(group.members().rank_in_job(0)) + " is still " + doing +
                                 "; this rank waits as long as that one is alive");
    }
  }
  return store.take(key, group.world_size() - 1).wait();  // once: it counts those who have taken it
}

/// Runs `work()` on rank 0 and gives every rank its result or its Error, which says where it happened.
/// Collective, blocking: as long as rank 0 works. @param doing "writing the file x"
template <class Group, class Work>
bool on_rank_0_blocking(const Group& group, const std::string& doing, Work work) {
  const auto store = group.store().with_prefix("dtrain/rank 0/");
  const std::string key = std::to_string(group.next_number("rank 0"));
  group.run_enqueued();  // other ranks may wait for it before they come here
  if (group.rank() != 0) {
    return FileOutcome::read(outcome_blocking(group, store, key, doing));
  }
  const int rank = group.members().rank_in_job();
  const std::string where = group.world_size() == 1 ? std::string()
                                                    : " (on rank " + std::to_string(rank) + " on host " +
                                                          group.members().host + ", which does it for all ranks)";
  std::string outcome;
  try {
    outcome = work() ? "yes" : "no";
  } catch (const Error& error) {
    outcome = FileOutcome::of(Error(error.code(), error.what() + where), rank);
  } catch (const std::exception& error) {  // out of memory, say: the others wait for an outcome
    outcome = FileOutcome::of(Error(Errc::limit, doing + " ended by " + error.what() + where), rank);
  }
  if (group.world_size() > 1) {
    store.set(key, outcome).wait();
  }
  return FileOutcome::read(outcome);
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail
