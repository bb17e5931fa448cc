#include <csignal>

#include <sys/wait.h>

#include "dtrain/net/listener.hpp"
#include "support/gate.hpp"
#include "unit/net/prelude.hpp"

TEST_CASE("a port is free again where its process has forked a child that outlives it") {
  async::EventLoop loop;
  std::optional<Listener> first(Listener::bind(loop, SocketAddress::loopback_v4(0)));
  const SocketAddress address = first->local();
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;)
      ::pause();
  }
  REQUIRE(child > 0);
  first.reset();
  CHECK(support::holds_soon([&] {  // once the child runs
    try {
      static_cast<void>(Listener::bind(loop, address));
      return true;
    } catch (const dtrain::Error&) {
      return false;
    }
  }));
  static_cast<void>(::kill(child, SIGKILL));
  static_cast<void>(::waitpid(child, nullptr, 0));
}
