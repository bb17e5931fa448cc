#include "dtrain/net/socket_address.hpp"

#include "unit/net/prelude.hpp"

namespace {

TEST_CASE("numeric addresses are parsed and written back in their usual form") {
  const std::vector<std::tuple<const char*, std::uint16_t, const char*>> table{
      {"127.0.0.1", 0, "127.0.0.1:0"}, {"192.0.2.1", 65535, "192.0.2.1:65535"},
      {"::1", 80, "[::1]:80"},         {"2001:db8::1", 29500, "[2001:db8::1]:29500"},
      {"0.0.0.0", 1, "0.0.0.0:1"},
  };
  for (const auto& [host, port, text] : table) {
    const auto address = SocketAddress::from_numeric(host, port);
    REQUIRE_MESSAGE(address.has_value(), text);
    CHECK(to_string(*address) == text);
  }
  CHECK(SocketAddress::from_numeric("[::1]", 5) == SocketAddress::loopback_v6(5));
  CHECK(SocketAddress::from_numeric("::1", 5) == SocketAddress::loopback_v6(5));
}

TEST_CASE("what is not a numeric address is nothing") {
  for (const char* text :
       {"", ":", ":80", "localhost", "1.2.3", "1.2.3.4:", "1.2.3.4:80", "[::1", "[::1:80", "[::1]:80", "[1.2.3.4]",
        "[]", "256.1.1.1", "[fe80::1%no-such-interface]", "1.2.3.4%lo", "[::1]]", " ::1", "::1 "}) {
    CHECK_MESSAGE(!SocketAddress::from_numeric(text, 1).has_value(), text);
  }
  CHECK_FALSE(SocketAddress::from_numeric(std::string_view("1.2.3.4\0x", 9), 1).has_value());
}

TEST_CASE("loopback is the whole of 127.0.0.0/8, ::1, and IPv4's written as IPv6") {
  for (const char* host : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.1.1"})
    CHECK_MESSAGE(SocketAddress::from_numeric(host, 1)->is_loopback(), host);
  for (const char* host : {"128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:192.0.2.1", "fe80::1"})
    CHECK_MESSAGE(!SocketAddress::from_numeric(host, 1)->is_loopback(), host);
}

TEST_CASE("an IPv4 address written as IPv6 compares equal to itself once unmapped") {
  const SocketAddress mapped = *SocketAddress::from_numeric("::ffff:192.0.2.1", 9);
  const SocketAddress plain = *SocketAddress::from_numeric("192.0.2.1", 9);
  CHECK_FALSE(mapped == plain);
  CHECK(mapped.unmapped() == plain);
  CHECK(plain.unmapped() == plain);
  CHECK_FALSE(plain == plain.with_port(10));
  CHECK(SocketAddress::any_v4(1).is_any());
  CHECK(SocketAddress::any_v6(1).is_any());
}

}  // namespace
