#include <doctest/doctest.h>

#include "dtrain/backend/gloo.hpp"
#include "support/skip.hpp"

#if !DTRAIN_WITH_GLOO

TEST_CASE("collectives over Gloo") {
  dtrain_test::skip("no Gloo was found when this program was built (libgloo-dev)");
}

#else

#include <array>
#include <chrono>
#include <cstddef>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "dtrain/kernels/reduction.hpp"
#include "dtrain/net/interfaces.hpp"
#include "support/exact_values.hpp"
#include "support/gloo_rank.hpp"

namespace {

using dtrain::BufferView;
using dtrain::Deadline;
using dtrain::DType;
using dtrain::ReduceOp;
using support::exact_values;
using support::FakeJob;
using support::GlooRank;
using support::RankThread;
using support::run_thread_ranks;
using namespace std::chrono_literals;

constexpr DType dtypes[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8};
constexpr ReduceOp operations[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max, ReduceOp::product};

/// What the baseline kernel makes of whole inputs, in one piece.
std::vector<std::byte> expected_bits(DType dtype, ReduceOp op, std::size_t count, int ranks) {
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> sources;
  for (int rank = 0; rank < ranks; ++rank) {
    inputs.push_back(exact_values(dtype, count, rank));
    sources.push_back(inputs.back().data());
  }
  std::vector<std::byte> result(inputs[0].size());
  std::byte* const target = result.data();
  dtrain::kernels::Reduction::of(dtype, op, dtrain::kernels::Isa::baseline)(sources, std::span(&target, 1), count);
  return result;
}

std::vector<std::int32_t> numbers(std::size_t count, int from) {
  std::vector<std::int32_t> made(count);
  std::iota(made.begin(), made.end(), from);
  return made;
}

}  // namespace

TEST_CASE("every element type and operation is reduced, among 1, 2, 3, 4 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const auto job = std::make_shared<FakeJob>(ranks);
    run_thread_ranks(ranks, [&](RankThread& thread) {
      thread.doing("opening");
      GlooRank self(job, thread.rank(), ranks);
      thread.doing("reducing");
      for (const std::size_t count : {std::size_t{1}, std::size_t{99}, std::size_t{30'001}}) {
        for (const DType dtype : dtypes) {
          for (const ReduceOp op : operations) {
            std::vector<std::byte> memory = exact_values(dtype, count, thread.rank());
            const BufferView view{memory.data(), count, dtype, {}};
            self.communicator.all_reduce(view, view, op, self.stream.ref());
            const bool right = self.wait() && memory == expected_bits(dtype, op, count, ranks);
            CHECK_MESSAGE(right, dtrain::name(op) << " of " << count << " " << dtrain::name(dtype));
          }
        }
      }
    });
  }
}

TEST_CASE("every other collective, and messages, among 1, 2, 3, 4 and 8 ranks") {
  for (const int ranks : {1, 2, 3, 4, 8}) {
    const auto job = std::make_shared<FakeJob>(ranks);
    run_thread_ranks(ranks, [&](RankThread& thread) {
      GlooRank self(job, thread.rank(), ranks);
      const auto stream = self.stream.ref();
      const int rank = thread.rank();
      for (const std::size_t count : {std::size_t{0}, std::size_t{7}, std::size_t{100'003}}) {
        const std::size_t all = count * static_cast<std::size_t>(ranks);
        std::vector<std::int32_t> own = numbers(count, rank);
        std::vector<std::int32_t> whole(all);
        std::vector<std::int32_t> part(count);
        std::vector<std::int32_t> from_root = rank == ranks - 1 ? numbers(count, 5) : part;
        std::vector<std::int32_t> from_left(count);
        thread.doing("gathering, scattering, broadcasting");
        self.communicator.all_gather(dtrain::buffer_view(std::span(own)), dtrain::buffer_view(std::span(whole)),
                                     stream);
        self.communicator.reduce_scatter(dtrain::buffer_view(std::span(whole)), dtrain::buffer_view(std::span(part)),
                                         ReduceOp::sum, stream);
        self.communicator.broadcast(dtrain::buffer_view(std::span(from_root)), ranks - 1, stream);
        self.communicator.barrier(stream);
        self.communicator.send_recv(dtrain::buffer_view(std::span(own)), (rank + 1) % ranks,
                                    dtrain::buffer_view(std::span(from_left)), (rank + ranks - 1) % ranks, stream);
        CHECK(self.wait());
        std::vector<std::int32_t> gathered;
        for (int each = 0; each < ranks; ++each) {
          const std::vector<std::int32_t> block = numbers(count, each);
          gathered.insert(gathered.end(), block.begin(), block.end());
        }
        CHECK(whole == gathered);
        std::vector<std::int32_t> scattered = numbers(count, rank);
        for (std::int32_t& value : scattered)
          value *= ranks;
        CHECK(part == scattered);
        CHECK(from_root == numbers(count, 5));
        CHECK(from_left == numbers(count, (rank + ranks - 1) % ranks));
      }
    });
  }
}

TEST_CASE("floats of 8 bits are carried, and a reduction of them is refused at the call") {
  const auto job = std::make_shared<FakeJob>(2);
  run_thread_ranks(2, [&](RankThread& thread) {
    GlooRank self(job, thread.rank(), 2);
    std::vector<std::byte> memory(256, static_cast<std::byte>(thread.rank() + 0x7e));
    const BufferView view{memory.data(), memory.size(), DType::f8e4m3, {}};
    const BufferView half{memory.data(), memory.size() / 2, DType::f8e4m3, {}};
    CHECK_THROWS_WITH_AS(self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref()),
                         doctest::Contains("all_reduce of 256 f8e4m3: floats of 8 bits can be moved, and not reduced"),
                         dtrain::Error);
    CHECK_THROWS_AS(
        self.communicator.reduce_scatter(
            view, {memory.data() + half.bytes() * static_cast<std::size_t>(thread.rank()), 128, DType::f8e4m3, {}},
            ReduceOp::sum, self.stream.ref()),
        dtrain::Error);
    self.communicator.broadcast(view, 1, self.stream.ref());
    CHECK(self.wait());
    CHECK(memory == std::vector<std::byte>(256, std::byte{0x7f}));
  });
}

TEST_CASE("splits have channels of their own, which do not wait for their parent's") {
  const int ranks = 4;
  const auto job = std::make_shared<FakeJob>(ranks);
  run_thread_ranks(ranks, [&](RankThread& thread) {
    GlooRank self(job, thread.rank(), ranks);
    const int color = thread.rank() % 2;
    GlooRank part(self.latch, self.communicator.split_blocking(color, -thread.rank(), Deadline::after(10s)));
    CHECK(part.communicator.size() == 2);
    CHECK(part.communicator.rank() == 1 - thread.rank() / 2);
    std::vector<std::int32_t> whole{thread.rank()};
    std::vector<std::int32_t> half{thread.rank()};
    const BufferView of_whole = dtrain::buffer_view(std::span(whole));
    const BufferView of_half = dtrain::buffer_view(std::span(half));
    self.communicator.all_reduce(of_whole, of_whole, ReduceOp::sum, self.stream.ref());
    part.communicator.all_reduce(of_half, of_half, ReduceOp::sum, part.stream.ref());
    const bool part_first = thread.rank() < 2;  // the other ranks run them the other way round: neither waits
    if (part_first) {
      CHECK(part.wait());
      CHECK(self.wait());
    } else {
      std::thread other([&] { CHECK(self.wait()); });
      CHECK(part.wait());
      other.join();
    }
    CHECK(whole[0] == 6);
    CHECK(half[0] == (color == 0 ? 2 : 4));
  });
}

TEST_CASE("ranks whose addresses are of IPv6 reach each other, where this host has one") {
  bool has_one = false;
  for (const dtrain::net::InterfaceAddress& each : dtrain::net::interface_addresses()) {
    has_one = has_one || each.address.host() == "::1";
  }
  if (!has_one) {
    dtrain_test::skip("this host has no IPv6");
    return;
  }
  const auto job = std::make_shared<FakeJob>(3);
  run_thread_ranks(3, [&](RankThread& thread) {
    auto context = support::channel_context(job, thread.rank(), 3, "group", 10s);
    context.members.named_address = "::1";
    GlooRank self(job->latch(thread.rank()), dtrain::backend::Gloo::open_blocking(context, Deadline::after(10s)));
    std::vector<std::int32_t> values(100'000, thread.rank());
    const BufferView view = dtrain::buffer_view(std::span(values));
    self.communicator.all_reduce(view, view, ReduceOp::sum, self.stream.ref());
    CHECK(self.wait());
    CHECK(values == std::vector<std::int32_t>(100'000, 3));
  });
}

#endif
