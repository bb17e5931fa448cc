#include "dtrain/ddp/precision/device_loss_scaler.hpp"
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

#include "dtrain/ddp/step.hpp"

namespace {

/// Calls of one step of all ranks that wait for a device, or for anything of it.
struct Waits {
  int for_devices = 0;
  int of_host = 0;
};

struct Training {
  bool bound = false;
  bool casts = false;  ///< by hooks::Cast
  bool measures_norm = false;
  bool clips = false;  ///< and multiplies by 2, and divides by a DeviceLossScaler's scale
};

/// Of each step, the first one included.
std::vector<Waits> waits_of_steps(int ranks, const Training& training) {
  const EmulatedDevices emulated(ranks);
  const auto job = std::make_shared<FakeJob>(ranks);
  std::vector<Waits> all(3);
  std::barrier together(ranks);
  run_thread_ranks(ranks, [&](RankThread& self) {
    CudaTrainingRank::Wanted wanted{.caps = {256, 2048}, .bound = training.bound, .streams = 2};
    if (training.casts) {
      wanted.hook =
          dtrain::ddp::hook_functions<dtrain::backend::Nccl::Communicator>(dtrain::hooks::Cast<dtrain::bfloat16>());
    }
    CudaTrainingRank rank(job, self.rank(), ranks, std::move(wanted));
    dtrain::DeviceLossScaler scaler({.initial_scale = 2});
    together.arrive_and_wait();  // all are constructed
    for (Waits& waits : all) {
      rank.prepare_all(static_cast<float>(2 * self.rank()));
      const Waits before{emulation::device_waits(), emulation::host_waits()};
      together.arrive_and_wait();
      dtrain::StepOptions options{.measure_norm = training.measures_norm};
      if (training.clips) {
        options.clip_norm = 1e6;
        options.scaler = &scaler;
      }
      rank.computed_step(options);
      if (training.clips) {
        rank.reducer->scale_gradients(2);
        rank.reducer->scale_gradients(1, 1e6);
      }
      rank.use_all();
      together.arrive_and_wait();
      if (self.rank() == 0) {
        waits = {emulation::device_waits() - before.for_devices, emulation::host_waits() - before.of_host};
      }
      together.arrive_and_wait();
      CHECK(rank.wait());
      CHECK(rank.result(0) == std::vector<float>(rank.size(0), static_cast<float>(ranks - 1)));
    }
  });
  return all;
}

}  // namespace

TEST_CASE("a training step, with clipping too, waits for no device, and the host for nothing of it") {
  for (const int ranks : {1, 2}) {
    for (const Training& training :
         {Training{}, Training{.bound = true}, Training{.casts = true}, Training{.measures_norm = true},
          Training{.bound = true, .measures_norm = true}, Training{.clips = true},
          Training{.measures_norm = true, .clips = true}, Training{.bound = true, .clips = true},
          Training{.bound = true, .measures_norm = true, .clips = true}}) {
      CAPTURE(ranks);
      CAPTURE(training.bound);
      CAPTURE(training.casts);
      CAPTURE(training.measures_norm);
      CAPTURE(training.clips);
      for (const Waits& waits : waits_of_steps(ranks, training)) {
        CHECK(waits.for_devices == 0);
        CHECK(waits.of_host == 0);
      }
    }
  }
}

#endif  // DTRAIN_EMULATED_CUDA
