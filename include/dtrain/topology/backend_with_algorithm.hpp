#pragma once
/// @file
/// BackendWithAlgorithm: a backend whose communicators run a topology's all_reduce over their messages.

#include <concepts>

#include "dtrain/backend/backend.hpp"
#include "dtrain/backend/message_passing/operation_context.hpp"

namespace DTRAIN_NAMESPACE::topology {

namespace message_passing = backend::message_passing;

// clang-format off

/// A backend on host streams with send and recv, whose communicators have an endpoint for any all_reduce.
template <class B>
concept SelectsAllReduce =
    backend::OnHostStreams<B> && backend::CanSendRecv<typename B::Communicator> &&
    requires(const backend::ChannelContext& context, Deadline deadline,
             const message_passing::SelectedAllReduce<typename B::Communicator::Endpoint>& selected) {
      { B::open_blocking(context, deadline, selected) } -> std::same_as<typename B::Communicator>;
    };
// clang-format on

/// The type `Rebind<B>` of a topology with a member `template <Endpoint E> static Routine
/// all_reduce(OperationContext<E>&, const Buffers&)`. All operations but all_reduce are B's.
template <SelectsAllReduce B, class T>
struct BackendWithAlgorithm : B {
  using Communicator = typename B::Communicator;
  static constexpr backend::Determinism determinism = backend::Determinism::for_a_plan;

  /// Collective, blocking. See backend::CanOpen.
  static Communicator open_blocking(const backend::ChannelContext& context, Deadline deadline) {
    using Endpoint = typename Communicator::Endpoint;
    return B::open_blocking(context, deadline, {T::name(), &T::template all_reduce<Endpoint>});
  }
};

}  // namespace DTRAIN_NAMESPACE::topology
