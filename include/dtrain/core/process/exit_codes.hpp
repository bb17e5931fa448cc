#pragma once
/// @file
/// Exit codes of a job's processes.

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE {

inline constexpr int exit_code_exception = 1;    ///< the body of run() threw
inline constexpr int exit_code_usage = 2;        ///< the command line or the environment is invalid
inline constexpr int exit_code_job_failed = 75;  ///< it failed only because another rank, or launcher, failed first

}  // namespace DTRAIN_NAMESPACE
