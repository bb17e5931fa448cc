// Slurm's counts of tasks from anywhere: the number at a node is what writing the list out gives, or it is refused.

#include "dtrain/identity/environment/slurm_step.hpp"

#include "fuzz/fuzz.hpp"

namespace identity = dtrain::identity;

namespace {

/// The first byte is the node, the rest the list.
int tasks(const std::string& list, int node) {
  return identity::slurm_tasks_on_node("SLURM_STEP_TASKS_PER_NODE", list, node);
}

bool is_refused(const std::string& list, int node) {
  try {
    static_cast<void>(tasks(list, node));
    return false;
  } catch (const identity::IdentityError& error) {
    fuzz::require(error.reason() == identity::IdentityErrc::bad_tasks_per_node, "the only error is bad-tasks-per-node");
    fuzz::require_sentence(error.what());
    return true;
  }
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  return {std::string(1, '\0') + "2(x3),1",
          "\x03"
          "2(x3),1",
          "\x04"
          "2(x3),1",
          "\x01"
          "1",
          "2,,1",
          "\x02"
          "2(x2147483647),3(x9)"};
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) {
    return 0;
  }
  const int node = data[0];
  const std::string list(fuzz::text_of(data + 1, size - 1));
  if (is_refused(list, node)) {
    fuzz::require(is_refused(list, node + 1), "where a node is beyond the list, or the list is none, so is the next");
    return 0;
  }
  const int found = tasks(list, node);
  fuzz::require(found >= 1, "every node of a step has a task");
  fuzz::require(tasks("7," + list, node + 1) == found, "a node in front moves the others by one");
  fuzz::require(tasks(list + ",5(x2)", node) == found, "nodes behind change nothing");
  fuzz::require(tasks("4(x300)," + list, node + 300) == found, "a repeated count stands for that many nodes");
  return 0;
}
