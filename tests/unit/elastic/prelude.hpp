#pragma once
/// @file
/// The headers and names that most tests of elastic/ use.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/dtrain.hpp"
#include "support/captured_stderr.hpp"
#include "support/cutting_proxy.hpp"
#include "support/elastic_model.hpp"
#include "support/elastic_process.hpp"
#include "support/expect_error.hpp"
#include "support/gate.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"

using namespace std::chrono_literals;
using dtrain::elastic::ElasticWorker;
using rendezvous_test::FormationProcess;

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;
