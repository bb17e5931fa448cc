#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

namespace nccl = dtrain::backend::nccl;

using Threaded = dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.launches_in_caller = false}>;

/// A watched channel of rank 0 with a communicator of its own, which launches in the calling thread.
struct WatchedChannel {
  WatchedChannel(const std::shared_ptr<FakeJob>& job, int ranks, std::chrono::nanoseconds timeout)
      : latch(job->latch(0)),
        channel(std::make_shared<nccl::Channel>(support::channel_context(job, 0, ranks, "group", timeout),
                                                dtrain::backend::NcclOptions{}, 0, nccl::Launches::in_caller)) {
    const auto held = channel->comm_lock.lock();
    ncclUniqueId id{};
    ncclComm_t made = nullptr;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclCommInitRank(&made, 1, id, 0) == ncclSuccess);
    channel->comm_lock.adopt(held, made);
    watchdog.emplace(channel);
  }

  /// A call that waits for other ranks, as NCCL's first operations do, until the job has failed.
  auto call_until_failure() const {
    return [this](ncclComm_t) {
      CHECK(latch->block_until_failed(Deadline::after(60s)));
      return ncclRemoteError;
    };
  }

  std::shared_ptr<dtrain::FailureLatch> latch;
  dtrain::stream::cuda::CommunicationStream stream;
  std::shared_ptr<nccl::Channel> channel;
  std::optional<nccl::Watchdog> watchdog;
};

/// A sum in a channel, and in the parts that it is split into.
template <class Backend>
void expect_sums_in_parts() {
  const EmulatedDevices faults(3);
  const auto job = std::make_shared<FakeJob>(3);
  std::atomic<bool> comes{false};
  run_thread_ranks(3, [&](RankThread& thread) {
    dtrain::stream::cuda::check(cudaSetDevice(thread.rank()), "cudaSetDevice");
    NcclRank whole(
        job->latch(thread.rank()),
        Backend::open_blocking(support::channel_context(job, thread.rank(), 3, "group", 10s), Deadline::after(60s)));
    if (thread.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      comes = true;
    }
    thread.doing("reducing in the whole");
    NcclRank part(whole.latch, [&] {
      const auto sum = whole.put<float>({1, 1});
      whole.communicator.enqueue(AllReduce{sum.view(), sum.view(), ReduceOp::sum}, whole.stream.ref());
      CHECK(comes.load());
      CHECK(whole.wait());
      CHECK(NcclRank::get<float>(sum) == std::vector<float>{3, 3});
      thread.doing("splitting");
      return whole.communicator.split_blocking(thread.rank() % 2, 0, Deadline::after(60s));
    }());
    thread.doing("reducing in the part");
    const auto sum = part.put<float>({1});
    part.communicator.enqueue(AllReduce{sum.view(), sum.view(), ReduceOp::sum}, part.stream.ref());
    CHECK(part.wait());
    CHECK(NcclRank::get<float>(sum) == std::vector<float>{thread.rank() == 1 ? 1.0F : 2.0F});
    thread.doing("closing");
  });
}

}  // namespace

TEST_CASE("the first operation of a kind waits on the host until all ranks have called it, and the next do not") {
  const EmulatedDevices faults(2);
  std::atomic<bool> comes{false};
  std::atomic<bool> has_returned{false};
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread& thread) {
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    if (thread.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      comes = true;
    }
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    CHECK(comes.load());
    if (thread.rank() == 1) {
      CHECK(support::holds_soon([&] { return has_returned.load(); }));
    }
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    has_returned = true;
    CHECK(self.wait());
    CHECK(on_host<float>(memory.data(), 2) == std::vector<float>{4, 4});
  });
}

TEST_CASE("a first operation that a rank does not call ends by the timeout, and names that rank") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2, "group", 1s);
    if (thread.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
      return;
    }
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    const auto reduce = [&] { self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref()); };
    const std::string why = support::sentence_of(reduce);
    CAPTURE(why);
    CHECK(support::contains(why, "it had not ended after 1.0 s; rank 1 of the channel is in none"));
  });
}

TEST_CASE("channels and the channels split from them launch in the calling thread, or in threads of NCCL's") {
  SUBCASE("in the calling thread") {
    expect_sums_in_parts<Nccl>();
  }
  SUBCASE("in threads") {
    expect_sums_in_parts<Threaded>();
  }
}

TEST_CASE("an operation in whose call a blocking communicator waits times out, and names the rank that does not come") {
  const EmulatedDevices faults(1);
  const auto job = std::make_shared<FakeJob>(2);  // rank 1 never comes
  const WatchedChannel watched(job, 2, 1s);
  dtrain::backend::Operation operation;
  operation.kind = dtrain::backend::OperationKind::all_reduce;
  operation.count = 8;
  operation.dtype = DType::f32;
  operation.sequence = 1;
  const std::string why = support::sentence_of([&] {
    watched.channel->issue(operation, {}, "ncclAllReduce", watched.stream.ref(), watched.call_until_failure());
  });
  CAPTURE(why);
  CHECK(support::contains(why, "all_reduce (sum) of 8 f32, operation 1"));
  CHECK(support::contains(why, "it had not ended after 1.0 s; rank 1 of the channel is in none"));
}

TEST_CASE("any other call in which a blocking communicator waits is late 5 s after its deadline") {
  const EmulatedDevices faults(1);
  const auto job = std::make_shared<FakeJob>(1);
  const WatchedChannel watched(job, 1, 1s);
  const std::string why = support::sentence_of(
      [&] { watched.channel->manage("waiting", Deadline::after(100ms), watched.call_until_failure()); });
  CAPTURE(why);
  CHECK(support::contains(why, "a call to NCCL on channel 'group' has not returned in time"));
}

TEST_CASE("a collective that NCCL launches in a thread becomes part of the graph that is captured") {
  const EmulatedDevices faults(2);
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread&) {
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    const cudaStream_t stream = self.stream.ref().native();
    support::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    support::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    support::check(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < 3; ++i)
      support::check(cudaGraphLaunch(runnable, stream), "cudaGraphLaunch");
    CHECK(self.wait());
    CHECK(on_host<float>(memory.data(), 2) == std::vector<float>{8, 8});
    support::check(cudaGraphExecDestroy(runnable), "cudaGraphExecDestroy");
    support::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  });
}

#endif  // DTRAIN_EMULATED_CUDA
