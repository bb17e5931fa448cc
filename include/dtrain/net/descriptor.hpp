#pragma once
/// @file
/// net::Descriptor: alias of async::Descriptor for sockets.

#include "dtrain/async/descriptor.hpp"

namespace DTRAIN_NAMESPACE::net {

using async::Descriptor;

}  // namespace DTRAIN_NAMESPACE::net
