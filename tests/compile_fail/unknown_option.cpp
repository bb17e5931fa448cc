// An option that does not exist. Where the options are written with their type, the compiler names it in one line; as
// `{.bucket_byte = 1}` alone they fit no constructor, and the compiler lists all constructors.
// expect: bucket_byte
// one error
#include "compile_fail/host_model.hpp"

void wrap(Model& model, const dtrain::ProcessGroup<Policy>& group) {
#ifdef DTRAIN_COMPILE_FAIL
  dtrain::DistributedDataParallel ddp{model, group, dtrain::DdpOptions{.bucket_byte = 1}};
#else
  dtrain::DistributedDataParallel ddp{model, group, dtrain::DdpOptions{.bucket_bytes = 1}};
#endif
}
