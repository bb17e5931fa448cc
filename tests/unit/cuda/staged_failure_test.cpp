#include "support/communicator_contract.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::Cause;
using dtrain::JobFailed;

constexpr std::size_t several_pieces = 700'001;

void reduce(StagedRank<>& rank, const BufferView& view) {
  rank.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, rank.ref());
}

std::string text_of(const std::optional<Cause>& cause) {
  return cause ? cause->text : "no failure";
}

}  // namespace

COMMUNICATOR_FAILURE_CONTRACT(StagedRank<>)

// Where ranks are threads on one device, what leaving frees waits for the device's work, that of the other rank too.
TEST_CASE("a rank that leaves the channel while another waits for it is named") {
  std::barrier enqueued(2);
  support::run_opened_ranks<StagedRank<>>({2, "staged", 1h}, [&](StagedRank<>& rank, RankThread& self) {
    const BufferView view = rank.put(std::vector<float>(several_pieces, 1));
    if (self.rank() == 0) reduce(rank, view);
    enqueued.arrive_and_wait();
    if (self.rank() == 1) return;
    CHECK_FALSE(rank.wait());
    CHECK_CONTAINS(text_of(rank.communicator.failure()), "rank 1", "left the channel");
  });
}

TEST_CASE("a CUDA stream that does not come to staged work ends it by the peers' timeout, on every rank") {
  std::barrier failed(2);
  support::run_opened_ranks<StagedRank<>>({2, "staged", 300ms}, [&](StagedRank<>& rank, RankThread& self) {
    const BufferView view = rank.put(std::vector<float>(several_pieces, 1));
    dtrain::stream::cuda::ExternalEvent held;  // a host function would hold up those of both ranks' streams
    if (self.rank() == 1) {
      rank.ref().wait(held, Deadline::after(60s));
    }
    reduce(rank, view);
    CHECK(support::holds_soon([&] { return rank.communicator.failure().has_value(); }));
    CHECK(rank.latch->block_until_failed(Deadline::after(60s)));
    CHECK(rank.latch->cause()->kind == CauseKind::timeout);
    CHECK(text_of(rank.latch->cause()).find("rank 1") != std::string::npos);
    failed.arrive_and_wait();
    held.signal();
    CHECK(rank.passes());
  });
}

TEST_CASE("what a CUDA stream has to do before staged work does not count against its timeout") {
  std::barrier waited(2);
  run_ranks<StagedRank<>>({2, "staged", 1s}, [&](StagedRank<>& rank, RankThread&) {
    const BufferView view = rank.put(std::vector<float>(several_pieces, 1));
    dtrain::stream::cuda::ExternalEvent held;
    rank.ref().wait(held, Deadline::after(60s));
    reduce(rank, view);
    std::this_thread::sleep_for(1500ms);
    waited.arrive_and_wait();
    held.signal();
    CHECK(rank.passes());
    CHECK_FALSE(rank.communicator.failure());
  });
}

TEST_CASE("staged work on a stream that is being captured is refused, and the channel serves on") {
  StagedRank<> rank(std::make_shared<FakeJob>(1), 0, 1);
  const BufferView view = rank.put(std::vector<float>{1, 2});
  support::check(cudaStreamBeginCapture(rank.ref().native(), cudaStreamCaptureModeThreadLocal),
                 "cudaStreamBeginCapture");
  CHECK_THROWS_WITH_AS(reduce(rank, view), doctest::Contains("a graph cannot hold what the host does"), Error);
  cudaGraph_t graph = nullptr;
  support::check(cudaStreamEndCapture(rank.ref().native(), &graph), "cudaStreamEndCapture");
  support::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  reduce(rank, view);
  CHECK(rank.wait());
}

#if DTRAIN_EMULATED_CUDA

namespace {

/// Two ranks with a device each, and what the second one's calls return.
template <class Body>
void with_two_devices(Body body) {
  emulation::set_device_count(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& self) {
    support::check(cudaSetDevice(self.rank()), "cudaSetDevice");
    body(self, job);
  });
  emulation::reset();
}

/// The job's cause on a rank that did not fail itself.
std::string cause_on(const StagedRank<>& rank) {
  rank.latch->block_until_failed(Deadline::after(60s));
  return text_of(rank.latch->cause());
}

}  // namespace

TEST_CASE("where devices cannot wait for memory, staged work waits in a thread of the runtime") {
  emulation::set_stream_memory_operations(false);
  with_two_devices([](RankThread& self, const std::shared_ptr<FakeJob>& job) {
    StagedRank<> rank(job, self.rank(), self.size());
    const BufferView view = rank.put(std::vector<float>(several_pieces, 2));
    for (int i = 0; i < 3; ++i)
      reduce(rank, view);
    REQUIRE(rank.wait());
    CHECK(rank.get<float>(view) == std::vector<float>(several_pieces, 16));
  });
  emulation::reset();
}

TEST_CASE("a copy that fails throws at the call, and the other ranks end with what went wrong") {
  struct Fault {
    const char* call;
    int nth;
  };
  for (const Fault& fault :
       {Fault{"cudaMemcpyAsync", 1}, Fault{"cudaMemcpyAsync", 2}, Fault{"cudaMemcpyAsync", 5},
        Fault{"cudaEventRecord", 1}, Fault{"cudaEventRecord", 6}, Fault{"cudaStreamWaitEvent", 1}}) {
    std::barrier ready(2);
    with_two_devices([&](RankThread& self, const std::shared_ptr<FakeJob>& job) {
      StagedRank<> rank(job, self.rank(), self.size());
      const BufferView view = rank.put(std::vector<float>(several_pieces, 1));
      ready.arrive_and_wait();
      if (self.rank() == 1) {
        emulation::fail(fault.call, fault.nth, cudaErrorIllegalAddress, 1);
        CHECK_THROWS_WITH_AS(reduce(rank, view), doctest::Contains("cudaErrorIllegalAddress"), Error);
      } else {
        reduce(rank, view);
      }
      self.doing("waiting after a failed call");
      CHECK(rank.passes());
      CHECK(rank.communicator.failure());
      CHECK(cause_on(rank).find("cudaErrorIllegalAddress") != std::string::npos);
      CHECK(rank.latch->cause()->rank == 1);
    });
  }
}

TEST_CASE("a device that fails while the host waits for it ends every rank") {
  std::barrier ready(2);
  with_two_devices([&](RankThread& self, const std::shared_ptr<FakeJob>& job) {
    StagedRank<> rank(job, self.rank(), self.size());
    const BufferView view = rank.put(std::vector<float>(several_pieces, 1));
    ready.arrive_and_wait();
    if (self.rank() == 1) {
      emulation::fail("cudaEventQuery", 1, cudaErrorIllegalAddress, 1);
    }
    reduce(rank, view);
    CHECK(cause_on(rank).find("cudaErrorIllegalAddress") != std::string::npos);
    CHECK(rank.passes());
  });
}

TEST_CASE("a rank without device memory, or none to pin, fails every rank with what went wrong") {
  for (const char* call : {"cudaMalloc", "cudaHostRegister", "cudaMemsetAsync"}) {
    CAPTURE(call);
    std::barrier ready(2);
    with_two_devices([&](RankThread& self, const std::shared_ptr<FakeJob>& job) {
      StagedRank<> rank(job, self.rank(), self.size());
      ready.arrive_and_wait();
      if (self.rank() == 1) {
        emulation::fail(call, 1, cudaErrorMemoryAllocation, 1);
        CHECK_THROWS_WITH_AS(rank.communicator.allocate_blocking(1 << 20, Deadline::after(60s)),
                             doctest::Contains("cudaErrorMemoryAllocation"), Error);
      } else {
        try {  // this rank may have got its memory already
          static_cast<void>(rank.communicator.allocate_blocking(1 << 20, Deadline::after(60s)));
        } catch (const JobFailed&) {
        }
        CHECK(cause_on(rank).find("cudaErrorMemoryAllocation") != std::string::npos);
      }
    });
  }
}

TEST_CASE("a rank that cannot pin memory fails the opening of every rank's channel") {
  std::barrier ready(2);
  with_two_devices([&](RankThread& self, const std::shared_ptr<FakeJob>& job) {
    if (self.rank() == 1) {
      emulation::fail("cudaHostRegister", 1, cudaErrorMemoryAllocation, 1);
    }
    ready.arrive_and_wait();
    const auto open = [&] { StagedRank<>(job, self.rank(), self.size()); };
    if (self.rank() == 1) {
      CHECK_THROWS_WITH_AS(open(), doctest::Contains("ulimit -l"), Error);
    } else {
      try {
        open();
      } catch (const JobFailed&) {
      }
      CHECK(job->latch(0)->block_until_failed(Deadline::after(60s)));
    }
  });
}

#endif  // DTRAIN_EMULATED_CUDA
