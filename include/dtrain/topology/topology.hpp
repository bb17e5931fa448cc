#pragma once
/// @file
/// The concept Topology: the paths that a reduction takes, laid over a backend.

#include <concepts>
#include <string_view>

#include "dtrain/backend/backend.hpp"

/// A topology makes a backend of a backend: `T::Over<B>` opens channels whose all_reduce takes the topology's paths
/// over channels of B, and whose other operations are B's. What it needs of B it says twice: `works_on<B>` for
/// concepts, and `require<B>()`, a static_assert with a literal sentence ("dtrain: topology::Ring needs a backend with
/// ..."), for whoever puts a policy together. It has no state: everything lives in the communicators.
namespace DTRAIN_NAMESPACE::topology {

namespace detail {
template <template <class> class Over>
struct TakesBackend;
}  // namespace detail

// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A name for messages and summaries.
template <class T>
concept HasName = requires {
  { T::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// `works_on<B>`: whether backend B has what it needs, false for what is no backend.
template <class T>
concept SaysWhatItNeeds = requires {
  { T::template works_on<void> } -> std::convertible_to<bool>;
};

/// `Over<B>`: a type for every B, a Backend where it works on B.
template <class T>
concept LiesOverBackends = requires { typename detail::TakesBackend<T::template Over>; };

template <class T>
concept Topology = HasName<T> && SaysWhatItNeeds<T> && LiesOverBackends<T>;

/// T can be used with backend B.
template <class T, class B>
concept WorksOn = Topology<T> && backend::Backend<B> && T::template works_on<B> &&
                  backend::Backend<typename T::template Over<B>> && requires { T::template require<B>(); };
// clang-format on

/// A backend that only brings memory to another one, its carrier: the paths are laid over that.
template <class B>
concept HasCarrier = requires {
  typename B::template Over<typename B::Carrier>;
};

/// Does not compile where B, or what carries it, lacks what T needs: see Topology.
template <Topology T, class B>
constexpr void require() noexcept {
  if constexpr (HasCarrier<B>) {
    T::template require<typename B::Carrier>();
  } else {
    T::template require<B>();
  }
}

namespace detail {

/// Where the two do not fit, require() has said so in one sentence, and nothing is to be said about the rest.
template <class T, class B>
struct Channels {
  using Type = B;
};
template <Topology T, class B>
requires(!HasCarrier<B> && T::template works_on<B>) struct Channels<T, B> {
  using Type = typename T::template Over<B>;
};
template <Topology T, HasCarrier B>
requires(T::template works_on<typename B::Carrier>) struct Channels<T, B> {
  using Type = typename B::template Over<typename T::template Over<typename B::Carrier>>;
};

}  // namespace detail

/// The backend that a policy's channels are opened with.
template <class T, class B>
using Channels = typename detail::Channels<T, B>::Type;

}  // namespace DTRAIN_NAMESPACE::topology
