// The examples' models, which live through an elastic job's attempts, are wrapped again 100 times in one process:
// nothing is left of an attempt, and the weights are the same on both ranks. Under AddressSanitizer, no model uses
// memory of a wrapper that is gone.

#include "support/wrapped_again.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/elastic.hpp"
#include "mlp.hpp"
#include "unit/examples/prelude.hpp"

namespace {

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

  void keep_in(const support::WrappedAgainJob& job) {
    job.keep(dtrain::parameter_values(mlp.parameters()));
    job.keep(dtrain::parameter_values(gpt.parameters()));
    job.keep(dtrain::parameter_values(block.parameters()));
  }

  template <class GoesOn>
  void train(const support::WrappedAgainJob& job, const support::WrappedAgainGroup& group, GoesOn goes_on) {
    dtrain::DistributedDataParallel mlp_ddp{mlp, group};
    dtrain::DistributedDataParallel gpt_ddp{gpt, group};
    dtrain::DistributedDataParallel block_ddp{block, group};
    while (goes_on())
      step(job, mlp_ddp, gpt_ddp, block_ddp);
  }

  template <class Mlp, class Gpt, class Block>
  void step(const support::WrappedAgainJob& job, Mlp& mlp_ddp, Gpt& gpt_ddp, Block& block_ddp) {
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

}  // namespace

TEST_CASE("models that live through 100 attempts are wrapped again in each, and nothing is left of those before") {
  CHECK(support::wrap_again_100_times<Models>() == "");
}
