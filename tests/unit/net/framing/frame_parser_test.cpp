#include "unit/net/prelude.hpp"

namespace {

using Bytes = std::vector<std::byte>;

std::vector<Bytes> drain(FrameParser& parser) {
  std::vector<Bytes> frames;
  while (auto frame = parser.next())
    frames.push_back(std::move(*frame));
  return frames;
}

Bytes payload(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((seed + i * 31) & 0xff);
  return bytes;
}

/// Appends a frame. @param length announced
void append(Bytes& stream, const Bytes& frame, std::uint32_t length) {
  for (unsigned shift = 0; shift < 32; shift += 8)
    stream.push_back(static_cast<std::byte>((length >> shift) & 0xff));
  stream.insert(stream.end(), frame.begin(), frame.end());
}

void append(Bytes& stream, const Bytes& frame) {
  append(stream, frame, static_cast<std::uint32_t>(frame.size()));
}

TEST_CASE("every split of a stream in three gives the same frames") {
  const std::vector<Bytes> expected{payload(3, 1), payload(0, 2), payload(1, 3), payload(9, 4)};
  Bytes stream;
  for (const Bytes& frame : expected)
    append(stream, frame);
  const std::span<const std::byte> all(stream);
  for (std::size_t first = 0; first <= stream.size(); ++first) {
    for (std::size_t second = first; second <= stream.size(); ++second) {
      FrameParser parser(9);
      std::vector<Bytes> frames;
      for (const auto piece : {all.first(first), all.subspan(first, second - first), all.subspan(second)}) {
        parser.feed(piece);
        for (Bytes& frame : drain(parser))
          frames.push_back(std::move(frame));
      }
      REQUIRE(frames == expected);
      REQUIRE(parser.buffered() == 0);
    }
  }
}

TEST_CASE("random frames in random pieces come out as they went in, whether taken at once or late") {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::vector<Bytes> expected;
    Bytes stream;
    for (unsigned i = 0; i < 1 + random() % 8; ++i) {
      expected.push_back(payload(random() % 300, i));
      append(stream, expected.back());
    }
    FrameParser parser;
    std::vector<Bytes> frames;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t size = std::min<std::size_t>(1 + random() % 97, stream.size() - at);
      parser.feed(std::span<const std::byte>(stream).subspan(at, size));
      at += size;
      if (random() % 3 == 0) {
        for (Bytes& frame : drain(parser))
          frames.push_back(std::move(frame));
      }
    }
    for (Bytes& frame : drain(parser))
      frames.push_back(std::move(frame));
    REQUIRE(frames == expected);
  }
}

TEST_CASE("a length above the bound makes the stream malformed for good, in whatever pieces it comes") {
  for (const std::uint32_t length : {11U, 0x7fffffffU, 0x80000000U, 0xffffffffU}) {
    for (std::size_t cut = 0; cut <= 4; ++cut) {
      Bytes header;
      append(header, {}, length);
      FrameParser parser(10);
      parser.feed(std::span<const std::byte>(header).first(cut));
      parser.feed(std::span<const std::byte>(header).subspan(cut));
      CHECK(parser.malformed());
      CHECK(parser.refused_length() == length);
      CHECK_FALSE(parser.next().has_value());
      parser.feed(payload(100, 0));
      CHECK(parser.buffered() == 0);
      CHECK_FALSE(parser.next().has_value());
    }
  }
}

TEST_CASE("frames before a malformed one are still given out") {
  Bytes stream;
  append(stream, payload(10, 5));
  append(stream, {}, 11);
  FrameParser parser(10);
  parser.feed(stream);
  CHECK_FALSE(parser.malformed());
  CHECK(parser.next() == payload(10, 5));
  CHECK_FALSE(parser.next().has_value());
  CHECK(parser.malformed());
}

TEST_CASE("an announced megabyte costs only what has arrived of it") {
  FrameParser parser;
  Bytes stream;
  append(stream, payload(100, 1), 1U << 20);
  parser.feed(stream);
  CHECK_FALSE(parser.malformed());
  CHECK(parser.buffered() == 104);
  CHECK_FALSE(parser.next().has_value());
}

}  // namespace
