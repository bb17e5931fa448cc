#include "dtrain/backend/check_arguments.hpp"

#include <doctest/doctest.h>

#include <array>
#include <utility>

namespace {

using dtrain::BufferView;
using dtrain::ConstBufferView;
using dtrain::DType;
using dtrain::Error;
namespace backend = dtrain::backend;

std::array<std::byte, 256> memory;

/// `count` f32 from the `at`-th on.
BufferView floats(std::size_t count, std::size_t at = 0) {
  return {memory.data() + 4 * at, count, DType::f32, {}};
}

BufferView of(DType dtype, std::size_t count) {
  return {memory.data() + 128, count, dtype, {}};
}

TEST_CASE("an all_reduce takes two alike buffers that are the same memory or disjoint") {
  CHECK_NOTHROW(backend::check_all_reduce(floats(4), floats(4)));
  CHECK_NOTHROW(backend::check_all_reduce(floats(4), floats(4, 4)));
  CHECK_NOTHROW(backend::check_all_reduce(BufferView{}, BufferView{}));
  CHECK_THROWS_WITH_AS(backend::check_all_reduce(floats(4), floats(3)),
                       "all_reduce of 4 f32 into 3 f32; both buffers have the same length and type", Error);
  CHECK_THROWS_WITH_AS(backend::check_all_reduce(floats(4), of(DType::i32, 4)), doctest::Contains("4 f32 into 4 i32"),
                       Error);
  CHECK_THROWS_WITH_AS(backend::check_all_reduce(floats(4), floats(4, 3)), doctest::Contains("overlap"), Error);
  const ConstBufferView nowhere{nullptr, 4, DType::f32};
  CHECK_THROWS_WITH_AS(backend::check_all_reduce(nowhere, floats(4)), "all_reduce of 4 f32 was given a null address",
                       Error);
}

TEST_CASE("a reduce_scatter's input has a block for each rank, of which the output may be the rank's own") {
  CHECK_NOTHROW(backend::check_reduce_scatter(floats(6), floats(2, 6), 0, 3));
  CHECK_NOTHROW(backend::check_reduce_scatter(floats(6), floats(2, 4), 2, 3));
  CHECK_THROWS_WITH_AS(backend::check_reduce_scatter(floats(6), floats(2, 4), 1, 3), doctest::Contains("overlap"),
                       Error);
  CHECK_THROWS_WITH_AS(backend::check_reduce_scatter(floats(7), floats(2, 8), 0, 3),
                       "reduce_scatter on 3 ranks with an input of 7 f32 and an output of 2 f32; the first has a block "
                       "like the second for each rank",
                       Error);
  CHECK_THROWS_AS(backend::check_reduce_scatter(floats(6), of(DType::i32, 2), 0, 3), Error);
  CHECK_NOTHROW(backend::check_reduce_scatter(BufferView{}, BufferView{}, 0, 3));
}

TEST_CASE("an all_gather's output has a block for each rank, of which the input may be the rank's own") {
  CHECK_NOTHROW(backend::check_all_gather(floats(2, 6), floats(6), 0, 3));
  CHECK_NOTHROW(backend::check_all_gather(floats(2, 2), floats(6), 1, 3));
  CHECK_THROWS_AS(backend::check_all_gather(floats(2, 3), floats(6), 1, 3), Error);
  CHECK_THROWS_WITH_AS(backend::check_all_gather(floats(2, 6), floats(4), 0, 3),
                       doctest::Contains("all_gather on 3 ranks with an output of 4 f32 and an input of 2 f32"), Error);
}

TEST_CASE("roots and peers are ranks of the channel, and a rank sends nothing to itself") {
  CHECK_NOTHROW(backend::check_broadcast(floats(1), 2, 3));
  CHECK_THROWS_WITH_AS(backend::check_broadcast(floats(1), 3, 3),
                       "broadcast from rank 3 of 3; ranks are counted from 0", Error);
  CHECK_THROWS_AS(backend::check_broadcast(floats(1), -1, 3), Error);
  CHECK_NOTHROW(backend::check_message("send", floats(1), 1, 0, 2));
  CHECK_THROWS_WITH_AS(backend::check_message("send", floats(1), 0, 0, 2),
                       "send between rank 0 and rank 0 of 2; a peer is another rank, counted from 0", Error);
  CHECK_THROWS_AS(backend::check_message("recv", floats(1), 2, 0, 2), Error);
  CHECK_THROWS_AS(backend::check_message("recv", floats(1), -1, 0, 2), Error);
}

TEST_CASE("a send_recv may be of a rank with itself, of other lengths each way, but not of overlapping memory") {
  CHECK_NOTHROW(backend::check_send_recv(floats(1), 0, floats(3, 1), 0, 1));
  CHECK_NOTHROW(backend::check_send_recv(floats(4), 1, of(DType::f64, 2), 2, 3));
  CHECK_THROWS_WITH_AS(backend::check_send_recv(floats(4), 3, floats(4, 4), 0, 3),
                       doctest::Contains("send_recv to rank 3 and from rank 0 of 3"), Error);
  CHECK_THROWS_AS(backend::check_send_recv(floats(4), 0, floats(4, 4), -1, 3), Error);
  CHECK_THROWS_WITH_AS(backend::check_send_recv(floats(4), 1, floats(4, 2), 1, 3), doctest::Contains("overlap"), Error);
}

TEST_CASE("memory of a device is refused by a backend of hosts, with those that take it") {
  BufferView device = floats(4);
  device.device = {dtrain::DeviceKind::cuda, 1};
  CHECK_NOTHROW(backend::check_host_memory("backend::Gloo", floats(4), floats(4)));
  for (const auto& [input, output] : {std::pair(device, floats(4)), std::pair(floats(4), device)}) {
    CHECK_THROWS_WITH_AS(backend::check_host_memory("backend::Gloo", input, output),
                         "backend::Gloo takes host memory, not memory of cuda:1; use backend::Nccl or backend::Staged "
                         "for it",
                         Error);
  }
}

}  // namespace
