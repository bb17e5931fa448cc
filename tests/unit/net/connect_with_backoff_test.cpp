#include "dtrain/net/connection.hpp"
#include "dtrain/net/listener.hpp"
#include "support/expect_error.hpp"
#include "support/name_service.hpp"
#include "unit/net/prelude.hpp"

TEST_CASE("where a name is not answered for in time after a try to connect, the error is that of the try") {
  support::NameService& names = support::NameService::get();
  names.reset();
  names.set_address("127.0.0.1");
  async::EventLoop loop;
  const std::uint16_t port = Listener::bind(loop, SocketAddress::loopback_v4(0)).port();  // nobody listens there
  Backoff backoff;
  backoff.on_retry = [&names](const std::string&) { names.hold(true); };
  const auto connect = [&]() -> async::Task<void> {
    async::Task<Connection> connecting =
        connect_with_backoff(loop, "store.test", port, Deadline::after(std::chrono::seconds(1)), backoff);
    static_cast<void>(co_await std::move(connecting));
  };
  const std::string error = support::error_of([&] { run(loop, connect); }).what();
  names.reset();
  CHECK(error.starts_with("connecting to store.test port " + std::to_string(port) + ", tried for "));
  CHECK(support::contains(error, "Connection refused"));
}
