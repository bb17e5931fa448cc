// How the ranks of a channel connect, and the numbers that error sentences name them by.

#include "dtrain/backend/shared_memory/setup/setup_connections.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/channel_context.hpp"
#include "support/shared_memory_rank.hpp"

namespace {

using dtrain::Deadline;
using dtrain::Errc;
using dtrain::backend::ChannelContext;
using dtrain::backend::shared_memory::ListenerAddress;
using dtrain::backend::shared_memory::SetupConnections;
using dtrain::backend::shared_memory::SetupMessage;
using dtrain::backend::shared_memory::SetupMessageKind;
using dtrain::net::UnixConnection;
using support::FakeJob;
using support::RankThread;
using support::run_thread_ranks;
using support::SharedMemoryRank;
using namespace std::chrono_literals;

using Communicator = dtrain::backend::SharedMemory::Communicator;

ListenerAddress listener_of(const ChannelContext& context) {
  return ListenerAddress::from(context.store.get_blocking(context.name + "/shared_memory", Deadline::after(20s)),
                               context.name);
}

/// What `call` throws; empty where it throws nothing.
template <class F>
std::string sentence_of(F call) {
  try {
    call();
  } catch (const dtrain::Error& error) {
    return error.what();
  }
  return "";
}

TEST_CASE("a listener's address is read as it was written, and anything else is an error") {
  const ListenerAddress listener = ListenerAddress::from(ListenerAddress{"dtrain-1", "secret"}.to_text(), "group");
  CHECK(listener.name == "dtrain-1");
  CHECK(listener.token == "secret");
  const std::string error = ListenerAddress::error_text(4, dtrain::Error(Errc::limit, "no more sockets"));
  CHECK(sentence_of([&] { ListenerAddress::from(error, "group"); }) ==
        "opening channel 'group': rank 4 could not listen: no more sockets");
  const std::string long_token(SetupMessage{}.token.size() + 1, 'x');
  for (const std::string& text :
       {std::string(), std::string("open"), std::string("open a"), std::string("open a b c"), "open a " + long_token}) {
    CHECK_THROWS_AS(ListenerAddress::from(text, "group"), dtrain::Error);
  }
}

TEST_CASE("a rank that is stalled between its connecting and its hello is waited for") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    const ChannelContext context = support::channel_context(job, thread.rank(), 2, "group", 20s);
    if (thread.rank() == 0) {
      CHECK(sentence_of([&] {
              SetupConnections connections = SetupConnections::open(context, Deadline::after(20s));
              CHECK(connections.receive(1, SetupMessageKind::request, 1, Deadline::after(20s)).bytes == 77);
            }) == "");
      return;
    }
    const ListenerAddress listener = listener_of(context);
    UnixConnection connection = UnixConnection::connect(listener.name, Deadline::after(20s));
    std::this_thread::sleep_for(1500ms);
    SetupMessage message;
    message.rank = 1;
    std::copy(listener.token.begin(), listener.token.end(), message.token.begin());
    CHECK(sentence_of([&] {
            connection.send(message.as_bytes(), Deadline::after(20s));
            message.kind = SetupMessageKind::request;
            message.number = 1;
            message.bytes = 77;
            connection.send(message.as_bytes(), Deadline::after(20s));
          }) == "");
    context.failure->block_until_failed(Deadline::after(1s));  // so that the other has read it
  });
}

TEST_CASE("strangers that connect and say nothing, or nonsense, keep no rank out") {
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    const ChannelContext context = support::channel_context(job, thread.rank(), 3, "group", 20s);
    std::vector<UnixConnection> strangers;
    if (thread.rank() == 2) {
      const ListenerAddress listener = listener_of(context);
      for (int i = 0; i < 40; ++i) {
        strangers.push_back(UnixConnection::connect(listener.name, Deadline::after(20s)));
        if (i % 3 == 0) {
          const std::byte nonsense[3]{};
          static_cast<void>(sentence_of([&] { strangers.back().send(nonsense, Deadline::after(20s)); }));
        }
      }
    }
    CHECK(sentence_of([&] { SetupConnections::open(context, Deadline::after(20s)); }) == "");
  });
}

TEST_CASE("in a part of the job, sentences call ranks what the job calls them") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    SharedMemoryRank self(job, thread.rank(), 2);
    std::optional<Communicator> pair = self.communicator.split_blocking(0, -thread.rank(), Deadline::after(20s));
    CHECK(pair->rank() == 1 - thread.rank());
    thread.doing("allocating");
    const std::size_t bytes = thread.rank() == 1 ? 100 : 200;
    CHECK(sentence_of([&] { static_cast<void>(pair->allocate_blocking(bytes, Deadline::after(20s))); }) ==
          "rank 1 allocates 100 bytes of shared memory and rank 0 allocates 200; every rank asks for the same size");
    thread.doing("leaving");
    if (thread.rank() == 1) {
      pair.reset();
      self.latch->block_until_failed(Deadline::after(20s));
    } else {
      pair->barrier(self.stream.ref());
      CHECK_FALSE((self.wait() && !pair->failure()));
      CHECK(pair->failure()->text.find(" cannot be finished: rank 1 has left the channel") != std::string::npos);
    }
  });
}

TEST_CASE("a rank that has not come to a part of the job is named as the job numbers it") {
  const auto job = std::make_shared<FakeJob>(2);
  ChannelContext context = support::channel_context(job, 0, 2, "group", 20s);
  CHECK(sentence_of([&] { SetupConnections::open(context, Deadline::after(100ms)); }) ==
        "setting up shared memory for channel 'group', waiting for rank 1: the deadline passed");
  context.members.job_ranks = std::make_shared<const std::vector<int>>(std::vector<int>{7, 4});
  CHECK(sentence_of([&] { SetupConnections::open(context, Deadline::after(100ms)); }) ==
        "setting up shared memory for channel 'group', waiting for rank 4: the deadline passed");
}

}  // namespace
