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
      : loop_(&loop), listener_(std::move(listener)), port_(listener_->port()), options_(std::move(options)) {}
  RankStore(const RankStore&) = delete;
  RankStore& operator=(const RankStore&) = delete;

  void open(int) {
    left_.clear();
    server_.reset();
    rendezvous::ServerOptions server;
    server.world_size = options_.world_size;
    server.owner = options_.owner;
    server.formation = Deadline::after(options_.formation);
    server.loss_grace = loss_grace;
    server.on_left = [this](int rank) {
      left_.insert(rank);
      if (options_.on_left) options_.on_left(rank);
    };
    server.on_failure = [this](const Cause& cause) {
      if (options_.on_failure) options_.on_failure(cause);
    };
    if (!listener_) listener_.emplace(net::Listener::bind(*loop_, net::Endpoint::loopback_v4(port_)));
    server_.emplace(*loop_, std::move(*listener_), std::move(server));
    listener_.reset();
  }

  bool has_left(int rank) const { return left_.count(rank) != 0; }

  std::optional<Cause> cause() const { return server_ ? server_->cause() : std::nullopt; }

  /// Tells the ranks of a failed worker, unless it had left.
  void lose(const Cause& loss) {
    if (server_ && !has_left(loss.rank)) {
      server_->post_failure(loss);
    }
  }

  void close() { server_.reset(); }

 private:
  /// How long a closed connection waits for the news of how the process ended, which says more.
  static constexpr std::chrono::milliseconds loss_grace{50};

  async::EventLoop* loop_;
  std::optional<net::Listener> listener_;
  std::uint16_t port_;
  RankStoreOptions options_;
  std::set<int> left_;
  std::optional<rendezvous::Server> server_;
};

}  // namespace DTRAIN_NAMESPACE::launch
