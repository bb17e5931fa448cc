// ctest: TIMEOUT 180
#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

#include "support/communicator_contract.hpp"

namespace {

using dtrain::PeerLost;
using emulation::Fault;

/// What ends at once does so long before the timeouts of 10 s; a machine may stand still for seconds.
constexpr auto slack = DTRAIN_THREAD_SANITIZER ? 20s : 8s;

/// Reduces until that fails. @param delay what each operation waits for in the stream, the host elsewhere
/// @returns why
std::string reduce_until_failure(NcclRank& self, std::chrono::milliseconds delay = 0ms) {
  constexpr std::size_t count = 8;
  const DeviceBuffer memory = on_device(std::vector<float>(count, 1));
  const auto view = self.view(memory, count, DType::f32);
  const Deadline deadline = Deadline::after(60s);
  while (!deadline.passed()) {
    try {
      if (delay > 0ms) {
        support::enqueue_delay(self.stream.ref(), delay);
      }
      self.communicator.enqueue(AllReduce{view, view, ReduceOp::average}, self.stream.ref());
      if (!self.wait()) {
        return self.communicator.failure() ? self.communicator.failure()->sentence() : "the stream does not drain";
      }
    } catch (const Error& error) {
      CHECK_MESSAGE(self.communicator.failure(), error.what());
      CHECK_MESSAGE(!self.wait(), "the stream drains, and says that the channel has failed");
      return error.what();
    }
  }
  return "nothing failed";
}

}  // namespace

COMMUNICATOR_FAILURE_CONTRACT(NcclRank)

TEST_CASE("an initialisation that never completes ends by its deadline, and says what to check") {
  const EmulatedDevices faults(2);
  emulation::init_never_completes(true);
  for (const int device : {1, 0}) {  // making their contexts is no part of the deadline
    support::check(cudaSetDevice(device), "cudaSetDevice");
  }
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<int> timed_out{0};
  run_thread_ranks(2, [&](RankThread& thread) {
    const auto began = Deadline::Clock::now();
    const auto error = error_of([&] { NcclRank(job, thread.rank(), 2, "group", 10s, 300ms); });
    REQUIRE(error.code());
    CAPTURE(std::string(error.what()));
    CHECK(contains(error.what(), "ncclCommInitRankConfig for channel 'group' had not connected rank"));
    CHECK(contains(error.what(), "NCCL_SOCKET_IFNAME"));
    timed_out += error.code() == make_error_code(Errc::timeout) ? 1 : 0;
    CHECK(Deadline::Clock::now() - began < 300ms + slack);
  });
  CHECK(timed_out.load() >= 1);  // the other may hear of it from the job first
}

TEST_CASE("an initialisation ends at once when the job fails, with the job's cause") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  std::thread control([&] {
    std::this_thread::sleep_for(200ms);
    job->fail({CauseKind::lost, 1, "host-1", "killed by signal 9"});
  });
  const auto began = Deadline::Clock::now();
  CHECK_THROWS_AS(NcclRank(job, 0, 2), PeerLost);
  CHECK(Deadline::Clock::now() - began < 200ms + slack);
  control.join();
}

TEST_CASE("an initialisation that NCCL refuses is its error, with call, code, device and rank") {
  const EmulatedDevices faults(1);
  emulation::fail("ncclCommInitRankConfig", 1, ncclInvalidUsage);
  const auto job = std::make_shared<FakeJob>(1);
  const auto error = error_of([&] { NcclRank(job, 0, 1); });
  REQUIRE(error.code());
  CAPTURE(std::string(error.what()));
  CHECK(std::string(error.code().category().name()) == "nccl");
  CHECK(error.code().value() == ncclInvalidUsage);
  CHECK(contains(error.what(), "ncclCommInitRankConfig for channel 'group' on rank 0, device 0: ncclInvalidUsage"));
  CHECK(job->latch(0)->failed());
  emulation::fail("ncclGetUniqueId", 1, ncclSystemError);
  const auto no_id = error_of([&] { NcclRank(std::make_shared<FakeJob>(1), 0, 1); });
  REQUIRE(no_id.code());
  CHECK(contains(no_id.what(), "ncclGetUniqueId on rank 0, device 0: ncclSystemError"));
}

TEST_CASE("a rank whose initialisation fails tells the others before it ends its communicator") {
  const EmulatedDevices faults(2);
  emulation::init_fails(true, 1);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    const auto began = Deadline::Clock::now();
    if (thread.rank() == 1) {
      const auto error = error_of([&] { NcclRank(job, 1, 2); });
      REQUIRE(error.code());
      CHECK_MESSAGE(contains(error.what(), "on rank 1, device 1: ncclSystemError"), error.what());
    } else {
      const auto refused = error_of([&] {
        NcclRank self(job, 0, 2);
        const std::string why = reduce_until_failure(self);  // rank 1 will not come
        CHECK_MESSAGE(contains(why, "a network port that a test took away"), why);
      });
      CHECK_MESSAGE((!refused.code() || contains(refused.what(), "a network port that a test took away")),
                    refused.what());
    }
    CHECK(Deadline::Clock::now() - began < slack);
  });
}

TEST_CASE("an error that NCCL finds while an operation runs ends all ranks long before their timeout, and names it") {
  for (const int ranks : {2, 4}) {
    const EmulatedDevices faults(ranks);
    std::atomic<int> named{0};
    run_ranks<NcclRank>(ranks, [&](NcclRank& self, RankThread& thread) {
      self.communicator.enqueue(Barrier{}, self.stream.ref());
      CHECK(self.wait());
      if (thread.rank() == 0) {
        emulation::fault_in_operation(Fault::async_error, 5, 1);
      }
      const auto began = Deadline::Clock::now();
      const std::string why = reduce_until_failure(self, 30ms);
      CAPTURE(why);
      CHECK(contains(why, "on channel 'group'"));  // "that ran", where no call found the error first
      CHECK(contains(why, "on rank 1, device 1: ncclRemoteError"));
      named += contains(why, "last error") || contains(why, "remote process exited") ? 1 : 0;
      CHECK(Deadline::Clock::now() - began < slack);
    });
    CHECK(named.load() == ranks);
  }
}

TEST_CASE("an operation that never ends is aborted after the timeout, and the streams drain") {
  const EmulatedDevices faults(2);
  run_ranks<NcclRank>({2, "group", 1s}, [&](NcclRank& self, RankThread& thread) {
    if (thread.rank() == 0) {
      emulation::fault_in_operation(Fault::hang, 3, 1);
    }
    const auto began = Deadline::Clock::now();
    const std::string why = reduce_until_failure(self);
    CAPTURE(why);
    CHECK(contains(why, "timed out: all_reduce (average) of 8 f32, operation "));
    CHECK(contains(why, "of channel 'group': it had not ended after 1.0 s"));
    CHECK(contains(why, "DTRAIN_TIMEOUT_SECONDS"));
    CHECK(Deadline::Clock::now() - began < 2s + slack);
  });
}

TEST_CASE(
    "an exchange of blocks whose counts differ between ranks ends on all ranks, after the timeout at the latest") {
  const EmulatedDevices faults(2);
  run_ranks<NcclRank>({2, "group", 1s}, [&](NcclRank& self, RankThread& thread) {
    const std::size_t expected = thread.rank() == 1 ? 4 : 3;  // from rank 0, which sends 3
    const std::vector<std::size_t> sent{3, 3};
    const std::vector<std::size_t> received{thread.rank() == 1 ? 4U : 3U, 3};
    auto from = self.put(std::vector<float>(6, 1));
    auto to = self.put(std::vector<float>(3 + expected));
    const auto began = Deadline::Clock::now();
    const auto blocks =
        dtrain::backend::blocks_of_all_to_all(from.view(), sent, to.view(), received, {thread.rank(), 2});
    self.communicator.enqueue(ExchangeBlocks{blocks, from.view(), to.view()}, self.stream.ref());
    const std::string why = reduce_until_failure(self);  // what is sent may have left before the receiver fails
    CAPTURE(why);
    CHECK(why != "");
    CHECK(Deadline::Clock::now() - began < 3s + slack);
  });
}

TEST_CASE("a stream that is full behind an operation that never runs holds nobody up beyond the timeout") {
  for (const bool begins_late : {false, true}) {  // then nobody has seen the operation begin when CUDA stops answering
    const EmulatedDevices faults(2);
    const auto job = std::make_shared<FakeJob>(2);
    run_thread_ranks(2, [&](RankThread& thread) {
      NcclRank self(job, thread.rank(), 2, "group", 1s);
      self.connect();
      if (thread.rank() == 1) {
        CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
        return;
      }
      const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
      const auto view = self.view(memory, 8, DType::f32);
      const auto began = Deadline::Clock::now();
      if (begins_late) {
        support::enqueue_delay(self.stream.ref(), 300ms);
      }
      thread.doing("reducing");
      self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
      thread.doing("filling the stream");
      for (int i = 0; i < 3000; ++i)
        emulation::launch(self.stream.ref().native(), [] {});
      CHECK(!self.wait());
      CHECK(job->latch(0)->failed());
      CHECK(Deadline::Clock::now() - began < 3s + slack);
      CAPTURE(job->latch(0)->cause()->sentence());
      CHECK(job->latch(0)->cause()->kind == CauseKind::timeout);
    });
  }
}

TEST_CASE("a rank that does not come, or that has left, is named") {
  for (const bool leaves : {false, true}) {
    const EmulatedDevices faults(2);
    const auto job = std::make_shared<FakeJob>(2);
    run_thread_ranks(2, [&](RankThread& thread) {
      std::optional<NcclRank> self(std::in_place, job, thread.rank(), 2, "group", 1s);
      if (thread.rank() == 1) {
        if (leaves) {
          self.reset();
        }
        CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
        return;
      }
      if (leaves) {
        CHECK(holds_soon([&] { return support::FakeStore(job, 0).contains("group/timeout/1"); }));  // it has left
      }
      const std::string why = reduce_until_failure(*self);
      CAPTURE(why);
      CHECK(contains(why, "had not ended after 1.0 s"));
      CHECK(contains(why, leaves ? "rank 1 has left the channel" : "rank 1 of the channel is in none"));
    });
  }
}

TEST_CASE("a rank that does not come to a group of all-gathers is named, with the group's number") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2, "group", 1s);
    const auto memory = self.put(std::vector<float>(16));
    BufferView block = memory.view();
    block.count /= 2;
    block.data += block.bytes() * static_cast<std::size_t>(thread.rank());
    const std::vector<AllGather> gathers(3, AllGather{block, memory.view()});
    self.communicator.enqueue(std::span<const AllGather>(gathers), self.stream.ref());
    CHECK(self.wait());
    if (thread.rank() == 1) {
      CHECK(job->latch(1)->block_until_failed(Deadline::after(60s)));
      return;
    }
    self.communicator.enqueue(std::span<const AllGather>(gathers), self.stream.ref());
    CHECK(!self.wait());
    CHECK(holds_soon([&] { return job->latch(0)->failed(); }));
    const std::string why = job->latch(0)->cause()->sentence();
    CAPTURE(why);
    CHECK(contains(why, "all_gather of 24 f32 a rank, operation 2 of channel 'group'"));
    CHECK(contains(why, "had not ended after 1.0 s; rank 1 of the channel is in none"));
  });
}

TEST_CASE("an operation that ends after all, late, leaves nothing in the store") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  const std::string key = "group/timeout/0";
  std::atomic<bool> erased{false};
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2, "group", thread.rank() == 0 ? 3s : 60s);  // only rank 0 is late
    const support::FakeStore store(job, thread.rank());
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    const auto view = self.view(memory, 8, DType::f32);
    if (thread.rank() == 1) {
      support::enqueue_on_host(self.stream.ref(), [&] {  // rank 0 waits, and says so after the timeout
        holds_soon([&] { return store.contains(key); }, 10s);
      });
    }
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    CHECK(self.wait());
    if (thread.rank() == 0) {
      CHECK(holds_soon([&] { return !store.contains(key); }));
      erased = true;
    }
    holds_soon([&] { return erased.load(); });  // were rank 1 to leave, rank 0 might not see in time that it came
    CHECK(!job->latch(thread.rank())->failed());
  });
}

TEST_CASE("what a rank is late in stays in the store while nobody can look whether it still is") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  support::Gate looks;  // at which rank 0's watchdog waits, behind what it says, until the test holds the lock
  job->after_each_set([&looks](const std::string& key) {
    if (key == "group/timeout/0") looks.pass();
  });
  run_thread_ranks(2, [&](RankThread& thread) {
    namespace nccl = dtrain::backend::nccl;
    dtrain::stream::cuda::check(cudaSetDevice(thread.rank()), "cudaSetDevice");
    const auto channel =
        std::make_shared<nccl::Channel>(support::channel_context(job, thread.rank(), 2, "group", 2s),
                                        dtrain::backend::NcclOptions{}, thread.rank(), nccl::Launches::in_threads);
    nccl::connect_blocking(*channel, Deadline::after(60s));
    const support::FakeStore store(job, thread.rank());
    const dtrain::stream::cuda::CommunicationStream stream;
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    {
      const nccl::Watchdog watchdog(channel);
      const Deadline deadline = Deadline::after(60s);
      const auto issue = [&](bool broadcasts, std::uint64_t sequence) {
        dtrain::backend::Operation operation;
        operation.kind =
            broadcasts ? dtrain::backend::OperationKind::broadcast : dtrain::backend::OperationKind::all_reduce;
        operation.count = 8;
        operation.dtype = DType::f32;
        operation.sequence = sequence;
        channel->issue(operation, {}, broadcasts ? "ncclBroadcast" : "ncclAllReduce", stream.ref(), [&](ncclComm_t to) {
          return broadcasts ? ncclBroadcast(memory.data(), memory.data(), operation.count, ncclFloat32, 0, to,
                                            stream.ref().native())
                            : ncclAllReduce(memory.data(), memory.data(), operation.count, ncclFloat32, ncclSum, to,
                                            stream.ref().native());
        });
      };
      issue(false, 1);  // connects the ranks, as does the next
      issue(true, 2);
      const auto wait_for_rank_0 = [&] { holds_soon([&] { return store.contains("group/timeout/0"); }); };
      if (thread.rank() == 1) {
        wait_for_rank_0();
      }
      issue(thread.rank() == 1, 3);
      if (thread.rank() == 0) {
        wait_for_rank_0();
        const auto held =
            channel->comm_lock.lock();  // beyond the time that rank 0 gives the others to say what they are in
        looks.open();
        CHECK(!channel->poll().was_polled);
        CHECK(job->latch(0)->block_until_failed(deadline));
        CHECK(store.contains("group/timeout/0"));
      }
      REQUIRE(job->latch(thread.rank())->block_until_failed(deadline));
      const std::string why = job->latch(thread.rank())->cause()->sentence();
      CAPTURE(why);
      CHECK(contains(why, "ranks disagree: on channel 'group', rank 1 called broadcast of 8 f32"));
      CHECK(contains(why, "rank 0 called all_reduce (sum) of 8 f32 as operation 3"));
      channel->status.abort(*job->latch(thread.rank())->cause());
    }
  });
}

TEST_CASE("a rank whose last operation is late while it leaves has left, once that ended") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  const std::string key = "group/timeout/0";
  run_thread_ranks(2, [&](RankThread& thread) {
    const dtrain::stream::cuda::CommunicationStream stream;
    std::optional<NcclRank> self(std::in_place, job, thread.rank(), 2, "group", 4s);
    support::FakeStore store(job, thread.rank());
    const auto says = [&](const char* part) {
      return store.contains(key) && contains(store.get(key, Deadline::after(1s)).wait(), part);
    };
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    const auto view = self->view(memory, 8, DType::f32);
    if (thread.rank() == 1) {
      support::enqueue_on_host(stream.ref(), [&] {  // rank 0 waits, leaves, and says that it is late
        holds_soon([&] { return says("called all_reduce"); }, 10s);
      });
    }
    self->communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, stream.ref());
    if (thread.rank() == 0) {
      std::this_thread::sleep_for(2s);
    } else {
      CHECK(completes(stream.ref()));
      // Before this rank leaves: the last one erases it, and rank 0 might not see that rank 1 came.
      CHECK(holds_soon([&] { return says("rank 0 has left the channel"); }, 5s));
    }
    self.reset();
    CHECK(!job->latch(thread.rank())->failed());
  });
}

TEST_CASE("the job's failure ends running work at once, and later work is refused with its cause") {
  const EmulatedDevices faults(3);
  const auto job = std::make_shared<FakeJob>(3);
  std::atomic<int> ready{0};
  Deadline::Clock::time_point failed;
  run_thread_ranks(3, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 3);
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    const auto view = self.view(memory, 8, DType::f32);
    self.connect();
    ++ready;
    if (thread.rank() == 1) {
      holds_soon([&] { return ready.load() == 3; });
      std::this_thread::sleep_for(50ms);
      failed = Deadline::Clock::now();
      job->fail({CauseKind::lost, 1, "host-1", "killed by signal 9"});
      return;
    }
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    CHECK(!self.wait());
    CHECK(Deadline::Clock::now() - failed < slack);
    CHECK_THROWS_AS(self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref()), PeerLost);
    CHECK_THROWS_AS(self.communicator.enqueue(Barrier{}, self.stream.ref()), PeerLost);
    CHECK_THROWS_AS(static_cast<void>(self.communicator.allocate_blocking(8, Deadline::after(1s))), PeerLost);
    CHECK_THROWS_AS(static_cast<void>(self.communicator.split_blocking(0, 0, Deadline::after(1s))), PeerLost);
  });
}

TEST_CASE("an abort that races with operations ends them, whenever it comes") {
  const EmulatedDevices faults(2);
  for (int round = 0; round < 30; ++round) {
    const auto job = std::make_shared<FakeJob>(2);
    emulation::set_polls_in_progress(round % 5 * 20);
    std::barrier both(2);  // before the first has failed the job
    run_thread_ranks(2, [&](RankThread& thread) {
      NcclRank self(job, thread.rank(), 2);
      const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
      const auto view = self.view(memory, 8, DType::f32);
      self.communicator.enqueue(AllReduce{view, view, ReduceOp::average}, self.stream.ref());  // connects the ranks
      both.arrive_and_wait();
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::microseconds(200 * (round % 7)));
        self.communicator.abort({CauseKind::exception, thread.rank(), "host", "given up by the test"});
        job->fail({CauseKind::exception, 0, "host-0", "given up by the test"});
      });
      const std::string why = reduce_until_failure(self);
      other.join();
      CHECK_MESSAGE(contains(why, "given up by the test"), why);
    });
  }
}

TEST_CASE("a call that an abort ends throws only when no thread of NCCL's can still enqueue its work") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<int> issuing{0};
  std::atomic<bool> released{false};
  using Threaded = dtrain::backend::NcclWith<dtrain::backend::NcclOptions{.launches_in_caller = false}>;
  run_thread_ranks(2, [&](RankThread& thread) {
    support::check(cudaSetDevice(thread.rank()), "cudaSetDevice");
    NcclRank self(job->latch(thread.rank()),
                  Threaded::open_blocking(channel_context(job, thread.rank(), 2, "group", 10s), Deadline::after(60s)));
    self.connect();
    const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
    const auto view = self.view(memory, 8, DType::f32);
    emulation::hold_launches(true);
    std::thread other([&] {
      ++issuing;
      holds_soon([&] { return issuing.load() == 2; });
      std::this_thread::sleep_for(100ms);  // both are in their calls
      job->fail({CauseKind::exception, 0, "host-0", "given up by the test"});
      std::this_thread::sleep_for(300ms);
      released = true;
      emulation::hold_launches(false);
    });
    CHECK_THROWS_AS(self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref()), Error);
    CHECK(released.load());
    other.join();
  });
}

TEST_CASE("a call that NCCL refuses fails the channel, with call, code, device and rank") {
  const EmulatedDevices faults(1);
  const auto job = std::make_shared<FakeJob>(1);
  NcclRank self(job, 0, 1);
  const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
  const auto view = self.view(memory, 8, DType::f32);
  emulation::fail("ncclAllReduce", 1, ncclInternalError);
  const auto error = error_of([&] {
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
  });
  REQUIRE(error.code());
  CAPTURE(std::string(error.what()));
  CHECK(error.code().value() == ncclInternalError);
  CHECK(std::string(error.code().category().name()) == "nccl");
  CHECK(contains(error.what(), "all_reduce (sum) of 8 f32 by ncclAllReduce on channel 'group' on rank 0, device 0"));
  CHECK(self.communicator.failure());
  CHECK(job->latch(0)->failed());
  CHECK_THROWS_AS(self.communicator.enqueue(Barrier{}, self.stream.ref()), Error);
}

TEST_CASE("memory that one rank cannot have ends all ranks at once, with that cause") {
  struct Refusal {
    const char* call;
    int code;
    const char* text;
  };
  for (const Refusal& refusal : {Refusal{"ncclMemAlloc", ncclUnhandledCudaError, "no 64 bytes of memory of device 1"},
                                 Refusal{"ncclCommRegister", ncclSystemError, "registering 64 bytes with NCCL"},
                                 Refusal{"cudaMemsetAsync", cudaErrorUnknown, "cudaMemsetAsync"}}) {
    CAPTURE(refusal.call);
    const EmulatedDevices faults(2);
    const std::size_t before = emulation::allocated_device_bytes();
    std::barrier both(2);
    run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread& thread) {
      const DeviceBuffer memory = on_device(std::vector<float>(8, 1));
      both.arrive_and_wait();
      const auto began = Deadline::Clock::now();
      if (thread.rank() == 1) {
        emulation::fail(refusal.call, 1, refusal.code, 1);
        const auto error =
            error_of([&] { static_cast<void>(self.communicator.allocate_blocking(64, Deadline::after(60s))); });
        REQUIRE(error.code());
        CHECK_MESSAGE(contains(error.what(), refusal.text), error.what());
        CHECK((refusal.code != ncclUnhandledCudaError || error.code() == make_error_code(Errc::out_of_memory)));
      } else {
        const auto view = self.view(memory, 8, DType::f32);
        const auto refused = error_of([&] {  // rank 1 will not come
          self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
        });
        CHECK(!self.wait());
        REQUIRE(self.communicator.failure());
        const std::string why = refused.code() ? refused.what() : self.communicator.failure()->sentence();
        CHECK_MESSAGE(contains(why, refusal.text), why);
      }
      CHECK(Deadline::Clock::now() - began < slack);
    });
    CHECK(emulation::allocated_device_bytes() == before);
  }
}

TEST_CASE("a split that never completes ends by its deadline") {
  const EmulatedDevices faults(2);
  std::atomic<int> open{0};
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread&) {
    if (++open == 2) {
      emulation::init_never_completes(true);
    }
    holds_soon([&] { return open.load() == 2; });
    std::this_thread::sleep_for(10ms);
    const auto began = Deadline::Clock::now();
    const auto error =
        error_of([&] { static_cast<void>(self.communicator.split_blocking(0, 0, Deadline::after(500ms))); });
    REQUIRE(error.code());
    CAPTURE(std::string(error.what()));
    CHECK(Deadline::Clock::now() - began < 500ms + slack);
  });
}

#endif  // DTRAIN_EMULATED_CUDA
