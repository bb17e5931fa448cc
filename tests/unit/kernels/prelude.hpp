#pragma once
/// @file
/// The headers and names that most tests of kernels/ use.

#include <doctest/doctest.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "dtrain/core/types/small_floats.hpp"
#include "dtrain/kernels/reduction.hpp"
#include "support/element_bytes.hpp"
#include "support/kernel_call.hpp"
#include "support/scalar_reduction.hpp"
#include "support/skip.hpp"

using namespace dtrain::kernels;
using dtrain::DType;
using dtrain::ReduceOp;
