#include "dtrain/backend/channel_setup/device_selection.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

namespace cuda = dtrain::backend::cuda;
using dtrain::identity::ProcessIdentity;

[[maybe_unused]] ProcessIdentity identity_of(int local_rank, int local_world_size) {
  ProcessIdentity identity;
  identity.rank = identity.local_rank.emplace(local_rank);
  identity.world_size = identity.local_world_size.emplace(local_world_size);
  return identity;
}

void compare(const std::shared_ptr<FakeJob>& job, const RankThread& self, bool may_share,
             const std::string& name = "group") {
  cuda::compare_devices_blocking(support::channel_context(job, self.rank(), self.size(), name, 20s),
                                 cuda::sharing(may_share), Deadline::after(60s));
}

}  // namespace

TEST_CASE("DTRAIN_SHARE_DEVICES is 0, 1 or not set") {
  CHECK_FALSE(cuda::shares_devices({}));
  CHECK_FALSE(cuda::shares_devices({{"DTRAIN_SHARE_DEVICES", ""}}));
  CHECK_FALSE(cuda::shares_devices({{"DTRAIN_SHARE_DEVICES", "0"}}));
  CHECK(cuda::shares_devices({{"DTRAIN_SHARE_DEVICES", "1"}}));
  CHECK_THROWS_WITH_AS(cuda::shares_devices({{"DTRAIN_SHARE_DEVICES", "yes"}}), doctest::Contains("='yes'"), Error);
}

TEST_CASE("a device that two ranks of a node take is refused on all of them, and both are named") {
  run_thread_ranks(3, [job = std::make_shared<FakeJob>(3)](RankThread& self) {
    CHECK_THROWS_WITH_AS(compare(job, self, false),
                         doctest::Contains("ranks 0 and 1 on host host-0 both compute on device"), Error);
  });
}

TEST_CASE("ranks that were asked to share a device may, if all were") {
  run_thread_ranks(2, [job = std::make_shared<FakeJob>(2)](RankThread& self) { compare(job, self, true); });
  run_thread_ranks(2, [job = std::make_shared<FakeJob>(2)](RankThread& self) {
    CHECK_THROWS_WITH_AS(compare(job, self, self.rank() == 0), doctest::Contains("DTRAIN_SHARE_DEVICES=1"), Error);
  });
}

TEST_CASE("ranks that may share a device only as processes are refused as threads, whatever stands between them") {
  using cuda::DeviceSharing;
  using cuda::detail::DeviceAssignment;
  const auto rank = [](int number, DeviceSharing sharing, const std::string& process,
                       const std::string& device = "GPU-1") {
    return DeviceAssignment{sharing, device, number, "node", process};
  };
  const auto processes = DeviceSharing::processes;
  using cuda::detail::first_conflict;
  CHECK(first_conflict({rank(0, processes, "a"), rank(1, processes, "b")}).empty());
  CHECK(first_conflict({rank(0, processes, "a"), rank(1, processes, "a", "GPU-2")}).empty());
  CHECK(first_conflict({rank(0, DeviceSharing::any, "a"), rank(1, DeviceSharing::any, "a")}).empty());
  for (const DeviceSharing other : {processes, DeviceSharing::any}) {
    CHECK(first_conflict({rank(0, processes, "a"), rank(1, processes, "b"), rank(2, other, "a")}) ==
          "ranks 0 and 2 on host node are threads of one process and both compute on device GPU-1, where each would "
          "wait for the other in NCCL's implicit launch order; make each rank a process, or set "
          "NCCL_LAUNCH_ORDER_IMPLICIT=0 for the process");
  }
  CHECK(first_conflict({rank(0, processes, "a"), rank(1, DeviceSharing::none, "a")}) ==
        "ranks 0 and 1 on host node both compute on device GPU-1; give each rank its own (LOCAL_RANK, "
        "CUDA_VISIBLE_DEVICES), or let them share one by DTRAIN_SHARE_DEVICES=1 (with NCCL also "
        "NCCL_MULTI_RANK_GPU_ENABLE=1, which needs NCCL 2.30.3)");
}

TEST_CASE("devices are compared when a job's first channel opens, and not again") {
  run_thread_ranks(2, [job = std::make_shared<FakeJob>(2)](RankThread& self) { compare(job, self, false, "ddp-0"); });
}

TEST_CASE("a channel of two ranks on one device is refused where nobody asked for that") {
  run_thread_ranks(2, [job = std::make_shared<FakeJob>(2)](RankThread& self) {
    const auto open = [&] {
      dtrain::backend::Staged<dtrain::backend::SharedMemory>::open_blocking(
          support::channel_context(job, self.rank(), self.size(), "group", 20s), Deadline::after(60s));
    };
    CHECK_THROWS_WITH_AS(open(), doctest::Contains("both compute on device"), Error);
  });
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("each rank takes the device of its local rank, which becomes its thread's") {
  emulation::set_device_count(4);
  CHECK(cuda::visible_devices() == 4);
  run_thread_ranks(4, [job = std::make_shared<FakeJob>(4)](RankThread& self) {
    cuda::take_device(identity_of(self.rank(), 4), false);
    CHECK(dtrain::stream::cuda::current_device() == self.rank());
    compare(job, self, false);
  });
  CHECK_THROWS_WITH_AS(cuda::take_device(identity_of(4, 8), false), doctest::Contains("finds 4 devices"), Error);
  run_thread_ranks(1, [](RankThread&) {
    cuda::take_device(identity_of(6, 8), true);
    CHECK(dtrain::stream::cuda::current_device() == 2);
  });
  emulation::set_device_count(1);
}

TEST_CASE(
    "a device has an error once CUDA fails every call on it, and none while work is pending or another one has it") {
  const EmulatedDevices emulated(2);
  EXPECT_SUCCESS(cudaSetDevice(1));
  Gate gate;
  emulation::launch(cudaStreamLegacy, [&gate] { gate.pass(); });
  EXPECT_SUCCESS(cudaSetDevice(0));
  CHECK_FALSE(cuda::device_error(identity_of(1, 2), false));
  gate.open();
  {
    const DeviceGuard guard(1);
    EXPECT_SUCCESS(cudaStreamSynchronize(cudaStreamLegacy));
  }
  CHECK_FALSE(cuda::device_error(identity_of(0, 2), false));
  CHECK_FALSE(cuda::device_error(identity_of(2, 3), false));  // it has none, as take_device() says
  emulation::break_device(1);
  CHECK_FALSE(cuda::device_error(identity_of(0, 2), false));
  for (const int current : {0, 1}) {
    CAPTURE(current);
    static_cast<void>(quiet(cudaSetDevice(current)));
    const std::optional<Error> found = cuda::device_error(identity_of(1, 2), false);
    REQUIRE(found);
    CHECK(found->code() == std::error_code(cudaErrorIllegalAddress, cuda_category()));
    CHECK_CONTAINS(std::string(found->what()), "every call of CUDA fails on the device of local rank 1",
                   "cudaErrorIllegalAddress");
  }
}

TEST_CASE("a machine without devices has none to count or to take") {
  emulation::fail("cudaGetDeviceCount", 1, cudaErrorNoDevice);
  CHECK(cuda::visible_devices() == 0);
  emulation::fail("cudaGetDeviceCount", 1, cudaErrorInsufficientDriver);
  CHECK_THROWS_WITH_AS(cuda::take_device(identity_of(0, 1), false), doctest::Contains("no CUDA device is visible"),
                       Error);
  emulation::fail("cudaGetDeviceCount", 1, cudaErrorIllegalAddress);
  CHECK_THROWS_WITH_AS(cuda::visible_devices(), doctest::Contains("cudaErrorIllegalAddress"), Error);
  CHECK(cudaGetLastError() == cudaSuccess);
  emulation::reset();
}
#endif
