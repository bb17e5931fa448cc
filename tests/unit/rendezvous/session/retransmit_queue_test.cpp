#include "dtrain/rendezvous/session/resumable_session.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

using namespace dtrain::rendezvous;

namespace {

Frame frame_of(std::uint64_t number, std::size_t bytes = 8) {
  Frame frame(bytes);
  for (std::size_t i = 0; i < 8 && i < bytes; ++i) {
    frame[i] = static_cast<std::byte>((number >> (8 * i)) & 0xffU);
  }
  return frame;
}

}  // namespace

TEST_CASE("frames are taken in the order that they were pushed in") {
  RetransmitQueue queue(1000, 1000);
  REQUIRE(queue.push(frame_of(0)));
  REQUIRE(queue.push(frame_of(1)));
  CHECK(queue.waiting_bytes() == 16);
  CHECK(queue.take().own == frame_of(0));
  CHECK(queue.take().own == frame_of(1));
  CHECK_FALSE(queue.has_waiting());
  CHECK(queue.waiting_bytes() == 0);
}

TEST_CASE("what would wait beyond the bound is refused, and taking makes room") {
  RetransmitQueue queue(16, 1000);
  REQUIRE(queue.push(frame_of(0)));
  REQUIRE(queue.push(frame_of(1)));
  CHECK_FALSE(queue.push(frame_of(2)));
  queue.take();
  CHECK(queue.push(frame_of(2)));
}

TEST_CASE("a peer that lost its connection gets what it misses, and not what it has") {
  RetransmitQueue queue(1000, 1000);
  for (std::uint64_t i = 0; i < 5; ++i) {
    REQUIRE(queue.push(frame_of(i)));
  }
  queue.take();
  queue.take();
  queue.take();
  REQUIRE(queue.rewind(2));
  CHECK(queue.take().own == frame_of(2));
  CHECK(queue.take().own == frame_of(3));
  CHECK(queue.take().own == frame_of(4));
  CHECK_FALSE(queue.has_waiting());
}

TEST_CASE("no more is taken than is kept until it is acknowledged, but for a frame that is longer than that") {
  RetransmitQueue queue(1000, 16);
  CHECK_FALSE(queue.may_take());
  REQUIRE(queue.push(frame_of(0, 12)));
  REQUIRE(queue.push(frame_of(1, 4)));
  REQUIRE(queue.push(frame_of(2, 1)));
  REQUIRE(queue.push(frame_of(3, 100)));
  queue.take();
  REQUIRE(queue.may_take());
  queue.take();
  CHECK(queue.taken_bytes() == 16);
  CHECK_FALSE(queue.may_take());
  CHECK(queue.has_waiting());
  REQUIRE(queue.acknowledge(1));
  REQUIRE(queue.may_take());
  queue.take();
  CHECK_FALSE(queue.may_take());
  REQUIRE(queue.acknowledge(3));
  REQUIRE(queue.may_take());
  CHECK(queue.take().own == frame_of(3, 100));
  CHECK(queue.rewind(3));  // and what was taken can be had again
  CHECK(queue.take().own == frame_of(3, 100));
}

TEST_CASE("who claims more than was sent, or misses what is no longer kept, cannot go on, and nothing changes") {
  RetransmitQueue queue(1000, 16);
  for (std::uint64_t i = 0; i < 6; ++i) {
    REQUIRE(queue.push(frame_of(i)));
  }
  for (std::uint64_t i = 0; i < 5; ++i) {
    REQUIRE(queue.may_take());
    queue.take();
    REQUIRE(queue.acknowledge(i < 3 ? i + 1 : 3));
  }
  CHECK_FALSE(queue.acknowledge(6));
  CHECK_FALSE(queue.rewind(6));
  CHECK_FALSE(queue.rewind(1));  // beyond the 16 bytes that are kept
  REQUIRE(queue.acknowledge(4));
  CHECK(queue.take().own == frame_of(5));
  CHECK(queue.rewind(5));
  CHECK(queue.take().own == frame_of(5));
}

TEST_CASE("whatever is pushed, taken, acknowledged and rewound, a peer receives each frame once and in order") {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    RetransmitQueue queue(1 << 20, 1 << 20);
    std::uint64_t pushed = 0;
    std::uint64_t received = 0;  // by the peer
    std::uint64_t in_flight = 0;
    for (int step = 0; step < 300; ++step) {
      switch (random() % 4) {
        case 0: REQUIRE(queue.push(frame_of(pushed++, 8 + random() % 8))); break;
        case 1:
          if (queue.may_take()) {
            const Frame frame = queue.take().own;
            const Frame expected = frame_of(received + in_flight, frame.size());
            REQUIRE(frame == expected);
            ++in_flight;
          }
          break;
        case 2: {  // some arrive, and are acknowledged
          const std::uint64_t arrived = in_flight == 0 ? 0 : random() % (in_flight + 1);
          received += arrived;
          in_flight -= arrived;
          REQUIRE(queue.acknowledge(received));
          break;
        }
        default:  // the connection breaks; some had arrived without being acknowledged
          if (in_flight > 0) {
            received += random() % (in_flight + 1);
          }
          REQUIRE(queue.rewind(received));
          in_flight = 0;
      }
    }
    REQUIRE(received <= pushed);
  }
}
