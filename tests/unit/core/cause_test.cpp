#include "dtrain/core/cause.hpp"
#include "unit/core/prelude.hpp"

namespace {

TEST_CASE("a cause names the rank and the host where it knows them") {
  CHECK(Cause{CauseKind::lost, 1, "gpu-a", "in all_reduce"}.sentence() ==
        "rank 1 on host gpu-a was lost: in all_reduce");
  CHECK(Cause{CauseKind::exception, 0, "", "bad data"}.sentence() == "rank 0 failed: bad data");
  CHECK(Cause{CauseKind::stopped, -1, "gpu-a", "SIGTERM"}.sentence() == "the job was stopped: SIGTERM");
  CHECK(Cause{CauseKind::resized, -1, "", "2 more workers wait"}.sentence() ==
        "the ranks of the job change: 2 more workers wait");
}

TEST_CASE("each kind of cause reads differently") {
  CHECK(Cause{CauseKind::timeout, 2, "", "barrier"}.sentence() == "rank 2 timed out: barrier");
  CHECK(Cause{CauseKind::disagreement, 2, "", "world sizes"}.sentence() == "ranks disagree: world sizes");
}

TEST_CASE("a lost rank is thrown as PeerLost, which names it") {
  try {
    dtrain::throw_cause({CauseKind::lost, 3, "gpu-b", "its connection closed"});
  } catch (const dtrain::PeerLost& error) {
    CHECK(error.lost_rank() == 3);
    CHECK(error.host() == "gpu-b");
    CHECK(error.code() == dtrain::Errc::peer_lost);
    CHECK(std::string(error.what()) == "rank 3 on host gpu-b was lost: its connection closed");
  }
}

TEST_CASE("every other cause is thrown as JobFailed and not as PeerLost") {
  for (const CauseKind kind : {CauseKind::exception, CauseKind::timeout, CauseKind::disagreement, CauseKind::stopped}) {
    CAPTURE(static_cast<int>(kind));
    bool caught = false;
    try {
      dtrain::throw_cause({kind, 3, "gpu-b", "text"});
    } catch (const dtrain::PeerLost&) {
      FAIL("thrown as PeerLost");
    } catch (const dtrain::JobFailed& error) {
      caught = true;
      CHECK(error.cause().kind == kind);
      CHECK(error.cause().text == "text");
      CHECK(error.code() == dtrain::Errc::job_failed);
    }
    CHECK(caught);
  }
}

}  // namespace
