// Slurm's two compressed lists: hosts, and counts of tasks.

#include "unit/identity/prelude.hpp"

TEST_CASE("a host list's first host is the first one it stands for") {
  const std::vector<std::pair<std::string, std::string>> table{
      {"gpu-a", "gpu-a"},
      {"gpu-a,node001", "gpu-a"},
      {"node[001-003,007],gpu-a", "node001"},
      {"node[7,001-003]", "node7"},
      {"rack[0-1]node[0-2]", "rack0node0"},
      {"rack[1-1]-x[009-010]y,a", "rack1-x009y"},
      {"b,a", "b"},
      {"node[0099-0100]", "node0099"},
      {"n[9-10]", "n9"},
      {"n[99999999999999999999999-99999999999999999999999]", "n99999999999999999999999"},
      {"a.example.org,b_c", "a.example.org"},
  };
  for (const auto& [text, first] : table) {
    const std::string& list = text;  // what CAPTURE can name
    CAPTURE(list);
    CHECK(identity::first_slurm_host("SLURM_STEP_NODELIST", list) == first);
  }
}

TEST_CASE("a host list stands for its hosts, in its order") {
  const std::vector<std::pair<std::string, std::vector<std::string>>> table{
      {"gpu-a,node001", {"gpu-a", "node001"}},
      {"b,a[8-10]", {"b", "a8", "a9", "a10"}},
      {"r[0-1]n[09-10],a", {"r0n09", "r0n10", "r1n09", "r1n10", "a"}},
      {"n[099-101,7]x", {"n099x", "n100x", "n101x", "n7x"}},
      {"n[99999999999999999999-100000000000000000000]", {"n99999999999999999999", "n100000000000000000000"}},
  };
  for (const auto& [text, hosts] : table) {
    const std::string& list = text;  // what CAPTURE can name
    CAPTURE(list);
    CHECK(identity::slurm_hosts("SLURM_STEP_NODELIST", list) == hosts);
  }
  CHECK(identity::slurm_hosts("L", "n[1-65536]").size() == 65536);
}

TEST_CASE("a list of more hosts than are read, or with too long a name, is refused at once") {
  for (const std::string& list :
       {std::string("n[1-99999999999]"), std::string("n[1-65536],a"), std::string("r[1-300]n[1-300]"),
        "n[1-2]" + std::string(300, 'x'), "n[1-" + std::string(300, '0') + "2]", "n[" + std::string(300, '0') + "1]"}) {
    CAPTURE(list);
    const Refusal refused = refusal([&] { static_cast<void>(identity::slurm_hosts("SLURM_STEP_NODELIST", list)); });
    CHECK(refused.code == "bad-hostlist");
    CHECK(identity::first_slurm_host("SLURM_STEP_NODELIST", list) != "");
  }
}

TEST_CASE("all of a host list is checked, and what is none is refused with the list in the sentence") {
  for (const char* list :
       {"",          ",",          "a,",        ",a",       "a,,b",       "node[1",    "node1]",      "node[]",
        "node[3-1]", "node[10-9]", "node[1-]",  "node[-1]", "node[1,]",   "node[a-b]", "node[1-2-3]", "node[[1]]",
        "a b",       "a,b;c",      "node[1]x]", "a/b",      "a,node[2-1]"}) {
    CAPTURE(list);
    const Refusal refused =
        refusal([&] { static_cast<void>(identity::first_slurm_host("SLURM_STEP_NODELIST", list)); });
    CHECK(refused.code == "bad-hostlist");
    CHECK_CONTAINS(refused.sentence, "SLURM_STEP_NODELIST='" + std::string(list) + "'", "set MASTER_ADDR");
  }
}

TEST_CASE("the counts of tasks give the number on each node") {
  const std::vector<std::tuple<std::string, int, int>> table{
      {"2(x3),1", 0, 2},
      {"2(x3),1", 2, 2},
      {"2(x3),1", 3, 1},
      {"1", 0, 1},
      {"3,1(x2)", 0, 3},
      {"3,1(x2)", 1, 1},
      {"3,1(x2)", 2, 1},
      {"16(x1000),7", 1000, 7},
      {"2(x1),3", 1, 3},
      {"128(x9)", 8, 128},
      {"1(x2147483647),2(x5)", 7, 1},
  };
  for (const auto& [text, node, tasks] : table) {
    const std::string& list = text;  // what CAPTURE can name
    CAPTURE(list);
    CHECK(identity::slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", list, node) == tasks);
  }
}

TEST_CASE("a list of counts that is none, or ends before the node, is refused") {
  for (const char* list : {"", ",", "2,", ",2", "2(x3", "2x3", "2(3)", "2(x)", "2(x0)", "0", "0(x2)", "-1", "2(x-1)",
                           "2 ,1", "2(x3)4", "99999999999", "2(x3)(x2)", "a"}) {
    CAPTURE(list);
    const Refusal refused =
        refusal([&] { static_cast<void>(identity::slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", list, 0)); });
    CHECK(refused.code == "bad-tasks-per-node");
    CHECK_CONTAINS(refused.sentence, "SLURM_STEP_TASKS_PER_NODE='" + std::string(list) + "'");
  }
  const Refusal beyond =
      refusal([] { static_cast<void>(identity::slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", "2(x3)", 3)); });
  CHECK(beyond.code == "bad-tasks-per-node");
  CHECK_CONTAINS(beyond.sentence, "SLURM_NODEID='3'");
}
