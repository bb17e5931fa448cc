#pragma once
/// @file
/// Work on a file that rank 0 does, and whose outcome every rank gets.

#include <algorithm>
#include <cstddef>
#include <exception>
#include <string>
#include <string_view>
#include <system_error>

#include "dtrain/core/error.hpp"
#include "dtrain/core/printable.hpp"

namespace DTRAIN_NAMESPACE::ddp::detail {

/// How rank 0's work on a file ended, as all ranks are told: "yes", "no", or what it threw.
struct FileOutcome {
  static std::string of(const Error& error) {
    const bool posix = error.code().category() == std::generic_category();
    const bool own = error.code().category() == dtrain_category();
    const int code = posix || own ? error.code().value() : static_cast<int>(Errc::unsupported);  // a device's failure
    return (posix ? "p" : "d") + std::to_string(code) + " " + printable(error.what());
  }

  /// @returns whether it says "yes" @throws Error, the one that rank 0 has
  static bool read(std::string_view told) {
    if (told == "yes" || told == "no") return told == "yes";
    int code = 0;
    std::size_t at = 1;
    for (; at < told.size() && told[at] >= '0' && told[at] <= '9' && at < 8; ++at) {
      code = code * 10 + (told[at] - '0');
    }
    const std::string sentence(told.substr(std::min(at + 1, told.size())));
    if (told.starts_with("p")) throw Error(std::error_code(code, std::generic_category()), sentence);
    throw Error(static_cast<Errc>(code), sentence);
  }
};

/// Runs `work()` on rank 0 and gives every rank its result or its Error. Collective, blocking.
template <class Group, class Work>
bool on_rank_0_blocking(const Group& group, Work work) {
  const auto store = group.store().with_prefix("dtrain/rank 0/");
  group.run_enqueued();  // other ranks may wait for it before they come here
  if (group.rank() == 0) {
    std::string outcome;
    try {
      outcome = work() ? "yes" : "no";
    } catch (const Error& error) {
      outcome = FileOutcome::of(error);
    } catch (const std::exception& error) {  // out of memory, say: the others wait for an outcome
      outcome = FileOutcome::of(Error(Errc::limit, std::string("rank 0's work on a file ended by ") + error.what()));
    }
    store.set_blocking("outcome", outcome);
  }
  store.barrier_blocking("done");
  const std::string outcome = store.get_blocking("outcome");
  store.barrier_blocking("heard");
  if (group.rank() == 0) {
    store.erase_blocking("outcome");
  }
  return FileOutcome::read(outcome);
}

}  // namespace DTRAIN_NAMESPACE::ddp::detail
