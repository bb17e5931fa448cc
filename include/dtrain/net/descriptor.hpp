#pragma once
/// @file
/// The owner of a file descriptor, under the name that sockets use.

#include "dtrain/async/descriptor.hpp"

namespace DTRAIN_NAMESPACE::net {

using async::Descriptor;

}  // namespace DTRAIN_NAMESPACE::net
