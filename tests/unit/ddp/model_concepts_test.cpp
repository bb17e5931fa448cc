#include <forward_list>

#include "unit/ddp/prelude.hpp"

namespace {

struct ByValue {
  std::vector<dtrain::Parameter> parameters() { return {}; }
};

struct ByReference {
  std::vector<dtrain::Parameter> list;
  const std::vector<dtrain::Parameter>& parameters() const { return list; }
};

struct AsSpan {
  std::span<const dtrain::Parameter> parameters() const { return {}; }
};

struct Binds : ByValue {
  void bind_gradient(std::size_t, const dtrain::TensorView&) {}
};

struct WithoutParameters {
  std::vector<dtrain::Parameter> params() { return {}; }
};

struct WithoutSize {
  std::forward_list<dtrain::Parameter> parameters() { return {}; }
};

struct OfOtherThings {
  std::vector<int> parameters() { return {}; }
};

struct BindsSomethingElse : ByValue {
  void bind_gradient(std::size_t, int) {}
};

}  // namespace

TEST_CASE("a model is anything with a sized range of parameters, by value or by reference") {
  CHECK(dtrain::Model<ByValue>);
  CHECK(dtrain::Model<ByReference>);
  CHECK(dtrain::Model<const ByReference>);
  CHECK(dtrain::Model<AsSpan>);
}

TEST_CASE("what almost is a model is named by the ability it lacks") {
  CHECK_FALSE(dtrain::ddp::HasParameters<WithoutParameters>);
  CHECK_FALSE(dtrain::Model<WithoutParameters>);
  CHECK(dtrain::ddp::HasParameters<WithoutSize>);
  CHECK_FALSE(dtrain::ddp::ParametersAreSized<WithoutSize>);
  CHECK_FALSE(dtrain::Model<WithoutSize>);
  CHECK(dtrain::ddp::ParametersAreSized<OfOtherThings>);
  CHECK_FALSE(dtrain::ddp::ParametersAreParameters<OfOtherThings>);
  CHECK_FALSE(dtrain::Model<OfOtherThings>);
}

TEST_CASE("bind_gradient is optional, and one with another signature does not count") {
  CHECK(dtrain::ddp::BindsGradients<Binds>);
  CHECK_FALSE(dtrain::ddp::BindsGradients<ByValue>);
  CHECK_FALSE(dtrain::ddp::BindsGradients<BindsSomethingElse>);
}
