#pragma once
/// @file
/// The headers that most tests of examples/ use.

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include "examples/gpt2/model.hpp"
#include "loss.hpp"
