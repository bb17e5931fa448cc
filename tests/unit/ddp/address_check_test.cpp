#include "dtrain/ddp/address_check.hpp"
#include "unit/ddp/prelude.hpp"

namespace {

/// The time of the tests' clock, which only readings advance.
thread_local std::chrono::steady_clock::time_point time_of_tests;

/// Two parameters of two elements each, and what reading them costs.
struct TimedModel {
  TimedModel() = default;
  TimedModel(const TimedModel&) = delete;

  std::array<float, 8> memory{};
  std::vector<Parameter> list{{"w", tensor_view(&memory[0], {2}), tensor_view(&memory[2], {2})},
                              {"b", tensor_view(&memory[4], {2}), tensor_view(&memory[6], {2})}};
  std::chrono::milliseconds delay{0};  ///< of the tests' clock
  int reads = 0;

  AddressCheck check(std::optional<bool> every_step = {}) {
    AddressCheck made(
        [this](const AddressCheck::Visit& visit) {
          ++reads;
          time_of_tests += delay;
          for (const Parameter& parameter : list)
            visit(parameter);
        },
        every_step, [] { return time_of_tests; });
    made.remember();
    reads = 0;
    return made;
  }
};

void run(AddressCheck& check, std::uint64_t step) {
  check.begin_step(step);
  check.end_step();
}

}  // namespace

TEST_CASE("a value or a gradient that has moved is named, with what to do") {
  TimedModel model;
  AddressCheck check = model.check();
  run(check, 1);
  std::array<float, 2> elsewhere{};
  model.list[1].gradient = tensor_view(elsewhere.data(), {2});
  CHECK_THROWS_WITH_AS(check.begin_step(2),
                       "in step 2 the gradient of parameter 1 'b' is at another address than when "
                       "DistributedDataParallel was given the model; a std::vector that grows moves its elements: keep "
                       "the memory where it is, or make another DistributedDataParallel once it has moved",
                       Error);
  TimedModel other;
  AddressCheck second = other.check();
  other.list[0].value = tensor_view(elsewhere.data(), {2});
  CHECK_THROWS_WITH_AS(second.begin_step(1), doctest::Contains("in step 1 the value of parameter 0 'w' is at another"),
                       Error);
  other.list[0].value.data = nullptr;
  CHECK_ERROR(second.begin_step(1), Errc::invalid_argument,
              "the value of parameter 0 'w' has no memory, and had some when DistributedDataParallel was");
}

TEST_CASE("memory that moves during a step is found before its end") {
  TimedModel model;
  AddressCheck check = model.check();
  check.begin_step(1);
  std::array<float, 2> elsewhere{};
  model.list[0].gradient = tensor_view(elsewhere.data(), {2});
  CHECK_THROWS_WITH_AS(check.end_step(), doctest::Contains("in step 1 the gradient of parameter 0 'w'"), Error);
}

TEST_CASE("another number of parameters, size or element type is refused, another shape of one size is not") {
  TimedModel model;
  AddressCheck check = model.check();
  model.list[1].gradient.shape = {2, 1};
  check.begin_step(1);
  model.list[1].gradient.shape = {1};
  CHECK_ERROR(check.begin_step(2), Errc::invalid_argument,
              "in step 2 the gradient of parameter 1 'b' has 4 bytes of f32, and had 8 "
              "bytes of f32 when DistributedDataParallel was given the model; make another");
  model.list[1].gradient = model.list[0].gradient;
  model.list[1].gradient.dtype = dtrain::DType::i32;
  CHECK_THROWS_WITH_AS(check.begin_step(2), doctest::Contains("has 8 bytes of i32, and had 8 bytes of f32"), Error);
  model.list.pop_back();
  CHECK_ERROR(check.begin_step(2), Errc::invalid_argument,
              "in step 2 the model's parameters() has 1 parameters, and had 2 when");
  TimedModel longer;
  AddressCheck second = longer.check();
  longer.list.push_back(longer.list[0]);
  CHECK_THROWS_WITH_AS(second.begin_step(2), doctest::Contains("parameters() has 3 parameters, and had 2"), Error);
}

TEST_CASE("a parameter without elements may be anywhere") {
  TimedModel model;
  model.list[0] = {"none", tensor_view<float>(nullptr, {0}), tensor_view<float>(nullptr, {0})};
  AddressCheck check = model.check();
  model.list[0].value.data = reinterpret_cast<std::byte*>(model.memory.data());
  run(check, 1);
  CHECK(model.reads == 2);
}

TEST_CASE("where a step's check is not wanted or dear, the first two and every 64th are checked") {
  for (const std::optional<bool> wanted : {std::optional<bool>(false), std::optional<bool>()}) {
    CAPTURE(wanted.has_value());
    TimedModel model;
    if (!wanted) model.delay = std::chrono::milliseconds(2);  // for 1001 parameters, of which one may take 1 us
    while (!wanted && model.list.size() < 1001)
      model.list.push_back(model.list[0]);
    AddressCheck check = model.check(wanted);
    std::vector<std::uint64_t> checked;
    for (std::uint64_t step = 1; step <= 130; ++step) {
      const int before = model.reads;
      run(check, step);
      if (model.reads > before) checked.push_back(step);
    }
    CHECK(checked == std::vector<std::uint64_t>{1, 2, 64, 128});
  }
}

TEST_CASE("up to 1,000 parameters are checked in every step, however long that takes") {
  TimedModel model;
  model.delay = std::chrono::milliseconds(2);  // as on a loaded machine
  while (model.list.size() < 1000)
    model.list.push_back(model.list[0]);
  AddressCheck check = model.check();
  for (std::uint64_t step = 1; step <= 5; ++step)
    run(check, step);
  CHECK(model.reads == 10);
}

TEST_CASE("more parameters are checked in every step if one reading of several was fast") {
  TimedModel model;
  while (model.list.size() < 20'000)
    model.list.push_back(model.list[0]);
  AddressCheck check = model.check();
  check.begin_step(1);
  model.delay = std::chrono::milliseconds(25);
  check.end_step();
  for (std::uint64_t step = 2; step <= 4; ++step)
    run(check, step);
  CHECK(model.reads == 8);
}

TEST_CASE("what is found behind unchecked steps names the last step that was checked") {
  TimedModel model;
  AddressCheck check = model.check(false);
  for (std::uint64_t step = 1; step <= 63; ++step)
    run(check, step);
  std::array<float, 2> elsewhere{};
  const Parameter before = model.list[1];
  model.list[1].gradient = tensor_view(elsewhere.data(), {2});
  const char* const sentence =
      "; the last check was in step 2: the results of all steps since then may be wrong "
      "(DdpOptions::check_addresses = true checks every step)";
  CHECK_THROWS_WITH_AS(check.begin_step(64), doctest::Contains(sentence), Error);
  model.list[1].gradient.shape = {1};
  CHECK_THROWS_WITH_AS(check.begin_step(64), doctest::Contains(sentence), Error);
  model.list.pop_back();
  CHECK_THROWS_WITH_AS(check.begin_step(64), doctest::Contains(sentence), Error);
  model.list.push_back(before);
  check.begin_step(64);
  model.list.pop_back();
  CHECK_ERROR(check.end_step(), Errc::invalid_argument, "for a model that has changed");
  CHECK(support::sentence_of([&] { check.end_step(); }).find("the last check") == std::string::npos);
}

TEST_CASE("every step is checked where that is wanted, however dear, or cheap") {
  TimedModel dear;
  dear.delay = std::chrono::milliseconds(1);
  AddressCheck wanted = dear.check(true);
  TimedModel cheap;
  while (cheap.list.size() < 5000)
    cheap.list.push_back(cheap.list[0]);
  AddressCheck automatic = cheap.check();
  for (std::uint64_t step = 1; step <= 10; ++step)
    run(wanted, step);
  CHECK(dear.reads == 20);
  for (std::uint64_t step = 1; step <= 63; ++step)
    run(automatic, step);
  CHECK(cheap.reads == 2 * 63);
}

TEST_CASE("what was remembered anew is what counts, and nothing is checked once the model may be gone") {
  TimedModel model;
  AddressCheck check = model.check();
  std::array<float, 2> elsewhere{};
  model.list[0].gradient = tensor_view(elsewhere.data(), {2});
  check.remember();
  run(check, 1);
  CHECK(model.reads == 3);
  check.forget();
  run(check, 2);
  CHECK(model.reads == 3);
}
