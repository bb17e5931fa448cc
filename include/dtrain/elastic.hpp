#pragma once
/// @file
/// dtrain::Elastic: a program's handle on a job that survives the loss of ranks and takes replacements in.
/// init_elastic(): without run().

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "dtrain/backend/backend.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/ddp/checkpoint/named_tensor.hpp"
#include "dtrain/elastic/elastic_worker.hpp"
#include "dtrain/elastic/state_transfer.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/group/rank_body.hpp"
#include "dtrain/launch/backend_facts.hpp"
#include "dtrain/process_group.hpp"
#include "dtrain/run.hpp"

namespace DTRAIN_NAMESPACE {

using elastic::LibraryState;
using elastic::WorkerEnded;

template <class P>
class ElasticJob;

/// Handle of an elastic worker: run() gives it to a body that takes it in place of a ProcessGroup. The process, its
/// model and its optimizer live through the loss of other ranks; everything that belongs to a set of ranks is made in
/// the function that train() calls again for each of them.
///
/// With launch::PerNode, the launcher's flags --min-ranks or --nnodes=MIN:MAX make the job elastic. With
/// launch::PerProcess, DTRAIN_WORLD_SIZE=MIN:MAX does (launch::rank_process_of). With launch::Any, either does.
/// Otherwise the job is an ordinary one: train() calls the function once.
/// Lifetime: as long as the body runs. Threads: the body's.
/// @ingroup jobs
template <class P>
class Elastic {
 public:
  static_assert(backend::joins_again<typename P::Backend>,
                "dtrain: Elastic works with the backends SharedMemory, Gloo and Nccl, whose ranks may change in living "
                "processes");

  Elastic(elastic::ElasticWorker& worker, const GroupOptions& options) noexcept
      : worker_(&worker), options_(&options) {}
  /// `Elastic<P> job = init_elastic<P>()` would end the worker at once; keep the ElasticJob.
  Elastic(const ElasticJob<P>&&) = delete;

  /// Adds tensors to what a worker receives that comes later: parameters, the optimizer's state. Before train().
  /// They are written inside commit() only. Lifetime: the memory outlives train().
  /// @throws Error (unsupported) for NamedBytes, and for device memory: keep a copy in host memory, which commit()
  /// writes from the device, and copy it back where train()'s function begins
  void keep(std::vector<NamedTensor> tensors) const { worker_->state_before_train().keep(std::move(tensors), false); }
  /// The same for tensors that are written between two commits (a BatchNorm's buffers, the state of a LossScaler, or
  /// with hooks::LocalSgd the parameters and the optimizer's state): copied at each commit, and put back before a step
  /// is repeated.
  void keep_copy(std::vector<NamedTensor> tensors) const {
    worker_->state_before_train().keep(std::move(tensors), true);
  }
  /// Adds the tensors of a library's objects, whose memory may change: `job.keep(libtorch::training_state(net,
  /// optimizer))`. Lifetime: the objects outlive train(). @throws Error (invalid_argument), also of later calls, if an
  /// object has other tensors than before; as above
  void keep(const LibraryState& state) const { worker_->state_before_train().keep(state, false); }
  /// The same, with copies of all of it, for a model with hooks::LocalSgd.
  void keep_copy(const LibraryState& state) const { worker_->state_before_train().keep(state, true); }
  /// All tensors that are kept, for save_checkpoint. Their addresses are present until a library's object is loaded.
  /// @throws Error (invalid_argument) if a library's object has other tensors than before
  const std::vector<NamedTensor>& tensors() const { return worker_->state().tensors(); }

  /// Calls `function(group)` for each set of ranks until it has returned on all ranks of one. In each call it goes on
  /// at step(). Blocking: until the job has finished. Once in a process.
  /// @returns the function's exit code, 0 for a function without one
  template <class F>
  int train(F&& function) const {
    static_assert(std::invocable<F&, ProcessGroup<P>>,
                  "dtrain: train(function) calls function(group) with a dtrain::ProcessGroup<Policy>: write "
                  "[&](dtrain::ProcessGroup<Policy> group) { ... }");
    if constexpr (std::invocable<F&, ProcessGroup<P>>) {
      // A function that could also take Arguments gets none: those are the body's.
      const auto call = [&function](ProcessGroup<P> group) -> decltype(auto) {
        return std::invoke(function, std::move(group));
      };
      using Call = decltype(call);
      if (worker_->is_elastic()) {
        AttemptOfPolicy<Call> attempt(call, *options_);
        return worker_->run(attempt, group::settings_text(worker_->process(), group::required_settings<P>(*options_)));
      }
      detail::PolicyRankBody<P, Call> job(worker_->process(), call, *options_);
      return group::run_rank(worker_->process().identity.rank, job);
    } else {
      return exit_code_exception;
    }
  }

  /// Steps that are committed, the same on all ranks of a group.
  std::uint64_t step() const noexcept { return worker_->step(); }

  /// Runs `write()`, which writes what is kept (the optimizer's step): from then on the step is done. No message. If
  /// `write` throws, the state is torn, and this worker ends. It must call nothing of dtrain.
  /// @throws Error (invalid_argument), before `write`, in a step that has not ended, under no_sync(), and while no step
  /// has reduced what it left; with hooks::LocalSgd between two averages, or if keep_copy() did not get the weights
  template <std::invocable W>
  void commit(W&& write) const {
    worker_->commit(std::forward<W>(write));
  }
  /// The step is done: all that is kept is written, and nothing of dtrain was called since it began to be.
  /// @throws as the other commit()
  void commit() const { worker_->commit(); }

  /// After load_checkpoint(): that many steps are done. On all ranks, each of which has the state by then. A program
  /// that loads it by its own code does so on all ranks, and calls this after wrapping the model. Fewer than step()
  /// only after the state of a ShardedOptimizer was loaded: rank 0 logs the number of steps that are trained again.
  /// @throws Error (invalid_argument) for fewer steps otherwise, and for more before both load_checkpoint() and
  /// wrapping
  void resume_at(std::uint64_t step) const { worker_->resume_at(step); }

  /// Number of the present set of ranks, from 1; 0 outside of train(), and in a job that is not elastic.
  std::uint64_t attempt() const noexcept { return worker_->attempt(); }

  /// The worker's local rank, which never changes; backend::Nccl selects the device by it.
  int local_rank() const noexcept { return worker_->slot(); }

 private:
  template <class F>
  class AttemptOfPolicy final : public elastic::AttemptBody {
   public:
    AttemptOfPolicy(F& function, const GroupOptions& options) : function_(function), options_(options) {}

    group::RankContext& join(const rendezvous::ControlPlaneOptions& options) override {
      group_.emplace(ProcessGroup<P>::join(options, options_));
      return *group::GroupAccess::of(*group_).rank_context();
    }
    void transfer(elastic::KeptState& state, const rendezvous::Assignment& assignment,
                  const rendezvous::TrainingProgress& own) override {
      elastic::transfer_state(*group_, state, assignment, own);
    }
    int call() override { return detail::call_body(function_, *group_, {}); }
    void drop() noexcept override { group_.reset(); }
    std::optional<Error> device_error([[maybe_unused]] const identity::ProcessIdentity& identity) override {
      if constexpr (backend::HasDeviceError<typename P::Backend>) {
        return P::Backend::device_error(identity);
      } else {
        return std::nullopt;
      }
    }

   private:
    F& function_;
    const GroupOptions& options_;
    std::optional<ProcessGroup<P>> group_;
  };

  elastic::ElasticWorker* worker_;
  const GroupOptions* options_;
};

namespace elastic {

/// Runs a worker's program. Errors become a line on stderr and an exit code, as those of run(). A worker that SIGTERM
/// has made leave ends its process by that signal, so that a launcher sees what has ended it; PID 1 returns 143.
DTRAIN_ON_USE int run_worker(const launch::RankProcess& process, const std::function<int(ElasticWorker&)>& program);

/// @throws Error (invalid_argument) for the second elastic job in this process: the store of the first may still answer
DTRAIN_ON_USE void require_first_job(const launch::RankProcess& process);

/// Selects the device for the program's model, which is made before train(), if the backend has one.
/// @throws Error (usage), where the backend's library does not serve an elastic job; as pre_join_blocking
template <class P>
void select_device(const launch::RankProcess& process) {
  if constexpr (backend::HasRejoinCheck<typename P::Backend>) {
    if (process.min_ranks != 0) P::Backend::require_rejoin();
  }
  if constexpr (backend::HasPreJoin<typename P::Backend>) {
    std::optional<rendezvous::Secret> secret = process.secret;
    static_cast<void>(P::Backend::pre_join_blocking(process.identity, secret, Deadline::after(process.timeout)));
  }
}

template <class P>
struct BodyRunner {
  static launch::RunElasticJob in_launcher() { return &launch::run_elastic_job<>; }

  template <class Body>
  static int in_worker(const launch::RankProcess& process, Body& body, const GroupOptions& options) {
    return run_worker(process, [&](ElasticWorker& worker) {
      select_device<P>(process);
      return dtrain::detail::call_body(body, Elastic<P>(worker, options), process.arguments());
    });
  }
};

}  // namespace elastic

/// An Elastic that owns its worker, and the job's store if this process hosts that; init_elastic() returns it.
/// Destruction blocks as that of StoreHost, if this process hosts the store.
/// @ingroup jobs
template <class P>
class ElasticJob : public Elastic<P> {
 public:
  /// For init_elastic().
  ElasticJob(launch::RankProcess process, const GroupOptions& options)
      : ElasticJob(std::make_unique<Owned>(std::move(process), options)) {}

  /// As Elastic::train(), but errors leave it. The program should end with exit code 75 after a JobFailed, and with
  /// WorkerEnded::exit_code after that. In a job of fixed size they are printed, and the exit code is returned.
  /// @throws the function's exception, of which the job is notified; JobFailed, or Error (invalid_argument) where one
  /// has left the function of commit(); WorkerEnded, which is no std::exception; Error (usage) for a worker unlike the
  /// others, (refused) for one without the job's secret, (cuda) where CUDA fails every call on the worker's device,
  /// which only another process can use again
  template <class F>
  int train(F&& function) const {
    try {
      return Elastic<P>::train(std::forward<F>(function));
    } catch (const WorkerEnded&) {
      throw;
    } catch (...) {
      owned_->worker.report_error_blocking(exception_text());
      throw;
    }
  }

 private:
  struct Owned {
    Owned(launch::RankProcess of, const GroupOptions& with) : process(std::move(of)), options(with), worker(process) {
      elastic::select_device<P>(process);
    }

    launch::RankProcess process;
    GroupOptions options;
    elastic::ElasticWorker worker;
  };

  explicit ElasticJob(std::unique_ptr<Owned> owned)
      : Elastic<P>(owned->worker, owned->options), owned_(std::move(owned)) {}

  std::unique_ptr<Owned> owned_;
};

/// Joins the elastic job of DTRAIN_WORLD_SIZE=MIN:MAX, for programs whose main() cannot be handed over to run(). In a
/// job of fixed size, train() calls its function once. Blocking: as StoreHost, if this process hosts the store.
/// @throws as launch::rank_process_of and StoreHost; Error (invalid_argument) for a second elastic job in this process,
/// (usage) in an elastic job over NCCL 2.26 or older
/// @ingroup jobs
template <class P>
ElasticJob<P> init_elastic(launch::JoinOptions options = {}, const GroupOptions& group_options = {}) {
  static_assert(launch::joins_other_launchers<typename P::Launcher>,
                "dtrain: init_elastic needs launch::Any or launch::PerProcess; the launcher process of launch::PerNode "
                "never returns into user code, so use dtrain::run");
  launch::RankProcess process = launch::rank_process_of(std::move(options), launch::Takes::elastic);
  elastic::require_first_job(process);
  return {std::move(process), group_options};
}

}  // namespace DTRAIN_NAMESPACE

#if DTRAIN_DEFINITIONS

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "dtrain/core/cause.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/elastic/termination.hpp"
#include "dtrain/launch/elastic_supervisor.hpp"

namespace DTRAIN_NAMESPACE::elastic {

DTRAIN_ON_USE void require_first_job(const launch::RankProcess& process) {
  static std::atomic<bool> has_job{false};
  if (process.min_ranks != 0 && has_job.exchange(true)) {
    throw_error(Errc::invalid_argument,
                "this process was a worker of an elastic job before, and can be one of a single job; start another "
                "process for the next job");
  }
}

DTRAIN_ON_USE int run_worker(const launch::RankProcess& process, const std::function<int(ElasticWorker&)>& program) {
  const pid_t own = ::getpid();
  const int number = process.identity.local_rank.value_or(process.identity.rank);
  const std::string prefix = format_text("worker {}: ", {number});
  std::optional<ElasticWorker> worker;
  const auto fail = [&](const std::string& text, int exit_code) {
    log(LogLevel::error, prefix + text);
    if (worker) worker->report_error_blocking(text);
    return exit_code;
  };
  try {
    require_first_job(process);
    worker.emplace(process);
    int exit_code = exit_code_exception;
    try {
      exit_code = program(*worker);
    } catch (...) {
      group::end_if_forked(own, prefix, exit_code);
      throw;
    }
    group::end_if_forked(own, prefix, exit_code);
    return exit_code;
  } catch (const WorkerEnded& ended) {
    if (ended.exit_code == 0) return 0;
    log(LogLevel::warning, prefix + "leaves the job, because it got SIGTERM");
    worker.reset();
    static_cast<void>(std::fflush(nullptr));
    return Termination<>::end_process();
  } catch (const JobFailed& failed) {
    log(LogLevel::error, format_text("{}ends because {}", {prefix, failed.what()}));
    return exit_code_job_failed;
  } catch (const Error& error) {
    return fail(error.what(), group::detail::exit_code_of(error));
  } catch (...) {
    return fail(exception_text(), exit_code_exception);
  }
}

}  // namespace DTRAIN_NAMESPACE::elastic

#endif  // DTRAIN_DEFINITIONS
