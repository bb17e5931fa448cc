#pragma once
/// @file
/// attribute_errors(): which workers end by the errors that a failed attempt of an elastic job threw. Pure.

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/rendezvous/formation/failure_history.hpp"
#include "dtrain/rendezvous/formation/formation_workers.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {

/// The decision of attribute_errors(). Empty: nothing is decided yet, or there is no error.
struct ErrorAttribution {
  Cause error{CauseKind::exception, -1, {}, {}};
  std::vector<Worker*> ends;      ///< workers that end by their errors
  std::vector<Worker*> rejected;  ///< newcomers whose program is unlike that of the ranks that have the state
  std::optional<Cause> of_job;    ///< ends the job
  bool is_shared = false;         ///< all ranks threw it alike: it ends nobody, and the ranks are formed anew
  bool is_settled = false;        ///< the rank that it names has ended before

  bool is_decided() const noexcept { return !ends.empty() || !rejected.empty() || of_job || is_shared || is_settled; }
};

/// So often in a row an error that all ranks throw alike ends nobody; then the rank that it names.
inline constexpr int most_shared_errors = 3;

/// An error that every rank threw with one text (that of a failed save) says nothing about the rank that reported it
/// first:
/// - a disagreement, whoever threw it, rejects the newcomers of an attempt without a commit, or ends the ranks that it
///   names, because most ranks agree, or the job;
/// - any other error ends nobody, unless it comes again and names a rank. Before the job's first commit it ends the
///   job: there is no state to lose.
/// An error that only some ranks threw ends these, unless several of them name one rank: then the others had the news
/// of the failure before the error. So each error waits until one rank without it has announced itself, or all have
/// announced themselves.
/// @param members ranks of the failed attempt
inline ErrorAttribution attribute_errors(const std::vector<Worker*>& members, const FailureHistory<>& history) {
  ErrorAttribution found;
  std::vector<Worker*> throwers, newcomers;
  const Worker* disagreeing = nullptr;
  bool all_are_here = true;
  bool has_other = false;  // a rank that came to another end
  for (Worker* each : members) {
    all_are_here = all_are_here && each->standing != Standing::assigned;
    if (each->is_newcomer) newcomers.push_back(each);
    if (each->standing != Standing::waiting) continue;
    if (each->thrown) throwers.push_back(each);
    if (each->thrown && each->thrown->kind == CauseKind::disagreement) disagreeing = each;
    has_other = has_other || !each->thrown || each->thrown->text != throwers.front()->thrown->text;
  }
  if (throwers.empty()) return found;
  found.error = *(disagreeing != nullptr ? disagreeing : throwers.front())->thrown;
  const int rank = found.error.rank;
  Worker* const named =
      rank < 0 || rank >= static_cast<int>(members.size()) ? nullptr : members[static_cast<std::size_t>(rank)];
  const auto says_the_same = [&found](const Worker* each) {
    return each->thrown->text == found.error.text && each->thrown->rank == found.error.rank;
  };
  has_other = has_other && (named == nullptr || std::count_if(throwers.begin(), throwers.end(), says_the_same) < 2);
  if (disagreeing != nullptr && !newcomers.empty() && !history.committed_here()) {
    found.rejected = std::move(newcomers);
  } else if (disagreeing != nullptr && named == nullptr) {
    found.of_job = Cause{CauseKind::disagreement, -1, {}, found.error.text};
  } else if (disagreeing != nullptr) {
    std::copy_if(members.begin(), members.end(), std::back_inserter(found.ends), [named](const Worker* each) {
      const bool names_itself = each->thrown && each->thrown->rank == each->rank;
      return each->standing == Standing::waiting && (each == named || names_itself);
    });
    found.is_settled = named->standing == Standing::excluded || named->standing == Standing::gone;
  } else if (!has_other && !all_are_here) {
    return found;
  } else if (has_other || throwers.size() == 1) {
    found.ends = std::move(throwers);
  } else if (!history.has_committed()) {
    found.of_job = loss_of(*throwers.front(), found.error.text);
    found.of_job->kind = CauseKind::exception;
  } else if (named != nullptr && named->standing == Standing::waiting &&
             history.shared_errors(found.error.text) >= most_shared_errors) {
    found.ends = {named};
  } else {
    found.is_shared = true;
  }
  return found;
}

}  // namespace DTRAIN_NAMESPACE::rendezvous
