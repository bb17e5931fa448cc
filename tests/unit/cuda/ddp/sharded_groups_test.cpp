// ctest: TIMEOUT 240
// A sharded optimizer with groups of parameters on a device: the weights of the host's, launches, and captured steps.

#include "dtrain/libtorch/grouped_rule.hpp"
#include "unit/cuda/ddp/sharded_model.hpp"
#include "unit/cuda/prelude.hpp"

namespace cuda_sharded_groups_test {

using namespace sharded_model;
using dtrain::ShardedOptimizer;
using dtrain::ShardedOptions;
using dtrain::ddp::ParameterElements;
using dtrain::libtorch::GroupedRule;
using dtrain::libtorch::ParameterUpdates;
namespace optimizers = dtrain::optimizers;

using Updates = std::shared_ptr<std::vector<ParameterUpdates>>;

/// Two groups; parameter 7 is in none; parameters 4 and 5 have no gradient in some steps.
Updates updates_in_groups() {
  const auto updates = std::make_shared<std::vector<ParameterUpdates>>(sizes().size());
  for (std::size_t i = 0; i < updates->size(); ++i) {
    if (i != 7) (*updates)[i].group = i < 3 ? 0 : i % 2;
  }
  return updates;
}

void begin(std::vector<ParameterUpdates>& updates, int step) {
  updates[4].has_gradient = step % 2 == 0;
  updates[5].has_gradient = step != 1;
}

void end(std::vector<ParameterUpdates>& updates) {
  for (ParameterUpdates& parameter : updates)
    parameter.count += parameter.is_updated() ? 1 : 0;
}

template <class Rule>
std::vector<Rule> two(Rule first) {
  Rule second = first;
  second.rate *= 3;
  second.weight_decay = 0.25F;
  return {first, second};
}

/// Rank 0's weights after each step. @param steps number of them
template <class M, class Policy, class Rule>
auto train(int ranks, int steps, const Rule& rule, const ShardedOptions& stage) {
  std::vector<std::remove_cvref_t<decltype(M().weights())>> all;
  run_well<Policy>(
      ranks,
      [&](const dtrain::ProcessGroup<Policy>& group) {
        M model;
        DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
        const Updates updates = updates_in_groups();
        ShardedOptimizer optimizer{ddp, GroupedRule<Rule>{two(rule), updates}, stage};
        for (int step = 0; step < steps; ++step) {
          begin(*updates, step);
          ddp.backward(model.backward(step, group.rank()), optimizer);
          end(*updates);
          if (group.rank() == 0) all.push_back(model.weights());
        }
        group.barrier();
      },
      200s);
  return all;
}

/// Groups with work of their own, which dtrain's kernel does not replace.
struct EnqueuingGroups : GroupedRule<optimizers::AdamW> {
  void enqueue(const BufferView&, const BufferView&, std::span<const BufferView>, const dtrain::DeviceStepInfo&,
               StreamRef) const {}
};
static_assert(dtrain::ddp::detail::HasFormula<GroupedRule<optimizers::AdamW>>);
static_assert(dtrain::ddp::DeviceRule<EnqueuingGroups> && !dtrain::ddp::detail::HasFormula<EnqueuingGroups>);

template <class T>
class OnHost : public HostModel<T> {
 public:
  const Weights<T>& weights() const { return this->values; }
};

template <class T, class Rule>
void expect_bits(int ranks, const Rule& rule) {
  CAPTURE(ranks);
  const auto expected = train<OnHost<T>, HostPolicy>(ranks, 6, rule, {});
  const auto equal = [&](const std::vector<Weights<T>>& seen) {
    return std::equal(seen.begin(), seen.end(), expected.begin(), expected.end(), equal_bits<T>);
  };
  CHECK(expected.size() == 6);
  CHECK_FALSE(equal_bits(expected[0], expected[1]));
  CHECK(equal(train<Model<T>, NcclPolicy>(ranks, 6, rule, {})));
  CHECK(equal(train<Model<T>, NcclPolicy>(ranks, 6, rule, {.stage = 2})));
}

TEST_CASE("groups of parameters on devices have the weights of the host's groups, to the bit") {
  for (const int ranks : {1, 2}) {
    if (!support::enough_devices(ranks)) {
      dtrain_test::skip("there is no device for each rank");
      continue;
    }
    expect_bits<float>(ranks, optimizers::AdamW{.rate = 0.01F});
    expect_bits<bfloat16>(ranks, optimizers::Adam{.rate = 0.01F});
    expect_bits<float>(ranks, optimizers::Momentum{.rate = 0.1F, .nesterov = true});
  }
}

/// Keeps whose elements each call got, in place of an update.
struct RecordingRule {
  struct State {
    std::span<float> first;
  };
  void enqueue(const BufferView& weights, const BufferView& gradients, std::span<const BufferView> states,
               const dtrain::DeviceStepInfo& info, StreamRef) const {
    CHECK(states.size() == 1);
    CHECK(gradients.count == weights.count);
    std::size_t count = 0;
    for (const ParameterElements& elements : info.parameters)
      count += elements.count;
    CHECK(count == weights.count);
    seen->insert(seen->end(), info.parameters.begin(), info.parameters.end());
  }
  std::shared_ptr<std::vector<ParameterElements>> seen = std::make_shared<std::vector<ParameterElements>>();
};

TEST_CASE("a rule learns whose elements the arrays have") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  std::array<std::vector<ParameterElements>, 2> seen;
  run_well<NcclPolicy>(2, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    const RecordingRule rule;
    ShardedOptimizer optimizer{ddp, rule};
    ddp.backward(model.backward(0, group.rank()), optimizer);
    optimizer.wait();
    seen[static_cast<std::size_t>(group.rank())] = *rule.seen;
    group.barrier();
  });
  const std::vector<std::size_t> all = sizes();
  std::vector<std::size_t> counts(all.size());
  for (const auto& of_rank : seen) {
    for (const ParameterElements& elements : of_rank)
      counts[elements.parameter] += elements.count;
  }
  // The rest of a bucket, fewer elements than ranks, is on both.
  std::size_t twice = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    CAPTURE(i);
    CHECK(counts[i] >= all[i]);
    CHECK(counts[i] <= 2 * all[i]);
    twice += counts[i] - all[i];
  }
  CHECK(twice < 64);
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("parameters of a bucket whose updates have equal numbers are one launch, wherever they lie") {
  const EmulatedDevices emulated(1);
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group};  // one bucket
    const Updates updates = std::make_shared<std::vector<ParameterUpdates>>(sizes().size());
    for (ParameterUpdates& parameter : *updates)
      parameter.group = 0;
    ShardedOptimizer optimizer{ddp, GroupedRule<optimizers::AdamW>{two(optimizers::AdamW{}), updates}};
    const auto launches_of_step = [&] {
      const int before = emulation::kernel_launches();
      ddp.backward(model.backward(0, 0), optimizer);
      optimizer.wait();
      end(*updates);
      return emulation::kernel_launches() - before;
    };
    launches_of_step();  // the plan of the first step is another
    const int launches = launches_of_step();
    (*updates)[4].group = 1;
    CHECK(launches_of_step() == launches + 1);
    for (std::size_t i = 0; i < updates->size(); ++i)
      (*updates)[i].group = i % 2;
    CHECK(launches_of_step() == launches + 1);
    (*updates)[4].count += 7;
    CHECK(launches_of_step() == launches + 2);
    (*updates)[4].group = ParameterUpdates::no_group;  // a copy
    CHECK(launches_of_step() == launches + 2);
  });
}
#endif

TEST_CASE("a captured step with groups is refused") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  run_well<NcclPolicy>(1, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
    Model<float> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000}};
    const Updates updates = updates_in_groups();
    ShardedOptimizer optimizer{ddp,
                               GroupedRule<optimizers::Momentum>{two(optimizers::Momentum{.rate = 0.1F}), updates}};
    ddp.backward(model.backward(0, 0), optimizer);
    model.block();
    CHECK_ERROR(captured_step(model, ddp, optimizer), Errc::unsupported, "groups of parameters was captured");
    CHECK_FALSE(model.stream(0).is_capturing());  // later tests of this process
  });
}

}  // namespace cuda_sharded_groups_test
