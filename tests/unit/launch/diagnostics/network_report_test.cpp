#include "dtrain/launch/diagnostics/network_report.hpp"
#include "unit/launch/prelude.hpp"

namespace {

namespace launch = dtrain::launch;
namespace net = dtrain::net;

/// A machine in a folder: what is not written is not there.
struct FakeMachine {
  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder.path + path).parent_path());
    std::ofstream(folder.path + path, std::ios::binary) << text;
  }
  void add_interface(const std::string& name, const std::string& speed, bool has_device = true) const {
    write("/sys/class/net/" + name + "/speed", speed + "\n");
    if (has_device) {
      write("/sys/class/net/" + name + "/device/vendor", "0x15b3\n");
    }
  }
  void add_port(const std::string& state, const std::string& layer) const {
    const std::string port = "/sys/class/infiniband/mlx5_0/ports/1/";
    write(port + "state", state + "\n");
    write(port + "link_layer", layer + "\n");
    write(port + "rate", "200 Gb/sec (4X HDR)\n");
  }

  dtrain::SystemFiles files() const { return dtrain::SystemFiles(folder.path); }

  support::TemporaryDirectory folder;
};

net::InterfaceAddress address(const std::string& interface, const std::string& host) {
  return {interface, *net::SocketAddress::from_numeric(host, 0)};
}

const std::vector<net::InterfaceAddress> addresses{address("lo", "127.0.0.1"), address("eth0", "10.0.0.4"),
                                                   address("docker0", "172.17.0.1")};

/// As a kernel would answer: loopback, every address and 172.17.0.0/16 are this machine's, the rest is behind eth0.
std::optional<net::SocketAddress> towards(const std::optional<net::SocketAddress>& target) {
  const std::string host = target ? target->host() : "";
  const bool is_own = host.rfind("127.", 0) == 0 || host == "0.0.0.0" || host == "::";
  return net::SocketAddress::from_numeric(is_own                          ? "127.0.0.1"
                                          : host.rfind("172.17.", 0) == 0 ? "172.17.0.1"
                                                                          : "10.0.0.4",
                                          0);
}

launch::NetworkReport report(const FakeMachine& machine, const Environment& environment,
                             const std::optional<std::string>& master, bool several_hosts = true) {
  return launch::network_report(Variables(environment), master, several_hosts, machine.files(), addresses, towards);
}

/// The only sentence there is.
std::string only_warning(const FakeMachine& machine, const Environment& environment = {},
                         const std::string& master = "10.0.0.9") {
  const launch::NetworkReport all = report(machine, environment, master);
  REQUIRE(all.warnings.size() == 1);
  return all.warnings.front();
}

}  // namespace

TEST_CASE("the interface towards the meeting point is named, with its speed") {
  const FakeMachine machine;
  machine.add_interface("eth0", "25000");
  CHECK(report(machine, {}, "10.0.0.9").interface == "network: eth0 (10.0.0.4), 25 Gbit/s");
  CHECK(report(machine, {}, std::nullopt).interface == "network: eth0 (10.0.0.4), 25 Gbit/s");
  CHECK(report(machine, {}, "10.0.0.9").warnings.empty());
}

TEST_CASE("a speed is unknown where the kernel does not know it, and where it is made up") {
  const FakeMachine machine;
  const auto speed = [&](const std::string& name) {
    return launch::speed_text(launch::interface_speed(name, machine.files()));
  };
  machine.add_interface("down0", "-1");
  machine.add_interface("veth0", "10000", false);
  machine.add_interface("slow0", "100");
  machine.add_interface("odd0", "2500");
  machine.add_interface("bond0", "50000", false);
  machine.write("/sys/class/net/bond0/lower_eth0/speed", "25000\n");
  machine.write("/sys/class/net/text0/speed", "fast\n");
  machine.write("/sys/class/net/text0/device/vendor", "\n");
  CHECK(speed("down0") == "speed unknown");
  CHECK(speed("veth0") == "speed unknown");
  CHECK(speed("text0") == "speed unknown");
  CHECK(speed("none0") == "speed unknown");
  CHECK(speed("slow0") == "100 Mbit/s");
  CHECK(speed("slow0:1") == "100 Mbit/s");
  CHECK(speed("odd0") == "2.5 Gbit/s");
  CHECK(speed("bond0") == "50 Gbit/s");
}

TEST_CASE("DTRAIN_INTERFACE decides by a name or by an address, and one that is not there is said") {
  const FakeMachine machine;
  CHECK(report(machine, {{"DTRAIN_INTERFACE", "docker0"}}, "10.0.0.9").interface ==
        "network: docker0 (172.17.0.1), speed unknown");
  CHECK(report(machine, {{"DTRAIN_INTERFACE", "10.0.0.4"}}, "127.0.0.1").interface ==
        "network: eth0 (10.0.0.4), speed unknown");
  CHECK(report(machine, {{"DTRAIN_INTERFACE", "../../etc"}}, "10.0.0.9").interface ==
        "network: no interface leads to other hosts");
}

TEST_CASE("a name is looked up in /etc/hosts alone, where one that means loopback means another address elsewhere") {
  const FakeMachine machine;
  machine.write("/etc/hosts",
                "# 172.17.0.3 node0\n127.0.0.1 localhost\n127.0.1.1\thost-a # host-b\nnonsense node0\n"
                "172.17.0.2 x node0");
  const auto known = [&](const std::string& host) {
    const auto found = launch::known_address(host, machine.files());
    return found ? found->host() : "";
  };
  CHECK(known("node0") == "172.17.0.2");
  CHECK(known("localhost") == "127.0.0.1");
  CHECK(known("host-a") == "");
  CHECK(known("host-b") == "");
  CHECK(known("192.0.2.7") == "192.0.2.7");
  CHECK(report(machine, {}, "host-a").interface == "network: eth0 (10.0.0.4), speed unknown");
}

TEST_CASE("a store at every address is reached by the interface of the default route") {
  const FakeMachine machine;
  for (const std::string any : {"0.0.0.0", "::"}) {
    const launch::NetworkReport report =
        launch::network_report(Variables({}), any, true, machine.files(), addresses, towards);
    CHECK_CONTAINS(report.interface, "network: eth0 (10.0.0.4)");
    CHECK(report.warnings.empty());
  }
}

TEST_CASE("loopback or a bridge for containers between hosts is a slow path, with the interfaces to use") {
  const FakeMachine machine;
  const std::string loopback = only_warning(machine, {}, "127.0.0.1");
  CHECK_CONTAINS(loopback, "lo (127.0.0.1) is the loopback interface, by which other hosts cannot reach this one",
                 "set MASTER_ADDR to an address of rank 0's host, or DTRAIN_INTERFACE", "there are: eth0 (10.0.0.4)");
  CHECK(!contains(loopback, "docker0"));
  const std::string bridge = only_warning(machine, {}, "172.17.0.2");
  CHECK_CONTAINS(bridge, "docker0 (172.17.0.1) is a bridge for this machine's containers",
                 "there are: eth0 (10.0.0.4)");
  CHECK(report(machine, {}, "127.0.0.1", false).warnings.empty());
  CHECK(report(machine, {{"DTRAIN_HOST_ID", "a"}}, "127.0.0.1").warnings.empty());
  for (const char* name : {"docker0", "docker_gwbridge", "br-0123456789ab", "podman1", "cni0", "virbr0", "lxdbr0"}) {
    CHECK(dtrain::net::is_container_bridge(name));
  }
  for (const char* name : {"eth0", "br0", "br-lan", "br-0123456789xy", "ib0", "bond0", "dock"}) {
    CHECK(!dtrain::net::is_container_bridge(name));
  }
}

TEST_CASE("an InfiniBand port that is up, and a variable that keeps the job from it, are both named") {
  const FakeMachine machine;
  machine.add_port("4: ACTIVE", "InfiniBand");
  CHECK(report(machine, {}, "10.0.0.9").warnings.empty());
  const std::string nccl = only_warning(machine, {{"NCCL_IB_DISABLE", "1"}});
  CHECK(nccl ==
        "InfiniBand is up at mlx5_0 port 1 (200 Gb/sec (4X HDR)), but NCCL_IB_DISABLE='1' keeps the job from it; "
        "unset it");
  const std::string both = only_warning(machine, {{"UCX_TLS", "tcp,sm"}, {"FI_PROVIDER", "sockets"}});
  CHECK_CONTAINS(both, "but UCX_TLS='tcp,sm' and FI_PROVIDER='sockets' keep the job from it; unset them");
  for (const char* transports : {"^ib", "^rc,ud,dc", "tcp", "self,sm,tcp"}) {
    CAPTURE(transports);
    CHECK_CONTAINS(only_warning(machine, {{"UCX_TLS", transports}}), "UCX_TLS");
  }
  const std::vector<Environment> harmless{{{"NCCL_IB_DISABLE", "0"}}, {{"UCX_TLS", "all"}},
                                          {{"UCX_TLS", "rc_x,sm"}},   {{"UCX_TLS", "\\rc,tcp"}},
                                          {{"UCX_TLS", "^tcp"}},      {{"FI_PROVIDER", "verbs;ofi_rxm"}},
                                          {{"FI_PROVIDER", "psm3"}},  {{"FI_PROVIDER", "^tcp,sockets"}}};
  for (const Environment& environment : harmless) {
    CAPTURE(environment.begin()->second);
    CHECK(report(machine, environment, "10.0.0.9").warnings.empty());
  }
}

TEST_CASE("a port that is down or of an Ethernet adapter is nothing that InfiniBand's variables cost") {
  const FakeMachine machine;
  const Environment disabled{{"NCCL_IB_DISABLE", "1"}};
  machine.add_port("1: DOWN", "InfiniBand");
  CHECK(report(machine, disabled, "10.0.0.9").warnings.empty());
  machine.add_port("4: ACTIVE", "Ethernet");
  CHECK(report(machine, disabled, "10.0.0.9").warnings.empty());
}

TEST_CASE("memory that may be locked is little only where InfiniBand needs it") {
  const FakeMachine machine;
  const auto limit = [&](const std::string& soft) {
    machine.write("/proc/self/limits",
                  "Limit                     Soft Limit           Hard Limit           Units\n"
                  "Max locked memory         " +
                      soft + "              unlimited            bytes\n");
  };
  limit("65536");
  CHECK(report(machine, {}, "10.0.0.9").warnings.empty());
  machine.add_port("4: ACTIVE", "InfiniBand");
  CHECK_CONTAINS(only_warning(machine), "RLIMIT_MEMLOCK is 64 KiB");
  CHECK_CONTAINS(only_warning(machine), "ulimit -l unlimited");
  for (const char* enough : {"unlimited", "1073741824", "", "99999999999999999999999"}) {
    CAPTURE(enough);
    limit(enough);
    CHECK(report(machine, {}, "10.0.0.9").warnings.empty());
  }
}

TEST_CASE("an Azure topology file that NCCL is not told of is named with what to set") {
  for (const std::string path : {"/opt/microsoft/ndv4-topo.xml", "/opt/microsoft/ncv4/topo.xml"}) {
    const FakeMachine machine;
    machine.write("/opt/microsoft/readme.txt", "topo.xml");
    CHECK(report(machine, {}, "10.0.0.9").warnings.empty());
    machine.write(path, "<system/>");
    CHECK(only_warning(machine) == path +
                                       " tells NCCL how this machine is wired, but NCCL_TOPO_FILE is not set; set "
                                       "NCCL_TOPO_FILE=" +
                                       path);
    CHECK(report(machine, {{"NCCL_TOPO_FILE", path}}, "10.0.0.9").warnings.empty());
    machine.write("/etc/nccl.conf", "NCCL_TOPO_FILE=" + path + "\n");
    CHECK(report(machine, {}, "10.0.0.9").warnings.empty());
  }
}

TEST_CASE("of a file only so much is read, and a pipe in its place is not waited for") {
  const FakeMachine machine;
  machine.write("/etc/long", std::string(dtrain::SystemFiles::most_bytes + 10, 'x'));
  CHECK(machine.files().text("/etc/long")->size() == dtrain::SystemFiles::most_bytes);
  machine.write("/etc/lines", "first \t\r\nsecond");
  CHECK(machine.files().line("/etc/lines") == "first");
  REQUIRE(::mkfifo((machine.folder.path + "/etc/hosts").c_str(), 0600) == 0);
  CHECK(!machine.files().text("/etc/hosts"));
  CHECK(!machine.files().text("/etc"));
  CHECK(machine.files().names("/etc") == std::vector<std::string>{"hosts", "lines", "long"});
  CHECK(machine.files().names("/none").empty());
}

TEST_CASE("a job spans hosts where it says so, or has its store at an address that others can reach") {
  dtrain::identity::ProcessIdentity who;
  who.world_size = 2;
  who.master_addr = "host-a";
  CHECK(launch::spans_hosts(who));
  who.master_addr = "127.0.0.1";
  CHECK(!launch::spans_hosts(who));
  who.node_count = 2;
  CHECK(launch::spans_hosts(who));
  who.node_count = 1;
  who.master_addr = "host-a";
  CHECK(!launch::spans_hosts(who));
}

TEST_CASE("this machine's own report can be had without anybody else") {
  const Environment nothing;
  const launch::NetworkReport here = launch::local_network_report(Variables(nothing), "127.0.0.1", false);
  CHECK(here.interface == "network: lo (127.0.0.1), within this host");
}
