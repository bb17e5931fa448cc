#include <tuple>

#include "unit/backend/message_passing/algorithms/memory_ranks.hpp"

namespace {

using namespace memory_ranks;
using passing::Buffers;
using Bytes = ByteVector;

constexpr int sizes[] = {1, 2, 3, 4, 8};
constexpr std::size_t counts[] = {0, 1, 7, 16, 17, 100, 1000, 4099};

/// What every rank's output is after `what`.
std::vector<Bytes> outputs(const Operation& what, const passing::Tuning& tuning, const std::vector<Bytes>& given,
                           std::size_t output_bytes, bool in_place) {
  return memory_ranks::outputs(passing::collective<MemoryEndpoint>, what, support::test_channel(tuning, given.size()),
                               given, output_bytes, in_place);
}

constexpr std::size_t kib = 1024;
constexpr auto exchange = passing::AllReduceAlgorithm::direct_exchange;
constexpr auto doubling = passing::AllReduceAlgorithm::recursive_doubling;
constexpr auto halving = passing::AllReduceAlgorithm::halving_doubling;
constexpr auto direct = passing::AllReduceAlgorithm::direct_reduce_scatter;
constexpr auto ring = passing::AllReduceAlgorithm::ring;

/// `at` for up to `bytes`, `above` for one element more.
struct Boundary {
  int ranks;
  std::size_t bytes;
  passing::AllReduceAlgorithm at;
  passing::AllReduceAlgorithm above;
};

void check(const passing::Tuning& tuning, const std::vector<Boundary>& boundaries) {
  for (const Boundary& boundary : boundaries) {
    CAPTURE(boundary.ranks);
    CAPTURE(boundary.bytes);
    const std::size_t count = boundary.bytes / 4;
    CHECK(algorithm_of({boundary.ranks, count, DType::f32, DType::f32}, tuning) == boundary.at);
    CHECK(algorithm_of({boundary.ranks, count + 1, DType::f32, DType::f32}, tuning) == boundary.above);
  }
}

/// Lengths that are in no boundary.
void check_longer(const passing::Tuning& tuning, int ranks, std::size_t from, passing::AllReduceAlgorithm expected) {
  for (std::size_t bytes = from; bytes <= std::size_t{1} << 34U; bytes *= 2) {
    CAPTURE(ranks);
    CAPTURE(bytes);
    CHECK(algorithm_of({ranks, bytes / 4, DType::f32, DType::f32}, tuning) == expected);
  }
}

TEST_CASE("the algorithm of an all_reduce is by its length and the number of ranks, on one host and on several") {
  passing::Tuning tuning;
  REQUIRE(tuning.small_bytes == 8 * kib);  // a backend's on several hosts
  check(tuning, {{2, 8 * kib, exchange, halving},
                 {3, 8 * kib, exchange, halving},
                 {4, 8 * kib, exchange, halving},
                 {6, 8 * kib, exchange, halving},
                 {8, 8 * kib, exchange, halving},
                 {9, 8 * kib, doubling, halving},
                 {64, 8 * kib, doubling, halving}});
  for (const int ranks : {2, 3, 4, 6, 8, 9, 64})
    check_longer(tuning, ranks, 16 * kib, halving);

  tuning.direct_reduce_scatter = true;  // Gloo's on one host
  check(tuning, {{2, 8 * kib, exchange, direct},
                 {3, 8 * kib, exchange, direct},
                 {4, 8 * kib, exchange, halving},
                 {4, 512 * kib, halving, direct},
                 {6, 8 * kib, exchange, halving},
                 {6, 768 * kib, halving, direct},
                 {8, 8 * kib, exchange, halving},
                 {8, 1024 * kib, halving, direct},
                 {9, 8 * kib, doubling, halving},
                 {64, 8 * kib, doubling, halving}});
  for (const int ranks : {2, 3, 4, 6, 8})
    check_longer(tuning, ranks, 2048 * kib, direct);
  for (const int ranks : {9, 64})
    check_longer(tuning, ranks, 16 * kib, halving);
}

TEST_CASE("a long all_reduce goes round a ring where halving-doubling would send it twice for extra ranks") {
  for (const bool one_host : {false, true}) {
    CAPTURE(one_host);
    passing::Tuning tuning;
    tuning.direct_reduce_scatter = one_host;
    for (const int ranks : {11, 13, 22, 33}) {
      const std::size_t boundary = static_cast<std::size_t>(ranks) * 128 * kib;
      check(tuning, {{ranks, 8 * kib, doubling, halving}, {ranks, boundary, halving, ring}});
      check_longer(tuning, ranks, 2 * boundary, ring);
    }
    for (const int ranks : {9, 10, 12, 64})
      check_longer(tuning, ranks, 16 * kib, halving);
  }
}

TEST_CASE("where a backend sends more at once, an all_reduce is small for longer") {
  passing::Tuning tuning;
  tuning.direct_reduce_scatter = true;
  tuning.small_bytes = 32 * kib;  // Mpi's on one host, as are those below
  check(tuning, {{2, 32 * kib, exchange, direct},
                 {3, 32 * kib, exchange, direct},
                 {4, 32 * kib, exchange, halving},
                 {4, 512 * kib, halving, direct}});
  tuning.small_bytes = 128 * kib / 6;
  check(tuning, {{6, 128 * kib / 6, exchange, halving}, {6, 768 * kib, halving, direct}});
  tuning.small_bytes = 16 * kib;
  check(tuning, {{8, 16 * kib, exchange, halving}, {8, 1024 * kib, halving, direct}});
  tuning.small_bytes = 128 * kib / 9;
  check(tuning, {{9, 128 * kib / 9, doubling, halving}});
  tuning.small_bytes = 8 * kib;
  check(tuning, {{64, 8 * kib, doubling, halving}});
}

TEST_CASE("recursive doubling is for partial results that fit in a header, however short the elements are") {
  const passing::Tuning tuning;
  CHECK(algorithm_of({9, 2048, DType::bf16, DType::f32}, tuning) == doubling);
  CHECK(algorithm_of({9, 2049, DType::bf16, DType::f32}, tuning) == halving);
  CHECK(algorithm_of({8, 4096, DType::bf16, DType::f32}, tuning) == exchange);
  CHECK(algorithm_of({8, 4097, DType::bf16, DType::f32}, tuning) == halving);
  CHECK(algorithm_of({64, 1024, DType::u8, DType::i64}, tuning) == doubling);
  CHECK(algorithm_of({64, 1025, DType::u8, DType::i64}, tuning) == halving);
}

TEST_CASE("direct exchange and direct reduce-scatter reduce every type and operation in rank order, to the bit") {
  struct Length {
    int ranks;
    std::size_t count;
  };
  passing::Tuning tuning = fine;
  tuning.direct_reduce_scatter = true;
  support::Combinations(
      std::array{Length{2, 7}, Length{3, 7}, Length{8, 7}, Length{2, 1000}, Length{3, 1000}, Length{7, 1000}},
      support::all_dtypes, support::all_ops)
      .for_each([&](const Length& length, DType dtype, ReduceOp op) {
        CAPTURE(length.ranks);
        CAPTURE(length.count);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const std::vector<Bytes> given = inputs(length.ranks, dtype, length.count);
        const Bytes expected = support::scalar_reduction(dtype, op, given);
        for (const Bytes& output : outputs(operation(OperationKind::all_reduce, length.count, dtype, op), tuning, given,
                                           expected.size(), false)) {
          CHECK(output == expected);
        }
      });
}

/// Block b of `count` elements in `size` blocks is reduced from the rank behind b on round to b, one after the other.
Bytes ring_reduction(DType dtype, ReduceOp op, const std::vector<Bytes>& given, Accumulate accumulate) {
  const std::size_t size = given.size();
  const std::size_t width = size_bytes(dtype);
  const std::size_t count = given[0].size() / width;
  const std::size_t block = (count + size - 1) / size;
  Bytes result(count * width);
  for (std::size_t b = 0; b < size; ++b) {
    const auto begin = static_cast<std::ptrdiff_t>(std::min(count, b * block) * width);
    const auto end = static_cast<std::ptrdiff_t>(std::min(count, (b + 1) * block) * width);
    std::vector<Bytes> parts;
    for (std::size_t step = 1; step <= size; ++step) {
      const Bytes& all = given[(b + step) % size];
      parts.emplace_back(all.begin() + begin, all.begin() + end);
    }
    const Bytes reduced = support::scalar_chain(dtype, op, parts, accumulate);
    std::copy(reduced.begin(), reduced.end(), result.begin() + begin);
  }
  return result;
}

TEST_CASE("a ring reduces every type and operation in its own order, the same on every rank") {
  support::Combinations(std::array{Accumulate::element, Accumulate::f32}, std::array{2, 3, 4, 8}, support::all_dtypes,
                        support::all_ops)
      .for_each([&](Accumulate accumulate, int size, DType dtype, ReduceOp op) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(size);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const std::size_t count = 1003;
        const std::vector<Bytes> given = inputs(size, dtype, count);
        const Bytes expected = ring_reduction(dtype, op, given, accumulate);
        for (const Bytes& output : memory_ranks::outputs(
                 passing::ring_all_reduce<MemoryEndpoint>, operation(OperationKind::all_reduce, count, dtype, op),
                 support::test_channel(fine, given.size(), accumulate), given, expected.size(), false)) {
          CHECK(output == expected);
        }
      });
}

TEST_CASE("an average of values whose sum overflows is right on 9 and 10 ranks, whatever the type and the length") {
  const std::array<Make, 2> makes{passing::collective<MemoryEndpoint>, passing::ring_all_reduce<MemoryEndpoint>};
  support::Combinations(std::array{Accumulate::element, Accumulate::f32}, std::array{9, 10}, support::all_dtypes,
                        std::array{std::size_t{1}, std::size_t{7}, std::size_t{2003}})
      .for_each([&](Accumulate accumulate, int size, DType dtype, std::size_t count) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(size);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(count);
        const std::vector<Bytes> given(static_cast<std::size_t>(size), support::large_values(dtype, count));
        const Operation average = operation(OperationKind::all_reduce, count, dtype, ReduceOp::average);
        const passing::ChannelInfo channel = support::test_channel(fine, given.size(), accumulate);
        for (const Make& make : makes) {
          for (const Bytes& output : memory_ranks::outputs(make, average, channel, given, given[0].size(), true)) {
            const bool is_half = dtype == DType::f16 || dtype == DType::bf16;
            CHECK(support::is_large_value(dtype, output, is_half && accumulate == Accumulate::f32 ? 0 : 2 * size));
          }
        }
      });
}

/// Integers: every order gives the same.
TEST_CASE(
    "all_reduce is right for any length and number of ranks, by each algorithm that is selected, in place and not") {
  for (const bool one_host : {false, true}) {
    for (const int direct_exchange_ranks : {0, 8}) {
      passing::Tuning tuning = fine;
      tuning.direct_reduce_scatter = one_host;
      tuning.direct_exchange_ranks = direct_exchange_ranks;
      support::Combinations(sizes, counts, std::array{false, true})
          .for_each([&](int size, std::size_t count, bool in_place) {
            CAPTURE(size);
            CAPTURE(count);
            const std::vector<Bytes> given = inputs(size, DType::i32, count);
            const Bytes expected = support::scalar_reduction(DType::i32, ReduceOp::sum, given);
            for (const Bytes& output : outputs(operation(OperationKind::all_reduce, count, DType::i32), tuning, given,
                                               expected.size(), in_place)) {
              CHECK(output == expected);
            }
          });
    }
  }
}

TEST_CASE("an average of integers by recursive doubling divides once, at the end") {
  passing::Tuning tuning = fine;
  tuning.direct_exchange_ranks = 0;
  for (const int size : {2, 3, 5, 6, 7, 8}) {
    std::vector<Bytes> given;
    for (int rank = 0; rank < size; ++rank) {
      const std::int64_t value = 10 * rank + 3;
      const auto* const bytes = reinterpret_cast<const std::byte*>(&value);
      given.emplace_back(bytes, bytes + sizeof(value));
    }
    const Bytes expected = support::scalar_reduction(DType::i64, ReduceOp::average, given);
    for (const Bytes& output : outputs(operation(OperationKind::all_reduce, 1, DType::i64, ReduceOp::average), tuning,
                                       given, expected.size(), false)) {
      CHECK(output == expected);
    }
  }
}

TEST_CASE("reduce_scatter gives each rank its block, all_gather puts them together") {
  for (const bool one_host : {false, true}) {
    passing::Tuning tuning = fine;
    tuning.direct_reduce_scatter = one_host;
    for (const int size : sizes) {
      const auto ranks = static_cast<std::size_t>(size);
      for (const std::size_t count : counts) {
        CAPTURE(size);
        CAPTURE(count);
        const std::vector<Bytes> given = inputs(size, DType::i32, count * ranks);
        const Bytes reduced = support::scalar_reduction(DType::i32, ReduceOp::sum, given);
        const std::vector<Bytes> blocks =
            outputs(operation(OperationKind::reduce_scatter, count, DType::i32), tuning, given, count * 4, false);
        for (std::size_t rank = 0; rank < ranks; ++rank) {
          const auto begin = reduced.begin() + static_cast<std::ptrdiff_t>(rank * count * 4);
          CHECK(blocks[rank] == Bytes(begin, begin + static_cast<std::ptrdiff_t>(count * 4)));
        }
        for (const Bytes& output : outputs(operation(OperationKind::all_gather, count, DType::i32), tuning, blocks,
                                           count * ranks * 4, false)) {
          CHECK(output == reduced);
        }
      }
    }
  }
}

TEST_CASE("broadcast reaches every rank from every root") {
  for (const int size : sizes) {
    for (int root = 0; root < size; ++root) {
      for (const std::size_t count : counts) {
        CAPTURE(size);
        CAPTURE(root);
        CAPTURE(count);
        const std::vector<Bytes> given = inputs(size, DType::f32, count);
        Operation what = operation(OperationKind::broadcast, count);
        what.root = root;
        for (const Bytes& output : outputs(what, fine, given, count * 4, true))
          CHECK(output == given[static_cast<std::size_t>(root)]);
      }
    }
  }
}

TEST_CASE("no rank leaves a barrier before the last has come") {
  for (const int size : sizes) {
    const auto network = std::make_shared<MemoryNetwork>();
    std::atomic<int> came{0};
    const passing::ChannelInfo where = support::test_channel(fine, static_cast<std::size_t>(size));
    run_thread_ranks(size, [&](RankThread& thread) {
      passing::Scratch scratch;
      MemoryEndpoint endpoint(network, thread.rank(), size);
      Context context{endpoint, scratch, where, operation(OperationKind::barrier, 0)};
      const Buffers none;
      came.fetch_add(1);
      run(passing::collective(context, none));
      CHECK(came.load() == size);
    });
  }
}

TEST_CASE("messages go round a ring of ranks that all send and receive at once") {
  for (const int size : {2, 3, 4}) {
    for (const std::size_t count : {std::size_t{0}, std::size_t{16}, std::size_t{17}, std::size_t{999}}) {
      const auto network = std::make_shared<MemoryNetwork>();
      const std::vector<Bytes> given = inputs(size, DType::f32, count);
      const passing::ChannelInfo where = support::test_channel(fine, static_cast<std::size_t>(size));
      run_thread_ranks(size, [&](RankThread& thread) {
        passing::Scratch scratch;
        MemoryEndpoint endpoint(network, thread.rank(), size);
        Operation what = operation(OperationKind::send_recv, count);
        what.sequence = 0;
        Context context{endpoint, scratch, where, what};
        const int previous = context.before(1);
        Bytes output(count * 4);
        const passing::PointToPoint work{given[static_cast<std::size_t>(thread.rank())], output, context.after(1),
                                         previous, what};
        run(passing::point_to_point(context, work));
        CHECK(output == given[static_cast<std::size_t>(previous)]);
      });
    }
  }
}

TEST_CASE("a message of another length or type than is received fails with a sentence that names both") {
  Operation sent = operation(OperationKind::send, 100);
  sent.sequence = 0;
  struct Received {
    std::size_t count;
    DType dtype;
    const char* text;
  };
  for (const Received& received : {Received{100, DType::i32, "100 i32"}, Received{99, DType::f32, "99 f32"}}) {
    CAPTURE(received.text);
    const auto network = std::make_shared<MemoryNetwork>();
    const passing::ChannelInfo where = support::test_channel(fine, 2);
    Operation expected = operation(OperationKind::recv, received.count, received.dtype);
    expected.sequence = 0;
    std::string sentence;
    run_thread_ranks(2, [&](RankThread& thread) {
      passing::Scratch scratch;
      MemoryEndpoint endpoint(network, thread.rank(), 2);
      const Operation& what = thread.rank() == 0 ? sent : expected;
      Context context{endpoint, scratch, where, what};
      Bytes memory(what.count * 4);
      if (thread.rank() == 0) {
        run(passing::point_to_point(context, passing::PointToPoint{memory, {}, 1, -1, what}));
        return;
      }
      try {
        run(passing::point_to_point(context, passing::PointToPoint{{}, memory, -1, 0, what}));
      } catch (const dtrain::Error& error) {
        CHECK(error.code() == make_error_code(dtrain::Errc::disagreement));
        sentence = error.what();
      }
    });
    CHECK_CONTAINS(sentence, std::string("rank 0 sends 100 f32 and rank 1 receives ") + received.text);
  }
}

std::string disagreement(const Operation& first, const Operation& second) {
  return memory_ranks::disagreement(passing::collective<MemoryEndpoint>, support::test_channel(fine, 2), first, second);
}

TEST_CASE("ranks that call different operations fail with a sentence that names both") {
  const Operation small = operation(OperationKind::all_reduce, 8);
  const Operation large = operation(OperationKind::all_reduce, 4000);
  Operation larger = operation(OperationKind::all_reduce, 4001);
  CHECK_CONTAINS(disagreement(large, larger), "all_reduce (sum) of 4001 f32");
  CHECK_CONTAINS(disagreement(small, large), "all_reduce (sum) of 4000 f32");
  CHECK_CONTAINS(disagreement(small, operation(OperationKind::barrier, 0)), "called barrier");
  CHECK_CONTAINS(disagreement(large, operation(OperationKind::all_reduce, 4000, DType::f32, ReduceOp::max)),
                 "all_reduce (max)");
  larger.sequence = 2;
  CHECK_CONTAINS(disagreement(larger, operation(OperationKind::all_reduce, 4001)), "operation 2");
}

TEST_CASE("ranks that broadcast from different roots fail with a sentence that names both, whatever the length") {
  for (const std::size_t count : {std::size_t{8}, std::size_t{4000}}) {
    Operation mine = operation(OperationKind::broadcast, count);
    Operation other = mine;
    other.root = 1;
    for (const std::string& sentence : {disagreement(mine, other), disagreement(other, mine)})
      CHECK_CONTAINS(sentence, "from rank 0", "from rank 1");
  }
}

}  // namespace
