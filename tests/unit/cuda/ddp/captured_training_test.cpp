// The guide's training by one graph: examples/shared/captured_training.hpp.

#include "examples/shared/captured_training.hpp"

#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

/// One parameter, whose gradient is the batch: what the host has prepared for step k.
class Model {
 public:
  static constexpr DeviceKind device_kind = DeviceKind::cuda;
  static constexpr std::size_t count = 1000;

  explicit Model(std::vector<float> batches) : batches_(std::move(batches)) {}
  const std::vector<dtrain::Parameter>& parameters() const { return list_; }

  void load_batch(int step, support::StreamRef stream) {
    const float value = batches_[static_cast<std::size_t>(step)];
    emulation::launch(stream.native(), [value, batch = batch_.data()] {
      std::fill_n(emulation::host_address(reinterpret_cast<float*>(batch)), count, value);
    });
  }
  void backward(const Ready& ready, support::StreamRef stream) {
    check(cudaMemcpyAsync(gradient_.data(), batch_.data(), count * sizeof(float), cudaMemcpyDeviceToDevice,
                          stream.native()),
          "cudaMemcpyAsync");
    ready(0, stream.handle());
  }
  void update(const float* found_inf, support::StreamRef stream) {
    emulation::launch(stream.native(), [found_inf, weights = weights_.data(), gradient = gradient_.data()] {
      if (*emulation::host_address(found_inf) != 0) return;
      auto* const values = emulation::host_address(reinterpret_cast<float*>(weights));
      const auto* const by = emulation::host_address(reinterpret_cast<const float*>(gradient));
      for (std::size_t i = 0; i < count; ++i)
        values[i] -= by[i];
    });
  }

  /// After the last launch.
  std::vector<float> weights() const { return support::on_host<float>(weights_.data(), count); }

 private:
  std::vector<float> batches_;
  DeviceBuffer weights_ = support::on_device(std::vector<float>(count, 5.0F));
  DeviceBuffer gradient_ = support::on_device(std::vector<float>(count, 0.0F));
  DeviceBuffer batch_ = support::on_device(std::vector<float>(count, 0.0F));
  dtrain::Device device_{DeviceKind::cuda, weights_.device()};
  std::vector<dtrain::Parameter> list_{
      {"weights", {weights_.data(), {count}, DType::f32, device_}, {gradient_.data(), {count}, DType::f32, device_}}};
};

}  // namespace

TEST_CASE("the guide's training by one graph clips each step, and leaves out one that overflows, on all ranks") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    REQUIRE(support::enough_devices(ranks));
    std::barrier together(ranks);
    run_well<NcclPolicy>(ranks, [&](const dtrain::ProcessGroup<NcclPolicy>& group) {
      const float infinite = group.rank() == 0 ? std::numeric_limits<float>::infinity() : 1.0F;
      Model model({0.001F, 2.0F, infinite, -3.0F, 8.0F});
      DistributedDataParallel ddp{model, group};
      const Stream stream;
      together.arrive_and_wait();
      shared::train_by_graph(model, ddp, 5, stream.ref());
      const float clipped = 1 / std::sqrt(static_cast<float>(Model::count));
      for (const float weight : model.weights())
        CHECK(std::abs(weight - (5 - 0.001F - clipped + clipped - clipped)) < 1e-5F);
      together.arrive_and_wait();
    });
  }
}

#else

TEST_CASE("the guide's training by one graph clips each step, and leaves out one that overflows, on all ranks") {
  dtrain_test::skip("the kernels of the model are the emulation's");
}

#endif
