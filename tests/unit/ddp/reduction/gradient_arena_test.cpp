#include "dtrain/ddp/reduction/gradient_arena.hpp"
#include "unit/ddp/prelude.hpp"

using dtrain::Device;
using dtrain::DeviceKind;
using dtrain::TensorView;

namespace {

/// Gradients of f32, in host memory.
std::vector<std::size_t> extreme_sizes(std::vector<std::size_t> counts) {
  std::vector<std::vector<float>> gradients;
  for (const std::size_t count : counts)
    gradients.emplace_back(count);
  std::vector<Parameter> parameters;
  for (std::vector<float>& gradient : gradients) {
    const TensorView view = dtrain::tensor_view(gradient.data(), {static_cast<std::int64_t>(gradient.size())});
    parameters.push_back({"p" + std::to_string(parameters.size()), view, view});
  }
  const auto channel = std::make_shared<support::FakeChannel>();
  support::FakeCommunicator communicator(channel);
  const dtrain::ddp::GradientArena<support::FakeCommunicator> arena(
      communicator, parameters,
      dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters), dtrain::ddp::BucketCaps{0, 0}), Device{},
      dtrain::Deadline::after(std::chrono::seconds(60)));
  std::vector<std::size_t> sizes;
  arena.for_extreme_ranges([&sizes](const dtrain::BufferView& range) { sizes.push_back(range.bytes()); });
  return sizes;
}

/// Of an f32 gradient at `address` in device memory, which is not read.
void make_table(std::uintptr_t address, Device device) {
  const TensorView view{reinterpret_cast<std::byte*>(address), {3}, DType::f32, device};
  const std::vector<Parameter> parameters{{"weight", view, view}};
  const dtrain::ddp::BucketPlan plan = dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters));
  dtrain::ddp::GradientTable(parameters, plan, nullptr, device);
}

}  // namespace

TEST_CASE("the extreme ranges are the least that a bucket can have, the smallest bucket and the largest") {
  CHECK(extreme_sizes({1024, 4096, 2048}) == std::vector<std::size_t>{64, 4096, 16384});
  CHECK(extreme_sizes({1024}) == std::vector<std::size_t>{64, 4096});
  CHECK(extreme_sizes({16, 1024}) == std::vector<std::size_t>{64, 4096});
  CHECK(extreme_sizes({0}).empty());
}

TEST_CASE("a gradient in device memory at an address that is no multiple of its element size is refused") {
  const Device device{DeviceKind::cuda, 0};
  make_table(0x1004, device);
  CHECK_ERROR(make_table(0x1002, device), Errc::invalid_argument,
              "'weight' is at an address that is no multiple of the 4 bytes");
  make_table(0x1002, Device{});
}

TEST_CASE("a view that ready() gets in device memory is aligned too, or refused") {
  const Device device{DeviceKind::cuda, 0};
  const TensorView own{reinterpret_cast<std::byte*>(0x1000), {3}, DType::f32, device};
  const std::vector<Parameter> parameters{{"weight", own, own}};
  const dtrain::ddp::BucketPlan plan = dtrain::ddp::plan_buckets(dtrain::ddp::gradient_sizes(parameters));
  const dtrain::ddp::GradientTable table(parameters, plan, nullptr, device);
  TensorView given = own;
  const dtrain::StreamHandle stream{device, nullptr};
  table.check({0, stream, &given});
  given.data += 2;
  CHECK_ERROR(table.check({0, stream, &given}), Errc::invalid_argument,
              "is at an address that is no multiple of the 4 bytes");
}
