#include "support/element_bytes.hpp"
#include "unit/public_interface/prelude.hpp"

namespace {

template <class Backend>
using GroupOf = dtrain::ProcessGroup<dtrain::Policy<dtrain::launch::PerProcess, Backend>>;
using List = std::vector<std::size_t>;

/// Whether a group of that backend has the operation at all.
template <class G>
constexpr bool can_gather = requires(const G group, std::span<float> values) {
  group.gather(values, values, 0);
};
template <class G>
constexpr bool can_reduce = requires(const G group, std::span<float> values) {
  group.reduce(values, 0);
};

}  // namespace

TEST_CASE("a group has these collectives if its backend's communicator has, and no others") {
  static_assert(can_gather<Group> && can_reduce<Group>);
  using StoreGroup = GroupOf<support::StoreBackend>;
  static_assert(!can_gather<StoreGroup> && !can_reduce<StoreGroup>);
}

TEST_CASE("every collective with blocks, blocking and on a stream, for 1, 2, 3, 4 and 5 ranks") {
  for (const int ranks : {1, 2, 3, 4, 5}) {
    run_well(ranks, [&](const Group& group) {
      const auto n = static_cast<std::size_t>(ranks);
      const auto me = static_cast<std::size_t>(group.rank());
      const int root = ranks - 1;
      const bool is_root = group.rank() == root;

      std::vector<float> values{static_cast<float>(me), 2};
      const float sum = static_cast<float>(ranks * (ranks - 1)) / 2;
      group.reduce(values, root);
      CHECK(values == (is_root ? std::vector<float>{sum, 2 * static_cast<float>(ranks)}
                               : std::vector<float>{static_cast<float>(me), 2}));
      const std::array<double, 1> one{static_cast<double>(me)};
      std::vector<double> largest(is_root ? 1 : 0);
      group.reduce(one, largest, root, ReduceOp::max);
      CHECK(largest == (is_root ? std::vector<double>{static_cast<double>(ranks) - 1} : std::vector<double>{}));

      std::vector<std::int64_t> table(is_root ? 2 * n : 0);
      group.gather(std::array<std::int64_t, 2>{group.rank(), 7}, table, root);
      for (std::size_t i = 0; i < table.size(); ++i)
        CHECK(table[i] == (i % 2 == 0 ? static_cast<int>(i / 2) : 7));
      std::array<std::int64_t, 2> mine{};
      group.scatter(table, mine, root);
      CHECK(mine == std::array<std::int64_t, 2>{group.rank(), 7});

      std::vector<std::int8_t> out(n);
      std::vector<std::int8_t> in(n);
      for (std::size_t to = 0; to < n; ++to)
        out[to] = static_cast<std::int8_t>(10 * me + to);
      group.all_to_all(out, in);
      for (std::size_t from = 0; from < n; ++from)
        CHECK(in[from] == static_cast<int>(10 * from + me));

      // Rank r has r elements, all equal to r.
      List counts(n);
      std::vector<std::uint64_t> expected;
      for (std::size_t rank = 0; rank < n; ++rank) {
        counts[rank] = rank;
        expected.insert(expected.end(), rank, rank);
      }
      const std::vector<std::uint64_t> part(me, me);
      std::vector<std::uint64_t> all(expected.size());
      group.all_gather_v(part, all, counts);
      CHECK(all == expected);
      std::vector<std::uint64_t> collected(is_root ? expected.size() : 0);
      group.gather_v(part, collected, is_root ? counts : List(), root);
      CHECK(collected == (is_root ? expected : std::vector<std::uint64_t>()));
      std::vector<std::uint64_t> back(me);
      group.scatter_v(collected, counts, back, root);
      CHECK(back == part);

      std::vector<std::int32_t> numbers(expected.size(), group.rank());
      std::vector<std::int32_t> reduced(me);
      group.reduce_scatter_v(numbers, reduced, counts);
      CHECK(reduced == std::vector<std::int32_t>(me, ranks * (ranks - 1) / 2));

      // Rank r sends r elements to each rank, itself included, and so receives s of each rank s.
      std::vector<std::uint64_t> sent(me * n, me);
      std::vector<std::uint64_t> received(expected.size());
      auto work = group.all_to_all_v(sent, List(n, me), received, counts, group.stream());
      work.wait();
      CHECK(received == expected);
      std::vector<float> later{1};
      group.reduce(later, root, ReduceOp::product, group.stream()).wait();
      std::vector<float> laters(is_root ? n : 0);
      group.gather(later, laters, root, group.stream()).wait();
      CHECK(laters == std::vector<float>(is_root ? n : 0, 1));
    });
  }
}

TEST_CASE("blocks of every element type are moved") {
  run_well(3, [](const Group& group) {
    for (const dtrain::DType dtype : support::all_dtypes) {
      const std::size_t element = dtrain::size_bytes(dtype);
      std::vector<std::byte> own(2 * element, static_cast<std::byte>(group.rank() + 1));
      std::vector<std::byte> all(group.rank() == 1 ? 6 * element : 0);
      group.gather(dtrain::ConstBufferView(own.data(), 2, dtype),
                   dtrain::BufferView{all.data(), group.rank() == 1 ? 6U : 0U, dtype, {}}, 1);
      for (std::size_t i = 0; i < all.size(); ++i)
        CHECK(all[i] == static_cast<std::byte>(i / (2 * element) + 1));
    }
  });
}

TEST_CASE("what does not fit is refused with a sentence before anything is enqueued, and the group serves on") {
  run_well(2, [](const Group& group) {
    std::vector<float> two(2);
    std::vector<float> three(3);
    std::vector<float> four(4);
    std::vector<double> doubles(4);
    const auto refused = [](const std::string& text) { return doctest::Contains(text.c_str()); };
    CHECK_THROWS_WITH_AS(group.reduce(two, 2), refused("reduce with rank 2 of 2 as the root"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.gather(two, three, -1), refused("gather with rank -1 of 2 as the root"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.gather(two, three, group.rank()), refused("an output of 3 f32"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.scatter(four, three, group.rank()), refused("an output of 3 f32"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_to_all(three, three), refused("all_to_all on 2 ranks with an input of 3 f32"),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_to_all(two, four), refused("all_to_all sends 1 f32 to rank"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_to_all(four, doubles), refused("all_to_all of f32 into f64"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_to_all(four, four), refused("overlap"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_gather_v(two, four, List{2}), refused("with an output of 4 f32 and 1 counts"),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_gather_v(two, four, List{2, 3}), refused("add up to more"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_gather_v(two, four, List{2, ~std::size_t{0} - 1}), refused("add up to more"),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_gather_v(two, four, List{1, 2}), refused("add up to 3"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_gather_v(three, four, List{2, 2}), refused("this rank's block has 2"),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(group.reduce_scatter_v(four, three, List{2, 2}), refused("this rank's block has 2"),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_to_all_v(four, List{2, 2}, three, group.rank() == 0 ? List{1, 2} : List{2, 1}),
                         refused("itself"), dtrain::Error);
    group.reduce(two, 0);
    CHECK(two[0] == 0);
  });
}

TEST_CASE("ranks whose counts for one block differ all fail, with a sentence that names both") {
  expect_ends(3, {"all_to_all_v of i32", "rank 1 sends 4 i32 and rank 2 receives 5 i32"}, [](const Group& group) {
    const bool differs = group.rank() == 2;
    std::vector<std::int32_t> input(12);
    std::vector<std::int32_t> output(differs ? 13 : 12);
    group.all_to_all_v(input, List{4, 4, 4}, output, differs ? List{4, 5, 4} : List{4, 4, 4});
    group.barrier();
  });
  expect_ends(2, {"reduce_scatter_v (sum) of f32", "2 f32", "3 f32"}, [](const Group& group) {
    const bool differs = group.rank() == 1;
    std::vector<float> input(5);
    std::vector<float> output(differs ? 2 : 3);
    group.reduce_scatter_v(input, output, differs ? List{3, 2} : List{3, 2});
    group.reduce_scatter_v(input, differs ? std::span(output) : std::span(output).first(2),
                           differs ? List{3, 2} : List{2, 3});
  });
  expect_ends(2, {"gather_v of f32 to rank 0", "rank 1 sends 2 f32 and rank 0 receives 3 f32"}, [](const Group& group) {
    std::vector<float> own(2);
    std::vector<float> all(5);
    group.gather_v(own, all, List{2, 3}, 0);
    group.barrier();
  });
}

TEST_CASE("ranks that differ in the root, the kind or the length all fail, with a sentence that names both") {
  expect_ends(3, {"gather of 1 f32 a rank to rank 0", "gather of 1 f32 a rank to rank 1"}, [](const Group& group) {
    std::vector<float> all(3);
    group.gather(std::array<float, 1>{1}, all, group.rank() == 1 ? 1 : 0);
    group.barrier();
  });
  expect_ends(2, {"all_to_all of 2 f32 a rank", "all_to_all_v of f32"}, [](const Group& group) {
    std::vector<float> input(4);
    std::vector<float> output(4);
    if (group.rank() == 0) {
      group.all_to_all(input, output);
    } else {
      group.all_to_all_v(input, List{2, 2}, output, List{2, 2});
    }
    group.barrier();
  });
  expect_ends(2, {"reduce (sum) of 2 f32 to rank 0", "reduce (sum) of 3 f32 to rank 0"}, [](const Group& group) {
    std::vector<float> values(group.rank() == 0 ? 2 : 3);
    group.reduce(values, 0);
    group.barrier();
  });
  expect_ends(2, {"scatter of 2 i32 a rank from rank 0", "scatter of 2 f32 a rank from rank 0"},
              [](const Group& group) {
                std::vector<float> floats(4);
                std::vector<std::int32_t> numbers(4);
                if (group.rank() == 0) {
                  group.scatter(floats, std::span(floats).first(2), 0);
                } else {
                  group.scatter(numbers, std::span(numbers).first(2), 0);
                }
                group.barrier();
              });
}
