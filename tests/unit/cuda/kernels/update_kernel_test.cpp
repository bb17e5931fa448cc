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
    dtrain::LiveUpdate live{dtrain::ddp::detail::update_numbers(rule, step), step};
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

TEST_CASE("an array of many blocks is updated to its last element") {
  const std::size_t count = 500 * update_block_elements + 300;
  CHECK(wrong_elements(optimizers::Sgd{.rate = 0.5F}, count) == 0);
}

/// Gradients of T, f32 weights and states in more arrays than one launch takes, and in another order of states.
template <class T>
struct ManyArrays {
  struct Array {
    std::size_t first, count, first_state;
  };

  /// @param multiple of which the index of each array's first element is one, also in the states
  explicit ManyArrays(std::size_t multiple) {
    for (std::size_t i = 0; i < 2 * max_update_entries + 3; ++i) {
      arrays.push_back({elements, i % 50 == 7 ? update_block_elements + 1 + i : i % 11, 0});
      elements += (arrays.back().count + multiple - 1) / multiple * multiple;
    }
    std::size_t end = elements;
    for (Array& array : arrays) {
      array.first_state = end - (array.count + multiple - 1) / multiple * multiple;
      end = array.first_state;
    }
    for (const float value : values(elements, 20, 2))
      gradients.push_back(T(value));
    weights = values(elements, 21, 1);
    states = {values(elements, 22, 0.1F), values(elements, 23, 0.1F, true)};
  }

  /// By the host's rule.
  template <class Rule>
  void update(const Rule& rule, float factor, float multiplier) {
    for (const Array& array : arrays) {
      std::vector<float> wide;
      for (std::size_t k = 0; k < array.count; ++k)
        wide.push_back(static_cast<float>(gradients[array.first + k]) * factor * multiplier);
      float* const of_rule[] = {states[0].data() + array.first_state, states[1].data() + array.first_state};
      dtrain::ddp::apply_rule(rule, std::span(weights.data() + array.first, array.count), std::span<const float>(wide),
                              of_rule, {3, 0});
    }
  }

  std::vector<Array> arrays;
  std::size_t elements = 0;
  std::vector<T> gradients;
  std::vector<float> weights;
  std::array<std::vector<float>, 2> states;
};

template <class T>
bool equal(const DeviceBuffer& device, const std::vector<T>& host) {
  return std::memcmp(support::on_host<T>(device.data(), host.size()).data(), host.data(), host.size() * sizeof(T)) == 0;
}

/// In place of each gradient is its new weight. The factors are 1.1, and a third in device memory.
template <class T, class Rule>
void expect_batch(const Rule& rule, bool has_overflow, std::size_t multiple) {
  const Stream stream;
  constexpr DType dtype = dtrain::dtype_of<T>::value;
  constexpr Update formula = dtrain::ddp::detail::update_formula<Rule>();
  REQUIRE(UpdateKernel::load(formula, dtype, stream.ref()));
  ManyArrays<T> host(multiple);
  const DeviceBuffer gradients = support::on_device(host.gradients), weights = support::on_device(host.weights);
  const std::array<DeviceBuffer, 2> states{support::on_device(host.states[0]), support::on_device(host.states[1])};
  const DeviceBuffer found_inf = support::on_device(std::vector<float>{has_overflow ? 1.0F : 0.0F});
  const DeviceBuffer multiplier = support::on_device(std::vector<double>{1.0 / 3});
  const std::vector<float> before = host.weights;
  if (!has_overflow) host.update(rule, 1.1F, static_cast<float>(1.0 / 3));
  UpdateBatch batch(formula, dtype);
  for (const auto& array : host.arrays) {
    std::byte* const place = gradients.data() + array.first * sizeof(T);
    batch.add({place, place, weights.data() + array.first * sizeof(float)}, array.first_state, array.count);
  }
  batch.enqueue({dtrain::ddp::detail::update_numbers(rule, 3),
                 nullptr,
                 reinterpret_cast<const float*>(found_inf.data()),
                 1.1F,
                 reinterpret_cast<const double*>(multiplier.data()),
                 {reinterpret_cast<float*>(states[0].data()), reinterpret_cast<float*>(states[1].data())}},
                stream.ref());
  REQUIRE(completes(stream.ref(), 60s));
  std::vector<T> rounded = host.gradients;
  for (const auto& array : host.arrays) {
    for (std::size_t k = array.first; k < array.first + array.count; ++k)
      rounded[k] = T(host.weights[k]);
  }
  CHECK(equal(gradients, rounded));
  CHECK(equal(weights, sizeof(T) == 2 ? host.weights : before));
  for (std::size_t i = 0; i < state_arrays<Rule>; ++i)
    CHECK(equal(states[i], host.states[i]));
}

TEST_CASE_TEMPLATE("a batch puts new weights in place of gradients, and changes nothing else where found_inf is 1", T,
                   float, dtrain::bfloat16, dtrain::float16) {
  for (const bool has_overflow : {false, true}) {
    for (const std::size_t multiple : {std::size_t{1}, std::size_t{4}}) {
      CAPTURE(has_overflow);
      CAPTURE(multiple);
      expect_batch<T>(optimizers::Sgd{.rate = 0.3F, .weight_decay = 0.01F}, has_overflow, multiple);
      expect_batch<T>(optimizers::Momentum{.rate = 0.1F, .nesterov = true}, has_overflow, multiple);
      expect_batch<T>(optimizers::AdamW{.rate = 0.01F}, has_overflow, multiple);
    }
  }
}

/// Indices of the first elements of an update's arrays.
struct Begins {
  std::size_t target = 0, gradient = 0, weight = 0;
  std::array<std::size_t, 2> states{};
};

/// An update of one array, and neighbours of its elements that it leaves as they are.
template <class T, class Rule>
void expect_update(const Rule& rule, std::size_t count, const Begins& begins) {
  const Stream stream;
  constexpr DType dtype = dtrain::dtype_of<T>::value;
  constexpr Update formula = dtrain::ddp::detail::update_formula<Rule>();
  REQUIRE(UpdateKernel::load(formula, dtype, stream.ref()));
  const std::size_t all = count + 16;
  std::vector<T> gradients, targets(all, T(0.25F));
  for (const float value : values(all, 30, 2))
    gradients.push_back(T(value));
  std::vector<float> weights = values(all, 31, 1);
  std::array<std::vector<float>, 2> states{values(all, 32, 0.1F), values(all, 33, 0.1F, true)};
  const DeviceBuffer gradient = support::on_device(gradients), target = support::on_device(targets);
  const DeviceBuffer weight = support::on_device(weights);
  const std::array<DeviceBuffer, 2> state{support::on_device(states[0]), support::on_device(states[1])};
  UpdateBatch batch(formula, dtype);
  batch.add({target.data() + begins.target * sizeof(T), gradient.data() + begins.gradient * sizeof(T),
             weight.data() + begins.weight * sizeof(float)},
            0, count);
  UpdateArguments given{dtrain::ddp::detail::update_numbers(rule, 3)};
  for (std::size_t i = 0; i < 2; ++i)
    given.states[i] = reinterpret_cast<float*>(state[i].data()) + begins.states[i];
  batch.enqueue(given, stream.ref());
  REQUIRE(completes(stream.ref(), 60s));
  const std::vector<float> before = weights;
  std::vector<float> wide;
  for (std::size_t k = 0; k < count; ++k)
    wide.push_back(static_cast<float>(gradients[begins.gradient + k]));
  float* const of_rule[] = {states[0].data() + begins.states[0], states[1].data() + begins.states[1]};
  dtrain::ddp::apply_rule(rule, std::span(weights.data() + begins.weight, count), std::span<const float>(wide), of_rule,
                          {3, 0});
  for (std::size_t k = 0; k < count; ++k)
    targets[begins.target + k] = T(weights[begins.weight + k]);
  CHECK(equal(target, targets));
  CHECK(equal(gradient, gradients));
  CHECK(equal(weight, sizeof(T) == 2 ? weights : before));
  for (std::size_t i = 0; i < 2; ++i)
    CHECK(equal(state[i], states[i]));
}

TEST_CASE_TEMPLATE("an update has the host's bits at every size and alignment, and writes nothing else", T, float,
                   dtrain::bfloat16, dtrain::float16) {
  const std::array<Begins, 8> all{Begins{},
                                  {.target = 1},
                                  {.gradient = 1},
                                  {.weight = 1},
                                  {.states = {1, 0}},
                                  {.states = {0, 1}},
                                  {.target = 4, .gradient = 8, .weight = 12, .states = {4, 8}},
                                  {.target = 2, .gradient = 2, .weight = 2, .states = {2, 2}}};
  for (std::size_t i = 0; i < all.size(); ++i) {
    CAPTURE(i);
    for (const std::size_t count :
         std::initializer_list<std::size_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 1021, 1022, 1023, 1024, 1025, 2047, 2050}) {
      CAPTURE(count);
      expect_update<T>(optimizers::Sgd{.rate = 0.3F, .weight_decay = 0.01F}, count, all[i]);
      expect_update<T>(optimizers::Momentum{.rate = 0.1F, .weight_decay = 0.02F}, count, all[i]);
      expect_update<T>(optimizers::AdamW{.rate = 0.01F}, count, all[i]);
    }
  }
}

TEST_CASE("a thread of an update moves four elements of each array at a time") {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    CAPTURE(dtype);
    const std::string text = update_text(Update::adam, dtype);
    for (const char* const letter : {"w", "m", "v"}) {
      const std::string l = letter;
      const std::string registers = l + "f0, %" + l + "f1, %" + l + "f2, %" + l + "f3}";
      CAPTURE(registers);
      CHECK(support::contains(text, "ld.global.v4.f32 {%" + registers));
      CHECK(support::contains(text, "], {%" + registers) == (dtype != DType::f32 || letter[0] != 'w'));
    }
    const std::string type = dtype == DType::f32 ? "v4.f32" : "v2.b32";
    const std::string name = dtype == DType::f32 ? "f0" : "w0";
    CHECK(support::contains(text, "ld.global." + type + " {%s" + name + ", "));
    CHECK(support::contains(text, "st.global." + type + " [%place1+0], {%t" + name + ", "));
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
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
        CAPTURE(architecture);
        CAPTURE(dtype);
        CHECK(ptxas.accepts(update_text(update, dtype), architecture));
      }
    }
  }
}

}  // namespace update_kernel_test
