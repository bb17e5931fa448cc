// Bytes from anywhere in any pieces: the frames are those that are there, whatever the pieces, and never above the
// bound.

#include <algorithm>
#include <span>

#include "dtrain/net/framing/frame.hpp"
#include "fuzz/fuzz.hpp"

namespace net = dtrain::net;

namespace {

struct Parsed {
  std::vector<std::byte> again;  ///< the frames, with their lengths before them
  std::size_t left = 0;
  bool malformed = false;

  bool operator==(const Parsed&) const = default;
};

/// @param pieces how long each piece is, over and over; empty: all at once
Parsed parse(std::span<const std::byte> stream, std::size_t bound, std::span<const std::byte> pieces) {
  net::FrameParser parser(bound);
  Parsed parsed;
  std::size_t fed = 0;
  for (std::size_t i = 0; fed < stream.size(); ++i) {
    const std::size_t wanted = pieces.empty() ? stream.size() : std::to_integer<std::size_t>(pieces[i % pieces.size()]);
    const std::size_t length = std::min(wanted + (pieces.empty() ? 0 : 1), stream.size() - fed);
    parser.feed(stream.subspan(fed, length));
    fed += length;
    fuzz::require(parser.buffered() <= fed, "nothing is kept that was not received");
    while (const auto frame = parser.next()) {
      fuzz::require(frame->size() <= bound, "no frame is above the bound");
      for (std::size_t byte = 0; byte < net::frame_header_bytes; ++byte) {
        parsed.again.push_back(static_cast<std::byte>((frame->size() >> (8 * byte)) & 0xffU));
      }
      parsed.again.insert(parsed.again.end(), frame->begin(), frame->end());
    }
  }
  parsed.left = parser.buffered();
  parsed.malformed = parser.malformed();
  fuzz::require(!parser.malformed() || (parser.refused_length() > bound && parsed.left == 0),
                "what is too long is let go");
  return parsed;
}

}  // namespace

std::vector<std::string> fuzz::seeds() {
  const std::string frames = std::string("\x03\0\0\0abc\0\0\0\0\x01\0\0\0x", 16);
  return {std::string("\x08\x02\x01\x01", 4) + frames, std::string("\xff\x01\0", 3) + frames,
          std::string("\x02\x01\0", 3) + frames, std::string("\x10\x01\0\xff\xff\xff\xff", 7) + frames};
}

/// The first byte is the bound, the second how many of the next are lengths of pieces; then comes the stream.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  if (input.size() < 2) {
    return 0;
  }
  const std::size_t bound = std::to_integer<std::size_t>(input[0]);
  const std::size_t pieces = std::min(std::to_integer<std::size_t>(input[1]), input.size() - 2);
  const std::span<const std::byte> stream = input.subspan(2 + pieces);
  const Parsed parsed = parse(stream, bound, input.subspan(2, pieces));
  fuzz::require(parsed == parse(stream, bound, {}), "it does not matter in which pieces the bytes come");
  fuzz::require(parsed.again.size() + parsed.left <= stream.size(), "no more comes out than went in");
  fuzz::require(std::equal(parsed.again.begin(), parsed.again.end(), stream.begin()), "the frames are what was sent");
  fuzz::require(parsed.malformed || parsed.again.size() + parsed.left == stream.size(), "no byte is lost");
  return 0;
}
