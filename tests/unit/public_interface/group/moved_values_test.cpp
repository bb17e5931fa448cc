#include <complex>

#include "unit/public_interface/prelude.hpp"

namespace {

struct Split {
  double gain = 0;
  std::int32_t feature = 0;
  friend bool operator==(const Split&, const Split&) = default;
};

using dtrain::group::MovedReadBuffer;
using dtrain::group::MovedWriteBuffer;
using dtrain::group::ReadBuffer;
using dtrain::group::WriteBuffer;

}  // namespace

TEST_CASE("trivially copyable elements are moved as their bytes; numbers with an element type as that") {
  std::vector<std::int8_t> small(3);
  const std::array<std::uint64_t, 2> large{};
  unsigned middle[4] = {};
  std::vector<Split> splits(5);
  bool flags[2] = {};
  std::vector<std::complex<float>> numbers(3);
  CHECK(MovedWriteBuffer(small).dtype == dtrain::DType::u8);
  CHECK(MovedWriteBuffer(std::span(small).subspan(1)).count == 2);
  CHECK(MovedWriteBuffer(middle).dtype == dtrain::DType::u32);
  CHECK(MovedReadBuffer(large).dtype == dtrain::DType::u64);
  CHECK(MovedReadBuffer(std::span<const std::int8_t>(small)).count == 3);
  CHECK(MovedReadBuffer(std::vector<float>(5)).dtype == dtrain::DType::f32);
  CHECK(MovedReadBuffer(std::vector<std::uint16_t>(5)).bytes() == 10);
  CHECK(MovedWriteBuffer(splits).bytes() == 5 * sizeof(Split));
  CHECK(MovedWriteBuffer(splits).unit == sizeof(Split));
  CHECK(WriteBuffer(flags).meaning == dtrain::group::ElementMeaning::flag);
  CHECK(WriteBuffer(numbers).count == 6);
  CHECK(ReadBuffer(WriteBuffer(numbers)).unit == 2);
  static_assert(!std::is_constructible_v<MovedWriteBuffer, const std::vector<std::int8_t>&>);
  static_assert(!std::is_constructible_v<MovedWriteBuffer, const std::vector<Split>&>);
  static_assert(!dtrain::group::MovedValue<std::string_view> && !dtrain::group::MovedValue<std::span<int>>);
  static_assert(!dtrain::group::MovedValue<int*> && !dtrain::group::MovedValue<std::pair<int, int>>);
  static_assert(!dtrain::group::MovedValue<dtrain::TensorView> && !dtrain::group::MovedValue<dtrain::BufferView>);
  static_assert(!dtrain::group::MovedValue<std::reference_wrapper<int>>);
  static_assert(!std::is_constructible_v<WriteBuffer, std::span<const std::complex<float>>>);
  static_assert(!std::is_constructible_v<dtrain::group::Counts, std::string>);
  CHECK(MovedWriteBuffer(WriteBuffer(numbers)).unit == 2);
  CHECK(MovedReadBuffer(ReadBuffer(numbers)).meaning == dtrain::group::ElementMeaning::part_of_complex);
  static_assert(dtrain::group::MovedValue<std::array<float, 3>> && dtrain::group::MovedValue<std::byte>);
}

TEST_CASE("structs, strings, bools and complex numbers are moved by every collective that moves, on 1 to 4 ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    run_well(ranks, [&](const Group& group) {
      const auto n = static_cast<std::size_t>(ranks);
      const auto me = static_cast<std::size_t>(group.rank());
      const Split mine{0.5 * group.rank(), group.rank()};
      Split of_root = mine;
      group.broadcast(of_root, ranks - 1);
      CHECK(of_root == Split{0.5 * (ranks - 1), ranks - 1});
      const std::vector<Split> gathered = group.all_gather(mine);
      REQUIRE(gathered.size() == n);
      for (std::size_t r = 0; r < n; ++r)
        CHECK(gathered[r] == Split{0.5 * static_cast<double>(r), static_cast<std::int32_t>(r)});
      std::vector<Split> all(n);
      group.all_gather(std::span(&mine, 1), all);
      CHECK(all == gathered);
      CHECK(group.all_gather(static_cast<float>(me))[n - 1] == static_cast<float>(n - 1));

      // Rank r has r + 1 structs: counts are in structs, not in bytes.
      std::vector<int> counts(n);
      for (std::size_t r = 0; r < n; ++r)
        counts[r] = static_cast<int>(r) + 1;
      const std::vector<Split> own(me + 1, mine);
      std::vector<Split> listed(n * (n + 1) / 2);
      group.all_gather_v(own, listed, counts);
      CHECK(listed.back() == gathered.back());
      CHECK(listed.front() == gathered.front());
      std::vector<Split> back(me + 1);
      group.scatter_v(listed, counts, back, 0);
      CHECK(back == own);
      std::vector<Split> collected(group.rank() == 0 ? listed.size() : 0);
      group.gather_v(own, collected, counts, 0);
      CHECK(collected == (group.rank() == 0 ? listed : std::vector<Split>()));
      const std::vector<short> ones(n, 1);
      std::vector<Split> exchanged(n);
      group.all_to_all_v(std::vector<Split>(n, mine), ones, exchanged, ones);
      CHECK(exchanged == gathered);

      std::string text = group.rank() == 0 ? "a configuration" : "";
      group.broadcast_resized(text, 0);
      CHECK(text == "a configuration");
      std::vector<Split> list(group.rank() == 0 ? 3 : 7, mine);
      group.broadcast_resized(list, 0);
      CHECK(list == std::vector<Split>(3));
      text.clear();
      group.broadcast_resized(text, ranks - 1);
      CHECK(text.empty());
    });
  }
}

TEST_CASE("a condition is true on any rank or on all; bools are reduced by min, max and product alone") {
  run_well(3, [](const Group& group) {
    CHECK(group.any(group.rank() == 1));
    CHECK(!group.any(false));
    CHECK(group.all(true));
    CHECK(!group.all(group.rank() != 2));
    CHECK(group.all_reduce(group.rank() == 2, ReduceOp::max));
    bool flags[2] = {group.rank() == 0, true};
    CHECK_ERROR(group.all_reduce(flags), Errc::unsupported, "flags (elements of type bool)");
    CHECK_ERROR(static_cast<void>(group.all_reduce(true, ReduceOp::average)), Errc::unsupported, "reduce them by max");
    group.all_reduce(flags, ReduceOp::product);
    CHECK(!flags[0]);
    CHECK(flags[1]);
    group.broadcast(flags, 0);
  });
}

TEST_CASE("what is moved as bytes is not reduced by a ReduceOp, and a tensor's view is the tensor") {
  run_well(2, [](const Group& group) {
    std::vector<Split> splits(2);
    const MovedWriteBuffer moved(splits);
    CHECK_ERROR(group.all_reduce(moved), Errc::unsupported, "bytes of structs or other elements");
    std::vector<float> weights(6, static_cast<float>(group.rank() + 1));
    const dtrain::TensorView view = dtrain::tensor_view(weights.data(), {2, 3});
    group.broadcast(view, 1);
    CHECK(weights == std::vector<float>(6, 2));
    group.all_reduce(view);
    CHECK(weights == std::vector<float>(6, 4));
    std::vector<float> all(group.rank() == 0 ? 12 : 0);  // the counts of other ranks than the root are ignored
    group.gather_v(weights, all, group.rank() == 0 ? std::vector<int>{6, 6} : std::vector<int>{-1, -1}, 0);
  });
}

TEST_CASE("complex numbers are added and averaged, and their counts are in numbers") {
  run_well(2, [](const Group& group) {
    using Number = std::complex<double>;
    const Number mine(group.rank() + 1, -group.rank());
    CHECK(group.all_reduce(mine) == Number(3, -1));
    CHECK(group.all_reduce(mine, ReduceOp::average) == Number(1.5, -0.5));
    CHECK_ERROR(static_cast<void>(group.all_reduce(mine, ReduceOp::max)), Errc::unsupported, "complex numbers");
    std::vector<Number> part(1);
    group.reduce_scatter_v(std::vector<Number>(2, mine), part, {1, 1});
    CHECK(part[0] == Number(3, -1));
    CHECK(group.all_gather(mine)[1] == Number(2, -1));
  });
}

TEST_CASE("unsigned integers are reduced as what they are") {
  run_well(3, [](const Group& group) {
    constexpr std::uint64_t high = std::uint64_t{1} << 63U;
    const auto me = static_cast<std::uint64_t>(group.rank());
    CHECK(group.all_reduce(std::size_t{5}) == 15);
    CHECK(group.all_reduce(high + me, ReduceOp::max) == high + 2);
    CHECK(group.all_reduce(me == 1 ? high : me + 1, ReduceOp::min) == 1);
    CHECK(group.all_reduce(~std::uint64_t{0} - me, ReduceOp::average) == ~std::uint64_t{0} - 1);
    CHECK(group.all_reduce(static_cast<std::uint32_t>(0xfffffff0U + me), ReduceOp::average) == 0xfffffff1U);
    CHECK(group.all_reduce(static_cast<std::uint32_t>(me == 0 ? 0x80000000U : 3U), ReduceOp::max) == 0x80000000U);
    CHECK(group.all_reduce(static_cast<unsigned long long>(me) + 2, ReduceOp::product) == 24);
    std::vector<std::uint64_t> long_list(30000, ~std::uint64_t{0} - me);
    group.all_reduce(long_list, ReduceOp::average);
    CHECK(long_list[29999] == ~std::uint64_t{0} - 1);
  });
}

TEST_CASE("counts are any integers; a negative one, or elements of two sizes, are named") {
  run_well(2, [](const Group& group) {
    const std::vector<float> part(1, static_cast<float>(group.rank()));
    std::vector<float> all(2);
    const auto gathers = [&](const dtrain::group::Counts& counts) {
      all = {5, 5};
      group.all_gather_v(part, all, counts);
      CHECK(all == std::vector<float>{0, 1});
    };
    gathers(std::vector<int>{1, 1});
    gathers(std::array<std::int64_t, 2>{1, 1});
    gathers(std::vector<std::size_t>{1, 1});
    const unsigned short array[2] = {1, 1};
    gathers(array);
    gathers({1, 1});
    CHECK_ERROR(group.all_gather_v(part, all, std::vector<int>{1, -1}), Errc::invalid_argument,
                "the count of rank 1 is -1");
    CHECK_ERROR(group.all_gather_v(part, all, {1}), Errc::invalid_argument, "1 counts");
    std::vector<Split> splits(2);
    CHECK_ERROR(group.all_gather_v(std::vector<char>(16), splits, {1, 1}), Errc::invalid_argument,
                "elements of 1 parts each");
    CHECK_ERROR(group.all_gather_v(std::span(splits).first(1), std::span(splits),
                                   std::vector<std::size_t>{std::numeric_limits<std::size_t>::max(), 1}),
                Errc::invalid_argument, "more than this machine can count");
  });
}
