#include "dtrain/rendezvous/outbox.hpp"

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
  Outbox outbox(1000, 1000);
  REQUIRE(outbox.push(frame_of(0)));
  REQUIRE(outbox.push(frame_of(1)));
  CHECK(outbox.waiting_bytes() == 16);
  CHECK(outbox.take().own == frame_of(0));
  CHECK(outbox.take().own == frame_of(1));
  CHECK_FALSE(outbox.has_waiting());
  CHECK(outbox.waiting_bytes() == 0);
}

TEST_CASE("what would wait beyond the bound is refused, and taking makes room") {
  Outbox outbox(16, 1000);
  REQUIRE(outbox.push(frame_of(0)));
  REQUIRE(outbox.push(frame_of(1)));
  CHECK_FALSE(outbox.push(frame_of(2)));
  outbox.take();
  CHECK(outbox.push(frame_of(2)));
}

TEST_CASE("a peer that lost its connection gets what it misses, and not what it has") {
  Outbox outbox(1000, 1000);
  for (std::uint64_t i = 0; i < 5; ++i) {
    REQUIRE(outbox.push(frame_of(i)));
  }
  outbox.take();
  outbox.take();
  outbox.take();
  REQUIRE(outbox.rewind(2));
  CHECK(outbox.take().own == frame_of(2));
  CHECK(outbox.take().own == frame_of(3));
  CHECK(outbox.take().own == frame_of(4));
  CHECK_FALSE(outbox.has_waiting());
}

TEST_CASE("no more is taken than is kept until it is acknowledged, but for a frame that is longer than that") {
  Outbox outbox(1000, 16);
  CHECK_FALSE(outbox.may_take());
  REQUIRE(outbox.push(frame_of(0, 12)));
  REQUIRE(outbox.push(frame_of(1, 4)));
  REQUIRE(outbox.push(frame_of(2, 1)));
  REQUIRE(outbox.push(frame_of(3, 100)));
  outbox.take();
  REQUIRE(outbox.may_take());
  outbox.take();
  CHECK(outbox.taken_bytes() == 16);
  CHECK_FALSE(outbox.may_take());
  CHECK(outbox.has_waiting());
  REQUIRE(outbox.acknowledge(1));
  REQUIRE(outbox.may_take());
  outbox.take();
  CHECK_FALSE(outbox.may_take());
  REQUIRE(outbox.acknowledge(3));
  REQUIRE(outbox.may_take());
  CHECK(outbox.take().own == frame_of(3, 100));
  CHECK(outbox.rewind(3));  // and what was taken can be had again
  CHECK(outbox.take().own == frame_of(3, 100));
}

TEST_CASE("who claims more than was sent, or misses what is no longer kept, cannot go on, and nothing changes") {
  Outbox outbox(1000, 16);
  for (std::uint64_t i = 0; i < 6; ++i) {
    REQUIRE(outbox.push(frame_of(i)));
  }
  for (std::uint64_t i = 0; i < 5; ++i) {
    REQUIRE(outbox.may_take());
    outbox.take();
    REQUIRE(outbox.acknowledge(i < 3 ? i + 1 : 3));
  }
  CHECK_FALSE(outbox.acknowledge(6));
  CHECK_FALSE(outbox.rewind(6));
  CHECK_FALSE(outbox.rewind(1));  // beyond the 16 bytes that are kept
  REQUIRE(outbox.acknowledge(4));
  CHECK(outbox.take().own == frame_of(5));
  CHECK(outbox.rewind(5));
  CHECK(outbox.take().own == frame_of(5));
}

TEST_CASE("whatever is pushed, taken, acknowledged and rewound, a peer receives each frame once and in order") {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    Outbox outbox(1 << 20, 1 << 20);
    std::uint64_t pushed = 0;
    std::uint64_t received = 0;  // by the peer
    std::uint64_t in_flight = 0;
    for (int step = 0; step < 300; ++step) {
      switch (random() % 4) {
        case 0: REQUIRE(outbox.push(frame_of(pushed++, 8 + random() % 8))); break;
        case 1:
          if (outbox.may_take()) {
            const Frame frame = outbox.take().own;
            const Frame expected = frame_of(received + in_flight, frame.size());
            REQUIRE(frame == expected);
            ++in_flight;
          }
          break;
        case 2: {  // some arrive, and are acknowledged
          const std::uint64_t arrived = in_flight == 0 ? 0 : random() % (in_flight + 1);
          received += arrived;
          in_flight -= arrived;
          REQUIRE(outbox.acknowledge(received));
          break;
        }
        default:  // the connection breaks; some had arrived without being acknowledged
          if (in_flight > 0) {
            received += random() % (in_flight + 1);
          }
          REQUIRE(outbox.rewind(received));
          in_flight = 0;
      }
    }
    REQUIRE(received <= pushed);
  }
}
