#pragma once
/// @file
/// Which worker's end is the cause of the others': a pure function of how all ended.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/launch/supervise/exit_status.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// How a worker ended. Listed in the order in which the ends were noticed. A record (see record.hpp).
struct WorkerEnd {
  int rank = 0;
  ExitStatus status;
  bool left = true;      ///< it had said that it was done (leave)
  bool stopped = false;  ///< it ended after the launcher had signalled it

  /// Leaving with exit code 0 is the only end that is none; without leaving it is a loss.
  bool failed() const noexcept { return status != ExitStatus{} || !left; }

  /// It failed because another rank had failed.
  bool is_secondary() const noexcept { return status == ExitStatus{exit_code_job_failed, 0}; }

  /// The others may have failed because of it.
  bool is_primary() const noexcept { return failed() && !stopped && !is_secondary(); }

  /// Exit code 0 without leaving must not look like success.
  int exit_code() const noexcept { return status == ExitStatus{} && !left ? 1 : status.exit_code(); }

  std::string text() const {
    return status == ExitStatus{} && !left ? "exit code 0 before it had left the job" : status.text();
  }

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.rank);
    fields.number(self.status.code);
    fields.number(self.status.signal);
    fields.flag(self.left);
    fields.flag(self.stopped);
  }
};

/// The end that the job's end is due to; nothing where all is well. Ends of one moment are told apart by the first
/// cause that the store knows. Where all failed because of another, one that ended by itself comes before one that was
/// stopped.
inline std::optional<WorkerEnd> first_failure(const std::vector<WorkerEnd>& ends, const std::optional<Cause>& cause) {
  const auto first_that = [&ends](auto holds) {
    const auto found = std::find_if(ends.begin(), ends.end(), holds);
    return found == ends.end() ? std::nullopt : std::optional<WorkerEnd>(*found);
  };
  std::optional<WorkerEnd> first =
      first_that([&](const WorkerEnd& end) { return end.is_primary() && cause && cause->rank == end.rank; });
  first = first ? first : first_that([](const WorkerEnd& end) { return end.is_primary(); });
  first = first ? first : first_that([](const WorkerEnd& end) { return end.failed() && !end.stopped; });
  return first ? first : first_that([](const WorkerEnd& end) { return end.failed(); });
}

}  // namespace DTRAIN_NAMESPACE::launch
