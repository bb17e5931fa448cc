#include "support/own_reduction_checks.hpp"

#include "unit/public_interface/prelude.hpp"

TEST_CASE("a function of one's own folds from the left in the order of the ranks, on 1, 2, 3, 4 and 5 ranks") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    run_well(ranks, [&](const Group& group) { support::check_own_reductions(group, ranks == 2 || ranks == 3); });
  }
}

TEST_CASE("one round of scratch memory is kept, and a reducer of bytes has one round of any size") {
  run_well(2, [](const Group& group) {
    support::check_reducer_of_bytes(group, std::size_t{300} << 10);  // 2 x 2.4 MB
    support::check_reducer_of_bytes(group, 10);
  });
}

TEST_CASE("a function of one's own is called once less for each element than there are ranks, on the calling thread") {
  run_well(3, [](const Group& group) {
    std::size_t calls = 0;
    const std::thread::id caller = std::this_thread::get_id();
    std::vector<double> values(9000, group.rank());
    group.reduce(values, 1, [&](double a, double b) {
      CHECK(std::this_thread::get_id() == caller);
      ++calls;
      return a + b;
    });
    CHECK(calls == (group.rank() == 1 ? 2 * values.size() : 0));
  });
}

TEST_CASE("a member function is a function of one's own, and an element may have constant members") {
  struct Vector {
    float x;
    Vector add(const Vector& other) const { return {x + other.x}; }
  };
  struct Constant {
    const int number;
  };
  run_well(3, [](const Group& group) {
    std::vector<Vector> values(4, Vector{1});
    group.all_reduce(values, &Vector::add);
    CHECK(values[3].x == 3);
    std::array<Constant, 1> constant{{{group.rank()}}};
    group.all_reduce(constant, [](const Constant& a, const Constant& b) { return Constant{a.number * 10 + b.number}; });
    CHECK(constant[0].number == 12);
  });
}

TEST_CASE("an exception of the function leaves the call and is the job's cause") {
  for (const std::size_t count : {std::size_t{1}, std::size_t{100000}}) {
    const auto ends = support::run_groups<Policy>(3, [&](const Group& group) {
      std::vector<double> values(count, 1);
      group.all_reduce(values, [&](double a, double b) {
        if (group.rank() == 1) throw dtrain::Error(Errc::invalid_argument, "no such gain");
        return a + b;
      });
      group.barrier();
    });
    CHECK_CONTAINS(ends[1].text, "no such gain");
    CHECK_CONTAINS(ends[0].text, "no such gain");
    CHECK_CONTAINS(ends[2].text, "no such gain");
  }
}

TEST_CASE("ranks that give different lengths or a root that is no rank are told so") {
  expect_ends(2, {"all_gather of ", "u8"}, [](const Group& group) {
    std::vector<double> values(3 + static_cast<std::size_t>(group.rank()));
    group.all_reduce(values, std::plus<>());
  });
  expect_ends(2, {"all_to_all_v"}, [](const Group& group) {
    std::vector<double> values(10000 + 2 * static_cast<std::size_t>(group.rank()));
    group.all_reduce(values, std::plus<>());
  });
  run_well(2, [](const Group& group) {
    std::vector<double> values(3);
    CHECK_ERROR(group.reduce(values, 2, std::plus<>()), Errc::invalid_argument, "with rank 2 of 2 as the root");
    CHECK_ERROR(group.reduce_scatter_v(values, std::span(values).first(1), {1, 1}, std::plus<>()),
                Errc::invalid_argument, "the counts of ranks 0 to 1 add up to 16");
    CHECK_ERROR(group.reduce_scatter_v(values, std::span(values).subspan(1, 2), {2, 1}, std::plus<>()),
                Errc::invalid_argument, "reduce_scatter_v");
  });
}
