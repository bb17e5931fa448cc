#include "dtrain/launch/per_node.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::Policy;
using dtrain::launch::PerNode;
using dtrain::launch::PerProcess;
using dtrain::topology::Flat;
using dtrain::topology::Hierarchical;
using dtrain::topology::Ring;
using dtrain::topology::Tree;

static_assert(std::is_same_v<Policy<PerNode, Staged<SharedMemory>>::ChannelBackend, Staged<SharedMemory>>);
static_assert(
    std::is_same_v<Policy<PerNode, Staged<SharedMemory>, Ring>::ChannelBackend, Staged<Ring::Rebind<SharedMemory>>>);

/// Several ranks of one process compute on one device.
class SharedDevices {
 public:
  SharedDevices() { ::setenv("DTRAIN_SHARE_DEVICES", "1", 1); }
  SharedDevices(const SharedDevices&) = delete;
  SharedDevices& operator=(const SharedDevices&) = delete;
  ~SharedDevices() { ::unsetenv("DTRAIN_SHARE_DEVICES"); }
};

/// Memory is there before the ranks meet and goes after they have parted: both would wait for the whole device.
template <class Topology>
void check_topology() {
  CAPTURE(std::string(Topology::name()));
  constexpr std::size_t count = 400'001;
  std::vector<dtrain::stream::cuda::DeviceBuffer> memory;
  for (int rank = 0; rank < 3; ++rank)
    memory.push_back(support::on_device(std::vector<float>(count, static_cast<float>(rank + 1))));
  const auto ends = run_groups<Policy<PerProcess, Staged<SharedMemory>, Topology>>(3, [&](const auto& group) {
    std::byte* const data = memory[static_cast<std::size_t>(group.rank())].data();
    const BufferView view{data, count, dtrain::DType::f32, group.stream().device()};
    group.all_reduce(view, ReduceOp::sum);
    CHECK(support::on_host<float>(data, count) == std::vector<float>(count, 6));
    group.broadcast(view, 2);
    group.barrier();
    CHECK(group.all_reduce(0.5 * group.rank(), ReduceOp::average) == 0.5);  // a number of the host's
    const auto part = group.split(group.rank() == 0 ? 0 : 1);
    part.all_reduce(view, ReduceOp::average);
    CHECK(support::on_host<float>(data, count) == std::vector<float>(count, 6));
    group.barrier();
  });
  CHECK(ends == std::vector<RankEnd>(3));
}

}  // namespace

TEST_CASE("a process group over staging works along every topology, which lies over the backend for host memory") {
  const SharedDevices shared;
  check_topology<Flat>();
  check_topology<Ring>();
  check_topology<Tree>();
  check_topology<Hierarchical<>>();
}

TEST_CASE("ranks of one device that were not asked to share it do not become a group, and both are named") {
  const dtrain::Error error =
      support::error_of([] { run_groups<Policy<PerProcess, Staged<SharedMemory>>>(2, [](const auto&) {}); });
  REQUIRE(error.code());
  CHECK(support::contains(error.what(), "ranks 0 and 1"));
  CHECK(support::contains(error.what(), "DTRAIN_SHARE_DEVICES=1"));
}
