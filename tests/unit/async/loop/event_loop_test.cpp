#include <fcntl.h>
#include <sys/socket.h>

#include "unit/async/prelude.hpp"

namespace {

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    read = Descriptor(ends[0]);
    write = Descriptor(ends[1]);
  }
  void put() const { REQUIRE(::write(write.get(), "x", 1) == 1); }
  Descriptor read;
  Descriptor write;
};

TEST_CASE("timers fire in the order of their deadlines, equal ones in the order of waiting") {
  EventLoop loop;
  std::vector<int> order;
  const Deadline base = Deadline::after(5ms);
  const auto sleeper = [&](int name, std::chrono::milliseconds later) -> Task<void> {
    co_await loop.sleep_until(Deadline::at(base.instant() + later));
    order.push_back(name);
  };
  std::vector<async::TaskHandle> tasks;
  tasks.push_back(loop.spawn(sleeper(3, 20ms)));
  tasks.push_back(loop.spawn(sleeper(1, 0ms)));
  tasks.push_back(loop.spawn(sleeper(2, 0ms)));
  loop.run_until(sleeper(4, 40ms), soon());
  CHECK(order == std::vector<int>{1, 2, 3, 4});
}

TEST_CASE("thousands of timers can be cancelled in any order and leave at once") {
  EventLoop loop;
  const auto sleeper = [&](int i) -> Task<void> { co_await loop.sleep_for(std::chrono::hours(1 + (i * 7919) % 5000)); };
  std::vector<async::TaskHandle> tasks;
  for (int i = 0; i < 5000; ++i)
    tasks.push_back(loop.spawn(sleeper(i)));
  run(loop, [&]() -> Task<void> { co_await loop.sleep_for(1ms); });
  CHECK(loop.pending_timers() == 5000);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    tasks[(i * 4999) % tasks.size()].cancel();
    REQUIRE(loop.pending_timers() == tasks.size() - i - 1);
  }
}

TEST_CASE("readable and writable tell readiness and time as values, and leave nothing in epoll") {
  EventLoop loop;
  const Pipe pipe;
  run(loop, [&]() -> Task<void> {
    WakeReason ready = co_await loop.readable(pipe.read.get(), Deadline::after(5ms));
    CHECK(ready == WakeReason::timed_out);
    CHECK(loop.registered_descriptors() == 0);
    ready = co_await loop.writable(pipe.write.get(), soon());
    CHECK(ready == WakeReason::ready);
    pipe.put();
    ready = co_await loop.readable(pipe.read.get(), Deadline::after(-1s));
    CHECK(ready == WakeReason::ready);
    CHECK(loop.registered_descriptors() == 0);
    CHECK(loop.pending_timers() == 1);  // run_until's own
  });
}

TEST_CASE("a reader and a writer wait for one socket at the same time") {
  EventLoop loop;
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  const Descriptor a(ends[0]);
  const Descriptor b(ends[1]);
  std::array<char, 4096> block{};
  while (::write(a.get(), block.data(), block.size()) > 0) {
  }
  int woken = 0;
  const auto reader = [&]() -> Task<void> {
    const WakeReason ready = co_await loop.readable(a.get(), soon());
    woken += ready == WakeReason::ready ? 1 : 0;
  };
  const auto writer = [&]() -> Task<void> {
    const WakeReason ready = co_await loop.writable(a.get(), soon());
    woken += ready == WakeReason::ready ? 10 : 0;
  };
  async::TaskHandle first = loop.spawn(reader());
  async::TaskHandle second = loop.spawn(writer());
  const auto other = [&]() -> Task<void> {
    co_await loop.sleep_for(5ms);
    CHECK(woken == 0);
    CHECK(loop.registered_descriptors() == 1);
    CHECK(::write(b.get(), "x", 1) == 1);
    co_await loop.sleep_for(5ms);
    CHECK(woken == 1);
    CHECK(loop.registered_descriptors() == 1);
    while (::read(b.get(), block.data(), block.size()) > 0) {
    }
    co_await loop.sleep_for(5ms);
    CHECK(woken == 11);
    CHECK(loop.registered_descriptors() == 0);
  };
  loop.run_until(other(), soon());
}

TEST_CASE("an event of a closed descriptor does not wake who waits for its number's next owner") {
  EventLoop loop;
  Pipe first;
  Pipe second;
  const int number = second.read.get();
  first.put();
  second.put();
  std::vector<WakeReason> outcomes;
  // Both pipes are readable in one epoll_wait; whoever runs first replaces the other's pipe by an empty one.
  Descriptor replacement_write;
  async::TaskHandle victim;
  const auto waiter = [&](int descriptor, std::chrono::milliseconds time) -> Task<void> {
    const WakeReason ready = co_await loop.readable(descriptor, Deadline::after(time));
    outcomes.push_back(ready);
  };
  const auto closer = [&]() -> Task<void> {
    const WakeReason ready = co_await loop.readable(first.read.get(), soon());
    CHECK(ready == WakeReason::ready);
    victim.cancel();
    second.read.reset();
    std::array<int, 2> ends{};
    CHECK(::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) == 0);
    CHECK(ends[0] == number);
    second.read = Descriptor(ends[0]);
    replacement_write = Descriptor(ends[1]);
    co_await waiter(number, 20ms);
  };
  async::TaskHandle first_task = loop.spawn(closer());
  victim = loop.spawn(waiter(number, 10s));
  run(loop, [&]() -> Task<void> { co_await loop.sleep_for(60ms); });
  CHECK(outcomes == std::vector<WakeReason>{WakeReason::timed_out});
  CHECK(loop.registered_descriptors() == 0);
}

TEST_CASE("a number that was closed and opened again while somebody waited can still be waited for") {
  EventLoop loop;
  Pipe pipe;
  const int number = pipe.read.get();
  const auto abandoned = [&]() -> Task<void> { co_await loop.readable(number, Deadline::after(60s)); };
  async::TaskHandle careless = loop.spawn(abandoned());
  run(loop, [&]() -> Task<void> {
    co_await loop.sleep_for(2ms);
    pipe.read.reset();  // against the rules: somebody waits
    Pipe next;
    CHECK(next.read.get() == number);
    next.put();
    const WakeReason ready = co_await loop.readable(number, soon());
    CHECK(ready == WakeReason::ready);
  });
}

TEST_CASE("a file that a copy keeps open does not wake who waits for its number's next owner") {
  EventLoop loop;
  Pipe pipe;
  const int number = pipe.read.get();
  const Descriptor copy(::fcntl(number, F_DUPFD_CLOEXEC, 0));  // as in a process forked meanwhile
  const auto abandoned = [&]() -> Task<void> { co_await loop.readable(number, Deadline::after(60s)); };
  async::TaskHandle careless = loop.spawn(abandoned());
  run(loop, [&]() -> Task<void> {
    co_await loop.sleep_for(2ms);
    pipe.read.reset();  // against the rules: somebody waits
    Pipe next;
    CHECK(next.read.get() == number);
    pipe.put();
    const WakeReason ready = co_await loop.readable(number, Deadline::after(10ms));
    CHECK(ready == WakeReason::timed_out);
  });
}

TEST_CASE("a descriptor that epoll refuses is an error at the await, and nothing stays behind") {
  EventLoop loop;
  const Descriptor file(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC));
  const auto body = [&](int descriptor) -> Task<void> { co_await loop.readable(descriptor, soon()); };
  CHECK_THROWS_AS(loop.run_until(body(file.get()), soon()), Error);
  CHECK_THROWS_AS(loop.run_until(body(-1), soon()), Error);
  CHECK(loop.registered_descriptors() == 0);
  CHECK(loop.pending_timers() == 0);
}

TEST_CASE("functions posted from four threads all run on the loop's thread, each thread's in order") {
  EventLoop loop;
  std::array<int, 4> next{};
  int total = 0;
  bool ordered = true;
  std::vector<std::jthread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 1000; ++i) {
        loop.post([&, t, i, payload = std::make_unique<int>(i)] {
          ordered = ordered && next[t] == *payload && loop.on_loop_thread();
          next[t] = i + 1;
          if (++total == 4000) loop.stop();
        });
      }
    });
  }
  loop.run();
  CHECK(total == 4000);
  CHECK(ordered);
  CHECK_FALSE(loop.on_loop_thread());
}

TEST_CASE("run_until gives up at its deadline, cancels the task and names what was being done") {
  EventLoop loop;
  bool destroyed = false;
  struct Flag {
    ~Flag() { set = true; }
    bool& set;
  };
  const auto body = [&]() -> Task<int> {
    const Flag flag{destroyed};
    co_await loop.sleep_for(1h);
    co_return 1;
  };
  CHECK_THROWS_WITH_AS(loop.run_until(body(), Deadline::after(5ms), "waiting for the moon"),
                       "waiting for the moon: the deadline passed", Error);
  CHECK(destroyed);
}

TEST_CASE("an exception of a spawned task goes to its handler, or leaves run, and the loop can go on") {
  EventLoop loop;
  const auto fails = []() -> Task<void> {
    throw std::runtime_error("spawned");
    co_return;
  };
  int handled = 0;
  loop.spawn_detached(fails(), [&](std::exception_ptr exception) {
    CHECK_THROWS_WITH(std::rethrow_exception(exception), "spawned");
    ++handled;
    loop.stop();
  });
  loop.run();
  CHECK(handled == 1);
  loop.spawn_detached(fails());
  CHECK_THROWS_WITH(loop.run(), "spawned");
  loop.post([] { throw std::runtime_error("posted"); });
  bool later = false;
  loop.post([&] {
    later = true;
    loop.stop();
  });
  CHECK_THROWS_WITH(loop.run(), "posted");
  loop.run();
  CHECK(later);
}

TEST_CASE("a session may take its own owner away: it ends at its next suspension") {
  EventLoop loop;
  std::map<int, async::TaskHandle> sessions;
  int steps = 0;
  const auto session = [&](int id, std::shared_ptr<int> counter) -> Task<void> {
    co_await loop.sleep_for(1ms);
    sessions.erase(id);
    ++*counter;
    co_await loop.sleep_for(1ms);
    *counter += 100;
  };
  const auto counter = std::make_shared<int>(0);
  for (int id = 0; id < 3; ++id)
    sessions.emplace(id, loop.spawn(session(id, counter), {}, [&] { ++steps; }));
  const auto wait = [&]() -> Task<void> { co_await loop.sleep_for(20ms); };
  loop.run_until(wait(), soon());
  CHECK(sessions.empty());
  CHECK(*counter == 3);
  CHECK(steps == 3);
  CHECK(counter.use_count() == 1);
}

TEST_CASE("a task may own its own TaskHandle in a parameter") {
  EventLoop loop;
  struct Session {
    async::TaskHandle task;
  };
  const auto session = std::make_shared<Session>();
  const auto body = [&](std::shared_ptr<Session>) -> Task<void> { co_await loop.sleep_for(1ms); };
  std::weak_ptr<Session> watch = session;
  {
    auto owner = session;
    owner->task = loop.spawn(body(owner));
  }
  const auto wait = [&]() -> Task<void> { co_await loop.sleep_for(10ms); };
  const_cast<std::shared_ptr<Session>&>(session).reset();
  CHECK_FALSE(watch.expired());
  loop.run_until(wait(), soon());
  CHECK(watch.expired());
}

TEST_CASE("the loop's end destroys detached and owned tasks and what was posted") {
  const auto token = std::make_shared<int>(0);
  async::TaskHandle survivor;
  {
    EventLoop loop;
    const auto body = [](EventLoop& home, std::shared_ptr<int>) -> Task<void> { co_await home.sleep_for(1h); };
    loop.spawn_detached(body(loop, token));
    survivor = loop.spawn(body(loop, token));
    const auto wait = [&]() -> Task<void> { co_await loop.sleep_for(2ms); };
    loop.run_until(wait(), soon());
    loop.spawn_detached(body(loop, token));
    loop.post([token] {});
    CHECK(token.use_count() == 5);
  }
  CHECK(token.use_count() == 1);
  CHECK(survivor.done());
}

TEST_CASE("running a loop inside itself is an error, not a hang") {
  EventLoop loop;
  const auto body = [&]() -> Task<void> {
    loop.run();
    co_return;
  };
  CHECK_THROWS_AS(loop.run_until(body(), soon()), Error);
  loop.stop();
  loop.run();  // returns at once
  const auto endless = [&]() -> Task<void> { co_await loop.sleep_for(1h); };
  loop.stop();
  CHECK_THROWS_WITH_AS(loop.run_until(endless(), soon(), "idling"), "idling: the event loop was stopped", Error);
}

}  // namespace
