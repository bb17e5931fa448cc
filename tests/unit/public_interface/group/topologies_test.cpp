#include "unit/public_interface/prelude.hpp"

namespace {

using dtrain::backend::SharedMemory;
using dtrain::launch::PerProcess;
namespace topology = dtrain::topology;

/// A few parameters, whose gradients depend on their values and on the rank, in memory of the backend's.
struct SineModel : front_test::BindingModel {
  SineModel() : BindingModel({1, 1000, 17, 4097}) {
    for (std::vector<float>& value : values)
      std::fill(value.begin(), value.end(), 0.5F);
  }

  void backward(int rank, dtrain::Ready ready) {
    write_gradients(*this, ready, [&](std::size_t i, std::size_t k) {
      return std::sin(values[i][k] * static_cast<float>(rank + 1) + static_cast<float>(k));
    });
  }
};

struct NoHook {};

/// The parameters after ten steps; checked to be the same bits on every rank. @param saved bytes by a wire type
template <class Topology, class Backend = SharedMemory, class Hook = NoHook>
std::vector<float> train(int ranks, const std::vector<std::string>& hosts = {}, std::uint64_t saved = 0) {
  using Policy = dtrain::Policy<PerProcess, Backend, Topology>;
  support::CountedNetworks::instance().clear();
  std::vector<std::vector<float>> ends(static_cast<std::size_t>(ranks));
  const auto failures = support::run_groups<Policy>(
      ranks,
      [&](const dtrain::ProcessGroup<Policy>& group) {
        SineModel model;
        const dtrain::DdpOptions options{.bucket_bytes = 4096, .deterministic = std::is_same_v<Backend, SharedMemory>};
        auto ddp = [&] {
          if constexpr (std::is_same_v<Hook, NoHook>) {
            return dtrain::DistributedDataParallel(model, group, options);
          } else {
            return dtrain::DistributedDataParallel(model, group, options, Hook());
          }
        }();
        for (int step = 0; step < 10; ++step) {
          ddp.backward([&](dtrain::Ready ready) { model.backward(group.rank(), ready); });
          descend(model, 0.1F);
        }
        const dtrain::CompressedTraffic wire = ddp.statistics().wire;
        CHECK(wire.bytes - wire.bytes_sent == saved);
        CHECK((ddp.summary().find(", on the wire ") != std::string::npos) == (saved != 0));
        ends[static_cast<std::size_t>(group.rank())] = joined(model.values);
      },
      std::chrono::seconds(30), hosts);
  expect_well(failures);
  for (const std::vector<float>& end : ends) {
    CHECK(end.size() == ends[0].size());
    CHECK(std::memcmp(end.data(), ends[0].data(), ends[0].size() * sizeof(float)) == 0);
  }
  return ends[0];
}

template <class Topology, class Backend = SharedMemory>
void check_training(int ranks, const std::vector<std::string>& hosts = {}) {
  const std::vector<float> first = train<Topology, Backend>(ranks, hosts);
  CHECK(first == train<Topology, Backend>(ranks, hosts));
  CHECK(largest_difference(first, train<topology::Flat>(ranks)) < 1e-5);
}

}  // namespace

TEST_CASE(
    "training along a ring, a tree and through servers gives the same bits twice, and those of Flat within 1e-5") {
  check_training<topology::Ring>(3);
  check_training<topology::Tree>(4);
  check_training<topology::ParameterServer<2>>(3);
}

TEST_CASE("training on two nodes of two, and on uneven ones, gives the same bits twice, and Flat's within 1e-5") {
  using Nodes = topology::Hierarchical<SharedMemory>;
  check_training<Nodes, support::StoreBackend>(4, {"a", "a", "b", "b"});
  check_training<Nodes, support::StoreBackend>(4, {"a", "a", "b", "c"});
}

TEST_CASE(
    "16 bits between hosts of a rank each are Flat with hooks::Cast, to the bit, and counted with what they save") {
  std::uint64_t elements = 0;  // in whole cache lines
  for (const std::uint64_t size : {1U, 1000U, 17U, 4097U})
    elements += (size + 15) / 16 * 16;
  using Bf16 = topology::Hierarchical<SharedMemory, dtrain::wire::Bf16>;
  using F16 = topology::Hierarchical<SharedMemory, dtrain::wire::F16>;
  CHECK(train<Bf16, support::CountingBackend>(2, {"a", "b"}, 10 * 2 * elements) ==
        train<topology::Flat, SharedMemory, dtrain::hooks::Cast<dtrain::bfloat16>>(2));
  CHECK(train<F16, support::CountingBackend>(2, {"a", "b"}, 10 * 2 * elements) ==
        train<topology::Flat, SharedMemory, dtrain::hooks::Cast<dtrain::float16>>(2));
}

namespace {

/// The sums of two ranks' values by a group's calls, with a cast or without, and with a stream or without.
template <class Topology, class Backend>
void check_group(bool casts) {
  using Policy = dtrain::Policy<PerProcess, Backend, Topology>;
  static constexpr float value = 1.0F + 0x1p-20F;
  support::CountedNetworks::instance().clear();
  const auto body = [casts](const dtrain::ProcessGroup<Policy>& group) {
    const auto sum_of = [&](auto reduce) {
      std::vector<float> values(100, value);
      reduce(values);
      CHECK(values == std::vector<float>(100, values[0]));
      return values[0];
    };
    CHECK(sum_of([&](auto& values) { group.all_reduce(values); }) == (casts ? 2 : 2 * value));
    CHECK(sum_of([&](auto& values) { group.all_reduce_without_cast(values); }) == 2 * value);
    CHECK(sum_of([&](auto& values) { group.all_reduce_without_cast(values, dtrain::ReduceOp::average); }) == value);
    CHECK(sum_of([&](auto& values) {
            group.all_reduce_without_cast(values, dtrain::ReduceOp::max, group.stream()).wait();
          }) == value);
    CHECK(sum_of([&](auto& values) {
            group.all_reduce_without_cast(values, dtrain::ReduceOp::average, group.stream()).wait();
          }) == value);
  };
  run_well<Policy>(2, body, std::chrono::seconds(30), {"a", "b"});
}

}  // namespace

TEST_CASE("a group's all_reduce_without_cast rounds nothing; with Flat it is all_reduce") {
  check_group<topology::Hierarchical<SharedMemory, dtrain::wire::Bf16>, support::CountingBackend>(true);
  check_group<topology::Hierarchical<SharedMemory, dtrain::wire::F16>, support::CountingBackend>(true);
  check_group<topology::Flat, support::CountingBackend>(false);
}

namespace {

/// 34 steps with a measured plan on two nodes of two ranks, whose gradients 16 bits have exactly.
template <class Wire, class... Hook>
void check_measured(std::size_t variants, Hook... hook) {
  using Policy = dtrain::Policy<PerProcess, support::CountingBackend, topology::Hierarchical<SharedMemory, Wire>>;
  constexpr int ranks = 4;
  constexpr int steps = 34;
  support::CountedNetworks::instance().clear();
  std::vector<std::vector<float>> weights(ranks);
  std::vector<std::vector<std::size_t>> used(ranks);
  run_well<Policy>(ranks,
                   [&](const dtrain::ProcessGroup<Policy>& group) {
                     const auto rank = static_cast<std::size_t>(group.rank());
                     front_test::BindingModel model({64, 1000, 17, 300, 5});
                     const dtrain::DdpOptions options{
                         .bucket_bytes = 2048, .first_bucket_bytes = 256, .plan = dtrain::PlanChoice::measured()};
                     dtrain::DistributedDataParallel ddp{model, group, options, Hook(hook)...};
                     for (int step = 0; step < steps; ++step) {
                       ddp.backward([&](dtrain::Ready ready) {
                         fill_gradients(model, ready, static_cast<float>(step % 5 + 4 * group.rank()));
                       });
                       for (std::size_t i = 0; i < model.list.size(); ++i)
                         CHECK(model.holds(i, static_cast<float>(step % 5 + 6)));
                       descend(model, 0.1F);
                       used[rank].push_back(dtrain::ddp::DriverAccess::of(ddp).reducer->planner()->variant());
                     }
                     CHECK(dtrain::ddp::DriverAccess::of(ddp).reducer->planner()->is_settled());
                     weights[rank] = joined(model.values);
                   },
                   std::chrono::seconds(60), {"a", "a", "b", "b"});
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    CHECK(weights[rank] == weights[0]);
    CHECK(used[rank] == used[0]);
    REQUIRE(used[rank].size() == steps);
    for (std::size_t step = 5; step <= 2 + 2 * variants; ++step)
      CHECK(used[rank][step - 2] == (step - 3) / 2);  // after the step before
  }
}

}  // namespace

TEST_CASE("a measured plan tries each way of Hierarchical, and ends with one of them, the same on all ranks") {
  check_measured<dtrain::wire::Same>(2);
  check_measured<dtrain::wire::Bf16>(3);
  check_measured<dtrain::wire::Bf16>(3, dtrain::hooks::Cast<dtrain::bfloat16>());
}
