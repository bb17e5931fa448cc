#include "dtrain/topology/algorithm_communicator.hpp"

#include <optional>

#include "support/block_checks.hpp"
#include "unit/topology/prelude.hpp"

using dtrain::BufferView;
using dtrain::DType;
using dtrain::ReduceOp;
using dtrain::backend::AllGather;
using dtrain::backend::Recv;
using dtrain::backend::ReduceScatter;
using dtrain::backend::Send;
using dtrain::backend::SendRecv;
using support::FakeJob;
using support::HostRank;
using support::RankThread;
using support::run_thread_ranks;
using namespace std::chrono_literals;

namespace {

using RingBackend = dtrain::topology::Ring::Rebind<SharedMemory>;
using HierarchicalBackend = dtrain::topology::Hierarchical<>::Rebind<SharedMemory>;

BufferView view(std::vector<std::int32_t>& values) {
  return dtrain::buffer_view(std::span(values));
}

/// Runs `body(rank, self)` on two ranks, once both have opened their channel.
template <class Backend, class Body>
void run_two(const std::vector<int>& nodes, Body body, std::chrono::nanoseconds timeout = 60s) {
  const auto job = std::make_shared<FakeJob>(2);
  std::atomic<int> opened{0};
  run_thread_ranks(2, [&](RankThread& thread) {
    std::optional<HostRank<Backend>> self(std::in_place, job, thread.rank(), 2, "group", timeout, nodes);
    ++opened;
    support::holds_soon([&] { return opened == 2; });
    body(thread.rank(), self);
  });
}

}  // namespace

TEST_CASE("a rank that never reduces is a timeout on the others, whatever the topology") {
  const auto body = [](int rank, auto& self) {
    std::vector<std::int32_t> values(5'000'000, 1);  // longer than what is sent ahead; several pieces, and segments
    if (rank == 0) {
      CHECK_FALSE(self->all_reduce(view(values), view(values), ReduceOp::sum));
      CHECK(self->communicator.failure()->kind == dtrain::CauseKind::timeout);
      CHECK_FALSE(self->all_reduce(view(values), view(values), ReduceOp::sum));
    }
    CHECK(self->latch->block_until_failed(Deadline::after(60s)));
    CHECK(self->latch->cause()->kind == dtrain::CauseKind::timeout);
  };
  run_two<RingBackend>({}, body, 300ms);
  run_two<HierarchicalBackend>({0, 0}, body, 300ms);
  run_two<HierarchicalBackend>({0, 1}, body, 300ms);
}

TEST_CASE("a rank that reduces where the others broadcast or meet is an error on all, and not a wait for ever") {
  run_two<HierarchicalBackend>({0, 1}, [](int rank, auto& self) {
    std::vector<std::int32_t> values(1000, 1);
    if (rank == 0) {
      self->communicator.enqueue(Broadcast{view(values), 0}, self->stream.ref());
    } else {
      self->communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, self->stream.ref());
    }
    CHECK_FALSE(self->wait());
    CHECK(self->latch->block_until_failed(Deadline::after(60s)));
    CHECK(self->latch->cause()->kind == dtrain::CauseKind::disagreement);
  });
  const auto job = std::make_shared<FakeJob>(4);
  run_thread_ranks(4, [&](RankThread& thread) {
    HostRank<HierarchicalBackend> self(job, thread.rank(), 4, "group", 10s, std::vector<int>{0, 0, 1, 1});
    self.communicator.enqueue(Barrier{}, self.stream.ref());  // all have come before one fails
    CHECK(self.wait());
    std::vector<std::int32_t> values(1000, 1);
    if (thread.rank() < 2) {
      self.communicator.enqueue(Broadcast{view(values), 0}, self.stream.ref());
    } else {
      self.communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, self.stream.ref());
    }
    CHECK_FALSE(self.wait());
    CHECK(self.latch->block_until_failed(Deadline::after(60s)));
    CHECK(self.latch->cause()->kind == dtrain::CauseKind::disagreement);
  });
  run_two<HierarchicalBackend>({0, 0}, [](int rank, auto& self) {
    std::vector<std::int32_t> values(1000, 1);
    if (rank == 0) {
      self->communicator.enqueue(Barrier{}, self->stream.ref());
      CHECK_FALSE(self->wait());
    } else {
      CHECK_FALSE(self->all_reduce(view(values), view(values), ReduceOp::sum));
    }
    CHECK(self->latch->block_until_failed(Deadline::after(60s)));
    CHECK(self->latch->cause()->kind == dtrain::CauseKind::disagreement);
  });
}

TEST_CASE("an abort from another thread ends a reduction that waits, on this rank and on the other") {
  run_two<RingBackend>({}, [](int rank, auto& self) {
    std::vector<std::int32_t> values(1'200'000, 1);  // a chunk on each of two channels
    if (rank == 1) {
      self->communicator.abort({dtrain::CauseKind::exception, 1, "", "enough"});
      CHECK(self->communicator.failure()->text == "enough");
      return;
    }
    CHECK_FALSE(self->all_reduce(view(values), view(values), ReduceOp::sum));
    CHECK(self->communicator.failure()->text == "enough");
  });
}

TEST_CASE("a communicator that is destroyed before its reductions have run skips them") {
  run_two<RingBackend>({}, [](int, auto& self) {
    auto stream = std::move(self->stream);
    {
      std::vector<std::int32_t> values(8, 1);
      self->communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, stream.ref());
      self->communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, stream.ref());
      self.reset();
    }  // the memory is gone, too
    dtrain::stream::host::Event event;
    stream.ref().record(event);
    CHECK(event.block_until_complete(Deadline::after(60s)) == dtrain::stream::WaitResult::complete);
  });
}

TEST_CASE("a communicator that is destroyed while another thread runs its reduction ends it") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    std::optional<HostRank<RingBackend>> self(std::in_place, job, thread.rank(), 2);
    if (thread.rank() == 1) {
      self->latch->block_until_failed(Deadline::after(100ms));  // stays until the other has gone
      return;
    }
    auto stream = std::move(self->stream);
    stream.start_helper();
    std::vector<std::int32_t> values(300'000, 1);
    self->communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, stream.ref());
    std::this_thread::sleep_for(20ms);
    self.reset();
    values = {};
  });
}

TEST_CASE("reductions of one communicator on streams of their own that do not run in order are an error") {
  run_two<RingBackend>({}, [](int rank, auto& self) {
    if (rank == 0) {
      SharedMemory::StreamOwner other;
      std::vector<std::int32_t> values(8, 1);
      self->communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, other.ref());
      CHECK_FALSE(self->all_reduce(view(values), view(values), ReduceOp::sum));
      CHECK_CONTAINS(self->communicator.failure()->text, "go to one stream");
    } else {
      CHECK(self->latch->block_until_failed(Deadline::after(60s)));
    }
  });
}

TEST_CASE("the backend's other operations are the communicator's") {
  support::run_topology_ranks<RingBackend>(3, {}, [](auto& self, int rank) {
    auto& communicator = self.communicator;
    const auto stream = self.stream.ref();
    std::vector<std::int32_t> whole{rank, rank, rank};
    std::vector<std::int32_t> one{0};
    std::vector<std::int32_t> all(3);
    communicator.enqueue(ReduceScatter{view(whole), view(one), ReduceOp::sum}, stream);
    communicator.enqueue(AllGather{view(one), view(all)}, stream);
    CHECK(self.wait());
    CHECK(all == std::vector<std::int32_t>{3, 3, 3});
    communicator.enqueue(Broadcast{view(whole), 2}, stream);
    communicator.enqueue(SendRecv{view(whole), (rank + 1) % 3, view(all), (rank + 2) % 3}, stream);
    communicator.enqueue(Barrier{}, stream);
    CHECK(self.wait());
    CHECK(all == std::vector<std::int32_t>{2, 2, 2});
    const auto memory = communicator.allocate_blocking(64, Deadline::after(60s));
    CHECK(memory.bytes() == 64);
    support::check_blocks(self, {7, 3000});
    if (rank == 0) {
      communicator.enqueue(Send{view(whole), 1}, stream);
    } else if (rank == 1) {
      communicator.enqueue(Recv{view(all), 0}, stream);
    }
    CHECK(self.wait());
  });
}

TEST_CASE("a split takes the topology's paths among its ranks, whatever their nodes") {
  support::run_topology_ranks<HierarchicalBackend>(4, {0, 0, 1, 1}, [](auto& self, int rank) {
    auto part = self.communicator.split_blocking(rank == 3 ? 1 : 0, -rank, Deadline::after(60s));
    CHECK(part.size() == (rank == 3 ? 1 : 3));
    CHECK(part.rank() == (rank == 3 ? 0 : 2 - rank));
    std::vector<std::int32_t> values(5, 1 << rank);
    part.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, self.stream.ref());
    CHECK(self.wait());
    CHECK(values == std::vector<std::int32_t>(5, rank == 3 ? 8 : 7));
    CHECK_THROWS_WITH_AS(self.communicator.split_blocking(-1, 0, Deadline::after(1s)),
                         doctest::Contains("colors begin at 0"), dtrain::Error);
  });
}

TEST_CASE("memory that a topology allocates on its own channel waits for its reductions, until the deadline") {
  support::run_topology_ranks<HierarchicalBackend>(2, {0, 0}, [](auto& self, int) {
    std::vector<std::int32_t> values(8, 1);
    self.communicator.enqueue(AllReduce{view(values), view(values), ReduceOp::sum}, self.stream.ref());
    CHECK_THROWS_WITH_AS(self.communicator.allocate_blocking(64, Deadline::after(50ms)),
                         doctest::Contains("a stream that no thread runs"), dtrain::Error);
    CHECK(self.wait());
    CHECK(self.communicator.allocate_blocking(64, Deadline::after(60s)).bytes() == 64);
  });
}

TEST_CASE("memory of a device is refused in a sentence") {
  support::run_topology_ranks<RingBackend>(1, {}, [](auto& self, int) {
    const BufferView device{nullptr, 0, DType::f32, {dtrain::DeviceKind::cuda, 0}};
    CHECK_THROWS_WITH_AS(self.communicator.enqueue(AllReduce{device, device, ReduceOp::sum}, self.stream.ref()),
                         doctest::Contains("topology::Ring reduces host memory, not memory of cuda:0"), dtrain::Error);
    CHECK_FALSE(RingBackend::supports(dtrain::DeviceKind::cuda));
  });
}
