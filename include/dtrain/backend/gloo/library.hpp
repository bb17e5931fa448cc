#pragma once
/// @file
/// Gloo's headers, and its exceptions as dtrain's.

#include <exception>
#include <new>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/sanitize.hpp"

#if DTRAIN_WITH_GLOO

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

/// Of Gloo only its TCP transport is used. What matters about it, read in its source (2022-05) and seen:
/// - A wait that times out closes every connection of its context; one that is aborted from another thread returns.
/// - It has a thread for each device, and what is thrown there ends the process: a message that is longer than the
///   memory it is received in, for one. Endpoint keeps that from happening.
/// - It writes with writev, which raises SIGPIPE where the peer is gone: dtrain calls it with signals blocked.
/// - Its descriptors are inherited by programs that a rank starts.
namespace DTRAIN_NAMESPACE::backend::gloo {

/// Calls `work`. @param doing gives the beginning of a sentence, where one is wanted
/// @throws Error (closed) for what Gloo throws: "doing: Gloo says ..."; Errors as they are
template <class Doing, class Work>
decltype(auto) calling_gloo(const Doing& doing, const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(Errc::closed, doing() + ": Gloo says: " + sanitize(error.what()));
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::gloo

#endif  // DTRAIN_WITH_GLOO
