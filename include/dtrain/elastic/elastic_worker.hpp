#pragma once
/// @file
/// ElasticWorker: attempt loop of an elastic job's worker, which calls the program's function again for each set of
/// ranks. AttemptBody: one call.

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/elastic/commit.hpp"
#include "dtrain/elastic/kept_state.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"
#include "dtrain/group/rank_body.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/rendezvous/formation/progress.hpp"

namespace DTRAIN_NAMESPACE::rendezvous {
template <class>
class FormationClient;
struct Announce;
}  // namespace DTRAIN_NAMESPACE::rendezvous
namespace DTRAIN_NAMESPACE::launch {
template <class>
class StoreHost;
}  // namespace DTRAIN_NAMESPACE::launch

namespace DTRAIN_NAMESPACE::elastic {

template <class>
class Termination;

/// An attempt on one rank, typed by the policy.
class AttemptBody {
 public:
  /// Collective, blocking: joins as the rank that the options name.
  virtual group::RankContext& join(const rendezvous::ControlPlaneOptions& options) = 0;
  /// Collective, blocking: transfer_state().
  virtual void transfer(KeptState& state, const rendezvous::Assignment& assignment,
                        const rendezvous::TrainingProgress& own) = 0;
  /// Calls the user's function. @returns its exit code
  virtual int call() = 0;
  virtual void drop() noexcept = 0;
  /// With which every later call of this process on the worker's device fails; nullopt: none, or there is no device.
  virtual std::optional<Error> device_error(const identity::ProcessIdentity&) { return std::nullopt; }

 protected:
  ~AttemptBody() = default;
};

/// This worker ends without an error: the job has finished without it (exit code 0), or SIGTERM made it leave (143).
/// Not a std::exception: a program that catches these must not take it for an error.
/// @ingroup jobs
struct WorkerEnded {
  int exit_code = 0;
};

/// A worker of an elastic job for its life. A forked process leaves its connection and store alone, for they are the
/// worker's. Threads: the program's one.
class ElasticWorker : public StepCommits {
 public:
  /// Blocking, if the process hosts the job's store: as StoreHost. @throws as StoreHost. PID 1 ends at SIGTERM from
  /// here on: without a handler the kernel would drop the signal.
  /// @param process not elastic: the job's ranks are fixed, and this object counts steps only
  DTRAIN_ON_USE explicit ElasticWorker(const launch::RankProcess& process);
  ElasticWorker(const ElasticWorker&) = delete;
  ElasticWorker& operator=(const ElasticWorker&) = delete;

  const launch::RankProcess& process() const noexcept { return process_; }
  /// The kept state, with the present addresses. @throws as KeptState::locate
  const KeptState& state() {
    state_.locate();
    return state_;
  }
  int slot() const noexcept { return process_.identity.local_rank.value_or(0); }

  /// Blocking: until the job has finished. SIGTERM makes the worker leave (Termination).
  /// @returns the exit code of the last call
  /// @throws this worker's own error; JobFailed where the job has ended; WorkerEnded
  /// @param settings group::settings_text: a worker with others is rejected
  DTRAIN_ON_USE int run(AttemptBody& body, const std::string& settings);

  /// Tells the job's store the error with which this worker ends. Blocking: 2 s at most.
  DTRAIN_ON_USE void report_error_blocking(const std::string& error) noexcept;

  /// The kept state, to add tensors to it. @throws Error (invalid_argument) after train()
  DTRAIN_ON_USE KeptState& state_before_train();

 private:
  DTRAIN_ON_USE rendezvous::Announce announce(const std::string& settings) const;
  DTRAIN_ON_USE bool announce_blocking(const std::string& settings);
  DTRAIN_ON_USE bool may_go_on(group::RankContext* context, const std::string& text);
  DTRAIN_ON_USE int run_attempts(AttemptBody& body, const std::string& settings);
  DTRAIN_ON_USE void end(group::RankContext& context);
  DTRAIN_ON_USE std::shared_ptr<Termination<void>> handle_termination();
  DTRAIN_ON_USE void set_latch(std::shared_ptr<FailureLatch> latch);
  DTRAIN_ON_USE void report_leaving();

  const launch::RankProcess& process_;
  rendezvous::WorkerId id_;
  bool has_run_ = false;
  bool has_reminded_ = false;       ///< RankContext::has_reminded, of earlier attempts
  int exit_code_ = 0;               ///< exit code of the function's last call
  std::exception_ptr error_;        ///< the error that ended the last attempt on this rank
  std::optional<Cause> announced_;  ///< what the store gets of it: Announce::error
  int shortages_ = 0;               ///< attempts in a row that this process lacked the means to join
  std::vector<group::GradientBindingRegistry::KeptMemory> gradients_;
  std::vector<std::shared_ptr<const std::atomic<bool>>> detached_;  ///< ddp::DetachThread, of earlier attempts
  std::mutex mutex_;
  std::shared_ptr<FailureLatch> latch_;            ///< latch of the attempt, or of joining it; guarded by mutex_
  bool is_leaving_ = false;                        ///< guarded by mutex_
  std::shared_ptr<launch::StoreHost<void>> host_;  ///< null: another process hosts the store
  std::shared_ptr<rendezvous::FormationClient<void>> client_;
  std::shared_ptr<Termination<void>> termination_;  ///< the handler of PID 1
};

}  // namespace DTRAIN_NAMESPACE::elastic

#if DTRAIN_DEFINITIONS

#include <unistd.h>

#include <bit>
#include <chrono>
#include <utility>
#include <variant>

#include "dtrain/core/crypto.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/process/owning_process.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"
#include "dtrain/elastic/termination.hpp"
#include "dtrain/elastic/wrapped_weights.hpp"
#include "dtrain/launch/remote_formation.hpp"
#include "dtrain/launch/store_host.hpp"
#include "dtrain/rendezvous/formation/formation_client.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"

namespace DTRAIN_NAMESPACE::elastic {

inline constexpr const char* leaving_text = "it got SIGTERM, and leaves the job";
inline constexpr const char* torn_text = "commit() threw, so that this worker's state is torn: {}";
inline constexpr const char* broken_device_text =
    "{}; only another process can use it again, so this one ends, to be replaced; the attempt had ended with: {}";
/// For 13 s, by FormationOptions::least_pause.
inline constexpr int most_shortages = 8;

DTRAIN_ON_USE ElasticWorker::ElasticWorker(const launch::RankProcess& process)
    : StepCommits(process.min_ranks != 0), process_(process) {
  if (!is_elastic()) return;
  id_.host_id = rendezvous::host_identity(process.host_id).id;
  id_.process = ::getpid();
  id_.nonce = std::bit_cast<std::uint64_t>(random_bytes<sizeof(id_.nonce)>());
  rendezvous::StoreAddress address;
  address.host = process.identity.master_addr.value_or("");
  address.port = static_cast<std::uint16_t>(process.identity.master_port.value_or(0));
  address.secret = process.secret;
  client_ =
      make_process_owned<rendezvous::FormationClient<>>(std::move(address), process.timeout, process.reconnect_timeout);
  reports_to_ = client_.get();
  if (::getpid() == 1) termination_ = handle_termination();
  if (!process.hosts_store) return;
  host_ = make_process_owned<launch::StoreHost<>>(process);
  client_->set_host(host_->address().host());
}

DTRAIN_ON_USE std::shared_ptr<Termination<>> ElasticWorker::handle_termination() {
  return std::make_shared<Termination<>>(*client_->loop(), [this] {
    client_->leave();
    const std::lock_guard lock(mutex_);
    is_leaving_ = true;
    report_leaving();
  });
}

DTRAIN_ON_USE rendezvous::Announce ElasticWorker::announce(const std::string& settings) const {
  rendezvous::Announce announce;
  announce.worker = id_;
  announce.host = rendezvous::host_identity(process_.host_id).name;
  announce.job = assignment_.job;
  announce.progress = progress_.value();
  const std::string job = process_.identity.job.value_or("no DTRAIN_JOB_ID");  // a name has its variable in front
  announce.error = announced_;
  announce.settings =
      format_text("{}\nDTRAIN_WORLD_SIZE={}:{}\nkept state={}\n{}",
                  {job, process_.min_ranks, process_.identity.world_size, state_.signature(), settings});
  return announce;
}

DTRAIN_ON_USE int ElasticWorker::run(AttemptBody& body, const std::string& settings) {
  if (std::exchange(has_run_, true)) {
    throw_error(Errc::invalid_argument, "train() was called a second time in this process; its job has ended");
  }
  state_.commit();  // the program may have loaded it since keep()
  const std::shared_ptr<Termination<>> termination = termination_ ? termination_ : handle_termination();
  try {
    return run_attempts(body, settings);
  } catch (const WorkerEnded&) {
    throw;
  } catch (const JobFailed& failed) {
    if (is_torn_) throw_error(Errc::invalid_argument, torn_text, {failed.what()});
    if (!termination->has_been_requested()) throw;
  } catch (...) {
    if (!termination->has_been_requested()) throw;
    log(LogLevel::error, format_text("worker {}: {}", {slot(), exception_text()}));
  }
  const auto finished = client_->report_blocking({CauseKind::lost, -1, {}, leaving_text});  // nobody waits for it then
  if (!finished || !finished->is_member) throw WorkerEnded{Termination<>::exit_code};
  launch::report_end(process_.report_descriptor, {id_.process, true});
  return exit_code_;
}

DTRAIN_ON_USE int ElasticWorker::run_attempts(AttemptBody& body, const std::string& settings) {
  for (;;) {
    if (!announce_blocking(settings)) return exit_code_;
    rendezvous::ControlPlaneOptions options = process_;
    options.hosts_store = false;
    if (host_) options.identity.master_addr = host_->address().host();
    options.identity.rank = assignment_.rank;
    options.identity.world_size = assignment_.world_size;
    options.identity.attempt = static_cast<int>(assignment_.attempt);
    options.identity.provisional.push_back("local_rank");  // the worker's, for its device; the store computes another
    group::RankContext* context = nullptr;
    bool has_finished = false;
    bool may_go_on = true;
    std::string text = "not all ranks had finished";
    error_ = nullptr;
    announced_.reset();
    try {
      const auto joining = std::make_shared<FailureLatch>();
      joining->set_reporter([client = client_](const Cause& cause) { client->report(cause); });
      set_latch(joining);
      context = &body.join(options);
      context->elastic_attempt = assignment_.attempt;
      context->has_reminded = has_reminded_;
      context->gradient_bindings->start_keeping(std::move(gradients_));
      context->call_report = client_->call_report();
      context_ = context;
      shortages_ = 0;
      set_latch(context->control_plane.failure());
      state_.locate();
      state_.restore();
      body.transfer(state_, assignment_, progress_.value());
      context->kept_memory = MemoryRanges(state_.values());
      context->kept_are_equal = assignment_.source.steps > 0;  // the program may give the ranks other weights before
      context->has_newcomers = assignment_.receivers > 0 || !assignment_.source.has_trained();
      context->sharded.needs_checkpoint = assignment_.source.is_sharded;
      progress_.received(assignment_.source);
      progress_.began(assignment_.attempt);
      exit_code_ = body.call();
      group::end_if_forked(static_cast<pid_t>(id_.process), "worker: ", exit_code_);
      if (is_torn_) {
        throw_error(Errc::invalid_argument, "commit() threw, and the function of train() went on all the same");
      }
      state_.locate();
      const std::uint64_t digest = state_.may_differ() || !compares_states() ? 0 : state_.digest();
      has_finished =
          client_->finish_blocking(assignment_.attempt, digest, *context->control_plane.failure()).has_value();
      if (has_finished) {
        launch::report_end(process_.report_descriptor, {id_.process, true});
        context->leave_blocking();
      }
    } catch (...) {
      group::end_if_forked(static_cast<pid_t>(id_.process), "worker: ", exit_code_exception);
      error_ = std::current_exception();
      text = exception_text();
      may_go_on = has_finished || (this->may_go_on(context, text) && !is_torn_);
    }
    set_latch(nullptr);
    if (context != nullptr) end(*context);
    body.drop();
    if (has_finished) return exit_code_;  // whatever leaving has met: all ranks have called the function to its end
    if (!may_go_on) std::rethrow_exception(error_);
    if (const std::optional<Error> broken = body.device_error(options.identity)) {
      throw Error(broken->code(), format_text(broken_device_text, {broken->what(), text}));
    }
    const bool is_shortage = announced_ && announced_->kind == CauseKind::lost;
    log(is_shortage ? LogLevel::warning : LogLevel::info,
        format_text("worker {}: attempt {} has ended: {}", {slot(), assignment_.attempt, text}));
  }
}

/// Blocking: until this worker has a rank in the next attempt, or the job has finished with it as a rank.
/// @returns whether it has one @throws error_, if it is this worker's own; WorkerEnded if the job has finished without
/// it; as FormationClient::announce_blocking
DTRAIN_ON_USE bool ElasticWorker::announce_blocking(const std::string& settings) {
  const bool has_thrown = announced_ && announced_->kind == CauseKind::exception;
  std::string own_sentence;
  try {
    const rendezvous::ToWorker answer = client_->announce_blocking(announce(settings));
    if (const rendezvous::Finished* finished = std::get_if<rendezvous::Finished>(&answer)) {
      launch::report_end(process_.report_descriptor, {id_.process, finished->is_member});
      if (finished->is_member) return false;
      throw WorkerEnded{};
    }
    if (const rendezvous::Assignment* assignment = std::get_if<rendezvous::Assignment>(&answer)) {
      assignment_ = *assignment;
      return true;
    }
    own_sentence = std::get<rendezvous::OwnError>(answer).sentence;
  } catch (const JobFailed&) {
    if (!has_thrown) throw;
  }
  try {
    if (error_ != nullptr) std::rethrow_exception(error_);
  } catch (const JobFailed& failed) {
    if (own_sentence.empty()) own_sentence = failed.what();
  }
  throw Error(Errc::job_failed, own_sentence);  // other ranks have found it out: no JobFailed, which is others' error
}

/// @param latch of the present attempt; null: there is none
DTRAIN_ON_USE void ElasticWorker::set_latch(std::shared_ptr<FailureLatch> latch) {
  const std::lock_guard lock(mutex_);
  latch_ = std::move(latch);
  report_leaving();
}

/// The caller holds the mutex. The other ranks do not wait for a rank that leaves; its join or its next call throws.
DTRAIN_ON_USE void ElasticWorker::report_leaving() {
  if (is_leaving_ && latch_) latch_->report({CauseKind::lost, assignment_.rank, {}, leaving_text});
}

DTRAIN_ON_USE void ElasticWorker::end(group::RankContext& context) {
  context_ = nullptr;
  context.tasks.handle().allow_calls();
  has_reminded_ = context.has_reminded;
  if (context.sharded.has_steps || context.sharded.has_loaded) {
    progress_.sharded();
    state_.expect_differences();
  }
  gradients_ = context.gradient_bindings->take_memory(committed_attempt_ == assignment_.attempt);
  detached_.insert(detached_.end(), context.detached.begin(), context.detached.end());
  std::erase_if(detached_, [](const auto& thread) { return thread->load(); });
  context.end_attempt();
}

DTRAIN_ON_USE void ElasticWorker::report_error_blocking(const std::string& error) noexcept {
  if (client_ && ::getpid() == id_.process) client_->report_blocking({CauseKind::exception, -1, {}, error});
}

/// Whether this worker may take part in the next attempt after the exception in handling. The exception decides
/// little, the attempt's first cause more: a loss that the rank has noticed before the store is no error of the rank,
/// nor is one that another rank has passed on. The store decides whose an error of the function is (announced_).
DTRAIN_ON_USE bool ElasticWorker::may_go_on(group::RankContext* context, const std::string& text) {
  bool is_loss = false;      // whether the exception is a loss of the attempt, or of another rank
  bool is_shortage = false;  // whether it is a lack of threads, descriptors or memory
  CauseKind kind = CauseKind::exception;
  std::optional<int> rank;  // the rank in which the error arose, if it says so
  try {
    throw;
  } catch (const JobFailed&) {
    is_loss = true;
  } catch (const net::Unreachable&) {  // the store's connection: others may have ended its attempt
    is_loss = true;
  } catch (const Error& thrown) {
    const auto is = [&thrown](Errc code) { return thrown.code() == make_error_code(code); };
    // Before the attempt is joined, the store rejects a worker that comes too late or may be gone, and others may not
    // come.
    is_loss =
        is(Errc::job_failed) || is(Errc::closed) || (context == nullptr && (is(Errc::refused) || is(Errc::timeout)));
    is_shortage = thrown.code().category() == std::generic_category() || is(Errc::out_of_memory);
    kind = is(Errc::disagreement) ? CauseKind::disagreement : kind;
    rank = thrown.rank();
  } catch (...) {
  }
  const int own = assignment_.rank;
  const bool is_of_another = is_loss || rank.value_or(own) != own;
  if (context == nullptr) {
    if (is_of_another || !is_shortage) return is_of_another;
    announced_ = Cause{CauseKind::lost, own, {}, format_text("it could not join the attempt: {}", {text})};
    return ++shortages_ <= most_shortages;  // it may pass while the ranks are formed anew
  }
  const FailureLatch& latch = *context->control_plane.failure();
  if (!is_of_another || !latch.block_until_failed(Deadline::after(std::chrono::seconds(2)))) {
    if (!latch.failed()) {  // an earlier attempt's object has failed, if it is a loss
      context->report_exception(text, is_loss ? std::nullopt : rank);
    }
  }
  const std::optional<Cause> cause = latch.cause();
  if (!cause) return false;
  const bool is_own = cause->kind == CauseKind::exception && cause->rank == own;
  const bool is_alike = cause->text == sanitize(truncate_utf8(text, rendezvous::max_sentence_bytes));
  if (is_own || (!is_loss && is_alike)) announced_ = Cause{kind, rank.value_or(-1), {}, is_loss ? cause->text : text};
  return true;
}

DTRAIN_ON_USE KeptState& ElasticWorker::state_before_train() {
  if (has_run_) {
    throw_error(Errc::invalid_argument, "keep() was called after train(); name all that is kept before");
  }
  return state_;
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
