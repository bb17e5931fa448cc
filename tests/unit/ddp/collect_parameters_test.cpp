#include "unit/ddp/prelude.hpp"

namespace {

struct FloatModel {
  std::array<float, 8> values{};
  std::array<float, 8> gradients{};
  std::vector<Parameter> list{{"a", tensor_view(values.data(), {4}), tensor_view(gradients.data(), {4})},
                              {"b", tensor_view(values.data() + 4, {4}), tensor_view(gradients.data() + 4, {4})}};
  const std::vector<Parameter>& parameters() const { return list; }
};

struct BoundFloatModel : FloatModel {
  void bind_gradient(std::size_t, const dtrain::TensorView&) {}
};

}  // namespace

TEST_CASE("parameters are collected with names and addresses, and their sizes planned by") {
  FloatModel model;
  const std::vector<Parameter> collected = collect_parameters(model);
  REQUIRE(collected.size() == 2);
  CHECK(collected[1].name == "b");
  CHECK(collected[1].gradient.data == model.list[1].gradient.data);
  CHECK(dtrain::ddp::gradient_sizes(collected)[1].bytes == 16);
}

TEST_CASE("a model without parameters is refused") {
  FloatModel model;
  model.list.clear();
  CHECK_ERROR(collect_parameters(model), Errc::invalid_argument, "nothing to train");
}

TEST_CASE("value and gradient must be alike") {
  FloatModel model;
  model.list[1].gradient.shape = {2, 2};
  CHECK_THROWS_WITH_AS(collect_parameters(model),
                       doctest::Contains("parameter 1 'b' is f32 [4] on host, its gradient is f32 [2, 2] on host"),
                       Error);
  model.list[1].gradient = model.list[1].value;
  model.list[1].gradient.dtype = dtrain::DType::i32;
  CHECK_ERROR(collect_parameters(model), Errc::invalid_argument, "its gradient is i32 [4]");
}

TEST_CASE("memory must be there, but for gradients of a model that binds them, and for all gradients at once") {
  FloatModel model;
  model.list[0].gradient.data = nullptr;
  CHECK_THROWS_WITH_AS(collect_parameters(model), doctest::Contains("the gradient of parameter 0 'a' has no memory"),
                       Error);
  BoundFloatModel binding;
  binding.list[0].gradient.data = nullptr;
  CHECK(collect_parameters(binding).size() == 2);
  model.list[1].gradient.data = nullptr;
  CHECK(collect_parameters(model).size() == 2);
  binding.list[0].value.data = nullptr;
  CHECK_THROWS_WITH_AS(collect_parameters(binding), doctest::Contains("the value of parameter 0 'a' has no memory"),
                       Error);
}

TEST_CASE("a parameter without elements needs no memory") {
  FloatModel model;
  model.list[0] = {"none", tensor_view<float>(nullptr, {0}), tensor_view<float>(nullptr, {0})};
  CHECK_NOTHROW(check_parameters(model.list, false));
}

TEST_CASE("a model all of whose parameters have no elements is refused: its first forward pass makes them") {
  FloatModel model;
  model.list[0] = {"none", tensor_view<float>(nullptr, {0}), tensor_view<float>(nullptr, {0})};
  model.list[1] = {"nothing", tensor_view(model.values.data(), {0, 4}), tensor_view(model.gradients.data(), {0, 4})};
  for (const bool binds : {false, true}) {
    CHECK_ERROR(check_parameters(model.list, binds), Errc::invalid_argument,
                "all 2 parameters of the model have 0 elements", "run one forward pass before wrapping the model");
  }
  model.list[1].gradient = tensor_view(model.gradients.data(), {4});  // not made, but made wrongly
  CHECK_ERROR(check_parameters(model.list, false), Errc::invalid_argument, "its gradient is f32 [4]");
}

TEST_CASE("gradients that share memory are refused, also where they only overlap") {
  FloatModel model;
  for (const std::size_t begin : {0U, 3U}) {
    model.list[1].gradient = tensor_view(model.gradients.data() + begin, {4});
    CHECK_ERROR(collect_parameters(model), Errc::invalid_argument,
                "the gradients of parameter 0 'a' and parameter 1 'b' share memory");
  }
}

TEST_CASE("a gradient that shares memory with a value is refused, its own or another's, whole or in part") {
  const auto refused = [](std::size_t parameter, std::size_t begin, const std::string& gradient,
                          const std::string& value) {
    FloatModel model;
    model.list[parameter].gradient = tensor_view(model.values.data() + begin, {4});
    CHECK_ERROR(collect_parameters(model), Errc::invalid_argument,
                "the gradient of parameter " + gradient + " and the value of parameter " + value + " share memory",
                "give the gradient memory of its own");
  };
  refused(0, 0, "0 'a'", "0 'a'");
  refused(1, 4, "1 'b'", "1 'b'");
  refused(0, 4, "0 'a'", "1 'b'");
  refused(1, 3, "1 'b'", "0 'a'");
  FloatModel shared;  // values may share memory
  shared.list[1].value = shared.list[0].value;
  CHECK(collect_parameters(shared).size() == 2);
  shared.list[1].gradient = tensor_view(shared.values.data() + 3, {4});
  CHECK_ERROR(collect_parameters(shared), Errc::invalid_argument, "share memory");
  BoundFloatModel binding;  // until its gradients are bound, nobody reads them
  binding.list[0].gradient = binding.list[0].value;
  CHECK(collect_parameters(binding).size() == 2);
  FloatModel inside;  // of a larger value, behind a smaller one that begins later
  inside.list = {{"a", tensor_view(inside.values.data(), {6}), tensor_view(inside.gradients.data(), {6})},
                 {"b", tensor_view(inside.values.data() + 1, {1}), tensor_view(inside.values.data() + 5, {1})}};
  CHECK_ERROR(collect_parameters(inside), Errc::invalid_argument, "the gradient of parameter 1 'b' and the value of");
}

TEST_CASE("a name beyond the bound is refused and not printed whole") {
  FloatModel model;
  model.list[0].name = std::string(2000, 'n');
  const std::string sentence = support::sentence_of([&] { collect_parameters(model); });
  CHECK(sentence.size() < 300);
  CHECK_CONTAINS(sentence, "2000 bytes");
}
