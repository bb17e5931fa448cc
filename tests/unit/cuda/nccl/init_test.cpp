#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

/// Of the channel "group": the same ranks' channel "ddp", as a wrapper opens it.
NcclRank::Communicator duplicate(NcclRank& of, const std::shared_ptr<FakeJob>& job,
                                 std::chrono::nanoseconds timeout = 10s) {
  return Nccl::duplicate_blocking(of.communicator,
                                  channel_context(job, of.communicator.rank(), of.communicator.size(), "ddp", timeout),
                                  Deadline::after(timeout));
}

/// Whether the sum of ones is the number of ranks.
bool sums_up(NcclRank& self) {
  const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
  self.communicator.enqueue(
      AllReduce{self.view(memory, 8, DType::f32), self.view(memory, 8, DType::f32), ReduceOp::sum}, self.stream.ref());
  return self.wait() && support::on_host<float>(memory.data(), 8) ==
                            std::vector<float>(8, static_cast<float>(self.communicator.size()));
}

}  // namespace

TEST_CASE("channels of the same ranks initialise NCCL once, also with work enqueued on the first") {
  const EmulatedDevices emulated(3);
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    NcclRank group(job, thread.rank(), 3);
    const DeviceBuffer memory = on_device(std::vector<float>{1});
    const auto view = group.view(memory, 1, DType::f32);
    support::enqueue_delay(group.stream.ref(), 50ms);
    group.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, group.stream.ref());
    thread.doing("opening the others");
    NcclRank one(group.latch, duplicate(group, job));
    CHECK(support::on_host<float>(memory.data(), 1)[0] == 3);
    NcclRank other(group.latch, duplicate(group, job));
    CHECK(one.communicator.rank() == thread.rank());
    CHECK(one.communicator.members().world_size == 3);
    thread.doing("reducing");
    for (NcclRank* const each : {&other, &group, &one})
      CHECK(sums_up(*each));
  });
  CHECK(emulation::initialisations() == 3);
}

TEST_CASE("a channel and one that was opened from it close in either order, and the other one serves on") {
  const EmulatedDevices emulated(2);
  for (const bool group_first : {false, true}) {
    CAPTURE(group_first);
    const auto job = std::make_shared<FakeJob>(2);
    run_thread_ranks(2, [&](RankThread& thread) {
      std::optional<NcclRank> group(std::in_place, job, thread.rank(), 2);
      std::optional<NcclRank> ddp(std::in_place, group->latch, duplicate(*group, job));
      auto& first = group_first ? group : ddp;
      auto& second = group_first ? ddp : group;
      thread.doing("closing one");
      first.reset();
      CHECK(sums_up(*second));
      thread.doing("closing the other");
      second.reset();
      CHECK(!job->latch(thread.rank())->failed());
    });
  }
  CHECK(AbandonedThreads::count() == 0);
}

TEST_CASE("a failure of a channel that was opened from another is named, and ends that one too") {
  const EmulatedDevices emulated(2);
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<int> open{0};
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank group(job, thread.rank(), 2);
    NcclRank ddp(group.latch, duplicate(group, job, 1s));
    if (++open == 2) {
      emulation::fault_in_operation(emulation::Fault::hang, 1, 1);
    }
    CHECK(holds_soon([&] { return open.load() == 2; }));
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    const auto view = ddp.view(memory, 8, DType::f32);
    ddp.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, ddp.stream.ref());
    CHECK(!ddp.wait());
    REQUIRE(ddp.communicator.failure());
    CHECK_MESSAGE(
        contains(ddp.communicator.failure()->sentence(), "all_reduce (sum) of 8 f32, operation 1 of channel 'ddp'"),
        ddp.communicator.failure()->sentence());
    CHECK(holds_soon([&] { return group.communicator.failure().has_value(); }));
    CHECK(error_of([&] { group.communicator.enqueue(Barrier{}, group.stream.ref()); }).code());
  });
}

TEST_CASE("a channel is not opened from one whose work does not run, and the sentence names both") {
  const EmulatedDevices emulated(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank group(job, thread.rank(), 2);
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    const auto view = group.view(memory, 8, DType::f32);
    group.connect();
    if (thread.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
      const std::string why = job->latch(1)->cause()->sentence();
      CHECK_MESSAGE(
          contains(why, "opening channel 'ddp' from channel 'group': the work enqueued on that one had not run"), why);
      return;
    }
    group.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, group.stream.ref());
    const auto error = error_of([&] { static_cast<void>(duplicate(group, job, 500ms)); });
    CHECK(error.code() == make_error_code(Errc::timeout));
  });
}

TEST_CASE("a split that NCCL refuses names the channel that was to be opened") {
  const EmulatedDevices emulated(1);
  const auto job = std::make_shared<FakeJob>(1);
  NcclRank group(job, 0, 1);
  emulation::fail("ncclCommSplit", 1, ncclSystemError);
  const auto error = error_of([&] { static_cast<void>(duplicate(group, job)); });
  REQUIRE(error.code());
  CHECK_MESSAGE(contains(error.what(),
                         "opening channel 'ddp' by ncclCommSplit on channel 'group' on rank 0, device 0: "
                         "ncclSystemError"),
                error.what());
  CHECK(job->latch(0)->failed());
}

TEST_CASE("a channel that adds 16-bit floats up in f32 is not opened from another over NCCL either") {
  const EmulatedDevices emulated(1);
  const auto job = std::make_shared<FakeJob>(1);
  NcclRank group(job, 0, 1);
  const auto context = channel_context(job, 0, 1, "ddp", 10s, {}, dtrain::Accumulate::f32);
  const auto error =
      error_of([&] { static_cast<void>(Nccl::duplicate_blocking(group.communicator, context, Deadline::after(60s))); });
  CHECK(error.code() == make_error_code(Errc::unsupported));
  CHECK(sums_up(group));
}

#endif  // DTRAIN_EMULATED_CUDA
