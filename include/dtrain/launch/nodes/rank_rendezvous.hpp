#pragma once
/// @file
/// Rank rendezvous: the job in the store of node 0's launcher that the ranks of each attempt join.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Number of files that a launcher opens for its workers: two pipes for each, and pipes for the worker that starts.
inline std::size_t files_for_workers(int workers) noexcept {
  return 2 * static_cast<std::size_t>(workers) + 6;
}

/// Opens the ranks' job for each attempt. That closes the previous attempt's job, and late ranks of it are rejected.
/// Lifetime: the server outlives it. Threads: the loop's.
class RankRendezvous {
 public:
  /// @param job the attempts' job; RankRendezvous sets attempt, deadline and on_joined
  /// @param join_timeout from open() until all ranks have joined
  /// @param on_complete all ranks of the attempt have joined
  RankRendezvous(
      rendezvous::StoreServer& server, rendezvous::StoreJobOptions job, std::chrono::nanoseconds join_timeout,
      std::function<void()> on_complete = [] {})
      : server_(&server), job_options_(std::move(job)), join_timeout_(join_timeout), on_complete_(on_complete) {}
  RankRendezvous(const RankRendezvous&) = delete;
  RankRendezvous& operator=(const RankRendezvous&) = delete;

  /// Ranks of this attempt can join from now on. @throws Error (limit) if the limit of open files is too low for them
  void open(int attempt) {
    joined_.clear();
    left_.clear();
    cause_.reset();
    rendezvous::StoreJobOptions job = job_options_;
    job.attempt = static_cast<std::uint64_t>(attempt);
    job.join_deadline = Deadline::after(join_timeout_);
    job.on_joined = [this](int rank, const std::string&) {
      joined_.insert(rank);
      if (joined_.size() == static_cast<std::size_t>(job_options_.world_size)) {
        on_complete_();
      }
    };
    job.on_left = [this](int rank) {
      left_.insert(rank);
      job_options_.on_left(rank);
    };
    job.on_failure = [this](const Cause& cause) {
      cause_ = cause;
      job_options_.on_failure(cause);
    };
    job_ = &server_->open(std::move(job));
    if (cause_) {  // the attempt has failed already: start no worker
      throw_error(Errc::limit, "{}", {cause_->text});
    }
  }

  bool has_joined(int rank) const { return joined_.count(rank) != 0; }
  bool has_left(int rank) const { return left_.count(rank) != 0; }

  /// The first cause of the current attempt; nullopt before a failure.
  const std::optional<Cause>& cause() const noexcept { return cause_; }

  /// Notifies the ranks of a failed worker, unless it had left.
  void report_loss(const Cause& loss) {
    if (job_ != nullptr && !has_left(loss.rank)) {
      job_->post_failure(loss);
    }
  }

 private:
  rendezvous::StoreServer* server_;
  rendezvous::StoreJobOptions job_options_;
  std::chrono::nanoseconds join_timeout_;
  std::function<void()> on_complete_;
  std::set<int> joined_;
  std::set<int> left_;
  std::optional<Cause> cause_;
  rendezvous::JobServer* job_ = nullptr;  ///< owned by the server
};

}  // namespace DTRAIN_NAMESPACE::launch
