#pragma once
/// @file
/// The store of a job in a process of its own.

#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "bench/child_process.hpp"
#include "bench/process_facts.hpp"
#include "dtrain/async/loop/event_loop.hpp"
#include "dtrain/net/listener.hpp"
#include "dtrain/rendezvous/server/store_server.hpp"

namespace bench {

namespace rendezvous = dtrain::rendezvous;

/// What the store says of itself, at first and whenever it is asked.
struct StoreFacts {
  std::uint16_t port = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t sessions = 0;
  std::uint64_t pending_connections = 0;
};

class StoreProcess {
 public:
  StoreProcess(int world_size, const rendezvous::Secret& secret)
      : child_([=](const Channel& channel) { serve(channel, world_size, secret); }),
        first_(child_.channel().receive<StoreFacts>(moment(), "the store")) {}

  std::uint16_t port() const noexcept { return first_.port; }
  const StoreFacts& at_first() const noexcept { return first_; }

  StoreFacts now() const {
    child_.channel().send('?');
    return child_.channel().receive<StoreFacts>(moment(), "the store");
  }

 private:
  static dtrain::Deadline moment() { return dtrain::Deadline::after(std::chrono::seconds(60)); }

  static void serve(const Channel& channel, int world_size, const rendezvous::Secret& secret) {
    dtrain::async::EventLoop loop;
    dtrain::net::Listener listener = dtrain::net::Listener::bind(loop, dtrain::net::SocketAddress::loopback_v4(0));
    rendezvous::StoreServer server(loop, std::move(listener), rendezvous::ServerOptions{secret, {}});
    rendezvous::StoreJobOptions options;
    options.world_size = world_size;
    options.owner = "the store of the benchmark";
    const rendezvous::JobServer& job = server.open(std::move(options));
    const auto answer = [&]() -> dtrain::async::Task<void> {
      const dtrain::Deadline end = dtrain::Deadline::after(std::chrono::hours(1));
      for (char asked = '?'; asked == '?';) {
        channel.send(StoreFacts{server.local().port(), resident_bytes(), job.sessions(), server.pending_connections()});
        co_await loop.readable(channel.descriptor(), end);
        asked = ::recv(channel.descriptor(), &asked, 1, 0) == 1 ? '?' : ' ';
      }
    };
    loop.run_until(answer(), dtrain::Deadline::after(std::chrono::hours(1)), "serving the benchmark");
  }

  ChildProcess child_;
  StoreFacts first_;
};

}  // namespace bench
