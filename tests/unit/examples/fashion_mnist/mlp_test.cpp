#include "mlp.hpp"

#include "unit/examples/prelude.hpp"

namespace {

using fashion_mnist::BasicMlp;
using fashion_mnist::Batch;
using fashion_mnist::Mlp;

constexpr std::array<Eigen::Index, 4> small_widths{5, 4, 3, 3};

template <class Scalar>
Batch<Scalar> some_batch(Eigen::Index inputs, std::uint64_t classes, Eigen::Index rows) {
  Batch<Scalar> batch;
  shared::SplitMix64 random(99);
  batch.inputs.resize(rows, inputs);
  for (Eigen::Index i = 0; i < batch.inputs.size(); ++i)
    batch.inputs.data()[i] = random.symmetric();
  for (Eigen::Index i = 0; i < rows; ++i)
    batch.labels.push_back(static_cast<std::uint8_t>(random.below(classes)));
  return batch;
}

template <class Scalar>
double mean_loss(BasicMlp<Scalar>& model, const Batch<Scalar>& batch) {
  const auto sums = fashion_mnist::score(model.forward(batch.inputs), std::span<const std::uint8_t>(batch.labels));
  return sums.cross_entropy / sums.count;
}

}  // namespace

TEST_CASE("every gradient of the network is the slope of its loss, by central differences") {
  BasicMlp<double> model(small_widths, 3);
  const Batch<double> batch = some_batch<double>(5, 3, 7);
  Recorder recorder;
  model.forward(batch.inputs);
  model.backward(batch, dtrain::Ready(recorder));
  for (const dtrain::Parameter& parameter : model.parameters()) {
    CAPTURE(parameter.name);
    const auto value = parameter.value.as<double>();
    const auto gradient = parameter.gradient.as<double>();
    REQUIRE(value.size() == gradient.size());
    for (std::size_t i = 0; i < value.size(); ++i) {
      CAPTURE(i);
      constexpr double step = 1e-5;
      const double before = value[i];
      value[i] = before + step;
      const double above = mean_loss(model, batch);
      value[i] = before - step;
      const double below = mean_loss(model, batch);
      value[i] = before;
      CHECK(std::abs((above - below) / (2 * step) - gradient[i]) < 1e-8);
    }
  }
}

TEST_CASE("gradients become ready once each, the last layer's first") {
  BasicMlp<double> model(small_widths, 3);
  const Batch<double> batch = some_batch<double>(5, 3, 2);
  Recorder recorder;
  model.forward(batch.inputs);
  model.backward(batch, dtrain::Ready(recorder));
  CHECK(recorder.order == std::vector<std::size_t>{4, 5, 2, 3, 0, 1});
}

TEST_CASE("the parameters have names and shapes in a fixed order") {
  Mlp model(small_widths, 1);
  std::string text;
  for (const dtrain::Parameter& parameter : model.parameters())
    text += parameter.name + ' ' + to_string(parameter.value.shape) + to_string(parameter.gradient.shape) + '\n';
  CHECK(text ==
        "layer1.weight [5, 4][5, 4]\nlayer1.bias [4][4]\nlayer2.weight [4, 3][4, 3]\nlayer2.bias [3][3]\n"
        "layer3.weight [3, 3][3, 3]\nlayer3.bias [3][3]\n");
}

TEST_CASE("a bound gradient is written where it was bound, with the same values") {
  Mlp own(small_widths, 1);
  Mlp bound(small_widths, 1);
  std::vector<float> arena(64, -7.0F);
  const auto parameters = bound.parameters();
  std::size_t offset = 1;  // not aligned for vectors
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    bound.bind_gradient(i, dtrain::tensor_view(arena.data() + offset, parameters[i].gradient.shape));
    offset += parameters[i].gradient.shape.element_count();
  }
  REQUIRE(offset <= arena.size());
  const Batch<float> batch = some_batch<float>(5, 3, 6);
  Recorder recorder;
  for (Mlp* model : {&own, &bound}) {
    model->forward(batch.inputs);
    model->backward(batch, dtrain::Ready(recorder));
  }
  const auto expected = own.parameters();
  const auto moved = bound.parameters();
  const float* place = arena.data() + 1;
  for (std::size_t i = 0; i < moved.size(); ++i) {
    const auto values = moved[i].gradient.as<float>();
    CHECK(values.data() == place);
    CHECK(std::memcmp(values.data(), expected[i].gradient.as<float>().data(), values.size_bytes()) == 0);
    place += values.size();
  }
  CHECK(arena[0] == -7.0F);
  CHECK(arena[offset] == -7.0F);
}

TEST_CASE("the same seed gives the same weights and another seed others") {
  Mlp a(small_widths, 1);
  Mlp b(small_widths, 1);
  Mlp c(small_widths, 2);
  const auto weights = [](Mlp& model) {
    const auto values = model.parameters()[0].value.as<float>();
    return std::vector<float>(values.begin(), values.end());
  };
  CHECK(weights(a) == weights(b));
  CHECK(weights(a) != weights(c));
}

TEST_CASE("the gradient of a batch is the mean of its halves' gradients") {
  BasicMlp<double> model(small_widths, 5);
  const Batch<double> whole = some_batch<double>(5, 3, 8);
  const auto gradients = [&](Eigen::Index first, Eigen::Index rows) {
    Batch<double> part;
    part.inputs = whole.inputs.middleRows(first, rows);
    part.labels.assign(whole.labels.begin() + first, whole.labels.begin() + first + rows);
    Recorder recorder;
    model.forward(part.inputs);
    model.backward(part, dtrain::Ready(recorder));
    return examples_test::gradients_of(model.parameters());
  };
  const std::vector<double> all = gradients(0, 8);
  const std::vector<double> first = gradients(0, 4);
  const std::vector<double> second = gradients(4, 4);
  for (std::size_t i = 0; i < all.size(); ++i)
    CHECK(all[i] == doctest::Approx((first[i] + second[i]) / 2).epsilon(1e-12));
}

TEST_CASE("a score counts the right answers and sums the cross-entropy, without overflow") {
  fashion_mnist::Matrix<float> scores(3, 2);
  scores << 0, 0, 1000, -1000, 1, 3;
  const std::vector<std::uint8_t> labels{0, 0, 0};
  const fashion_mnist::Score sums = fashion_mnist::score(scores, std::span<const std::uint8_t>(labels));
  CHECK(sums.count == 3);
  CHECK(sums.correct == 2);
  CHECK(sums.cross_entropy == doctest::Approx(std::log(2.0) + 0 + std::log(1 + std::exp(2.0))));
}
