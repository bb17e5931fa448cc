#pragma once
/// @file
/// The store that the ranks of one attempt after the other meet at, in the launcher of node 0.

#include <chrono>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "dtrain/rendezvous/server.hpp"

namespace DTRAIN_NAMESPACE::launch {

struct RankStoreOptions {
  rendezvous::ServerOptions server{};
  int world_size = 1;
  std::string owner;  ///< "the launcher on host a"
  std::chrono::nanoseconds formation{0};
  std::function<void(const Cause&)> on_failure{};  ///< the first cause of the present attempt
  std::function<void(int rank)> on_left{};
};

/// Opens a generation of the ranks' job for each attempt, which closes the one before: its stragglers are refused.
/// Lifetime: the server outlives it. Threads: the loop's.
class RankStore {
 public:
  RankStore(async::EventLoop& loop, net::Listener listener, RankStoreOptions options)
      : server_(std::in_place, loop, std::move(listener), options.server), options_(std::move(options)) {}
  RankStore(const RankStore&) = delete;
  RankStore& operator=(const RankStore&) = delete;

  void open(int attempt) {
    left_.clear();
    rendezvous::JobOptions job;
    job.world_size = options_.world_size;
    job.generation = static_cast<std::uint64_t>(attempt);
    job.owner = options_.owner;
    job.formation = Deadline::after(options_.formation);
    job.on_left = [this](int rank) {
      left_.insert(rank);
      if (options_.on_left) options_.on_left(rank);
    };
    job.on_failure = [this](const Cause& cause) {
      if (options_.on_failure) options_.on_failure(cause);
    };
    job_ = &server_->open(std::move(job));
  }

  bool has_left(int rank) const { return left_.count(rank) != 0; }

  std::optional<Cause> cause() const { return job_ != nullptr ? job_->cause() : std::nullopt; }

  /// Tells the ranks of a failed worker, unless it had left.
  void lose(const Cause& loss) {
    if (job_ != nullptr && !has_left(loss.rank)) {
      job_->post_failure(loss);
    }
  }

  void close() {
    job_ = nullptr;
    server_.reset();
  }

 private:
  std::optional<rendezvous::Server> server_;
  RankStoreOptions options_;
  std::set<int> left_;
  rendezvous::ServedJob* job_ = nullptr;  ///< the server's; null before the first attempt and after close()
};

}  // namespace DTRAIN_NAMESPACE::launch
