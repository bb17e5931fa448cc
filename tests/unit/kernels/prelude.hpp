#pragma once
/// @file
/// The headers and names that most tests of kernels/ use.

#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "support/element_bytes.hpp"
#include "support/kernel_call.hpp"
#include "support/prelude.hpp"
#include "support/scalar_reduction.hpp"
#include "support/skip.hpp"

using namespace dtrain::kernels;
using dtrain::DType;
using dtrain::ReduceOp;
