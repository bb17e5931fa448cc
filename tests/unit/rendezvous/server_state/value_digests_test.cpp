// Which ranks' weights differ, by digests that come at other times.

#include "dtrain/rendezvous/server_state/value_digests.hpp"

#include "unit/rendezvous/prelude.hpp"

using dtrain::rendezvous::ValueDigests;

TEST_CASE("digests of the same steps are compared, also if they come at other times") {
  ValueDigests digests;
  CHECK(digests.receive(0, {8, 5, 3}, 3) == "");
  CHECK(digests.receive(1, {8, 5, 3}, 3) == "");
  CHECK(digests.receive(0, {16, 6, 3}, 3) == "");
  CHECK(digests.receive(2, {8, 5, 3}, 3) == "");
  CHECK(digests.receive(2, {16, 7, 3}, 3) == "");
  CHECK(digests.receive(1, {20, 8, 3}, 3) == "");  // it was at 16 between two statuses
  CHECK(digests.receive(2, {20, 9, 3}, 3) == "");
  CHECK(
      digests.receive(0, {20, 8, 3}, 3)
          .starts_with("the ranks' values of the model differ after 20 steps: rank 2 has other values than ranks 0 and "
                       "1; a rank left out a step or an update"));
  for (const int rank : {0, 1, 2})
    CHECK(digests.receive(rank, {24, static_cast<std::uint64_t>(rank), 3}, 3) == "");  // it is told once
}

TEST_CASE("a wrapper that is made anew is told again, and one of fewer ranks, or a rank that is missing, never") {
  ValueDigests digests;
  CHECK(digests.receive(0, {8, 1, 2}, 2) == "");
  CHECK(digests.receive(1, {8, 2, 2}, 2) != "");
  CHECK(digests.receive(1, {8, 2, 2}, 2) == "");
  CHECK(digests.receive(0, {0, 0, 2}, 2) == "");
  CHECK(digests.receive(0, {9, 3, 2}, 2) == "");
  CHECK(digests.receive(1, {9, 4, 2}, 2) == "");
  CHECK(digests.receive(0, {8, 3, 2}, 2) == "");  // not compared with the former wrapper's
  CHECK(digests.receive(1, {8, 4, 2}, 2) != "");
  ValueDigests others;
  for (const int rank : {0, 1})
    CHECK(others.receive(rank, {8, static_cast<std::uint64_t>(rank), 2}, 4) == "");
  for (const int rank : {0, 1})
    CHECK(others.receive(rank, {8, static_cast<std::uint64_t>(rank), 3}, 3) == "");
}
