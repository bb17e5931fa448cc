#pragma once
/// @file
/// topology::Flat: the backend's own choice of paths.

#include <string_view>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// Hands each reduction to the communicator as it is.
struct Flat {
  static constexpr std::string_view name() noexcept { return "Flat"; }

  template <class C>
  static constexpr bool works_on = backend::CanAllReduce<C>;

  template <class C>
  static constexpr void require() noexcept {
    static_assert(works_on<C>,
                  "dtrain: topology::Flat needs a backend whose communicator has all_reduce "
                  "(CanAllReduce in dtrain/backend/communicator.hpp)");
  }

  /// Collective; enqueued on `stream`. See backend::CanAllReduce.
  template <backend::CanAllReduce C>
  static void all_reduce(C& communicator, ConstBufferView input, BufferView output, ReduceOp op,
                         typename C::Stream stream) {
    communicator.all_reduce(input, output, op, stream);
  }
};

static_assert(Topology<Flat>);

}  // namespace DTRAIN_NAMESPACE::topology
