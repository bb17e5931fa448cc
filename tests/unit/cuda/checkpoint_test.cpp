// Checkpoints of tensors on a device, by groups whose backend reduces device memory.

#include "dtrain/ddp/checkpoint/checkpoint.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::NamedTensor;
using HostPolicy = dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::SharedMemory>;

TensorView on(dtrain::Device device, const dtrain::stream::cuda::DeviceBuffer& memory, std::int64_t count) {
  return {memory.data(), {count}, dtrain::DType::f32, device};
}

}  // namespace

TEST_CASE("tensors on a device are saved and loaded beside those of the host, on every rank") {
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  const support::TemporaryDirectory folder;
  const std::string path = folder.path + "/checkpoint";
  constexpr std::int64_t large = 100'001;
  std::vector<dtrain::stream::cuda::DeviceBuffer> memory;  // it goes after the ranks have parted
  for (int rank = 0; rank < 2; ++rank) {
    for (const std::int64_t count : {std::int64_t{3}, large})
      memory.push_back(support::on_device(std::vector<float>(static_cast<std::size_t>(count), 1.0F)));
  }
  const auto ends = support::run_groups<StagedPolicy>(2, [&](const dtrain::ProcessGroup<StagedPolicy>& group) {
    const dtrain::Device device = group.stream().device();
    const auto& small = memory[static_cast<std::size_t>(2 * group.rank())];
    const auto& big = memory[static_cast<std::size_t>(2 * group.rank() + 1)];
    std::int64_t steps = 7;
    const std::vector<NamedTensor> state{{"small", on(device, small, 3)},
                                         {"steps", dtrain::tensor_view(&steps, {})},
                                         {"big", on(device, big, large)},
                                         {"none", {nullptr, {0}, dtrain::DType::f32, device}}};
    CHECK(!dtrain::load_checkpoint(group, path, state));
    std::vector<float> values(large);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i) + static_cast<float>(group.rank()) / 2;
    support::write(big.data(), values);
    support::write(small.data(), std::vector<float>{1, 2, 3});
    dtrain::save_checkpoint(group, path, state);

    steps = 0;
    support::write(big.data(), std::vector<float>(large));
    support::write(small.data(), std::vector<float>(3));
    CHECK(dtrain::load_checkpoint(group, path, state));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = static_cast<float>(i);  // rank 0's
    CHECK(support::on_host<float>(big.data(), values.size()) == values);
    CHECK(support::on_host<float>(small.data(), 3) == std::vector<float>{1, 2, 3});
    CHECK(steps == 7);

    const std::vector<NamedTensor> elsewhere{{"small", on({dtrain::DeviceKind::cuda, 5}, small, 3)}};
    CHECK(support::sentence_of([&] { dtrain::save_checkpoint(group, path, elsewhere); })
              .starts_with("a tensor of a checkpoint is on cuda:5, but this rank's group is on cuda:0; give it from "
                           "there, or from the host (on rank 0 on host "));
    group.barrier();
  });
  ::unsetenv("DTRAIN_SHARE_DEVICES");
  CHECK(ends == std::vector<support::RankEnd>(2));

  // The same file, by a group that has no device.
  const auto host_ends = support::run_groups<HostPolicy>(1, [&](const dtrain::ProcessGroup<HostPolicy>& group) {
    std::vector<float> small(3);
    std::vector<float> big(large);
    std::int64_t steps = 0;
    std::vector<NamedTensor> state{{"small", dtrain::tensor_view(small.data(), {3})},
                                   {"steps", dtrain::tensor_view(&steps, {})},
                                   {"big", dtrain::tensor_view(big.data(), {large})},
                                   {"none", {nullptr, {0}, dtrain::DType::f32, {}}}};
    CHECK(dtrain::load_checkpoint(group, path, state));
    CHECK(small == std::vector<float>{1, 2, 3});
    state[0].value.device = {dtrain::DeviceKind::cuda, 0};
    CHECK(support::sentence_of([&] { dtrain::save_checkpoint(group, path, state); }) ==
          "tensor 0 of a checkpoint is on cuda:0; copy it to host memory and give that");
  });
  CHECK(host_ends == std::vector<support::RankEnd>(1));
}

TEST_CASE("a tensor whose device never comes to its copy ends a checkpoint by the timeout") {
  const dtrain::stream::cuda::Stream stream;
  const auto memory = support::on_device(std::vector<float>{1, 2, 3});
  const TensorView tensor = on(stream.ref().device(), memory, 3);
  support::Gate gate;
  support::enqueue_on_host(stream.ref(), [&] { gate.pass(); });
  dtrain::ddp::DeviceTensorAccess values(stream.ref(), std::chrono::milliseconds(20));
  for (const bool is_saved : {true, false}) {
    CHECK(support::sentence_of([&] { is_saved ? static_cast<void>(values.fetch(tensor)) : values.put(tensor); }) ==
          "copying a tensor of a checkpoint between host and device took too long");
  }
  gate.open();
  dtrain::ddp::DeviceTensorAccess patient(stream.ref(), std::chrono::seconds(20));
  const std::span<const std::byte> copy = patient.fetch(tensor);
  CHECK(std::memcmp(copy.data(), std::vector<float>{1, 2, 3}.data(), copy.size()) == 0);
}
