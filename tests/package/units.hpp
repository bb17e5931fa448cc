#pragma once
// What the files of the program share. Included after dtrain, so that what dtrain is may differ between them.

#include <cstddef>
#include <vector>

/// One model for both files.
struct UnitModel {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

/// Of types that a program passes from file to file: a part of dtrain that is switched on in one of them changes none.
/// Static, for each file to have its own.
static inline std::vector<std::size_t> sizes() {
  using Policy = dtrain::Policy<dtrain::launch::PerNode, dtrain::backend::SharedMemory, dtrain::topology::Flat>;
  return {sizeof(dtrain::Error),
          sizeof(dtrain::TensorView),
          sizeof(dtrain::Parameter),
          sizeof(dtrain::Ready),
          sizeof(dtrain::Step),
          sizeof(dtrain::DdpOptions),
          sizeof(dtrain::BufferView),
          sizeof(dtrain::ProcessGroup<Policy>),
          sizeof(dtrain::DistributedDataParallel<UnitModel, Policy>)};
}

std::vector<std::size_t> sizes_in_other_unit();
void throw_in_other_unit();
