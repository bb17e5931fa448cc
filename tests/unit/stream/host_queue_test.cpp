#include "support/allocation_count.hpp"
#include "unit/stream/prelude.hpp"

namespace {

Deadline soon() {
  return Deadline::after(60s);
}

WaitResult drain(StreamRef stream) {
  Event event;
  stream.record(event);
  return event.block_until_complete(soon());
}

TEST_CASE("an event that was never recorded is complete") {
  Event event;
  CHECK(event.is_complete());
  CHECK(event.block_until_complete(Deadline::after(0s)) == WaitResult::complete);
}

TEST_CASE("work runs in the thread that waits, in order, and not before") {
  Queue queue;
  std::vector<int> order;
  std::thread::id runner;
  for (int i = 0; i < 5; ++i) {
    queue.ref().enqueue([&order, &runner, i]() noexcept {
      order.push_back(i);
      runner = std::this_thread::get_id();
    });
  }
  Event event;
  queue.ref().record(event);
  CHECK_FALSE(event.is_complete());
  CHECK(order.empty());
  CHECK(event.block_until_complete(soon()) == WaitResult::complete);
  CHECK(event.is_complete());
  CHECK(order == std::vector<int>{0, 1, 2, 3, 4});
  CHECK(runner == std::this_thread::get_id());
}

TEST_CASE("waiting for an event leaves later work alone, and recording moves the event") {
  Queue queue;
  int ran = 0;
  const auto work = [&ran]() noexcept { ++ran; };
  Event event;
  queue.ref().enqueue(work);
  queue.ref().record(event);
  queue.ref().enqueue(work);
  CHECK(event.block_until_complete(soon()) == WaitResult::complete);
  CHECK(ran == 1);
  queue.ref().record(event);
  CHECK_FALSE(event.is_complete());
  CHECK(event.block_until_complete(soon()) == WaitResult::complete);
  CHECK(ran == 2);
}

TEST_CASE("a deadline that has passed runs nothing") {
  Queue queue;
  int ran = 0;
  queue.ref().enqueue([&ran]() noexcept { ++ran; });
  Event event;
  queue.ref().record(event);
  CHECK(event.block_until_complete(Deadline::after(-1s)) == WaitResult::timed_out);
  CHECK(ran == 0);
}

TEST_CASE("one waiter runs, the others sleep until their work is done or take over") {
  Queue queue;
  std::atomic<int> inside{0};
  std::atomic<int> ran{0};
  std::atomic<bool> overlapped{false};
  std::vector<Event> events(40);
  for (Event& event : events) {
    queue.ref().enqueue([&]() noexcept {
      overlapped = overlapped || inside.fetch_add(1) != 0;
      std::this_thread::sleep_for(500us);
      inside.fetch_sub(1);
      ++ran;
    });
    queue.ref().record(event);
  }
  std::atomic<int> complete{0};
  support::on_threads(4, [&](std::size_t i) {
    for (std::size_t k = i; k < events.size(); k += 4)
      complete += events[k].block_until_complete(soon()) == WaitResult::complete ? 1 : 0;
  });
  CHECK(complete == 40);
  CHECK(ran == 40);
  CHECK_FALSE(overlapped);
}

TEST_CASE("a waiter whose work another thread runs gives up at its deadline") {
  Queue queue;
  support::Gate gate;
  queue.ref().enqueue([&]() noexcept { gate.pass(); });
  Event event;
  queue.ref().record(event);
  std::thread runner([&] { event.block_until_complete(soon()); });
  REQUIRE(gate.is_reached_soon());
  CHECK(event.block_until_complete(Deadline::after(20ms)) == WaitResult::timed_out);
  gate.open();
  runner.join();
  CHECK(event.is_complete());
}

TEST_CASE("many producers lose nothing, and a full ring drains instead of growing") {
  Queue queue;
  std::atomic<int> ran{0};
  support::on_threads(3, [&](std::size_t) {
    for (int k = 0; k < 1000; ++k)
      queue.ref().enqueue([&ran]() noexcept { ++ran; });
  });
  CHECK(ran >= 3000 - static_cast<int>(Queue::initial_capacity));
  CHECK(drain(queue.ref()) == WaitResult::complete);
  CHECK(ran == 3000);
}

TEST_CASE("a ring holds what was reserved, and its enqueuer runs none of it") {
  Queue queue;
  int ran = 0;
  const auto count = [&ran]() noexcept { ++ran; };
  for (const int items : {100, 1000, 5000}) {
    queue.ref().enqueue(count);
    queue.ref().reserve(static_cast<std::uint64_t>(items));
    CHECK(ran == (items == 100 ? 0 : 1));  // a ring that is large enough stays, with its work
    CHECK(drain(queue.ref()) == WaitResult::complete);
    ran = 0;
    for (int k = 0; k < items; ++k)
      queue.ref().enqueue(count);
    CHECK(ran == 0);
    CHECK(drain(queue.ref()) == WaitResult::complete);
    CHECK(ran == items);
    ran = 0;
  }
}

TEST_CASE("work that waits for its own stream is an error, not a hang") {
  Queue queue;
  std::atomic<bool> refused{false};
  queue.ref().enqueue([&]() noexcept {
    queue.ref().enqueue([]() noexcept {});
    Event later;
    queue.ref().record(later);
    const dtrain::Error error = support::error_of([&] { later.block_until_complete(soon()); });
    refused = error.code() == dtrain::Errc::invalid_argument;
  });
  CHECK(drain(queue.ref()) == WaitResult::complete);
  CHECK(refused);
}

TEST_CASE("work of one stream waits for an event of another, whoever runs it") {
  Queue producer;
  Queue consumer;
  int value = 0;
  int seen = -1;
  producer.ref().enqueue([&value]() noexcept { value = 7; });
  Event produced;
  producer.ref().record(produced);
  consumer.ref().wait(produced);
  consumer.ref().enqueue([&]() noexcept { seen = value; });
  CHECK(drain(consumer.ref()) == WaitResult::complete);
  CHECK(seen == 7);
}

TEST_CASE("work that is never run gives up what it holds") {
  struct Held {
    int* references;
    void operator()() noexcept {}
    void drop() noexcept { --*references; }
  };
  int references = 2;
  {
    Queue queue;
    queue.ref().enqueue(Held{&references});
    queue.ref().enqueue(Held{&references});
  }
  CHECK(references == 0);
}

TEST_CASE("enqueueing, recording, waiting and looking for work that nobody runs allocate nothing") {
  CommunicationStream stream;
  const auto registry = std::make_shared<dtrain::stream::host::StreamRegistry>();
  stream.register_with(registry);
  ExternalEvent signalled;
  signalled.signal();
  int ran = 0;
  const std::size_t before = support::allocations.load();
  for (int i = 0; i < 1000; ++i) {
    stream.ref().wait(signalled, soon());
    stream.ref().enqueue([&ran]() noexcept { ++ran; });
    drain(stream.ref());
    registry->run_unattended();
  }
  CHECK(support::allocations.load() == before);
  CHECK(ran == 1000);
}

TEST_CASE("an external event holds a stream until it is signalled") {
  Queue queue;
  ExternalEvent external;
  std::atomic<bool> signalled{false};
  bool was_signalled = false;
  queue.ref().wait(external, soon());
  queue.ref().enqueue([&]() noexcept { was_signalled = signalled; });
  std::thread signaller([&] {
    std::this_thread::sleep_for(20ms);
    signalled = true;
    external.signal();
  });
  CHECK(drain(queue.ref()) == WaitResult::complete);
  signaller.join();
  CHECK(was_signalled);
  CHECK(external.is_complete());
  CHECK_FALSE(external.timed_out());
  external.reset();
  CHECK_FALSE(external.is_complete());
  CHECK(external.block_until_complete(Deadline::after(1ms)) == WaitResult::timed_out);
}

TEST_CASE("an external event that nobody signals lets the stream go on at the deadline and says so") {
  Queue queue;
  ExternalEvent external;
  bool ran = false;
  queue.ref().wait(external, Deadline::after(20ms));
  queue.ref().enqueue([&ran]() noexcept { ran = true; });
  CHECK(drain(queue.ref()) == WaitResult::complete);
  CHECK(ran);
  CHECK(external.is_complete());
  CHECK(external.timed_out());
  external.signal();
  CHECK(external.timed_out());
}

TEST_CASE("a stream moves and its references stay valid") {
  CommunicationStream first;
  const StreamRef reference = first.ref();
  CommunicationStream second = std::move(first);
  bool ran = false;
  reference.enqueue([&ran]() noexcept { ran = true; });
  CHECK(reference == second.ref());
  CHECK(drain(second.ref()) == WaitResult::complete);
  CHECK(ran);
}

}  // namespace
