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
                           std::size_t output_bytes, bool in_place, Accumulate accumulate = Accumulate::element) {
  return memory_ranks::outputs(passing::collective<MemoryEndpoint>, what,
                               support::test_channel(tuning, given.size(), accumulate), given, output_bytes, in_place);
}

TEST_CASE("direct exchange and all-to-all reduce every type and operation in rank order, to the bit") {
  passing::Tuning tuning = fine;
  tuning.direct_reduce_scatter = true;
  support::Combinations(std::array{2, 3, 8}, support::all_dtypes, support::all_ops,
                        std::array{std::size_t{7}, std::size_t{1000}})
      .for_each([&](int size, DType dtype, ReduceOp op, std::size_t count) {
        CAPTURE(size);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const std::vector<Bytes> given = inputs(size, dtype, count);
        const Bytes expected = support::scalar_reduction(dtype, op, given);
        for (const Bytes& output :
             outputs(operation(OperationKind::all_reduce, count, dtype, op), tuning, given, expected.size(), false)) {
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
        for (const Bytes& output : outputs(operation(OperationKind::all_reduce, count, dtype, op), fine, given,
                                           expected.size(), false, accumulate)) {
          CHECK(output == expected);
        }
      });
}

TEST_CASE("an average of values whose sum overflows is right on 9 and 10 ranks, whatever the type and the length") {
  support::Combinations(std::array{Accumulate::element, Accumulate::f32}, std::array{9, 10}, support::all_dtypes,
                        std::array{std::size_t{1}, std::size_t{7}, std::size_t{2003}})
      .for_each([&](Accumulate accumulate, int size, DType dtype, std::size_t count) {
        CAPTURE(dtrain::name(accumulate));
        CAPTURE(size);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(count);
        const std::vector<Bytes> given(static_cast<std::size_t>(size), support::large_values(dtype, count));
        const Operation average = operation(OperationKind::all_reduce, count, dtype, ReduceOp::average);
        for (const Bytes& output : outputs(average, fine, given, given[0].size(), true, accumulate)) {
          const bool is_half = dtype == DType::f16 || dtype == DType::bf16;
          CHECK(support::is_large_value(dtype, output, is_half && accumulate == Accumulate::f32 ? 0 : 2 * size));
        }
      });
}

/// Integers: every order gives the same.
TEST_CASE("all_reduce is right for any length and number of ranks, by every algorithm, in place and not") {
  for (const bool direct : {false, true}) {
    for (const int direct_exchange_ranks : {0, 8}) {
      passing::Tuning tuning = fine;
      tuning.direct_reduce_scatter = direct;
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
  for (const bool direct : {false, true}) {
    passing::Tuning tuning = fine;
    tuning.direct_reduce_scatter = direct;
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
