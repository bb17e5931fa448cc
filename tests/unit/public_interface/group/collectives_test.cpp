#include "support/library_tensor.hpp"
#include "unit/public_interface/prelude.hpp"

using dtrain::group::ReadBuffer;
using dtrain::group::WriteBuffer;

namespace {

template <class Backend>
using GroupOf = dtrain::ProcessGroup<dtrain::Policy<dtrain::launch::PerProcess, Backend>>;

/// Whether a group of that backend has the operation at all.
template <class G>
constexpr bool can_reduce_scatter = requires(const G group, std::span<float> values) {
  group.reduce_scatter(values, values, ReduceOp::sum);
};
template <class G>
constexpr bool can_all_gather = requires(const G group, std::span<float> values) {
  group.all_gather(values, values);
};
template <class G>
constexpr bool can_send = requires(const G group, std::span<float> values) {
  group.send(values, 1);
};
template <class G>
constexpr bool can_split = requires(const G group) {
  group.split(0, 0);
};

}  // namespace

TEST_CASE(
    "spans of any extent, vectors and arrays are buffers; what is constant is only read, a temporary not written") {
  std::vector<float> floats(3);
  std::array<std::int64_t, 2> longs{};
  std::uint8_t bytes[5] = {};
  const std::vector<double> constant(4);
  CHECK(WriteBuffer(floats).count == 3);
  CHECK(WriteBuffer(longs).dtype == dtrain::DType::i64);
  CHECK(WriteBuffer(bytes).bytes() == 5);
  CHECK(WriteBuffer(std::span<float, 2>(floats.data(), 2)).count == 2);
  CHECK(WriteBuffer(std::span(floats).subspan(1)).data == reinterpret_cast<std::byte*>(floats.data() + 1));
  CHECK(ReadBuffer(constant).dtype == dtrain::DType::f64);
  CHECK(ReadBuffer(floats).data == reinterpret_cast<std::byte*>(floats.data()));
  CHECK(ReadBuffer(std::span<const std::int64_t, 2>(longs)).count == 2);
  CHECK(ReadBuffer(WriteBuffer(bytes)).count == 5);
  static_assert(!std::is_constructible_v<WriteBuffer, const std::vector<double>&>);
  static_assert(!std::is_constructible_v<WriteBuffer, std::span<const float>>);
  static_assert(!std::is_constructible_v<WriteBuffer, std::vector<float>>);
  static_assert(!std::is_constructible_v<WriteBuffer, std::array<float, 2>>);
  static_assert(!std::is_constructible_v<ReadBuffer, int>);
}

TEST_CASE("integers without an element type are moved, by rank and by pair") {
  run_well(2, [](const Group& group) {
    std::vector<std::int8_t> values{static_cast<std::int8_t>(-1 - group.rank()), 7};
    group.broadcast(values, 1);
    CHECK(values == std::vector<std::int8_t>{-2, 7});
    const std::array<std::uint64_t, 1> mine{~std::uint64_t{0} - static_cast<std::uint64_t>(group.rank())};
    std::vector<std::uint64_t> all(2);
    group.all_gather(mine, all);
    CHECK(all == std::vector<std::uint64_t>{~std::uint64_t{0}, ~std::uint64_t{0} - 1});
    if (group.rank() == 0) {
      group.send(std::array<std::byte, 2>{std::byte{1}, std::byte{2}}, 1);
    } else {
      std::array<std::byte, 2> received{};
      group.recv(received, 0);
      CHECK(received[1] == std::byte{2});
    }
  });
}

TEST_CASE("tensors of a library are reduced where the results have the elements' meaning, and hear of writes") {
  using dtrain::group::ElementMeaning;
  run_well(2, [](const Group& group) {
    int writes = 0;
    std::vector<std::uint8_t> bytes(2, static_cast<std::uint8_t>(group.rank()));
    std::vector<std::uint8_t> others(2);
    const auto refused = [&](ElementMeaning meaning, ReduceOp op, const char* text) {
      const support::LibraryTensor tensor{bytes, meaning, writes};
      const std::array<std::size_t, 2> counts{2, 0};
      CHECK_ERROR(group.all_reduce(tensor, op), Errc::unsupported, text);
      CHECK_ERROR(group.all_reduce(tensor, others, op), Errc::unsupported, text);
      CHECK_ERROR(group.all_reduce(others, tensor, op), Errc::unsupported, text);
      CHECK_ERROR(group.all_reduce_without_cast(tensor, op), Errc::unsupported, text);
      CHECK_ERROR(group.reduce(tensor, 0, op), Errc::unsupported, text);
      CHECK_ERROR(group.reduce_scatter(tensor, std::span(others).first(1), op), Errc::unsupported, text);
      CHECK_ERROR(group.reduce_scatter_v(tensor, others, counts, op), Errc::unsupported, text);
    };
    for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average})
      refused(ElementMeaning::flag, op, "flags (elements of type bool) were given to a reduction by");
    for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::product})
      refused(ElementMeaning::part_of_complex, op, "complex numbers cannot be reduced by ");
    const support::LibraryTensor flags{bytes, ElementMeaning::flag, writes};
    const support::LibraryTensor complex{bytes, ElementMeaning::part_of_complex, writes};
    writes = 0;
    group.all_gather(std::array<std::uint8_t, 1>{1}, flags);
    group.all_reduce(flags, others, ReduceOp::min);
    CHECK(writes == 1);
    CHECK(others == std::vector<std::uint8_t>{1, 1});
    group.all_reduce(flags, ReduceOp::max);
    group.all_reduce(complex, ReduceOp::sum);
    CHECK(writes == 3);
    CHECK(bytes == std::vector<std::uint8_t>{2, 2});
  });
}

TEST_CASE("one number is given and returned, of every element type that C++ computes with") {
  run_well(3, [](const Group& group) {
    const int rank = group.rank();
    CHECK(group.all_reduce(0.5 * rank, ReduceOp::average) == 0.5);
    CHECK(group.all_reduce(static_cast<float>(rank), ReduceOp::max) == 2.0F);
    CHECK(group.all_reduce(rank, ReduceOp::sum) == 3);
    CHECK(group.all_reduce(rank - 1LL, ReduceOp::min) == -1LL);
    CHECK(group.all_reduce(rank + 1L, ReduceOp::product) == 6L);
    CHECK(group.all_reduce(static_cast<unsigned char>(100 + rank), ReduceOp::sum) == (303 & 255));
    std::array<long long, 2> counts{rank, 1};
    group.all_reduce(counts, ReduceOp::sum);
    CHECK(counts == std::array<long long, 2>{3, 3});
  });
}

TEST_CASE("a reduction without an operation is the sum, in every form") {
  run_well(3, [](const Group& group) {
    const auto me = static_cast<float>(group.rank());
    const std::array<float, 3> numbers{me, 1, 2 * me};
    const std::array<float, 3> sums{3, 3, 6};
    const auto own = static_cast<std::size_t>(group.rank());
    CHECK(group.all_reduce(me) == 3);

    std::array<float, 3> values = numbers;
    group.all_reduce(values);
    CHECK(values == sums);
    std::vector<float> result(3);
    group.all_reduce(numbers, result);
    CHECK(std::equal(result.begin(), result.end(), sums.begin(), sums.end()));
    std::array<float, 1> block{};
    group.reduce_scatter(numbers, block);
    CHECK(block[0] == sums[own]);

    values = numbers;
    result.assign(3, 0);
    block[0] = 0;
    group.all_reduce(values, group.stream());
    group.all_reduce(numbers, result, group.stream());
    group.reduce_scatter(numbers, block, group.stream()).wait();
    CHECK(values == sums);
    CHECK(std::equal(result.begin(), result.end(), sums.begin(), sums.end()));
    CHECK(block[0] == sums[own]);
  });
}

TEST_CASE("a group has the collectives that its backend's communicator is able to do, and no others") {
  static_assert(can_reduce_scatter<Group> && can_all_gather<Group> && can_send<Group> && can_split<Group>);
  using StoreGroup = GroupOf<support::StoreBackend>;
  static_assert(!can_reduce_scatter<StoreGroup> && !can_all_gather<StoreGroup> && !can_send<StoreGroup>);
}

TEST_CASE("every collective gives what it is to give, blocking, for 1, 2, 3 and 4 ranks") {
  for (const int ranks : {1, 2, 3, 4}) {
    run_well(ranks, [&](const Group& group) {
      const std::size_t n = static_cast<std::size_t>(ranks);
      const auto me = static_cast<float>(group.rank());
      const float sum = static_cast<float>(ranks * (ranks - 1)) / 2;

      std::vector<float> out(2);
      group.all_reduce(std::array<float, 2>{me, 1}, out, ReduceOp::sum);
      CHECK(out == std::vector<float>{sum, static_cast<float>(ranks)});
      group.all_reduce(out, ReduceOp::average);
      CHECK(out == std::vector<float>{sum, static_cast<float>(ranks)});

      std::vector<std::int32_t> number{group.rank() + 5};
      group.broadcast(number, ranks - 1);
      CHECK(number[0] == ranks + 4);

      std::vector<double> blocks(2 * n);
      for (std::size_t i = 0; i < blocks.size(); ++i)
        blocks[i] = static_cast<double>(i) + me;
      std::array<double, 2> block{};
      group.reduce_scatter(blocks, block, ReduceOp::sum);
      CHECK(block[0] == 2 * group.rank() * ranks + static_cast<double>(sum));
      CHECK(block[1] == (2 * group.rank() + 1) * ranks + static_cast<double>(sum));

      std::vector<float> all(n);
      group.all_gather(std::span<const float>(&me, 1), all);
      for (int rank = 0; rank < ranks; ++rank)
        CHECK(all[static_cast<std::size_t>(rank)] == static_cast<float>(rank));

      const int next = (group.rank() + 1) % ranks;
      const int before = (group.rank() + ranks - 1) % ranks;
      std::vector<std::int64_t> mine(100'000, group.rank());  // more than anybody buffers
      std::vector<std::int64_t> theirs(mine.size(), -1);
      group.send_recv(mine, next, theirs, before);
      CHECK(theirs == std::vector<std::int64_t>(mine.size(), before));

      if (group.rank() == 0 && ranks > 1) group.send(mine, ranks - 1);
      if (group.rank() == ranks - 1 && ranks > 1) {
        group.recv(theirs, 0);
        CHECK(theirs == std::vector<std::int64_t>(mine.size(), 0));
      }
      group.barrier();
    });
  }
}

TEST_CASE("what is enqueued runs in its order when somebody waits, and no sooner than that is it waited for") {
  run_well(2, [](const Group& group) {
    const int other = 1 - group.rank();
    std::vector<float> values{1, 2};
    std::vector<float> got(2);
    std::vector<float> gathered(4);
    std::array<float, 1> part{};
    const auto stream = group.stream();
    group.all_reduce(values, ReduceOp::sum, stream);
    group.send_recv(values, other, got, other, stream);
    group.all_gather(got, gathered, stream);
    group.reduce_scatter(got, part, ReduceOp::product, stream);
    if (group.rank() == 0) {
      group.send(values, 1, stream);
    } else {
      group.recv(values, 0, stream);
    }
    group.broadcast(got, 1, stream);
    group.barrier(stream);
    CHECK(values == std::vector<float>{1, 2});
    wait_for(group.stream(), dtrain::Deadline::after(group.timeout()));
    CHECK(values == std::vector<float>{2, 4});
    CHECK(gathered == std::vector<float>{2, 4, 2, 4});
    CHECK(part[0] == (group.rank() == 0 ? 4.0F : 16.0F));
  });
}

TEST_CASE("a reduce_scatter and an all_gather may work in place on the rank's own block") {
  run_well(3, [](const Group& group) {
    std::vector<float> values{1, 2, 3};
    const std::span<float> own = std::span(values).subspan(static_cast<std::size_t>(group.rank()), 1);
    group.reduce_scatter(values, own, ReduceOp::sum);
    group.all_gather(own, values);
    CHECK(values == std::vector<float>{3, 6, 9});
  });
}

TEST_CASE("what does not fit is refused with a sentence before anything is enqueued, and the group serves on") {
  run_well(2, [](const Group& group) {
    std::vector<float> three(3);
    std::vector<float> four(4);
    std::vector<double> doubles(2);
    const auto refused = [](const std::string& text) { return doctest::Contains(text.c_str()); };
    CHECK_THROWS_WITH_AS(group.all_reduce(three, four, ReduceOp::sum), refused("3 f32 into 4 f32"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.reduce_scatter(three, four, ReduceOp::sum), refused("reduce_scatter on 2 ranks"),
                         dtrain::Error);
    CHECK_THROWS_WITH_AS(group.reduce_scatter(four, doubles, ReduceOp::sum), refused("2 f64"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.all_gather(four, three), refused("all_gather on 2 ranks"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.broadcast(three, 2), refused("rank 2 of 2"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.send(three, group.rank()), refused("another rank"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.recv(three, -1), refused("another rank"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.send_recv(three, 0, three, 1), refused("overlap"), dtrain::Error);
    CHECK_THROWS_WITH_AS(group.split(-1), refused("colors begin at 0"), dtrain::Error);
    std::vector<float> one{1};
    group.all_reduce(one, ReduceOp::sum);
    CHECK(one[0] == 2);
  });
}

TEST_CASE("a message of another length or type than is received is every rank's end, with both named") {
  expect_ends(2, {"2 f32", "3 f32"}, [](const Group& group) {
    std::vector<float> two(2);
    std::vector<float> three(3);
    if (group.rank() == 0) {
      group.send(two, 1);
      group.barrier();
    } else {
      group.recv(three, 0);
    }
  });
}
