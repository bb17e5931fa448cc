#pragma once
/// @file
/// group::RankBody: a rank of run(), which joins its job, runs its body and leaves.

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

/// Flushes stdout. Logs a warning if output was lost.
void report_lost_output(int rank);

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS
#include "dtrain/group/rank_body_definitions.hpp"
#endif
