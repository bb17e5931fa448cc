// Jobs of random shape, as each launcher would describe them to their ranks: what every rank reads is distinct,
// consistent and true, and what other launchers left behind does not change it.

#include "unit/identity/prelude.hpp"

namespace {

struct Rank {
  int rank = 0;
  int local_rank = 0;
  int node = 0;
};

/// Ranks on nodes of different sizes. Rank 0 is on node 0, as launchers that fill nodes in order have it.
struct Job {
  std::vector<int> sizes;          ///< ranks on each node
  std::vector<std::string> hosts;  ///< of each node
  std::vector<Rank> ranks;

  int world_size() const { return static_cast<int>(ranks.size()); }
  int node_count() const { return static_cast<int>(sizes.size()); }
  int local_size(const Rank& rank) const { return sizes[static_cast<std::size_t>(rank.node)]; }
  bool one_node() const { return node_count() == 1; }
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int below(int bound) { return static_cast<int>(engine_() % static_cast<unsigned>(bound)); }
  std::mt19937& engine() { return engine_; }

 private:
  std::mt19937 engine_;
};

/// @param permuted ranks are dealt to nodes in any order, but for rank 0
Job random_job(Random& random, bool permuted, const std::string& host_prefix) {
  Job job;
  for (int node = 1 + random.below(4); node > 0; --node) {
    job.sizes.push_back(1 + random.below(4));
    job.hosts.push_back(host_prefix + std::to_string(job.sizes.size()));
  }
  for (int node = 0; node < job.node_count(); ++node) {
    for (int local_rank = 0; local_rank < job.sizes[static_cast<std::size_t>(node)]; ++local_rank)
      job.ranks.push_back({job.world_size(), local_rank, node});
  }
  if (permuted) {
    std::vector<int> numbers(job.ranks.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin() + 1, numbers.end(), random.engine());
    for (std::size_t i = 0; i < numbers.size(); ++i)
      job.ranks[i].rank = numbers[i];
  }
  return job;
}

std::string text(int number) {
  return std::to_string(number);
}

template <class Value>
std::string list_of(const std::vector<Value>& values, Value (*format)(Value) = nullptr) {
  std::string list;
  for (const Value& value : values)
    list += (list.empty() ? "" : ",") + (format == nullptr ? value : format(value));
  return list;
}

/// The entries of a cluster by rank, "host:port" each.
std::vector<std::string> entries_of(const Job& job) {
  std::vector<std::string> entries(job.ranks.size());
  for (const Rank& rank : job.ranks) {
    entries[static_cast<std::size_t>(rank.rank)] =
        "\"" + job.hosts[static_cast<std::size_t>(rank.node)] + ":" + text(2000 + rank.local_rank) + "\"";
  }
  return entries;
}

/// Four variables, and MASTER_ADDR where the launcher does not know.
Environment four(const Job& job, const Rank& rank, const std::string& prefix, const char* size = "SIZE") {
  Environment environment{{prefix + "RANK", text(rank.rank)},
                          {prefix + size, text(job.world_size())},
                          {prefix + "LOCAL_RANK", text(rank.local_rank)},
                          {prefix + "LOCAL_" + size, text(job.local_size(rank))}};
  if (!job.one_node()) {
    environment["MASTER_ADDR"] = job.hosts.front();
  }
  return environment;
}

struct Launcher {
  const char* name;
  std::function<Environment(const Job&, const Rank&)> environment;
  bool complete = false;         ///< gives every fact, certain or guessed, on several nodes too
  bool nodes_in_order = false;   ///< node numbers are those of the job
  bool one_rank_a_node = false;  ///< describes only such jobs
  bool in_order = false;         ///< ranks are dealt to nodes in order
};

Environment dtrain_environment(const Job& job, const Rank& rank) {
  Environment environment = four(job, rank, "DTRAIN_", "WORLD_SIZE");
  environment.insert({{"DTRAIN_NODE_RANK", text(rank.node)},
                      {"DTRAIN_NODE_COUNT", text(job.node_count())},
                      {"DTRAIN_MASTER_ADDR", job.hosts.front()}});
  return environment;
}

Environment torchrun_environment(const Job& job, const Rank& rank) {
  Environment environment = four(job, rank, "", "WORLD_SIZE");
  environment.insert({{"GROUP_RANK", text(rank.node)},
                      {"GROUP_WORLD_SIZE", text(job.node_count())},
                      {"TORCHELASTIC_RUN_ID", "run"},
                      {"TORCHELASTIC_RESTART_COUNT", "2"},
                      {"MASTER_ADDR", job.hosts.front()}});
  return environment;
}

Environment deepspeed_environment(const Job& job, const Rank& rank) {
  return {{"RANK", text(rank.rank)},
          {"WORLD_SIZE", text(job.world_size())},
          {"LOCAL_RANK", text(rank.local_rank)},
          {"LOCAL_SIZE", text(job.local_size(rank))},
          {"CROSS_RANK", text(rank.node)},
          {"CROSS_SIZE", text(job.node_count())},
          {"MASTER_ADDR", job.hosts.front()}};
}

Environment mpirun_environment(const Job& job, const Rank& rank) {
  Environment environment = four(job, rank, "OMPI_COMM_WORLD_");
  environment["OMPI_MCA_orte_num_nodes"] = text(job.node_count());
  environment["OMPI_COMM_WORLD_NODE_RANK"] = text(rank.local_rank);
  return environment;
}

Environment flux_environment(const Job& job, const Rank& rank) {
  Environment environment{{"FLUX_TASK_RANK", text(rank.rank)},
                          {"FLUX_JOB_SIZE", text(job.world_size())},
                          {"FLUX_TASK_LOCAL_ID", text(rank.local_rank)},
                          {"FLUX_JOB_NNODES", text(job.node_count())},
                          {"PMI_RANK", text(rank.rank)},
                          {"PMI_SIZE", text(job.world_size())}};
  if (!job.one_node()) {
    environment["MASTER_ADDR"] = job.hosts.front();
  }
  return environment;
}

Environment mpich_environment(const Job& job, const Rank& rank) {
  Environment environment = four(job, rank, "PMI_");
  environment.erase("PMI_LOCAL_RANK");
  environment.erase("PMI_LOCAL_SIZE");
  environment["MPI_LOCALRANKID"] = text(rank.local_rank);
  environment["MPI_LOCALNRANKS"] = text(job.local_size(rank));
  return environment;
}

Environment pals_environment(const Job& job, const Rank& rank) {
  Environment environment = four(job, rank, "PMI_");
  environment["PALS_NODEID"] = text(rank.node);
  return environment;
}

Environment srun_environment(const Job& job, const Rank& rank) {
  std::vector<std::string> tasks;
  for (const int size : job.sizes)
    tasks.push_back(text(size));
  return {{"SLURM_PROCID", text(rank.rank)},
          {"SLURM_STEP_ID", "3"},
          {"SLURM_JOB_ID", "17"},
          {"SLURM_STEP_NUM_TASKS", text(job.world_size())},
          {"SLURM_NTASKS", "999"},
          {"SLURM_LOCALID", text(rank.local_rank)},
          {"SLURM_NODEID", text(rank.node)},
          {"SLURM_STEP_NUM_NODES", text(job.node_count())},
          {"SLURM_STEP_TASKS_PER_NODE", list_of(tasks)},
          {"SLURM_STEP_NODELIST", list_of(job.hosts)},
          {"SLURM_RESTART_COUNT", "1"}};
}

Environment tf_environment(const Job& job, const Rank& rank) {
  std::vector<std::string> entries = entries_of(job);
  const std::string chief = entries.front();
  entries.erase(entries.begin());
  const bool is_chief = rank.rank == 0;
  return {{"TF_CONFIG", "{\"cluster\": {\"worker\": [" + list_of(entries) + "], \"chief\": [" + chief +
                            "], \"ps\": [\"p:1\"]}, \"task\": {\"type\": \"" + (is_chief ? "chief" : "worker") +
                            "\", \"index\": " + text(is_chief ? 0 : rank.rank - 1) + "}}"}};
}

Environment vertex_environment(const Job& job, const Rank& rank) {
  Environment environment;
  std::string value = tf_environment(job, rank)["TF_CONFIG"];
  for (const auto& [from, to] : {std::pair<std::string, std::string>{"chief", "workerpool0"},
                                 {"worker\"", "workerpool1\""},
                                 {"ps", "workerpool2"}}) {
    for (std::size_t at = 0; (at = value.find("\"" + from, at)) != std::string::npos; at += to.size())
      value.replace(at + 1, from.size(), to);
  }
  environment["CLUSTER_SPEC"] = value;
  return environment;
}

Environment sagemaker_environment(const Job& job, const Rank& rank) {
  std::vector<std::string> hosts;
  for (const std::string& host : job.hosts)
    hosts.push_back("\"" + host + "\"");
  return {{"SM_HOSTS", "[" + list_of(hosts) + "]"},
          {"SM_CURRENT_HOST", job.hosts[static_cast<std::size_t>(rank.node)]}};
}

Environment k8s_environment(const Job& job, const Rank& rank) {
  return {{"JOB_COMPLETION_INDEX", text(rank.rank)},
          {"WORLD_SIZE", text(job.world_size())},
          {"MASTER_ADDR", job.hosts.front()}};
}

const std::vector<Launcher>& launchers() {
  static const std::vector<Launcher> all{
      {.name = "dtrain", .environment = dtrain_environment, .complete = true, .nodes_in_order = true},
      {.name = "torch", .environment = torchrun_environment, .complete = true, .nodes_in_order = true},
      {.name = "torch", .environment = deepspeed_environment, .complete = true, .nodes_in_order = true},
      {.name = "horovod", .environment = [](const Job& job, const Rank& rank) { return four(job, rank, "HOROVOD_"); }},
      {.name = "openmpi", .environment = mpirun_environment},
      {.name = "jsrun",
       .environment = [](const Job& job, const Rank& rank) { return four(job, rank, "JSM_NAMESPACE_"); }},
      {.name = "mvapich",
       .environment = [](const Job& job, const Rank& rank) { return four(job, rank, "MV2_COMM_WORLD_"); }},
      {.name = "flux", .environment = flux_environment},
      {.name = "pmi", .environment = mpich_environment},
      {.name = "pmi", .environment = pals_environment, .nodes_in_order = true},
      {.name = "slurm", .environment = srun_environment, .complete = true, .nodes_in_order = true},
      {.name = "tf_config", .environment = tf_environment, .complete = true, .in_order = true},
      {.name = "vertex", .environment = vertex_environment, .complete = true, .in_order = true},
      {.name = "sagemaker", .environment = sagemaker_environment, .complete = true, .one_rank_a_node = true},
      {.name = "k8s", .environment = k8s_environment},
  };
  return all;
}

/// A job such as this launcher can have started.
Job job_for(const Launcher& launcher, Random& random, const std::string& host_prefix) {
  Job job = random_job(random, !launcher.in_order && random.below(2) == 0, host_prefix);
  while (std::string(launcher.name) == "k8s" && job.world_size() == 1)
    job = random_job(random, false, host_prefix);
  if (launcher.one_rank_a_node) {
    job.ranks.clear();
    for (int node = 0; node < job.node_count(); ++node) {
      job.sizes[static_cast<std::size_t>(node)] = 1;
      job.ranks.push_back({node, 0, node});
    }
  }
  return job;
}

/// Sources that come later in the order, and what the specification says means nothing. Random, and for other jobs.
Environment decoys_after(const std::string& launcher, Random& random) {
  const std::vector<std::pair<std::string, std::vector<const char*>>> order{
      {"dtrain", {}},
      {"torch", {"RANK", "WORLD_SIZE"}},
      {"horovod", {"HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_CROSS_RANK"}},
      {"openmpi", {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {"jsrun", {"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"}},
      {"mvapich", {"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"}},
      {"flux", {"FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_JOB_NNODES"}},
      {"pmi", {"PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK"}},
      {"slurm", {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_NODEID"}},
      {"tf_config", {}},
      {"vertex", {}},
      {"sagemaker", {"SM_CURRENT_HOST"}},
      {"k8s", {"JOB_COMPLETION_INDEX"}},
  };
  Environment decoys{{"OMPI_UNIVERSE_SIZE", "64"},
                     {"PMIX_RANK", "9"},
                     {"SLURM_LAUNCH_NODE_IPADDR", "192.0.2.9"},
                     {"TF_CONFIG", "{}"},
                     {"CLUSTER_SPEC", "{\"cluster\": {}}"},
                     {"OMPI_COMM_WORLD_NODE_RANK", "7"}};
  if (launcher != "vertex" && launcher != "sagemaker" && launcher != "k8s") {
    decoys["CLUSTER_SPEC"] = random.below(2) == 0 ? "not JSON" : "{\"cluster\": {\"workerpool0\": [\"x:1\", \"y:1\"]}}";
    if (launcher != "tf_config") {
      decoys["TF_CONFIG"] = random.below(2) == 0 ? "[" : "{\"cluster\": {\"worker\": [\"x:1\"]}}";
    }
  }
  bool later = false;
  for (const auto& [name, variables] : order) {
    for (const char* variable : variables) {
      if (later && random.below(2) == 0) {
        decoys[variable] = text(20 + random.below(9));  // no generated job is that large
      }
    }
    later = later || name == launcher;
  }
  return decoys;
}

void check_fact(const std::optional<int>& field, int truth, bool guess, bool required) {
  CHECK((field.has_value() || !required));
  CHECK((!field || guess || *field == truth));
}

void check_truth(const ProcessIdentity& who, const Launcher& launcher, const Job& job, const Rank& rank) {
  const bool required = launcher.complete || job.world_size() == 1;
  CHECK(who.launcher == launcher.name);
  CHECK(who.rank == rank.rank);
  CHECK(who.world_size == job.world_size());
  check_fact(who.local_rank, rank.local_rank, who.is_provisional("local_rank"), required);
  check_fact(who.local_world_size, job.local_size(rank), who.is_provisional("local_world_size"), required);
  check_fact(who.node_rank, rank.node, who.is_provisional("node_rank"), required);
  check_fact(who.node_count, job.node_count(), who.is_provisional("node_count"), required);
  CHECK(who.attempt == (launcher.name == std::string("slurm") ? 1 : who.job ? 2 : 0));
  CHECK(who.job.value_or("") == (who.elastic                             ? "run"
                                 : launcher.name == std::string("slurm") ? "SLURM_JOB_ID.SLURM_STEP_ID=17.3"
                                                                         : ""));
}

}  // namespace

TEST_CASE(
    "the ranks of a generated job have distinct, true identities and one address of the store, for every source") {
  Random random(20240607);
  for (const Launcher& launcher : launchers()) {
    CAPTURE(launcher.name);
    for (int round = 0; round < 60; ++round) {
      const Job job = job_for(launcher, random, "h");
      std::set<int> ranks;
      std::set<std::pair<int, int>> places;
      std::set<std::string> masters;
      for (const Rank& rank : job.ranks) {
        const ProcessIdentity who = identity::process_identity(launcher.environment(job, rank));
        check_truth(who, launcher, job, rank);
        ranks.insert(who.rank);
        places.insert({who.node_rank.value_or(-rank.node - 1), who.local_rank.value_or(-rank.local_rank - 1)});
        masters.insert(*who.master_addr + ":" + text(*who.master_port));
      }
      CHECK(ranks.size() == job.ranks.size());
      CHECK(*ranks.rbegin() == job.world_size() - 1);
      const bool guesses_nodes = launcher.name == std::string("openmpi");
      CHECK((guesses_nodes || places.size() == job.ranks.size()));
      CHECK(masters.size() == 1);
      CHECK((job.one_node() || masters.begin()->substr(0, 3) == job.hosts.front() + ":"));
    }
  }
}

TEST_CASE("what other launchers left behind changes nothing") {
  Random random(7);
  for (const Launcher& launcher : launchers()) {
    CAPTURE(launcher.name);
    for (int round = 0; round < 60; ++round) {
      const Job job = job_for(launcher, random, "h");
      const Rank& rank = job.ranks[static_cast<std::size_t>(random.below(job.world_size()))];
      Environment environment = launcher.environment(job, rank);
      ProcessIdentity plain = identity::process_identity(environment);
      for (const auto& [variable, value] : decoys_after(launcher.name, random)) {
        environment.emplace(variable, value);  // what the launcher itself sets stays
      }
      ProcessIdentity decoyed = identity::process_identity(environment);
      plain.ignored.clear();
      decoyed.ignored.clear();
      CHECK(decoyed == plain);
    }
  }
}

TEST_CASE("a rank that lost a variable of its launcher's never is alone without a warning") {
  Random random(11);
  for (const Launcher& launcher : launchers()) {
    CAPTURE(launcher.name);
    for (int round = 0; round < 60; ++round) {
      Job job = job_for(launcher, random, "h");
      while (job.world_size() == 1)
        job = job_for(launcher, random, "h");
      const Rank& rank = job.ranks[static_cast<std::size_t>(random.below(job.world_size()))];
      const Environment whole = launcher.environment(job, rank);
      for (const auto& [variable, value] : whole) {
        CAPTURE(variable);
        Environment half = whole;
        half.erase(variable);
        const bool was_all = half.empty();  // TF_CONFIG and CLUSTER_SPEC
        try {
          const ProcessIdentity who = identity::process_identity(half);
          CHECK((was_all || who.launcher != "single" || !who.warnings.empty()));
        } catch (const identity::IdentityError& error) {
          CHECK(error.what() != std::string());
        }
      }
    }
  }
}

TEST_CASE("other names of the hosts change nothing but the master's address") {
  for (const Launcher& launcher : launchers()) {
    CAPTURE(launcher.name);
    for (unsigned seed = 0; seed < 20; ++seed) {
      Random one(seed);
      Random other(seed);
      const Job job = job_for(launcher, one, "h");
      const Job renamed = job_for(launcher, other, "gpu-node-a.example.org");
      for (std::size_t i = 0; i < job.ranks.size(); ++i) {
        ProcessIdentity before = identity::process_identity(launcher.environment(job, job.ranks[i]));
        ProcessIdentity after = identity::process_identity(launcher.environment(renamed, renamed.ranks[i]));
        CHECK((before.master_addr != after.master_addr || before.master_addr == "127.0.0.1"));
        before.master_addr = after.master_addr;
        CHECK(before == after);
      }
    }
  }
}
