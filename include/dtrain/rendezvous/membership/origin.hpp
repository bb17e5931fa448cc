#pragma once
/// @file
/// Origin: facts about a joining process (starter, program). compare_jobs(): whether two processes belong to one job.
/// Pure.

#include <cstdint>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Facts about a process, apart from its job's name. A fact that one of two processes does not state is not compared.
struct Origin {
  DTRAIN_MEMBERS_DEFINED_APART(Origin);

  bool is_exact_job = false;        ///< the job name is unique to this job: nothing else is compared
  bool one_starter = false;         ///< the launcher starts all ranks of a host from one process
  std::uint64_t process_space = 0;  ///< inode of the PID namespace: starters are compared only within one namespace
  std::int64_t starter = 0;         ///< id of the process that started this one; 0: unknown
  std::uint64_t starter_began = 0;  ///< start time of that process, in clock ticks since the machine's boot
  std::string starter_name{};       ///< the starter's name in error sentences
  std::string program{};            ///< name of the executable, for error sentences
  std::string build{};              ///< "build id 5f3a...", or a digest of the executable

  friend bool operator==(const Origin&, const Origin&) = default;
};

/// A process and the job that it belongs to.
struct JobMember {
  std::string description;  ///< "rank 1 on host a (process 12)"
  std::string job;          ///< job name; empty if the launcher gives none
  std::string host_id;
  Origin origin;
};

/// Result of compare_jobs.
struct JobComparison {
  enum class Relation : std::uint8_t { same = 1, doubtful, other };
  Relation relation = Relation::same;
  std::string sentence{};  ///< both values and the remedy; empty if the relation is `same`
};

namespace detail {

inline constexpr const char* distinct_name_remedy =
    "give each job a port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its own";
}  // namespace detail

/// Whether `a`, which asks to join, belongs to the job of `b`, the opener of the store or a rank on a's host. The first
/// rule that applies decides; starters are comparable on one host, in one PID namespace, if both are known:
/// 1. Both have a job name, and the names differ: other.
/// 2. One job name is exact, the other process has no name, and both state an origin: other.
/// 3. One process states no origin, or a job name is exact: same.
/// 4. The starters are comparable and equal: same.
/// 5. The starters are comparable and differ, and both launchers have one starter on each host: other.
/// 6. The builds are known and differ: other.
/// 7. The starters are comparable and differ: doubtful, since a launcher may have several on a host. Else: same.
JobComparison compare_jobs(const JobMember& a, const JobMember& b);

#if DTRAIN_DEFINITIONS

DTRAIN_DEFINE_MEMBERS(Origin);

namespace detail {

inline std::string starter_text(const JobMember& member) {
  return format_text("process {} ({})", {member.origin.starter, member.origin.starter_name});
}

inline std::string program_text(const Origin& origin) {
  return format_text("'{}' ({})", {origin.program, origin.build});
}

inline JobComparison compare_names(const JobMember& a, const JobMember& b) {
  const char* const one_name = "; start all ranks of one job with the same name, or ";
  if (!a.job.empty() && !b.job.empty()) {
    return {JobComparison::Relation::other,
            format_text("{} belongs to the job '{}', and this is the store of '{}', which {} opened; {}",
                        {a.description, a.job, b.job, b.description, distinct_name_remedy})};
  }
  const bool a_named = !a.job.empty();
  return {JobComparison::Relation::other,
          format_text(
              "{}{}, which {} opened{}{}",
              {a.description,
               a_named ? format_text(" belongs to the job '{}', and this is the store of a job without a name", {a.job})
                       : format_text(" belongs to a job without a name, and this is the store of '{}'", {b.job}),
               b.description, one_name, distinct_name_remedy})};
}

}  // namespace detail

DTRAIN_DEFINED JobComparison compare_jobs(const JobMember& a, const JobMember& b) {
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
  const std::string started =
      format_text("{} was started by {}, and {} by {}",
                  {a.description, detail::starter_text(a), b.description, detail::starter_text(b)});
  if (comparable && a.origin.one_starter && b.origin.one_starter) {
    return {Relation::other, format_text("{}, so they are of two jobs; {}", {started, detail::distinct_name_remedy})};
  }
  if (!a.origin.build.empty() && !b.origin.build.empty() && a.origin.build != b.origin.build) {
    return {
        Relation::other,
        format_text(
            "{} runs {}, and {} runs {}; where they are one job, give all of its ranks the same DTRAIN_JOB_ID; else {}",
            {a.description, detail::program_text(a.origin), b.description, detail::program_text(b.origin),
             detail::distinct_name_remedy})};
  }
  if (!comparable) {
    return {};
  }
  return {Relation::doubtful, format_text("{}; where they are of two jobs, {}; where they are one job, the same "
                                          "DTRAIN_JOB_ID on all of its ranks says so",
                                          {started, detail::distinct_name_remedy})};
}

#endif  // DTRAIN_DEFINITIONS

}  // namespace DTRAIN_NAMESPACE::rendezvous
