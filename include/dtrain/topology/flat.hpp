#pragma once
/// @file
/// topology::Flat: the topology that uses the backend's own all-reduce. A program names it in its Policy.

#include <string_view>

#include "dtrain/backend/backend.hpp"
#include "dtrain/topology/topology.hpp"

namespace DTRAIN_NAMESPACE::topology {

/// The default: the backend's own algorithms. Flat rebinds a backend to itself.
/// @ingroup topologies
struct Flat {
  static constexpr std::string_view name() noexcept { return "Flat"; }

  template <class B>
  static constexpr bool supports_backend = backend::Backend<B>;

  template <class B>
  static constexpr void require() noexcept {
    static_assert(supports_backend<B>,
                  "dtrain: topology::Flat needs a backend, such as backend::SharedMemory "
                  "(contract: the concept backend::Backend, in dtrain/backend/backend.hpp)");
  }

  template <class B>
  using Rebind = B;
};

static_assert(Topology<Flat>);

}  // namespace DTRAIN_NAMESPACE::topology
