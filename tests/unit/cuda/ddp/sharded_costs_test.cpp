// ctest: TIMEOUT 240
// What a step with a ShardedOptimizer on devices sends and launches, and the memory that it takes and frees, by the
// emulation's counters.

#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "support/sanitized.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace cuda_sharded_costs_test {

using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using NcclGroup = dtrain::ProcessGroup<NcclPolicy>;

/// Parameters of these sizes, with gradients of ones.
template <class T>
struct OnesModel : DeviceModel {
  explicit OnesModel(const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      add<T>(("p" + std::to_string(i)).c_str(), sizes[i], T(0.5F));
      prepare(i, std::vector<T>(sizes[i], T(1.0F)));
    }
  }

  /// The last gradient first, as most backward passes do. Waits for nothing.
  auto pass() const {
    return [this](Ready ready) {
      for (std::size_t i = list_.size(); i-- > 0;)
        compute(i, ready);
    };
  }
};

/// Bytes that a ring sends from each rank, times the number of ranks: an all-reduce is a reduce-scatter and an
/// all-gather of the same buffer, and each of these sends (ranks - 1) / ranks of the buffer.
std::size_t sent_in_ring(const emulation::Traffic& traffic, std::size_t ranks) {
  return (ranks - 1) * (2 * traffic.all_reduced + traffic.reduce_scattered + traffic.gathered);
}

emulation::Traffic operator-(const emulation::Traffic& a, const emulation::Traffic& b) {
  return {a.all_reduced - b.all_reduced, a.reduce_scattered - b.reduce_scattered, a.gathered - b.gathered,
          a.other - b.other};
}

/// Bytes of a wrapper's buckets, padding to 64 bytes included.
std::size_t bucket_bytes(const dtrain::ddp::BucketPlan& plan) {
  std::size_t sum = 0;
  for (const auto& bucket : plan.buckets)
    sum += bucket.bytes;
  return sum;
}

template <class T>
void expect_traffic_of_an_all_reduce(int ranks) {
  const EmulatedDevices emulated(ranks);
  std::barrier together(ranks);
  run_well<NcclPolicy>(
      ranks,
      [&](const NcclGroup& group) {
        /// What the second of two equal steps sends; the first one connects the ranks.
        const auto second_step = [&](const OnesModel<T>& model, auto step) {
          emulation::Traffic before;
          for (int n = 0; n < 2; ++n) {
            model.block();
            together.arrive_and_wait();
            before = emulation::traffic(group.rank());
            step();
          }
          model.block();
          return emulation::traffic(group.rank()) - before;
        };
        /// Kernels of a step of all ranks.
        const auto launches_of = [&](const OnesModel<T>& model, auto step) {
          together.arrive_and_wait();
          const int before = emulation::kernel_launches();
          together.arrive_and_wait();
          step();
          model.block();
          together.arrive_and_wait();
          const int launches = emulation::kernel_launches() - before;
          together.arrive_and_wait();
          return launches;
        };
        int reducing = 0;
        const dtrain::DdpOptions options{.bucket_bytes = 3000, .reorder_gradients = false};
        const std::vector<std::size_t> sizes{5, 2049, 0, 1, 700, 17, 31, 4000};
        const auto n = static_cast<std::size_t>(ranks);
        {
          OnesModel<T> model(sizes);
          DistributedDataParallel ddp{model, group, options};
          const auto traffic = second_step(model, [&] { ddp.backward(model.pass()); });
          reducing = launches_of(model, [&] { ddp.backward(model.pass()); });
          CHECK(traffic.all_reduced == bucket_bytes(ddp.plan()));
          CHECK(sent_in_ring(traffic, n) == (n - 1) * 2 * bucket_bytes(ddp.plan()));
          CHECK(traffic.other == 0);
        }
        const auto expect_equal = [&](const ShardedOptions& stage) {
          OnesModel<T> model(sizes);
          DistributedDataParallel ddp{model, group, options};
          ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}, stage};
          const auto traffic = second_step(model, [&] { ddp.backward(model.pass(), optimizer); });
          // Storing is in place of copying gradients back. Stage 2 packs each gradient alone. A part may have no
          // elements.
          const int updates = ranks * static_cast<int>(ddp.plan().buckets.size());
          const int packs = stage.divides_gradients() ? ranks * static_cast<int>(sizes.size()) - updates : 0;
          CHECK(launches_of(model, [&] { ddp.backward(model.pass(), optimizer); }) <= reducing + updates + packs);
          CHECK(sent_in_ring(traffic, n) == (n - 1) * 2 * bucket_bytes(ddp.plan()));
          CHECK(traffic.gathered == traffic.reduce_scattered);
          CHECK(traffic.gathered > 0);
          CHECK(traffic.all_reduced < ddp.plan().buckets.size() * n * 16 * sizeof(T));  // the rest of each bucket
          CHECK(traffic.other == 0);
        };
        expect_equal({});
        expect_equal({.early_update = true});
        expect_equal({.stage = 2});
        expect_equal({.stage = 2, .early_update = true});
      },
      90s);
}

TEST_CASE(
    "a sharded step sends as much as an all-reduce, with one kernel more for a bucket, in stage 2 for a gradient") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    expect_traffic_of_an_all_reduce<float>(ranks);
    expect_traffic_of_an_all_reduce<bfloat16>(ranks);
  }
}

/// Parameters of two types in turn, each in a bucket of its own, with a part on each rank.
struct TwoTypes : OnesModel<float> {
  explicit TwoTypes(std::size_t pairs) : OnesModel<float>({}) {
    for (std::size_t i = 0; i < 2 * pairs; ++i) {
      const std::string name = "p" + std::to_string(i);
      i % 2 == 0 ? add_ones<float>(name) : add_ones<bfloat16>(name);
    }
  }

 private:
  template <class T>
  void add_ones(const std::string& name) {
    constexpr std::size_t elements = 64;
    add<T>(name.c_str(), elements, T(0.5F));
    prepare(list_.size() - 1, std::vector<T>(elements, T(1.0F)));
  }
};

/// What a step of one of two ranks launches.
struct Launches {
  int kernels;
  int by_nccl;
  std::size_t bytes_to_host;
};
template <class Step>
Launches launches_of(std::barrier<>& together, const DeviceModel& model, Step step) {
  constexpr int ranks = 2;
  together.arrive_and_wait();
  const Launches before{emulation::kernel_launches(), emulation::nccl_launches(), emulation::bytes_to_host()};
  together.arrive_and_wait();
  step();
  model.block();
  together.arrive_and_wait();
  const Launches after{emulation::kernel_launches(), emulation::nccl_launches(), emulation::bytes_to_host()};
  together.arrive_and_wait();
  return {(after.kernels - before.kernels) / ranks, (after.by_nccl - before.by_nccl) / ranks,
          (after.bytes_to_host - before.bytes_to_host) / ranks};
}

/// Of a step that only updates, of one that measures, and of one that clips.
struct Costs {
  Launches plain;
  Launches measured;
  Launches clipped;
};

/// For so many buckets of each of two types.
Costs launches_for(int pairs, const ShardedOptions& stage) {
  const EmulatedDevices emulated(2);
  std::barrier together(2);
  Costs found{};
  run_well<NcclPolicy>(2, [&](const NcclGroup& group) {
    TwoTypes model(static_cast<std::size_t>(pairs));
    DistributedDataParallel ddp{
        model, group, {.bucket_bytes = 64, .first_bucket_bytes = 64, .reorder_gradients = false}};
    CHECK(ddp.plan().buckets.size() == 2 * static_cast<std::size_t>(pairs));
    ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}, stage};
    const auto launches_with = [&](const dtrain::StepOptions& options) {
      return launches_of(together, model, [&] { ddp.backward(model.pass(), optimizer, options); });
    };
    const Costs costs{launches_with({}), launches_with({.measure_norm = true}), launches_with({.clip_norm = 1.0})};
    if (group.rank() == 0) found = costs;
  });
  return found;
}

TEST_CASE(
    "a sharded step stores all buckets of a type together, a clipped one also updates and gathers them so, and one "
    "that "
    "measures only adds to a plain one") {
  constexpr int pairs = 5;
  constexpr int buckets = 2 * pairs;
  constexpr int types = 2;
  constexpr int norm = buckets + 1;  // sums of squares of each bucket, and the norm; clipping adds the factor
  const auto [plain, measured, clipped] = launches_for(pairs, {});
  CHECK(plain.kernels == buckets + buckets + types);  // packing, updates, stores
  CHECK(plain.by_nccl == buckets + buckets);
  CHECK(plain.bytes_to_host == 0);
  CHECK(measured.kernels == plain.kernels + norm);
  CHECK(measured.by_nccl == plain.by_nccl + 1);                               // the all-reduce of sums
  CHECK(measured.bytes_to_host == sizeof(dtrain::stream::cuda::DeviceNorm));  // beside the kernel's own writes
  CHECK(clipped.kernels == buckets + norm + 1 + types + types);
  CHECK(clipped.by_nccl == buckets + 1 + 1);  // reduce-scatters, the all-reduce of sums, the gathers
  CHECK(clipped.bytes_to_host == measured.bytes_to_host);
  const Costs at_once = launches_for(pairs, {.early_update = true});
  CHECK(at_once.plain.kernels == buckets + buckets + buckets);
  CHECK(at_once.plain.by_nccl == buckets + buckets);
  CHECK(at_once.measured.kernels == at_once.plain.kernels + norm);
  CHECK(at_once.measured.by_nccl == at_once.plain.by_nccl + 1);
  CHECK(at_once.clipped.kernels == clipped.kernels);
  CHECK(at_once.clipped.by_nccl == clipped.by_nccl);
  const Costs divided = launches_for(pairs, {.stage = 2});  // whose buckets share memory
  CHECK(divided.plain.kernels == buckets + buckets + buckets);
  CHECK(divided.measured.kernels == divided.plain.kernels + norm);
  CHECK(divided.measured.by_nccl == divided.plain.by_nccl + 1);
  CHECK(divided.measured.bytes_to_host == measured.bytes_to_host);
  CHECK(divided.clipped.kernels == buckets + norm + 1 + types + buckets);
  CHECK(divided.clipped.by_nccl == buckets + 1 + buckets);
}

TEST_CASE("stores of more parameters than a launch takes are two launches") {
  constexpr int pairs = 129;
  static_assert(pairs > max_scale_entries);
  const Launches plain = launches_for(pairs, {}).plain;
  CHECK(plain.kernels == 2 * pairs + 2 * pairs + 2 * 2);
}

constexpr std::size_t layers = 64;
constexpr std::size_t layer_elements = 16'400;  // no multiple of what is divided by: 16 elements for each of 3 ranks
constexpr double elements = layers * layer_elements;
static_assert(elements > 1e6);

/// Device memory of all ranks after a step, without the models' own, in bytes of a parameter on each rank.
template <class T, class Step>
double measured(int ranks, Step step) {
  const EmulatedDevices emulated(ranks);
  std::barrier together(ranks);
  std::atomic<double> result{0};
  run_well<NcclPolicy>(
      ranks,
      [&](const NcclGroup& group) {
        OnesModel<T> model(std::vector<std::size_t>(layers, layer_elements));
        together.arrive_and_wait();
        const std::size_t before = emulation::allocated_device_bytes();
        together.arrive_and_wait();
        DistributedDataParallel ddp{model, group, {.bucket_bytes = layer_elements * sizeof(T)}};
        step(ddp, model, [&] {
          model.block();
          together.arrive_and_wait();
          const auto bytes = static_cast<double>(emulation::allocated_device_bytes() - before);
          result = bytes / ranks / elements;
          together.arrive_and_wait();
        });
      },
      200s);
  return result;
}

/// A program's own rule, which needs its elements in f32 arrays.
struct OwnSgd {
  struct State {
    std::span<float> unused;
  };
  void enqueue(const BufferView& weights, const BufferView& gradients, std::span<const BufferView>,
               const dtrain::DeviceStepInfo& info, StreamRef stream) const {
    dtrain::ddp::enqueue_rule(dtrain::optimizers::Sgd{}, weights, gradients, {}, info, stream);
  }
};

template <class T, class Rule = dtrain::optimizers::AdamW>
double measured_with(int ranks, const ShardedOptions& stage, const Rule& rule = {}) {
  return measured<T>(ranks, [&](auto& ddp, const auto& model, const auto& measure) {
    ShardedOptimizer optimizer{ddp, rule, stage};
    ddp.backward(model.pass(), optimizer);
    measure();
  });
}

/// The formulas of the guide's GPU page, without the weights: the arena and the shares of state and gradients, for f32
/// and for 16-bit models.
template <class T>
void expect_formulas(int ranks) {
  CAPTURE(ranks);
  const double gradient = sizeof(T);
  const double state = (sizeof(T) == 2 ? 12.0 : 8.0) / ranks;  // two moments, and f32 weights
  const auto near = [](double found, double expected) {
    CAPTURE(found);
    CAPTURE(expected);
    CHECK(std::abs(found / expected - 1) < 0.02);
  };
  near(measured<T>(ranks,
                   [](auto& ddp, const auto& model, const auto& measure) {
                     ddp.backward(model.pass());
                     measure();
                   }),
       gradient);
  near(measured_with<T>(ranks, {}), gradient + state);
  near(measured_with<T>(ranks, {.stage = 2}), gradient * 2 / double{layers} + gradient / ranks + state);
  const double own_state = (sizeof(T) == 2 ? 8.0 : 4.0) / ranks;                // one array, and f32 weights
  const double arrays = (sizeof(T) == 2 ? 4.0 : 8.0) / ranks / double{layers};  // f32, of the largest part
  near(measured_with<T>(ranks, {}, OwnSgd{}), gradient + own_state + arrays);
}

TEST_CASE("what dtrain takes of a device's memory is within 2% of the guide's formulas, for a million parameters") {
  if (support::is_sanitized) return dtrain_test::skip("it takes minutes under a sanitizer");
  expect_formulas<float>(2);
  expect_formulas<bfloat16>(2);
}

TEST_CASE("ranks whose step fails between two buckets name the first cause, and free what they have on devices") {
  for (const bool divides_gradients : {false, true}) {
    CAPTURE(divides_gradients);
    const EmulatedDevices emulated(2);
    const std::size_t before = emulation::allocated_device_bytes();
    const auto train = [](const NcclGroup& group, const ShardedOptions& stage) {
      OnesModel<float> model(std::vector<std::size_t>(8, 1000));
      DistributedDataParallel ddp{model, group, {.bucket_bytes = 4000, .reorder_gradients = false}};
      ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}, stage};
      for (int step = 0; step < 100; ++step) {
        if (step == 2 && group.rank() == 1) {
          optimizer.wait();
          emulation::fault_in_operation(emulation::Fault::async_error, 6, 1);
        }
        ddp.backward(model.pass(), optimizer);
        if (step >= 2) optimizer.wait();
      }
    };
    const std::vector<RankEnd> ends = run_groups<NcclPolicy>(
        2, [&](const NcclGroup& group) { divides_gradients ? train(group, {.stage = 2}) : train(group, {}); });
    for (const RankEnd& end : ends)
      CHECK_CONTAINS(end.text, "on rank 1, device 1: ncclRemoteError");
    CHECK(emulation::allocated_device_bytes() == before);
  }
}

}  // namespace cuda_sharded_costs_test

#endif  // DTRAIN_EMULATED_CUDA
