#pragma once
/// @file
/// The concept Topology: the algorithm of a reduction over a backend's channels.

#include <concepts>
#include <string_view>

#include "dtrain/backend/backend.hpp"

namespace DTRAIN_NAMESPACE::topology {

namespace detail {
template <template <class> class Rebind>
struct RebindTemplate;
}  // namespace detail

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A name for messages and summaries.
template <class T>
concept HasTopologyName = requires {
  { T::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// `supports_backend<B>`: whether backend B has what it needs, false for what is no backend.
template <class T>
concept HasRequirements = requires {
  { T::template supports_backend<void> } -> std::convertible_to<bool>;
};

/// `Rebind<B>`: a type for every B, a Backend where it supports B.
template <class T>
concept HasRebind = requires { typename detail::RebindTemplate<T::template Rebind>; };

/// A topology makes a backend of a backend: `T::Rebind<B>` opens channels whose all_reduce takes the topology's paths
/// over channels of B, and whose other operations are B's. It has no state: all state is in the communicators. Its
/// requirements on B are stated twice: `supports_backend<B>` for concepts, and `require<B>()` for the author of a
/// policy, a static_assert with a literal sentence ("dtrain: topology::Ring needs a backend with ...").
template <class T>
concept Topology = HasTopologyName<T> && HasRequirements<T> && HasRebind<T>;

/// T can be used with backend B.
template <class T, class B>
concept SupportsBackend = Topology<T> && backend::Backend<B> && T::template supports_backend<B> &&
                  backend::Backend<typename T::template Rebind<B>> && requires { T::template require<B>(); };
// clang-format on

/// A backend that only copies memory for another one, its inner backend: topologies are applied to that.
template <class B>
concept HasInnerBackend = requires {
  typename B::template Rebind<typename B::InnerBackend>;
};

/// Does not compile where B, or its inner backend, lacks an ability that T needs: see Topology.
template <Topology T, class B>
constexpr void require() noexcept {
  if constexpr (HasInnerBackend<B>) {
    T::template require<typename B::InnerBackend>();
  } else {
    T::template require<B>();
  }
}

namespace detail {

/// Where the two do not fit, require() has reported it in one sentence, and no other error is to follow.
template <class T, class B>
struct Channels {
  using Type = B;
};
template <Topology T, class B>
requires(!HasInnerBackend<B> && T::template supports_backend<B>) struct Channels<T, B> {
  using Type = typename T::template Rebind<B>;
};
template <Topology T, HasInnerBackend B>
requires(T::template supports_backend<typename B::InnerBackend>) struct Channels<T, B> {
  using Type = typename B::template Rebind<typename T::template Rebind<typename B::InnerBackend>>;
};

}  // namespace detail

/// The backend that a policy's channels are opened with.
template <class T, class B>
using Channels = typename detail::Channels<T, B>::Type;

}  // namespace DTRAIN_NAMESPACE::topology
