#pragma once
/// @file
/// Launcher keys: store keys and records that the launchers of a job exchange.

#include <string>
#include <type_traits>

#include "dtrain/core/cause.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Keys of an attempt begin with "attempt/" and its number. Stop requests are of the job, not of an attempt.
class LauncherKeys {
 public:
  explicit LauncherKeys(int attempt) : attempt_("attempt/" + std::to_string(attempt) + "/") {}

  static std::string node_info(int node) { return "node/" + std::to_string(node); }       ///< NodeInfo
  static std::string table() { return "nodes"; }                                          ///< NodeTable
  static std::string stop(int count) { return "stop/" + std::to_string(count); }          ///< a signal
  std::string start() const { return attempt_ + "start"; }                                ///< ranks can join
  std::string complete() const { return attempt_ + "complete"; }                          ///< all ranks have joined
  std::string cause() const { return attempt_ + "cause"; }                                ///< CauseRecord
  std::string failing() const { return attempt_ + "failing"; }                            ///< FailureRecord
  std::string left(int rank) const { return attempt_ + "left/" + std::to_string(rank); }  ///< it has left
  std::string end(int node) const { return attempt_ + "end/" + std::to_string(node); }    ///< NodeEnd
  std::string job_result() const { return attempt_ + "job_result"; }                      ///< JobResult

 private:
  std::string attempt_;
};

/// A Cause as a record (see record.hpp).
struct CauseRecord {
  Cause cause;

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    int kind = static_cast<int>(self.cause.kind);
    fields.number(kind);
    if constexpr (!std::is_const_v<Self>) {
      self.cause.kind = static_cast<CauseKind>(kind);
    }
    fields.number(self.cause.rank);
    fields.text(self.cause.host);
    fields.text(self.cause.text);
  }
};

/// A failed worker, as its launcher reports it to the others. A record (see record.hpp).
struct FailureRecord {
  CauseRecord cause;
  bool secondary = false;  ///< caused by a failure that the ranks know already

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    CauseRecord::describe(self.cause, fields);
    fields.flag(self.secondary);
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
