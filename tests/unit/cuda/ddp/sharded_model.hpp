#pragma once
/// @file
/// A random model in host memory and on the rank's device, and the weights that an optimizer of the host gives it.

#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/ddp/sharded/sharded_optimizer.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/launch/per_process.hpp"
#include "support/cuda_memory.hpp"
#include "support/graph_replays.hpp"
#include "support/thread_group.hpp"
#include "unit/cuda/ddp/device_model.hpp"

#if DTRAIN_EMULATED_CUDA
#include "emulation/emulation.hpp"
#endif

namespace sharded_model {

using dtrain::DistributedDataParallel;
using dtrain::Ready;
using HostPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

/// Shorter than a cache line, longer than a block of threads, empty, and some of random sizes.
inline std::vector<std::size_t> sizes() {
  std::vector<std::size_t> all{5, 2049, 0, 1, 700, 17, 31};
  std::mt19937 random(11);
  for (int i = 0; i < 4; ++i)
    all.push_back(1 + random() % 900);
  return all;
}

/// Number of a step in which a gradient of this rank is not finite: the last element of one of the parameters.
constexpr int overflow_on(int rank, int step) {
  return 1000 * (rank + 1) + step;
}

/// Initial values; and gradients, whose sums over three ranks are exact in 8 bits.
template <class T>
std::vector<T> values(std::size_t i, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(1000 + i));
  std::normal_distribution<float> normal;
  std::vector<T> all(count);
  for (T& value : all)
    value = T(normal(random));
  return all;
}
template <class T>
std::vector<T> gradient(int step, int rank, std::size_t i, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>((step * 101 + rank) * 97 + static_cast<int>(i)));
  std::vector<T> all(count);
  for (T& value : all)
    value = T(static_cast<float>(static_cast<int>(random() % 129) - 64) / 64);
  const int parameter = step % 1000;
  if (step == overflow_on(rank, parameter) && static_cast<int>(i) == parameter)
    all.back() = T(parameter % 2 == 0 ? -std::numeric_limits<float>::infinity() : std::nanf(""));
  return all;
}

template <class T>
using Weights = std::vector<std::vector<T>>;

template <class T>
bool equal_bits(const Weights<T>& a, const Weights<T>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i)
    equal = a[i].size() == b[i].size() &&
            (a[i].empty() || std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) == 0);
  return equal;
}

template <class T>
class HostModel {
 public:
  HostModel() {
    std::size_t i = 0;
    for (const std::size_t size : sizes()) {
      values.push_back(sharded_model::values<T>(i++, size));
      gradients_.emplace_back(size);
    }
    for (i = 0; i < values.size(); ++i) {
      const dtrain::Shape shape{static_cast<std::int64_t>(values[i].size())};
      list_.push_back({"p" + std::to_string(i), dtrain::tensor_view(values[i].data(), shape),
                       dtrain::tensor_view(gradients_[i].data(), shape)});
    }
  }
  const std::vector<dtrain::Parameter>& parameters() const { return list_; }

  auto backward(int step, int rank) {
    return [this, step, rank](Ready ready) {
      for (std::size_t i = list_.size(); i-- > 0;) {
        std::ranges::copy(sharded_model::gradient<T>(step, rank, i, gradients_[i].size()), gradients_[i].begin());
        const dtrain::Shape shape{static_cast<std::int64_t>(gradients_[i].size())};
        ready(i, dtrain::tensor_view(gradients_[i].data(), shape), {});
      }
    };
  }

  Weights<T> values;

 private:
  Weights<T> gradients_;
  std::vector<dtrain::Parameter> list_;
};

/// The same model on the rank's device; two streams compute gradients in turn.
template <class T>
class Model : public DeviceModel {
 public:
  Model() : DeviceModel(2) {
    std::size_t i = 0;
    for (const std::size_t size : sizes()) {
      add<T>(("p" + std::to_string(i)).c_str(), size, T(0.0F));
      support::write(list_[i].value.data, sharded_model::values<T>(i, size));
      ++i;
    }
  }

  auto backward(int step, int rank, std::size_t left_out = ~std::size_t{0}) {
    return [this, step, rank, left_out](Ready ready) {
      block();  // the copies of the step before have run
      set_gradients(step, rank);
      for (std::size_t i = list_.size(); i-- > 0;) {
        if (i != left_out) compute(i, ready);
      }
    };
  }

  /// What the pass computes next.
  void set_gradients(int step, int rank) {
    for (std::size_t i = 0; i < list_.size(); ++i)
      prepare(i, sharded_model::gradient<T>(step, rank, i, size(i)));
  }

  /// Blocking: for what comes next on the streams.
  Weights<T> weights() const {
    block();
    Weights<T> all;
    for (std::size_t i = 0; i < list_.size(); ++i)
      all.push_back(support::on_host<T>(list_[i].value.data, size(i)));
    return all;
  }
};

/// A pass without a wait of the host; its streams begin behind the model's first, which ends behind them.
inline auto pass_of(const Model<float>& model) {
  return [&model](Ready ready) {
    static thread_local dtrain::stream::cuda::Event begun, joined;
    model.stream(0).record(begun);
    model.stream(1).wait(begun);
    for (std::size_t i = model.parameters().size(); i-- > 0;)
      model.compute(i, ready);
    model.stream(1).record(joined);
    model.stream(0).wait(joined);
  };
}

/// A step of that pass.
template <class Ddp, class Optimizer>
support::Graph captured_step(const Model<float>& model, Ddp& ddp, Optimizer& optimizer,
                             const dtrain::StepOptions& options = {}) {
  return support::captured(
      model.stream(0),
      [&] {
        ddp.backward(pass_of(model), optimizer, options);
        static thread_local dtrain::stream::cuda::Event ended;
        model.stream(1).record(ended);
        model.stream(0).wait(ended);
      },
      cudaStreamCaptureModeThreadLocal);
}

#if DTRAIN_EMULATED_CUDA
/// All ranks run a step at a time, which waits for no device, stream or event if that `is_checked`.
inline void check_waits(std::barrier<>& ranks, bool is_checked, const std::function<void()>& step) {
  ranks.arrive_and_wait();
  const int devices = emulation::device_waits();
  const int hosts = emulation::host_waits();
  ranks.arrive_and_wait();
  step();
  ranks.arrive_and_wait();
  if (is_checked) {
    CHECK(emulation::device_waits() == devices);
    CHECK(emulation::host_waits() == hosts);
  }
  ranks.arrive_and_wait();
}
#endif

/// Rank 0's weights after each step with a ShardedOptimizer of the host. @param options gets rank and step; null: none
template <class T, class Rule>
std::vector<Weights<T>> weights_on_host(int ranks, Rule rule, dtrain::ReduceOp op, int steps,
                                        const std::function<dtrain::StepOptions(int, int)>& options = {}) {
  std::vector<Weights<T>> all;
  support::run_well<HostPolicy>(ranks, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    HostModel<T> model;
    DistributedDataParallel ddp{model, group, {.bucket_bytes = 3000, .reduce_op = op}};
    dtrain::ShardedOptimizer optimizer{ddp, rule};
    for (int step = 0; step < steps; ++step) {
      ddp.backward(model.backward(step, group.rank()), optimizer,
                   options ? options(group.rank(), step) : dtrain::StepOptions{});
      if (group.rank() == 0) all.push_back(model.values);
    }
  });
  return all;
}

}  // namespace sharded_model
