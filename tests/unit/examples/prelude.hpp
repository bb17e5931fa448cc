#pragma once
/// @file
/// The headers that most tests of examples/ use.

#include "examples/gpt2/model.hpp"
#include "loss.hpp"
#include "support/prelude.hpp"
