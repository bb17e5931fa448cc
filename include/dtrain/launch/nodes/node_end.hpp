#pragma once
/// @file
/// End of one attempt on one node: input of the job's result.

#include <optional>
#include <string>
#include <vector>

#include "dtrain/launch/supervise/failure_analysis.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// A record (see record.hpp).
struct NodeEnd {
  int node = 0;
  std::string host;
  std::optional<WorkerEnd> first;       ///< first_failure of the node's workers
  std::vector<int> secondary;           ///< the ranks that ended with exit_code_job_failed
  std::vector<std::string> last_lines;  ///< that `first` wrote to stderr
  int stop_signal = 0;                  ///< SIGINT or SIGTERM that requested the job's end, or 0
  bool interrupted = false;             ///< a signal arrived after which the job is not restarted
  bool started = true;                  ///< false if the job was stopped before it had workers
  bool abandoned = false;               ///< a killed process did not end: the kernel holds it

  template <class Self, class Fields>
  static void describe(Self& self, Fields& fields) {
    fields.number(self.node);
    fields.text(self.host);
    fields.maybe(self.first);
    fields.numbers(self.secondary);
    fields.texts(self.last_lines);
    fields.number(self.stop_signal);
    fields.flag(self.interrupted);
    fields.flag(self.started);
    fields.flag(self.abandoned);
  }
};

}  // namespace DTRAIN_NAMESPACE::launch
