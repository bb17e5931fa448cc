#include "dtrain/backend/nccl/remedy.hpp"
#include "unit/cuda/prelude.hpp"

using dtrain::backend::nccl::shared_memory_remedy;

TEST_CASE("a remedy says how much of /dev/shm is free, or why that is not known") {
  const std::string remedy = shared_memory_remedy();
  CAPTURE(remedy);
  CHECK(contains(remedy, "/dev/shm has "));
  CHECK(contains(remedy, " MB free of "));
  CHECK(contains(remedy,
                 "; NCCL needs about 34 MB there for each rank and communicator when ranks are on several nodes"));
  CHECK(contains(shared_memory_remedy("/nowhere"), "/nowhere cannot be read (No such file or directory); NCCL needs"));
}

#if DTRAIN_EMULATED_CUDA
TEST_CASE("a rank that cannot connect to another host for want of memory in /dev/shm says so") {
  const EmulatedDevices devices(2);
  emulation::set_devices_per_host(1);
  emulation::limit_shared_memory(35'000'000);
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<int> refused{0};
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2);
    const auto one = self.put<float>({1});
    const auto error = error_of([&] {
      self.communicator.enqueue(AllReduce{one.view(), one.view(), ReduceOp::sum}, self.stream.ref());
    });
    CHECK(!self.wait());  // the other has the memory, and waits for this one
    if (!error.code() || error.code().value() != ncclSystemError) return;
    CAPTURE(std::string(error.what()));
    CHECK(contains(error.what(), "all_reduce (sum) of 1 f32 by ncclAllReduce on channel 'group'"));
    CHECK(contains(error.what(), "ncclSystemError"));
    CHECK(contains(error.what(), "; NCCL_DEBUG=WARN makes NCCL say more; /dev/shm has "));
    CHECK(contains(error.what(), "docker run --shm-size=1g or --ipc=host"));
    ++refused;
  });
  CHECK(refused.load() == 1);
}
#endif
