#pragma once
/// @file
/// JobState of a JobServer: state machine of joining, first cause and leaving. JoinCheck: tells this job's processes
/// from another's. Pure.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/open_files.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/rendezvous/limits.hpp"
#include "dtrain/rendezvous/membership/rank_set.hpp"
#include "dtrain/rendezvous/protocol/message.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/rendezvous/server_state/rank_table.hpp"
#include "dtrain/rendezvous/server_state/request_handler.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The rank that opens a job's store, with which joining ranks are compared.
struct StoreOpener {
  std::int64_t process = 0;  ///< process id; 0: no rank of the job opens the store, and only job names are compared
  std::string host_id{};
  Origin origin{};
  std::string listens_at{};  ///< a clause in the error of a join timeout: "rank 0 listens at 10.0.0.2:29500, and ..."
};

/// One job of a server.
struct StoreJobOptions {
  DTRAIN_MEMBERS_NOT_INLINED(StoreJobOptions);

  ClientRole role = ClientRole::rank;
  int world_size = 1;
  std::uint64_t attempt = 0;  ///< ranks of an earlier one are rejected
  std::string job{};          ///< job name; empty: every name may join, unless the opener has an origin
  /// Process that states the world size, for error sentences: "rank 0 on host a", "the launcher on host a".
  std::string owner = "the store";
  StoreOpener opener{};           ///< the rank that opens the store, if a rank does
  std::size_t further_files = 0;  ///< files that this process will open in addition to the job's connections
  Deadline join_deadline = Deadline::after(std::chrono::seconds(600));  ///< all ranks join by then
  /// How long the loss of a rank may wait for a more precise cause than the end of its connection. A launcher knows how
  /// its worker ended, but may learn it after the end of the connection.
  std::chrono::milliseconds loss_grace{0};
  bool goes_on_after_loss = false;  ///< an elastic job, which says no more of a loss than who was lost
  bool prints_statuses = true;  ///< after a failure; false: the owner takes the table (JobServer::take_status_table)

  /// @name Called on the loop's thread. They must not throw, post a failure, open a job or destroy the server.
  /// @{
  std::function<void(const Cause&)> on_failure = [](const Cause&) {};
  std::function<void(int rank, const std::string& host)> on_joined = [](int, const std::string&) {};
  std::function<void(int rank)> on_left = [](int) {};
  /// The sentence of a join timeout, for a job of other members than ranks; empty: JobState's.
  std::function<std::string(const std::vector<int>& missing)> missing_text{};
  /// @}
};

/// Options that all jobs of a server share.
struct ServerOptions {
  std::optional<Secret> secret{};  ///< every process must know it to join
  Limits limits{};
};

/// The cause of failure if this process may open too few files; nullopt if it may open enough. Checked before ranks
/// join: ranks that find no free file would only time out.
inline std::optional<Cause> too_few_files(const StoreJobOptions& job) {
  constexpr std::size_t spare = 4;  // own session, one pending connection, files that are open briefly
  const auto members = static_cast<std::size_t>(job.world_size);
  const std::size_t needed = open_files() + members + job.further_files + spare;
  const std::size_t limit = open_files_limit().value_or(needed);
  if (needed <= limit) {
    return std::nullopt;
  }
  return Cause{
      CauseKind::exception,
      -1,
      {},
      format_text("{} serves the store of {}{} and needs {} open files for that, but may open {}; raise the hard limit "
                  "(ulimit -Hn {}, systemd's LimitNOFILE, docker's --ulimit nofile)",
                  {job.owner, members, job.role == ClientRole::rank ? " ranks" : " launchers", needed, limit, needed})};
}

/// Pending connections that a server keeps open before they join: `wanted`, but at most half of the files that this
/// process may open. The rest is for joined ranks.
inline std::size_t pending_connection_limit(std::size_t wanted) noexcept {
  return std::min(wanted, std::max(open_files_limit().value_or(2 * wanted) / 2, std::size_t{1}));
}

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

/// State of one job; its RequestHandler serves requests. Threads: one. Its Limits bound its memory, whatever it
/// receives.
class JobState {
 public:
  /// @param sink sends messages and reports ranks; outlives the state
  /// @param id of this attempt of the job, which every rank receives
  /// @param job name of the job; a Join is compared with it and with `opener`, the rank that opens the store
  JobState(JobSink& sink, int world_size, std::string owner, std::string id, const Limits& limits,
           const std::string& job = {}, StoreOpener opener = {})
      : sink_(sink),
        id_(std::move(id)),
        join_check_(owner, job, std::move(opener)),
        rank_table_(world_size, std::move(owner)),
        request_handler_(world_size, limits, sink) {}
  JobState(const JobState&) = delete;
  JobState& operator=(const JobState&) = delete;
  const std::optional<Cause>& cause() const noexcept { return cause_; }
  bool formed() const noexcept { return formed_; }
  const RankTable& rank_table() const noexcept { return rank_table_; }
  const KeyValueMap& keys() const noexcept { return request_handler_.keys(); }

  /// Whether no rank is left to serve: all ranks joined (or the job failed), and all have left or were lost.
  bool over() const noexcept { return (formed_ || cause_) && rank_table_.present() == 0; }

  bool has_joined(SessionId session) const { return rank_of(session).has_value(); }
  std::optional<int> rank_of(SessionId session) const { return request_handler_.rank_of(session); }

  /// Handles the Join of a process that has proved the secret. @pre the session is new
  /// @param silence how long ago the process that has the same rank was heard of, if there is one
  JoinResult join(SessionId session, const Join& join, std::chrono::milliseconds silence = {}) {
    const JobComparison compared = join_check_.compare(join);
    if (compared.relation == JobComparison::Relation::other) {
      record_refusal(compared.sentence);
      return Refused{compared.sentence, true};
    }
    if (cause_) {
      return Failure{*cause_};
    }
    JoinResult result = claim(session, join, silence);
    if (const Refused* refused = std::get_if<Refused>(&result)) {
      record_refusal(refused->sentence);
      return result;
    }
    if (const Failure* failure = std::get_if<Failure>(&result)) {
      post(failure->cause);
      return result;
    }
    request_handler_.open(session, join.info.rank);
    join_check_.add(join);
    if (compared.relation == JobComparison::Relation::doubtful && !std::exchange(has_warned_, true)) {
      sink_.warn(compared.sentence);  // one warning for each job
    }
    sink_.on_joined(join.info.rank, join.info.host);
    if (rank_table_.complete()) {
      send_welcomes();
    }
    return result;
  }

  /// A rank whose connection broke before it could read Welcome has joined again: sends what the rank has missed.
  void repeat_welcome(SessionId session) {
    if (cause_) {
      return sink_.send(session, Failure{*cause_});
    }
    if (formed_) {
      send_welcomes(session);
    }
  }

  /// Keeps the sentence of a rejection for the error of a join timeout: the rejected process may be the missing rank.
  void record_refusal(std::string sentence) { last_refusal_ = std::move(sentence); }

  /// Handles a rank's message. @pre has_joined(session)
  void receive(SessionId session, FromRank&& message) {
    std::visit([&](auto& each) { on(session, each); }, message);
  }

  /// Removes a session that has ended. @returns the loss, for post(), if its rank had joined and not left
  std::optional<Cause> session_ended(SessionId session, const std::string& how) {
    const std::optional<int> rank = request_handler_.rank_of(session);
    if (!rank) {
      return std::nullopt;
    }
    const std::string doing = formed_ ? request_handler_.doing(session) : "while the ranks were joining";
    Cause cause{CauseKind::lost, *rank, rank_table_.at(*rank).info.host, format_text("{} {}", {how, doing})};
    remove(session, *rank, RankTable::RankState::lost);
    return cause;
  }

  /// Fails the job. Only the first cause counts; every joined rank receives it at once.
  void post(const Cause& cause) {
    if (cause_) {
      return;
    }
    cause_ = cause;
    sink_.on_failure(cause);
    request_handler_.fail(cause);
  }

  /// " (a process was refused: ...)", which may be a missing rank; empty if none was.
  std::string refusal_text() const {
    return last_refusal_.empty() ? std::string() : format_text(" (a process was refused: {})", {last_refusal_});
  }

  /// The ranks that have not joined yet. @param noun of one
  std::string missing(const char* noun = "rank") const {
    return rank_list(rank_table_.ranks_in(RankTable::RankState::not_joined), 16, noun);
  }

  /// Fails the job if not all ranks have joined. @param waited for the error sentence: "600 s"
  void on_join_timeout(const std::string& waited) {
    if (formed_ || cause_) {
      return;
    }
    std::string text = format_text(
        "within {} only {} of {} joined, {} did not; see whether they run and know the address of the store{}",
        {waited, rank_list(rank_table_.ranks_in(RankTable::RankState::joined)), rank_table_.world_size(), missing(),
         join_check_.listens_at().empty() ? "" : format_text(": {}", {join_check_.listens_at()})});
    text += refusal_text();
    post(Cause{CauseKind::timeout, -1, {}, std::move(text)});
  }

 private:
  /// Admits the rank. While a job whose store a rank opened still forms, a second claim of a rank or of the store fails
  /// it. The cause may be two jobs at one port that no fact distinguishes.
  JoinResult claim(SessionId session, const Join& join, std::chrono::milliseconds silence) {
    const bool opens_another = join_check_.opens_another(join);
    const bool comes_again = rank_table_.find_process(join) != nullptr;  // its first connection may not have ended yet
    const RankTable::RankEntry* const taken = comes_again ? nullptr : rank_table_.find(join.info.rank);
    const bool one_size = join.world_size == rank_table_.world_size();
    if (join_check_.has_opener() && !rank_table_.complete() && one_size && (opens_another || taken != nullptr)) {
      return Failure{
          Cause{CauseKind::disagreement, join.info.rank, join.info.host,
                format_text("{} claims a place that {} has, while the job forms: two jobs use one port, or "
                            "a rank was given twice; {}, and each process its own rank",
                            {process_text(join), opens_another ? join_check_.opener() : taken->process_text(),
                             detail::distinct_name_remedy})}};
    }
    if (opens_another) {
      return Refused{format_text("{} has opened this store, for another job; {}",
                                 {join_check_.opener(), detail::distinct_name_remedy}),
                     true};
    }
    return rank_table_.admit(session, join, silence);
  }

  /// Sends Welcome to every rank, or fails the job. @param only to this session alone
  void send_welcomes(std::optional<SessionId> only = std::nullopt) {
    auto formed = form_membership(rank_table_.info(), id_);
    if (const Cause* cause = std::get_if<Cause>(&formed)) {
      return post(*cause);
    }
    formed_ = true;
    for (Membership& membership : std::get<std::vector<Membership>>(formed)) {
      const SessionId session = rank_table_.at(membership.rank).session;
      if (!only || only == session) {
        sink_.send(session, Welcome{std::move(membership)});
      }
    }
  }

  void remove(SessionId session, int rank, RankTable::RankState how) {
    rank_table_.remove(rank, how);
    request_handler_.close(session);
  }

  void on(SessionId session, Request& request) {
    if (cause_) {
      return sink_.send(session, Response{request.id, Status::failed, cause_->sentence(), 0});
    }
    if (!formed_) {
      return sink_.send(session, Response{request.id, Status::refused, "not all ranks have joined yet", 0});
    }
    request_handler_.receive(session, request);
  }

  void on(SessionId session, const Cancel& cancel) { request_handler_.receive(session, cancel); }

  void on(SessionId, const FailureReport& report) { post(report.cause); }

  void on(SessionId, const RankStatus&) noexcept {}  // the server keeps it, with the time

  void on(SessionId session, const Leave&) {
    const int rank = request_handler_.rank_of(session).value();
    const std::string host = rank_table_.at(rank).info.host;
    sink_.send(session, Left{});
    sink_.close_after_sending(session);
    remove(session, rank, RankTable::RankState::left);
    sink_.on_left(rank);
    if (!formed_) {
      return post(Cause{CauseKind::lost, rank, host, "it left before all ranks had joined"});
    }
    request_handler_.refuse_barriers(rank);
  }

  JobSink& sink_;
  std::string id_;
  JoinCheck join_check_;
  RankTable rank_table_;
  std::optional<Cause> cause_;
  bool formed_ = false;
  bool has_warned_ = false;
  std::string last_refusal_;
  RequestHandler request_handler_;
};

}  // namespace DTRAIN_NAMESPACE::rendezvous
