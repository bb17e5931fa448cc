#include "dtrain/rendezvous/client/slow_notice.hpp"
#include "unit/rendezvous/prelude.hpp"

namespace {

/// What is written to stderr while `body` runs on a loop.
template <class Body>
std::string said_during(Body body) {
  support::CapturedStderr captured;
  EventLoop loop;
  loop.run_until(body(loop), dtrain::Deadline::after(std::chrono::seconds(60)));
  return captured.text();
}

}  // namespace

TEST_CASE("a wait that is long is said once, with what is known by then of what it waits for") {
  const std::string said = said_during([](EventLoop& loop) -> Task<void> {
    SlowNotice notice(loop, "joining the job at a:1 as rank 2", "nothing is known", std::chrono::milliseconds(20));
    notice.note("resolving host 'a': Name or service not known");
    co_await loop.sleep_for(std::chrono::milliseconds(100));
  });
  CHECK(said ==
        "dtrain: joining the job at a:1 as rank 2: still waiting; resolving host 'a': Name or service not known\n");
}

TEST_CASE("a wait that ends soon is not mentioned") {
  const std::string said = said_during([](EventLoop& loop) -> Task<void> {
    const SlowNotice notice(loop, "joining", "nothing is known", std::chrono::milliseconds(0));
    co_return;
  });
  CHECK(said == "");
}
