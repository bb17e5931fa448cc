#include "dtrain/backend/failure/timeout_diagnosis.hpp"

#include <latch>

#include "support/channel_context.hpp"
#include "unit/backend/prelude.hpp"

using dtrain::backend::Operation;
using dtrain::backend::OperationKind;
using dtrain::backend::TimeoutDiagnosis;
using support::FakeJob;
using support::RankThread;

namespace {

/// The collective in which a rank times out; sequence 0: none. And the rank that it waits for.
struct Place {
  std::uint64_t sequence = 0;
  int awaited = 0;
  OperationKind kind = OperationKind::barrier;
};

/// What each rank finds. Rank R is on host-R, at 10.0.0.R, if the ranks have hosts of their own.
std::vector<std::string> found_by(const std::vector<Place>& places, bool own_hosts = true,
                                  std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto job = std::make_shared<FakeJob>(static_cast<int>(places.size()));
  std::vector<std::string> found(places.size());
  std::latch begun(static_cast<std::ptrdiff_t>(places.size()));
  support::run_thread_ranks(static_cast<int>(places.size()), [&](RankThread& self) {
    const auto rank = static_cast<std::size_t>(self.rank());
    begun.arrive_and_wait();
    if (places[rank].sequence == 0) return;
    auto context = support::channel_context(job, self.rank(), static_cast<int>(places.size()), "group", timeout);
    if (own_hosts) {
      context.members.other_host_rank = self.rank() == 0 ? 1 : 0;
      context.members.route_address = "10.0.0." + std::to_string(self.rank());
    } else {
      context.members.host = "host-a";
    }
    Operation operation;
    operation.kind = places[rank].kind;
    operation.sequence = places[rank].sequence;
    found[rank] = TimeoutDiagnosis<>(context).lost_data_blocking(operation, places[rank].awaited, "backend::Gloo");
    if (!found[rank].empty()) job->fail({dtrain::CauseKind::timeout, self.rank(), "", found[rank]});
  });
  return found;
}

const std::string network =
    " although the store's connection lives: see the MTU (ping -M do -s 8972), firewalls that drop idle connections, "
    "and the ports of backend::Gloo";

}  // namespace

TEST_CASE("where all ranks have timed out in one operation, what is wrong is the network between the hosts") {
  const std::vector<std::string> found = found_by({{7, 1}, {7, 0}});
  CHECK((found[0].empty() ? found[1] : found[0]) ==
        "ranks 0 and 1 have both called it, and data does not get through between host host-0 (10.0.0.0) and host "
        "host-1 (10.0.0.1)" +
            network);
}

TEST_CASE("where a rank has gone on to a later operation, the one in the earlier operation says so") {
  const std::vector<std::string> found = found_by({{8, 1, OperationKind::all_reduce}, {7, 0}});
  CHECK(found[0].empty());
  CHECK_CONTAINS(found[1], "ranks 0 and 1 have both called it");
}

TEST_CASE("of more ranks those are named that wait for each other, or between which the wait is") {
  const std::vector<std::string> found = found_by({{1, 1}, {1, 2}, {1, 1}});
  const auto is_found = [](const std::string& each) { return !each.empty(); };
  REQUIRE(std::any_of(found.begin(), found.end(), is_found));
  if (!found[0].empty()) {
    CHECK_CONTAINS(found[0], "all 3 ranks of the channel have called it",
                   "between ranks 0 and 1, host host-0 (10.0.0.0) and host host-1 (10.0.0.1), or between others for "
                   "which they wait, although");
  }
  for (const std::size_t rank : {1U, 2U}) {
    if (!found[rank].empty()) {
      CHECK_CONTAINS(found[rank], "between ranks 1 and 2, host host-1 (10.0.0.1) and host host-2 (10.0.0.2) although");
    }
  }
}

TEST_CASE("ranks of one host are told to see to that host") {
  const std::vector<std::string> found = found_by({{7, 1}, {7, 0}}, false);
  CHECK((found[0].empty() ? found[1] : found[0]) ==
        "ranks 0 and 1 have both called it, and do not get each other's data on host host-a, although the store's "
        "connection lives: see whether both run, and whether a firewall of that host lets its processes connect");
}

TEST_CASE("nothing is said where a rank is elsewhere, calls something else or nobody knows whom it waits for") {
  const std::chrono::milliseconds short_timeout(300);
  CHECK(found_by({{7, 1}, {}}, true, short_timeout)[0].empty());
  CHECK(found_by({{7, 1}, {7, 0}, {}}, true, short_timeout) == std::vector<std::string>(3));
  CHECK(found_by({{7, 1, OperationKind::all_reduce}, {7, 0}}, true, short_timeout) == std::vector<std::string>(2));
  CHECK(found_by({{7, -1}, {7, -1}}, true, short_timeout) == std::vector<std::string>(2));
}
