#include "dtrain/rendezvous/server/listen.hpp"

#include <sys/syscall.h>

#include "support/denied_call.hpp"
#include "support/skip.hpp"
#include "unit/rendezvous/prelude.hpp"

using dtrain::net::SocketAddress;

namespace {

/// Where a store would listen, or the sentence of the error.
std::string listens_at(const std::string& host, const ListenOptions& rules) {
  dtrain::async::EventLoop loop;
  std::string text;
  const std::string error = sentence_of([&] {
    for (const auto& listener : loop.run_until(listen_for_ranks(loop, host, 0, soon(), rules), soon()))
      text += (text.empty() ? "" : " ") + listener.local().host();
  });
  return text.empty() ? error : text;
}

std::vector<std::string> hosts(const std::vector<SocketAddress>& endpoints) {
  std::vector<std::string> names;
  for (const SocketAddress& each : endpoints) {
    names.push_back(to_string(each));
  }
  return names;
}

SocketAddress at(const std::string& host, std::uint16_t port = 0) {
  return *SocketAddress::from_numeric(host, port);
}

bool has_ipv6() {
  for (const auto& each : dtrain::net::interface_addresses()) {
    if (each.address == SocketAddress::loopback_v6(0)) {
      return true;
    }
  }
  return false;
}

/// Rank 0 of 2, which opens the store. Two such in one process are told apart by their hosts' ids.
ControlPlaneOptions opener(std::uint16_t port, const std::string& host_id, const std::string& job = {}) {
  ControlPlaneOptions options = rank_options(0, 2, port);
  options.hosts_store = true;
  options.host_id = host_id;
  options.identity.job = job;
  return options;
}

/// Waits until somebody listens there, without a word to a store.
void wait_for_store(std::uint16_t port) {
  dtrain::async::LoopThread thread;
  const auto connect = [&](dtrain::async::EventLoop& loop) -> dtrain::async::Task<void> {
    const dtrain::net::Connection connection =
        co_await dtrain::net::connect_with_backoff(loop, "127.0.0.1", port, soon());
  };
  thread.run_blocking(connect, soon());
}

}  // namespace

TEST_CASE("a store listens at the loopback address where that is what was given, with a secret or without") {
  for (const bool has_secret : {false, true}) {
    CHECK(listens_at("127.0.0.1", {std::nullopt, has_secret}) == "127.0.0.1");
    const std::string named = listens_at("localhost", {std::nullopt, has_secret});
    CHECK((named == "127.0.0.1" || named == "::1"));
    if (has_ipv6()) {
      CHECK(listens_at("::1", {std::nullopt, has_secret}) == "::1");
      CHECK(listens_at("[::1]", {std::nullopt, has_secret}) == "::1");
    }
  }
}

TEST_CASE("a store listens at every interface only with a secret") {
  const std::string elsewhere = "192.0.2.77";  // documentation's: never this machine's
  const std::string open = listens_at(elsewhere, {std::nullopt, true});
  CHECK((open == "::" || open == "0.0.0.0"));
  const std::string without = listens_at(elsewhere, {std::nullopt, false});
  CAPTURE(without);
  const auto outward = dtrain::net::address_of_default_route();
  if (outward) {
    CHECK(without == outward->host());
  } else {
    CHECK_CONTAINS(without,
                   "which is no address of this machine, and to listen at all of its addresses the job needs a "
                   "secret");
  }
}

TEST_CASE("an address that means every interface is refused without a secret, whoever names it and however") {
  const std::string rest =
      " means every interface of this machine, and to listen at all of them the job's store needs a secret; name one "
      "address or interface, or set the same DTRAIN_SECRET for all of the job";
  std::vector<std::string> everywhere{"0.0.0.0", "0"};  // the system reads "0" as 0.0.0.0
  if (has_ipv6()) {
    everywhere.insert(everywhere.end(), {"::", "[::]", "0:0::0"});
  }
  for (const std::string& each : everywhere) {
    CAPTURE(each);
    CHECK(listens_at(each, {std::nullopt, false}) == "the master address " + each + rest);
    const std::string open = listens_at(each, {std::nullopt, true});
    CHECK((open == "::" || open == "0.0.0.0"));
    if (SocketAddress::from_numeric(each, 0)) {
      CHECK(listens_at("127.0.0.1", {each, false}) == "DTRAIN_INTERFACE=" + each + rest);
      const std::string named = listens_at("127.0.0.1", {each, true});
      CHECK((named == "::" || named == "0.0.0.0"));
    }
  }
  CHECK(listens_at("::ffff:0.0.0.0", {std::nullopt, false}) == "the master address ::ffff:0.0.0.0" + rest);
  const std::string error = on_ranks(1, [&](int rank) {
                              ControlPlaneOptions options = rank_options(rank, 2, 0);
                              options.identity.master_addr = "0.0.0.0";
                              options.timeout = std::chrono::seconds(10);
                              options.hosts_store = true;
                              const ControlPlane control_plane(options);
                            }).front();
  CHECK(error == "the master address 0.0.0.0" + rest);
}

TEST_CASE("a name that means the loopback address here is listened at there and at the address of the route out") {
  const std::vector<SocketAddress> debian{at("127.0.1.1", 7)};
  CHECK(hosts(detail::resolve_candidates("host-a", debian, {at("198.51.100.3")})) ==
        std::vector<std::string>{"198.51.100.3:7", "127.0.1.1:7"});
  CHECK(hosts(detail::resolve_candidates("host-a", debian, {})) == std::vector<std::string>{"127.0.1.1:7"});
  CHECK(hosts(detail::resolve_candidates("service", {at("203.0.113.9", 7)}, {at("2001:db8::3")})) ==
        std::vector<std::string>{"[2001:db8::3]:7"});
  CHECK_ERROR(detail::resolve_candidates("service", {at("203.0.113.9", 7)}, {}), dtrain::Errc::usage,
              "set MASTER_ADDR to an address of this machine, or DTRAIN_INTERFACE");
}

TEST_CASE("a store listens at every address of this machine that its host has, at one port") {
  if (!has_ipv6()) {
    return dtrain_test::skip("this machine has no IPv6 loopback address");
  }
  dtrain::async::EventLoop loop;
  // Both are loopback addresses, which the name of an interface may have; 192.0.2.77 is no address of this machine.
  const auto both = detail::open_listeners(loop, "lo", 0, {}, {"lo", false});
  REQUIRE(both.size() == 2);
  CHECK(both[0].port() == both[1].port());
  const std::vector<SocketAddress> resolved{at("::"), at("192.0.2.77"), at("::")};
  CHECK(detail::open_listeners(loop, "everywhere", 0, resolved, {std::nullopt, true}).size() == 1);
  CHECK(listens_at("::", {std::nullopt, true}) == "::");
  // The address of a name in /etc/hosts has no interface, which a link-local address needs.
  const std::vector<SocketAddress> link_local{at("::"), at("fe80::77")};
  CHECK(detail::open_listeners(loop, "everywhere", 0, link_local, {std::nullopt, true}).size() == 1);
}

TEST_CASE("a kernel without IPv6 listens at the IPv4 address of a host that has both") {
  const std::string said = support::with_open_files(64, 64, []() -> std::string {
    if (!support::deny_call(SYS_socket, EAFNOSUPPORT, AF_INET6)) {
      return "no filter";
    }
    dtrain::async::EventLoop loop;
    const std::vector<SocketAddress> both{at("0.0.0.0"), at("fd77::1")};
    const auto found = detail::open_listeners(loop, "everywhere", 0, both, {std::nullopt, true});
    return std::to_string(found.size()) + " at " + found.front().local().host();
  });
  if (said == "no filter") {
    return dtrain_test::skip("this machine installs no seccomp filter");
  }
  CHECK(said == "1 at 0.0.0.0");
}

TEST_CASE("without a default route, other hosts come by the only interface that leads outward") {
  const std::vector<dtrain::net::InterfaceAddress> own{
      {"lo", at("127.0.0.1")},
      {"eth0", at("10.77.0.1")},
      {"docker0", at("172.17.0.1")},
      {"eth0", at("fd77::1")},
      {"eth0", at("fe80::1")},
      {"eth1", at("192.0.2.9"), false},
      {"br-0123456789ab", at("172.18.0.1")},
  };
  CHECK(hosts(detail::outward_addresses(std::nullopt, own)) == std::vector<std::string>{"10.77.0.1:0", "[fd77::1]:0"});
  CHECK(hosts(detail::outward_addresses(at("198.51.100.3"), own)) == std::vector<std::string>{"198.51.100.3:0"});
  std::vector<dtrain::net::InterfaceAddress> two = own;
  two.push_back({"ib0", at("10.78.0.1")});
  CHECK(detail::outward_addresses(std::nullopt, two).empty());
  CHECK(detail::outward_addresses(std::nullopt, {}).empty());
  CHECK(detail::is_of_bridge(at("172.17.0.1", 7), own));
  CHECK(!detail::is_of_bridge(at("10.77.0.1", 7), own));
}

TEST_CASE("the error of a join timeout says where the store does not listen, and what to set") {
  const std::vector<dtrain::net::InterfaceAddress> own{
      {"lo", at("127.0.0.1")}, {"eth0", at("10.77.0.1")}, {"eth1", at("198.51.100.3")}, {"eth1", at("2001:db8::3")}};
  const std::string remedy =
      ". It does not listen at eth0 (10.77.0.1): if other hosts connect by that, set DTRAIN_INTERFACE to it on its "
      "host, "
      "or the same DTRAIN_SECRET for all of the job, with which it listens at every address";
  CHECK(detail::listens_at("rank 0", {at("198.51.100.3", 7), at("127.0.1.1", 7)}, "node-a", own) ==
        "rank 0 listens at 198.51.100.3:7 and 127.0.1.1:7, and MASTER_ADDR is node-a, which means a loopback address "
        "on its host" +
            remedy);
  CHECK(detail::listens_at("rank 0", {at("198.51.100.3", 7)}, "192.0.2.7", own) ==
        "rank 0 listens at 198.51.100.3:7, and MASTER_ADDR is 192.0.2.7, which is no address of its host" + remedy);
  CHECK(detail::listens_at("rank 0", {at("127.0.0.1", 7)}, "127.0.0.1", own) ==
        "rank 0 listens at 127.0.0.1:7, and MASTER_ADDR is 127.0.0.1");
  for (const char* any : {"::", "0.0.0.0"}) {
    CHECK(detail::listens_at("rank 0", {at(any, 7)}, "node-a", own) ==
          "rank 0 listens at port 7 of every address, and MASTER_ADDR is node-a");
  }
}

TEST_CASE("DTRAIN_INTERFACE names an interface or an address, and what is neither is refused with those there are") {
  CHECK(listens_at("192.0.2.77", {"lo", false}) == (has_ipv6() ? "127.0.0.1 ::1" : "127.0.0.1"));
  CHECK(listens_at("192.0.2.77", {"127.0.0.5", false}) == "127.0.0.5");
  const std::string none = listens_at("127.0.0.1", {"eth99", false});
  CHECK(none.find("DTRAIN_INTERFACE=eth99 is neither an address nor an interface of this machine with one; there "
                  "are: ") == 0);
  CHECK_CONTAINS(none, "lo (127.0.0.1)");
  CHECK_CONTAINS(listens_at("127.0.0.1", {"192.0.2.77", false}), "is no address of this machine");
}

TEST_CASE("ranks form over IPv6 as over IPv4") {
  if (!has_ipv6()) {
    MESSAGE("this machine has no IPv6 loopback address");
    return;
  }
  for (const std::string host : {"::1", "[::1]"}) {
    std::uint16_t port = 0;
    {
      dtrain::async::EventLoop loop;
      port = dtrain::net::Listener::bind(loop, SocketAddress::loopback_v6(0)).port();
    }
    run_ranks(3, [&](int rank) {
      ControlPlaneOptions options = rank_options(rank, 3, port);
      options.identity.master_addr = host;
      options.hosts_store = rank == 0;
      join_and_leave(options);
    });
  }
}

TEST_CASE("a second rank 0 at the port of a job that forms ends that job, and itself, with both hosts") {
  const std::uint16_t port = free_port();
  std::string first;
  std::jthread forming([&] { first = error_of_joining(opener(port, "a")); });
  wait_for_store(port);
  const std::string second = error_of_joining(opener(port, "b"));
  forming.join();
  CAPTURE(first);
  CAPTURE(second);
  CHECK(first.find("ranks disagree: rank 0 on host ") == 0);
  CHECK_CONTAINS(first, " claims a place that rank 0 on host ",
                 ", while the job forms: two jobs use one port, or a rank was given twice; give each job a "
                 "port (MASTER_PORT), a DTRAIN_JOB_ID or a DTRAIN_SECRET of its own");
  CHECK(second.find("port " + std::to_string(port) +
                    " on 127.0.0.1 is in use by another program, or by another rank "
                    "0") == 0);
  CHECK_CONTAINS(second, "; the store of dtrain's there says: ranks disagree: rank 0 on host ");
}

TEST_CASE("a rank 0 of another name is refused with both names, and the job that has the port forms") {
  const std::uint16_t port = free_port();
  std::string first;
  std::jthread forming([&] {
    first = on_ranks(1, [&](int) {
              ControlPlane control_plane(opener(port, "a", "monday"));
              control_plane.leave_blocking(soon());
            }).front();
  });
  wait_for_store(port);
  const std::string second = error_of_joining(opener(port, "b", "tuesday"));
  CHECK_CONTAINS(second, " belongs to the job 'tuesday', and this is the store of 'monday', which rank 0 on host ");
  ControlPlaneOptions rank_1 = rank_options(1, 2, port);
  rank_1.identity.job = "monday";
  ControlPlane other(rank_1);
  CHECK(other.leave_blocking(soon()));
  forming.join();
  CHECK(first == "");
}

TEST_CASE("a rank 0 that comes to a job that has formed is refused, and the job goes on") {
  const std::uint16_t port = free_port();
  std::counting_semaphore<> formed{0};
  std::counting_semaphore<> refused{0};
  std::jthread late([&] {
    REQUIRE(formed.try_acquire_for(std::chrono::seconds(30)));
    const std::string error = error_of_joining(opener(port, "b"));
    CHECK_CONTAINS(error, "has opened this store, for another job; give each job a port");
    refused.release(2);
  });
  run_ranks(2, [&](int rank) {
    ControlPlaneOptions options = rank == 0 ? opener(port, "a") : rank_options(1, 2, port);
    ControlPlane control_plane(options);
    if (rank == 0) {
      formed.release();
    }
    if (!refused.try_acquire_for(std::chrono::seconds(30))) throw std::runtime_error("nobody came");
    control_plane.store().barrier("still here", soon()).wait();
    control_plane.leave_blocking(soon());
  });
}
