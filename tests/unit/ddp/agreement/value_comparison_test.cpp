#include "dtrain/ddp/agreement/value_comparison.hpp"
#include "unit/ddp/prelude.hpp"

using support::FakeGroupHandle;

namespace {

/// `count` parameters of two elements; rank r has another value in the parameters of `differing[r]`.
/// @param settings what each rank has noted; may be empty
std::vector<std::string> compare(const std::vector<std::vector<std::size_t>>& differing, std::size_t count,
                                 const std::vector<std::vector<std::string>>& settings = {}) {
  const auto job = std::make_shared<FakeJob>(static_cast<int>(differing.size()));
  std::vector<std::string> results(differing.size());
  support::on_threads(differing.size(), [&](std::size_t rank) {
    std::vector<float> values(2 * count, 1.0F);
    for (const std::size_t i : differing[rank])
      values[2 * i + 1] += 1.0F + static_cast<float>(rank);
    std::vector<Parameter> parameters;
    for (std::size_t i = 0; i < count; ++i) {
      const auto view = tensor_view(values.data() + 2 * i, {2});
      parameters.push_back({"p" + std::to_string(i), view, view});
    }
    const auto group = FakeGroupHandle::of(job, static_cast<int>(rank), static_cast<int>(differing.size()));
    for (std::size_t i = 0; rank < settings.size() && i < settings[rank].size(); ++i)
      group->noted_settings().add(settings[rank][i]);
    try {
      compare_values_blocking(*group, "values", {parameters.data(), parameters.size()}, Deadline::after(60s),
                              "after 7 steps", "end");
    } catch (const Error& error) {
      results[rank] =
          (error.code() == make_error_code(Errc::disagreement) ? "" : "another code: ") + std::string(error.what());
    }
  });
  return results;
}

void check_all(const std::vector<std::string>& results, const std::string& part) {
  for (const std::string& text : results)
    CHECK_CONTAINS(text, part);
}

}  // namespace

TEST_CASE("equal values are a message of each rank") {
  for (const std::size_t ranks : {1U, 2U, 4U})
    CHECK(compare(std::vector<std::vector<std::size_t>>(ranks), 300) == std::vector<std::string>(ranks));
}

TEST_CASE("every rank gets the first parameter that differs, and the ranks, in a model of any size") {
  check_all(compare({{}, {0}}, 1),
            "after 7 steps the values of parameter 0 'p0' differ: rank 1 has other values than rank 0");
  for (const std::size_t first : {0U, 63U, 64U, 4999U}) {
    CAPTURE(first);
    check_all(compare({{}, {}, {first, 4999}, {}}, 5000),
              "the values of parameter " + std::to_string(first) + " 'p" + std::to_string(first) +
                  "' differ: rank 2 has other values than ranks 0, 1 and 3");
  }
}

TEST_CASE("most ranks are right") {
  check_all(compare({{5}, {}, {}}, 9), "parameter 5 'p5' differ: rank 0 has other values than ranks 1 and 2");
  check_all(compare({{}, {5}, {5}, {}}, 9), "ranks 1 and 2 have other values than ranks 0 and 3");
}

TEST_CASE("a setting that ranks have noted differently comes before values that differ, with all ranks") {
  check_all(compare({{}, {}, {5}}, 9, {{"a=1 b=2"}, {"a=1 b=3"}, {"a=1 b=2"}}),
            "after 7 steps the DistributedSamplers of the ranks differ: b=2 on ranks 0 and 2, b=3 on rank 1; give all");
  check_all(compare({{}, {}}, 9, {{"a=1", "a=2"}, {"a=1", "a=3"}}), "differ: a=2 on rank 0, a=3 on rank 1");
  check_all(
      compare(std::vector<std::vector<std::size_t>>(6), 9, {{"a=1"}, {"a=2"}, {"a=3"}, {"a=4"}, {"a=5"}, {"a=1"}}),
      "a=1 on ranks 0 and 5, a=2 on rank 1, a=3 on rank 2, a=4 on rank 3 and so on;");
}

TEST_CASE("settings that are equal, missing on a rank or of another number are no difference") {
  for (const auto& other : {std::vector<std::string>{"a=1 b=2"}, {}, {"a=1 b=3", "a=4 b=5"}})
    CHECK(compare({{}, {}}, 300, {{"a=1 b=2"}, other}) == std::vector<std::string>(2));
}

TEST_CASE("settings are noted once each, and not more than eight") {
  dtrain::group::NotedSettings settings;
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (int i = 0; i < 9; ++i)
      settings.add("i=" + std::to_string(i));
  }
  CHECK(settings.lines() == "i=0\ni=1\ni=2\ni=3\ni=4\ni=5\ni=6\ni=7\n");
}

TEST_CASE("values on a GPU are refused") {
  Parameter parameter{"p", tensor_view<float>(nullptr, {2}), tensor_view<float>(nullptr, {2})};
  parameter.value.device = {dtrain::DeviceKind::cuda, 0};
  CHECK_FALSE(are_on_host({&parameter, 1}));
  const auto job = std::make_shared<FakeJob>(1);
  CHECK_ERROR(
      compare_values_blocking(*FakeGroupHandle::of(job, 0, 1), "values", {&parameter, 1}, Deadline::after(60s), "", ""),
      Errc::unsupported, "on a GPU");
}
