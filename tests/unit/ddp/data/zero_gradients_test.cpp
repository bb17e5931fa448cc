#include "dtrain/ddp/data/zero_gradients.hpp"

#include "unit/ddp/prelude.hpp"

namespace zero_gradients_test {

/// Notes which gradients are ready, and the bytes of each.
struct Recorder final : dtrain::Ready::Sink {
  void ready(const dtrain::ReadyGradient& gradient) override {
    REQUIRE(gradient.memory != nullptr);
    order.push_back(gradient.parameter);
    bytes.emplace_back(gradient.memory->data, gradient.memory->data + gradient.memory->bytes());
  }

  std::vector<std::size_t> order;
  std::vector<std::vector<std::byte>> bytes;
};

TEST_CASE("a step without data has zeros in each gradient, whichever is the largest, from the last parameter on") {
  // Memory that was freed before is not zero: most of it is taken for what comes next.
  std::make_unique<std::vector<std::byte>>(std::size_t{1} << 20, std::byte{7}).reset();
  std::vector<std::size_t> sizes{5, 3000, 700};
  do {
    std::vector<std::vector<float>> gradients;
    std::vector<Parameter> parameters;
    for (const std::size_t size : sizes)
      gradients.emplace_back(size, 1.0F);
    for (std::vector<float>& gradient : gradients)
      parameters.push_back({"p", tensor_view(gradient), tensor_view(gradient)});
    const ZeroGradients zeros(parameters);
    Recorder recorder;
    zeros(dtrain::Ready(recorder));
    REQUIRE(recorder.order == std::vector<std::size_t>{2, 1, 0});
    for (std::size_t i = 0; i < sizes.size(); ++i)
      CHECK(recorder.bytes[2 - i] == std::vector<std::byte>(sizes[i] * sizeof(float)));
    CHECK(gradients[0][0] == 1);
  } while (std::next_permutation(sizes.begin(), sizes.end()));
}

TEST_CASE("a step without data is refused for gradients on a device") {
  float gradient = 1;
  dtrain::TensorView on_device = tensor_view(&gradient, {1});
  on_device.device = {dtrain::DeviceKind::cuda, 0};
  CHECK_ERROR(ZeroGradients({{"p", on_device, on_device}}), Errc::unsupported, "on a GPU give the backward pass zeros");
}

}  // namespace zero_gradients_test
