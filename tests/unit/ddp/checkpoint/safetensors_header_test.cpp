// Headers of safetensors files, odd ones as Python's readers take or refuse them, and random lists.

#include "dtrain/ddp/checkpoint/safetensors_header.hpp"

#include "unit/ddp/prelude.hpp"

namespace safetensors_header_test {

/// Why a header is refused; empty where it is read.
std::string refusal(const std::string& text) {
  SafetensorsHeader header;
  return parse_safetensors(text, header);
}

/// A header with one tensor 'a' of these fields.
std::string entry(const std::string& fields) {
  return "{\"a\":{" + fields + "}}";
}
std::string shaped(const std::string& shape, const std::string& offsets = "[0,4]", const std::string& type = "F32") {
  return entry("\"dtype\":\"" + type + "\",\"shape\":" + shape + ",\"data_offsets\":" + offsets);
}
const std::string one = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
const std::string two = R"({"dtype":"F32","shape":[1],"data_offsets":[4,8]})";

TEST_CASE("headers that other readers take are read") {
  for (
      const std::string& text :
      {std::string("{}"), std::string(R"({"__metadata__":{}})"), std::string(R"({"__metadata__":null})"), shaped("[1]"),
       "  \n" + shaped("[1]") + "   ", shaped("[]"), shaped("[0]", "[0,0]"), shaped("[1,1,1,1,1,1,1,1,1]"),
       shaped("[0,4294967296,4294967296]", "[0,0]"), "{\"b\":" + two + ",\"a\":" + one + "}", "{\"\":" + one + "}",
       "{\"\\u0061\\n\\u0000\":" + one + "}", entry(R"("data_offsets":[0,4],"shape":[1],"dtype":"F32")"),
       entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"more":[{"x":null}, 1e400])"),
       "{\"a\":" + one + R"(,"e":{"dtype":"F32","shape":[0,3],"data_offsets":[4,4]},"b":)" + two + "}",
       std::string(
           R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"d":{"dtype":"F64","shape":[1],"data_offsets":[3,11]}})"),
       shaped("[2]", "[0,1]", "F4"), shaped("[1]", "[0,16]", "C128"), shaped("[1]", "[0,1]", "F8_E4M3")}) {
    CAPTURE(text);
    CHECK(refusal(text) == "");
  }
}

TEST_CASE("each other header is refused by a sentence") {
  const auto no_json = [](int at) {
    return "its header is not that of a safetensors file, or has a key twice, from byte " + std::to_string(at) + " on";
  };
  const std::string no_entry =
      "its tensor 'a' has no dtype, shape and data_offsets, or others than a name, whole numbers and two offsets";
  const std::string too_many = "its tensor 'a' has more elements than 64 bits can count";
  const std::string no_place = "its tensor 'a' has other data_offsets than its dtype and shape need";
  const std::vector<std::pair<std::string, std::string>> cases{
      {"", no_json(0)},
      {"[]", no_json(0)},
      {shaped("[1]") + std::string("\0", 1), no_json(54)},
      {shaped("[1]") + " x", no_json(55)},
      {"\xef\xbb\xbf" + shaped("[1]"), no_json(0)},
      {"{\"\xff\":" + one + "}", "byte 2 of its header is not UTF-8"},
      {"{\"\xed\xa0\x80\":" + one + "}", "byte 2 of its header is not UTF-8"},
      {"{\"\\ud800\":" + one + "}", no_json(8)},
      {"{\"a\nb\":" + one + "}", no_json(4)},
      {R"({"__metadata__":{"x":"1"},"__metadata__":{"x":"2"}})", no_json(50)},
      {R"({"__metadata__":{"x":"1","x":"2"}})", no_json(33)},
      {R"({"__metadata__":{"x":1}})", no_json(23)},
      {R"({"__metadata__":{"x":{"y":"z"}}})", no_json(31)},
      {R"({"__metadata__":[]})", no_json(18)},
      {"{\"__metadata__\":" + one + "}", no_json(64)},
      {entry(R"("dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4])"), no_json(67)},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":NaN)"), no_json(57)},
      {entry(R"("dtype":"F32","shape":[1],"data_offsets":[0,4],"x":)" + std::string(40, '[') + std::string(40, ']')),
       no_json(88)},
      {entry(R"("dtype":"F32","data_offsets":[0,4])"), no_entry},
      {R"({"a":["F32",[1],[0,4]]})", no_entry},
      {shaped("[1.0]"), no_entry},
      {shaped("[1e0]"), no_entry},
      {shaped("[-1]"), no_entry},
      {shaped("[-0]", "[0,0]"), no_entry},
      {shaped("[\"1\"]"), no_entry},
      {shaped("[1]", "[0,4,4]"), no_entry},
      {shaped("[1]", "[0]"), no_entry},
      {shaped("[1]", "[0,18446744073709551616]"), no_entry},
      {shaped("[4294967296,4294967296]"), too_many},
      {shaped("[4294967296,4294967296,0]", "[0,0]"), too_many},
      {shaped("[9223372036854775807]"), no_place},
      {shaped("[1]", "[4,0]"), no_place},
      {shaped("[2]"), no_place},
      {shaped("[2]", "[1,0]", "F4"), "its tensor 'a' has the bytes from 1 to 0, and the tensors before it end at 0"},
      {"{\"a\":" + one + ",\"b\":" + one + "}",
       "its tensor 'b' has the bytes from 0 to 4, and the tensors before it end at 4"},
      {"{\"b\":" + two + "}", "its tensor 'b' has the bytes from 4 to 8, and the tensors before it end at 0"},
      {"{\"a\":" + one + R"(,"e":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}})",
       "its tensor 'e' has the bytes from 2 to 2, and the tensors before it end at 4"},
      {"{\"a\":" + one + R"(,"e":{"dtype":"F32","shape":[0],"data_offsets":[9,9]}})",
       "its tensor 'e' has the bytes from 9 to 9, and the tensors before it end at 4"},
      {"{\"a\":" + one + ",\"a\":" + two + "}", "its tensor 'a' is there twice"}};
  for (const auto& each : cases) {
    CAPTURE(each.first);
    CHECK(refusal(each.first) == each.second);
  }
}

TEST_CASE("an entry whose value is larger than a million values is refused, and a header above 256 KiB is read") {
  std::string zeros = "0";
  for (int i = 0; i < 1'000'000; ++i)
    zeros += ",0";
  CHECK_CONTAINS(refusal(entry("\"x\":[" + zeros + "]")), "its header is not that of a safetensors file");
  std::string many = "{";
  for (int i = 0; i < 10'000; ++i)
    many += (i == 0 ? "" : ",") + std::string("\"") + std::to_string(i) +
            R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  CHECK(many.size() > std::size_t{256} * 1024);
  SafetensorsHeader header;
  CHECK(parse_safetensors(many + "}", header) == "");
  CHECK(header.tensors.size() == 10'000);
}

TEST_CASE("random lists are read as they were written, large elements first") {
  std::mt19937 random(11);
  for (int round = 0; round < 300; ++round) {
    std::map<std::string, ParameterSignature> list;
    for (std::size_t i = random() % 8; i > 0; --i) {
      std::string name;
      for (std::size_t k = random() % 12; k > 0; --k)
        name += std::vector<std::string>{
            "a", ".", "\"", "\\", "\n", std::string(1, '\0'), "\xc3\xa9", "\xf0\x9f\x98\x80", "/"}[random() % 9];
      std::vector<std::int64_t> extents(random() % 6);
      for (std::int64_t& extent : extents)
        extent = static_cast<std::int64_t>(random() % 5);
      const auto dtype = static_cast<DType>(1 + random() % 9);
      list[name] = {name, dtrain::Shape(extents), dtype, {}};
    }
    std::vector<ParameterSignature> tensors;
    for (const auto& [name, tensor] : list)
      tensors.push_back(tensor);
    std::shuffle(tensors.begin(), tensors.end(), random);
    const std::string sharding = random() % 2 == 0 ? "" : "{\"\\n\"}";
    const std::vector<FileTensor> files = dtrain::ddp::file_tensors(tensors);
    dtrain::ddp::FileMetadata metadata;
    if (!sharding.empty()) metadata.emplace_back(dtrain::ddp::sharding_key, sharding);
    const std::string text = safetensors_header(files, safetensors_order(files), metadata);
    SafetensorsHeader header;
    REQUIRE(parse_safetensors(std::string_view(text).substr(8), header) == "");
    CHECK(text.size() % 8 == 0);
    CHECK(header.sharding == sharding);
    CHECK(header.digest == std::string(64, '0'));
    REQUIRE(header.tensors.size() == list.size());
    for (const FileTensor& tensor : header.tensors) {
      const ParameterSignature& written = list.at(tensor.name);
      CHECK(tensor.shape == written.shape);
      CHECK(tensor.dtype == written.dtype);
      CHECK(tensor.begin % dtrain::size_bytes(written.dtype) == 0);
    }
  }
}

}  // namespace safetensors_header_test
