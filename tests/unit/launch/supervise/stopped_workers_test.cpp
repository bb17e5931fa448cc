#include "dtrain/launch/supervise/workers.hpp"
#include "unit/launch/prelude.hpp"

namespace {

const StoppedWorker first{1, 100, SIGSTOP};
const StoppedWorker second{2, 200, SIGTSTP};
constexpr milliseconds liveness{1000};

StoppedWorkers::Clock::time_point at(int time) {
  return StoppedWorkers::Clock::time_point{} + milliseconds(time);
}

}  // namespace

TEST_CASE("a worker is lost once it has been stopped for the liveness time without a break") {
  StoppedWorkers stopped(liveness);
  CHECK(stopped.lost({}, at(0)).empty());
  CHECK(!stopped.next());
  CHECK(stopped.lost({first}, at(10)).empty());
  CHECK(stopped.next() == at(1010));
  CHECK(stopped.lost({first, second}, at(500)).empty());
  CHECK(stopped.lost({first, second}, at(1009)).empty());
  const std::vector<StoppedWorker> lost = stopped.lost({first, second}, at(1010));
  REQUIRE(lost.size() == 1);
  CHECK(lost.front().process == 100);
  CHECK(stopped.next() == at(1500));
  CHECK(stopped.lost({first, second}, at(1500)).front().process == 200);
  CHECK(stopped.next() == at(2010));
}

TEST_CASE("one that goes on begins anew, and nobody is waited for any more") {
  StoppedWorkers stopped(liveness);
  CHECK(stopped.lost({first}, at(0)).empty());
  CHECK(stopped.lost({}, at(900)).empty());
  CHECK(!stopped.next());
  CHECK(stopped.lost({first}, at(950)).empty());
  CHECK(stopped.lost({first}, at(1900)).empty());
  CHECK(stopped.next() == at(1950));
}

TEST_CASE("where the launcher itself was stopped meanwhile, they get the time once more") {
  StoppedWorkers stopped(liveness);
  CHECK(stopped.lost({first}, at(0)).empty());
  CHECK(stopped.lost({first}, at(100000)).empty());
  CHECK(stopped.next() == at(101000));
  CHECK(stopped.lost({first}, at(101001)).size() == 1);
}

TEST_CASE("the sentence names the process, the signal, the time and the setting") {
  CHECK(second.text(liveness) ==
        "its process 200 was stopped by SIGTSTP before it had joined the job, and has not gone on for 1.0 s; if the "
        "stop is intended, raise DTRAIN_LIVENESS_SECONDS");
}
