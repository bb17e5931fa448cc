#include "dtrain/backend/nccl/first_calls.hpp"

#include "unit/cuda/prelude.hpp"

#if DTRAIN_EMULATED_CUDA

namespace {

using dtrain::backend::Operation;
using dtrain::backend::OperationKind;
using dtrain::backend::nccl::FirstCalls;
using dtrain::backend::nccl::MessagePath;

Operation all_reduce(std::uint64_t count, DType dtype = DType::f32, ReduceOp op = ReduceOp::sum) {
  return {.count = count, .kind = OperationKind::all_reduce, .dtype = dtype, .op = op};
}

/// Whether each of two ranks passes a meeting of its own, and what it heard.
std::array<std::string, 2> sentences_of(const std::function<void(NcclRank&, RankThread&)>& body) {
  const auto job = std::make_shared<FakeJob>(2);
  std::array<std::string, 2> sentences;
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2, "group", 2s);
    sentences.at(static_cast<std::size_t>(thread.rank())) = support::sentence_of([&] { body(self, thread); });
  });
  return sentences;
}

}  // namespace

TEST_CASE("NCCL may connect ranks in the first operation of a kind, and in one smaller or larger than all before") {
  FirstCalls calls;
  CHECK(calls.may_connect(all_reduce(1000)));
  calls.add(all_reduce(1000));
  for (const std::uint64_t count : {0U, 1U, 1000U, 1023U})  // 4 KiB at most
    CHECK_FALSE(calls.may_connect(all_reduce(count)));
  CHECK(calls.may_connect(all_reduce(1U << 20U)));
  calls.add(all_reduce(1U << 20U));
  for (const std::uint64_t count : {5000U, 100'000U, 1U << 20U})  // between the two
    CHECK_FALSE(calls.may_connect(all_reduce(count)));
  CHECK(calls.may_connect(all_reduce(1U << 23U)));
  FirstCalls downwards;
  downwards.add(all_reduce(1U << 20U));
  CHECK(downwards.may_connect(all_reduce(1000)));
  downwards.add(all_reduce(1000));
  CHECK_FALSE(downwards.may_connect(all_reduce(1U << 20U)));
  CHECK(calls.may_connect(all_reduce(1000, DType::f64)));
  CHECK(calls.may_connect(all_reduce(1000, DType::f32, ReduceOp::max)));
  for (const OperationKind kind : {OperationKind::broadcast, OperationKind::scatter}) {
    Operation rooted{.count = 8, .kind = kind};
    CHECK(calls.may_connect(rooted));
    calls.add(rooted);
    rooted.root = 1;
    CHECK(calls.may_connect(rooted) == (kind == OperationKind::scatter));  // a broadcast takes a ring
  }
  CHECK_FALSE(calls.may_connect(all_reduce(1000)));
}

TEST_CASE("NCCL connects ranks by the first message on each path, in each direction") {
  FirstCalls calls;
  CHECK(calls.may_connect(MessagePath{0, 1}));
  calls.add(MessagePath{0, 1});
  CHECK_FALSE(calls.may_connect(MessagePath{0, 1}));
  CHECK(calls.may_connect(MessagePath{1, 0}));
}

TEST_CASE("ranks whose first operations differ hear of it at once, and none of them is inside NCCL") {
  const EmulatedDevices faults(2);
  const auto began = Deadline::Clock::now();
  const auto sentences = sentences_of([](NcclRank& self, RankThread& thread) {
    const auto memory = self.put<float>({1, 1});
    if (thread.rank() == 0) {
      self.communicator.enqueue(Broadcast{memory.view(), 0}, self.stream.ref());
    } else {
      self.communicator.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::sum}, self.stream.ref());
    }
  });
  for (const std::string& sentence : sentences) {
    CHECK_MESSAGE(contains(sentence,
                           "on channel 'group', rank 0 called broadcast of 2 f32 from rank 0 as operation 1 and rank 1 "
                           "called all_reduce (sum) of 2 f32 as operation 1"),
                  sentence);
  }
  CHECK(Deadline::Clock::now() - began < 60s);
}

TEST_CASE("an abort ends a rank's wait for the others before a first operation") {
  const EmulatedDevices faults(2);
  std::atomic<bool> has_ended{false};
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread& thread) {
    if (thread.rank() == 1) {
      CHECK(support::holds_soon([&] { return has_ended.load(); }));
      return;
    }
    std::thread other([&] { self.communicator.abort({CauseKind::exception, 0, "here", "enough"}); });
    const auto memory = self.put<float>({1, 1});
    const std::string why = support::sentence_of([&] {
      self.communicator.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::sum}, self.stream.ref());
    });
    other.join();
    has_ended = true;
    CHECK_MESSAGE(contains(why, "enough"), why);
  });
}

TEST_CASE("a rank that does not come to a first operation is named, whichever rank waits first") {
  for (const int missing : {1, 2}) {
    const EmulatedDevices faults(3);
    const auto job = std::make_shared<FakeJob>(3);
    std::atomic<int> opened{0};
    run_thread_ranks(3, [&](RankThread& thread) {
      NcclRank self(job, thread.rank(), 3, "group", 2s);
      ++opened;
      CHECK(support::holds_soon([&] { return opened.load() == 3; }));
      if (thread.rank() == missing) {
        CHECK(job->latch(missing)->block_until_failed(Deadline::after(60s)));
        return;
      }
      const auto memory = self.put<float>({1, 1});
      const std::string why = support::sentence_of([&] {
        self.communicator.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::sum}, self.stream.ref());
      });
      CHECK_MESSAGE(contains(why, "rank " + std::to_string(missing) + " of the channel is in none"), why);
    });
  }
}

TEST_CASE("a first message waits for the rank at its other end, which is named at the timeout") {
  const EmulatedDevices faults(3);
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 3, "group", 1s);
    if (thread.rank() != 0) {
      CHECK(job->latch(thread.rank())->block_until_failed(Deadline::after(60s)));
      return;
    }
    const auto memory = self.put<float>({1, 1});
    const std::string why = support::sentence_of([&] {
      self.communicator.enqueue(Send{memory.view(), 2}, self.stream.ref());
    });
    CHECK_MESSAGE(contains(why, "send of 2 f32 to rank 2"), why);
    CHECK_MESSAGE(contains(why, "rank 2 of the channel is in none"), why);
  });
}

TEST_CASE("a first operation's timeout begins once its stream has come to it") {
  const EmulatedDevices faults(2);
  run_ranks<NcclRank>({2, "group", 4s}, [&](NcclRank& self, RankThread& thread) {
    self.connect();
    const auto memory = self.put<float>(std::vector<float>(5000, 1));
    support::enqueue_delay(self.stream.ref(), 5s);
    if (thread.rank() == 1) CHECK(self.wait());  // its host comes later, as one that prints the loss
    self.communicator.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::sum}, self.stream.ref());
    CHECK(self.wait());
    CHECK(NcclRank::get<float>(memory) == std::vector<float>(5000, 2));
  });
}

TEST_CASE("the job's failure ends the opening of a further channel within a second or two") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<bool> opens{false};
  run_thread_ranks(2, [&](RankThread& thread) {
    NcclRank self(job, thread.rank(), 2, "group", 30s);
    if (thread.rank() == 1) {
      CHECK(support::holds_soon([&] { return opens.load(); }));
      std::this_thread::sleep_for(100ms);
      job->fail({CauseKind::lost, 1, "there", "killed by signal 9"});
      return;
    }
    opens = true;
    const auto began = Deadline::Clock::now();
    CHECK_THROWS_AS(static_cast<void>(self.communicator.duplicate_blocking(
                        support::channel_context(job, 0, 2, "ddp-0", 30s), Deadline::after(30s))),
                    dtrain::PeerLost);
    CHECK(Deadline::Clock::now() - began < 25s);  // and not only at its deadline
  });
}

TEST_CASE(
    "a channel's activity is the operation that the device has begun and not completed, and counts calls at once") {
  const EmulatedDevices faults(2);
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<bool> is_seen{false};
  run_thread_ranks(2, [&](RankThread& thread) {
    support::check(cudaSetDevice(thread.rank()), "cudaSetDevice");
    auto context = support::channel_context(job, thread.rank(), 2, "group", 60s);
    const auto activity =
        std::make_shared<dtrain::backend::ChannelActivity>("group", dtrain::backend::DescribeOperation());
    context.activity = activity;
    NcclRank self(job->latch(thread.rank()), dtrain::backend::Nccl::open_blocking(context, Deadline::after(60s)));
    self.connect();
    const auto memory = self.put<float>({1, 1});
    const AllReduce reduce{memory.view(), memory.view(), ReduceOp::max};
    self.communicator.enqueue(reduce, self.stream.ref());  // the first one meets the other rank on the host
    CHECK(self.wait());
    const std::uint64_t before = activity->status().called;
    if (thread.rank() == 1) CHECK(support::holds_soon([&] { return is_seen.load(); }));
    self.communicator.enqueue(reduce, self.stream.ref());
    CHECK(activity->status().called == before + 1);
    if (thread.rank() == 0) {
      CHECK(support::holds_soon([&] {
        const auto status = activity->status();
        return status.is_in_operation && status.call == "all_reduce (max) of 2 f32" && status.sequence == before + 1;
      }));
      is_seen = true;
    }
    CHECK(self.wait());
    CHECK(support::holds_soon([&] { return !activity->status().is_in_operation; }));
  });
}

TEST_CASE("at most 32 operations of a channel are in flight, and the next ones wait on the host") {
  const EmulatedDevices faults(2);
  run_ranks<NcclRank>(2, [&](NcclRank& self, RankThread& thread) {
    self.connect();
    const auto memory = self.put<float>({1, 1});
    support::Gate gate;
    support::enqueue_on_host(self.stream.ref(), [&] { gate.pass(); });
    std::atomic<int> enqueued{0};
    std::thread host([&] {
      support::check(cudaSetDevice(thread.rank()), "cudaSetDevice");
      for (; enqueued.load() < 100; ++enqueued)
        self.communicator.enqueue(AllReduce{memory.view(), memory.view(), ReduceOp::max}, self.stream.ref());
    });
    CHECK(support::holds_soon([&] { return enqueued.load() == 32; }));
    std::this_thread::sleep_for(50ms);
    CHECK(enqueued.load() == 32);
    gate.open();
    host.join();
    CHECK(self.wait());
    CHECK(enqueued.load() == 100);
  });
}

#endif  // DTRAIN_EMULATED_CUDA
