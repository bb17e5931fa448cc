#pragma once
/// @file
/// Join check: distinguishes the processes of this job from those of another job. Pure.

#include <map>
#include <string>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/protocol/limits.hpp"
#include "dtrain/rendezvous/server/store_job_options.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// Compares a Join with the opener and earlier ranks: job names always, starters and programs if a rank is the opener.
class JoinCheck {
 public:
  JoinCheck(const std::string& owner, const std::string& job, StoreOpener opener)
      : process_(opener.process),
        listens_at_(std::move(opener.listens_at)),
        opener_{owner + (opener.process != 0 ? format_text(" (process {})", {opener.process}) : ""), as_received(job),
                as_received(opener.host_id), std::move(opener.origin)} {}

  bool has_opener() const noexcept { return process_ != 0; }

  /// "rank 0 on host a (process 12)", or the launcher.
  const std::string& opener() const noexcept { return opener_.description; }

  /// StoreOpener::listens_at.
  const std::string& listens_at() const noexcept { return listens_at_; }

  /// Whether the process hosts its job's store, but has not opened this one.
  bool opens_another(const Join& join) const noexcept {
    return join.opens_store && (join.process != process_ || join.info.host_id != opener_.host_id);
  }

  /// Compares with the opener, then with the first rank that joined from the same host.
  JobComparison compare(const Join& join) const {
    const JobMember member = member_of(join);
    JobComparison compared = compare_jobs(member, opener_);
    const auto neighbour = first_of_host_.find(member.host_id);
    if (compared.relation != JobComparison::Relation::same || neighbour == first_of_host_.end()) {
      return compared;
    }
    return compare_jobs(member, neighbour->second);
  }

  void add(const Join& join) {
    if (has_opener()) {
      first_of_host_.try_emplace(join.info.host_id, member_of(join));
    }
  }

 private:
  /// Sanitizes and cuts a name as Serializer::text does, so that it compares equal to a received one.
  static std::string as_received(const std::string& name) {
    std::string shown = sanitize(std::string(truncate_utf8(name, max_name_bytes)));
    shown.resize(truncate_utf8(shown, max_name_bytes).size());
    return shown;
  }

  static JobMember member_of(const Join& join) {
    return {process_text(join), join.job, join.info.host_id, join.origin};
  }

  std::int64_t process_;
  std::string listens_at_;
  JobMember opener_;
  std::map<std::string, JobMember> first_of_host_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
