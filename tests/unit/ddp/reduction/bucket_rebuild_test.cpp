#include "unit/ddp/prelude.hpp"

namespace {

using Order = std::vector<std::size_t>;

/// What a second plan told the model, and what this rank had observed.
struct RebuiltModel {
  std::vector<std::size_t> moved;
  Order observed;
  FakeRank* rank = nullptr;

  dtrain::ddp::ReducerParts parts(Order answer) {
    dtrain::ddp::ReducerParts wanted;
    wanted.rebuild = {[this, answer](const Order& own) {
                        observed = own;
                        return answer.empty() ? own : answer;
                      },
                      [this](std::size_t i, const dtrain::TensorView& view) {
                        moved.push_back(i);
                        rank->parameters[i].gradient = view;
                      }};
    return wanted;
  }
};

void step_in(FakeRank& rank, const Order& order, float value) {
  Step step = rank.reducer->begin();
  for (const std::size_t i : order) {
    rank.write(i, value + static_cast<float>(i));
    step.ready(i);
  }
  step.finish();
}

}  // namespace

TEST_CASE("after the first step the plan is made again in the order in which gradients were ready") {
  RebuiltModel model;
  FakeRank rank({3, 100, 1, 17}, {0, 0}, true, std::chrono::seconds(60), {}, model.parts({}));
  model.rank = &rank;
  CHECK(rank.reducer->plan().bucket_of == Order{3, 2, 1, 0});
  step_in(rank, {1, 3, 0, 2}, 1.0F);
  CHECK(model.observed == Order{1, 3, 0, 2});
  CHECK(rank.reducer->plan().bucket_of == Order{2, 0, 3, 1});
  CHECK(model.moved.empty());  // these live in the model's own memory
  for (int repeat = 0; repeat < 3; ++repeat) {
    rank.channel->launches.clear();
    step_in(rank, {1, 3, 0, 2}, 5.0F);
    CHECK(rank.launched() == Order{0, 1, 2, 3});
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(rank.read(i) == 10.0F * (5.0F + static_cast<float>(i)));
  }
}

TEST_CASE("where the gradients were ready in the order that was foreseen, nothing is moved or cleared") {
  RebuiltModel model;
  FakeRank rank({3, 100, 1, 17}, {0, 0}, true, std::chrono::seconds(60), {}, model.parts({}));
  model.rank = &rank;
  step_in(rank, {3, 2, 1, 0}, 1.0F);
  CHECK(model.observed == Order{3, 2, 1, 0});
  CHECK(rank.reducer->plan().bucket_of == Order{3, 2, 1, 0});
  for (std::size_t i = 0; i < 4; ++i) {
    const std::byte* const place = rank.channel->arena + rank.reducer->plan().offset_of[i];
    CHECK(*reinterpret_cast<const float*>(place) == 10.0F * (1.0F + static_cast<float>(i)));
  }
  step_in(rank, {0, 1, 2, 3}, 5.0F);
  CHECK(rank.read(2) == 70.0F);
}

TEST_CASE("it is rank 0's order that counts") {
  RebuiltModel model;
  FakeRank rank({3, 100, 1, 17}, {0, 0}, true, std::chrono::seconds(60), {}, model.parts({2, 1, 0, 3}));
  model.rank = &rank;
  step_in(rank, {3, 2, 1, 0}, 1.0F);
  CHECK(model.observed == Order{3, 2, 1, 0});
  CHECK(rank.reducer->plan().bucket_of == Order{2, 1, 0, 3});
}

TEST_CASE("bound gradients move once, between steps, with what they hold, and the padding stays zero") {
  RebuiltModel model;
  FakeRank rank({3, 100, 1, 17, 0}, {0, 0}, true, std::chrono::seconds(60), {}, model.parts({2, 4, 1, 0, 3}));
  model.rank = &rank;
  rank.bind_all();
  const std::byte* const arena = rank.channel->arena;
  const std::vector<std::byte*> before{rank.parameters[0].gradient.data, rank.parameters[1].gradient.data};
  step_in(rank, {4, 3, 2, 1, 0}, 1.0F);
  CHECK(model.moved == Order{0, 1, 2, 3});  // the one without elements lives nowhere
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(rank.parameters[i].gradient.data == arena + rank.reducer->plan().offset_of[i]);
    for (const float element : rank.parameters[i].gradient.as<float>())
      CHECK(element == 10.0F * (1.0F + static_cast<float>(i)));
  }
  CHECK(rank.parameters[0].gradient.data != before[0]);
  std::size_t held = 0;
  for (const std::size_t size : {3u, 100u, 1u, 17u})
    held += size;
  std::size_t not_zero = 0;
  for (std::size_t k = 0; k < rank.reducer->plan().arena_bytes / sizeof(float); ++k)
    not_zero += reinterpret_cast<const float*>(arena)[k] != 0.0F ? 1 : 0;
  CHECK(not_zero == held);
  step_in(rank, {4, 3, 2, 1, 0}, 2.0F);
  CHECK(model.moved.size() == 4);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(rank.read(i) == 10.0F * (2.0F + static_cast<float>(i)));
}

TEST_CASE("an order that is none fails the step, and the job is notified") {
  RebuiltModel model;
  FakeRank rank({3, 100}, {0, 0}, true, std::chrono::seconds(60), {}, model.parts({1, 1}));
  model.rank = &rank;
  CHECK_ERROR(step_in(rank, {1, 0}, 1.0F), Errc::invalid_argument, "does not name each of 2 parameters once");
  CHECK(rank.latch->failed());
}

namespace {

/// The address space of this process may grow by so much from now on.
[[maybe_unused]] bool leave_room_for(std::size_t bytes) {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlimit limit{pages * static_cast<std::size_t>(::getpagesize()) + bytes, RLIM_INFINITY};
  return pages != 0 && ::setrlimit(RLIMIT_AS, &limit) == 0;
}

}  // namespace

TEST_CASE(
    "where there is no memory for another copy of all gradients they are moved all the same, and keep what they hold") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  dtrain_test::skip("a sanitizer ends a process that has no more memory");
#else
  const std::vector<std::size_t> sizes{3'000'000, 100, 5'000'000, 17, 1};
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(120);
    RebuiltModel model;
    FakeRank rank(sizes, {0, 0}, true, std::chrono::seconds(60), {}, model.parts({2, 0, 4, 3, 1}));
    model.rank = &rank;
    for (std::size_t i = 0; i < sizes.size() - 1; ++i) {  // the last one stays the model's own
      rank.parameters[i].gradient = rank.reducer->bind(i);
    }
    if (!leave_room_for(std::size_t{8} << 20)) {
      ::_exit(2);
    }
    try {
      step_in(rank, {4, 3, 2, 1, 0}, 1.0F);
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        for (const float element : rank.parameters[i].gradient.as<float>()) {
          if (element != 10.0F * (1.0F + static_cast<float>(i))) {
            ::_exit(3);
          }
        }
      }
      std::size_t held = 0;
      for (std::size_t k = 0; k < rank.reducer->plan().arena_bytes / sizeof(float); ++k)
        held += reinterpret_cast<const float*>(rank.channel->arena)[k] != 0.0F ? 1 : 0;
      ::_exit(held == 8'000'117 && rank.reducer->plan().bucket_of == Order{1, 4, 0, 3, 2} ? 0 : 4);
    } catch (const std::exception&) {
      ::_exit(5);
    }
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
#endif
}
