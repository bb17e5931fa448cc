#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

#include <functional>
#include <iterator>
#include <numeric>

namespace {

using Order = std::vector<std::size_t>;

/// No element is zero, and no two of a gradient are the same.
std::vector<float> values_of(const CudaTrainingRank& rank, std::size_t i, int step) {
  std::vector<float> values(rank.size(i));
  std::iota(values.begin(), values.end(), static_cast<float>(1 + 100 * static_cast<int>(i) + step));
  return values;
}

void backward(CudaTrainingRank& rank, Step& step, int number) {
  for (std::size_t i = rank.count(); i-- > 0;) {
    const std::vector<float> values = values_of(rank, i, number);
    if (!values.empty()) {
      check(cudaMemcpyAsync(rank.parameters[i].gradient.data, values.data(), values.size() * sizeof(float),
                            cudaMemcpyHostToDevice, rank.stream().native()),
            "cudaMemcpyAsync");
    }
    step.ready(i, rank.stream().handle());
  }
}

bool holds(const CudaTrainingRank& rank, int step) {
  bool right = rank.wait();
  for (std::size_t i = 0; i < rank.count(); ++i) {
    right =
        right && support::on_host<float>(rank.parameters[i].gradient.data, rank.size(i)) == values_of(rank, i, step);
  }
  return right;
}

/// Of the arena.
std::size_t elements_that_are_not_zero(const CudaTrainingRank& rank, std::size_t a_bound_parameter) {
  const dtrain::ddp::BucketPlan& plan = rank.reducer->plan();
  const std::byte* const arena = rank.parameters[a_bound_parameter].gradient.data - plan.offset_of[a_bound_parameter];
  const std::vector<float> all = support::on_host<float>(arena, plan.arena_bytes / sizeof(float));
  return static_cast<std::size_t>(std::count_if(all.begin(), all.end(), [](float each) { return each != 0.0F; }));
}

/// A step of one rank, after which its buckets are planned again in `order`, and one more step.
struct Rebuild {
  Order sizes;
  Order order;
  std::function<bool(std::size_t)> binds;
  bool is_device_full = false;

  /// @returns bytes that the rebuild copied to the host, of an arena of `arena_bytes`
  std::size_t expect_contents() {
    REQUIRE(support::enough_devices(1));
    std::vector<dtrain::Parameter>* parameters = nullptr;
    Order moved;
    CudaTrainingRank::Wanted wanted{.sizes = sizes};
    wanted.options.bucket_bytes = 0;
    wanted.parts.rebuild = {[this](const Order&) { return order; },
                            [&](std::size_t i, const dtrain::TensorView& view) {
                              (*parameters)[i].gradient = view;
                              moved.push_back(i);
                            }};
    CudaTrainingRank rank(std::make_shared<FakeJob>(1), 0, 1, wanted);
    parameters = &rank.parameters;
    Order bound;
    std::size_t bound_elements = 0;
    for (std::size_t i = 0; i < rank.count(); ++i) {
      if (binds(i)) {
        rank.parameters[i].gradient = rank.reducer->bind(i);
        bound.push_back(i);
        bound_elements += rank.size(i);
      }
    }
    const dtrain::ddp::BucketPlan before = rank.reducer->plan();
    const dtrain::stream::cuda::Stream other;  // whose work does not end before the rebuild: cudaFree would wait for it
    support::Gate gate;
    emulation::launch(other.ref().native(), [&gate] { gate.pass(); });
    Step first = rank.reducer->begin();
    backward(rank, first, 1);
    emulation::reset();
    if (is_device_full) {
      emulation::fail("cudaMallocAsync", 1, cudaErrorMemoryAllocation);
    }
    first.finish();
    const std::size_t bytes = emulation::bytes_to_host();
    CHECK(cudaGetLastError() == cudaSuccess);
    CHECK(cudaStreamQuery(other.ref().native()) == cudaErrorNotReady);
    gate.open();
    check(cudaStreamSynchronize(other.ref().native()), "cudaStreamSynchronize");
    static_cast<void>(cudaGetLastError());  // the query's
    emulation::reset();
    const dtrain::ddp::BucketPlan& after = rank.reducer->plan();
    arena_bytes = after.arena_bytes;
    CHECK(after.offset_of != before.offset_of);
    Order wanted_moves;
    std::copy_if(bound.begin(), bound.end(), std::back_inserter(wanted_moves),
                 [&](std::size_t i) { return rank.size(i) != 0 && after.offset_of[i] != before.offset_of[i]; });
    CHECK(moved == wanted_moves);
    CHECK(holds(rank, 1));
    if (!bound.empty()) {
      CHECK(elements_that_are_not_zero(rank, bound.front()) == bound_elements);
    }
    Step second = rank.reducer->begin();
    backward(rank, second, 2);
    second.finish();
    CHECK(holds(rank, 2));
    return bytes;
  }

  std::size_t arena_bytes = 0;
};

bool all(std::size_t) {
  return true;
}
bool every_second(std::size_t i) {
  return i % 2 == 1;
}

const Order small{5, 1000, 17, 64, 0, 300, 33};
const Order large{5, 3'000'000, 17, 1'500'000, 64, 700'000};  // 21 MB, more than the device's buffer

}  // namespace

TEST_CASE("gradients that lie in the arena move on the device, whatever the order, and keep what they hold") {
  std::mt19937 random(7);
  for (const auto binds : {all, every_second}) {
    for (int round = 0; round < 10; ++round) {
      Order order{6, 5, 4, 3, 2, 1, 0};
      const Order foreseen = order;
      while (order == foreseen)
        std::shuffle(order.begin(), order.end(), random);
      CHECK(Rebuild{small, order, binds}.expect_contents() == 0);
    }
    CHECK(Rebuild{large, {1, 4, 0, 3, 5, 2}, binds}.expect_contents() == 0);
  }
}

TEST_CASE("where no gradient lies in the arena nothing is copied") {
  Rebuild rebuild{small, {0, 1, 2, 3, 4, 5, 6}, [](std::size_t) { return false; }};
  rebuild.is_device_full = true;
  CHECK(rebuild.expect_contents() == 0);
}

TEST_CASE("a device that has no memory left lets gradients move through the host's") {
  for (const auto binds : {all, every_second}) {
    for (const Order& sizes : {small, large}) {
      Order order(sizes.size());
      std::iota(order.begin(), order.end(), std::size_t{0});
      Rebuild rebuild{sizes, order, binds};
      rebuild.is_device_full = true;
      CHECK(rebuild.expect_contents() == rebuild.arena_bytes);
    }
  }
}

#endif  // DTRAIN_EMULATED_CUDA
