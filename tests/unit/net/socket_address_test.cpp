#include "dtrain/net/socket_address.hpp"
#include "unit/net/prelude.hpp"

namespace {

TEST_CASE("numeric addresses are parsed and written back in their usual form") {
  for (const char* text : {"127.0.0.1:0", "192.0.2.1:65535", "[::1]:80", "[2001:db8::1]:29500", "0.0.0.0:1"}) {
    const auto address = SocketAddress::parse(text);
    REQUIRE_MESSAGE(address.has_value(), text);
    CHECK(to_string(*address) == text);
  }
  CHECK(SocketAddress::from_numeric("[::1]", 5) == SocketAddress::loopback_v6(5));
  CHECK(SocketAddress::from_numeric("::1", 5) == SocketAddress::loopback_v6(5));
}

TEST_CASE("what is not a numeric address with a port is nothing") {
  for (const char* text : {"",
                           ":",
                           ":80",
                           "localhost:80",
                           "1.2.3:80",
                           "1.2.3.4",
                           "1.2.3.4:",
                           "1.2.3.4:65536",
                           "1.2.3.4:-1",
                           "1.2.3.4:+1",
                           "1.2.3.4: 1",
                           "::1:80",
                           "::1",
                           "[::1]",
                           "[::1:80",
                           "[1.2.3.4]:80",
                           "[]:80",
                           "256.1.1.1:1",
                           "[fe80::1%no-such-interface]:1",
                           "1.2.3.4%lo:1",
                           "[::1]]:80"}) {
    CHECK_MESSAGE(!SocketAddress::parse(text).has_value(), text);
  }
  CHECK_FALSE(SocketAddress::from_numeric(std::string_view("1.2.3.4\0x", 9), 1).has_value());
}

TEST_CASE("ports are decimal digits up to 65535") {
  CHECK(parse_port("65535") == 65535);
  CHECK(parse_port("00080") == 80);
  for (const char* text : {"", "65536", "99999999999999999999", "-1", "0x10", "1 ", " 1"}) {
    CHECK_MESSAGE(!parse_port(text).has_value(), text);
  }
}

TEST_CASE("loopback is the whole of 127.0.0.0/8, ::1, and IPv4's written as IPv6") {
  for (const char* host : {"127.0.0.1", "127.255.0.9", "::1", "::ffff:127.0.1.1"}) {
    CHECK_MESSAGE(SocketAddress::from_numeric(host, 1)->is_loopback(), host);
  }
  for (const char* host : {"128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:192.0.2.1", "fe80::1"}) {
    CHECK_MESSAGE(!SocketAddress::from_numeric(host, 1)->is_loopback(), host);
  }
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
