// Checkpoints with a ShardedOptimizer on devices: resumed on other numbers of ranks, and on the host, to the bit.

#include "dtrain/ddp/sharded/sharded_checkpoint.hpp"
#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "support/temporary_directory.hpp"
#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_checkpoint_test {

using namespace sharded_model;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
namespace optimizers = dtrain::optimizers;

template <class T, class Policy>
using ModelOf = std::conditional_t<std::is_same_v<Policy, HostPolicy>, HostModel<T>, Model<T>>;

template <class T>
Weights<T> weights_of(const HostModel<T>& model) {
  return model.values;
}
template <class T>
Weights<T> weights_of(const Model<T>& model) {
  return model.weights();
}

constexpr int saved_step = 3;

/// Trains from the beginning to `end`, or from the checkpoint on. All ranks have the same gradients, so that numbers
/// of ranks that are powers of two give the same averages. @returns rank 0's weights at the end
template <class T, class Policy>
Weights<T> trained(int ranks, const std::string& path, const ShardedOptions& stage, bool saves,
                   bool in_background = false) {
  Weights<T> end;
  run_well<Policy>(ranks, [&](const dtrain::ProcessGroup<Policy>& group) {
    ModelOf<T, Policy> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = ranks == 1 ? 3000U : 2000U}};
    ShardedOptimizer optimizer{ddp, optimizers::AdamW{.rate = 0.01F}, stage};
    const auto state = dtrain::parameter_values(ddp.parameters());
    int step = 0;
    if (!saves) {
      CHECK(dtrain::load_checkpoint(group, path, state, optimizer));
      CHECK(optimizer.steps() == saved_step);
      step = saved_step;
    }
    for (; step < saved_step + 3; ++step) {
      dtrain::PendingCheckpoint pending;
      if (saves && step == saved_step) {
        if (in_background)
          pending = dtrain::save_checkpoint_async(group, path, state, optimizer);
        else
          dtrain::save_checkpoint(group, path, state, optimizer);
      }
      ddp.backward(model.backward(step, 0), optimizer);
      pending.wait();
    }
    if (group.rank() == 0) end = weights_of(model);
    group.barrier();
  });
  return end;
}

template <class T>
void expect_resumed() {
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/checkpoint";
  const Weights<T> expected = trained<T, NcclPolicy>(2, path, {}, true);
  CHECK(equal_bits(trained<T, NcclPolicy>(1, path, {.stage = 2}, false), expected));
  CHECK(equal_bits(trained<T, NcclPolicy>(2, path, {}, false), expected));
  CHECK(equal_bits(trained<T, HostPolicy>(1, path, {}, false), expected));
  CHECK(equal_bits(trained<T, NcclPolicy>(2, path, {.stage = 2}, true, true), expected));
  CHECK(equal_bits(trained<T, HostPolicy>(2, path, {}, false), expected));
  CHECK(equal_bits(trained<T, HostPolicy>(1, path, {}, true), expected));
  CHECK(equal_bits(trained<T, NcclPolicy>(2, path, {}, false), expected));
}

TEST_CASE("a training on devices goes on to the bit on other numbers of ranks, on the host, and from the host") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  expect_resumed<float>();
  expect_resumed<bfloat16>();
}

}  // namespace cuda_sharded_checkpoint_test
