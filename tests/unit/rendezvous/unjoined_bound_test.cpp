#include "dtrain/rendezvous/unjoined_bound.hpp"

#include <doctest/doctest.h>
#include <sys/resource.h>

using dtrain::rendezvous::unjoined_bound;

TEST_CASE("strangers get half of the files that may be open, and never more than wanted") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit few = before;
  few.rlim_cur = 100;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(unjoined_bound(1024) == 50);
  CHECK(unjoined_bound(50) == 50);
  CHECK(unjoined_bound(8) == 8);
  few.rlim_cur = 1;
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  CHECK(unjoined_bound(1024) == 1);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}
