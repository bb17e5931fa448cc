#include "dtrain/kernels/digest.hpp"
#include "unit/kernels/prelude.hpp"

namespace {

std::vector<std::byte> pattern(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>(i * 37 + i / 251);
  return bytes;
}

}  // namespace

TEST_CASE("a digest depends on every bit, on the order and on the number of bytes, at any alignment") {
  for (const std::size_t count : {1U, 7U, 8U, 31U, 32U, 33U, 40U, 100U, 1000U}) {
    CAPTURE(count);
    std::vector<std::byte> bytes = pattern(count + 1);
    const std::uint64_t whole = digest(bytes.data(), count);
    CHECK(whole != digest(bytes.data(), count - 1));
    for (std::size_t i = 0; i < count; ++i) {
      for (const int bit : {0, 7}) {
        bytes[i] ^= std::byte{1} << bit;
        CHECK(digest(bytes.data(), count) != whole);
        bytes[i] ^= std::byte{1} << bit;
      }
    }
    std::memmove(bytes.data() + 1, bytes.data(), count);
    CHECK(digest(bytes.data() + 1, count) == whole);
  }
  std::vector<std::byte> words = pattern(64);
  const std::uint64_t whole = digest(words.data(), 64);
  std::swap_ranges(words.begin(), words.begin() + 8, words.begin() + 8);  // two lanes
  CHECK(digest(words.data(), 64) != whole);
}

TEST_CASE("a digest goes on from another one, and zeros of another length are another content") {
  const std::vector<std::byte> bytes = pattern(100);
  CHECK(digest(bytes.data(), 100, digest(bytes.data(), 40)) != digest(bytes.data(), 100, digest(bytes.data(), 48)));
  CHECK(digest(nullptr, 0) == digest_start);
  const std::vector<std::byte> zeros(200);
  CHECK(digest(zeros.data(), 64) != digest(zeros.data(), 96));
}

TEST_CASE("a digest is the same on every machine") {
  const std::vector<std::byte> bytes = pattern(45);
  std::uint64_t lanes[] = {digest_start, digest_start + 1, digest_start + 2, digest_start + 3};
  const auto mix = [](std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x100000001b3U;
    return hash ^ hash >> 32;
  };
  const auto word = [&](std::size_t at) {
    std::uint64_t value = 0;
    for (std::size_t i = 8; i-- > 0;)
      value = value << 8 | static_cast<std::uint64_t>(bytes[at + i]);
    return value;
  };
  for (std::size_t lane = 0; lane < 4; ++lane)
    lanes[lane] = mix(lanes[lane], word(8 * lane));
  std::uint64_t expected = mix(mix(mix(lanes[0], lanes[1]), lanes[2]), lanes[3]);
  expected = mix(expected, word(32));
  for (std::size_t i = 40; i < 45; ++i)
    expected = mix(expected, static_cast<std::uint64_t>(bytes[i]));
  CHECK(digest(bytes.data(), 45) == expected);
}
