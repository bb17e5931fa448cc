#include "dtrain/net/listener.hpp"
#include "support/name_service.hpp"
#include "support/open_descriptors.hpp"
#include "support/skip.hpp"
#include "unit/net/prelude.hpp"

namespace {

using async::EventLoop;
using async::Task;
using support::open_descriptors;

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

/// Reads at least one byte, or the end of the stream.
Task<net::IoResult> read_some(Connection& connection, std::span<std::byte> buffer, Deadline deadline) {
  for (;;) {
    const net::IoResult result = connection.try_read(buffer);
    if (result.status != IoStatus::timed_out) {
      co_return result;
    }
    const async::WakeReason ready = co_await connection.readable(deadline);
    if (ready == async::WakeReason::timed_out) {
      co_return net::IoResult{IoStatus::timed_out, 0, 0};
    }
  }
}

/// Writes all bytes, unless the deadline passes or the connection ends.
Task<net::IoResult> write_all(Connection& connection, std::span<const std::byte> bytes, Deadline deadline) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const net::IoResult result = connection.try_write(bytes.subspan(done));
    if (result.status == IoStatus::closed) {
      co_return net::IoResult{result.status, done, result.error};
    }
    if (result.ok()) {
      done += result.bytes;
      continue;
    }
    const async::WakeReason ready = co_await connection.writable(deadline);
    if (ready == async::WakeReason::timed_out) {
      co_return net::IoResult{IoStatus::timed_out, done, 0};
    }
  }
  co_return net::IoResult{IoStatus::ok, done, 0};
}

struct Ends {
  Connection client;
  Connection server;
};

Task<Ends> connected(EventLoop& loop) {
  Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
  net::ConnectResult client = co_await net::connect(loop, listener.local(), soon());
  std::optional<Connection> server = co_await listener.accept(soon());
  if (!client.connection || !server) throw std::runtime_error("no connection over the loopback");
  Ends ends{std::move(*client.connection), std::move(*server)};
  co_return ends;
}

/// Runs `body(loop, ends)` on a loop of its own.
template <class Body>
void with_ends(Body body) {
  EventLoop loop;
  run(loop, [&]() -> Task<void> {
    Ends ends = co_await connected(loop);
    Task<void> running = body(loop, ends);
    co_await std::move(running);
  });
}

TEST_CASE("bytes go both ways, ends know each other, and the end of a stream is a value") {
  with_ends([&](EventLoop&, Ends& ends) -> Task<void> {
    CHECK(ends.client.local() == ends.server.peer());
    CHECK(ends.client.peer() == ends.server.local());
    ends.client.set_keepalive(1s, 1s, 3);
    ends.client.set_user_timeout(500ms);
    std::array<std::byte, 16> buffer;
    net::IoResult result = co_await read_some(ends.server, buffer, Deadline::after(2ms));
    CHECK(result.status == IoStatus::timed_out);
    result = co_await write_all(ends.client, bytes_of("hello"), soon());
    CHECK(result.bytes == 5);
    result = co_await read_some(ends.server, buffer, soon());
    CHECK(result.ok());
    CHECK(result.bytes == 5);
    ends.client.shutdown_write();
    result = co_await read_some(ends.server, buffer, soon());
    CHECK(result.status == IoStatus::closed);
    CHECK(result.error == 0);
    result = co_await write_all(ends.server, bytes_of("back"), soon());
    CHECK(result.ok());
    result = co_await read_some(ends.client, buffer, soon());
    CHECK(result.bytes == 4);
  });
}

TEST_CASE("a peer that is gone is a value for the writer, without a signal") {
  with_ends([&](EventLoop& loop, Ends& ends) -> Task<void> {
    { const Connection gone = std::move(ends.server); }
    net::IoResult result;
    for (int i = 0; i < 100 && result.ok(); ++i) {
      result = co_await write_all(ends.client, bytes_of("into the void"), soon());
      co_await loop.sleep_for(1ms);
    }
    CHECK(result.status == IoStatus::closed);
    CHECK(result.error != 0);
    CHECK_FALSE(result.reason().empty());
  });
}

TEST_CASE("a write that nobody reads ends at its deadline and says how much went") {
  EventLoop loop;
  run(loop, [&]() -> Task<void> {
    Ends ends = co_await connected(loop);
    const std::vector<std::byte> much(64 << 20);
    const net::IoResult result = co_await write_all(ends.client, much, Deadline::after(20ms));
    CHECK(result.status == IoStatus::timed_out);
    CHECK(result.bytes < much.size());
  });
  CHECK(loop.registered_descriptors() == 0);
}

TEST_CASE("shutdown wakes who reads the same connection") {
  with_ends([&](EventLoop& loop, Ends& ends) -> Task<void> {
    IoStatus status = IoStatus::ok;
    const auto reader = [&]() -> Task<void> {
      std::array<std::byte, 4> buffer;
      const net::IoResult result = co_await read_some(ends.client, buffer, soon());
      status = result.status;
    };
    async::TaskHandle task = loop.spawn(reader());
    co_await loop.sleep_for(1ms);
    REQUIRE(::shutdown(ends.client.descriptor(), SHUT_RDWR) == 0);
    co_await loop.sleep_for(5ms);
    CHECK(task.done());
    CHECK(status == IoStatus::closed);
  });
}

TEST_CASE("a port in use is an error that names the port and what to set") {
  EventLoop loop;
  const Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
  CHECK(listener.port() != 0);
  CHECK_ERROR(Listener::bind(loop, listener.local()), std::errc::address_in_use, std::to_string(listener.port()),
              "--master-port", "MASTER_PORT");
  CHECK_ERROR(Listener::bind_any(loop, listener.port()), std::errc::address_in_use);
  CHECK_THROWS_AS(Listener::bind(loop, *SocketAddress::from_numeric("192.0.2.1", 0)), Error);
}

TEST_CASE("a refused connection is a value, and accepting ends at its deadline") {
  EventLoop loop;
  run(loop, [&]() -> Task<void> {
    SocketAddress closed;
    {
      const Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
      closed = listener.local();
    }
    const net::ConnectResult result = co_await net::connect(loop, closed, soon());
    CHECK_FALSE(result.connection.has_value());
    CHECK(result.error == ECONNREFUSED);
    Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
    const std::optional<Connection> nobody = co_await listener.accept(Deadline::after(2ms));
    CHECK_FALSE(nobody.has_value());
  });
}

TEST_CASE("connecting waits for a listener that appears later") {
  EventLoop loop;
  const Listener probe = Listener::bind(loop, SocketAddress::loopback_v4(0));
  const std::uint16_t port = probe.port();
  const auto body = [&]() -> Task<void> {
    Task<Connection> connecting = net::connect_with_backoff(loop, "localhost", port, soon());
    const Connection connection = co_await std::move(connecting);
    CHECK(connection.peer().port() == port);
  };
  const_cast<Listener&>(probe) = Listener::bind(loop, SocketAddress::loopback_v4(0));
  std::optional<Listener> late;
  const auto appear = [&]() -> Task<void> {
    co_await loop.sleep_for(60ms);
    late.emplace(Listener::bind_any(loop, port));
  };
  async::TaskHandle task = loop.spawn(appear());
  loop.run_until(body(), soon());
  CHECK(late.has_value());
}

TEST_CASE("connecting to nobody names host, port, reason and time, and ends at its deadline") {
  EventLoop loop;
  std::uint16_t port = 0;
  {
    const Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
    port = listener.port();
  }
  CHECK_ERROR(loop.run_until(net::connect_with_backoff(loop, "localhost", port, Deadline::after(500ms)), soon()),
              std::errc::connection_refused, "localhost port " + std::to_string(port), "tried for ", "MASTER_ADDR");
}

TEST_CASE("frames that share bytes with each other come whole and in order, also where not all of them goes at once") {
  with_ends([&](EventLoop& loop, Ends& ends) -> Task<void> {
    net::FrameWriter writer(ends.client, 4 << 20);
    net::FrameReader reader(ends.server, 4 << 20);
    const auto large = std::make_shared<const std::string>(1 << 20, 'x');
    const auto small = std::make_shared<const std::string>("s");
    const std::vector<net::SharedBytes> around{{0, small}, {1, large}, {1, small}, {2, large}};
    const std::vector<net::SharedBytes> alone{{0, small}};
    const std::string whole = "sa" + *large + "sb" + *large;
    CHECK(writer.queue(bytes_of("one")));
    for (int i = 0; i < 3; ++i) {
      CHECK(writer.queue(bytes_of("ab"), around));
      CHECK(writer.queue(bytes_of("two")));
      CHECK(writer.queue({}, alone));
    }
    CHECK(writer.queued_bytes() == 10 * 4 + 3 + 3 * (whole.size() + 4));
    CHECK_THROWS_AS(static_cast<void>(writer.queue(std::vector<std::byte>(3 << 20), around)), Error);
    CHECK(writer.try_flush().status == IoStatus::timed_out);
    CHECK(writer.queue(bytes_of("last")));
    Task<net::IoResult> flushing = writer.flush(soon());
    std::optional<net::IoResult> flushed;
    const auto flush = [&]() -> Task<void> { flushed = co_await std::move(flushing); };
    const async::TaskHandle task = loop.spawn(flush());
    std::vector<std::string> expected{"one"};
    for (int i = 0; i < 3; ++i)
      expected.insert(expected.end(), {whole, "two", "s"});
    expected.push_back("last");
    for (const std::string& each : expected) {
      const net::FrameResult frame = co_await reader.read_frame(soon());
      const std::span<const std::byte> bytes = bytes_of(each);
      const bool is_same = std::equal(frame.payload.begin(), frame.payload.end(), bytes.begin(), bytes.end());
      CHECK(is_same);
    }
    CHECK(writer.queued_bytes() == 0);
    CHECK(large.use_count() == 3);  // this test's, and twice in `around`
  });
}

TEST_CASE("a host that does not resolve is named, with what to set") {
  EventLoop loop;
  net::Backoff patient;
  patient.on_retry = [](const std::string& why) { FAIL("it tries again: ", why); };
  for (const std::string host : {"no-such-host.invalid", "", "two words", "host:29500", "10.0.0.256", "a..b"}) {
    CHECK_ERROR(loop.run_until(net::connect_with_backoff(loop, host, 1, Deadline::after(60s), patient), soon()),
                Errc::refused, "'" + host + "'", "MASTER_ADDR");
  }
}

TEST_CASE("a name that is unknown is asked for again until it is known, and each time it is said what is waited for") {
  EventLoop loop;
  support::NameService& names = support::NameService::get();
  names.reset();
  Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
  std::vector<std::string> sentences;
  net::Backoff patient;
  patient.longest = 20ms;
  patient.on_retry = [&sentences](std::string why) {
    sentences.push_back(std::move(why));
    if (sentences.size() == 30) {
      support::NameService::get().set_address("127.0.0.1");
    }
  };
  run(loop, [&]() -> Task<void> {
    Task<Connection> connecting =
        net::connect_with_backoff(loop, "train-0.train.test", listener.port(), soon(), patient);
    const Connection connection = co_await std::move(connecting);
    CHECK(connection.peer().port() == listener.port());
  });
  CHECK(names.asked() == 31);
  REQUIRE(sentences.size() == 30);
  CHECK(sentences.front().find("resolving host 'train-0.train.test': Name or service not known (tried for ") == 0);
  CHECK_CONTAINS(sentences.front(),
                 " s); set MASTER_ADDR (or --master-addr) to a name or address that this machine can reach");
}

TEST_CASE("a name that stays unknown is an error at the deadline, with the time spent") {
  EventLoop loop;
  support::NameService& names = support::NameService::get();
  names.reset();
  for (auto patience = 200ms; names.asked() < 2 && patience < 1min; patience *= 5) {  // a slow machine asks once
    names.reset();
    try {
      loop.run_until(net::connect_with_backoff(loop, "nobody.test", 1, Deadline::after(patience)), soon());
      FAIL("it connected");
    } catch (const Error& error) {
      const std::string sentence = error.what();
      CAPTURE(sentence);
      CHECK(error.code() == Errc::refused);
      CHECK(sentence.find("resolving host 'nobody.test': ") == 0);
      CHECK_CONTAINS(sentence, "(tried for ");
      CHECK(std::stod(sentence.substr(sentence.find("(tried for ") + 11)) > 0);
    }
  }
  CHECK(names.asked() > 1);
}

TEST_CASE("a lookup that is cancelled leaves nothing dangling, even when the loop is destroyed first") {
  for (int round = 0; round < 5; ++round) {
    EventLoop loop;
    const auto body = [&]() -> Task<void> {
      const net::Resolution resolution =
          co_await net::resolve(loop, "no-such-host.invalid", 1, Deadline::after(round * 1ms));
      CHECK(resolution.addresses.empty());
      CHECK_FALSE(resolution.reason.empty());
    };
    run(loop, body);
    async::TaskHandle cancelled = loop.spawn(body());
    run(loop, [&]() -> Task<void> { co_await loop.sleep_for(0ms); });
  }
}

TEST_CASE("a listener at every address takes IPv4 and IPv6, and IPv6 peers are recognised as such") {
  EventLoop loop;
  bool v6 = true;
  try {
    const Listener probe = Listener::bind(loop, SocketAddress::loopback_v6(0));
  } catch (const Error&) {
    v6 = false;
  }
  Listener listener = Listener::bind_any(loop, 0);
  const auto meet = [&](SocketAddress target) -> Task<void> {
    const net::ConnectResult client = co_await net::connect(loop, target.with_port(listener.port()), soon());
    CHECK(client.connection.has_value());
    const std::optional<Connection> server = co_await listener.accept(soon());
    CHECK(server->peer().is_loopback());
    CHECK(server->peer().is_v6() == target.is_v6());
  };
  loop.run_until(meet(SocketAddress::loopback_v4(0)), soon());
  if (!v6) return dtrain_test::skip("this machine has no IPv6 loopback");
  loop.run_until(meet(SocketAddress::loopback_v6(0)), soon());
}

TEST_CASE("frames cross a connection; the bound, the end and a truncated frame are distinguished") {
  EventLoop loop;
  run(loop, [&]() -> Task<void> {
    Ends ends = co_await connected(loop);
    net::FrameWriter writer(ends.client, 1 << 20);
    net::FrameReader reader(ends.server, 1 << 19);
    CHECK(writer.queue(bytes_of("one")));
    CHECK(writer.queue(bytes_of("")));
    net::IoResult io = co_await writer.write_frame(bytes_of("three"), soon());
    CHECK(io.bytes == 3 * 4 + 8);
    for (const std::size_t size : {3U, 0U, 5U}) {
      const net::FrameResult frame = co_await reader.read_frame(soon());
      CHECK(frame.ok());
      CHECK(frame.payload.size() == size);
    }
    net::FrameResult frame = co_await reader.read_frame(Deadline::after(1ms));
    CHECK(frame.status == net::FrameStatus::timed_out);
    const std::vector<std::byte> big(1 << 19);
    CHECK(writer.queue(big));
    const auto flush = [&]() -> Task<void> {
      const net::IoResult result = co_await writer.flush(soon());
      CHECK(result.ok());
    };
    async::TaskHandle flushing = loop.spawn(flush());
    frame = co_await reader.read_frame(soon());
    CHECK(frame.payload.size() == big.size());
    CHECK_THROWS_AS(static_cast<void>(writer.queue(std::vector<std::byte>((1 << 20) + 1))), Error);
    co_await write_all(ends.client, bytes_of(std::string_view("\5\0\0\0ab", 6)), soon());
    frame = co_await reader.read_frame(Deadline::after(5ms));
    CHECK(frame.status == net::FrameStatus::timed_out);
    ends.client.shutdown_write();
    frame = co_await reader.read_frame(soon());
    CHECK(frame.status == net::FrameStatus::truncated);
    CHECK_CONTAINS(frame.reason, "inside a frame");
  });
  const auto hostile = [&]() -> Task<void> {
    Ends ends = co_await connected(loop);
    net::FrameReader reader(ends.server);
    co_await write_all(ends.client, bytes_of("GET / HTTP/1.1\r\n"), soon());
    const net::FrameResult frame = co_await reader.read_frame(soon());
    CHECK(frame.status == net::FrameStatus::too_long);
    net::FrameReader clean(ends.client);
    ends.server.shutdown_write();
    const net::FrameResult end = co_await clean.read_frame(soon());
    CHECK(end.status == net::FrameStatus::closed);
  };
  loop.run_until(hostile(), soon());
}

TEST_CASE("a full queue takes no more until the peer reads") {
  with_ends([&](EventLoop&, Ends& ends) -> Task<void> {
    net::FrameWriter writer(ends.client, 100, 250);
    const std::vector<std::byte> hundred(100);
    CHECK(writer.queue(hundred));
    CHECK(writer.queue(hundred));
    CHECK_FALSE(writer.queue(hundred));
    CHECK(writer.queued_bytes() == 208);
    const net::IoResult io = co_await writer.flush(soon());
    CHECK(io.bytes == 208);
    CHECK(writer.queue(hundred));
  });
}

TEST_CASE("a hundred connections, cancelled halfway, leave no descriptor open") {
  const std::size_t before = open_descriptors();
  {
    EventLoop loop;
    Listener listener = Listener::bind(loop, SocketAddress::loopback_v4(0));
    std::vector<async::TaskHandle> sessions;
    int greeted = 0;
    const auto serve = [&](Connection connection) -> Task<void> {
      std::array<std::byte, 8> buffer;
      const net::IoResult result = co_await read_some(connection, buffer, soon());
      greeted += result.ok() ? 1 : 0;
      co_await read_some(connection, buffer, soon());
    };
    const auto accept_all = [&]() -> Task<void> {
      for (;;) {
        std::optional<Connection> connection = co_await listener.accept(soon());
        sessions.push_back(loop.spawn(serve(std::move(*connection))));
      }
    };
    const auto client = [&]() -> Task<void> {
      Task<Connection> connecting = net::connect_with_backoff(loop, "127.0.0.1", listener.port(), soon());
      Connection connection = co_await std::move(connecting);
      co_await write_all(connection, bytes_of("hi"), soon());
      std::array<std::byte, 8> buffer;
      co_await read_some(connection, buffer, soon());
    };
    sessions.push_back(loop.spawn(accept_all()));
    for (int i = 0; i < 100; ++i)
      sessions.push_back(loop.spawn(client()));
    const auto wait = [&]() -> Task<void> {
      while (greeted < 100)
        co_await loop.sleep_for(1ms);
    };
    loop.run_until(wait(), soon());
    CHECK(open_descriptors() > 200);  // `before` may have counted a lookup, as below
    sessions.resize(100);
    CHECK(loop.registered_descriptors() < 200);
  }
  // A lookup that an earlier test case cancelled may have one open, now or before.
  const Deadline deadline = soon();
  while (open_descriptors() > before && !deadline.passed())
    std::this_thread::sleep_for(1ms);
  CHECK(open_descriptors() <= before);
}

}  // namespace
