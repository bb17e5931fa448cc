#include "dtrain/backend/failure/wait_notice.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "support/slow_peer.hpp"
#include "unit/backend/prelude.hpp"

using dtrain::Cause;

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

TEST_CASE("where this rank waited is not said as long as the job has no cause, or one that says it") {
  support::CapturedStderr captured;
  const std::string place = "barrier, operation 5 of channel 'group'";
  const Cause own{CauseKind::timeout, 1, "b", place + ": rank 0 had not arrived"};
  const auto end = [&](const std::optional<Cause>& ended_by, const std::optional<Cause>& first) {
    const auto job = std::make_shared<dtrain::FailureLatch>();
    if (first) {
      job->set(*first);
    }
    dtrain::backend::log_place_at_timeout(ended_by, *job, 1, place);
  };
  end({}, {});
  end(own, {});
  end(own, own);
  end(own, Cause{CauseKind::timeout, 0, "a", place + ": rank 2 had not arrived"});
  end(own, Cause{CauseKind::lost, 0, "a", "its connection closed"});
  end(Cause{CauseKind::lost, 0, "a", "its connection closed"}, Cause{CauseKind::timeout, 0, "a", "elsewhere"});
  CHECK(captured.text() == "");
  end(own, Cause{CauseKind::timeout, 0, "a", "barrier, operation 4 of channel 'group': rank 1 had not arrived"});
  CHECK(captured.text() == "dtrain: rank 1: waited in " + place + " when rank 0 timed out\n");
}

TEST_CASE("a rank in another channel than the one that times out says in shared memory where it was") {
  CHECK(support::said_when_crossed<dtrain::backend::SharedMemory>() ==
        "dtrain: rank 1: waited in barrier, operation 2 of channel 'other' when rank 0 timed out\n");
}
