#include "examples/gpt2/half_model.hpp"
#include "unit/examples/prelude.hpp"

namespace {

using dtrain::bfloat16;
using gpt2::HalfModel;

constexpr gpt2::ModelShape shape{.layers = 2, .channels = 6, .heads = 2, .context = 4};
constexpr gpt2::Index sequences = 2;
constexpr std::uint64_t seed = 3;

gpt2::Batch batch() {
  return {{1, 2, 3, 4, 5, 6, 7, 8}, {2, 3, 4, 5, 6, 7, 8, 9}};
}

std::vector<float> widened(const dtrain::TensorView& view) {
  std::vector<float> wide;
  for (const bfloat16 value : view.as<bfloat16>())
    wide.push_back(static_cast<float>(value));
  return wide;
}

/// Copies each gradient when it is announced.
struct Copies final : dtrain::Ready::Sink {
  explicit Copies(std::size_t count) : gradients(count) {}
  void ready(const dtrain::ReadyGradient& gradient) override {
    gradients[gradient.parameter] = widened(*gradient.memory);
  }
  std::vector<std::vector<float>> gradients;
};

template <class M>
std::vector<std::vector<float>> gradients_of(M& model) {
  Copies copies(model.parameters().size());
  model.forward(batch());
  model.backward(batch(), dtrain::Ready(copies));
  return copies.gradients;
}

/// The gradients of the f32 model at the half model's values, rounded to bf16.
std::vector<std::vector<float>> expected(const HalfModel& half) {
  gpt2::Model wide(shape, sequences, seed);
  const std::vector<dtrain::Parameter> parameters = wide.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i)
    std::ranges::copy(widened(half.parameters()[i].value), parameters[i].value.as<float>().begin());
  struct Nobody final : dtrain::Ready::Sink {
    void ready(const dtrain::ReadyGradient&) override {}
  } nobody;
  wide.forward(batch());
  wide.backward(batch(), dtrain::Ready(nobody));
  std::vector<std::vector<float>> rounded;
  for (const dtrain::Parameter& parameter : wide.parameters()) {
    std::vector<float>& one = rounded.emplace_back();
    for (const float value : parameter.gradient.as<float>())
      one.push_back(static_cast<float>(bfloat16(value)));
  }
  return rounded;
}

}  // namespace

TEST_CASE("a half model's values are the f32 model's, rounded, and what is written to them is computed with") {
  HalfModel half(shape, sequences, seed);
  gpt2::Model wide(shape, sequences, seed);
  const std::vector<dtrain::Parameter> parameters = wide.parameters();
  REQUIRE(half.parameters().size() == parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    CHECK(half.parameters()[i].name == parameters[i].name);
    std::vector<float> rounded;
    for (const float value : parameters[i].value.as<float>())
      rounded.push_back(static_cast<float>(bfloat16(value)));
    CHECK(widened(half.parameters()[i].value) == rounded);
  }
  const double before = half.forward(batch());
  CHECK(before == doctest::Approx(wide.forward(batch())).epsilon(0.01));
  half.parameters()[0].value.as<bfloat16>()[1] = bfloat16(3.0F);
  CHECK(half.forward(batch()) != before);
}

TEST_CASE("a half model's gradients are the f32 model's, rounded, wherever they lie") {
  HalfModel half(shape, sequences, seed);
  const std::vector<std::vector<float>> right = expected(half);
  CHECK(gradients_of(half) == right);
  std::vector<std::vector<bfloat16>> memory;
  for (std::size_t i = 0; i < right.size(); ++i) {
    memory.emplace_back(right[i].size());
    half.bind_gradient(i, dtrain::tensor_view(memory[i].data(), half.parameters()[i].value.shape));
  }
  CHECK(gradients_of(half) == right);
  for (std::size_t i = 0; i < right.size(); ++i)
    CHECK(widened(dtrain::tensor_view(memory[i])) == right[i]);
}

TEST_CASE("a half model without gradients gives the same ones away") {
  HalfModel half(shape, sequences, seed);
  const std::vector<std::vector<float>> right = expected(half);
  gpt2::ModelWithoutGradients without(half);
  CHECK(gradients_of(without) == right);
  CHECK(gradients_of(without) == right);
  constexpr std::size_t largest = 256 * 6;  // the tokens' embeddings, which also have f32 memory of their own
  CHECK(without.gradient_bytes() == half.gradient_bytes() + largest * sizeof(bfloat16));
  CHECK(half.gradient_bytes() == sizeof(float) * (6 * 4 * 6 + largest));
  for (const dtrain::Parameter& parameter : without.parameters())
    CHECK(parameter.gradient.data == nullptr);
}
