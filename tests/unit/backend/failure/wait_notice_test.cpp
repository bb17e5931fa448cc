#include "dtrain/backend/failure/wait_notice.hpp"
#include "support/slow_peer.hpp"
#include "unit/backend/prelude.hpp"

TEST_CASE("each line of a channel about waits comes after twice the time of the one before, over all operations") {
  support::CapturedStderr captured;
  dtrain::backend::WaitNotice notice(10s);
  const auto describe = [](std::chrono::milliseconds waited) {
    return "barrier: rank 1 had not arrived after " + std::to_string(waited.count()) + " ms";
  };
  const auto wait_for = [&](std::chrono::seconds time) {
    for (std::chrono::nanoseconds waited = 0s; waited <= time; waited += 1s)
      notice.update(3, waited, describe);
  };
  const std::string ten = "dtrain: rank 3: still waits in barrier: rank 1 had not arrived after 10000 ms\n";
  const std::string twenty = "dtrain: rank 3: still waits in barrier: rank 1 had not arrived after 20000 ms\n";
  const std::string forty = "dtrain: rank 3: still waits in barrier: rank 1 had not arrived after 40000 ms\n";
  wait_for(9s);
  CHECK(captured.text() == "");
  wait_for(15s);
  CHECK(captured.text() == ten);
  wait_for(15s);
  CHECK(captured.text() == ten);
  wait_for(70s);
  CHECK(captured.text() == ten + twenty + forty);
}

TEST_CASE("a rank that waits long in shared memory says for whom and in which operation, and goes on when it comes") {
  CHECK(
      support::is_noticed<dtrain::backend::SharedMemory>("dtrain: rank 0: still waits in all_reduce (sum) of 8 f32, "
                                                         "operation 2 of channel 'group': rank 1 had not arrived "
                                                         "after "));
}

TEST_CASE("where the job's store shows what all ranks wait in, the lines are for the level info alone") {
  support::CapturedStderr captured;
  dtrain::backend::WaitNotice notice(10s, true);
  notice.update(3, 15s, [](std::chrono::milliseconds) { return "barrier"; });
  CHECK(captured.text() == "");
}
