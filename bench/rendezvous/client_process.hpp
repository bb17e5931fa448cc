#pragma once
/// @file
/// A process that is many ranks of a job at once, on one loop.

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/child_process.hpp"
#include "dtrain/async/events.hpp"
#include "dtrain/rendezvous/client/store.hpp"
#include "dtrain/rendezvous/client/store_client.hpp"

namespace bench {

namespace rendezvous = dtrain::rendezvous;

/// Which ranks a process is, and of which job.
struct ClientOptions {
  std::uint16_t port = 0;
  rendezvous::Secret secret;
  int world_size = 1;
  int first_rank = 0;
  int ranks = 1;
};

/// What became of the ranks of one process.
struct ClientResult {
  dtrain::Deadline::Clock::time_point formed;  ///< when its last rank had its Membership
  dtrain::Deadline::Clock::time_point done;    ///< when its last rank had passed add and wait
  std::int64_t sum = 0;                        ///< of what each rank's add gave
  std::array<char, 64> job{};                  ///< its name, as all ranks were told
  std::array<char, 512> error{};               ///< empty where all is right
};

inline constexpr int ranks_of_a_node = 8;

class ClientProcess {
 public:
  explicit ClientProcess(const ClientOptions& options)
      : child_([=](const Channel& channel) { Ranks(options, channel).play(); }) {
    child_.channel().receive<char>(soon(), "the ranks");
  }

  /// All its ranks join, add and wait.
  void begin() const { child_.channel().send('b'); }
  ClientResult result(dtrain::Deadline deadline) const {
    return child_.channel().receive<ClientResult>(deadline, "the ranks");
  }
  /// All its ranks leave the job.
  void leave() const { child_.channel().send('l'); }
  void await_left() const { child_.channel().receive<char>(soon(), "the ranks' leaving"); }

 private:
  static dtrain::Deadline soon() { return dtrain::Deadline::after(std::chrono::seconds(120)); }

  class Ranks {
   public:
    Ranks(ClientOptions options, const Channel& channel)
        : options_(std::move(options)), channel_(channel), all_done_(loop_) {
      sessions_.resize(static_cast<std::size_t>(options_.ranks));
    }

    void play() {
      channel_.send('r');
      loop_.run_until(all(), dtrain::Deadline::after(std::chrono::hours(1)), "playing ranks");
    }

   private:
    dtrain::async::Task<void> all() {
      co_await told();
      for (int i = 0; i < options_.ranks; ++i) {
        loop_.spawn_detached(one(i));
      }
      co_await all_done_.wait(soon());
      result_.done = dtrain::Deadline::Clock::now();
      if (unfinished_ranks() > 0) {
        note_error(std::to_string(unfinished_ranks()) + " ranks are not done");
      }
      channel_.send(result_);
      co_await told();
      for (rendezvous::StoreClient::Owner& session : sessions_) {
        if (session) {
          loop_.spawn_detached(leave(*session));
        }
      }
      const dtrain::Deadline deadline = soon();
      while (left_ < options_.ranks && !deadline.passed()) {
        co_await loop_.sleep_for(std::chrono::milliseconds(1));
      }
      channel_.send('l');
      co_await told();
    }

    /// Until the benchmark says something.
    dtrain::async::Task<void> told() {
      co_await loop_.readable(channel_.descriptor(), dtrain::Deadline::after(std::chrono::hours(1)));
      channel_.receive<char>(soon(), "the benchmark");
    }

    dtrain::async::Task<void> one(int index) {
      try {
        co_await join(index);
        const rendezvous::Store store(sessions_[static_cast<std::size_t>(index)]->weak_from_this(), nullptr);
        dtrain::async::Task<std::int64_t> adding = store.add("count", 1, soon());
        const std::int64_t sum = co_await std::move(adding);
        result_.sum += sum;
        if (sum == options_.world_size) {
          dtrain::async::Task<void> setting = store.set("all", "1", soon());
          co_await std::move(setting);
        }
        dtrain::async::Task<void> waiting = store.wait(std::vector<std::string>(1, "all"), soon());
        co_await std::move(waiting);
      } catch (const std::exception& error) {
        note_error(error.what());
      }
      if (++done_ == options_.ranks) {
        all_done_.set();
      }
    }

    dtrain::async::Task<void> join(int index) {
      rendezvous::StoreAddress address;
      address.host = "127.0.0.1";
      address.port = options_.port;
      address.secret = options_.secret;
      rendezvous::Join request;
      request.info.rank = options_.first_rank + index;
      request.info.host_id = request.info.host = "node-" + std::to_string(request.info.rank / ranks_of_a_node);
      request.info.settings = "policy=bench";
      request.world_size = options_.world_size;
      auto latch = std::make_shared<dtrain::FailureLatch>();
      const int rank = request.info.rank;
      dtrain::async::Task<rendezvous::StoreClient::Owner> joining =
          rendezvous::StoreClient::join(loop_, std::move(address), std::move(request), std::move(latch), soon());
      rendezvous::StoreClient::Owner session = co_await std::move(joining);
      check(session->membership(), rank);
      sessions_[static_cast<std::size_t>(index)] = std::move(session);
      if (++joined_ == options_.ranks) {
        result_.formed = dtrain::Deadline::Clock::now();
      }
    }

    void check(const rendezvous::Membership& member, int rank) {
      const int nodes = (options_.world_size + ranks_of_a_node - 1) / ranks_of_a_node;
      const int of_node = std::min(ranks_of_a_node, options_.world_size - rank / ranks_of_a_node * ranks_of_a_node);
      if (member.rank != rank || member.world_size != options_.world_size ||
          member.local_rank != rank % ranks_of_a_node || member.local_world_size != of_node ||
          member.node_rank != rank / ranks_of_a_node || member.node_count != nodes) {
        note_error("rank " + std::to_string(rank) + " was told that it is another");
      }
      if (result_.job[0] == 0) {
        std::memcpy(result_.job.data(), member.job.data(), std::min(member.job.size(), result_.job.size() - 1));
      } else if (member.job != result_.job.data()) {
        note_error("the ranks were told different names of their job");
      }
    }

    dtrain::async::Task<void> leave(rendezvous::StoreClient& session) {
      co_await session.leave(soon());
      ++left_;
    }

    int unfinished_ranks() const noexcept { return options_.ranks - done_; }

    void note_error(const std::string& text) {
      if (result_.error[0] == 0) {
        std::memcpy(result_.error.data(), text.data(), std::min(text.size(), result_.error.size() - 1));
      }
    }

    ClientOptions options_;
    const Channel& channel_;
    dtrain::async::EventLoop loop_;
    dtrain::async::ManualResetEvent all_done_;
    ClientResult result_;
    int joined_ = 0;
    int done_ = 0;
    int left_ = 0;
    std::vector<rendezvous::StoreClient::Owner> sessions_;
  };

  ChildProcess child_;
};

}  // namespace bench
