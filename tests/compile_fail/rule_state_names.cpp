// A rule with two arrays of one name, which could not be told apart in a checkpoint.
// expect: dtrain: the names of a rule's State differ, have no dot, and none is empty or "master"
// one error
#include "compile_fail/host_model.hpp"

struct Rule {
  struct State {
    std::span<float> mean;
    std::span<float> variance;
#ifdef DTRAIN_COMPILE_FAIL
    static constexpr std::string_view names[] = {"mean", "mean"};
#else
    static constexpr std::string_view names[] = {"mean", "variance"};
#endif
  };
  void operator()(std::span<float>, std::span<const float>, const State&, const dtrain::StepInfo&) const {}
};

void shard(Model& model, const dtrain::ProcessGroup<Policy>& group) {
  dtrain::DistributedDataParallel ddp{model, group};
  dtrain::ShardedOptimizer optimizer{ddp, Rule{}};
}
