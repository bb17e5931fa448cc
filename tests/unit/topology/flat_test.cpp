#include <concepts>

#include "unit/topology/prelude.hpp"

namespace {

using archetype::BackendLacks;

/// A topology that needs what not every backend has.
struct SendRecvTopology {
  static constexpr std::string_view name() noexcept { return "SendRecvTopology"; }
  template <class B>
  static constexpr bool supports_backend = [] {
    if constexpr (dtrain::backend::Backend<B>) {
      return dtrain::backend::CanSendRecv<typename B::Communicator>;
    }
    return false;
  }();
  template <class B>
  static constexpr void require() noexcept {}
  template <class B>
  using Rebind = B;
};

struct Nameless {
  template <class B>
  [[maybe_unused]] static constexpr bool supports_backend = true;
  template <class B>
  using Rebind = B;
};

struct NeedsUnsaid {
  static constexpr std::string_view name() noexcept { return "NeedsUnsaid"; }
  template <class B>
  using Rebind = B;
};

struct OverNothing {
  static constexpr std::string_view name() noexcept { return "OverNothing"; }
  template <class B>
  [[maybe_unused]] static constexpr bool supports_backend = true;
};

TEST_CASE("a topology has a name, says what it needs and lies over backends") {
  CHECK(dtrain::topology::Topology<Flat>);
  CHECK(dtrain::topology::Topology<SendRecvTopology>);
  CHECK_FALSE(dtrain::topology::Topology<Nameless>);
  CHECK_FALSE(dtrain::topology::Topology<NeedsUnsaid>);
  CHECK_FALSE(dtrain::topology::Topology<OverNothing>);
  CHECK_FALSE(dtrain::topology::Topology<int>);
}

TEST_CASE("a topology works on a backend that has the abilities it needs, and on no other") {
  CHECK(dtrain::topology::SupportsBackend<Flat, archetype::Backend<>>);
  CHECK_FALSE(dtrain::topology::SupportsBackend<Flat, archetype::Backend<BackendLacks::opening>>);
  CHECK_FALSE(dtrain::topology::SupportsBackend<Flat, int>);
  CHECK(dtrain::topology::SupportsBackend<SendRecvTopology, archetype::Backend<>>);
  using Mute = archetype::Backend<BackendLacks::nothing, archetype::Communicator<CommunicatorLacks::recv>>;
  CHECK(dtrain::topology::SupportsBackend<Flat, Mute>);
  CHECK_FALSE(dtrain::topology::SupportsBackend<SendRecvTopology, Mute>);
}

TEST_CASE("Flat is the backend itself") {
  CHECK(std::same_as<dtrain::topology::ChannelBackend<Flat, archetype::Backend<>>, archetype::Backend<>>);
}

}  // namespace
