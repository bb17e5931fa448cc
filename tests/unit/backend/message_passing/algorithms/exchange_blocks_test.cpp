#include "dtrain/backend/message_passing/algorithms/exchange_blocks.hpp"
#include "unit/backend/message_passing/algorithms/memory_ranks.hpp"

namespace exchange_blocks_test {

using backend::BlockExchange;
using memory_ranks::MemoryEndpoint;
using memory_ranks::MemoryNetwork;
using Bytes = ByteVector;
using List = std::vector<std::size_t>;

/// Counts what a rank sends.
class CountedEndpoint : public MemoryEndpoint {
 public:
  using MemoryEndpoint::MemoryEndpoint;

  MessageHandle send(std::span<const std::byte> input, int peer, passing::TagClass tag_class) {
    messages += 1;
    bytes += input.size();
    return MemoryEndpoint::send(input, peer, tag_class);
  }

  std::size_t messages = 0;
  std::size_t bytes = 0;
};

/// Pieces of 128 bytes, messages of 500, and 64 in a header.
passing::ChannelInfo channel_info(int size) {
  return support::test_channel({.small_bytes = 64, .chunk_bytes = 128, .point_to_point_chunk_bytes = 500},
                               static_cast<std::size_t>(size));
}

struct Sent {
  std::size_t messages;
  std::size_t bytes;
};

/// Runs an operation on one rank. @throws what it throws @returns what it sent
Sent run(const std::shared_ptr<MemoryNetwork>& network, int rank, int size, const BlockExchange& blocks, DType dtype,
         ReduceOp op, const Bytes& input, Bytes& output) {
  passing::Scratch scratch;
  CountedEndpoint endpoint(network, rank, size);  // after the memory of its messages
  const passing::ChannelInfo channel = channel_info(size);
  backend::Operation operation = blocks.describe(dtype, op);
  operation.sequence = 1;
  passing::OperationContext<CountedEndpoint> context{endpoint, scratch, channel, operation};
  const passing::Buffers buffers{input.data(), output.data(), &blocks};
  memory_ranks::run(passing::collective(context, buffers));
  return {endpoint.messages, endpoint.bytes};
}

dtrain::ConstBufferView view(const Bytes& bytes, DType dtype) {
  return {bytes.data(), bytes.size() / dtrain::size_bytes(dtype), dtype};
}

Bytes joined(const std::vector<Bytes>& parts) {
  Bytes all;
  for (const Bytes& part : parts)
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST_CASE("blocks of any lengths arrive, and nothing is sent twice, with 1 to 8 ranks and every element size") {
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const DType dtype : {DType::u8, DType::f16, DType::f32, DType::f64}) {
      const std::size_t element = dtrain::size_bytes(dtype);
      const auto n = static_cast<std::size_t>(size);
      // Rank s gives 40 (s + 2 r) modulo 7 elements to rank r: none, some in a header, some in several messages.
      const auto count = [](std::size_t from, std::size_t to) { return 40 * ((from + 2 * to) % 7); };
      const auto block = [&](std::size_t from, std::size_t to) {
        return support::awkward_bytes(dtype, count(from, to), 100 * from + to);
      };
      const auto network = std::make_shared<MemoryNetwork>();
      run_thread_ranks(size, [&](RankThread& thread) {
        const auto self = static_cast<std::size_t>(thread.rank());
        List sent(n);
        List received(n);
        std::vector<Bytes> given(n);
        std::vector<Bytes> expected(n);
        for (std::size_t peer = 0; peer < n; ++peer) {
          sent[peer] = count(self, peer);
          received[peer] = count(peer, self);
          given[peer] = block(self, peer);
          expected[peer] = block(peer, self);
        }
        const Bytes input = joined(given);
        Bytes output(joined(expected).size());
        const BlockExchange blocks = backend::blocks_of_all_to_all(view(input, dtype), sent, view(output, dtype),
                                                                   received, {thread.rank(), size});
        const Sent made = run(network, thread.rank(), size, blocks, dtype, ReduceOp::sum, input, output);
        CHECK(output == joined(expected));
        CHECK(made.bytes == input.size() - sent[self] * element + (n - 1) * sizeof(backend::Operation));
      });
    }
  }
}

TEST_CASE("a kind that is no collective without blocks is refused, and not run as a barrier") {
  passing::Scratch scratch;
  CountedEndpoint endpoint(std::make_shared<MemoryNetwork>(), 0, 2);
  const passing::ChannelInfo channel = channel_info(2);
  for (const auto kind : {backend::OperationKind::none, backend::OperationKind::send, backend::OperationKind::gather}) {
    passing::OperationContext<CountedEndpoint> context{endpoint, scratch, channel, {.kind = kind}};
    const passing::Buffers none{};
    passing::Routine routine = passing::collective(context, none);
    routine.resume();
    REQUIRE(routine.done());
    CHECK_THROWS_WITH_AS(routine.check(), doctest::Contains("is no collective of buffers without blocks"),
                         dtrain::Error);
    CHECK(endpoint.messages == 0);
  }
}

TEST_CASE("a gather sends each block to the root alone, whichever it is") {
  const int size = 5;
  for (int root = 0; root < size; ++root) {
    const auto network = std::make_shared<MemoryNetwork>();
    run_thread_ranks(size, [&](RankThread& thread) {
      const bool is_root = thread.rank() == root;
      const List counts{300, 0, 7, 1, 16};
      const Bytes input(4 * counts[static_cast<std::size_t>(thread.rank())], static_cast<std::byte>(thread.rank()));
      Bytes output(is_root ? 4 * 324 : 0);
      const BlockExchange blocks = backend::blocks_of_gather(view(input, DType::f32), view(output, DType::f32), counts,
                                                             root, {thread.rank(), size});
      const Sent made = run(network, thread.rank(), size, blocks, DType::f32, ReduceOp::sum, input, output);
      const std::size_t barrier = 3 * sizeof(backend::Operation);
      CHECK(made.bytes == barrier + (is_root ? 0 : sizeof(backend::Operation) + input.size()));
      if (is_root) {
        Bytes expected;
        for (std::size_t rank = 0; rank < counts.size(); ++rank)
          expected.insert(expected.end(), 4 * counts[rank], static_cast<std::byte>(rank));
        CHECK(output == expected);
      }
    });
  }
}

TEST_CASE("blocks are reduced in rank order, to the bit, by every type and operation, in one piece or in many") {
  support::Combinations(std::array{1, 2, 3, 8}, support::all_dtypes, support::all_ops)
      .for_each([&](int size, DType dtype, ReduceOp op) {
        CAPTURE(size);
        CAPTURE(dtrain::name(dtype));
        CAPTURE(dtrain::name(op));
        const std::size_t element = dtrain::size_bytes(dtype);
        List counts{5, 0, 301, 32, 33, 1, 0, 64};
        counts.resize(static_cast<std::size_t>(size));
        const std::size_t all = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
        std::vector<Bytes> given;
        for (int rank = 0; rank < size; ++rank)
          given.push_back(support::awkward_bytes(dtype, all, static_cast<std::uint64_t>(rank)));
        const Bytes expected = size == 1 ? given[0] : support::scalar_reduction(dtype, op, given);
        const auto network = std::make_shared<MemoryNetwork>();
        run_thread_ranks(size, [&](RankThread& thread) {
          const auto self = static_cast<std::size_t>(thread.rank());
          const Bytes& input = given[self];
          Bytes output(counts[self] * element);
          const BlockExchange blocks = backend::blocks_of_reduce_scatter_v(view(input, dtype), view(output, dtype),
                                                                           counts, {thread.rank(), size});
          run(network, thread.rank(), size, blocks, dtype, op, input, output);
          const std::size_t begin = std::accumulate(counts.begin(), counts.begin() + thread.rank(), std::size_t{0});
          const auto from = expected.begin() + static_cast<std::ptrdiff_t>(begin * element);
          CHECK(output == Bytes(from, from + static_cast<std::ptrdiff_t>(output.size())));
        });
      });
}

/// The first sentence of a rank that finds that `make(rank)` of the ranks disagree.
template <class Make>
std::string disagreement(int size, Make make) {
  return memory_ranks::disagreement(size, [&](const std::shared_ptr<MemoryNetwork>& network, int rank) {
    const Bytes input(1'000'000);
    Bytes output(1'000'000);
    run(network, rank, size, make(rank), DType::f32, ReduceOp::sum, input, output);
  });
}

dtrain::ConstBufferView floats(std::size_t count) {
  static Bytes memory(2'000'000);
  return {memory.data(), count, DType::f32};
}

TEST_CASE("ranks whose blocks differ fail with a sentence that names both ranks and counts, whatever the lengths") {
  for (const std::size_t count : {std::size_t{2}, std::size_t{2000}}) {
    const std::string text = disagreement(2, [&](int rank) {
      const dtrain::ConstBufferView output{nullptr, 0, DType::f32};
      return rank == 0 ? backend::blocks_of_gather(floats(3), floats(3 + count), List{3, count}, 0, {0, 2})
                       : backend::blocks_of_gather(floats(count + 1), output, List{}, 0, {1, 2});
    });
    CAPTURE(text);
    CHECK(text == "in gather_v of f32 to rank 0, operation 1 of channel 'test', rank 1 sends " +
                      std::to_string(count + 1) + " f32 and rank 0 receives " + std::to_string(count) +
                      " f32; both give the same count and type");
    // A reduction in several pieces, of which the first are equal: the header has the whole count.
    const std::string reduced = disagreement(2, [&](int rank) {
      const List counts = rank == 0 ? List{32 * count, 32} : List{32 * count + 32, 32};
      return backend::blocks_of_reduce_scatter_v(floats(counts[0] + 32), floats(counts[static_cast<std::size_t>(rank)]),
                                                 counts, {rank, 2});
    });
    CHECK_CONTAINS(reduced, std::to_string(32 * count + 32) + " f32 and rank 0 receives " + std::to_string(32 * count));
  }
}

TEST_CASE("ranks with different roots or kinds fail with a sentence that names both") {
  const dtrain::ConstBufferView none{nullptr, 0, DType::f32};
  const std::string roots = disagreement(3, [&](int rank) {
    const int root = rank == 1 ? 1 : 0;
    return backend::blocks_of_gather(floats(100), rank == root ? floats(300) : none, {}, root, {rank, 3});
  });
  CHECK_CONTAINS(roots, "gather of 100 f32 a rank to rank 0", "gather of 100 f32 a rank to rank 1");
  const std::string kinds = disagreement(2, [&](int rank) {
    return rank == 0 ? backend::blocks_of_all_to_all(floats(4), {}, floats(4), {}, {rank, 2})
                     : backend::blocks_of_scatter(none, {}, floats(2), 0, {rank, 2});
  });
  CHECK_CONTAINS(kinds, "all_to_all of 2 f32 a rank", "scatter of 2 f32 a rank from rank 0");
  const std::string lengths = disagreement(2, [&](int rank) {
    const std::size_t count = rank == 0 ? 200 : 202;
    return backend::blocks_of_all_to_all(floats(count), {}, floats(count), {}, {rank, 2});
  });
  CHECK_CONTAINS(lengths, "all_to_all of 101 f32 a rank");
}

}  // namespace exchange_blocks_test
