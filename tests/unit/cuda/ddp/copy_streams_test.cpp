#include "dtrain/ddp/reduction/cuda/copy_streams.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::ddp::CopyStreams;

bool is_reached_soon(const Event& event) {
  return event.block_until_complete(dtrain::Deadline::after(60s)) == dtrain::stream::WaitResult::complete;
}

/// The gradient of a parameter in other memory of its device.
dtrain::TensorView in(const support::DeviceBuffer& memory, const dtrain::Parameter& parameter) {
  dtrain::TensorView elsewhere = parameter.gradient;
  elsewhere.data = const_cast<std::byte*>(memory.data());
  return elsewhere;
}

std::vector<support::DeviceBuffer> other_memory(const CudaTrainingRank& rank, float value) {
  std::vector<support::DeviceBuffer> others;
  for (std::size_t i = 0; i < rank.count(); ++i)
    others.push_back(support::on_device(std::vector<float>(rank.size(i), value)));
  return others;
}

/// A step after which no rank's NCCL waits for another one's call: the first collective connects them.
void connect(CudaTrainingRank& rank) {
  rank.step();
  CHECK(rank.wait());
}

}  // namespace

TEST_CASE("a bucket is packed while the one before it cannot be reduced yet") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const dtrain::stream::cuda::Stream communication;
  CopyStreams copies(communication.ref());
  Gate gate;
  Event first_packed;
  Event first_reduced;
  Event second_packed;
  Event second_reduced;
  copies.packing().record(first_packed);
  copies.make_communication_wait();
  support::enqueue_on_host(communication.ref(), [&] { gate.pass(); });
  communication.ref().record(first_reduced);
  Event first_unpacked;
  copies.unpacking().record(first_unpacked);
  copies.packing().record(second_packed);
  copies.make_communication_wait();
  communication.ref().record(second_reduced);
  CHECK(is_reached_soon(first_packed));
  CHECK(is_reached_soon(second_packed));
  CHECK_FALSE(first_reduced.is_complete());
  CHECK_FALSE(first_unpacked.is_complete());
  CHECK_FALSE(second_reduced.is_complete());
  gate.open();
  CHECK(is_reached_soon(first_unpacked));
  CHECK(is_reached_soon(second_reduced));
}

TEST_CASE("a bucket is reduced while the one before it cannot be unpacked yet, but no later step is packed") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const dtrain::stream::cuda::Stream communication;
  CopyStreams copies(communication.ref());
  Gate gate;
  Event second_reduced;
  Event step_end;
  Event next_packed;
  copies.packing();
  copies.make_communication_wait();
  support::enqueue_on_host(copies.unpacking(), [&] { gate.pass(); });
  communication.ref().record(second_reduced);
  copies.join_all();
  communication.ref().record(step_end);
  copies.begin_packing_after(step_end);
  copies.packing().record(next_packed);
  CHECK(is_reached_soon(second_reduced));
  CHECK(gate.is_reached_soon());
  CHECK_FALSE(step_end.is_complete());
  CHECK_FALSE(next_packed.is_complete());
  gate.open();
  CHECK(is_reached_soon(step_end));
  CHECK(is_reached_soon(next_packed));
}

TEST_CASE("communication does not wait again for a stream that has had no copies since") {
  if (!support::enough_devices(1)) return dtrain_test::skip("there is no device");
  const dtrain::stream::cuda::Stream communication;
  CopyStreams copies(communication.ref());
  const StreamRef packing = copies.packing();
  const StreamRef unpacking = copies.unpacking();
  copies.join_all();
  Gate gate;
  support::enqueue_on_host(packing, [&] { gate.pass(); });
  support::enqueue_on_host(unpacking, [&] { gate.pass(); });
  copies.make_communication_wait();
  copies.join_all();
  Event end;
  communication.ref().record(end);
  CHECK(is_reached_soon(end));
  gate.open();
  for (const StreamRef stream : {packing, unpacking}) {
    stream.record(end);
    CHECK(is_reached_soon(end));
  }
}

TEST_CASE("a rank packs its second bucket while another rank has not joined the reduction of the first") {
  if (DTRAIN_THREAD_SANITIZER) return dtrain_test::skip("it reads memory until a copy has written it");
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  const auto job = std::make_shared<FakeJob>(2);
  Gate packed;
  run_thread_ranks(2, [&](RankThread& self) {
    CudaTrainingRank rank(job, self.rank(), 2, {.sizes = {40, 30}, .bound = true});
    const auto others = other_memory(rank, 2.0F + 2.0F * static_cast<float>(self.rank()));
    // Made now: to allocate, the driver may wait for a collective that runs.
    const dtrain::stream::cuda::Stream reading;
    const std::size_t bytes = rank.size(0) * sizeof(float);
    dtrain::stream::cuda::PinnedBuffer read(bytes);
    Event is_read;
    connect(rank);
    if (self.rank() == 1) packed.pass();
    Step step = rank.reducer->begin();
    for (const std::size_t i : {std::size_t{1}, std::size_t{0}})
      step.ready(i, in(others[i], rank.parameters[i]), rank.stream().handle());
    if (self.rank() == 0) {
      const auto* const last = reinterpret_cast<const float*>(read.data()) + rank.size(0) - 1;
      CHECK(support::holds_soon([&] {
        check(cudaMemcpyAsync(read.data(), rank.parameters[0].gradient.data, bytes, cudaMemcpyDeviceToHost,
                              reading.ref().native()),
              "cudaMemcpyAsync");
        reading.ref().record(is_read);
        return is_reached_soon(is_read) && *last == 2.0F;
      }));
      packed.open();
    }
    step.finish();
    rank.use_all();
    CHECK(rank.wait());
    for (std::size_t i = 0; i < rank.count(); ++i)
      CHECK(rank.result(i) == std::vector<float>(rank.size(i), 3.0F));
  });
}

TEST_CASE("a step whose streams know nothing of the step before is packed behind its reductions and copies") {
  if (!support::enough_devices(2)) return dtrain_test::skip("two ranks need two devices");
  for (const bool bound : {false, true}) {
    CAPTURE(bound);
    const auto job = std::make_shared<FakeJob>(2);
    Gate enqueued;
    run_thread_ranks(2, [&](RankThread& self) {
      CudaTrainingRank rank(job, self.rank(), 2, {.sizes = {40, 30}, .bound = bound, .streams = 2});
      const auto others = other_memory(rank, 100.0F);
      rank.prepare_all(2.0F + 2.0F * static_cast<float>(self.rank()));
      connect(rank);
      if (self.rank() == 1) enqueued.pass();
      Step step = rank.reducer->begin();
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}}) {
        rank.compute(i, rank.stream(0));
        step.ready(i, rank.stream(0).handle());
      }
      step.finish();
      if (self.rank() == 1) {
        rank.use_all();
        CHECK(rank.wait());
        for (std::size_t i = 0; i < rank.count(); ++i)
          CHECK(rank.result(i) == std::vector<float>(rank.size(i), 3.0F));
      }
      Step next = rank.reducer->begin();
      for (const std::size_t i : {std::size_t{1}, std::size_t{0}})
        next.ready(i, in(others[i], rank.parameters[i]), rank.stream(1).handle());
      next.finish();
      if (self.rank() == 0) {
        std::this_thread::sleep_for(30ms);  // for a copy that waited for nothing to do its harm
        enqueued.open();
      }
      rank.use_all(rank.stream(1));
      CHECK(rank.wait());
      for (std::size_t i = 0; i < rank.count(); ++i)
        CHECK(rank.result(i) == std::vector<float>(rank.size(i), 100.0F));
    });
  }
}
