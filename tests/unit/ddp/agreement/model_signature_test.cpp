#include "unit/ddp/prelude.hpp"

using dtrain::to_bytes;

namespace {

std::optional<ModelSignature> parse_signature(std::string_view bytes) {
  return dtrain::try_from_bytes<ModelSignature>(bytes);
}

}  // namespace

TEST_CASE("what is written is read back") {
  CHECK(parse_signature(to_bytes(two_layers())) == two_layers());
  CHECK(parse_signature(to_bytes(ModelSignature{})) == ModelSignature{});
  ModelSignature strange = two_layers();
  strange.parameters[0].name = std::string("a\0b\n'\xff", 6);
  strange.parameters[1].name.clear();
  strange.deterministic = true;
  strange.allow_unused_parameters = true;
  strange.parameters[1].shape = {1, 2, 3, 4, 5, 6, 7, 0};
  CHECK(parse_signature(to_bytes(strange)) == strange);
}

TEST_CASE("each yes-or-no option is read back as itself") {
  for (bool ModelSignature::*option :
       {&ModelSignature::deterministic, &ModelSignature::reorder_gradients, &ModelSignature::allow_unused_parameters,
        &ModelSignature::broadcast_buffers, &ModelSignature::measures_plan}) {
    ModelSignature one = two_layers();
    one.*option = true;
    CHECK(parse_signature(to_bytes(one)) == one);
    CHECK(to_bytes(one) != to_bytes(two_layers()));
  }
  ModelSignature wide = two_layers();
  wide.accumulate = dtrain::Accumulate::f32;
  CHECK(parse_signature(to_bytes(wide)) == wide);
  CHECK(to_bytes(wide) != to_bytes(two_layers()));
}

TEST_CASE("every beginning, every longer and every changed length of a signature is refused or another one") {
  const std::string bytes = to_bytes(two_layers());
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK_FALSE(parse_signature(std::string_view(bytes).substr(0, length)));
  CHECK_FALSE(parse_signature(bytes + "x"));
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    for (const char value : {'\0', '\x7f', '\xff'}) {
      std::string changed = bytes;
      if (changed[at] == value) continue;
      changed[at] = value;
      const std::optional<ModelSignature> read = parse_signature(changed);
      CHECK((!read || *read != two_layers()));
      if (read) CHECK(to_bytes(*read) == changed);
    }
  }
}

TEST_CASE("random bytes are refused without exhausting memory") {
  std::mt19937 generator(11);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    std::string bytes = to_bytes(ModelSignature{});
    bytes.resize(bytes.size() - 4 * static_cast<std::size_t>(repeat % 2));
    const std::size_t length = generator() % 200;
    for (std::size_t i = 0; i < length; ++i)
      bytes.push_back(static_cast<char>(generator()));
    const std::optional<ModelSignature> read = parse_signature(bytes);
    if (read) CHECK(to_bytes(*read) == bytes);
  }
  std::string many = to_bytes(ModelSignature{});
  many.replace(many.size() - 4, 4, std::string(4, '\xff'));
  CHECK_FALSE(parse_signature(many));
}
