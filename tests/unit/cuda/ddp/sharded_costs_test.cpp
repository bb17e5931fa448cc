// ctest: TIMEOUT 240
// What a step with a ShardedOptimizer on devices sends, by the emulation's counters.

#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "unit/cuda/ddp/device_model.hpp"
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace cuda_sharded_costs_test {

using dtrain::ShardedOptimizer;
using dtrain::zero::Gradients;
using dtrain::zero::States;
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
        const dtrain::DdpOptions options{.bucket_bytes = 3000, .reorder_gradients = false};
        const std::vector<std::size_t> sizes{5, 2049, 0, 1, 700, 17, 31, 4000};
        const auto n = static_cast<std::size_t>(ranks);
        {
          OnesModel<T> model(sizes);
          DistributedDataParallel ddp{model, group, options};
          const auto traffic = second_step(model, [&] { ddp.backward(model.pass()); });
          CHECK(traffic.all_reduced == bucket_bytes(ddp.plan()));
          CHECK(sent_in_ring(traffic, n) == (n - 1) * 2 * bucket_bytes(ddp.plan()));
          CHECK(traffic.other == 0);
        }
        const auto expect_equal = [&](const auto& stage) {
          OnesModel<T> model(sizes);
          DistributedDataParallel ddp{model, group, options};
          ShardedOptimizer optimizer{ddp, dtrain::optimizers::AdamW{}, stage};
          const auto traffic = second_step(model, [&] { ddp.backward(model.pass(), optimizer); });
          CHECK(sent_in_ring(traffic, n) == (n - 1) * 2 * bucket_bytes(ddp.plan()));
          CHECK(traffic.gathered == traffic.reduce_scattered);
          CHECK(traffic.gathered > 0);
          CHECK(traffic.all_reduced < ddp.plan().buckets.size() * n * 16 * sizeof(T));  // the rest of each bucket
          CHECK(traffic.other == 0);
        };
        expect_equal(States{});
        expect_equal(States{.ready_frees_value = true});
        expect_equal(Gradients{});
        expect_equal(Gradients{.ready_frees_value = true});
      },
      90s);
}

TEST_CASE("a sharded step sends 2 (n - 1) / n of the gradients' bytes from each rank, as an all-reduce does") {
  for (const int ranks : {2, 3}) {
    CAPTURE(ranks);
    expect_traffic_of_an_all_reduce<float>(ranks);
    expect_traffic_of_an_all_reduce<bfloat16>(ranks);
  }
}

}  // namespace cuda_sharded_costs_test

#endif  // DTRAIN_EMULATED_CUDA
