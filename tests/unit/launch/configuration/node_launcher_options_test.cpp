#include "dtrain/launch/configuration/node_launcher_options.hpp"
#include "dtrain/launch/node_launcher.hpp"
#include "unit/launch/prelude.hpp"

namespace {

const std::string secret = "0123456789abcdef";

NodeLauncherOptions options_of(std::vector<const char*> arguments, const Environment& environment = {}) {
  arguments.insert(arguments.begin(), "train");
  return node_launcher_options(parse_flags(arguments), environment, 6);
}

BackendFacts elastic_backend() {
  BackendFacts facts;
  facts.run_elastic = [](Attempt&, const NodeLauncherOptions&) -> dtrain::async::Task<JobResult> {
    co_return JobResult{};
  };
  return facts;
}

/// As PerNode has them for a program with that backend.
NodeLauncherOptions checked(std::vector<const char*> arguments, const BackendFacts& backend,
                            const Environment& environment = {}) {
  arguments.insert(arguments.begin(), "train");
  NodeLauncherOptions options = node_launcher_options(parse_flags(arguments), environment, 6, nullptr, &backend);
  check_min_ranks(options, backend);
  return options;
}

std::string error_of(const std::vector<const char*>& arguments, const Environment& environment = {}) {
  try {
    static_cast<void>(options_of(arguments, environment));
  } catch (const dtrain::Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("without flags and variables it is one worker on one node, at a port that the system chooses") {
  const NodeLauncherOptions options = options_of({"--epochs=3"});
  CHECK(options.workers == 1);
  CHECK(options.node.node_count == 1);
  CHECK(!options.node.master_port);
  CHECK(!options.secret);
  CHECK(options.max_restarts == 0);
  CHECK(options.stop_grace == std::chrono::seconds(30));
  CHECK(options.program.arguments == std::vector<std::string>{"train", "--epochs=3"});
}

TEST_CASE("flags and variables say how many workers, how often and for how long") {
  const NodeLauncherOptions options =
      options_of({"--nproc-per-node=auto", "--max-restarts=4", "--log-dir=d"},
                 {{"DTRAIN_GRACE_SECONDS", "120"}, {"DTRAIN_LIVENESS_SECONDS", "2"}, {"DTRAIN_HOST_ID", "h"}});
  CHECK(options.workers == 6);
  CHECK(options.max_restarts == 4);
  CHECK(options.program.log_dir == "d");
  CHECK(options.stop_grace == std::chrono::minutes(2));
  CHECK(options.liveness == std::chrono::seconds(2));
  CHECK(options.host_id == "h");
  for (const char* bad : {"--nproc-per-node=0", "--nproc-per-node=4097", "--nproc-per-node=x"}) {
    CHECK_CONTAINS(error_of({bad}), "--nproc-per-node");
  }
}

TEST_CASE("auto is a worker for each device where the program computes on devices, and none of them is an error") {
  const auto options = [](std::vector<const char*> arguments, dtrain::launch::VisibleDevices devices) {
    arguments.insert(arguments.begin(), "train");
    return node_launcher_options(parse_flags(arguments), {}, 6, devices);
  };
  CHECK(options({"--nproc-per-node=auto"}, [] { return 8; }).workers == 8);
  CHECK(options({"--nproc-per-node=auto"}, nullptr).workers == 6);
  CHECK(options({"--nproc-per-node=3"}, [] { return 8; }).workers == 3);
  CHECK(options({}, []() -> int { throw dtrain::Error(dtrain::Errc::limit, "nobody asked"); }).workers == 1);
  CHECK_THROWS_WITH_AS(options({"--nproc-per-node=auto"}, [] { return 0; }), doctest::Contains("nvidia-smi"),
                       dtrain::Error);
}

TEST_CASE(
    "several nodes have their store at port 29500 unless another is given, with the secret that they were given") {
  const NodeLauncherOptions options =
      options_of({"--nnodes=3", "--node-rank=2", "--master-addr=h0"}, {{"DTRAIN_SECRET", secret}});
  CHECK(options.node.node_count == 3);
  CHECK(options.node.node_rank == 2);
  CHECK(options.node.master_addr == "h0");
  CHECK(options.node.master_port == 29500);
  REQUIRE(options.secret.has_value());
  CHECK(options.secret->text() == secret);
  CHECK(options.node_source == "--nnodes='3'");
}

TEST_CASE("several nodes without a secret say where that number comes from, how to make one, and how to be alone") {
  const Environment stray{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "h0"}};
  const std::string error = error_of({}, stray);
  CHECK_CONTAINS(error, "this is node 1 of 2 (from RANK='1', WORLD_SIZE='2')", "DTRAIN_SECRET=$(openssl rand -hex 32)",
                 "--nnodes=1");
  CHECK(error_of({"--nnodes=1"}, stray) == "");
  CHECK_CONTAINS(error_of({"--nnodes=2", "--node-rank=0", "--master-addr=h0"}), "from --nnodes='2'");
  CHECK_CONTAINS(error_of({}, {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "0"}, {"MASTER_ADDR", "h0"}}),
                 "from PET_NODE_RANK='0', PET_NNODES='2'");
}

TEST_CASE("stray variables of a process are an error that says how to ignore them") {
  for (const Environment& stray :
       std::vector<Environment>{{{"RANK", "0"}, {"WORLD_SIZE", "2"}}, {{"WORLD_SIZE", "2"}}, {{"RANK", "1"}}}) {
    CHECK_CONTAINS(error_of({}, stray), "RANK");
    CHECK_CONTAINS(error_of({}, stray), "if there is only this node, give --nnodes=1");
    CHECK(error_of({"--nnodes=1"}, stray) == "");
  }
  CHECK(!contains(error_of({"--nnodes=2", "--node-rank=0"}), "--nnodes=1"));
}

TEST_CASE("workers that compute on devices have longer to end, and to die where the job would start again") {
  const dtrain::launch::VisibleDevices devices = [] { return 2; };
  const auto shutdown_timeouts = [](std::vector<const char*> arguments, dtrain::launch::VisibleDevices visible) {
    arguments.insert(arguments.begin(), "train");
    return node_launcher_options(parse_flags(arguments), {}, 6, visible).shutdown_timeouts;
  };
  const dtrain::launch::ShutdownTimeouts usual;
  CHECK(shutdown_timeouts({}, nullptr).exit_grace == usual.exit_grace);
  CHECK(shutdown_timeouts({"--max-restarts=1"}, nullptr).kill_timeout == usual.kill_timeout);
  CHECK(shutdown_timeouts({}, devices).exit_grace == std::chrono::seconds(5));
  CHECK(shutdown_timeouts({}, devices).kill_timeout == usual.kill_timeout);
  CHECK(shutdown_timeouts({"--max-restarts=1"}, devices).kill_timeout == std::chrono::seconds(60));
}

TEST_CASE("attempts do not overwrite each other's log files") {
  CHECK(log_directory("logs", 0) == "logs");
  CHECK(log_directory("logs", 1) == "logs/attempt-1");
  CHECK(log_directory("logs", 12) == "logs/attempt-12");
}

TEST_CASE("--min-ranks is for an elastic program, and workers that the launcher starts itself") {
  const BackendFacts elastic = elastic_backend();
  CHECK(checked({}, elastic).min_ranks == 0);
  const NodeLauncherOptions options = checked({"--nproc-per-node=4", "--min-ranks=2"}, elastic);
  CHECK(options.min_ranks == 2);
  CHECK((options.run_elastic == elastic.run_elastic));
  CHECK_ERROR(checked({"--nproc-per-node=4", "--min-ranks=2"}, BackendFacts{}), dtrain::Errc::usage, "--min-ranks=2",
              "its body takes a ProcessGroup and not a dtrain::Elastic", "leave the flag out");
  CHECK_ERROR(checked({"--nproc-per-node=2", "--min-ranks=3"}, elastic), dtrain::Errc::usage,
              "--min-ranks=3 is more than --nproc-per-node=2");
}

TEST_CASE("an elastic program with MIN:MAX nodes, or --min-ranks, runs on as many nodes as are there") {
  const BackendFacts elastic = elastic_backend();
  const Environment shared{{"DTRAIN_SECRET", secret}};
  const NodeLauncherOptions range =
      checked({"--nproc-per-node=3", "--nnodes=2:4", "--node-rank=9", "--master-addr=a"}, elastic, shared);
  CHECK(range.min_ranks == 6);
  CHECK(range.node.node_count == 4);
  CHECK(range.node.node_rank == 9);
  CHECK(range.is_elastic_on_hosts());
  CHECK(checked({"--nproc-per-node=3", "--min-ranks=1", "--nnodes=2:4", "--node-rank=0", "--master-addr=a"}, elastic,
                shared)
            .min_ranks == 1);
  const NodeLauncherOptions fixed = checked(
      {"--nproc-per-node=3", "--min-ranks=4", "--nnodes=2", "--node-rank=1", "--master-addr=a"}, elastic, shared);
  CHECK(fixed.min_ranks == 4);
  CHECK(fixed.is_elastic_on_hosts());
  const NodeLauncherOptions alone = checked({"--nproc-per-node=3", "--nnodes=1:1"}, elastic);
  CHECK(alone.min_ranks == 3);
  CHECK(!alone.is_elastic_on_hosts());
  CHECK(!checked({"--nproc-per-node=3", "--nnodes=2", "--node-rank=1", "--master-addr=a"}, elastic, shared)
             .is_elastic_on_hosts());
}

TEST_CASE("an elastic job on several nodes needs a secret, a backend for several hosts, and enough workers") {
  BackendFacts elastic = elastic_backend();
  const Environment shared{{"DTRAIN_SECRET", secret}};
  CHECK_ERROR(checked({"--nnodes=1:2", "--node-rank=0", "--master-addr=a"}, elastic), dtrain::Errc::usage,
              "this is node 0 of 2 (from --nnodes='1:2')", "secret");
  CHECK_ERROR(checked({"--nproc-per-node=2", "--min-ranks=5", "--nnodes=1:2", "--node-rank=0", "--master-addr=a"},
                      elastic, shared),
              dtrain::Errc::usage, "--min-ranks=5 is more than --nproc-per-node=2 on 2 nodes");
  CHECK_ERROR(
      checked({"--nproc-per-node=4096", "--nnodes=1:1000", "--node-rank=0", "--master-addr=a"}, elastic, shared),
      dtrain::Errc::usage, "--nproc-per-node=4096 on 1000 nodes are more workers than");
  CHECK_ERROR(checked({"--nproc-per-node=4096", "--nnodes=2000000000:2000000000", "--node-rank=0", "--master-addr=a"},
                      elastic, shared),
              dtrain::Errc::usage, "--nproc-per-node=4096 on 2000000000 nodes are more workers than");
  elastic.name = "SharedMemory";
  elastic.most_ranks = 256;
  CHECK_ERROR(checked({"--nnodes=1:2", "--node-rank=0", "--master-addr=a"}, elastic), dtrain::Errc::usage,
              "backend::SharedMemory joins the ranks of one host, and this job has up to 2 nodes (from --nnodes='1:2')",
              "start one launcher there, with --nnodes=1 and all workers (--nproc-per-node)",
              "use backend::Gloo or backend::Nccl");
  CHECK_ERROR(options_of({"--nnodes=1:2", "--node-rank=0", "--master-addr=a"}, shared), dtrain::Errc::identity,
              "--nnodes='1:2' is a range of nodes, which only --nnodes and PET_NNODES may be, for a program whose "
              "body takes a dtrain::Elastic");
  CHECK_ERROR(checked({}, elastic_backend(), {{"NNODES", "1:2"}, {"NODE_RANK", "0"}, {"MASTER_ADDR", "a"}}),
              dtrain::Errc::identity, "NNODES='1:2' is a range of nodes, which only --nnodes and PET_NNODES may be");
}

TEST_CASE("shared memory on several nodes is refused, and one launcher for one host is what it says to start") {
  BackendFacts shared_memory;
  shared_memory.name = "SharedMemory";
  shared_memory.most_ranks = 256;
  CHECK_ERROR(checked({"--nnodes=2", "--node-rank=1", "--master-addr=a"}, shared_memory), dtrain::Errc::usage,
              "backend::SharedMemory joins the ranks of one host, and this job has 2 nodes (from --nnodes='2'); if all "
              "is one host, start one launcher there, with --nnodes=1 and all workers (--nproc-per-node)");
  CHECK(checked({"--nnodes=1", "--nproc-per-node=4"}, shared_memory).workers == 4);
}
