#include "dtrain/ddp/ready_ledger.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using dtrain::ddp::ReadyLedger;

TEST_CASE("a new step forgets the entries of the one before") {
  ReadyLedger ledger({"a", "b"});
  for (int step = 1; step <= 3; ++step) {
    ledger.begin_step();
    CHECK(ledger.missing().find("parameter 0 'a', parameter 1 'b'") != std::string::npos);
    ledger.enter(0);
    ledger.enter(1);
    CHECK(ledger.missing().empty());
    CHECK(ledger.end_step());
    CHECK_FALSE(ledger.end_step());
  }
  CHECK(ledger.step() == 3);
}

TEST_CASE("the observed order is that of the announcements, with what was not announced at the end, last first") {
  ReadyLedger ledger({"a", "b", "c", "d", "e"});
  ledger.observe_order(true);
  ledger.begin_step();
  for (const std::size_t parameter : {3u, 0u, 4u})
    ledger.enter(parameter);
  CHECK(ledger.observed_order() == std::vector<std::size_t>{3, 0, 4, 2, 1});
  CHECK(ledger.was_ready(3));
  CHECK_FALSE(ledger.was_ready(2));
  ledger.observe_order(true);
  CHECK(ledger.observed_order() == std::vector<std::size_t>{4, 3, 2, 1, 0});
}

TEST_CASE("five missing parameters are named without a rest, the sixth is counted") {
  ReadyLedger five({"a", "b", "c", "d", "e"});
  five.begin_step();
  CHECK(five.missing().find("parameter 4 'e';") != std::string::npos);
  ReadyLedger six({"a", "b", "c", "d", "e", "f"});
  six.begin_step();
  CHECK(six.missing().find("parameter 4 'e' and 1 more;") != std::string::npos);
  CHECK(six.missing().find("'f'") == std::string::npos);
}
