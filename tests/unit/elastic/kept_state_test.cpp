#include "dtrain/elastic/kept_state.hpp"

#include "unit/elastic/prelude.hpp"

using dtrain::elastic::KeptState;

TEST_CASE("a digest is of all bytes, and a signature of names, shapes and types") {
  std::vector<float> a{1, 2, 3};
  std::vector<float> b{1, 2, 3};
  KeptState first;
  first.keep({{"w", dtrain::tensor_view(a)}}, false);
  KeptState second;
  second.keep({{"w", dtrain::tensor_view(b)}}, false);
  CHECK(first.digest() == second.digest());
  CHECK(first.signature() == second.signature());
  b[2] = 4;
  CHECK(first.digest() != second.digest());
  CHECK(first.signature() == second.signature());

  KeptState renamed;
  renamed.keep({{"v", dtrain::tensor_view(a)}}, false);
  KeptState reshaped;
  reshaped.keep({{"w", dtrain::tensor_view(a.data(), {3, 1})}}, false);
  KeptState more;
  more.keep({{"w", dtrain::tensor_view(a)}, {"w", dtrain::tensor_view(b)}}, false);
  for (const KeptState* each : {&renamed, &reshaped, &more}) {
    CHECK(each->signature() != first.signature());
  }
}

TEST_CASE("a digest is of each of several tensors, in their order") {
  std::vector<float> a{1, 2}, b{3, 4}, c{5, 6};
  const auto digest = [&](std::vector<std::vector<float>*> order) {
    KeptState state;
    for (std::vector<float>* each : order)
      state.keep({{"w" + std::to_string(state.tensors().size()), dtrain::tensor_view(*each)}}, false);
    return state.digest();
  };
  const std::uint64_t before = digest({&a, &b, &c});
  CHECK(digest({&b, &a, &c}) != before);
  for (std::vector<float>* each : {&a, &b, &c}) {
    ++each->front();
    CHECK(digest({&a, &b, &c}) != before);
    --each->front();
  }
  CHECK(digest({&a, &b, &c}) == before);
}

TEST_CASE("copied tensors get the values of the last commit back, and others keep theirs") {
  std::vector<float> copied{1, 2};
  std::vector<float> other{3, 4};
  KeptState state;
  state.keep({{"mean", dtrain::tensor_view(copied)}}, true);
  state.keep({{"w", dtrain::tensor_view(other)}}, false);
  copied[0] = 7;
  other[0] = 7;
  state.restore();
  CHECK(copied == std::vector<float>{1, 2});
  CHECK(other == std::vector<float>{7, 4});
  const std::uint64_t digest = state.digest();
  copied[1] = 8;
  CHECK(state.digest() == digest);  // the ranks' forward passes may write different values
  state.commit();
  copied[1] = 9;
  state.restore();
  CHECK(copied == std::vector<float>{1, 8});
}

TEST_CASE("bytes whose number may change are not kept") {
  std::string bytes = "solver";
  KeptState state;
  CHECK_THROWS_WITH(
      state.keep({dtrain::ddp::NamedBytes{"solver", bytes}}, false),
      "NamedBytes 'solver' are not kept in an elastic job, because their number may change; keep tensors");
}

TEST_CASE("a source whose tensors are refused is not in the state") {
  std::vector<float> values{1, 2};
  std::string bytes = "solver";
  KeptState state;
  state.keep({{"w", dtrain::tensor_view(values)}}, true);
  const std::string before = state.signature();
  const auto list = [&] {
    return std::vector<dtrain::NamedTensor>{{"v", dtrain::tensor_view(values)},
                                            dtrain::ddp::NamedBytes{"solver", bytes}};
  };
  CHECK_ERROR(state.keep(list, true), dtrain::Errc::unsupported, "NamedBytes 'solver' are not kept");
  CHECK(state.signature() == before);
  state.locate();
  values[0] = 7;
  state.restore();
  CHECK(values == std::vector<float>{1, 2});
}

TEST_CASE("a library's tensors are found again after they have moved, and others than before are refused") {
  std::vector<float> first{1, 2};
  std::vector<float> second{3, 4};
  dtrain::NamedTensor listed{"w", dtrain::tensor_view(first)};
  KeptState state;
  state.keep([&listed] { return std::vector<dtrain::NamedTensor>{listed}; }, true);
  listed.value = dtrain::tensor_view(second);
  state.locate();
  CHECK(state.tensors()[0].value.data == listed.value.data);
  state.restore();
  CHECK(second == std::vector<float>{1, 2});
  second[0] = 9;
  listed.value = dtrain::tensor_view(first);
  first[1] = 8;
  state.commit();  // finds them by itself
  first[1] = 0;
  state.restore();
  CHECK(first == std::vector<float>{1, 8});

  const std::string before = state.signature();
  dtrain::TensorView integers = listed.value;
  integers.dtype = dtrain::DType::i32;
  for (const dtrain::NamedTensor& other :
       {dtrain::NamedTensor{"v", listed.value}, dtrain::NamedTensor{"w", dtrain::tensor_view(first.data(), {2, 1})},
        dtrain::NamedTensor{"w", integers}}) {
    listed = other;
    CHECK_ERROR(state.locate(), dtrain::Errc::invalid_argument, "the kept tensor 'w' is now");
    CHECK(state.signature() == before);
  }
}
