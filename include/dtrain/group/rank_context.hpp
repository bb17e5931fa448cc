#pragma once
/// @file
/// group::RankContext: control plane, streams and options that all groups of one rank share, from joining to leaving.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/types/reduce_op.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/pending_weights.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/control/control_plane.hpp"
#include "dtrain/rendezvous/control/task_runner.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/stream/host/stream_registry.hpp"

namespace DTRAIN_NAMESPACE::group {

/// Keys and values for the store.
using StoreEntries = std::vector<std::pair<std::string, std::string>>;

/// Blocking: until the store has the entries. @throws the job's first cause; Error (timeout)
using WaitUntilSet = std::function<void(Deadline)>;

/// Shared by the rank's groups. The destructor leaves the job; if an exception is unwinding the stack, the rank has
/// failed instead and the other ranks are notified. In a forked process reports and the destructor do nothing.
/// Threads: all members from any thread; leave_blocking and the destructor from one.
class RankContext {
 public:
  /// A channel of this rank. It closes when the rank leaves, so that peers are notified instead of waiting.
  class Closable {
   public:
    virtual void close() noexcept = 0;

   protected:
    ~Closable() = default;
  };

  /// Collective, blocking: joins the job. @throws as ControlPlane. @param base is destroyed after all other members
  explicit RankContext(const rendezvous::ControlPlaneOptions& options, std::shared_ptr<void> base = {});
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  ~RankContext();

  /// @throws Error (invalid_argument) in a coroutine on the control loop, and in a forked process.
  void require_may_block() const;

  /// Reports that this rank failed with `text`. Blocking: until the job has the report, 2 s at most.
  /// @param failed_rank the rank that the exception is about, if it is another one
  void report_exception(const std::string& text, std::optional<int> failed_rank = {}) noexcept;

  /// Reports after `grace`, in which a more precise cause may be reported. Blocking: no.
  void report_after(std::chrono::milliseconds grace, std::string text) noexcept;

  /// Keeps `work` until this rank leaves.
  void keep_alive_until_leave(std::shared_ptr<void> work) noexcept;

  /// Sets the entries in the background, one after the other.
  WaitUntilSet set_in_background(const rendezvous::Store& store, StoreEntries entries);

  /// Lifetime: `channel` is removed before it is destroyed.
  void add(Closable& channel);
  void remove(Closable& channel) noexcept;

  void leave_blocking();

 private:
  const std::shared_ptr<void> base_;

 public:
  const std::chrono::nanoseconds timeout;  ///< of one collective
  rendezvous::ControlPlane control_plane;
  rendezvous::TaskRunner tasks;
  const std::shared_ptr<stream::host::StreamRegistry> streams;  ///< of all groups and wrappers
  const std::shared_ptr<GradientBindingRegistry> gradient_bindings =
      std::make_shared<GradientBindingRegistry>();  ///< of this rank's wrappers
  const std::shared_ptr<PendingWeights> pending_weights = std::make_shared<PendingWeights>();

 private:
  Cause exception_cause(std::string text, std::optional<int> failed_rank = {}) const;

  std::mutex mutex_;
  std::vector<Closable*> channels_;
  std::vector<std::shared_ptr<void>> kept_;  ///< destroyed before the members above, which it uses
  bool left_ = false;
  const OwningProcess process_;
  int exceptions_at_start_ = std::uncaught_exceptions();
};

/// A backend's pre_join_blocking (backend::HasPreJoin).
using PreJoin = std::shared_ptr<void> (*)(const identity::ProcessIdentity& identity,
                                          std::optional<rendezvous::Secret>& secret, Deadline deadline);

/// Settings that must be the same on all ranks. DistributedDataParallel compares models and their options.
struct RequiredSettings {
  std::string_view launcher;
  std::string_view backend;
  std::string_view topology;
  Accumulate accumulate;
  std::string algorithms;
};

/// Collective, blocking: joins the job as the rank that `worker` describes. @param pre_join null if there is none
/// @throws as ControlPlane
std::shared_ptr<RankContext> join_job_blocking(const rendezvous::ControlPlaneOptions& worker, PreJoin pre_join,
                                               const RequiredSettings& required);

}  // namespace DTRAIN_NAMESPACE::group

#if DTRAIN_DEFINITIONS
#include "dtrain/group/rank_context_definitions.hpp"
#endif
