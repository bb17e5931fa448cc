#include "support/communicator_contract.hpp"
#include "unit/backend/prelude.hpp"

namespace {

using dtrain::Cause;
using support::contains;
using support::error_of;
using support::holds_soon;

/// Runs the channel's ranks; `enqueue` differs by rank. Gives each rank's failure.
template <class F>
std::vector<Cause> failures(int ranks, std::chrono::nanoseconds timeout, F enqueue) {
  std::vector<Cause> causes(static_cast<std::size_t>(ranks));
  run_ranks<SharedMemoryRank>({ranks, "group", timeout}, [&](SharedMemoryRank& self, RankThread& thread) {
    thread.doing("what differs");
    enqueue(self);
    CHECK_FALSE(self.wait());
    causes[static_cast<std::size_t>(thread.rank())] = self.communicator.failure().value_or(Cause{});
    CHECK(self.latch->failed());
    // Later work is skipped at once, and what throws names the cause.
    self.communicator.enqueue(Barrier{}, self.stream.ref());
    self.wait();
    CHECK_THROWS_AS(self.communicator.allocate_blocking(64, Deadline::after(60s)), dtrain::Error);
  });
  return causes;
}

std::vector<float>& scratch(int rank) {
  thread_local std::vector<float> buffer(100'000);
  static_cast<void>(rank);
  return buffer;
}

BufferView floats(int rank, std::size_t count) {
  return dtrain::buffer_view(std::span(scratch(rank)).first(count));
}

COMMUNICATOR_FAILURE_CONTRACT(SharedMemoryRank)
HOST_STREAM_CONTRACT(SharedMemoryRank)

TEST_CASE("ranks that call different things learn on every rank which two differ and in what") {
  struct Case {
    std::size_t count;
    ReduceOp op;
    bool broadcast;
    const char* says;
  };
  // What rank 2 does while ranks 0 and 1 sum 5000 floats.
  for (const Case& other :
       {Case{4999, ReduceOp::sum, false, "of 4999 f32"}, Case{5000, ReduceOp::max, false, "(max)"},
        Case{5000, ReduceOp::sum, true, "broadcast of 5000 f32 from rank 1"}, Case{3, ReduceOp::sum, false, "of 3 f32"},
        Case{90'000, ReduceOp::sum, false, "of 90000"}}) {
    const auto causes = failures(3, 10s, [&](SharedMemoryRank& self) {
      const int rank = self.communicator.rank();
      const BufferView view = floats(rank, rank == 2 ? other.count : 5000);
      if (rank == 2 && other.broadcast) {
        self.communicator.enqueue(Broadcast{view, 1}, self.stream.ref());
      } else {
        self.communicator.enqueue(AllReduce{view, view, rank == 2 ? other.op : ReduceOp::sum}, self.stream.ref());
      }
    });
    for (const Cause& cause : causes) {
      CHECK(cause.kind == CauseKind::disagreement);
      CHECK_CONTAINS(cause.text, "rank 0 called all_reduce (sum) of 5000 f32", "rank 2 called", other.says,
                     "channel 'group'");
    }
  }
}

TEST_CASE("a rank that never comes is named by every rank that waits for it, with the operation") {
  std::atomic<int> ended{0};
  support::run_opened_ranks<SharedMemoryRank>({3, "group", 100ms}, [&](SharedMemoryRank& self, RankThread& thread) {
    if (thread.rank() == 1) {
      holds_soon([&] { return ended == 2; });
      return;
    }
    const BufferView view = floats(thread.rank(), 5000);
    self.communicator.enqueue(AllReduce{view, view, ReduceOp::sum}, self.stream.ref());
    CHECK_FALSE(self.wait());
    ++ended;
    const Cause cause = self.communicator.failure().value();
    CHECK(cause.kind == CauseKind::timeout);
    CHECK_CONTAINS(cause.text, "all_reduce (sum) of 5000 f32");
    const auto says = [&cause](const char* missing, const char* here) {
      return contains(cause.text, std::string(": ") + missing + " had not arrived after 100 ms; " + here + " had; ");
    };
    CHECK((says("rank 1", "ranks 0 and 2") || says("ranks 0-1", "rank 2") || says("ranks 1-2", "rank 0")));  // so far
  });
}

TEST_CASE("ranks that allocate different sizes are told both, and the channel serves on") {
  run_ranks<SharedMemoryRank>(3, [&](SharedMemoryRank& self, RankThread& thread) {
    const auto error =
        error_of([&] { self.communicator.allocate_blocking(thread.rank() == 2 ? 200 : 100, Deadline::after(60s)); });
    CHECK(error.code() == Errc::disagreement);
    CHECK_CONTAINS(error.what(), "rank 0 allocates 100 bytes", "rank 2 allocates 200");
    const auto memory = self.communicator.allocate_blocking(100, Deadline::after(60s));
    CHECK(memory.bytes() == 100);
    self.communicator.enqueue(Broadcast{BufferView{memory.data(), 100, DType::u8, {}}, 0}, self.stream.ref());
    CHECK(self.wait());
  });
}

TEST_CASE("memory that cannot be had is an error on every rank that says how much was asked") {
  const std::size_t asked = std::size_t{1} << 44;
  run_ranks<SharedMemoryRank>(3, [&](SharedMemoryRank& self, RankThread&) {
    CHECK_ERROR(self.communicator.allocate_blocking(asked, Deadline::after(60s)), Errc::out_of_memory,
                std::to_string(3 * asked));
    CHECK(self.communicator.allocate_blocking(64, Deadline::after(60s)).bytes() == 64);
  });
}

TEST_CASE("a rank that never allocates is a timeout that names it, and no hang for anybody") {
  std::atomic<int> ended{0};
  support::run_opened_ranks<SharedMemoryRank>(3, [&](SharedMemoryRank& self, RankThread& thread) {
    if (thread.rank() == 2) {
      holds_soon([&] { return ended == 2; });
      return;
    }
    const auto error = error_of([&] { self.communicator.allocate_blocking(64, Deadline::after(1s)); });
    ++ended;
    CHECK(error.code() == Errc::timeout);
    CHECK_CONTAINS(error.what(), thread.rank() == 0 ? "rank 2" : "rank");
  });
}

TEST_CASE("a rank that leaves the channel while the others allocate is noticed, long before the deadline") {
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    std::optional<SharedMemoryRank> self(std::in_place, job, thread.rank(), 3, "group", 600s);
    if (thread.rank() == 1) {
      self.reset();
      return;
    }
    CHECK_ERROR(self->communicator.allocate_blocking(64, Deadline::after(600s)), Errc::disagreement,
                "rank 1 has left the channel");
  });
}

TEST_CASE("ranks on two hosts are refused before anything is opened, naming both and what to use") {
  const auto job = std::make_shared<FakeJob>(2);
  auto context = support::channel_context(job, 0, 2, "group", 1s);
  context.members.other_host_rank = 1;
  context.members.other_host = "far";
  const auto error = error_of([&] { dtrain::backend::SharedMemory::open_blocking(context, Deadline::after(1s)); });
  CHECK(error.code() == Errc::unsupported);
  for (const char* part : {"rank 0 is on host-0", "rank 1 on far", "Mpi", "Gloo", "Nccl"})
    CHECK_CONTAINS(error.what(), part);
}

TEST_CASE("a rank that does not come to the opening is named, and the others hear of it") {
  const auto job = std::make_shared<FakeJob>(3);
  support::Gate rank_2_opens;
  run_thread_ranks(3, [&](RankThread& thread) {
    if (thread.rank() == 1) return;
    thread.rank() == 2 ? rank_2_opens.open() : rank_2_opens.pass();
    const auto context = support::channel_context(job, thread.rank(), 3, "group", 10s);
    const Deadline deadline = Deadline::after(thread.rank() == 0 ? 1s : 20s);
    const auto error = error_of([&] { dtrain::backend::SharedMemory::open_blocking(context, deadline); });
    CHECK_CONTAINS(error.what(), "rank 1");
    CHECK(job->latch(thread.rank())->block_until_failed(Deadline::after(60s)));
  });
}

std::size_t mapped_memories() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += contains(line, "memfd:dtrain") ? 1 : 0;
  return count;
}

TEST_CASE("channels and allocations leave no descriptor and no mapping behind, whichever ends first") {
  const auto use = [] {
    const auto job = std::make_shared<FakeJob>(3);
    run_thread_ranks(3, [&](RankThread& thread) {
      dtrain::backend::HostAllocation survivor;
      {
        SharedMemoryRank self(job, thread.rank(), 3);
        { const auto dropped = self.communicator.allocate_blocking(100, Deadline::after(60s)); }
        survivor = self.communicator.allocate_blocking(3 << 20, Deadline::after(60s));
        CHECK_THROWS_AS(self.communicator.allocate_blocking(std::size_t{1} << 44, Deadline::after(60s)), dtrain::Error);
        self.communicator.enqueue(Barrier{}, self.stream.ref());
        CHECK(self.wait());
      }
      survivor.data()[survivor.bytes() - 1] = std::byte{1};
    });
  };
  use();
  const std::size_t before = support::open_descriptors();
  use();
  CHECK(support::open_descriptors() == before);
  CHECK(mapped_memories() == 0);
}

}  // namespace
