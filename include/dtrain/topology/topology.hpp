#pragma once
/// @file
/// The concept Topology: the paths that a reduction takes over a communicator.

#include <concepts>
#include <string_view>

#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/reduce_op.hpp"

/// A topology is an algorithm written on a communicator's abilities; it has no state of its own. Which abilities it
/// needs it says twice: `works_on<C>` for concepts, and `require<C>()`, a static_assert with a literal sentence
/// ("dtrain: topology::Ring needs a backend with send and recv ..."), for whoever puts a policy together.
namespace DTRAIN_NAMESPACE::topology {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A name for messages and summaries.
template <class T>
concept HasName = requires {
  { T::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// `works_on<C>`: whether communicator type C has the abilities it needs; `require<C>()` compiles only where it does.
template <class T>
concept SaysWhatItNeeds = requires {
  { T::template works_on<void> } -> std::convertible_to<bool>;
};

template <class T>
concept Topology = HasName<T> && SaysWhatItNeeds<T>;

/// `all_reduce(communicator, input, output, op, stream)`: the contract of backend::CanAllReduce, along its own paths.
template <class T, class C>
concept CanAllReduceOn = backend::HasRanks<C> && requires(C& communicator, ConstBufferView input, BufferView output,
                                                          ReduceOp op, typename C::Stream stream) {
  T::template require<C>();
  { T::all_reduce(communicator, input, output, op, stream) } -> std::same_as<void>;
};

/// T can be used with communicator type C.
template <class T, class C>
concept WorksOn = Topology<T> && T::template works_on<C> && CanAllReduceOn<T, C>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::topology
