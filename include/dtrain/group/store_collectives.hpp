#pragma once
/// @file
/// StoreCollectives: blocking exchanges of texts among a group's ranks, over the store. Every rank makes the calls of
/// one purpose in the same order; no key stays in the store.

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dtrain/backend/store_ref.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/rendezvous/membership/membership.hpp"

namespace DTRAIN_NAMESPACE::group {

/// How a rank waits for the other ranks of a store collective.
struct StoreWait {
  std::optional<Deadline> deadline{};                                 ///< none: timeout() from the call on
  std::chrono::milliseconds notice_after = std::chrono::seconds(10);  ///< until the first warning; 0: no warning
  std::function<void()> check{};  ///< called five times a second; throws if the other ranks will not come
};

/// Base of GroupHandle. Keys are "dtrain/PURPOSE/NUMBER/...", numbered for each purpose. Threads: one at a time for
/// each purpose.
class StoreCollectives {
 public:
  virtual const rendezvous::Membership& members() const noexcept = 0;
  virtual std::chrono::nanoseconds timeout() const noexcept = 0;  ///< the longest time of one collective

  /// Holds the job's first cause.
  virtual const std::shared_ptr<FailureLatch>& failure() const noexcept = 0;

  /// The job's store, with the group's prefix. Its blocking calls first start enqueued work of this rank's streams that
  /// no thread runs: other ranks may wait for it.
  virtual backend::StoreRef store_ref() const = 0;

  /// Counts 1, 2, ... for each purpose: the same on ranks that call it in the same order. Blocking: no.
  virtual int next_number(const std::string& purpose) const = 0;

  /// @throws Error (invalid_argument) where this rank must not block: on the control thread, in a forked process
  virtual void require_may_block() const = 0;

  /// Collective, blocking: rank 0 combines a text of each rank; every rank gets the result, or the Error of the rank
  /// that failed. @param doing for sentences: "choosing the bucket plan" @param own `own()` is this rank's text
  /// @param combine runs on rank 0
  /// @throws the Error of `own` or `combine` on every rank, with its code and sentence; Error (timeout), which names
  /// the missing ranks; the job's first cause
  std::string gather(std::string_view purpose, const std::string& doing, const backend::MakeText& own,
                     const backend::CombineTexts& combine, const StoreWait& wait = {}) const;

  /// Collective, blocking: runs `work()` on rank 0, once every rank has called this with the same `doing`. Every rank
  /// gets its result, or its Error, which names rank 0 and its host. Ranks wait as long as rank 0 works and is alive,
  /// and log a warning every timeout(). @param doing for sentences: "writing the file x"
  /// @throws Error (disagreement) on every rank, with the same sentence, if a rank is doing something else; (timeout)
  /// if a rank does not come; the job's first cause
  bool on_rank_0(std::string_view purpose, const std::string& doing, const std::function<bool()>& work) const;

  /// In a handler of an Error: throws the job's first cause, which names its rank, or if there is none what is handled.
  [[noreturn]] void throw_cause_or_rethrow() const;

 protected:
  StoreCollectives() = default;
  ~StoreCollectives() = default;
};

/// The Error of ranks that are doing different things; nullopt if all do the same. @param doing each rank's text
std::optional<Error> different_work(const rendezvous::Membership& members, const std::vector<std::string>& doing);

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS

#include <cstddef>

#include "dtrain/backend/channel_setup/store_gather.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"

namespace DTRAIN_NAMESPACE::group {

namespace detail {

inline backend::StoreRank store_rank(const StoreCollectives& group, const std::string& doing, const StoreWait& wait) {
  const rendezvous::Membership& members = group.members();
  backend::StoreRank self{group.store_ref().with_purpose(doing),
                          members.rank,
                          members.world_size,
                          members.rank_in_job(),
                          wait.deadline ? *wait.deadline : Deadline::after(group.timeout()),
                          doing,
                          [&members](int rank) { return format_text("rank {}", {members.rank_in_job(rank)}); }};
  self.check = wait.check;
  self.notice_after = wait.notice_after;
  return self;
}

inline std::string next_key(const StoreCollectives& group, std::string_view purpose) {
  return format_text("dtrain/{}/{}", {purpose, group.next_number(std::string(purpose))});
}

/// `exchange()`. If it waited in vain, the job may have failed meanwhile: then its first cause. Errors that a rank has
/// sent are every rank's.
template <class Exchange>
std::string with_first_cause(const StoreCollectives& group, const Exchange& exchange) {
  try {
    return exchange();
  } catch (const Error& error) {
    const bool waited = error.code() == make_error_code(Errc::timeout) || error.code() == make_error_code(Errc::closed);
    if (!waited) throw;
    group.throw_cause_or_rethrow();
  }
}

/// Blocking: as long as rank 0 works and is alive. @returns its encoded result
inline std::string wait_for_rank_0_blocking(const StoreCollectives& group, const backend::StoreRank& self,
                                            const std::string& key) {
  const Deadline::Clock::time_point began = Deadline::Clock::now();
  for (;;) {
    try {
      return self.store.get_blocking(key, Deadline::after(group.timeout()));
    } catch (const Error& error) {
      if (error.code() != make_error_code(Errc::timeout)) throw;
      log(LogLevel::warning,
          format_text(
              "rank {}: after {} {} is still {}; this rank waits until that rank has finished or is lost",
              {self.job_rank, duration_text(Deadline::Clock::now() - began), self.name_of_rank(0), self.doing}));
    }
  }
}

}  // namespace detail

DTRAIN_DEFINED void StoreCollectives::throw_cause_or_rethrow() const {
  failure()->throw_if_failed(members().rank_in_job());
  throw;
}

DTRAIN_DEFINED std::string StoreCollectives::gather(std::string_view purpose, const std::string& doing,
                                                    const backend::MakeText& own, const backend::CombineTexts& combine,
                                                    const StoreWait& wait) const {
  require_may_block();
  const std::string name = detail::next_key(*this, purpose);
  const backend::StoreRank self = detail::store_rank(*this, doing, wait);
  return detail::with_first_cause(*this, [&] { return backend::store_gather(self, name, own, combine); });
}

DTRAIN_DEFINED bool StoreCollectives::on_rank_0(std::string_view purpose, const std::string& doing,
                                                const std::function<bool()>& work) const {
  require_may_block();
  const std::string key = detail::next_key(*this, purpose);
  backend::StoreRank self = detail::store_rank(*this, doing, {});
  const auto run = [&]() -> std::string {
    std::vector<std::string> all{doing};
    backend::detail::take_texts(self, key, all);
    if (const std::optional<Error> difference = different_work(members(), all)) throw *difference;
    const std::string where = self.ranks == 1 ? std::string()
                                              : format_text(" (on rank {} on host {}, which does it for all ranks)",
                                                            {self.job_rank, members().host});
    try {
      return backend::detail::with_error(doing, work) ? "yes" : "no";
    } catch (const Error& error) {
      throw Error(error.code(), error.what() + where).with_rank(self.job_rank);
    }
  };
  std::string result;  // rank 0's, on the others
  const auto exchange = [&] {
    if (self.rank != 0) {
      self.store.set_blocking(format_text("{}/{}", {key, self.rank}), "=" + doing, self.deadline);
      result = detail::wait_for_rank_0_blocking(*this, self, key);
      self.notice_after = std::chrono::milliseconds(0);
    }
    return backend::store_broadcast(self, key, run);
  };
  try {
    return detail::with_first_cause(*this, exchange) == "yes";
  } catch (const JobFailed&) {
    if (result.starts_with('!')) static_cast<void>(backend::detail::decode(result));  // throws what the others throw
    throw;
  }
}

DTRAIN_DEFINED std::optional<Error> different_work(const rendezvous::Membership& members,
                                                   const std::vector<std::string>& doing) {
  for (std::size_t other = 1; other < doing.size(); ++other) {
    if (doing[other] == doing[0]) continue;
    const int rank = members.rank_in_job(static_cast<int>(other));
    return Error(make_error_code(Errc::disagreement),
                 format_text("rank {} is {}, but rank {} is {}; give the same name on every rank, and wait for pending "
                             "checkpoints in the same order",
                             {members.rank_in_job(0), doing[0], rank, doing[other]}))
        .with_rank(rank);
  }
  return std::nullopt;
}

}  // namespace DTRAIN_NAMESPACE::group

#endif  // DTRAIN_DEFINITIONS
