#include <functional>

#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::Recv;
using dtrain::backend::Send;
using dtrain::backend::SendRecv;

/// What rank `from` sends as its `number`-th message.
std::vector<std::int32_t> message(int from, int number, std::size_t count) {
  std::vector<std::int32_t> values(count);
  std::iota(values.begin(), values.end(), from * 1'000'000 + number * 1000);
  return values;
}

BufferView view(std::vector<std::int32_t>& values) {
  return dtrain::buffer_view(std::span(values));
}

constexpr std::size_t counts[] = {0, 1, 1000, 8192, 8193, 100'003};

TEST_CASE("messages between two ranks arrive whole and in order, of any length") {
  run_ranks<SharedMemoryRank>(2, [&](SharedMemoryRank& self, RankThread& thread) {
    int number = 0;
    for (const std::size_t count : counts) {
      thread.doing("exchanging messages");
      auto sent = message(0, ++number, count);
      std::vector<std::int32_t> got(count);
      if (thread.rank() == 0) {
        self.communicator.enqueue(Send{view(sent), 1}, self.stream.ref());
        self.communicator.enqueue(Recv{view(got), 1}, self.stream.ref());
      } else {
        self.communicator.enqueue(Recv{view(got), 0}, self.stream.ref());
        self.communicator.enqueue(Send{view(got), 0}, self.stream.ref());
      }
      CHECK(self.wait());
      CHECK(got == sent);
    }
  });
}

TEST_CASE("all ranks of a ring send and receive at once, however long the messages") {
  for (const int ranks : {1, 2, 3, 8}) {
    run_ranks<SharedMemoryRank>(ranks, [&](SharedMemoryRank& self, RankThread& thread) {
      const int next = (thread.rank() + 1) % ranks;
      const int previous = (thread.rank() + ranks - 1) % ranks;
      for (const std::size_t count : counts) {
        auto sent = message(thread.rank(), 1, count);
        std::vector<std::int32_t> got(count / 2 + count % 2);  // the odd ranks' messages are shorter
        sent.resize(thread.rank() % 2 == 1 ? got.size() : count);
        got.resize(previous % 2 == 1 ? got.size() : count);
        self.communicator.enqueue(SendRecv{view(sent), next, view(got), previous}, self.stream.ref());
        CHECK(self.wait());
        auto expected = message(previous, 1, count);
        expected.resize(got.size());
        CHECK(got == expected);
      }
    });
  }
}

TEST_CASE("a short message does not wait for its receiver, and collectives go on between") {
  run_ranks<SharedMemoryRank>(3, [&](SharedMemoryRank& self, RankThread& thread) {
    auto first = message(thread.rank(), 1, 100);
    auto second = message(thread.rank(), 2, 200);
    std::vector<std::int32_t> first_got(100);
    std::vector<std::int32_t> second_got(200);
    float one = 1;
    const BufferView sum{reinterpret_cast<std::byte*>(&one), 1, DType::f32, {}};
    const auto stream = self.stream.ref();
    if (thread.rank() == 0) {
      self.communicator.enqueue(Send{view(first), 1}, stream);
      self.communicator.enqueue(Send{view(second), 2}, stream);
    }
    self.communicator.enqueue(AllReduce{sum, sum, ReduceOp::sum}, stream);
    if (thread.rank() == 1) {
      self.communicator.enqueue(Recv{view(first_got), 0}, stream);
    } else if (thread.rank() == 2) {
      self.communicator.enqueue(Recv{view(second_got), 0}, stream);
    }
    CHECK(self.wait());
    CHECK(one == 3);
    CHECK((thread.rank() != 1 || first_got == message(0, 1, 100)));
    CHECK((thread.rank() != 2 || second_got == message(0, 2, 200)));
  });
}

/// The kind of failure that ended each rank's channel, and its text.
std::vector<dtrain::Cause> causes_after(const std::function<void(SharedMemoryRank&)>& body,
                                        std::chrono::nanoseconds timeout = 10s) {
  std::vector<dtrain::Cause> causes(2);
  support::run_opened_ranks<SharedMemoryRank>({2, "group", timeout}, [&](SharedMemoryRank& self, RankThread& thread) {
    body(self);
    if (!self.wait() && self.communicator.failure()) {
      causes[static_cast<std::size_t>(thread.rank())] = *self.communicator.failure();
    }
  });
  return causes;
}

TEST_CASE("a message of another length or type than is received is an error that names both, on both ranks") {
  static std::vector<std::int32_t> values(100'000);  // longer than the outbox: it has to wait
  std::vector<std::int32_t> memory(100'000);
  BufferView floats = view(memory);
  floats.dtype = DType::f32;
  BufferView fewer = view(memory);
  fewer.count = 70'000;
  for (const auto& [received, text] : {std::pair(fewer, "70000 i32"), std::pair(floats, "100000 f32")}) {
    const auto causes = causes_after([&into = received](SharedMemoryRank& self) {
      if (self.communicator.rank() == 0) {
        self.communicator.enqueue(Send{view(values), 1}, self.stream.ref());
      } else {
        self.communicator.enqueue(Recv{into, 0}, self.stream.ref());
      }
      self.wait();
    });
    for (const dtrain::Cause& cause : causes) {
      CHECK(cause.kind == dtrain::CauseKind::disagreement);
      CHECK_CONTAINS(cause.text, std::string("rank 0 sends 100000 i32 and rank 1 receives ") + text);
    }
  }
}

TEST_CASE("a message that nobody sends ends by the timeout, and says from whom it did not come") {
  const auto causes = causes_after(
      [](SharedMemoryRank& self) {
        std::vector<std::int32_t> got(10);
        if (self.communicator.rank() == 1) {
          self.communicator.enqueue(Recv{view(got), 0}, self.stream.ref());
        } else {
          self.communicator.enqueue(Barrier{}, self.stream.ref());
        }
        self.wait();
      },
      200ms);
  bool found = false;
  for (const dtrain::Cause& cause : causes) {
    CHECK(cause.kind == dtrain::CauseKind::timeout);
    found =
        found ||
        cause.text.find("recv of 10 i32 from rank 0, on channel 'group': rank 0 had not sent") != std::string::npos ||
        cause.text.find("barrier") != std::string::npos;
  }
  CHECK(found);
}

TEST_CASE("who receives from a rank that left its channel is told, not made to wait") {
  run_ranks<SharedMemoryRank>(2, [&](SharedMemoryRank& self, RankThread& thread) {
    if (thread.rank() == 0) return;
    std::vector<std::int32_t> got(10);
    self.communicator.enqueue(Recv{view(got), 0}, self.stream.ref());
    CHECK_FALSE(self.wait());
    CHECK_CONTAINS(self.communicator.failure()->text, "rank 0 has left the channel");
  });
}

/// Enqueues as many messages to rank `to` as fill the mailbox, which wait for no receiver.
void fill_mailbox(SharedMemoryRank& self, int to, std::vector<std::int32_t>& sent) {
  for (std::size_t i = 0; i < dtrain::backend::shared_memory::mailbox_slots; ++i) {
    self.communicator.enqueue(Send{view(sent), to}, self.stream.ref());
  }
}

TEST_CASE(
    "messages that a rank left without receiving do not keep a later message waiting: the error names that rank") {
  support::Gate receiving;  // the error may otherwise meet rank 1 while it still opens its channel
  run_ranks<SharedMemoryRank>({3, "group", 10s}, [&](SharedMemoryRank& self, RankThread& thread) {
    std::vector<std::int32_t> values(10);
    if (thread.rank() == 0) {
      fill_mailbox(self, 2, values);
      receiving.pass();
      self.communicator.enqueue(Send{view(values), 1}, self.stream.ref());
    } else if (thread.rank() == 1) {
      self.communicator.enqueue(Recv{view(values), 0}, self.stream.ref());
      receiving.open();
    } else {
      return;
    }
    CHECK_FALSE(self.wait());
    const dtrain::Cause cause = self.communicator.failure().value_or(dtrain::Cause{});
    CHECK(cause.kind == dtrain::CauseKind::disagreement);
    CHECK(cause.text ==
          "send of 10 i32 to rank 1, on channel 'group' cannot be finished: rank 2 has left the channel without "
          "receiving what this rank had sent to it before");
  });
}

TEST_CASE("a message that waits behind those to another rank names that rank at the timeout") {
  support::Gate ended;
  support::run_opened_ranks<SharedMemoryRank>({3, "group", 200ms}, [&](SharedMemoryRank& self, RankThread& thread) {
    std::vector<std::int32_t> values(10);
    if (thread.rank() == 0) {
      fill_mailbox(self, 2, values);
      self.communicator.enqueue(Send{view(values), 1}, self.stream.ref());
      CHECK_FALSE(self.wait());
      CHECK(self.communicator.failure().value_or(dtrain::Cause{}).text ==
            "send of 10 i32 to rank 1, on channel 'group': rank 2 had not taken what was sent before after 200 ms; "
            "where ranks send to each other before they receive, use send_recv");
      ended.open();
    } else {
      ended.pass();  // this rank stays, and receives nothing
    }
  });
}

}  // namespace
