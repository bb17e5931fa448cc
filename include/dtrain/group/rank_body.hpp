#pragma once
/// @file
/// run_rank(): a rank joins its job, runs its body (RankBody) and leaves; errors become an exit code. end_if_forked():
/// ends a process that the body forked.

#include <sys/types.h>

#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/group/rank_context.hpp"

namespace DTRAIN_NAMESPACE::group {

/// A rank's body, and its group once it has joined.
class RankBody {
 public:
  virtual RankContext& join_job() = 0;
  virtual int call_body() = 0;

 protected:
  ~RankBody() = default;
};

/// Joins, runs the body, leaves. An exception becomes a line on stderr, a report to the job and an exit code. A process
/// that the body forked exits when it returns from the body.
int run_rank(int rank, RankBody& body);

/// Ends a process other than `process`: a process that the body forked has none of the group's threads, and must not
/// act as the rank.
void end_if_forked(pid_t process, const std::string& prefix, int exit_code);

/// Flushes stdout. Logs a warning if output was lost.
void report_lost_output(int rank);

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string_view>
#include <system_error>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/launch/output/standard_stream.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

inline int exit_code_of(const Error& error) {
  const bool usage = error.code() == make_error_code(Errc::usage) || error.code() == make_error_code(Errc::identity);
  return usage ? exit_code_usage : exit_code_exception;
}

}  // namespace detail

DTRAIN_DEFINED void end_if_forked(pid_t process, const std::string& prefix, int exit_code) {
  if (::getpid() != process) {
    log(LogLevel::warning,
        prefix + "a process that the body forked returned from the body; end such a process by _exit or exec");
    static_cast<void>(std::fflush(nullptr));
    ::_exit(exit_code);
  }
}

DTRAIN_DEFINED int run_rank(int rank, RankBody& body) {
  const std::string prefix = format_text("rank {}: ", {rank});
  const pid_t process = ::getpid();
  RankContext* job = nullptr;  // the rank's job, once it has joined
  const auto end_if_forked = [&](int exit_code) { group::end_if_forked(process, prefix, exit_code); };
  const auto fail = [&](const std::string& text, int exit_code, std::optional<int> failed_rank = {}) {
    end_if_forked(exit_code);
    bool reported_by_another = false;  // an error of all ranks (a flag, a missing file) is printed once
    if (job != nullptr) {
      job->report_exception(text, failed_rank);
      const std::optional<Cause> cause = job->control_plane.failure()->cause();
      reported_by_another = cause && cause->rank != job->control_plane.membership().rank && cause->text == text;
    }
    const bool names_rank = std::string_view(text).starts_with(prefix.substr(0, prefix.size() - 2) + " on host ");
    log(reported_by_another ? LogLevel::info : LogLevel::error, (names_rank ? "" : prefix) + text);
    return exit_code;
  };
  try {
    job = &body.join_job();
    int exit_code = body.call_body();
    end_if_forked(exit_code);
    if (const std::optional<Cause> cause = job->control_plane.failure()->cause()) {
      const int returned = exit_code;
      if (exit_code == 0) {
        exit_code = cause->rank == rank ? exit_code_exception : exit_code_job_failed;
      }
      log(LogLevel::warning, format_text("{}the body returned {} although the job had failed (exit code {}): {}",
                                         {prefix, returned, exit_code, cause->sentence()}));
    }
    job->require_may_block();
    job->leave_blocking();
    return exit_code;
  } catch (const JobFailed& failed) {
    end_if_forked(exit_code_job_failed);
    log(LogLevel::error, format_text("{}ends because {}", {prefix, failed.what()}));
    return exit_code_job_failed;
  } catch (const Error& error) {
    return fail(error.what(), detail::exit_code_of(error), error.rank());
  } catch (...) {
    return fail(exception_text(), exit_code_exception);
  }
}

DTRAIN_DEFINED void report_lost_output(int rank) {
  const bool had_failed = std::ferror(stdout) != 0;
  const int reason = std::fflush(stdout) != 0 ? errno : 0;
  if (reason != 0 || had_failed) {
    log(LogLevel::warning, format_text("rank {}: its output on {} is lost, at least in part: {}",
                                       {rank, launch::stream_name("stdout", STDOUT_FILENO),
                                        reason != 0 ? std::generic_category().message(reason) : "a write failed"}));
  }
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
