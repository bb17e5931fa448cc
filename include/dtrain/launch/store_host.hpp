#pragma once
/// @file
/// StoreHost: the store of an elastic job without a launcher of dtrain, on a thread of process 0.

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/async/loop_handle.hpp"
#include "dtrain/core/crypto.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/version.hpp"
#include "dtrain/launch/configuration/settings.hpp"
#include "dtrain/launch/rank_process.hpp"
#include "dtrain/net/connection.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/net/resolve_host.hpp"
#include "dtrain/rendezvous/formation/formation_server.hpp"
#include "dtrain/rendezvous/membership/host_identity.hpp"
#include "dtrain/rendezvous/protocol/codec.hpp"
#include "dtrain/rendezvous/server/listen.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"
#include "dtrain/rendezvous/session/session.hpp"

namespace DTRAIN_NAMESPACE::launch {

/// Facts of an elastic job for its formation.
struct ElasticJobFacts {
  int min_ranks = 1;
  int max_ranks = 1;
  std::chrono::nanoseconds timeout{};   ///< wait for min_ranks workers, or one that has the state
  std::chrono::nanoseconds liveness{};  ///< DTRAIN_LIVENESS_SECONDS
  std::string name{};                   ///< DTRAIN_JOB_ID; empty: none
  std::string owner{};                  ///< owner of the store: "the launcher on host a"
  std::size_t further_files = 0;        ///< the same as in StoreJobOptions
  std::chrono::milliseconds loss_grace{0};
  /// Whether the formation is notified of the end of each worker's process. Otherwise the end of its connection must
  /// do, also if the worker lives: that worker comes back.
  bool sees_processes = false;
};

/// The formation of an elastic job. Lifetime: as FormationServer.
template <class Listener>
std::unique_ptr<rendezvous::FormationServer<Listener>> formation_at(async::EventLoop& loop,
                                                                    rendezvous::StoreServer& store,
                                                                    const ElasticJobFacts& job, Listener listener) {
  rendezvous::FormationOptions sizes{
      .min_workers = job.min_ranks, .max_workers = job.max_ranks, .wait_timeout = in_milliseconds(job.timeout)};
  if (!job.sees_processes) sizes.reconnect_timeout = std::chrono::milliseconds(500);
  rendezvous::StoreJobOptions each_attempt;
  each_attempt.job = job.name;
  each_attempt.owner = job.owner;
  each_attempt.further_files = job.further_files + static_cast<std::size_t>(job.max_ranks);
  each_attempt.loss_grace = job.loss_grace;
  each_attempt.goes_on_after_loss = true;
  const rendezvous::Limits limits{.liveness = in_milliseconds(job.liveness)};
  return std::make_unique<rendezvous::FormationServer<Listener>>(loop, store, sizes, std::move(each_attempt), limits,
                                                                 std::move(listener));
}

/// Logs the attempts of a FormationServer.
struct AttemptLog {
  void on_attempt(std::uint64_t number, const std::vector<rendezvous::WorkerId>& ranks) const {
    std::string line = format_text("attempt {} has {} ranks, the processes", {number, ranks.size()});
    for (const rendezvous::WorkerId& each : ranks) {
      append_text(line, " {}", {each.process});
    }
    log(LogLevel::info, line);
  }
  void on_end() const {}
};

/// The answer of a store's address.
enum class Listening : std::uint8_t {
  none = 1,  ///< also a program that only forwards the address: it ends the connection; and a name without an address
  store,
  silent,  ///< takes the connection, and says nothing
};

/// Blocking: no. 1.5 s later at most.
template <class = void>
async::Task<Listening> listening_at(async::EventLoop& loop, std::string host, std::uint16_t port, bool has_secret) {
  const Deadline soon = Deadline::after(std::chrono::milliseconds(1500));
  try {
    async::Task<net::Connection> connecting =
        net::connect_with_backoff(loop, host, port, soon, {.connects_once = true});
    net::Connection connection = co_await std::move(connecting);
    rendezvous::Session session(std::move(connection));
    const std::vector<std::byte> hello = rendezvous::encode(
        rendezvous::Hello{version_text, rendezvous::ClientRole::worker, 0, random_bytes<16>(), has_secret});
    static_cast<void>(co_await session.write_frame(hello, soon));
    const net::FrameResult reply = co_await session.read_frame(soon);
    if (reply.ok() && rendezvous::decode<rendezvous::HandshakeReply>(reply.payload)) co_return Listening::store;
    co_return reply.status == net::FrameStatus::timed_out ? Listening::silent : Listening::none;
  } catch (const Error&) {
    co_return Listening::none;
  }
}

/// Hosts the store from its construction to its destruction, whatever becomes of the attempts.
///
/// If the store's process ends before the job, the job has ended: the other workers end with exit code 75. If it is
/// lost (SIGKILL), they notice the end of their connections, or its silence for DTRAIN_LIVENESS_SECONDS, then try to
/// reach the store for twice that time, and also end so; workers that were joining an attempt then do so after
/// DTRAIN_TIMEOUT_SECONDS at the latest. A process of the same index that replaces it hosts the store of another job,
/// which rejects by the job's number what is left of the earlier one, with exit code 75 as well. Threads: the program's
/// one. A template, as DTRAIN_ON_USE explains.
template <class = void>
class StoreHost {
 public:
  /// Waits while a store answers at the address, or a silent process has the port, or it is in use: a replacement may
  /// start before the process that it replaces has ended. Blocking: `process.timeout` at most.
  /// @throws Error (posix) if the port is in use then; as listen_for_ranks
  explicit StoreHost(const RankProcess& process) {
    const Deadline deadline = Deadline::after(process.timeout);
    const auto opening = [&](async::EventLoop& loop) { return open(loop, process, deadline); };
    try {
      thread_.run_blocking(opening, with_grace(deadline), "opening the store of an elastic job");
    } catch (...) {
      thread_.end();  // it must not use the members while they are destroyed
      throw;
    }
  }
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;

  /// Ends a job that has not finished. Blocking: until no worker is connected, 10 s at most.
  ~StoreHost() {
    try {
      const auto closing = [this](async::EventLoop&) { return close(); };
      thread_.run_blocking(closing, Deadline::after(std::chrono::seconds(12)), "closing the store of an elastic job");
    } catch (...) {  // the loop has ended, or is late
      thread_.end();
    }
  }

  /// Where this process itself reaches the store.
  const net::SocketAddress& address() const noexcept { return address_; }

 private:
  static Error taken_error(const std::string& host, std::uint16_t port, Listening found) {
    const std::string text = format_text(
        "{} at {}:{}, and the store of this elastic job is to listen there",
        {found == Listening::silent ? "a process takes connections in silence" : "another store answers", host, port});
    return posix_error(EADDRINUSE, text,
                       found == Listening::silent
                           ? format_text("it is a store whose process is stopped, another program, or a child of the "
                                         "process that had index 0 before, which has kept its port: end it (ss -ltnp "
                                         "'sport = :{}' names it)",
                                         {port})
                           : std::string());
  }

  async::Task<void> open(async::EventLoop& loop, const RankProcess& process, Deadline deadline) {
    const std::string host = process.identity.master_addr.value_or("");
    const auto port = static_cast<std::uint16_t>(process.identity.master_port.value_or(0));
    const rendezvous::ListenOptions options{process.interface, process.secret.has_value(), true};
    std::vector<net::Listener> listeners;
    for (bool has_waited = false; listeners.empty(); has_waited = true) {
      async::Task<Listening> asking = listening_at(loop, host, port, process.secret.has_value());
      const Listening found = co_await std::move(asking);
      Error taken = taken_error(host, port, found);
      if (found == Listening::none) {
        try {
          async::Task<std::vector<net::Listener>> listening =
              rendezvous::listen_for_ranks(loop, host, port, deadline, options);
          listeners = co_await std::move(listening);
          break;
        } catch (const Error& error) {
          if (error.code().value() != EADDRINUSE) throw;
          taken = error;
        }
      }
      if (deadline.passed()) throw taken;
      if (!has_waited) {
        log(LogLevel::warning, format_text("{}; this process waits until that one has ended", {taken.what()}));
      }
      co_await loop.sleep_for(std::chrono::milliseconds(200));
    }
    if (!process.interface) {
      async::Task<std::vector<net::SocketAddress>> lookup = net::resolve_with_backoff(loop, host, port, deadline);
      const std::vector<net::SocketAddress> resolved = co_await std::move(lookup);
      const auto is_resolved = [&resolved](const net::Listener& each) {
        return std::find(resolved.begin(), resolved.end(), each.local()) != resolved.end();
      };
      if (std::none_of(listeners.begin(), listeners.end(), is_resolved)) {
        log(LogLevel::warning, format_text("{}; other hosts reach the store only if MASTER_ADDR is forwarded to it",
                                           {rendezvous::listens_at("the elastic job's store", listeners, host)}));
      }
    }
    const net::SocketAddress bound = listeners.front().local();
    address_ = bound.is_any() ? net::SocketAddress::loopback_v4(bound.port()) : bound;
    store_ = std::make_unique<rendezvous::StoreServer>(loop, std::move(listeners),
                                                       rendezvous::ServerOptions{process.secret, process.limits});
    ElasticJobFacts job{process.min_ranks, process.identity.world_size, process.timeout, process.limits.liveness,
                        process.identity.job.value_or("")};
    job.owner = format_text("the process with index 0 on host {}", {rendezvous::host_identity(process.host_id).name});
    formation_ = formation_at(loop, *store_, job, AttemptLog());
  }

  async::Task<void> close() {
    if (formation_) {
      formation_->stop("the process with index 0, which hosts its store, ends");
      async::Task<void> draining = formation_->drain([] { return false; });
      co_await std::move(draining);
    }
    formation_.reset();
    store_.reset();
  }

  net::SocketAddress address_;
  async::LoopThread thread_;
  std::unique_ptr<rendezvous::StoreServer> store_;  ///< the loop's thread alone uses these
  std::unique_ptr<rendezvous::FormationServer<AttemptLog>> formation_;
};

}  // namespace DTRAIN_NAMESPACE::launch
