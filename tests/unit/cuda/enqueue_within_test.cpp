#include "dtrain/backend/nccl.hpp"
#include "dtrain/backend/staged.hpp"
#include "dtrain/core/config.hpp"
#include "dtrain/ddp/hooks/local_sgd.hpp"
#include "dtrain/distributed_data_parallel.hpp"
#include "dtrain/group/group_internals.hpp"
#include "dtrain/launch/per_process.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/pinned_buffer.hpp"
#include "dtrain/stream/cuda/stream.hpp"
#include "support/gate.hpp"
#include "support/nccl_rank.hpp"
#include "support/thread_group.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

constexpr std::size_t count = 1000;
constexpr std::size_t bytes = count * sizeof(float);

/// Calls that wait for a device, or in which the host waits; 0 on a GPU, where nobody counts them.
int waits() {
#if DTRAIN_EMULATED_CUDA
  return emulation::device_waits() + emulation::host_waits();
#else
  return 0;
#endif
}

/// Each rank's stream writes rank + 1, reads the sum, and is held up before both. Rank 1 is held up until rank 0 has
/// been let go: the sum is not there yet when rank 0's stream has written.
template <class Policy>
void expect_order() {
  std::atomic<bool> first_has_written{false};
  run_well<Policy>(2, [&](const dtrain::ProcessGroup<Policy>& group) {
    const auto& internals = dtrain::group::GroupAccess::of(group);
    const support::DeviceBuffer values = support::on_device(std::vector<float>(count, 0.0F));
    const dtrain::BufferView view{values.data(), count, dtrain::DType::f32, group.stream().device()};
    PinnedBuffer source(bytes), result(bytes);
    std::fill_n(reinterpret_cast<float*>(source.data()), count, static_cast<float>(group.rank() + 1));
    const Stream program;
    dtrain::stream::cuda::ExternalEvent held;  // CUDA runs one host function at a time: it would hold up both ranks
    const auto copy = [&](void* to, const void* from, cudaMemcpyKind kind) {
      check(cudaMemcpyAsync(to, from, bytes, kind, program.ref().native()), "cudaMemcpyAsync");
    };
    group.all_reduce(view);  // NCCL's first collective connects the ranks
    group.barrier();
    Event written, read;
    program.ref().wait(held, dtrain::Deadline::after(std::chrono::seconds(60)));
    const int waits_before = waits();
    copy(values.data(), source.data(), cudaMemcpyHostToDevice);
    program.ref().record(written);
    enqueue_within(internals, program.ref().handle(), dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum});
    copy(result.data(), values.data(), cudaMemcpyDeviceToHost);
    program.ref().record(read);
    CHECK((waits() == waits_before && !read.is_complete()));
    if (group.rank() == 1) CHECK(support::holds_soon([&] { return first_has_written.load(); }));
    held.signal();
    if (group.rank() == 0) {
      CHECK(written.block_until_complete(dtrain::Deadline::after(std::chrono::seconds(60))) ==
            dtrain::stream::WaitResult::complete);
      first_has_written = true;
    }
    wait_for_stream(internals, program.ref().handle());
    const float* const sums = reinterpret_cast<const float*>(result.data());
    CHECK((read.is_complete() && std::vector<float>(sums, sums + count) == std::vector<float>(count, 3)));
    group.barrier();
  });
}

/// Weights in device memory, which a stream of the program writes.
struct WrittenOnStream {
  static constexpr dtrain::DeviceKind device_kind = dtrain::DeviceKind::cuda;

  const std::vector<dtrain::Parameter>& parameters() const { return list; }
  const void* identity(std::size_t) const { return values.data(); }
  dtrain::ddp::ReadValue value_reader() const {
    return [view = list[0].value, stream = stream.ref().handle()](std::size_t) {
      return dtrain::ddp::PresentValue{view, 0, stream};
    };
  }

  support::DeviceBuffer values = support::on_device(std::vector<float>(count, 0.0F));
  support::DeviceBuffer gradients = support::on_device(std::vector<float>(count, 0.0F));
  Stream stream;
  const dtrain::Device device{dtrain::DeviceKind::cuda, dtrain::stream::cuda::current_device()};
  std::vector<dtrain::Parameter> list{{"w",
                                       {values.data(), {count}, dtrain::DType::f32, device},
                                       {gradients.data(), {count}, dtrain::DType::f32, device}}};
};

}  // namespace

TEST_CASE("a rank that leaves takes part to the end in its last collective within a stream") {
  if (!support::enough_devices(1)) return;
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  struct Rank {
    support::DeviceBuffer values = support::on_device(std::vector<float>(count, 0.0F));
    PinnedBuffer source{bytes};
    Stream program;
    dtrain::stream::cuda::ExternalEvent held;
  };
  std::array<Rank, 2> ranks;  // their memory outlives the groups
  std::atomic<bool> first_leaves{false};
  run_well<StagedPolicy>(2, [&](const dtrain::ProcessGroup<StagedPolicy>& group) {
    Rank& self = ranks[static_cast<std::size_t>(group.rank())];
    std::fill_n(reinterpret_cast<float*>(self.source.data()), count, static_cast<float>(group.rank() + 1));
    const dtrain::BufferView view{self.values.data(), count, dtrain::DType::f32, group.stream().device()};
    const bool is_late = group.rank() == 1;
    if (is_late) self.program.ref().wait(self.held, dtrain::Deadline::after(std::chrono::seconds(60)));
    check(cudaMemcpyAsync(self.values.data(), self.source.data(), bytes, cudaMemcpyHostToDevice,
                          self.program.ref().native()),
          "cudaMemcpyAsync");
    const auto& internals = dtrain::group::GroupAccess::of(group);
    enqueue_within(internals, self.program.ref().handle(),
                   dtrain::backend::AllReduce{view, view, dtrain::ReduceOp::sum});
    if (is_late) {
      CHECK(support::holds_soon([&] { return first_leaves.load(); }));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // in which the other rank would be gone
      self.held.signal();
      wait_for_stream(internals, self.program.ref().handle());
    }
    first_leaves = true;
  });
  for (const Rank& rank : ranks)
    CHECK(support::on_host<float>(rank.values.data(), count) == std::vector<float>(count, 3));
  ::unsetenv("DTRAIN_SHARE_DEVICES");
}

TEST_CASE("an average of weights that a stream of the program writes comes after that stream's work") {
  if (!support::enough_devices(1)) return;
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  std::atomic<int> averaging{0};
  run_well<StagedPolicy>(2, [&](const dtrain::ProcessGroup<StagedPolicy>& group) {
    WrittenOnStream model;
    dtrain::hooks::LocalSgd local{{.every = 1}};
    dtrain::DistributedDataParallel ddp{model, group, {}, std::ref(local)};
    PinnedBuffer source(bytes);
    std::fill_n(reinterpret_cast<float*>(source.data()), count, static_cast<float>(group.rank() + 1));
    dtrain::stream::cuda::ExternalEvent held;
    group.barrier();
    model.stream.ref().wait(held, dtrain::Deadline::after(std::chrono::seconds(60)));
    check(
        cudaMemcpyAsync(model.values.data(), source.data(), bytes, cudaMemcpyHostToDevice, model.stream.ref().native()),
        "cudaMemcpyAsync");
    std::thread releasing([&] {
      CHECK(support::holds_soon([&] { return averaging.load() == 2; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // in which the average would read zeros
      held.signal();
    });
    ++averaging;
    CHECK(local.average(group));
    releasing.join();
    CHECK(support::completes(model.stream.ref()));
    CHECK(support::on_host<float>(model.values.data(), count) == std::vector<float>(count, 1.5F));
    group.barrier();
  });
  ::unsetenv("DTRAIN_SHARE_DEVICES");
}

TEST_CASE("a collective within a stream of the program runs between its work, and the host waits for nothing") {
  if (support::enough_devices(2)) {
    expect_order<dtrain::Policy<dtrain::launch::PerProcess, dtrain::backend::Nccl>>();
  } else {
    dtrain_test::skip("two ranks over NCCL need two devices");
  }
  if (!support::enough_devices(1)) return;
  ::setenv("DTRAIN_SHARE_DEVICES", "1", 1);
  expect_order<StagedPolicy>();
  ::unsetenv("DTRAIN_SHARE_DEVICES");
}
