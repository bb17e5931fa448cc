#include "unit/launch/prelude.hpp"

namespace {

using Shares = std::vector<Cpus>;

/// Two NUMA nodes of four CPUs, two GPUs near each; the first two GPUs are near the second node.
struct TwoNodes : Machine {
  TwoNodes() {
    has_node(0, "0-3");
    has_node(1, "4-7");
    has_gpu("0000:0b:00.0", 1, "4-7", "NVIDIA H100", "GPU-aaaa-1");
    has_gpu("0000:1c:00.0", 1, "4-7", "NVIDIA H100", "GPU-aabb-2");
    has_gpu("0000:9d:00.0", 0, "0-3", "NVIDIA H100", "GPU-ccdd-3");
    has_gpu("0000:ae:00.0", 0, "0-3", "NVIDIA H100", "GPU-ccee-4");
  }
};

const Cpus eight{0, 1, 2, 3, 4, 5, 6, 7};
int two() {
  return 2;
}

Shares bound(
    const Machine& machine, int workers, const dtrain::identity::Environment& environment = {},
    const Cpus& cpus = eight, int (*visible_devices)() = [] { return 4; }) {
  return cpus_by_gpu(workers, cpus, dtrain::identity::Variables(environment), visible_devices, machine.files());
}

}  // namespace

TEST_CASE("workers run near their GPUs, and share the cores of a NUMA node out") {
  const TwoNodes machine;
  CHECK(bound(machine, 4) == Shares{{4, 5}, {6, 7}, {0, 1}, {2, 3}});
  CHECK(bound(machine, 1) == Shares{{4, 5, 6, 7}});
  CHECK(bound(machine, 3) == Shares{{4, 5}, {6, 7}, {0, 1, 2, 3}});
  CHECK(bound(machine, 5) == Shares{{4}, {5}, {0, 1}, {2, 3}, {6, 7}});  // the fifth shares the first GPU
}

TEST_CASE("workers have all cores of a NUMA node that are theirs to use if these do not suffice") {
  const TwoNodes machine;
  CHECK(bound(machine, 4, {}, {1, 2, 5}) == Shares{{5}, {5}, {1}, {2}});
}

TEST_CASE("GPUs are those of CUDA_VISIBLE_DEVICES, by number or by UUID, in its order") {
  const TwoNodes machine;
  CHECK(bound(machine, 2, {{"CUDA_VISIBLE_DEVICES", "2,0"}}, eight, two) == Shares{{0, 1, 2, 3}, {4, 5, 6, 7}});
  CHECK(bound(machine, 2, {{"CUDA_VISIBLE_DEVICES", "GPU-ccee,GPU-aabb-2"}}, eight, two) ==
        Shares{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("no worker is bound where a GPU's number or NUMA node is not known") {
  const TwoNodes machine;
  for (const std::string list : {"4", "0,-1", "MIG-1234", "GPU-ff", "x", "0,,1"}) {
    CAPTURE(list);
    CHECK(bound(machine, 2, {{"CUDA_VISIBLE_DEVICES", list}}, eight, two).empty());
  }
  CHECK(bound(machine, 2, {{"SLURM_JOB_ID", "7"}, {"CUDA_VISIBLE_DEVICES", "0,1"}}, eight, two).empty());
  CHECK(bound(machine, 4, {}, {0, 1, 2, 3}).empty());  // no CPU near the first GPU is this process's
  CHECK(bound(Machine(), 2).empty());
  CHECK(bound(machine, 2, {}, eight, two).empty());  // two of the four are hidden

  const Machine virtual_machine;
  virtual_machine.has_gpu("0000:00:05.0", -1, "0-7");
  CHECK(bound(virtual_machine, 1, {}, eight, [] { return 1; }).empty());
}

TEST_CASE("GPUs of several models have the order of their addresses only if CUDA_DEVICE_ORDER says so") {
  const TwoNodes machine;
  machine.has_gpu("0000:cc:00.0", 0, "0-3", "NVIDIA L4");
  const auto five = [] { return 5; };
  CHECK(bound(machine, 1, {}, eight, five).empty());
  CHECK(bound(machine, 1, {{"CUDA_DEVICE_ORDER", "PCI_BUS_ID"}}, eight, five) == Shares{{4, 5, 6, 7}});
}
