#pragma once
/// @file
/// The headers and names that most tests use, whatever their folder; each folder's prelude.hpp adds its own.

#include <doctest/doctest.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "support/combinations.hpp"
#include "support/contains.hpp"
#include "support/expect_error.hpp"
#include "support/on_threads.hpp"

using namespace std::chrono_literals;
