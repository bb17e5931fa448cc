#pragma once
/// @file
/// The concept OnHostStreams: backends whose operations are enqueued on host streams.

#include <concepts>

#include "dtrain/backend/backend.hpp"
#include "dtrain/stream/host/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::backend {

/// A backend whose communicators enqueue on stream::host::StreamRef.
template <class B>
concept OnHostStreams = Backend<B> && std::same_as<typename B::Communicator::Stream, stream::host::StreamRef>;

}  // namespace DTRAIN_NAMESPACE::backend
