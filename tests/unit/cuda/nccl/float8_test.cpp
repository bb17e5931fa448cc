// Floats of 8 bits over NCCL: they move on any device, and their reductions are refused.

#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::float8_e4m3;
using dtrain::float8_e5m2;

using Policy = dtrain::Policy<dtrain::launch::PerProcess, Nccl>;

/// The sentence that refuses the call; "" for none.
template <class Call>
std::string refusal_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    CHECK(error.code() == make_error_code(Errc::unsupported));
    return error.what();
  }
  return "";
}

/// One parameter of f8e5m2 and one of f32.
struct Model {
  static constexpr DeviceKind device_kind = DeviceKind::cuda;
  static constexpr std::int64_t count = 130;

  std::vector<dtrain::Parameter> parameters() const {
    const dtrain::Device device{DeviceKind::cuda, dtrain::stream::cuda::current_device()};
    const auto view = [&](const DeviceBuffer& memory, DType dtype) {
      return dtrain::TensorView{memory.data(), {count}, dtype, device};
    };
    return {{"short", view(short_value, DType::f8e5m2), view(short_gradient, DType::f8e5m2)},
            {"long", view(long_value, DType::f32), view(long_gradient, DType::f32)}};
  }

  DeviceBuffer short_value = on_device(std::vector<float8_e5m2>(count, float8_e5m2(1)));
  DeviceBuffer long_value = on_device(std::vector<float>(count, 1));
  DeviceBuffer short_gradient{count};
  DeviceBuffer long_gradient{count * sizeof(float)};
  dtrain::stream::cuda::Stream stream;
};

}  // namespace

TEST_CASE("a model whose gradients have 8 bits is refused") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const auto ends = support::run_groups<Policy>(1, [&](const dtrain::ProcessGroup<Policy>& group) {
    Model model;
    CHECK(refusal_of([&] { dtrain::DistributedDataParallel(model, group); }) ==
          "parameter 0 'short' has a gradient of f8e5m2, which backend Nccl does not reduce; keep it in a type that "
          "the backend reduces, such as f32");
  });
  CHECK(ends[0].text == "");
  CHECK_FALSE(Nccl::reduces(DType::f8e4m3));
}
