// The kernels of optimizers: the bits of the host's rules.

#include "dtrain/stream/cuda/kernels/update_kernel.hpp"
#include "dtrain/ddp/sharded/device_rule.hpp"
#include "dtrain/ddp/sharded/optimizers.hpp"
#include "unit/cuda/prelude.hpp"

namespace update_kernel_test {

namespace optimizers = dtrain::optimizers;
using dtrain::ddp::state_arrays;

/// Values of all magnitudes that training has, with some zeros and subnormal numbers.
std::vector<float> values(std::size_t count, unsigned seed, float scale, bool positive = false) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    const float value = i % 97 == 3   ? 0.0F
                        : i % 89 == 5 ? std::numeric_limits<float>::denorm_min() * static_cast<float>(i)
                                      : scale * std::ldexp(normal(random), static_cast<int>(random() % 24) - 16);
    all[i] = positive ? std::abs(value) : value;
  }
  return all;
}

/// Elements that differ from the host's after some updates, in weights and states.
template <class Rule>
int wrong_elements(const Rule& rule, std::size_t count, std::size_t shift = 0, bool is_live = false) {
  std::vector<std::vector<float>> host{values(count, 1, 1)};
  for (std::size_t i = 0; i < state_arrays<Rule>; ++i)
    host.push_back(values(count, 2 + static_cast<unsigned>(i), 0.1F, i == 1));
  std::vector<DeviceBuffer> device;
  for (const std::vector<float>& array : host) {
    std::vector<float> shifted(shift);
    shifted.insert(shifted.end(), array.begin(), array.end());
    device.push_back(support::on_device(shifted));
  }
  const Stream stream;
  const auto view = [&](const DeviceBuffer& memory) {
    return BufferView{memory.data() + shift * sizeof(float), count, DType::f32, stream.ref().device()};
  };
  std::vector<BufferView> states;
  for (std::size_t i = 1; i < device.size(); ++i)
    states.push_back(view(device[i]));
  int wrong = 0;
  for (std::uint64_t step = 1; step <= 5; ++step) {
    const std::vector<float> gradients = values(count, 100 + static_cast<unsigned>(step), 2);
    std::vector<float> shifted(shift);
    shifted.insert(shifted.end(), gradients.begin(), gradients.end());
    const DeviceBuffer given = support::on_device(shifted);
    std::vector<float*> arrays;
    for (std::size_t i = 1; i < host.size(); ++i)
      arrays.push_back(host[i].data());
    dtrain::ddp::apply_rule(rule, std::span(host[0]), std::span<const float>(gradients), arrays.data(), {step, 0});
    dtrain::LiveUpdate live{dtrain::ddp::detail::device_update(rule, step).numbers, step};
    const DeviceBuffer numbers = support::on_device(std::vector<dtrain::LiveUpdate>{live});
    const dtrain::DeviceStepInfo info =
        is_live ? dtrain::DeviceStepInfo{0, reinterpret_cast<const dtrain::LiveUpdate*>(numbers.data())}
                : dtrain::DeviceStepInfo{step, nullptr};
    dtrain::ddp::enqueue_rule(rule, view(device[0]), view(given), states, info, stream.ref());
    REQUIRE(completes(stream.ref(), 60s));
    for (std::size_t i = 0; i < host.size(); ++i) {
      const std::vector<float> seen = support::on_host<float>(device[i].data(), shift + count);
      for (std::size_t k = 0; k < count; ++k)
        wrong += std::memcmp(&seen[shift + k], &host[i][k], sizeof(float)) == 0 ? 0 : 1;
    }
  }
  return wrong;
}

template <class Rule>
void expect_equal(const Rule& rule) {
  for (const std::size_t count : {std::size_t{1}, std::size_t{255}, std::size_t{257}, std::size_t{20'001}}) {
    CAPTURE(count);
    CHECK(wrong_elements(rule, count) == 0);
    CHECK(wrong_elements(rule, count, 3) == 0);
    CHECK(wrong_elements(rule, count, 0, true) == 0);
  }
}

TEST_CASE("an update on the device has the bits of the host's, of each rule and with its options") {
  expect_equal(optimizers::Sgd{.rate = 0.1F});
  expect_equal(optimizers::Sgd{.rate = 0.3F, .weight_decay = 0.01F});
  expect_equal(optimizers::Momentum{.rate = 0.1F});
  expect_equal(optimizers::Momentum{.rate = 0.1F, .momentum = 0.8F, .weight_decay = 0.02F, .nesterov = true});
  expect_equal(optimizers::Adam{.rate = 0.01F});
  expect_equal(optimizers::Adam{.rate = 0.01F, .beta1 = 0.8F, .beta2 = 0.95F, .epsilon = 1e-6F, .weight_decay = 0.1F});
  expect_equal(optimizers::AdamW{.rate = 3e-4F});
}

TEST_CASE("more elements than threads of the largest launch are all updated") {
  const std::size_t count = 4096 * 256 + 300;
  CHECK(wrong_elements(optimizers::Sgd{.rate = 0.5F}, count) == 0);
}

TEST_CASE("an update changes no array where found_inf is 1, and all where it is 0") {
  const Stream stream;
  constexpr std::size_t count = 300;
  const std::vector<float> before = values(count, 1, 1, true);
  for (const Update update : {Update::sgd, Update::momentum, Update::adam}) {
    REQUIRE(UpdateKernel::load(update, stream.ref()));
    for (const float found : {1.0F, 0.0F}) {
      CAPTURE(static_cast<int>(update));
      CAPTURE(found);
      const DeviceBuffer found_inf = support::on_device(std::vector<float>{found});
      std::vector<DeviceBuffer> arrays;
      std::array<float*, 4> addresses{};
      for (std::size_t i = 0; i < update_arrays(update); ++i) {
        arrays.push_back(support::on_device(before));
        addresses[i] = reinterpret_cast<float*>(arrays[i].data());
      }
      UpdateKernel::find(update).enqueue(addresses, count, {0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F, 0.5F}, nullptr,
                                         reinterpret_cast<const float*>(found_inf.data()), stream.ref());
      REQUIRE(completes(stream.ref(), 60s));
      for (std::size_t i = 0; i < arrays.size(); ++i) {
        const bool stays = support::on_host<float>(arrays[i].data(), count) == before;
        CHECK(stays == (found == 1 || i == 1));  // the gradients always
      }
    }
  }
}

TEST_CASE("the toolkit's assembler accepts each kernel of updates for each GPU that it knows") {
  const support::Ptxas ptxas;
  if (!ptxas.is_there()) {
    MESSAGE("left out: no ptxas on the path or in /usr/local/cuda/bin");
    return;
  }
  for (const int architecture : ptxas.architectures()) {
    for (const Update update : {Update::sgd, Update::momentum, Update::adam}) {
      CAPTURE(architecture);
      CHECK(ptxas.accepts(update_text(update), architecture));
    }
  }
}

}  // namespace update_kernel_test
