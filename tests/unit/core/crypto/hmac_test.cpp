#include "unit/core/prelude.hpp"

namespace {

std::vector<std::byte> repeated(int value, std::size_t count) {
  return std::vector<std::byte>(count, static_cast<std::byte>(value));
}

std::string mac(const std::vector<std::byte>& key, const std::vector<std::byte>& message) {
  return hex(HmacSha256(key).update(message).digest());
}

std::vector<std::byte> bytes(std::string_view text) {
  const auto view = std::as_bytes(std::span(text));
  return {view.begin(), view.end()};
}

}  // namespace

TEST_CASE("HMAC-SHA256 gives the digests of RFC 4231") {
  CHECK(mac(repeated(0x0b, 20), bytes("Hi There")) ==
        "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  CHECK(mac(bytes("Jefe"), bytes("what do ya want for nothing?")) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK(mac(repeated(0xaa, 20), repeated(0xdd, 50)) ==
        "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  std::vector<std::byte> ascending;
  for (int i = 1; i <= 25; ++i)
    ascending.push_back(static_cast<std::byte>(i));
  CHECK(mac(ascending, repeated(0xcd, 50)) == "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
  CHECK(mac(repeated(0x0c, 20), bytes("Test With Truncation")).substr(0, 32) == "a3b6167473100ee06e0c796c2955552b");
  CHECK(mac(repeated(0xaa, 131), bytes("Test Using Larger Than Block-Size Key - Hash Key First")) ==
        "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  CHECK(mac(repeated(0xaa, 131), bytes("This is a test using a larger than block-size key and a larger than "
                                       "block-size data. The key needs to be hashed before being used by the HMAC "
                                       "algorithm.")) ==
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST_CASE("a message may come in pieces, and go on after its digest") {
  HmacSha256 mac(bytes("Jefe"));
  mac.update("what do ya want ");
  const Sha256Digest half = mac.digest();
  mac.update("for nothing?");
  CHECK(hex(mac.digest()) == "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  CHECK_FALSE(equal_in_constant_time(half, mac.digest()));
  CHECK(equal_in_constant_time(half, HmacSha256(bytes("Jefe")).update("what do ya want ").digest()));
}

TEST_CASE("digests that differ in any one bit are not equal") {
  const Sha256Digest digest = Sha256().update("a").digest();
  for (std::size_t bit = 0; bit < 8 * digest.size(); ++bit) {
    Sha256Digest other = digest;
    other[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    CHECK_FALSE(equal_in_constant_time(digest, other));
  }
}
