#pragma once
/// @file
/// The concept Backend: the stateless type that a Policy names, which opens a group's channels. Determinism: its
/// promise for a reduction's bits.

#include <concepts>
#include <memory>
#include <optional>
#include <string_view>

#include "dtrain/backend/channel_context.hpp"
#include "dtrain/backend/communicator.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/identity/process_identity.hpp"
#include "dtrain/rendezvous/protocol/secret.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend {
// clang-format off

/// A name for messages and summaries.
/// @ingroup backends
template <class B>
concept HasBackendName = requires {
  { B::name() } noexcept -> std::convertible_to<std::string_view>;
};

/// Whether its communicators take buffers on that kind of device.
/// @ingroup backends
template <class B>
concept HasDeviceSupport = requires(DeviceKind kind) {
  { B::supports(kind) } noexcept -> std::same_as<bool>;
};

/// Whether its communicators reduce elements of that type.
/// @ingroup backends
template <class B>
concept HasDTypeSupport = requires(DType dtype) {
  { B::reduces(dtype) } noexcept -> std::same_as<bool>;
};

/// The stream that a group or a DDP instance runs its communication on: an owner with `ref()`.
/// @ingroup backends
template <class B>
concept HasCommunicationStream = requires { typename B::StreamOwner; } && requires(typename B::StreamOwner owner) {
  { owner.ref() } -> std::same_as<typename B::Communicator::Stream>;
};

/// Opens the channel that the context describes; channels never wait for each other. Collective, blocking.
/// @throws Error (unsupported) on every rank if the backend cannot connect all ranks
/// @ingroup backends
template <class B>
concept CanOpen = requires { typename B::Communicator; } && Communicator<typename B::Communicator> &&
                  requires(const ChannelContext& context, Deadline deadline) {
                    { B::open_blocking(context, deadline) } -> std::same_as<typename B::Communicator>;
                  };

/// Opens another channel of the same ranks from an open one, for less than open_blocking does. Collective, blocking.
/// Work that was enqueued on the open channel runs first; closing one channel leaves the other open.
/// @ingroup backends
template <class B>
concept CanDuplicate = CanOpen<B> &&
                       requires(typename B::Communicator& open, const ChannelContext& context, Deadline deadline) {
                         { B::duplicate_blocking(open, context, deadline) } -> std::same_as<typename B::Communicator>;
                       };

/// Set-up before the ranks of a job join: the backend may compare the identity with its own, and set the job's secret.
/// Collective, blocking. The result is an object that the job holds until its end; it may be null.
/// @ingroup backends
template <class B>
concept HasPreJoin = requires(const identity::ProcessIdentity& identity, std::optional<rendezvous::Secret>& secret,
                              Deadline deadline) {
  { B::pre_join_blocking(identity, secret, deadline) } -> std::same_as<std::shared_ptr<void>>;
};

/// Whether the library that runs lets a process join again: throws Error (usage) where it does not. For an elastic
/// job's worker, before its first attempt.
/// @ingroup backends
template <class B>
concept HasRejoinCheck = requires { B::require_rejoin(); };

/// The error of every later call of this process on the device of that rank, as CUDA's after an illegal address;
/// nullopt while the device works. Blocking: no. An elastic job's worker asks between two attempts.
/// @ingroup backends
template <class B>
concept HasDeviceError = requires(const identity::ProcessIdentity& identity) {
  { B::device_error(identity) } -> std::same_as<std::optional<Error>>;
};

// clang-format on

/// `B::joins_again`: whether a process may join again, as another rank, as those of an elastic job do; for a backend
/// without the member, whether it has no pre_join_blocking().
/// @ingroup backends
template <class B>
inline constexpr bool joins_again = !HasPreJoin<B>;
template <class B>
requires requires {
  { B::joins_again } -> std::convertible_to<bool>;
}
inline constexpr bool joins_again<B> = B::joins_again;

/// Reproducibility that a backend promises for the bits of a reduction of equal values on the same ranks.
/// @ingroup backends
enum class Determinism {
  none,        ///< no promise
  for_a_plan,  ///< equal on every rank, and in every run with equal buckets, node layout and number of ranks
  always,      ///< equal for all buckets, threads and timing
};

/// `B::determinism`; none for a backend without the member.
/// @ingroup backends
template <class B>
inline constexpr Determinism determinism_of = Determinism::none;
template <class B>
requires requires {
  { B::determinism } -> std::convertible_to<Determinism>;
}
inline constexpr Determinism determinism_of<B> = B::determinism;

/// `B::averages(dtype)`: whether ReduceOp::average gives the average for that dtype; true for a backend without
/// `averages`.
/// @ingroup backends
template <class B>
constexpr bool averages(DType dtype) noexcept {
  if constexpr (requires { B::averages(dtype); }) {
    return B::averages(dtype);
  } else {
    return true;
  }
}

// clang-format off
/// A backend type has no state: its communicators own everything.
/// @ingroup backends
template <class B>
concept Backend = HasBackendName<B> && HasDeviceSupport<B> && HasDTypeSupport<B> &&
                  CanOpen<B> && HasCommunicationStream<B>;
// clang-format on

/// A backend whose communicators enqueue on stream::host::StreamRef.
/// @ingroup backends
template <class B>
concept OnHostStreams = Backend<B> && std::same_as<typename B::Communicator::Stream, stream::host::StreamRef>;

}  // namespace DTRAIN_NAMESPACE::backend
