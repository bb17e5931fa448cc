// How the ranks of a channel come to map one memory, and the numbers that error sentences name them by.

#include "dtrain/backend/shared_memory/segment.hpp"

#include <sys/socket.h>

#include "unit/backend/prelude.hpp"

namespace {

using dtrain::backend::ChannelContext;
using dtrain::backend::shared_memory::MappedSegment;
using dtrain::backend::shared_memory::Segment;
using dtrain::backend::shared_memory::SegmentMessage;
using dtrain::backend::shared_memory::SegmentReceiver;
using dtrain::backend::shared_memory::SegmentSetup;
using dtrain::backend::shared_memory::send_segment;
using dtrain::net::UnixConnection;
using support::sentence_of;

using Communicator = dtrain::backend::SharedMemory::Communicator;

/// "77 NAME TOKEN", which a rank writes before rank 0 sends it the memory.
std::string request_of(const ChannelContext& context, int rank) {
  return context.store.get_blocking(context.name + "/memory-1/offer/" + std::to_string(rank), Deadline::after(60s));
}

TEST_CASE("a segment is sent to the address that its receiver gave, and to nothing else") {
  const auto segment = Segment::create(8192, 8192);
  SegmentReceiver receiver;
  const std::string address = receiver.address();
  CHECK(sentence_of([&] { receiver.receive(8192, Deadline::after(0s)); }).find("accepting a process") == 0);
  CHECK_NOTHROW(send_segment(address, segment, Deadline::after(60s)));
  const std::shared_ptr<Segment> received = receiver.receive(8192, Deadline::after(60s));
  segment->reserve(0, 8192);
  segment->base()[8191] = std::byte{42};
  CHECK(received->base()[8191] == std::byte{42});
  const std::string name = address.substr(0, address.find(' '));
  const SegmentMessage without_token;
  UnixConnection::connect(name, Deadline::after(60s))
      .send_descriptor(segment->descriptor(), std::as_bytes(std::span(&without_token, 1)), Deadline::after(60s));
  CHECK_CONTAINS(sentence_of([&] { receiver.receive(8192, Deadline::after(0s)); }), "messages of other processes");
  for (const std::string& text :
       {std::string(), std::string("a"), std::string("a b"), name + " ", " " + address, address + "0"}) {
    CHECK(sentence_of([&] { send_segment(text, segment, Deadline::after(60s)); }).find("its socket's address") == 0);
  }
}

TEST_CASE("a rank that comes late to the setup is waited for, and its socket ends with the setup") {
  const auto job = std::make_shared<FakeJob>(2);
  std::string name;
  const auto sockets = [&] {
    std::ifstream all("/proc/net/unix");
    int count = 0;
    for (std::string line; std::getline(all, line);)
      count += line.find(name) != std::string::npos ? 1 : 0;
    return count;
  };
  run_thread_ranks(2, [&](RankThread& thread) {
    const ChannelContext context = support::channel_context(job, thread.rank(), 2, "group", 20s);
    if (thread.rank() == 0) {
      const std::string request = request_of(context, 1);
      name = request.substr(4, request.find(' ', 4) - 4);
      CHECK(request.substr(0, 4) == "=77 ");
      CHECK(sockets() == 1);
      std::this_thread::sleep_for(1500ms);
    }
    CHECK_NOTHROW([&] {
      const MappedSegment mapped = SegmentSetup(context, 1, 77, Deadline::after(60s)).run();
      CHECK(mapped.segment->bytes() == 2 * mapped.stride);
    }());
  });
  CHECK(sockets() == 0);
}

TEST_CASE("strangers that connect and say nothing, or nonsense, keep no rank out") {
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    const ChannelContext context = support::channel_context(job, thread.rank(), 3, "group", 20s);
    std::vector<UnixConnection> strangers;
    if (thread.rank() == 0) {
      const std::string request = request_of(context, 2);
      const std::size_t begin = request.find(' ') + 1;
      const std::string name = request.substr(begin, request.find(' ', begin) - begin);
      for (int i = 0; i < 40; ++i) {
        strangers.push_back(UnixConnection::connect(name, Deadline::after(60s)));
        if (i % 3 == 0) {
          CHECK(::send(strangers.back().descriptor(), "???", 3, 0) == 3);
        }
      }
    }
    CHECK_NOTHROW(SegmentSetup(context, 1, 100, Deadline::after(60s)).run());
  });
}

TEST_CASE("in a part of the job, sentences call ranks what the job calls them") {
  run_ranks<SharedMemoryRank>(2, [&](SharedMemoryRank& self, RankThread& thread) {
    std::optional<Communicator> pair = self.communicator.split_blocking(0, -thread.rank(), Deadline::after(60s));
    CHECK(pair->rank() == 1 - thread.rank());
    thread.doing("allocating");
    const std::size_t bytes = thread.rank() == 1 ? 100 : 200;
    CHECK(sentence_of([&] { static_cast<void>(pair->allocate_blocking(bytes, Deadline::after(60s))); }) ==
          "rank 1 allocates 100 bytes of shared memory and rank 0 allocates 200; every rank asks for the same size");
    thread.doing("leaving");
    if (thread.rank() == 1) {
      pair.reset();
      self.latch->block_until_failed(Deadline::after(60s));
    } else {
      pair->enqueue(dtrain::backend::Barrier{}, self.stream.ref());
      CHECK_FALSE((self.wait() && !pair->failure()));
      CHECK_CONTAINS(pair->failure()->text, " cannot be finished: rank 1 has left the channel");
    }
  });
}

TEST_CASE("a rank that has not come to a part of the job is named as the job numbers it") {
  const auto job = std::make_shared<FakeJob>(2);
  ChannelContext context = support::channel_context(job, 0, 2, "group", 20s);
  const auto set_up = [&] { SegmentSetup(context, 1, 100, Deadline::after(100ms)).run(); };
  CHECK(sentence_of(set_up) == "setting up shared memory for channel 'group': rank 1 did not come by the deadline");
  context.members.job_ranks = std::make_shared<const std::vector<int>>(std::vector<int>{7, 4});
  CHECK(sentence_of(set_up) == "setting up shared memory for channel 'group': rank 4 did not come by the deadline");
}

}  // namespace
