#pragma once
/// @file
/// Driver: what a DistributedDataParallel owns besides its group.

#include <memory>
#include <optional>
#include <vector>

#include "dtrain/core/version.hpp"
#include "dtrain/ddp/parameter.hpp"
#include "dtrain/ddp/reduction/accumulation.hpp"
#include "dtrain/ddp/reduction/reducer.hpp"
#include "dtrain/group/gradient_binding_registry.hpp"

namespace DTRAIN_NAMESPACE::ddp {

/// Steps point into it, so it does not move with its wrapper. The reducer is destroyed before its stream.
/// @tparam Backend of the group's channels
template <class Backend>
struct Driver {
  template <class Group>
  explicit Driver(const Group& group) : stream(group.open_stream()) {}

  typename Backend::StreamOwner stream;
  std::vector<Parameter> parameters;  ///< as the model had them at the construction
  std::unique_ptr<group::GradientBinding> gradient_binding;
  std::unique_ptr<Reducer<typename Backend::Communicator>> reducer;
  std::optional<Accumulation> accumulation;
  int no_sync_depth = 0;  ///< number of live NoSync objects
  const char* why_nothing_is_hidden = nullptr;
};

}  // namespace DTRAIN_NAMESPACE::ddp
