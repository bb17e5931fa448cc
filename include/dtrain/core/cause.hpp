#pragma once
/// @file
/// Cause: the first cause of a job's failure. JobFailed, PeerLost: exceptions that carry it. Exit codes of a job's
/// processes.

#include <cstdint>
#include <string>
#include <utility>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE {

/// Exit code of a rank whose body of run() threw.
/// @ingroup errors
inline constexpr int exit_code_exception = 1;

/// Exit code of a process whose command line or environment is invalid.
/// @ingroup errors
inline constexpr int exit_code_usage = 2;

/// Exit code of a process that failed only because another rank, or launcher, failed first.
/// @ingroup errors
inline constexpr int exit_code_job_failed = 75;

/// Kind of failure that ended a job.
/// @ingroup errors
enum class CauseKind : std::uint8_t {
  lost = 1,      ///< a rank's connection closed before it left: killed, crashed, or left before the end
  exception,     ///< an exception left user code or a step on a rank
  timeout,       ///< a deadline passed
  disagreement,  ///< ranks differ in a value that must be the same
  stopped,       ///< the launcher received a signal to stop
  resized,       ///< end of an elastic job's attempt: the next one has more workers
};

/// Why a job failed. The first cause that is posted is the job's. `rank` is -1 if no rank is its origin.
/// @ingroup errors
struct Cause {
  DTRAIN_MEMBERS_DEFINED_APART(Cause);
  Cause(CauseKind kind_, int rank_, std::string host_, std::string text_);

  CauseKind kind = CauseKind::lost;
  int rank = -1;
  std::string host;
  std::string text;  ///< the rank's action, the exception's text, or the difference

  /// "rank 1 on host gpu-a was lost: ...".
  std::string sentence() const;
};

/// Thrown on a rank that failed only because the job failed elsewhere first.
/// @ingroup errors
class JobFailed : public Error {
 public:
  explicit JobFailed(Cause cause, SourceLocation where = SourceLocation::current())
      : JobFailed(Errc::job_failed, std::move(cause), where) {}
  const Cause& cause() const noexcept { return cause_; }

 protected:
  JobFailed(Errc code, Cause cause, SourceLocation where)
      : Error(code, cause.sentence(), where), cause_(std::move(cause)) {}

 private:
  Cause cause_;
};

/// A JobFailed because a rank's process ended.
/// @ingroup errors
class PeerLost : public JobFailed {
 public:
  explicit PeerLost(Cause cause, SourceLocation where = SourceLocation::current())
      : JobFailed(Errc::peer_lost, std::move(cause), where) {}
  /// The lost rank, and its host.
  int lost_rank() const noexcept { return cause().rank; }
  const std::string& host() const noexcept { return cause().host; }
};

/// @throws PeerLost if the cause is a lost rank, otherwise JobFailed
[[noreturn]] void throw_cause(const Cause& cause, SourceLocation where = SourceLocation::current());

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINE_MEMBERS(Cause);

DTRAIN_NOT_INLINED DTRAIN_DEFINED Cause::Cause(CauseKind kind_, int rank_, std::string host_, std::string text_)
    : kind(kind_), rank(rank_), host(std::move(host_)), text(std::move(text_)) {}

DTRAIN_DEFINED std::string Cause::sentence() const {
  const std::string who =
      rank < 0 ? "the job" : format_text("rank {}{}{}", {rank, host.empty() ? "" : " on host ", host});
  switch (kind) {
    case CauseKind::lost: return format_text("{} was lost: {}", {who, text});
    case CauseKind::exception: return format_text("{} failed: {}", {who, text});
    case CauseKind::timeout: return format_text("{} timed out: {}", {who, text});
    case CauseKind::disagreement: return format_text("ranks disagree: {}", {text});
    case CauseKind::stopped: return format_text("{} was stopped: {}", {who, text});
    case CauseKind::resized: return format_text("the ranks of the job change: {}", {text});
  }
  return format_text("{}: {}", {who, text});
}

DTRAIN_DEFINED void throw_cause(const Cause& cause, SourceLocation where) {
  if (cause.kind == CauseKind::lost) {
    throw PeerLost(cause, where);
  }
  throw JobFailed(cause, where);
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE
