// Where rank 0 is and on which port, by what launchers leave behind: entries, daemons' addresses, Azure's names, jobs'
// ids.

#include "dtrain/identity/formats/addresses.hpp"
#include "unit/identity/prelude.hpp"

namespace {

/// Rank 1 of 4 on two nodes, by Open MPI, with `more`.
ProcessIdentity open_mpi(Environment more, const char* rank = "1") {
  more.insert({{"OMPI_COMM_WORLD_RANK", rank},
               {"OMPI_COMM_WORLD_SIZE", "4"},
               {"OMPI_COMM_WORLD_LOCAL_RANK", rank},
               {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  return process_identity(more);
}

std::string open_mpi_refusal(const Environment& more, const char* rank = "1") {
  return refusal([&] { static_cast<void>(open_mpi(more, rank)); }).code;
}

int port_of(const Environment& environment, identity::SlurmNumbers slurm = identity::SlurmNumbers::none) {
  return identity::job_port(identity::Variables(environment), slurm);
}

}  // namespace

TEST_CASE("an entry is a host, host:port, or [IPv6 address]:port") {
  const std::vector<std::tuple<std::string, std::string, int>> table{
      {"h0:2222", "h0", 2222},
      {"h0", "h0", 0},
      {"192.0.2.1:1", "192.0.2.1", 1},
      {"[fd00::1]:2222", "fd00::1", 2222},
      {"a.b-c_d:65535", "a.b-c_d", 65535},
      {"[fe80::1%eth0]:7", "fe80::1%eth0", 7},
  };
  for (const auto& [text, host, port] : table) {
    const std::string& entry = text;  // what CAPTURE can name
    CAPTURE(entry);
    const identity::HostPort parts = identity::split_host_port("V", entry, identity::IdentityErrc::tf_malformed);
    CHECK(parts.host == host);
    CHECK(parts.port.value_or(0) == port);
  }
}

TEST_CASE("an entry that is none of these is refused, an IPv6 address without brackets as ambiguous") {
  const std::vector<std::pair<std::string, std::string>> table{
      {"fd00::1", "ambiguous-address"},
      {"fd00::1:2222", "ambiguous-address"},
      {"[fd00::1]", "ambiguous-address"},
      {"grpc://h:1", "ambiguous-address"},
      {"h0:", "bad-port"},
      {"h0:0", "bad-port"},
      {"h0:65536", "bad-port"},
      {"h0:x", "bad-port"},
      {"[fd00::1]:x", "bad-port"},
      {"", "tf-malformed"},
      {":1", "tf-malformed"},
      {"[]:1", "tf-malformed"},
      {"[h0]:1", "tf-malformed"},
      {"h 0:1", "tf-malformed"},
      {"h/0", "tf-malformed"},
      {"[fd00::1 ]:1", "tf-malformed"},
  };
  for (const auto& [text, code] : table) {
    const std::string& entry = text;  // what CAPTURE can name
    CAPTURE(entry);
    const Refusal refused = refusal([&] {
      static_cast<void>(identity::split_host_port("TF_CONFIG", entry, identity::IdentityErrc::tf_malformed));
    });
    CHECK(refused.code == code);
    CHECK_CONTAINS(refused.sentence, "TF_CONFIG='" + entry + "'");
  }
}

TEST_CASE("an Open MPI daemon's address gives its job, its number and a host that others can reach") {
  const auto uri = identity::parse_orte_uri("1571946496.2;tcp://127.0.0.1,192.0.2.2:54609;tcp6://[fd00::2]:35257");
  REQUIRE(uri.has_value());
  CHECK(uri->job == 1571946496);
  CHECK(uri->daemon == 2);
  CHECK(uri->host == "192.0.2.2");
  CHECK(identity::parse_orte_uri("1.0;tcp6://[::1,fd00::2]:35257")->host == "fd00::2");
  CHECK(identity::parse_orte_uri("1.0;usock;tcp://h:1")->host == "h");
  CHECK(identity::parse_orte_uri("1.0;tcp://127.0.0.1:1")->host == "");
  CHECK(identity::parse_orte_uri("1.0;tcp://h x:1")->host == "");
  CHECK(identity::parse_orte_uri("1.0")->host == "");
  for (const char* none : {"", ";", "x.0;tcp://h:1", "1;tcp://h:1", "1.x;tcp://h:1", "prterun-vm-1@0.0;tcp4://h:1"}) {
    CAPTURE(none);
    CHECK(!identity::parse_orte_uri(none).has_value());
  }
}

TEST_CASE("the port is the given one, else computed from the job's id, else 29500") {
  using identity::SlurmNumbers;
  CHECK(port_of({}) == 29500);
  CHECK(port_of(variables("MASTER_PORT=1234 LSB_JOBID=7")) == 1234);
  CHECK(port_of(variables("LSB_JOBID=4097")) == 61441);
  CHECK(port_of({{"OMPI_MCA_orte_hnp_uri", "1571946496.0;tcp://h:1"}, {"LSB_JOBID", "7"}}) == 64946);
  CHECK(port_of(variables("PMIX_NAMESPACE=prterun-vm-12345@1")) == 61440 + 12345 % 4096);
  CHECK(port_of(variables("PMIX_NAMESPACE=1234436097")) == 29500);
  CHECK(port_of(variables("PMIX_NAMESPACE=slurm.pmix.5.0")) == 29500);
  CHECK(port_of(variables("PMIX_NAMESPACE=a-b@1")) == 29500);
  CHECK(port_of(variables("PMIX_NAMESPACE=a-1@x")) == 29500);
  const Environment slurm = variables("SLURM_JOB_ID=5 SLURM_STEP_ID=2");
  CHECK(port_of(slurm) == 29500);
  CHECK(port_of(slurm, SlurmNumbers::allocation) == 61445);
  CHECK(port_of(slurm, SlurmNumbers::step) == 61440 + 5 + 2 * 257);
  CHECK(port_of(variables("SLURM_JOB_ID=999999999 SLURM_STEP_ID=4294967289"), SlurmNumbers::step) <= 65535);
  CHECK(refusal([] { port_of(variables("LSB_JOBID=x")); }).code == "bad-integer");
  CHECK(refusal([] { port_of(variables("MASTER_PORT=0")); }).code == "bad-port");
}

TEST_CASE("mpirun's host is a guess at the master, which rank 0 refutes where its daemon is another") {
  const Environment away{{"OMPI_MCA_orte_hnp_uri", "65536.0;tcp://192.0.2.2:1"},
                         {"OMPI_MCA_orte_local_daemon_uri", "65536.1;tcp://192.0.2.3:1"}};
  CHECK(open_mpi(away).master_addr == "192.0.2.2");
  CHECK(open_mpi(away).is_provisional("master_addr"));
  CHECK(open_mpi_refusal(away, "0") == "no-master-addr");
  Environment here = away;
  here["OMPI_MCA_orte_local_daemon_uri"] = here["OMPI_MCA_orte_hnp_uri"];
  CHECK(open_mpi(here, "0").master_addr == "192.0.2.2");
  Environment given = away;
  given["MASTER_ADDR"] = "nodea";
  CHECK(open_mpi(given, "0").master_addr == "nodea");
  CHECK(open_mpi(given, "0").provisional.empty());
  CHECK(open_mpi_refusal({{"OMPI_MCA_orte_hnp_uri", "65536.0;tcp://127.0.0.1:1"}}) == "no-master-addr");
}

TEST_CASE("inside an allocation the first of its nodes is the guess, for MPI's sources only") {
  const Environment allocation{{"SLURM_JOB_ID", "5"},
                               {"SLURM_JOB_NODELIST", "gpu-a,node001"},
                               {"OMPI_MCA_orte_hnp_uri", "65536.0;tcp://192.0.2.2:1"},
                               {"OMPI_MCA_orte_local_daemon_uri", "65536.1;tcp://192.0.2.3:1"}};
  CHECK(open_mpi(allocation, "0").master_addr == "gpu-a");
  CHECK(open_mpi(allocation, "0").is_provisional("master_addr"));
  const auto other = [&](const char* rank, const char* size) {
    Environment environment = allocation;
    environment.insert({{rank, "0"}, {size, "2"}});
    return environment;
  };
  CHECK(process_identity(other("PMI_RANK", "PMI_SIZE")).master_addr == "gpu-a");
  CHECK(process_identity(other("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE")).master_addr == "gpu-a");
  CHECK(refusal_of(other("HOROVOD_RANK", "HOROVOD_SIZE")).code == "no-master-addr");
  CHECK(refusal_of(other("FLUX_TASK_RANK", "FLUX_JOB_SIZE")).code == "no-master-addr");
  Environment broken = allocation;
  broken["SLURM_JOB_NODELIST"] = "node[3-1]";
  CHECK(open_mpi_refusal(broken) == "bad-hostlist");
  broken["MASTER_ADDR"] = "h";  // a list is parsed only when it is needed
  CHECK(open_mpi_refusal(broken) == "");
}

TEST_CASE("Azure's names give Open MPI's master, and port 6105 goes with them") {
  Environment azure = variables("AZ_BATCH_MASTER_NODE=10.0.0.4:6000 AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.9");
  CHECK(open_mpi(azure).master_addr == "10.0.0.4");
  CHECK(open_mpi(azure).master_port == 6105);
  CHECK(!open_mpi(azure).is_provisional("master_addr"));
  azure["MASTER_PORT"] = "1234";
  CHECK(open_mpi(azure).master_port == 1234);
  azure.erase("MASTER_PORT");
  azure["AZUREML_NODE_COUNT"] = "1";
  CHECK(open_mpi(azure).master_addr == "10.0.0.9");
  CHECK(open_mpi(azure).master_port == 6105);
  azure.erase("AZ_BATCHAI_MPI_MASTER_NODE");
  CHECK(open_mpi(azure).master_addr == "127.0.0.1");
  azure["MASTER_ADDR"] = "h";
  CHECK(open_mpi(azure).master_addr == "h");
  CHECK(open_mpi(azure).master_port == 29500);
  CHECK(open_mpi(variables("AZ_BATCH_MASTER_NODE=[fd00::4]:6000")).master_addr == "fd00::4");
  CHECK(open_mpi_refusal(variables("AZ_BATCH_MASTER_NODE=fd00::4")) == "ambiguous-address");
  CHECK(open_mpi_refusal(variables("AZ_BATCHAI_MPI_MASTER_NODE=10.0.0.4")) == "no-master-addr");
}

TEST_CASE("a Slurm step's master is the first node of the step's list, unless the user placed the tasks") {
  Environment step = variables(
      "SLURM_PROCID=1 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=2 SLURM_NODEID=1 SLURM_LOCALID=0 "
      "SLURM_GTIDS=1 SLURM_STEP_NODELIST=n[3-4] SLURM_LAUNCH_NODE_IPADDR=9.9.9.9");
  CHECK(process_identity(step).master_addr == "n3");
  CHECK(process_identity(step).provisional.empty());
  step["SLURM_DISTRIBUTION"] = "arbitrary";
  CHECK(refusal_of(step).code == "no-master-addr");
  CHECK_CONTAINS(refusal_of(step).sentence, "SLURM_DISTRIBUTION='arbitrary'");
  step["MASTER_ADDR"] = "n4";
  CHECK(process_identity(step).master_addr == "n4");
  step.erase("MASTER_ADDR");
  step["SLURM_DISTRIBUTION"] = "block,Pack";
  step.erase("SLURM_STEP_NODELIST");
  CHECK(refusal_of(step).code == "no-master-addr");
  step["SLURM_STEP_NUM_NODES"] = "1";
  step["SLURM_DISTRIBUTION"] = "arbitrary";
  CHECK(process_identity(step).master_addr == "127.0.0.1");
}

TEST_CASE("ports are decimal digits from 1 to 65535, and ids are at most 18 of them") {
  CHECK(parse_port("65535") == 65535);
  CHECK(parse_port("00080") == 80);
  for (const char* text : {"", "0", "65536", "99999999999999999999", "-1", "+1", "0x10", "1 ", " 1"}) {
    CHECK_MESSAGE(!parse_port(text).has_value(), text);
  }
  CHECK(parse_wide_integer("000000000000000080") == 80U);
  CHECK(parse_wide_integer("999999999999999999") == 999999999999999999U);
  CHECK(!parse_wide_integer("0000000000000000080").has_value());
}
