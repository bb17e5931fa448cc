#include "dtrain/net/address.hpp"

#include <doctest/doctest.h>

#include <string>

namespace {

using dtrain::net::Endpoint;
using dtrain::net::parse_port;

TEST_CASE("numeric addresses are parsed and written back in their usual form") {
  for (const char* text : {"127.0.0.1:0", "192.0.2.1:65535", "[::1]:80", "[2001:db8::1]:29500", "0.0.0.0:1"}) {
    const auto endpoint = Endpoint::parse(text);
    REQUIRE_MESSAGE(endpoint.has_value(), text);
    CHECK(to_string(*endpoint) == text);
  }
  CHECK(Endpoint::from_numeric("[::1]", 5) == Endpoint::loopback_v6(5));
  CHECK(Endpoint::from_numeric("::1", 5) == Endpoint::loopback_v6(5));
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
    CHECK_MESSAGE(!Endpoint::parse(text).has_value(), text);
  }
  CHECK_FALSE(Endpoint::from_numeric(std::string_view("1.2.3.4\0x", 9), 1).has_value());
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
    CHECK_MESSAGE(Endpoint::from_numeric(host, 1)->is_loopback(), host);
  }
  for (const char* host : {"128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:192.0.2.1", "fe80::1"}) {
    CHECK_MESSAGE(!Endpoint::from_numeric(host, 1)->is_loopback(), host);
  }
}

TEST_CASE("an IPv4 address written as IPv6 compares equal to itself once unmapped") {
  const Endpoint mapped = *Endpoint::from_numeric("::ffff:192.0.2.1", 9);
  const Endpoint plain = *Endpoint::from_numeric("192.0.2.1", 9);
  CHECK_FALSE(mapped == plain);
  CHECK(mapped.unmapped() == plain);
  CHECK(plain.unmapped() == plain);
  CHECK_FALSE(plain == plain.with_port(10));
  CHECK(Endpoint::any_v4(1).is_any());
  CHECK(Endpoint::any_v6(1).is_any());
}

}  // namespace
