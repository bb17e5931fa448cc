#include "unit/cuda/prelude.hpp"

namespace {

/// Runs `check` with the device's memory operations, and where they can be taken away without them.
template <class Check>
void with_every_way_to_wait(Check check) {
  check();
#if DTRAIN_EMULATED_CUDA
  emulation::set_stream_memory_operations(false);
  check();
  emulation::set_stream_memory_operations(true);
#endif
}

}  // namespace

#if DTRAIN_EMULATED_CUDA
TEST_CASE("the driver's wait is looked up once") {
  const Stream stream;
  ExternalEvent first;
  stream.ref().wait(first, soon());
  first.signal();
  REQUIRE(completes(stream.ref()));
  emulation::fail("cudaGetDriverEntryPointByVersion", 1, cudaErrorUnknown);
  ExternalEvent second;
  stream.ref().wait(second, soon());
  second.signal();
  CHECK(completes(stream.ref()));
  void* found = nullptr;
  CHECK(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, nullptr) ==
        cudaErrorUnknown);  // nobody has asked since
  CHECK(cudaGetLastError() == cudaErrorUnknown);
  emulation::reset();
}
#endif

TEST_CASE("an external event holds a CUDA stream until the host signals it") {
  with_every_way_to_wait([] {
    const Stream stream;
    ExternalEvent external;
    int value = 0;  // ordered by the event alone
    int seen = 0;
    stream.ref().wait(external, soon());
    support::enqueue_on_host(stream.ref(), [&] { seen = value; });
    Event event;
    stream.ref().record(event);
    CHECK(event.block_until_complete(Deadline::after(20ms)) == WaitResult::timed_out);
    CHECK_FALSE(external.is_complete());
    value = 7;
    external.signal();
    CHECK(external.is_complete());
    REQUIRE(event.block_until_complete(soon()) == WaitResult::complete);
    CHECK(seen == 7);
    CHECK_FALSE(external.timed_out());
  });
}

TEST_CASE("an external event that nobody signals lets the CUDA stream go on at the deadline and says so") {
  with_every_way_to_wait([] {
    const Stream stream;
    ExternalEvent external;
    stream.ref().wait(external, Deadline::after(20ms));
    REQUIRE(completes(stream.ref()));
    CHECK(external.block_until_complete(soon()) == WaitResult::complete);
    CHECK(external.timed_out());
    external.signal();
    CHECK(external.timed_out());
  });
}

TEST_CASE("an external event that was signalled before the CUDA stream came holds nothing up") {
  with_every_way_to_wait([] {
    const Stream stream;
    ExternalEvent external;
    external.signal();
    stream.ref().wait(external, soon());
    CHECK(completes(stream.ref()));
    CHECK_FALSE(external.timed_out());
  });
}

TEST_CASE("an external event that is reset begins a new round, and streams that wait for an earlier one go on") {
  const auto check = [](bool beside) {  // whether both streams wait at once
    const Stream early;
    const Stream late;
    ExternalEvent external;
    support::Gate gate;
    support::enqueue_on_host(early.ref(), [&] { gate.pass(); });
    early.ref().wait_unwatched(external, soon());
    external.signal();
    external.reset();
    CHECK_FALSE(external.is_complete());
    if (beside) late.ref().wait_unwatched(external, soon());
    gate.open();
    CHECK(completes(early.ref()));
    if (!beside) late.ref().wait_unwatched(external, soon());
    Event event;
    late.ref().record(event);
    CHECK_FALSE(event.is_complete());
    external.signal();
    CHECK(event.block_until_complete(soon()) == WaitResult::complete);
  };
  with_every_way_to_wait([&] { check(false); });
  check(true);  // needs memory operations: the runtime has one thread for host functions
}

TEST_CASE("a host thread that waits for a CUDA external event is woken by its signal, and gives up at its deadline") {
  ExternalEvent external;
  CHECK(external.block_until_complete(Deadline::after(5ms)) == WaitResult::timed_out);
  std::thread signaller([&] {
    std::this_thread::sleep_for(5ms);
    external.signal();
  });
  CHECK(external.block_until_complete(soon()) == WaitResult::complete);
  signaller.join();
}

TEST_CASE("a signal and a deadline that come together end a round once, whoever is first") {
  const Stream stream;
  ExternalEvent external;
  for (int round = 0; round < 200; ++round) {
    stream.ref().wait(external, Deadline::after(std::chrono::microseconds(50 + round)));
    std::thread signaller([&] {
      std::this_thread::sleep_for(50us);
      external.signal();
    });
    REQUIRE(external.block_until_complete(soon()) == WaitResult::complete);
    signaller.join();
    external.reset();
  }
  CHECK(completes(stream.ref()));
}

TEST_CASE("an external event borrows pinned memory where it is given some") {
  const dtrain::stream::cuda::PinnedBuffer words(16);
  const Stream stream;
  ExternalEvent first(words.data());
  ExternalEvent second(words.data() + 4);
  stream.ref().wait_unwatched(first, soon());
  stream.ref().wait_unwatched(second, soon());
  second.signal();
  first.signal();
  CHECK(completes(stream.ref()));
}
