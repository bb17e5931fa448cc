#pragma once
/// @file
/// Which job a process belongs to, as its name, the process that started it and its program tell. Pure.

#include <cstdint>
#include <optional>
#include <string>

#include "dtrain/core/version.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// What a process states beside its job's name. What one of two processes does not state is not compared.
struct Origin {
  bool is_exact_job = false;        ///< the name is no other job's: nothing else need be the same
  bool one_starter = false;         ///< the launcher starts all ranks of a host from one process
  std::uint64_t process_space = 0;  ///< the inode of its PID namespace: process ids of another one are not compared
  std::int64_t starter = 0;         ///< the process that started it; 0: not known
  std::uint64_t starter_began = 0;  ///< when that began, in clock ticks since the machine's start
  std::string starter_name{};       ///< for sentences
  std::string program{};            ///< the executable's name, for sentences
  std::string build{};              ///< "build id 5f3a...", or a digest of the executable

  friend bool operator==(const Origin&, const Origin&) = default;
};

/// A process and the job that it belongs to.
struct JobMember {
  std::string description;  ///< "rank 1 on host a (process 12)"
  std::string job;          ///< empty: its launcher gives none
  std::string host_id;
  Origin origin;
};

/// How two processes compare.
struct JobComparison {
  enum class Relation : std::uint8_t { same = 1, doubtful, other };
  Relation relation = Relation::same;
  std::string sentence{};  ///< both values and the remedy, unless they are the same
};

namespace detail {

inline const char* distinct_name_remedy() noexcept {
  return "give each job a port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its own";
}

inline std::string starter_text(const JobMember& member) {
  return "process " + std::to_string(member.origin.starter) + " (" + member.origin.starter_name + ")";
}

inline std::string program_text(const Origin& origin) {
  return "'" + origin.program + "' (" + origin.build + ")";
}

inline JobComparison compare_names(const JobMember& a, const JobMember& b) {
  const char* const one_name = "; start all ranks of one job with the same name, or ";
  if (!a.job.empty() && !b.job.empty()) {
    return {JobComparison::Relation::other, a.description + " belongs to the job '" + a.job +
                                                "', and this is the store of '" + b.job + "', which " + b.description +
                                                " opened; " + distinct_name_remedy()};
  }
  const bool a_named = !a.job.empty();
  return {JobComparison::Relation::other,
          a.description +
              (a_named ? " belongs to the job '" + a.job + "', and this is the store of a job without a name"
                       : " belongs to a job without a name, and this is the store of '" + b.job + "'") +
              ", which " + b.description + " opened" + one_name + distinct_name_remedy()};
}

}  // namespace detail

/// Whether `a`, which wants to join, belongs to the job of `b`: one that opened its store, or has joined from the same
/// host. The name decides where it is no other job's. Else the processes that started the two decide, where both run on
/// one host: in doubt only, where a launcher may have several. Else the program has to be the same one.
inline JobComparison compare_jobs(const JobMember& a, const JobMember& b) {
  using Relation = JobComparison::Relation;
  const bool both_say = !a.origin.program.empty() && !b.origin.program.empty();
  const bool both_named = !a.job.empty() && !b.job.empty();
  const bool exact = a.origin.is_exact_job || b.origin.is_exact_job;
  if (both_named ? a.job != b.job : both_say && exact) {
    return detail::compare_names(a, b);
  }
  if (!both_say || exact) {
    return {};
  }
  const bool comparable = a.host_id == b.host_id && a.origin.process_space == b.origin.process_space &&
                          a.origin.starter != 0 && b.origin.starter != 0;
  const bool one_process = a.origin.starter == b.origin.starter && a.origin.starter_began == b.origin.starter_began;
  if (comparable && one_process) {
    return {};
  }
  const std::string started = a.description + " was started by " + detail::starter_text(a) + ", and " + b.description +
                              " by " + detail::starter_text(b);
  if (comparable && a.origin.one_starter && b.origin.one_starter) {
    return {Relation::other, started + ", so they are of two jobs; " + detail::distinct_name_remedy()};
  }
  if (!a.origin.build.empty() && !b.origin.build.empty() && a.origin.build != b.origin.build) {
    return {Relation::other, a.description + " runs " + detail::program_text(a.origin) + ", and " + b.description +
                                 " runs " + detail::program_text(b.origin) +
                                 "; where they are one job, give all of its ranks the same DTRAIN_JOB_ID; else " +
                                 detail::distinct_name_remedy()};
  }
  if (!comparable) {
    return {};
  }
  return {Relation::doubtful, started + "; where they are of two jobs, " + detail::distinct_name_remedy() +
                                  "; where they are one job, the same DTRAIN_JOB_ID on all of its ranks says so"};
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
