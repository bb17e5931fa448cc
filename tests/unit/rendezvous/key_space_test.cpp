#include "dtrain/rendezvous/key_space.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using dtrain::rendezvous::KeySpace;
using dtrain::rendezvous::Limits;
using dtrain::rendezvous::RequestKey;

namespace {
using Released = std::vector<KeySpace::Released>;
}

TEST_CASE("a key holds what was set last") {
  KeySpace keys{Limits{}};
  Released released;
  CHECK(keys.find("a") == nullptr);
  CHECK_FALSE(keys.set("a", "1", released));
  CHECK_FALSE(keys.set("a", std::string("\0x", 2), released));
  REQUIRE(keys.find("a") != nullptr);
  CHECK(*keys.find("a") == std::string("\0x", 2));
  CHECK(keys.size() == 1);
  CHECK(keys.bytes() == 3);
  CHECK(released.empty());
}

TEST_CASE("add counts from nothing, in decimal, and refuses what is no integer or does not fit") {
  KeySpace keys{Limits{}};
  Released released;
  CHECK(keys.add("n", 5, released).value == 5);
  CHECK(keys.add("n", -7, released).value == -2);
  CHECK(*keys.find("n") == "-2");
  CHECK_FALSE(keys.set("text", "5x", released));
  CHECK(keys.add("text", 1, released).refusal->find("no integer") != std::string::npos);
  CHECK(*keys.find("text") == "5x");
  CHECK_FALSE(keys.add("big", std::numeric_limits<std::int64_t>::max(), released).refusal);
  CHECK(keys.add("big", 1, released).refusal->find("64 bits") != std::string::npos);
  CHECK(*keys.find("big") == "9223372036854775807");
}

TEST_CASE("a wait is released when its last key comes to be, once") {
  KeySpace keys{Limits{}};
  Released released;
  CHECK_FALSE(keys.set("a", "1", released));
  CHECK(keys.wait({1, 1}, {"a", "a"}, false));
  CHECK_FALSE(keys.wait({1, 2}, {"a", "b", "c", "b"}, false));
  CHECK_FALSE(keys.wait({2, 1}, {"c"}, true));
  CHECK(keys.waits() == 2);
  CHECK_FALSE(keys.set("b", "2", released));
  CHECK(released.empty());
  CHECK_FALSE(keys.add("c", 3, released).refusal);
  REQUIRE(released.size() == 2);
  CHECK(released[0].who == RequestKey{1, 2});
  CHECK_FALSE(released[0].value);
  CHECK(released[1].who == RequestKey{2, 1});
  CHECK(released[1].value == "3");
  released.clear();
  CHECK_FALSE(keys.set("c", "4", released));
  CHECK(released.empty());
  CHECK(keys.waits() == 0);
}

TEST_CASE("a wait that is taken back names what is missing, and leaves nothing behind") {
  KeySpace keys{Limits{}};
  Released released;
  CHECK_FALSE(keys.wait({1, 1}, {"a", "b", "c"}, false));
  CHECK_FALSE(keys.wait({1, 2}, {"b"}, true));
  CHECK_FALSE(keys.wait({2, 1}, {"b"}, true));
  CHECK_FALSE(keys.set("a", "", released));
  CHECK(keys.waited_by(1) == std::pair<std::size_t, std::string>(3, "b"));
  CHECK(keys.cancel({1, 1}) == std::vector<std::string>{"b", "c"});
  CHECK_FALSE(keys.cancel({1, 1}));
  keys.forget(1);
  CHECK(keys.waits() == 1);
  CHECK_FALSE(keys.set("b", "x", released));
  REQUIRE(released.size() == 1);
  CHECK(released[0].who == RequestKey{2, 1});
  CHECK_FALSE(keys.cancel({2, 1}));
}

TEST_CASE("the number of keys and their bytes are bounded, and a refused set changes nothing") {
  Limits limits;
  limits.keys = 2;
  limits.store_bytes = 10;
  KeySpace keys{limits};
  Released released;
  CHECK_FALSE(keys.set("a", "1234", released));
  CHECK_FALSE(keys.set("b", "1234", released));
  CHECK(keys.set("c", "", released)->find("2 keys") != std::string::npos);
  CHECK(keys.set("a", "12345", released)->find("10 bytes") != std::string::npos);
  CHECK(*keys.find("a") == "1234");
  CHECK(keys.bytes() == 10);
  CHECK_FALSE(keys.set("a", "", released));
  CHECK_FALSE(keys.set("b", "12345678", released));
}
