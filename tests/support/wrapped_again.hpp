#pragma once
/// @file
/// wrap_again_100_times(): an elastic job of two workers, which are threads of this process, so that a sanitizer sees
/// both. One worker's models live through 100 attempts, each of which ends with an error of the other worker.

#include <atomic>
#include <chrono>
#include <exception>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/elastic.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/elastic_process.hpp"
#include "support/process_holdings.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"

namespace support {

using WrappedAgainPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using WrappedAgainJob = dtrain::Elastic<WrappedAgainPolicy>;
using WrappedAgainGroup = dtrain::ProcessGroup<WrappedAgainPolicy>;

/// A worker, with models that live as long as it does.
/// @tparam Models default-constructible, with the members
/// - `keep_in(job)`: gives the job their state.
/// - `train(job, group, goes_on)`: wraps the models, and makes a step after each call of `goes_on()` that returns true.
/// - `values()`: all trained values, comparable.
template <class Models>
class WrappedAgainWorker {
 public:
  WrappedAgainWorker(const rendezvous_test::FormationProcess& launcher, int slot)
      : process_(elastic_process(launcher.address().port, slot, 2)), worker_(process_), job_(worker_, options_) {
    models.keep_in(job_);
  }

  /// Trains until `ends`. @param fails throws after the first step of an attempt
  void train(const std::atomic<bool>& ends, std::optional<int> fails = {}) {
    job_.train([&](WrappedAgainGroup group) {
      if (ends) return;
      bool has_step = false;
      models.train(job_, group, [&] {
        if (fails && has_step) throw std::runtime_error("the mistake " + std::to_string(*fails));
        has_step = true;
        return !ends;
      });
    });
  }

  Models models;

 private:
  const dtrain::launch::RankProcess process_;
  dtrain::elastic::ElasticWorker worker_;
  const dtrain::GroupOptions options_{};
  const WrappedAgainJob job_;
};

/// @returns what does not hold, a line each: both workers end with the same trained values, each error reaches its own
/// worker alone, and nothing is left of an attempt
template <class Models>
std::string wrap_again_100_times() {
  using Worker = WrappedAgainWorker<Models>;
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = sizes.max_workers = 2;
  sizes.reconnect_timeout = std::chrono::milliseconds(1);  // nobody says that the thread of a worker has ended
  rendezvous_test::FormationProcess launcher(sizes);
  std::atomic<bool> ends{false};
  std::optional<ProcessHoldings> early;
  Worker survivor(launcher, 0);
  const auto before = survivor.models.values();
  std::string problems;
  const auto require = [&problems](bool holds, const std::string& problem) {
    if (!holds) problems += problem + "\n";
  };
  std::string end_of_survivor;
  std::thread living([&] {
    try {
      survivor.train(ends);
    } catch (const std::exception& error) {
      end_of_survivor = error.what();
    }
  });
  for (int i = 0; i < 100; ++i) {
    if (i == 10) early.emplace();
    Worker failing(launcher, 1);
    std::string thrown;
    try {
      failing.train(ends, i);
    } catch (const std::runtime_error& error) {
      thrown = error.what();
    }
    require(thrown == "the mistake " + std::to_string(i),
            "worker " + std::to_string(i) + " ended with '" + thrown + "' and not with its own error");
  }
  const ProcessHoldings late;
  ends = true;  // while the survivor waits for another worker
  Worker last(launcher, 1);
  last.train(ends);
  living.join();
  require(end_of_survivor.empty(), "the survivor ended with '" + end_of_survivor + "'");
  require(last.models.values() == survivor.models.values(), "the workers' values differ");
  require(last.models.values() != before, "no value was trained");
  // The last attempt may not be over.
  require(late.descriptors <= early->descriptors + 8, "100 attempts left descriptors");
  require(late.threads <= early->threads + 4, "100 attempts left threads");
  require(late.mappings <= early->mappings + 64, "100 attempts left mappings");
  return problems;
}

}  // namespace support
