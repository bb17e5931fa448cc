#include "dtrain/rendezvous/formation/newcomer_limits.hpp"

#include "unit/rendezvous/prelude.hpp"

namespace {

const dtrain::Cause newcomer_loss{dtrain::CauseKind::lost, 2, "gpu-b", "killed by signal 11 (SIGSEGV)"};

Worker newcomer_of(const std::string& host) {
  Worker worker;
  worker.id.host_id = host;
  return worker;
}

}  // namespace

TEST_CASE("newcomers end attempts 1, 4, 16, 40, 40 s after the last one, and after a calm minute as at first") {
  NewcomerLimits limits(1s, 1s, 60s);
  NewcomerLimits<>::Instant now{};
  CHECK_FALSE(limits.next_resize());
  for (const std::chrono::seconds gap : {1s, 4s, 16s, 40s, 40s}) {
    limits.on_resize(now);
    REQUIRE(limits.next_resize());
    CHECK(*limits.next_resize() == now + gap);
    now += gap;
  }
  limits.on_resize(now);
  now += 59s;
  limits.on_resize(now);
  CHECK(*limits.next_resize() == now + 40s);
  now += 60s;
  limits.on_resize(now);
  CHECK(*limits.next_resize() == now + 1s);
}

TEST_CASE(
    "newcomers end attempts 20 pauses after the last one, where that is longer, and 40 s after it at the latest") {
  NewcomerLimits limits(1s, 1s, 60s);
  const NewcomerLimits<>::Instant now{100s};
  limits.on_joined(std::nullopt, now);
  limits.on_resize(now);
  limits.on_joined(now, now + 300ms);
  CHECK(*limits.next_resize() == now + 6s);
  limits.on_joined(now + 1s, now + 9s);  // the pause after a loss
  CHECK(*limits.next_resize() == now + 6s);
  limits.on_resize(now + 6s);
  CHECK(*limits.next_resize() == now + 12s);
  limits.on_joined(now + 6s, now + 6s);
  CHECK(*limits.next_resize() == now + 10s);
  limits.on_joined(now + 6s, now + 66s);
  CHECK(*limits.next_resize() == now + 46s);
}

TEST_CASE("the newcomers of a host wait 1, 2, 4 ... 60 s, each time that one breaks an attempt, until one commits") {
  NewcomerLimits limits(1s, 1s, 60s);
  NewcomerLimits<>::Instant now{};
  const Worker newcomer = newcomer_of("b");
  CHECK(limits.bar_of(newcomer, now) == nullptr);
  for (const std::chrono::seconds time : {1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s}) {
    CAPTURE(time.count());
    limits.on_broken("b", 5, newcomer_loss, now);
    const NewcomerLimits<>::Bar* const bar = limits.bar_of(newcomer, now);
    REQUIRE(bar != nullptr);
    CHECK(bar->until == now + time);
    CHECK(bar->message(now + 1us).milliseconds == time / 1ms);
    CHECK(limits.bar_of(newcomer_of("c"), now) == nullptr);
    now += time;
    CHECK(limits.bar_of(newcomer, now - 1ms) != nullptr);
    CHECK(limits.bar_of(newcomer, now) == nullptr);
  }
  limits.on_success("b");
  limits.on_broken("b", 5, newcomer_loss, now);
  CHECK(limits.bar_of(newcomer, now)->until == now + 1s);
}

TEST_CASE("a bar says why, is for newcomers alone, and none is longer than the options want") {
  NewcomerLimits limits(1s, 1s, 3s);
  const NewcomerLimits<>::Instant now{};
  for (int i = 0; i < 3; ++i) {
    limits.on_broken("b", 7, newcomer_loss, now);
  }
  Worker worker = newcomer_of("b");
  REQUIRE(limits.bar_of(worker, now) != nullptr);
  CHECK(limits.bar_of(worker, now)->until == now + 3s);
  CHECK_CONTAINS(limits.bar_of(worker, now)->message(now).reason, "broke attempt 7",
                 "rank 2 on host gpu-b was lost: killed by signal 11 (SIGSEGV)");
  worker.progress = {3, 10};
  CHECK(limits.bar_of(worker, now) == nullptr);

  NewcomerLimits none(1s, 1s, 0s);
  none.on_broken("b", 7, newcomer_loss, now);
  CHECK(none.bar_of(newcomer_of("b"), now) == nullptr);
}
