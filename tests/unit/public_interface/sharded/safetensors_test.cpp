// ctest: TIMEOUT 120
// Weights for other programs, and from them: names, types and files that are not this program's.

#include "support/captured_stderr.hpp"
#include "unit/public_interface/prelude.hpp"

namespace safetensors_test {

/// Writes a file as another program does: `header` and these bytes.
template <class T>
void put(const std::string& path, const std::string& header, const std::vector<T>& values) {
  const std::uint64_t length = header.size();
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length)) << header;
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(T)));
}

std::string entry(const std::string& name, const std::string& type, std::size_t count, std::size_t begin,
                  std::size_t end) {
  return "\"" + name + R"(":{"dtype":")" + type + R"(","shape":[)" + std::to_string(count) + R"(],"data_offsets":[)" +
         std::to_string(begin) + "," + std::to_string(end) + "]}";
}

/// Two tensors of a program, whose values differ between ranks.
struct Net {
  explicit Net(int rank) : weight(2, static_cast<float>(rank) + 10), bias(1, static_cast<float>(rank) + 20) {}
  std::vector<dtrain::NamedTensor> list() {
    return {{"fc.weight", dtrain::tensor_view(weight)}, {"fc.bias", dtrain::tensor_view(bias)}};
  }
  std::vector<float> weight;
  std::vector<float> bias;
};

/// The sentence on both ranks, which are the same, with which loading is refused; then no value has changed.
std::string refusal(const std::string& path, const dtrain::SafetensorsOptions& options = {}) {
  Sentences sentences;
  run_well(2, [&](const Group& group) {
    Net net(group.rank());
    sentences.note([&] { dtrain::load_safetensors(group, path, net.list(), options); });
    if (net.weight != Net(group.rank()).weight || net.bias != Net(group.rank()).bias) {
      throw std::logic_error("values have changed");
    }
  });
  const std::vector<std::string> texts = sentences.texts();
  REQUIRE(texts.size() == 2);
  CHECK(texts[0] == texts[1]);
  return texts[0];
}

/// A model with two parameters.
struct Model {
  std::vector<float> weight{1, 2};
  std::vector<float> gradient{0, 0};
  std::vector<dtrain::Parameter> parameters() {
    return {{"w", dtrain::tensor_view(weight), dtrain::tensor_view(gradient)}};
  }
};

TEST_CASE_FIXTURE(TemporaryFile, "what is saved of a model is loaded into it on every rank, and its names are listed") {
  run_well(3, [&](const Group& group) {
    Model model;
    model.weight[0] += static_cast<float>(group.rank());
    dtrain::save_safetensors(group, path, model);
    model.weight = {7, 7};
    dtrain::load_safetensors(group, path, model);
    if (model.weight != std::vector<float>{1, 2}) throw std::logic_error("other weights");
    Net net(group.rank());
    dtrain::save_safetensors(group, path, net.list());
  });
  CHECK(dtrain::safetensors_names(path) == std::vector<std::string>{"fc.bias", "fc.weight"});
  const std::vector<dtrain::CheckpointTensor> tensors = dtrain::checkpoint_tensors(path);
  REQUIRE(tensors.size() == 2);
  CHECK(tensors[1].name == "fc.weight");
  CHECK(tensors[1].dtype == dtrain::DType::f32);
  REQUIRE(tensors[1].shape);
  CHECK(tensors[1].shape->element_count() > 1);
  CHECK_ERROR(dtrain::checkpoint_tensors(path + ".none"), std::errc::no_such_file_or_directory, "reading the weights");
  support::CapturedStderr captured;
  CHECK_ERROR(dtrain::safetensors_names(path + ".none/weights"), std::errc::no_such_file_or_directory,
              "reading the weights");
  CHECK(captured.text() == "");  // no advice about saving a checkpoint
}

TEST_CASE_FIXTURE(TemporaryFile, "names, missing and extra tensors are as the options say, on every rank") {
  const std::string header =
      "{" + entry("model.fc.weight", "F32", 2, 0, 8) + "," + entry("mask", "BOOL", 4, 8, 12) + "}";
  put(path, header, std::vector<float>{1, 2, 0});
  const auto rename = [](const std::string& name) { return "model." + name; };
  CHECK_CONTAINS(refusal(path), "it has no tensor 'fc.weight' (the nearest is 'model.fc.weight'); rename it, or allow");
  CHECK_CONTAINS(refusal(path, {.rename = rename}),
                 "it has no tensor 'model.fc.bias' for the program's 'fc.bias' (the nearest is 'model.fc.weight'); ");
  CHECK_CONTAINS(refusal(path, {.rename = rename, .missing = true}),
                 "its tensor 'mask' is none of the program's; allow it by extra = true");
  run_well(2, [&](const Group& group) {
    Net net(group.rank());
    dtrain::SafetensorsOptions options{.rename = rename, .missing = true, .extra = true};
    if (group.rank() != 0) options = {};  // rank 0's count
    dtrain::load_safetensors(group, path, net.list(), options);
    if (net.weight != std::vector<float>{1, 2}) throw std::logic_error("other weights");
    if (net.bias != Net(group.rank()).bias) throw std::logic_error("a tensor that the file does not have has changed");
  });
}

TEST_CASE_FIXTURE(TemporaryFile, "floats of other sizes are converted, unless that is not allowed, and nothing else") {
  const std::string header = "{" + entry("fc.weight", "F64", 2, 0, 16) + "," + entry("fc.bias", "F64", 1, 16, 24) + "}";
  put(path, header, std::vector<double>{0.1, -2, 1e300});
  CHECK_CONTAINS(refusal(path, {.convert = false}), "its tensor 'fc.weight' is f64 [2], the program's is f32 [2]; ");
  run_well(2, [&](const Group& group) {
    Net net(group.rank());
    dtrain::load_safetensors(group, path, net.list());
    if (net.weight != std::vector<float>{0.1F, -2}) throw std::logic_error("other weights");
    if (net.bias != std::vector<float>{HUGE_VALF}) throw std::logic_error("other biases");
  });
  put(path, "{" + entry("fc.weight", "I32", 2, 0, 8) + "," + entry("fc.bias", "F32", 1, 8, 12) + "}",
      std::vector<float>{1, 2, 3});
  CHECK_CONTAINS(refusal(path), "its tensor 'fc.weight' is i32 [2], the program's is f32 [2]; ");
  put(path, "{" + entry("fc.weight", "F32", 3, 0, 12) + "," + entry("fc.bias", "F32", 1, 12, 16) + "}",
      std::vector<float>{1, 2, 3, 4});
  CHECK_CONTAINS(refusal(path), "its tensor 'fc.weight' is f32 [3], the program's is f32 [2]; ");
}

TEST_CASE("every pair of floating-point types is converted, in pieces") {
  const TemporaryFile file;
  constexpr std::size_t count = 5'000'001;  // 16 MiB are 4,194,304 of f32
  std::vector<float> source(count);
  for (std::size_t i = 0; i < count; ++i)
    source[i] = static_cast<float>(i % 2048) / 8;  // of 11 bits: exact in f16, and rounded in bf16
  const auto rounded = [](float value) { return static_cast<float>(dtrain::bfloat16(value)); };
  const auto converted = [&](const auto& to, auto made) {
    std::vector<decltype(made)> values(count);
    const std::vector<dtrain::NamedTensor> from{{"x", to}}, target{{"x", dtrain::tensor_view(values)}};
    dtrain::ddp::write_checkpoint_file(file.path, from);
    const dtrain::SafetensorsOptions options;
    CHECK(dtrain::ddp::read_checkpoint_file(file.path, target, {}, &options));
    return values;
  };
  std::vector<double> doubles(source.begin(), source.end());
  std::vector<dtrain::float16> halves(source.begin(), source.end());
  CHECK(converted(dtrain::tensor_view(source), double{}) == doubles);
  CHECK(converted(dtrain::tensor_view(doubles), float{}) == source);
  CHECK(converted(dtrain::tensor_view(halves), double{}) == doubles);
  const auto back = converted(dtrain::tensor_view(doubles), dtrain::float16{});
  const auto brains = converted(dtrain::tensor_view(halves), dtrain::bfloat16{});
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    wrong += static_cast<float>(back[i]) == source[i] ? 0 : 1;
    wrong += static_cast<float>(brains[i]) == rounded(source[i]) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEST_CASE_FIXTURE(TemporaryFile, "an f64 becomes the nearest 16-bit float, not the nearest of its nearest f32") {
  const double above = std::ldexp(1, -40);  // too small to show in an f32 near 1
  std::vector<double> doubles{1 + std::ldexp(1, -11) + above,
                              1 + std::ldexp(1, -11) - above,
                              -65519.9999999999,
                              65520,
                              std::ldexp(1 + above, -25),
                              1 + std::ldexp(1, -8) + above,
                              -1e300,
                              NAN};
  const auto as = [&](auto made) {
    std::vector<decltype(made)> values(doubles.size());
    const std::vector<dtrain::NamedTensor> from{{"x", dtrain::tensor_view(doubles)}};
    const std::vector<dtrain::NamedTensor> target{{"x", dtrain::tensor_view(values)}};
    dtrain::ddp::write_checkpoint_file(path, from);
    const dtrain::SafetensorsOptions options;
    CHECK(dtrain::ddp::read_checkpoint_file(path, target, {}, &options));
    return std::vector<float>(values.begin(), values.end());
  };
  const std::vector<float> halves = as(dtrain::float16{});
  CHECK(std::vector<float>(halves.begin(), halves.end() - 1) ==
        std::vector<float>{1 + std::ldexp(1.0F, -10), 1, -65504, HUGE_VALF, std::ldexp(1.0F, -24),
                           1 + std::ldexp(1.0F, -8), -HUGE_VALF});
  CHECK(std::isnan(halves.back()));
  const std::vector<float> brains = as(dtrain::bfloat16{});
  CHECK(brains[5] == 1 + std::ldexp(1.0F, -7));
  CHECK(brains[6] == -HUGE_VALF);
  CHECK(std::isnan(brains[7]));
}

TEST_CASE("an index names the files of the tensors, which lie beside it") {
  const TemporaryDirectory folder;
  const std::string path = folder.path + "/model.safetensors.index.json";
  put(folder.path + "/a", "{" + entry("fc.weight", "F32", 2, 0, 8) + "," + entry("old", "F32", 1, 8, 12) + "}",
      std::vector<float>{1, 2, 9});
  put(folder.path + "/b", "{" + entry("fc.bias", "F32", 1, 0, 4) + "}", std::vector<float>{3});
  const auto index = [&](const std::string& map) {
    std::ofstream(path) << R"({"metadata":{"total_size":16},)" + map + "}";
  };
  index(R"("weight_map":{"fc.weight":"a","fc.bias":"b"})");
  CHECK(dtrain::safetensors_names(path) == std::vector<std::string>{"fc.bias", "fc.weight"});
  run_well(2, [&](const Group& group) {
    Net net(group.rank());
    dtrain::load_safetensors(group, path, net.list());
    if (net.weight != std::vector<float>{1, 2} || net.bias[0] != 3) throw std::logic_error("other weights");
  });
  index(R"("weight_map":{"fc.weight":"a","fc.bias":"../b"})");
  CHECK_CONTAINS(refusal(path), "its weight_map has the file '../b', and only files beside it are read");
  for (const char* const map : {R"("weight_map":{"fc.bias":"a\u0000b"})", R"("weight_map":{"fc.bias":".."})"}) {
    index(map);
    CHECK_CONTAINS(refusal(path), ", and only files beside it are read");
  }
  index(R"("weight_map":{},"weight_map":{"fc.bias":"b"})");
  CHECK_CONTAINS(refusal(path), "it is no index of safetensors files");
  index(R"("weight_map":{"fc.weight":"a","fc.bias":"c"})");
  CHECK_CONTAINS(refusal(path), "its file 'c' is missing; copy it beside the index");
  index(R"("weight_map":{"fc.weight":"a","fc.bias":"a"})");
  CHECK_CONTAINS(refusal(path), "its weight_map has 2 tensors in the file 'a', which has 1 of them; copy both again");
  for (const char* const map : {R"("weight_map":{"fc.weight":1})", R"("weight_map":[])", R"("w":{})",
                                R"("weight_map":{"fc.weight":"a"},"weight_map":{"fc.bias":"b"})"}) {
    index(map);
    CHECK_CONTAINS(refusal(path), "it is no index of safetensors files");
  }
}

TEST_CASE_FIXTURE(TemporaryFile,
                  "weights that are missing, damaged or of a checkpoint are the same error on every rank") {
  CHECK_CONTAINS(refusal(path), "reading the weights " + path + " failed");
  run_well(2, [&](const Group& group) { dtrain::save_safetensors(group, path, Net(0).list()); });
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  CHECK_CONTAINS(refusal(path), "its length, ");
  run_well(2, [&](const Group& group) {
    std::vector<float> other(1);
    dtrain::save_safetensors(group, path, std::vector<dtrain::NamedTensor>{{"other", dtrain::tensor_view(other)}});
  });
  CHECK_CONTAINS(refusal(path), "it has no tensor 'fc.weight'; rename it, or allow it by missing = true");
}

}  // namespace safetensors_test
