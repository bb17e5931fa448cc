#pragma once
/// @file
/// The concept Topology: maps a backend to one whose all_reduce runs another algorithm. Flat, the default: the
/// backend's own.

#include <concepts>
#include <string_view>

#include "dtrain/backend/backend.hpp"

namespace DTRAIN_NAMESPACE::topology {

namespace detail {
template <template <class> class Rebind>
struct RebindTemplate;
}  // namespace detail

// clang-format off

/// `name()`: for messages and summaries.
/// @ingroup topologies
template <class T>
concept HasTopologyName = requires {
  { T::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// `supports_backend<B>`: whether B has all operations that the topology needs; false if B is no backend.
/// @ingroup topologies
template <class T>
concept HasRequirements = requires {
  { T::template supports_backend<void> } -> std::convertible_to<bool>;
};

/// `Rebind<B>`: names a type for every B; this type is a Backend if the topology supports B.
/// @ingroup topologies
template <class T>
concept HasRebind = requires { typename detail::RebindTemplate<T::template Rebind>; };

/// A topology maps a backend to a backend. Channels of `T::Rebind<B>` run all_reduce by the topology's algorithm over
/// channels of B, and other operations by B. A topology has no state: all state is in the communicators.
/// A topology states its requirements on B twice: as `supports_backend<B>` for concepts, and as `require<B>()`, a
/// static_assert with a sentence for the author of a policy ("dtrain: topology::Ring needs a backend with ...").
/// @ingroup topologies
template <class T>
concept Topology = HasTopologyName<T> && HasRequirements<T> && HasRebind<T>;

/// Whether topology T can be used with backend B.
/// @ingroup topologies
template <class T, class B>
concept SupportsBackend = Topology<T> && backend::Backend<B> && T::template supports_backend<B> &&
                  backend::Backend<typename T::template Rebind<B>> && requires { T::template require<B>(); };
// clang-format on

/// A backend that copies memory and leaves the operations to its inner backend. Topologies rebind the inner backend.
/// @ingroup topologies
template <class B>
concept HasInnerBackend = requires {
  typename B::template Rebind<typename B::InnerBackend>;
};

/// Fails to compile if B, or its inner backend, lacks an operation that T needs: see Topology.
template <Topology T, class B>
constexpr void require() noexcept {
  if constexpr (HasInnerBackend<B>) {
    T::template require<typename B::InnerBackend>();
  } else {
    T::template require<B>();
  }
}

namespace detail {

/// The type is B itself if T does not support B: require() has reported the reason in one sentence, and no other
/// compile error should follow.
template <class T, class B>
struct ChannelBackend {
  using Type = B;
};
template <Topology T, class B>
requires(!HasInnerBackend<B> && T::template supports_backend<B>) struct ChannelBackend<T, B> {
  using Type = typename T::template Rebind<B>;
};
template <Topology T, HasInnerBackend B>
requires(T::template supports_backend<typename B::InnerBackend>) struct ChannelBackend<T, B> {
  using Type = typename B::template Rebind<typename T::template Rebind<typename B::InnerBackend>>;
};

}  // namespace detail

/// The backend that opens a policy's channels.
template <class T, class B>
using ChannelBackend = typename detail::ChannelBackend<T, B>::Type;

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
