#include "dtrain/core/process/owning_process.hpp"
#include "unit/core/prelude.hpp"

namespace {

using support::in_child;

struct Counted {
  explicit Counted(int& count) : ended(count) {}
  ~Counted() { ++ended; }
  int& ended;
};

TEST_CASE("a forked process is not the one that owns, and one that it makes is") {
  const OwningProcess owner;
  CHECK(owner.is_current());
  CHECK(in_child([&] { return owner.is_current() || !OwningProcess().is_current() ? 1 : 0; }) == 0);
  CHECK(owner.is_current());
}

TEST_CASE("what a process owns ends there, and not in a process that it forked") {
  int ended = 0;
  ProcessOwned<Counted> one = make_process_owned<Counted>(ended);
  std::shared_ptr<Counted> shared = make_process_owned<Counted>(ended);
  CHECK(in_child([&] {
          one.reset();
          shared.reset();
          ProcessOwned<Counted> own = make_process_owned<Counted>(ended);
          own.reset();
          return ended;
        }) == 1);
  one.reset();
  CHECK(ended == 1);
  shared.reset();
  CHECK(ended == 2);
}

TEST_CASE("a forked process reports nothing to the job") {
  const auto latch = std::make_shared<dtrain::FailureLatch>();
  int reports = 0;
  latch->set_reporter([&](const dtrain::Cause&) { ++reports; });
  const dtrain::Cause cause{dtrain::CauseKind::exception, 0, "here", "trouble"};
  CHECK(in_child([&] {
          latch->report(cause);
          return reports;
        }) == 0);
  latch->report(cause);
  CHECK(reports == 1);
}

}  // namespace
