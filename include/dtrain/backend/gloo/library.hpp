#pragma once
/// @file
/// Gloo's headers, and the conversion of its exceptions to Error.

#include <exception>
#include <new>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/text/sanitize.hpp"

#if DTRAIN_WITH_GLOO

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

/// dtrain uses only Gloo's TCP transport. Its relevant behaviour, read in its source (2022-05) and observed:
/// - A wait that times out closes every connection of its context. A wait that another thread aborts returns.
/// - It has a thread for each device. An exception there ends the process, for example for a message longer than its
///   receive memory. Endpoint prevents that.
/// - It calls writev, which raises SIGPIPE if the peer has closed. Hence dtrain calls Gloo with signals blocked.
/// - Programs that a rank starts inherit its descriptors.
namespace DTRAIN_NAMESPACE::backend::gloo {

/// Calls `work`. @param doing returns the beginning of the error sentence; called after a failure only
/// @throws Error (closed) for Gloo's exceptions: "doing: Gloo says ..."; Error and std::bad_alloc unchanged
template <class Doing, class Work>
decltype(auto) calling_gloo(const Doing& doing, const Work& work) {
  try {
    return work();
  } catch (const Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    throw_error(Errc::closed, "{}: Gloo says: {}", {doing(), sanitize(error.what())});
  }
}

}  // namespace DTRAIN_NAMESPACE::backend::gloo

#endif  // DTRAIN_WITH_GLOO
