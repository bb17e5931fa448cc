#pragma once
/// @file
/// dtrain::run(), dtrain::init_process_group(): start, or join, a job's ranks from main(). PolicyRankBody: a body on a
/// rank.

#include <concepts>
#include <functional>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>

#include "dtrain/core/cause.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/group/rank_body.hpp"
#include "dtrain/group/rank_context.hpp"
#include "dtrain/launch/launcher.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/process_group.hpp"

namespace DTRAIN_NAMESPACE {

/// argv without the launcher's flags; [0] is the program's name. A null pointer follows the last, so data() is an argv
/// for getopt and others that want one. Lifetime: until run() returns.
/// @ingroup jobs
using Arguments = std::span<char*>;

template <class P>
class Elastic;

/// `body(group)` or `body(group, arguments)`, returning an exit code or nothing.
/// @ingroup jobs
template <class Body, class P>
concept GroupBody = std::invocable<Body, ProcessGroup<P>> || std::invocable<Body, ProcessGroup<P>, Arguments>;

/// GroupBody, or the same with an Elastic (dtrain/elastic.hpp) in place of the group.
/// @ingroup jobs
template <class Body, class P>
concept RunBody = GroupBody<Body, P> || std::invocable<Body, Elastic<P>> || std::invocable<Body, Elastic<P>, Arguments>;

namespace elastic {

/// run() with a body that takes an Elastic; defined in dtrain/elastic.hpp.
template <class P>
struct BodyRunner;

}  // namespace elastic

namespace detail {

/// A launcher that starts its ranks itself, for a backend's works_with.
struct StartsRanks {
  static constexpr bool returns_into_user_code = false;
};

/// Passes facts of the backend to a launcher that takes them: the number of visible devices (`visible_devices()`), and
/// the largest number of ranks (`most_ranks`) and the launchers (`works_with`) if the backend limits them.
template <class P>
launch::StartResult start(int argc, char** argv, launch::Takes takes = launch::Takes::group,
                          launch::RunElasticJob run_elastic = nullptr) {
  launch::BackendFacts facts;
  facts.run_elastic = run_elastic;
  facts.name = P::Backend::name();
  if constexpr (requires { P::Backend::visible_devices(); }) {
    facts.visible_devices = &P::Backend::visible_devices;
  }
  if constexpr (requires { P::Backend::most_ranks; }) {
    facts.most_ranks = P::Backend::most_ranks;
  }
  if constexpr (requires { P::Backend::template works_with<StartsRanks>; }) {
    facts.needs_process_per_rank = !P::Backend::template works_with<StartsRanks>;
  }
  if constexpr (requires { P::Launcher::start(argc, argv, facts, takes); }) {
    return P::Launcher::start(argc, argv, facts, takes);
  } else if constexpr (requires { P::Launcher::start(argc, argv, facts); }) {
    return P::Launcher::start(argc, argv, facts);
  } else if constexpr (requires { P::Launcher::start(argc, argv, takes); }) {
    return P::Launcher::start(argc, argv, takes);
  } else {
    return P::Launcher::start(argc, argv);
  }
}

/// The system keeps eight bits of an exit code. Nonzero codes that it would truncate to 0 become exit_code_exception.
inline int as_exit_code(long long code) noexcept {
  return code != 0 && (code & 0xff) == 0 ? exit_code_exception : static_cast<int>(code);
}

/// @param job a group, or an Elastic
template <class Body, class Job>
int call_body(Body& body, Job job, Arguments arguments) {
  const auto call = [&]() -> decltype(auto) {
    if constexpr (std::invocable<Body&, Job, Arguments>) {
      return std::invoke(body, std::move(job), arguments);
    } else {
      return std::invoke(body, std::move(job));
    }
  };
  using Result = decltype(call());
  static_assert(std::is_void_v<Result> || std::is_convertible_v<Result, long long>,
                "dtrain: the body returns an exit code or nothing");
  if constexpr (std::is_void_v<Result>) {
    call();
    return 0;
  } else if constexpr (std::is_convertible_v<Result, long long>) {
    return as_exit_code(static_cast<long long>(call()));
  } else {
    return exit_code_exception;
  }
}

/// A rank of a job with policy P.
template <class P, GroupBody<P> Body>
class PolicyRankBody final : public group::RankBody {
 public:
  PolicyRankBody(const launch::RankProcess& process, Body& body, const GroupOptions& options)
      : process_(process), body_(body), options_(options) {}

  group::RankContext& join_job() override {
    group_.emplace(ProcessGroup<P>::join(process_, options_));
    return *group::GroupAccess::of(*group_).rank_context();
  }
  int call_body() override { return detail::call_body(body_, *group_, process_.arguments()); }

 private:
  const launch::RankProcess& process_;
  Body& body_;
  const GroupOptions& options_;
  std::optional<ProcessGroup<P>> group_;
};

}  // namespace detail

/// Runs `body` on every rank. Must be the first statement of main(). Blocking: until the job ends.
/// @returns the process's exit code:
/// - the body's; 1 for nonzero codes that the system would truncate to 0 (256);
/// - 1 after an exception, whose text is on stderr; 2 for a usage or identity error;
/// - 75 if this rank failed because another rank failed first.
/// A body that returns 0 after the job has failed counts as failed: 1 if its own rank was the first cause, else 75.
/// With launch::PerNode the process that the user started becomes the launcher. It never calls `body`, and returns the
/// exit code of the first worker that failed (128 + signal).
/// @ingroup jobs
template <class P, class Body>
int run(int argc, char** argv, Body body, const GroupOptions& options = {}) {
  static_assert(RunBody<Body, P>,
                "dtrain: run() calls body(group) or body(group, arguments), with a dtrain::ProcessGroup<Policy>, or a "
                "dtrain::Elastic<Policy> in its place, and dtrain::Arguments: this body takes other arguments");
  constexpr bool is_elastic = RunBody<Body, P> && !GroupBody<Body, P>;
  launch::RunElasticJob run_elastic = nullptr;
  if constexpr (is_elastic && !P::Launcher::returns_into_user_code) {
    run_elastic = elastic::BodyRunner<P>::in_launcher();
  }
  launch::StartResult start =
      detail::start<P>(argc, argv, is_elastic ? launch::Takes::elastic : launch::Takes::group, run_elastic);
  if (!start.worker) {
    return start.exit_code;
  }
  const int rank = start.worker->identity.rank;
  int exit_code = 0;
  if constexpr (GroupBody<Body, P>) {
    detail::PolicyRankBody<P, Body> rank_body(*start.worker, body, options);
    exit_code = group::run_rank(rank, rank_body);
  } else if constexpr (RunBody<Body, P>) {
    exit_code = elastic::BodyRunner<P>::in_worker(*start.worker, body, options);
  }
  group::report_lost_output(rank);
  return exit_code;
}

/// Joins the job and returns its group, for programs that are started once for each rank.
/// Collective, blocking. @throws Error (identity, and as ProcessGroup::join).
/// @ingroup jobs
template <class P>
ProcessGroup<P> init_process_group(launch::JoinOptions options = {}, const GroupOptions& group_options = {}) {
  static_assert(
      launch::joins_other_launchers<typename P::Launcher>,
      "dtrain: init_process_group needs launch::Any or launch::PerProcess; the launcher process of launch::PerNode "
      "never returns into user code, so use dtrain::run");
  return ProcessGroup<P>::join(launch::rank_process_of(std::move(options)), group_options);
}

}  // namespace DTRAIN_NAMESPACE
