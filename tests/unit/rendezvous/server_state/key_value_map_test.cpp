#include "dtrain/rendezvous/server_state/key_value_map.hpp"

#include "unit/rendezvous/prelude.hpp"

namespace {

using Released = std::vector<KeyValueMap::Released>;
using Keys = std::vector<std::string>;

KeyValueMap::Instant at(int seconds) {
  return KeyValueMap::Instant(std::chrono::seconds(seconds));
}

}  // namespace

TEST_CASE("a key holds what was set last") {
  KeyValueMap keys{Limits{}};
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
  KeyValueMap keys{Limits{}};
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

TEST_CASE("append makes a value longer up to the bound, and a key that is missing counts as empty") {
  KeyValueMap keys{Limits{}};
  Released released;
  CHECK(keys.wait({1, 1}, RequestKind::get, {"log"}, at(0)));
  CHECK(keys.append("log", "ab", released).value == 2);
  CHECK(released.size() == 1);
  CHECK(keys.append("log", "", released).value == 2);
  CHECK(keys.append("log", "c", released).value == 3);
  CHECK(*keys.find("log") == "abc");
  CHECK(keys.bytes() == 6);
  CHECK(released.size() == 1);
  CHECK(keys.append("log", std::string(max_value_bytes - 2, 'x'), released).refusal ==
        "the value would have 1048577 bytes; at most 1048576 are possible; split it over several keys, or send it by a "
        "collective");
  CHECK(*keys.find("log") == "abc");
  CHECK_FALSE(keys.append("log", std::string(max_value_bytes - 3, 'x'), released).refusal);
}

TEST_CASE("a key that is erased is missing again, also for those who had seen it while they waited") {
  KeyValueMap keys{Limits{}};
  Released released;
  CHECK_FALSE(keys.erase("a"));
  CHECK_FALSE(keys.set("a", "1", released));
  CHECK(keys.wait({1, 1}, RequestKind::get_many, {"a", "b"}, at(0)));
  CHECK(keys.erase("a"));
  CHECK_FALSE(keys.erase("a"));
  CHECK(keys.bytes() == 0);
  CHECK_FALSE(keys.set("b", "2", released));
  CHECK(released.empty());
  CHECK(keys.lacked_by(1) == "a");
  CHECK_FALSE(keys.set("a", "3", released));
  REQUIRE(released.size() == 1);
  CHECK(released[0].keys == Keys{"a", "b"});
  CHECK(released[0].kind == RequestKind::get_many);
}

TEST_CASE("set_many sets all or, refused, none, and of a key that is there twice the last value counts") {
  Limits limits;
  limits.keys = 3;
  limits.store_bytes = 12;
  KeyValueMap keys{limits};
  Released released;
  CHECK(keys.wait({1, 1}, RequestKind::wait, {"a", "b"}, at(0)));
  CHECK_FALSE(keys.set_many({"a", "b", "a"}, {"1", "2", "3"}, released));
  CHECK(released.size() == 1);
  CHECK(*keys.find("a") == "3");
  CHECK(keys.bytes() == 4);
  CHECK(keys.set_many({"a", "c", "d"}, {"x", "x", "x"}, released)->find("2 keys, its limit is 3") != std::string::npos);
  CHECK(keys.set_many({"a", "c"}, {"12345", "1234"}, released)->find("12 bytes") != std::string::npos);
  CHECK(*keys.find("a") == "3");
  CHECK(keys.find("c") == nullptr);
  CHECK_FALSE(keys.set_many({"a", "c"}, {"1234", "1234"}, released));
  CHECK(keys.bytes() == 12);
}

TEST_CASE("a wait is released when its last key comes to be, once") {
  KeyValueMap keys{Limits{}};
  Released released;
  CHECK_FALSE(keys.set("a", "1", released));
  CHECK_FALSE(keys.wait({1, 1}, RequestKind::wait, {"a", "a"}, at(0)));
  CHECK(keys.wait({1, 2}, RequestKind::wait, {"a", "b", "c", "b"}, at(0)));
  CHECK(keys.wait({2, 1}, RequestKind::get, {"c"}, at(0)));
  CHECK(keys.waits() == 2);
  CHECK_FALSE(keys.set("b", "2", released));
  CHECK(released.empty());
  CHECK_FALSE(keys.add("c", 3, released).refusal);
  REQUIRE(released.size() == 2);
  CHECK(released[0].id == RequestKey{1, 2});
  CHECK(released[0].kind == RequestKind::wait);
  CHECK(released[1].id == RequestKey{2, 1});
  CHECK(released[1].keys == Keys{"c"});
  released.clear();
  CHECK_FALSE(keys.set("c", "4", released));
  CHECK(released.empty());
  CHECK(keys.waits() == 0);
}

TEST_CASE("a wait that is taken back names what is missing and since when, and leaves nothing behind") {
  KeyValueMap keys{Limits{}};
  Released released;
  CHECK(keys.wait({1, 1}, RequestKind::wait, {"c", "a", "b", "c"}, at(7)));
  CHECK(keys.wait({1, 2}, RequestKind::get, {"b"}, at(8)));
  CHECK(keys.wait({2, 1}, RequestKind::get, {"b"}, at(9)));
  CHECK_FALSE(keys.set("a", "", released));
  CHECK(keys.waited_keys(1) == 5);
  CHECK(keys.lacked_by(1) == "c");
  const auto given_up = keys.cancel({1, 1});
  REQUIRE(given_up);
  CHECK(given_up->missing == Keys{"c", "b"});
  CHECK(given_up->keys == 3);
  CHECK(given_up->since == at(7));
  CHECK_FALSE(keys.cancel({1, 1}));
  CHECK(keys.lacked_by(1) == "b");
  keys.forget(1);
  CHECK_FALSE(keys.lacked_by(1));
  CHECK(keys.waited_keys(1) == 0);
  CHECK(keys.waits() == 1);
  CHECK_FALSE(keys.set("b", "x", released));
  REQUIRE(released.size() == 1);
  CHECK(released[0].id == RequestKey{2, 1});
  CHECK_FALSE(keys.cancel({2, 1}));
}

TEST_CASE("the number of keys and their bytes are bounded, and a refused set changes nothing") {
  Limits limits;
  limits.keys = 2;
  limits.store_bytes = 10;
  KeyValueMap keys{limits};
  Released released;
  CHECK_FALSE(keys.set("a", "1234", released));
  CHECK_FALSE(keys.set("b", "1234", released));
  CHECK(keys.set("c", "", released)->find("2 keys, its limit is 2") != std::string::npos);
  CHECK(keys.set("a", "12345", released)->find("10 bytes") != std::string::npos);
  CHECK(*keys.find("a") == "1234");
  CHECK(keys.bytes() == 10);
  CHECK_FALSE(keys.set("a", "", released));
  CHECK_FALSE(keys.set("b", "12345678", released));
}

TEST_CASE("random operations do what they do to a map, and end exactly the waits whose keys all exist") {
  for (std::uint32_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    std::mt19937 random(seed);
    const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
    const auto a_key = [&] { return std::string(1 + below(2), static_cast<char>('a' + below(4))); };
    Limits limits;
    limits.keys = 6;
    limits.store_bytes = 40;
    KeyValueMap keys{limits};
    std::map<std::string, std::string> model;
    std::map<RequestKey, Keys> waits;
    const auto size_of = [](const std::map<std::string, std::string>& values) {
      std::size_t bytes = 0;
      for (const auto& [key, value] : values) {
        bytes += key.size() + value.size();
      }
      return bytes;
    };
    for (std::uint64_t step = 0; step < 2000; ++step) {
      Released released;
      auto wanted = model;
      bool refused = false;
      const std::string key = a_key();
      const std::string value(below(12), 'x');
      switch (below(7)) {
        case 0:
          wanted[key] = value;
          refused = keys.set(key, value, released).has_value();
          break;
        case 1: {
          Keys names;
          std::vector<std::string> values;
          for (std::size_t i = 0; i < 3; ++i) {
            names.push_back(a_key());
            values.push_back(std::string(below(8), 'y'));
            wanted[names.back()] = values.back();
          }
          refused = keys.set_many(names, values, released).has_value();
          break;
        }
        case 2:
          wanted[key] += value;
          refused = keys.append(key, value, released).refusal.has_value();
          break;
        case 3: REQUIRE(keys.erase(key) == (wanted.erase(key) == 1)); break;
        case 4: {
          const RequestKey who{below(3), step};
          const Keys names{a_key(), a_key(), a_key()};
          const bool all =
              std::all_of(names.begin(), names.end(), [&](const auto& each) { return model.contains(each); });
          REQUIRE(keys.wait(who, RequestKind::wait, names, at(0)) == !all);
          if (!all) {
            waits[who] = names;
          }
          break;
        }
        case 5:
          if (!waits.empty()) {
            const auto place = std::next(waits.begin(), static_cast<std::ptrdiff_t>(below(waits.size())));
            const auto given_up = keys.cancel(place->first);
            REQUIRE(given_up);
            REQUIRE(std::none_of(given_up->missing.begin(), given_up->missing.end(),
                                 [&](const auto& each) { return model.contains(each); }));
            REQUIRE_FALSE(given_up->missing.empty());
            waits.erase(place);
          }
          break;
        default:
          if (below(20) == 0) {
            keys.forget(1);
            std::erase_if(waits, [](const auto& wait) { return wait.first.session == 1; });
          }
      }
      if (wanted != model) {
        const bool fits = (wanted.size() <= limits.keys || wanted.size() <= model.size()) && size_of(wanted) <= 40;
        REQUIRE(refused == !fits);
        model = refused ? model : wanted;
      }
      std::vector<RequestKey> over;
      std::erase_if(waits, [&](const auto& wait) {
        const bool all =
            std::all_of(wait.second.begin(), wait.second.end(), [&](const auto& each) { return model.contains(each); });
        if (all) {
          over.push_back(wait.first);
        }
        return all;
      });
      std::vector<RequestKey> ended;
      for (const auto& each : released) {
        ended.push_back(each.id);
      }
      std::sort(ended.begin(), ended.end());
      REQUIRE(ended == over);
      REQUIRE(keys.waits() == waits.size());
      REQUIRE(keys.size() == model.size());
      REQUIRE(keys.bytes() == size_of(model));
      for (const auto& [name, content] : model) {
        REQUIRE(keys.find(name) != nullptr);
        REQUIRE(*keys.find(name) == content);
      }
    }
  }
}
