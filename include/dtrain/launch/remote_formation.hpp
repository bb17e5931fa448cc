#pragma once
/// @file
/// RemoteFormation of an ElasticSupervisor: what its launcher knows of an elastic job whose store another launcher has.
/// report_end(): a worker's notice.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/blocked_write_signals.hpp"
#include "dtrain/launch/supervise/spawn.hpp"
#include "dtrain/rendezvous/formation/formation_state.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Written once by a worker's process into its launcher's pipe, as a whole. Without padding.
struct EndReport {
  std::int64_t process = 0;
  std::int64_t is_member = 0;  ///< 1: the process is a rank of the attempt that has finished the job
};

/// Tells the launcher that the job has finished. Blocking: no. Raises no signal, also if the launcher has ended.
/// @param descriptor of the pipe; -1: the launcher has the job's store, and needs no report
inline void report_end(int descriptor, const EndReport& report) noexcept {
  if (descriptor < 0) return;
  const BlockedWriteSignals blocked;
  while (::write(descriptor, &report, sizeof report) < 0 && errno == EINTR) {
  }
}

/// In the place of a FormationServer, and of its state. Only the workers' reports tell that the job has finished:
/// their exit codes are the program's. Threads: one.
class RemoteFormation {
 public:
  /// @throws Error (posix) if no descriptors are left
  RemoteFormation() : reports_(make_pipe(O_NONBLOCK)) {}

  RemoteFormation& state() noexcept { return *this; }
  RemoteFormation& workers() noexcept { return *this; }
  const rendezvous::FormationOptions& options() const noexcept { return options_; }
  /// The end of the pipe that each worker inherits.
  int report_writer() const noexcept { return reports_.writer.get(); }

  /// Whether a worker of this node has reported the job's end, by now, or the store is lost. Blocking: no.
  bool is_over() {
    EndReport report;
    while (::read(reports_.reader.get(), &report, sizeof report) == sizeof report) {
      has_ended_ = true;
      if (report.is_member != 0) members_.push_back(report.process);
    }
    return has_ended_;
  }
  /// Set by lose_store(); else nullopt, also if the job has failed.
  const std::optional<Cause>& cause() const noexcept { return cause_; }
  /// The job has ended for this node: the store does not answer. @pre !is_over()
  void lose_store(std::string how) {
    has_ended_ = true;
    cause_ = Cause{CauseKind::timeout, -1, {}, std::move(how)};
  }
  /// An attempt may have been formed: a start that fails is tried again.
  std::uint64_t attempt() const noexcept { return 1; }
  /// A worker that has reported to be a rank of the attempt that has finished the job; null for each other one.
  const rendezvous::Worker* find(const std::string&, std::int64_t process) {
    const bool is_member = is_over() && std::find(members_.begin(), members_.end(), process) != members_.end();
    return is_member ? &rank_ : nullptr;
  }
  std::string error_of(const std::string&, std::int64_t) const { return {}; }
  bool can_spare(const rendezvous::Worker&) const noexcept { return true; }

  void process_ended(const std::string&, std::int64_t, int, const std::string&) noexcept {}
  void set_running_workers(int, Deadline::Clock::time_point) noexcept {}
  /// The job goes on without this node: the others see that its workers' connections end.
  void stop(const std::string&) noexcept {}

 private:
  static rendezvous::Worker any_rank() {
    rendezvous::Worker worker;
    worker.standing = rendezvous::Standing::assigned;
    worker.rank = 0;
    return worker;
  }

  const Pipe reports_;
  bool has_ended_ = false;
  std::vector<std::int64_t> members_;
  std::optional<Cause> cause_;
  const rendezvous::FormationOptions options_;
  const rendezvous::Worker rank_ = any_rank();
};

}  // namespace DTRAIN_NAMESPACE::launch
