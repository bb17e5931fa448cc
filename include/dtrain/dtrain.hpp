#pragma once
/// @file
/// All of dtrain: `#include <dtrain/dtrain.hpp>` needs nothing but a C++20 compiler.

#include "dtrain/core/buffer_view.hpp"
#include "dtrain/core/cause.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/device.hpp"
#include "dtrain/core/dtype.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/failure_latch.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/reduce_op.hpp"
#include "dtrain/core/sha256.hpp"
#include "dtrain/core/source_location.hpp"
#include "dtrain/core/stream_handle.hpp"
#include "dtrain/core/tensor_view.hpp"
#include "dtrain/core/version.hpp"
