#include "unit/rendezvous/prelude.hpp"

TEST_CASE("strangers get half of the files that may be open, and never more than wanted") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 100;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(pending_connection_limit(1024) == 50);
  CHECK(pending_connection_limit(50) == 50);
  CHECK(pending_connection_limit(8) == 8);
  few.rlim_cur = 1;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(pending_connection_limit(1024) == 1);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
