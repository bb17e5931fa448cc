#include <doctest/doctest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "dtrain/net/framing/byte_reader.hpp"
#include "dtrain/net/framing/byte_writer.hpp"

namespace {

using dtrain::net::ByteReader;
using dtrain::net::ByteWriter;

TEST_CASE("integers are little-endian whatever the machine") {
  ByteWriter writer;
  writer.u8(1).u16(0x0203).u32(0x04050607).i64(-2);
  const std::vector<std::byte> bytes = writer.take();
  const std::vector<int> expected{1, 3, 2, 7, 6, 5, 4, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  REQUIRE(bytes.size() == expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    CHECK(std::to_integer<int>(bytes[i]) == expected[i]);
  }
}

TEST_CASE("what was written is read back, extremes included") {
  ByteWriter writer;
  writer.i64(std::numeric_limits<std::int64_t>::min()).u64(~std::uint64_t{0}).string("").string(std::string("a\0b", 3));
  ByteReader reader(writer.view());
  CHECK(reader.i64() == std::numeric_limits<std::int64_t>::min());
  CHECK(reader.u64() == ~std::uint64_t{0});
  CHECK(reader.string(0).empty());
  CHECK(reader.string(3) == std::string("a\0b", 3));
  CHECK(reader.finished());
}

TEST_CASE("every cut of a message fails for good, and reads nothing beyond it") {
  ByteWriter writer;
  writer.u32(7).string("twelve bytes").u8(9);
  const std::vector<std::byte> whole = writer.take();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    ByteReader reader(cut);
    reader.u32();
    reader.string(100);
    reader.u8();
    CHECK_FALSE(reader.ok());
    CHECK(reader.u64() == 0);
    CHECK(reader.string(100).empty());
    CHECK_FALSE(reader.finished());
  }
}

TEST_CASE("a string above its bound, or longer than what is there, fails without an allocation of its length") {
  ByteWriter writer;
  writer.u32(0xffffffff).raw(std::vector<std::byte>(16));
  ByteReader reader(writer.view());
  CHECK(reader.string(std::numeric_limits<std::size_t>::max()).empty());
  CHECK_FALSE(reader.ok());
  ByteWriter bounded;
  bounded.string("four");
  ByteReader strict(bounded.view());
  CHECK(strict.string(3).empty());
  CHECK_FALSE(strict.ok());
}

TEST_CASE("bytes left over are not finished") {
  ByteWriter writer;
  writer.u8(1).u8(2);
  ByteReader reader(writer.view());
  reader.u8();
  CHECK(reader.ok());
  CHECK_FALSE(reader.finished());
}

TEST_CASE("random bytes never make a reader go beyond them") {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 24);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random() % 6);
    }
    ByteReader reader(bytes);
    std::size_t taken = 0;
    for (int step = 0; step < 6 && reader.ok(); ++step) {
      switch (random() % 4) {
        case 0: reader.u8(); break;
        case 1: reader.u64(); break;
        case 2: taken += reader.string(8).size(); break;
        default: taken += reader.raw(random() % 8).size(); break;
      }
      REQUIRE(reader.remaining() <= bytes.size());
    }
    REQUIRE(taken <= bytes.size());
  }
}

}  // namespace
