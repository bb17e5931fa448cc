// A hook that DistributedDataParallel cannot give a bucket to.
// expect: dtrain: the hook needs reduce(bucket) for a dtrain::GradientBucket<Communicator>
// one error
#include <functional>

#include "compile_fail/host_model.hpp"

struct Hook {
#ifdef DTRAIN_COMPILE_FAIL
  void reduce(dtrain::BufferView) {}
#else
  template <class C>
  void reduce(const dtrain::GradientBucket<C>& bucket) {
    bucket.channel.enqueue(dtrain::backend::AllReduce{bucket.values, bucket.values, bucket.op}, bucket.stream);
  }
#endif
};

void wrap(Model& model, const dtrain::ProcessGroup<Policy>& group, Hook& hook) {
  dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(hook)};
}
