#include "dtrain/core/config.hpp"

#if DTRAIN_EMULATED_CUDA

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "support/expect_error.hpp"
#include "support/gate.hpp"
#include "support/nccl_rank.hpp"

namespace {

using dtrain::Deadline;
using dtrain::DType;
using dtrain::ReduceOp;
using support::DeviceBuffer;
using support::FakeJob;
using support::NcclRank;
using support::on_device;
using support::on_host;
using support::RankThread;
using support::run_ranks;
using support::run_thread_ranks;
using namespace std::chrono_literals;

/// NCCL launches in threads of its own.
struct InThreads {
  explicit InThreads(int devices) {
    emulation::reset();
    emulation::set_device_count(devices);
    emulation::set_launches_in_threads(true);
  }
  ~InThreads() {
    CHECK(emulation::concurrent_calls() == 0);
    emulation::reset();
  }
};

}  // namespace

TEST_CASE("the first operation of a kind waits on the host until all ranks have called it, and the next do not") {
  const InThreads faults(2);
  std::atomic<bool> comes{false};
  std::atomic<bool> has_returned{false};
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread& thread) {
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    if (thread.rank() == 1) {
      std::this_thread::sleep_for(50ms);
      comes = true;
    }
    self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref());
    CHECK(comes.load());
    if (thread.rank() == 1) {
      CHECK(support::holds_soon([&] { return has_returned.load(); }));
    }
    self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref());
    has_returned = true;
    CHECK(self.wait());
    CHECK(on_host<float>(memory.data(), 2) == std::vector<float>{4, 4});
  });
}

TEST_CASE("a first operation that a rank does not call ends by the timeout, and names that rank") {
  const InThreads faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2, "group", 1s);
    if (thread.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(15s)));
      return;
    }
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    const auto reduce = [&] { self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref()); };
    const std::string why = support::sentence_of(reduce);
    CAPTURE(why);
    CHECK(support::contains(why, "it had not ended after 1.0 s; rank 1 of the channel is in none"));
  });
}

TEST_CASE("a collective that NCCL launches in a thread becomes part of the graph that is captured") {
  const InThreads faults(2);
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread&) {
    const DeviceBuffer memory = on_device(std::vector<float>{1, 1});
    const auto view = self.view(memory, 2, DType::f32);
    const cudaStream_t stream = self.stream.ref().native();
    support::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t runnable = nullptr;
    support::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    support::check(cudaGraphInstantiate(&runnable, graph, 0), "cudaGraphInstantiate");
    for (int i = 0; i < 3; ++i) {
      support::check(cudaGraphLaunch(runnable, stream), "cudaGraphLaunch");
    }
    CHECK(self.wait());
    CHECK(on_host<float>(memory.data(), 2) == std::vector<float>{8, 8});
    support::check(cudaGraphExecDestroy(runnable), "cudaGraphExecDestroy");
    support::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
  });
}

#endif  // DTRAIN_EMULATED_CUDA
