#include <ctime>

#include "support/sanitized.hpp"
#include "unit/core/prelude.hpp"

namespace {

std::string sha256_hex(std::string_view message) {
  return dtrain::hex(dtrain::Sha256().update(message).digest());
}

}  // namespace

TEST_CASE("SHA-256 gives the digests of the examples that FIPS 180-4 refers to") {
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
                   "ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu") ==
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
}

TEST_CASE("SHA-256 of a million times the letter a is the published digest") {
  dtrain::Sha256 hash;
  const std::string piece(1000, 'a');
  for (int i = 0; i < 1000; ++i)
    hash.update(piece);
  CHECK(dtrain::hex(hash.digest()) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("SHA-256 is right around every boundary of its padding") {
  // Digests of n times 'x', from Python's hashlib: where the padding fits, just does not, and fills a block of its own.
  CHECK(sha256_hex(std::string(55, 'x')) == "d5e285683cd4efc02d021a5c62014694958901005d6f71e89e0989fac77e4072");
  CHECK(sha256_hex(std::string(56, 'x')) == "04c26261370ee7541549d16dee320c723e3fd14671e66a099afe0a377c16888e");
  CHECK(sha256_hex(std::string(63, 'x')) == "75220b47218278e656f2013bb8f0c455a25eaf01e86c64924e9d48d89776d6f2");
  CHECK(sha256_hex(std::string(64, 'x')) == "7ce100971f64e7001e8fe5a51973ecdfe1ced42befe7ee8d5fd6219506b5393c");
  CHECK(sha256_hex(std::string(119, 'x')) == "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
  CHECK(sha256_hex(std::string(120, 'x')) == "13f05a0b594787f5ecd315edc96141bd3243203d1b7d4f0836f37308b276ba98");
}

TEST_CASE("a SHA-256 digest does not depend on how the message was cut") {
  std::string message;
  for (int i = 0; i < 300; ++i)
    message.push_back(static_cast<char>(i * 7));
  const std::string whole = sha256_hex(message);
  for (std::size_t piece = 1; piece <= 130; ++piece) {
    CAPTURE(piece);
    dtrain::Sha256 hash;
    for (std::size_t begin = 0; begin < message.size(); begin += piece)
      hash.update(std::string_view(message).substr(begin, piece));
    CHECK(dtrain::hex(hash.digest()) == whole);
  }
}

TEST_CASE("a SHA-256 digest may be taken in between and a copy goes on by itself") {
  dtrain::Sha256 hash;
  hash.update("ab");
  dtrain::Sha256 other = hash;
  CHECK(dtrain::hex(hash.digest()) == sha256_hex("ab"));
  hash.update("c");
  other.update("d");
  CHECK(dtrain::hex(hash.digest()) == sha256_hex("abc"));
  CHECK(dtrain::hex(other.digest()) == sha256_hex("abd"));
}

TEST_CASE("hexadecimal text has two lower-case digits a byte") {
  const std::byte bytes[] = {std::byte{0x00}, std::byte{0x0f}, std::byte{0xa0}, std::byte{0xff}};
  CHECK(dtrain::hex(bytes) == "000fa0ff");
  CHECK(dtrain::hex({}).empty());
}

#if !defined(__clang__)  // which has no attribute that optimises one function of an unoptimised program
TEST_CASE("SHA-256 is fast in an unoptimised program too") {
  constexpr std::size_t bytes = std::size_t{4} << 20;
  const std::vector<std::byte> message(bytes);
  const auto processor_seconds = [] {
    timespec time{};
    REQUIRE(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = processor_seconds();
  const auto digest = dtrain::Sha256().update(message).digest();
  const double megabytes_a_second = static_cast<double>(bytes) / 1e6 / (processor_seconds() - before);
  CHECK(dtrain::hex(digest) == "bb9f8df61474d25e71fa00722318cd387396ca1736605e1248821cc0de3d3af8");
  MESSAGE(megabytes_a_second << " MB/s");
  CHECK(megabytes_a_second > (support::is_sanitized ? 4 : 30));  // 8 without the attribute, a hundred and more with it
}
#endif
