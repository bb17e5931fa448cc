// The examples' models, which live through an elastic job's attempts, are wrapped again 100 times in one process:
// nothing is left of an attempt, and the weights are the same on both ranks. Under AddressSanitizer, no model uses
// memory of a wrapper that is gone.

#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dtrain/backend/shared_memory.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/elastic.hpp"
#include "dtrain/launch/per_process.hpp"
#include "examples/gpt2/model.hpp"
#include "loss.hpp"
#include "mlp.hpp"
#include "support/elastic_process.hpp"
#include "support/process_holdings.hpp"
#include "unit/rendezvous/formation/formation_process.hpp"

using rendezvous_test::FormationProcess;

namespace {

using Policy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;
using Group = dtrain::ProcessGroup<Policy>;

constexpr std::array<Eigen::Index, 3> widths{6, 5, 4};
constexpr gpt2::ModelShape shape{.layers = 1, .channels = 8, .heads = 2, .context = 4};
constexpr std::uint64_t seed = 5;

/// As examples/one_block.cpp has it: one block of values, whose gradients lie in dtrain's memory only.
struct OneBlock {
  static constexpr std::size_t size = 49;
  OneBlock() : values(static_cast<float*>(std::calloc(size, sizeof(float)))) {
    if (values == nullptr) throw std::bad_alloc();
  }
  OneBlock(const OneBlock&) = delete;
  OneBlock& operator=(const OneBlock&) = delete;
  ~OneBlock() { std::free(values); }

  std::vector<dtrain::Parameter> parameters() {
    return {{"all", dtrain::tensor_view(values, {size}), dtrain::tensor_view(gradients, {size})}};
  }
  void bind_gradient(std::size_t, const dtrain::TensorView& block) { gradients = block.as<float>().data(); }

  float* values;
  float* gradients = nullptr;
};

/// The three models, with what a step needs.
struct Models {
  Models() {
    images.inputs = fashion_mnist::Matrix<float>::Constant(3, widths.front(), 0.5F);
    images.labels = {0, 1, 3};
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape.context); ++i) {
      text.inputs.push_back(static_cast<std::uint8_t>(i));
      text.targets.push_back(static_cast<std::uint8_t>(i + 1));
    }
  }

  void keep_in(const dtrain::Elastic<Policy>& job) {
    job.keep(dtrain::parameter_values(mlp.parameters()));
    job.keep(dtrain::parameter_values(gpt.parameters()));
    job.keep(dtrain::parameter_values(block.parameters()));
  }

  template <class Mlp, class Gpt, class Block>
  void step(const dtrain::Elastic<Policy>& job, Mlp& mlp_ddp, Gpt& gpt_ddp, Block& block_ddp) {
    mlp.forward(images.inputs);
    mlp_ddp.backward([&](dtrain::Ready ready) { mlp.backward(images, ready); });
    gpt.forward(text);
    gpt_ddp.backward([&](dtrain::Ready ready) { gpt.backward(text, ready); });
    block_ddp.backward([&](dtrain::Ready ready) {
      for (std::size_t i = 0; i < OneBlock::size; ++i) {
        block.gradients[i] = block.values[i] - static_cast<float>(i);
      }
      ready(0);
    });
    job.commit([&] {
      for (const auto& parameters : {mlp.parameters(), gpt.parameters(), block.parameters()}) {
        for (const dtrain::Parameter& each : parameters) {
          const auto value = each.value.as<float>();
          const auto gradient = each.gradient.as<float>();
          for (std::size_t i = 0; i < value.size(); ++i) {
            value[i] -= 0.01F * gradient[i];
          }
        }
      }
    });
  }

  std::vector<float> values() {
    std::vector<float> found;
    for (const auto& parameters : {mlp.parameters(), gpt.parameters(), block.parameters()}) {
      for (const dtrain::Parameter& each : parameters) {
        const auto value = each.value.as<float>();
        found.insert(found.end(), value.begin(), value.end());
      }
    }
    return found;
  }

  fashion_mnist::Mlp mlp{widths, seed};
  gpt2::Model gpt{shape, 1, seed};
  OneBlock block;
  fashion_mnist::Batch<float> images;
  gpt2::Batch text;
};

class Worker {
 public:
  Worker(const FormationProcess& launcher, int slot)
      : process_(support::elastic_process(launcher.address().port, slot, 2)),
        worker_(process_),
        job_(worker_, options_) {
    models.keep_in(job_);
  }

  /// Trains until `ends` when an attempt begins. @param fails throws behind the first step of an attempt
  void train(const std::atomic<bool>& ends, std::optional<int> fails = {}) {
    job_.train([&](Group group) {
      if (ends) return;
      dtrain::DistributedDataParallel mlp{models.mlp, group};
      dtrain::DistributedDataParallel gpt{models.gpt, group};
      dtrain::DistributedDataParallel block{models.block, group};
      while (!ends) {
        models.step(job_, mlp, gpt, block);
        if (fails) throw std::runtime_error("the mistake " + std::to_string(*fails));
      }
    });
  }

  Models models;

 private:
  const dtrain::launch::RankProcess process_;
  dtrain::elastic::ElasticWorker worker_;
  const dtrain::GroupOptions options_{};
  const dtrain::Elastic<Policy> job_;
};

}  // namespace

TEST_CASE("models that live through 100 attempts are wrapped again in each, and nothing is left of those before") {
  dtrain::rendezvous::FormationOptions sizes;
  sizes.min_workers = sizes.max_workers = 2;
  sizes.reconnect_timeout = std::chrono::milliseconds(1);  // nobody says that the thread of a worker has ended
  FormationProcess launcher(sizes);
  std::atomic<bool> ends{false};
  std::optional<support::ProcessHoldings> early;
  Worker survivor(launcher, 0);
  std::string why;
  std::thread living([&] {
    try {
      survivor.train(ends);
    } catch (const std::exception& error) {
      why = error.what();
    }
  });
  for (int i = 0; i < 100; ++i) {
    if (i == 10) early.emplace();
    CAPTURE(i);
    Worker failing(launcher, 1);
    CHECK_THROWS_WITH_AS(failing.train(ends, i), ("the mistake " + std::to_string(i)).c_str(), std::runtime_error);
  }
  const support::ProcessHoldings late;
  ends = true;  // while the survivor waits for another worker
  Worker last(launcher, 1);
  last.train(ends);
  living.join();
  CHECK(why == "");
  CHECK(last.models.values() == survivor.models.values());
  CHECK(last.models.values() != Models().values());
  REQUIRE(early);
  CHECK(late.descriptors <= early->descriptors + 8);  // the last attempt may not be over
  CHECK(late.threads <= early->threads + 4);
  CHECK(late.mappings <= early->mappings + 64);
}
