#include "unit/rendezvous/prelude.hpp"

TEST_CASE("a host is its boot id and its network namespace") {
  CHECK(host_id_of("abc-1\n", "4026531840") == "abc-1/net:4026531840");
  CHECK(host_id_of("abc-1", "4026531840") == host_id_of("abc-1\n", "4026531840"));
  CHECK(host_id_of("abc-1", "1") != host_id_of("abc-1", "2"));
  CHECK(host_id_of("abc-1", "1") != host_id_of("abc-2", "1"));
  CHECK(host_id_of("", "1") == "/net:1");
}

TEST_CASE("this process has one host identity, and a name") {
  const auto host = host_identity();
  CHECK(host.id == host_identity().id);
  CHECK_CONTAINS(host.id, "/net:");
  CHECK_FALSE(host.name.empty());
}

TEST_CASE("an override replaces the host identity, an empty one does not, and a long one is refused") {
  CHECK(host_identity("virtual-a").id == "virtual-a");
  CHECK(host_identity("").id == host_identity().id);
  CHECK_THROWS_WITH_AS(host_identity(std::string(1000, 'x')),
                       "DTRAIN_HOST_ID has 1000 characters; at most 256 are allowed", dtrain::Error);
}
