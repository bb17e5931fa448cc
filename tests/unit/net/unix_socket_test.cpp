#include "dtrain/net/unix_socket.hpp"

#include <fcntl.h>
#include <sys/mman.h>

#include "unit/net/prelude.hpp"

namespace {

std::string fresh_name(const char* what) {
  return "dtrain-test-" + std::to_string(::getpid()) + "-" + what;
}

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::size_t lowest_free_descriptor() {
  const Descriptor next(::fcntl(0, F_DUPFD_CLOEXEC, 0));
  return static_cast<std::size_t>(next.get());
}

/// Sends `count` copies of standard input's descriptor in one message.
void send_many(int socket, std::size_t count) {
  std::array<char, CMSG_SPACE(32 * sizeof(int))> control{};
  std::byte byte{};
  iovec part{&byte, 1};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof(int));
  REQUIRE(::sendmsg(socket, &message, MSG_NOSIGNAL) == 1);
}

/// Messages that carry standard input's descriptor.
void send(UnixConnection& connection, std::string_view text, Deadline deadline = soon()) {
  connection.send_descriptor(0, bytes_of(text), deadline);
}
std::vector<std::byte> receive(UnixConnection& connection, Deadline deadline = soon()) {
  return connection.receive_descriptor(deadline).bytes;
}

struct Pair {
  explicit Pair(const char* what)
      : listener(fresh_name(what)),
        client(UnixConnection::connect(fresh_name(what), soon())),
        server(listener.accept(soon())) {}
  UnixListener listener;
  UnixConnection client;
  UnixConnection server;
};

TEST_CASE("a descriptor handed over is the same memory, close-on-exec, and comes with its message") {
  Pair pair("memory");
  Descriptor memory(::memfd_create("test", MFD_CLOEXEC));
  REQUIRE(::ftruncate(memory.get(), 4096) == 0);
  pair.server.send_descriptor(memory.get(), bytes_of("arena"), soon());
  REQUIRE(::pwrite(memory.get(), "shared", 6, 0) == 6);
  memory.reset();
  const net::ReceivedDescriptor received = pair.client.receive_descriptor(soon());
  CHECK(received.bytes.size() == 5);
  CHECK((::fcntl(received.descriptor.get(), F_GETFD) & FD_CLOEXEC) != 0);
  std::array<char, 6> text{};
  REQUIRE(::pread(received.descriptor.get(), text.data(), text.size(), 0) == 6);
  CHECK(std::string(text.data(), text.size()) == "shared");
}

TEST_CASE("both ends know the process of the other") {
  const Pair pair("credentials");
  CHECK(pair.server.peer_credentials().pid == ::getpid());
  CHECK(pair.client.peer_credentials().uid == ::geteuid());
}

TEST_CASE("messages keep their boundaries, and a closed end is an error with that code") {
  Pair pair("plain");
  send(pair.client, "one");
  send(pair.client, "three");
  CHECK(receive(pair.server).size() == 3);
  CHECK(receive(pair.server).size() == 5);
  { const UnixConnection gone = std::move(pair.client); }
  CHECK_ERROR(receive(pair.server), Errc::closed);
  CHECK_ERROR(send(pair.server, "x"), Errc::closed);
}

TEST_CASE("what an end said before it closed is received, also if it left messages unread") {
  Pair pair("last-words");
  send(pair.client, "unread");
  send(pair.server, "farewell");
  { const UnixConnection closing = std::move(pair.server); }
  CHECK(receive(pair.client).size() == 8);
  CHECK_THROWS_AS(receive(pair.client), Error);
}

TEST_CASE("messages with too many descriptors, or none, are refused and leave none open") {
  Pair pair("hostile");
  const std::size_t before = lowest_free_descriptor();
  for (const std::size_t count : {2U, 8U, 9U, 32U}) {
    send_many(pair.client.descriptor(), count);
    CHECK_THROWS_AS(pair.server.receive_descriptor(soon()), Error);
    CHECK(lowest_free_descriptor() == before);
  }
  REQUIRE(::send(pair.client.descriptor(), "bare", 4, 0) == 4);
  CHECK_THROWS_AS(receive(pair.server), Error);
  send(pair.client, "x");
  CHECK(receive(pair.server).size() == 1);
  CHECK(lowest_free_descriptor() == before);
  const std::vector<std::byte> long_message(5000);
  REQUIRE(::send(pair.client.descriptor(), long_message.data(), long_message.size(), 0) == 5000);
  CHECK_THROWS_AS(receive(pair.server), Error);
}

TEST_CASE("waits end at their deadlines, and names are bounded, unique and refused when nobody listens") {
  Pair pair("deadlines");
  const auto code_of = [](const auto& call) { return support::error_of(call).code(); };
  CHECK(code_of([&] { receive(pair.server, Deadline::after(5ms)); }) == Errc::timeout);
  CHECK(code_of([&] { pair.listener.accept(Deadline::after(5ms)); }) == Errc::timeout);
  CHECK(code_of([&] {
          for (;;)
            send(pair.client, "unread", Deadline::after(5ms));
        }) == Errc::timeout);
  CHECK(code_of([] { UnixConnection::connect(fresh_name("nobody"), soon()); }) == std::errc::connection_refused);
  CHECK(code_of([] { const UnixListener twice(fresh_name("deadlines")); }) == std::errc::address_in_use);
  CHECK(code_of([] { const UnixListener nameless(""); }) == Errc::invalid_argument);
  CHECK(code_of([] { const UnixListener endless(std::string(108, 'x')); }) == Errc::invalid_argument);
  const std::string name = fresh_name("longest") + std::string(107 - fresh_name("longest").size(), 'x');
  const UnixListener longest(name);
  CHECK(UnixConnection::connect(name, soon()).descriptor() >= 0);
}

TEST_CASE("a receiver that waits is woken by a sender in another thread") {
  Pair pair("threads");
  std::jthread sender([&] { send(pair.client, "hello"); });
  CHECK(receive(pair.server).size() == 5);
}

}  // namespace
