#pragma once
/// @file
/// run() and init_process_group(): start or join the ranks of a job.

#include <unistd.h>

#include <cerrno>
#include <concepts>
#include <cstdio>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/exception_text.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/exit_codes.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/launch/output/standard_stream.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/process_group.hpp"

namespace DTRAIN_NAMESPACE {

/// argv without the launcher's flags; [0] is the program's name.
using Arguments = std::span<char* const>;

/// `body(group)` or `body(group, arguments)`, returning an exit code or nothing.
template <class Body, class P>
concept RunBody = std::invocable<Body, ProcessGroup<P>> || std::invocable<Body, ProcessGroup<P>, Arguments>;

namespace detail {

/// Passes facts of the backend to a launcher that takes them: the number of visible devices (`visible_devices()`), and
/// the largest number of ranks (`most_ranks`) if the backend has one.
template <class P>
launch::StartResult start(int argc, char** argv) {
  launch::BackendFacts facts;
  facts.name = P::Backend::name();
  if constexpr (requires { P::Backend::visible_devices(); }) {
    facts.visible_devices = &P::Backend::visible_devices;
  }
  if constexpr (requires { P::Backend::most_ranks; }) {
    facts.most_ranks = P::Backend::most_ranks;
  }
  if constexpr (requires { P::Launcher::start(argc, argv, facts); }) {
    return P::Launcher::start(argc, argv, facts);
  } else {
    return P::Launcher::start(argc, argv);
  }
}

/// The system keeps eight bits of an exit code. Nonzero codes that it would truncate to 0 become exit_code_exception.
inline int as_exit_code(long long code) noexcept {
  return code != 0 && (code & 0xff) == 0 ? exit_code_exception : static_cast<int>(code);
}

template <class P, RunBody<P> Body>
int call_body(Body& body, ProcessGroup<P> group, Arguments arguments) {
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::invocable<Body, ProcessGroup<P>, Arguments>) {
      return std::invoke(body, std::move(group), arguments);
    } else {
      return std::invoke(body, std::move(group));
    }
  };
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    return 0;
  } else {
    return as_exit_code(static_cast<long long>(call()));
  }
}

inline int exit_code_of(const Error& error) {
  const bool usage = error.code() == make_error_code(Errc::usage) || error.code() == make_error_code(Errc::identity);
  return usage ? exit_code_usage : exit_code_exception;
}

/// Joins, runs the body, leaves. An exception becomes a line on stderr, a report to the job and an exit code. A process
/// that the body forked exits when it returns from the body.
template <class P, RunBody<P> Body>
int run_worker(const launch::RankProcess& worker, Body& body, const GroupOptions& options) {
  const std::string prefix = format_text("rank {}: ", {worker.identity.rank});
  const pid_t process = ::getpid();
  std::optional<ProcessGroup<P>> group;
  const auto end_if_forked = [&](int exit_code) {
    if (::getpid() != process) {  // a forked process has none of the group's threads and must not act as the rank
      log(LogLevel::warning,
          prefix + "a process that the body forked came back from it; let such a process end with _exit or exec");
      static_cast<void>(std::fflush(nullptr));
      ::_exit(exit_code);
    }
  };
  const auto fail = [&](const char* text, int exit_code, std::optional<int> failed_rank = {}) {
    end_if_forked(exit_code);
    bool reported_by_another = false;  // an error of all ranks (a flag, a missing file) is printed once
    if (group) {
      group::GroupAccess::of(*group).report_exception(text, failed_rank);
      const std::optional<Cause> cause = group::GroupAccess::of(*group).failure()->cause();
      reported_by_another = cause && cause->rank != group->rank() && cause->text == text;
    }
    const bool names_rank = std::string_view(text).starts_with(prefix.substr(0, prefix.size() - 2) + " on host ");
    log(reported_by_another ? LogLevel::info : LogLevel::error, (names_rank ? "" : prefix) + text);
    return exit_code;
  };
  try {
    group.emplace(ProcessGroup<P>::join(worker, options));
    int exit_code = call_body<P>(body, *group, worker.arguments());
    end_if_forked(exit_code);
    if (const std::optional<Cause> cause = group::GroupAccess::of(*group).failure()->cause()) {
      const int returned = exit_code;
      if (exit_code == 0) {
        exit_code = cause->rank == worker.identity.rank ? exit_code_exception : exit_code_job_failed;
      }
      log(LogLevel::warning, format_text("{}the body returned {} although the job had failed (exit code {}): {}",
                                         {prefix, returned, exit_code, cause->sentence()}));
    }
    group->leave();
    return exit_code;
  } catch (const JobFailed& failed) {
    end_if_forked(exit_code_job_failed);
    log(LogLevel::error, format_text("{}ends because {}", {prefix, failed.what()}));
    return exit_code_job_failed;
  } catch (const Error& error) {
    return fail(error.what(), exit_code_of(error), error.rank());
  } catch (...) {
    return fail(exception_text().c_str(), exit_code_exception);
  }
}

/// Flushes stdout. Logs a warning if output was lost.
inline void report_lost_output(const launch::RankProcess& worker) {
  const bool had_failed = std::ferror(stdout) != 0;
  const int reason = std::fflush(stdout) != 0 ? errno : 0;
  if (reason != 0 || had_failed) {
    log(LogLevel::warning, format_text("rank {}: what it printed on {} is lost, at least in part: {}",
                                       {worker.identity.rank, launch::stream_name("stdout", STDOUT_FILENO),
                                        reason != 0 ? std::generic_category().message(reason) : "a write failed"}));
  }
}

}  // namespace detail

/// Runs `body` on every rank. Must be the first statement of main(). Blocking: until the job ends.
/// @returns the process's exit code:
/// - the body's; 1 for nonzero codes that the system would truncate to 0, such as 256;
/// - 1 after an exception, whose text is on stderr; 2 for a usage or identity error;
/// - 75 if this rank failed because another rank failed first.
/// A body that returns 0 after the job has failed counts as failed: 1 if its own rank was the first cause, else 75.
/// With launch::PerNode the process that the user started becomes the launcher. It never calls `body`, and returns the
/// exit code of the first worker that failed (128 + signal).
template <class P, RunBody<P> Body>
int run(int argc, char** argv, Body body, const GroupOptions& options = {}) {
  launch::StartResult start = detail::start<P>(argc, argv);
  if (!start.worker) {
    return start.exit_code;
  }
  const int exit_code = detail::run_worker<P>(*start.worker, body, options);
  detail::report_lost_output(*start.worker);
  return exit_code;
}

/// Joins the job and returns its group, for programs that are started once for each rank.
/// Collective, blocking. @throws Error (identity, and as ProcessGroup::join).
template <class P>
ProcessGroup<P> init_process_group(launch::JoinOptions options = {}, const GroupOptions& group_options = {}) {
  static_assert(
      P::Launcher::returns_into_user_code,
      "dtrain: init_process_group needs launch::PerProcess; the launcher process of launch::PerNode never returns "
      "into user code, so use dtrain::run");
  return ProcessGroup<P>::join(launch::rank_process_of(std::move(options)), group_options);
}

}  // namespace DTRAIN_NAMESPACE
