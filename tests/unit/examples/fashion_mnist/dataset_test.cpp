#include "dataset.hpp"

#include "unit/examples/prelude.hpp"

namespace {

fashion_mnist::Dataset three_images() {
  fashion_mnist::Dataset dataset;
  dataset.images.assign(3 * fashion_mnist::image_pixels, 0);
  std::fill_n(dataset.images.begin() + 784, 784, std::uint8_t{255});
  dataset.images[2 * 784 + 5] = 51;
  dataset.labels = {7, 8, 9};
  return dataset;
}

}  // namespace

TEST_CASE("a batch holds the chosen samples, standardised, in the chosen order") {
  fashion_mnist::Batch<float> batch;
  const std::array<std::size_t, 3> indices{2, 1, 2};
  fashion_mnist::gather(three_images(), indices, batch);
  CHECK(batch.labels == std::vector<std::uint8_t>{9, 8, 9});
  REQUIRE(batch.inputs.rows() == 3);
  REQUIRE(batch.inputs.cols() == 784);
  CHECK(batch.inputs(0, 0) == doctest::Approx((0.0 - 0.2860) / 0.3530));
  CHECK(batch.inputs(0, 5) == doctest::Approx((0.2 - 0.2860) / 0.3530));
  CHECK(batch.inputs(1, 783) == doctest::Approx((1.0 - 0.2860) / 0.3530));
  CHECK(batch.inputs.row(2) == batch.inputs.row(0));
}

TEST_CASE("shuffled labels are the same labels in another order, which the seed decides") {
  const auto shuffled = [](std::uint64_t seed) {
    fashion_mnist::Dataset dataset;
    for (std::uint8_t i = 0; i < 100; ++i)
      dataset.labels.push_back(i % 10);
    fashion_mnist::shuffle_labels(dataset, seed);
    return dataset.labels;
  };
  std::vector<std::uint8_t> labels = shuffled(1);
  CHECK(labels == shuffled(1));
  CHECK(labels != shuffled(2));
  std::sort(labels.begin(), labels.end());
  for (std::uint8_t i = 0; i < 100; ++i)
    CHECK(labels[i] == i / 10);
}
