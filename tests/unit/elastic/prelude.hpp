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

/// Calls `function(job, group)` as the only worker of a job. @returns the text of what train() threw
template <class F>
std::string thrown_alone(F function) {
  dtrain::rendezvous::FormationOptions sizes;
  FormationProcess launcher(sizes);
  const auto process = support::elastic_process(launcher.address().port, 0, 3);
  ElasticWorker worker(process);
  const dtrain::GroupOptions options;
  const dtrain::Elastic<Policy> job(worker, options);
  try {
    job.train([&](Group group) { function(job, group); });
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}
