#pragma once
/// @file
/// The concept Backend: the type a Policy names, which opens the channels of a group.

#include <concepts>
#include <cstdint>
#include <string_view>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/types/device.hpp"
#include "dtrain/core/types/dtype.hpp"

namespace DTRAIN_NAMESPACE::backend {
// clang-format 14 tears requires-expressions apart.
// clang-format off

/// A name for messages and summaries.
template <class B>
concept HasBackendName = requires {
  { B::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// Whether buffers on that kind of device can be handed to its communicators.
template <class B>
concept HasDeviceSupport = requires(DeviceKind kind) {
  { B::supports(kind) } noexcept -> std::same_as<bool>;
};

/// Whether its communicators reduce elements of that type.
template <class B>
concept HasDTypeSupport = requires(DType dtype) {
  { B::reduces(dtype) } noexcept -> std::same_as<bool>;
};

/// The stream that a group or a DDP instance runs its communication on: an owner with `ref()`.
template <class B>
concept HasCommunicationStream = requires { typename B::StreamOwner; } && requires(typename B::StreamOwner owner) {
  { owner.ref() } -> std::same_as<typename B::Communicator::Stream>;
};

/// Collective, blocking. Opens the channel that the context describes; channels never wait for each other.
/// @throws Error (unsupported) on every rank where the ranks cannot reach each other by this backend.
template <class B>
concept CanOpen = requires { typename B::Communicator; } && Communicator<typename B::Communicator> &&
                  requires(const ChannelContext& context, Deadline deadline) {
                    { B::open_blocking(context, deadline) } -> std::same_as<typename B::Communicator>;
                  };

// clang-format on

/// What a backend promises of the bits that a reduction of the same values on the same ranks gives.
enum class Determinism {
  none,        ///< nothing
  for_a_plan,  ///< the same on every rank and in every run with the same buckets, node layout and number of ranks
  always,      ///< the same whatever the buckets, threads and timing besides
};

/// `B::determinism`; none for a backend without one.
template <class B>
inline constexpr Determinism determinism_of = Determinism::none;
template <class B>
requires requires {
  { B::determinism } -> std::convertible_to<Determinism>;
}
inline constexpr Determinism determinism_of<B> = B::determinism;

/// `B::averages(dtype)`: whether a reduction by ReduceOp::average gives the average of such elements; yes for a backend
/// without it.
template <class B>
constexpr bool averages(DType dtype) noexcept {
  if constexpr (requires { B::averages(dtype); }) {
    return B::averages(dtype);
  } else {
    return true;
  }
}

// clang-format off
/// Has no state of its own: everything lives in the communicators it opens.
template <class B>
concept Backend = HasBackendName<B> && HasDeviceSupport<B> && HasDTypeSupport<B> &&
                  CanOpen<B> && HasCommunicationStream<B>;
// clang-format on

}  // namespace DTRAIN_NAMESPACE::backend
