#include "dtrain/core/serializer.hpp"
#include "unit/core/prelude.hpp"

namespace {

enum class Color : std::uint8_t { red = 1, green, blue };

/// One field of each kind.
struct Everything {
  std::uint8_t small = 0;
  int bounded = 0;
  std::optional<int> rank{};
  Color color = Color::red;
  bool flag = false;
  std::string text{};
  std::string raw{};
  std::array<std::byte, 2> bytes{};
  std::vector<std::string> names{};
  std::optional<std::string> maybe{};
  std::chrono::nanoseconds time{};

  friend bool operator==(const Everything&, const Everything&) = default;
};

void fields(Serializer& of, Everything& all) {
  const auto name = [&of](std::string& each) { of.raw_text(each, 8); };
  of.constant("v1");
  of.number(all.small);
  of.number(all.bounded, -5, 5);
  of.number(all.rank, 9);
  of.choice(all.color, Color::red, Color::blue);
  of.flag(all.flag);
  of.text(all.text, 8);
  of.raw_text(all.raw, 8);
  of.bytes(all.bytes);
  of.list(all.names, 1, 3, name);
  of.maybe(all.maybe, name);
  fields(of, all.time);
}

Everything something() {
  return {7,
          -5,
          3,
          Color::blue,
          true,
          "a text",
          std::string("\0\n", 2),
          {std::byte{1}, std::byte{2}},
          {"one", ""},
          "there",
          std::chrono::nanoseconds(-1)};
}

std::optional<Everything> through_bytes(const Everything& all) {
  return dtrain::try_from_bytes<Everything>(dtrain::to_bytes(all));
}

/// Why `all` cannot be read.
std::string refusal(const std::string& bytes) {
  try {
    static_cast<void>(dtrain::from_bytes<Everything>(bytes, "all of it"));
  } catch (const dtrain::Error& error) {
    CHECK(error.code() == dtrain::make_error_code(dtrain::Errc::protocol));
    return error.what();
  }
  return "";
}

template <class T>
T read(Serializer& reader) {
  T value{};
  reader.number(value);
  return value;
}

std::string read_text(Serializer& reader, std::size_t longest) {
  std::string text;
  reader.raw_text(text, longest);
  return text;
}

template <class T>
void write(Serializer& writer, T value) {
  writer.number(value);
}

void write(Serializer& writer, std::string text) {
  writer.raw_text(text, text.size());
}

TEST_CASE("integers are little-endian whatever the machine") {
  Serializer writer;
  write(writer, std::uint8_t{1});
  write(writer, std::uint16_t{0x0203});
  write(writer, std::uint32_t{0x04050607});
  write(writer, std::int64_t{-2});
  const std::vector<std::byte> bytes = writer.take();
  const std::vector<int> expected{1, 3, 2, 7, 6, 5, 4, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  REQUIRE(bytes.size() == expected.size());
  for (std::size_t i = 0; i < bytes.size(); ++i)
    CHECK(std::to_integer<int>(bytes[i]) == expected[i]);
}

TEST_CASE("what was written is read back, extremes included") {
  Serializer writer;
  write(writer, std::numeric_limits<std::int64_t>::min());
  write(writer, ~std::uint64_t{0});
  write(writer, std::string());
  write(writer, std::string("a\0b", 3));
  Serializer reader(writer.view());
  CHECK(read<std::int64_t>(reader) == std::numeric_limits<std::int64_t>::min());
  CHECK(read<std::uint64_t>(reader) == ~std::uint64_t{0});
  CHECK(read_text(reader, 0).empty());
  CHECK(read_text(reader, 3) == std::string("a\0b", 3));
  CHECK(reader.finished());
}

TEST_CASE("every cut of a message fails for good, and reads nothing beyond it") {
  Serializer writer;
  write(writer, std::uint32_t{7});
  write(writer, std::string("twelve bytes"));
  write(writer, std::uint8_t{9});
  const std::vector<std::byte> whole = writer.take();
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    Serializer reader(cut);
    read<std::uint32_t>(reader);
    read_text(reader, 100);
    read<std::uint8_t>(reader);
    CHECK_FALSE(reader.ok());
    CHECK(read<std::uint64_t>(reader) == 0);
    CHECK(read_text(reader, 100).empty());
    CHECK_FALSE(reader.finished());
  }
}

TEST_CASE("a string above its bound, or longer than what is there, fails without an allocation of its length") {
  Serializer writer;
  write(writer, std::uint32_t{0xffffffff});
  writer.constant(std::string(16, '\0'));
  Serializer reader(writer.view());
  CHECK(read_text(reader, std::numeric_limits<std::size_t>::max()).empty());
  CHECK_FALSE(reader.ok());
  Serializer bounded;
  write(bounded, std::string("four"));
  Serializer strict(bounded.view());
  CHECK(read_text(strict, 3).empty());
  CHECK_FALSE(strict.ok());
}

TEST_CASE("bytes left over are not finished") {
  Serializer writer;
  write(writer, std::uint8_t{1});
  write(writer, std::uint8_t{2});
  Serializer reader(writer.view());
  read<std::uint8_t>(reader);
  CHECK(reader.ok());
  CHECK_FALSE(reader.finished());
}

TEST_CASE("random bytes never make a reader go beyond them") {
  std::mt19937 random(7);
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes(random() % 24);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random() % 6);
    Serializer reader(bytes);
    std::size_t taken = 0;
    for (int step = 0; step < 6 && reader.ok(); ++step) {
      std::vector<std::byte> raw(random() % 8);
      switch (random() % 4) {
        case 0: read<std::uint8_t>(reader); break;
        case 1: read<std::uint64_t>(reader); break;
        case 2: taken += read_text(reader, 8).size(); break;
        default: reader.bytes(raw); taken += reader.ok() ? raw.size() : 0;
      }
      REQUIRE(reader.remaining() <= bytes.size());
    }
    REQUIRE(taken <= bytes.size());
  }
}

TEST_CASE("one description writes and reads every kind of field") {
  CHECK(through_bytes(something()) == something());
  Everything least;
  least.names = {""};
  CHECK(through_bytes(least) == least);
}

TEST_CASE("a text arrives printable and is cut, other bytes arrive as they are") {
  Everything all = something();
  all.text = "a\nb";
  all.raw = "0123456789";
  const std::optional<Everything> read = through_bytes(all);
  REQUIRE(read);
  CHECK(read->text == "a\\nb");
  CHECK(read->raw == "01234567");
}

TEST_CASE("a field out of its bounds is malformed, and the sentence says which and where") {
  const auto refused = [](auto change) {
    Everything all = something();
    change(all);
    return refusal(dtrain::to_bytes(all));
  };
  const std::string number = "which has a number out of its bounds (byte ";
  CHECK_CONTAINS(refused([](Everything& all) { all.bounded = 6; }), number + "7 of ");
  CHECK_CONTAINS(refused([](Everything& all) { all.rank = 10; }), number + "11 of ");
  CHECK_CONTAINS(refused([](Everything& all) { all.color = Color{4}; }), number + "12 of ");
  CHECK_CONTAINS(refused([](Everything& all) { all.time = -dtrain::max_time_read - std::chrono::nanoseconds(1); }),
                 number);
  const std::string list = "which has a list with too few or too many elements (byte ";
  CHECK_CONTAINS(refused([](Everything& all) { all.names.clear(); }), list);
  CHECK_CONTAINS(refused([](Everything& all) { all.names.resize(4); }), list);
  const std::string good = dtrain::to_bytes(something());
  const std::string whole = std::to_string(good.size());
  CHECK(refusal(good).empty());
  CHECK_CONTAINS(refusal("v2" + good.substr(2)), "which has another format (byte 2 of " + whole + ")");
  CHECK_CONTAINS(refusal(good + "x"), "which has more bytes than its fields (byte " + whole + " of ");
  CHECK(refusal("v1\x01") ==
        "all of it came as 'v1\\x01', which ends too early (byte 3 of 3); do all ranks run the same program?");
}

TEST_CASE("every beginning is malformed") {
  const std::string good = dtrain::to_bytes(something());
  for (std::size_t length = 0; length < good.size(); ++length)
    CHECK_FALSE(dtrain::try_from_bytes<Everything>(std::string_view(good).substr(0, length)));
}

}  // namespace
