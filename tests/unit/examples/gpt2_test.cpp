#include "unit/examples/prelude.hpp"

namespace {

using gpt2::Index;
using Values = gpt2::Matrix<double>;

Values random_values(Index rows, Index columns, std::uint64_t seed) {
  Values values(rows, columns);
  shared::SplitMix64 random(seed);
  for (Index i = 0; i < values.size(); ++i)
    values.data()[i] = random.symmetric();
  return values;
}

/// The slope of `loss()` along `value`, by central differences of the fourth order.
template <class Loss>
double slope(double& value, Loss loss) {
  constexpr double step = 1e-4;
  const double before = value;
  const auto difference = [&](double distance) {
    value = before + distance;
    const double above = loss();
    value = before - distance;
    const double below = loss();
    value = before;
    return above - below;
  };
  return (8 * difference(step) - difference(2 * step)) / (12 * step);
}

/// Every element of every parameter's gradient, which a backward pass has written.
template <class Loss>
void check_gradients(const std::vector<dtrain::Parameter>& parameters, Loss loss) {
  for (const dtrain::Parameter& parameter : parameters) {
    CAPTURE(parameter.name);
    const auto value = parameter.value.as<double>();
    const auto gradient = parameter.gradient.as<double>();
    REQUIRE(value.size() == gradient.size());
    double wrong = 0;
    for (std::size_t i = 0; i < value.size(); ++i)
      wrong = std::max(wrong, std::abs(slope(value[i], loss) - gradient[i]));
    CHECK(wrong < 1e-8);
  }
}

/// Takes a layer's sum of outputs times fixed factors as the loss. `forward(input)` returns the output.
/// `backward(error, input_error, ready)` is given the factors, and an input error of zeros.
template <class Layer, class Forward, class Backward>
void check_layer(Layer& layer, Values input, Index outputs, Forward forward, Backward backward) {
  gpt2::WeightsList<double> weights;
  layer.list(weights);
  std::vector<dtrain::Parameter> parameters;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    weights[i]->set_position(i);
    weights[i]->value() += random_values(weights[i]->value().rows(), weights[i]->value().cols(), 50 + i);
    parameters.push_back(weights[i]->parameter());
  }
  const Values factors = random_values(input.rows(), outputs, 7);
  const auto loss = [&] { return forward(input).cwiseProduct(factors).sum(); };
  loss();
  Values input_error = Values::Zero(input.rows(), input.cols());
  Recorder recorder;
  backward(input, factors, input_error, dtrain::Ready(recorder));
  CHECK(recorder.order.size() == weights.size());
  check_gradients(parameters, loss);
  double wrong = 0;
  for (Index i = 0; i < input.size(); ++i)
    wrong = std::max(wrong, std::abs(slope(input.data()[i], loss) - input_error.data()[i]));
  CHECK(wrong < 1e-8);
}

constexpr gpt2::ModelShape small_shape{.layers = 2, .channels = 6, .heads = 2, .context = 4};
constexpr Index sequences = 2;
constexpr Index tokens = sequences * small_shape.context;

/// The same of a branch of a block. @param seed of the input
template <class Layer>
void check_branch(Layer& layer, std::uint64_t seed) {
  gpt2::Errors<double> errors(small_shape);
  errors.resize(small_shape, tokens);
  Values output(tokens, 6);
  check_layer(
      layer, random_values(tokens, 6, seed), 6,
      [&](const Values& input) -> const Values& {
        layer.forward(input, output);
        return output;
      },
      [&](const Values& input, const Values& error, Values& input_error, dtrain::Ready ready) {
        layer.backward(input, error, errors, input_error, ready);
      });
}

gpt2::Batch some_batch() {
  gpt2::Batch batch;
  shared::SplitMix64 random(99);
  for (Index i = 0; i < tokens; ++i) {
    batch.inputs.push_back(static_cast<std::uint8_t>(random.below(5) * 50));  // some of them twice
    batch.targets.push_back(static_cast<std::uint8_t>(random.below(256)));
  }
  return batch;
}

}  // namespace

TEST_CASE("a linear layer's gradients are the slopes of its output, by central differences") {
  gpt2::Linear<double> layer("layer", 3, 5);
  Values output(tokens, 5);
  check_layer(
      layer, random_values(tokens, 3, 1), 5,
      [&](const Values& input) -> const Values& {
        layer.forward(input, output);
        return output;
      },
      [&](const Values& input, const Values& error, Values& input_error, dtrain::Ready ready) {
        layer.backward(input, error, input_error, ready);
      });
}

TEST_CASE("a layer normalisation's gradients are its slopes, and its output has mean 0 and deviation 1") {
  gpt2::LayerNorm<double> layer("norm", 6);
  layer.resize(tokens);
  const Values input = random_values(tokens, 6, 2);
  const Values output = layer.forward(input);
  for (Index token = 0; token < tokens; ++token) {
    CHECK(std::abs(output.row(token).mean()) < 1e-12);
    CHECK(output.row(token).squaredNorm() / 6 == doctest::Approx(1).epsilon(1e-3));
  }
  check_layer(
      layer, input, 6, [&](const Values& values) -> const Values& { return layer.forward(values); },
      [&](const Values&, const Values& error, Values& input_error, dtrain::Ready ready) {
        layer.backward(error, input_error, ready);
      });
}

TEST_CASE("attention's gradients are its slopes") {
  gpt2::Attention<double> layer("attention", small_shape);
  layer.resize(sequences);
  check_branch(layer, 3);
}

TEST_CASE("attention sees its own sequence up to a token, and nothing behind it") {
  gpt2::Attention<double> layer("attention", small_shape);
  layer.resize(sequences);
  shared::SplitMix64 random(4);
  layer.randomize(0.5, 0.5, random);
  Values input = random_values(tokens, 6, 5);
  Values before(tokens, 6);
  layer.forward(input, before);
  input.row(2).array() += 1;
  Values after(tokens, 6);
  layer.forward(input, after);
  for (Index token = 0; token < tokens; ++token) {
    CAPTURE(token);
    const bool sees = token == 2 || token == 3;
    CHECK((after.row(token) != before.row(token)) == sees);
  }
}

TEST_CASE("a feed-forward network's gradients are its slopes") {
  gpt2::FeedForward<double> layer("feed_forward", small_shape);
  layer.resize(small_shape, tokens);
  check_branch(layer, 6);
}

TEST_CASE("a block's gradients are its slopes") {
  gpt2::Block<double> layer("block", small_shape);
  layer.resize(small_shape, sequences);
  gpt2::Errors<double> errors(small_shape);
  errors.resize(small_shape, tokens);
  Values output(tokens, 6);
  Values added(tokens, 6);
  check_layer(
      layer, random_values(tokens, 6, 8), 6,
      [&](const Values& input) -> const Values& {
        output = input;
        layer.forward(output, added);
        return output;
      },
      [&](const Values&, const Values& error, Values& input_error, dtrain::Ready ready) {
        input_error = error;
        layer.backward(input_error, errors, ready);
      });
}

TEST_CASE("every gradient of the model is the slope of its loss; tied embeddings have both parts of theirs") {
  gpt2::BasicModel<double> model(small_shape, sequences, 3);
  const gpt2::Batch batch = some_batch();
  shared::SplitMix64 random(11);
  for (const dtrain::Parameter& parameter : model.parameters()) {  // larger ones, so that slopes are
    for (double& value : parameter.value.as<double>())
      value += random.symmetric();
  }
  Recorder recorder;
  const auto loss = [&] { return model.forward(batch); };
  loss();
  model.backward(batch, dtrain::Ready(recorder));
  check_gradients(model.parameters(), loss);
}

TEST_CASE("a model takes batches of any number of sequences, and the loss's weight scales its gradients") {
  gpt2::BasicModel<double> model(small_shape, 1, 3);
  gpt2::Batch both = some_batch();
  gpt2::Batch first = both;
  first.inputs.resize(small_shape.context);
  first.targets.resize(small_shape.context);
  gpt2::Batch second = both;
  second.inputs.erase(second.inputs.begin(), second.inputs.begin() + small_shape.context);
  second.targets.erase(second.targets.begin(), second.targets.begin() + small_shape.context);
  const auto gradients_of = [&](const gpt2::Batch& batch, float weight, double& loss) {
    Recorder recorder;
    loss = model.forward(batch);
    model.backward(batch, dtrain::Ready(recorder), weight);
    return examples_test::gradients_of(model.parameters());
  };
  double of_both = 0;
  double of_first = 0;
  double of_second = 0;
  const std::vector<double> whole = gradients_of(both, 1, of_both);
  const std::vector<double> half = gradients_of(first, 0.5F, of_first);
  const std::vector<double> other = gradients_of(second, 0.5F, of_second);
  CHECK(of_both == doctest::Approx((of_first + of_second) / 2));
  for (std::size_t i = 0; i < whole.size(); ++i) {
    REQUIRE(std::abs(whole[i] - half[i] - other[i]) < 1e-12);
  }
}

TEST_CASE("the model's gradients become ready once each, from the last parameter to the first") {
  gpt2::BasicModel<double> model(small_shape, sequences, 3);
  const gpt2::Batch batch = some_batch();
  Recorder recorder;
  model.forward(batch);
  model.backward(batch, dtrain::Ready(recorder));
  const std::size_t count = model.parameters().size();
  CHECK(count == 2 + 12 * 2 + 2);
  REQUIRE(recorder.order.size() == count);
  for (std::size_t i = 0; i < count; ++i)
    CHECK(recorder.order[i] == count - 1 - i);
}

TEST_CASE("gradients live where they are bound, and have the same values there in every pass") {
  gpt2::Model model(small_shape, sequences, 3);
  const gpt2::Batch batch = some_batch();
  Recorder recorder;
  std::vector<std::vector<float>> own;
  const auto pass = [&] {
    model.forward(batch);
    model.backward(batch, dtrain::Ready(recorder));
  };
  pass();
  std::vector<std::vector<float>> memory;
  for (const dtrain::Parameter& parameter : model.parameters()) {
    const auto gradient = parameter.gradient.as<float>();
    own.emplace_back(gradient.begin(), gradient.end());
    memory.emplace_back(gradient.size(), 7.0F);
  }
  for (std::size_t i = 0; i < memory.size(); ++i)
    model.bind_gradient(i, dtrain::tensor_view(memory[i].data(), model.parameters()[i].value.shape));
  pass();
  CHECK(memory == own);
  pass();
  CHECK(memory == own);
}

/// Copies each gradient when it is announced.
struct Copies final : dtrain::Ready::Sink {
  explicit Copies(std::size_t count) : gradients(count) {}
  void ready(const dtrain::ReadyGradient& gradient) override {
    const auto values = gradient.memory->as<float>();
    gradients[gradient.parameter].assign(values.begin(), values.end());
  }
  std::vector<std::vector<float>> gradients;
};

TEST_CASE("a model without gradients gives the same ones away, and has memory for the largest and the tokens' alone") {
  gpt2::Model model(small_shape, sequences, 3);
  const gpt2::Batch batch = some_batch();
  const std::size_t count = model.parameters().size();
  const auto pass = [&] {
    Copies copies(count);
    model.forward(batch);
    model.backward(batch, dtrain::Ready(copies));
    return copies.gradients;
  };
  const std::vector<std::vector<float>> kept = pass();
  gpt2::ModelWithoutGradients without(model);
  for (int i = 0; i < 2; ++i)
    CHECK(pass() == kept);
  CHECK(without.gradient_bytes() == sizeof(float) * static_cast<std::size_t>(6 * 4 * 6 + 256 * 6));
  for (const dtrain::Parameter& parameter : without.parameters())
    CHECK(parameter.gradient.data == nullptr);
}

TEST_CASE("the number of parameters is that of the shape, and an untrained model's loss that of chance") {
  gpt2::Model model(small_shape, sequences, 3);
  std::uint64_t elements = 0;
  for (const dtrain::Parameter& parameter : model.parameters())
    elements += static_cast<std::uint64_t>(parameter.value.shape.element_count());
  CHECK(elements == gpt2::parameter_count(small_shape));
  CHECK(model.forward(some_batch()) == doctest::Approx(std::log(256)).epsilon(0.01));
}
