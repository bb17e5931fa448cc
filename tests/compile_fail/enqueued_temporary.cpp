// The vector would be freed before the collective, which runs in w.wait(), reads it.
// expect: dtrain: this temporary ends before the collective that is enqueued on the stream reads it: give it a name
// one error
#include <span>
#include <vector>

#include "dtrain/dtrain.hpp"

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

void exchange(const dtrain::ProcessGroup<Policy>& group, std::vector<float>& output) {
  const std::vector<float> named(8);
#ifdef DTRAIN_COMPILE_FAIL
  const auto work = group.all_reduce(std::vector<float>(8), output, group.stream());
#else
  const auto work = group.all_reduce(named, output, group.stream());
  group.send(std::span(named), 1, group.stream());
  group.send(std::vector<float>(8), 1);
  group.all_gather(dtrain::buffer_view(std::span(output)), output, group.stream());
#endif
  work.wait();
}
