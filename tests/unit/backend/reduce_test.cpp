#include "dtrain/backend/shared_memory/reduce.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "dtrain/core/buffer_view.hpp"
#include "support/reference_reduction.hpp"

namespace {

using dtrain::DType;
using dtrain::ReduceOp;
using dtrain::backend::shared_memory::kernels_for;
using dtrain::backend::shared_memory::Slice;
using dtrain::backend::shared_memory::slice_of;

constexpr ReduceOp all_operations[] = {ReduceOp::sum, ReduceOp::average, ReduceOp::min, ReduceOp::max,
                                       ReduceOp::product};

/// Reduces copies of the inputs that begin `shift` bytes after an aligned address, in place into every copy.
template <class T>
void check_reduction(ReduceOp op, int ranks, std::size_t count, std::size_t shift) {
  const auto inputs = support::awkward_inputs<T>(ranks, count, count + shift);
  const auto expected = support::reference_reduction(op, inputs);
  std::vector<std::vector<std::byte>> buffers;
  std::vector<const std::byte*> sources;
  std::vector<std::byte*> targets;
  for (const auto& input : inputs) {
    buffers.emplace_back(count * sizeof(T) + shift + 8, std::byte{0x5a});
    if (count != 0) {
      std::memcpy(buffers.back().data() + shift, input.data(), count * sizeof(T));
    }
  }
  for (auto& buffer : buffers) {
    sources.push_back(buffer.data() + shift);
    targets.push_back(buffer.data() + shift);
  }
  const auto kernels = kernels_for(dtrain::dtype_of<T>::value, op);
  REQUIRE((kernels.combine != nullptr));
  dtrain::backend::shared_memory::reduce(kernels, sizeof(T), sources, targets, count);
  bool right = true;
  for (const auto& buffer : buffers) {
    right = right && (count == 0 || std::memcmp(buffer.data() + shift, expected.data(), count * sizeof(T)) == 0);
    for (std::size_t i = 0; i < 8; ++i) {
      right = right && buffer[shift + count * sizeof(T) + i] == std::byte{0x5a};
    }
  }
  CHECK_MESSAGE(right, dtrain::name(op) << " of " << count << " on " << ranks << " ranks, shifted by " << shift);
}

TEST_CASE("reductions have the bits of a plain loop, for any length and alignment, and write nothing else") {
  for (const ReduceOp op : all_operations) {
    for (std::size_t count = 0; count <= 40; ++count) {
      check_reduction<float>(op, 3, count, count % 7);
      check_reduction<double>(op, 3, count, count % 5);
    }
    for (const std::size_t count : {511U, 512U, 1023U, 1024U, 1025U, 5000U}) {
      check_reduction<float>(op, 2, count, 1);
      check_reduction<double>(op, 2, count, 0);
    }
  }
}

TEST_CASE("reductions are right for 1 to 64 ranks") {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    check_reduction<float>(ReduceOp::average, ranks, 1300, 0);
    check_reduction<double>(ReduceOp::sum, ranks, 70, 4);
  }
}

TEST_CASE("a NaN of any rank makes minimum and maximum NaN") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max}) {
    for (int position = 0; position < 3; ++position) {
      float values[3] = {1, 2, 3};
      values[position] = nan;
      const std::byte* sources[3];
      for (int i = 0; i < 3; ++i) {
        sources[i] = reinterpret_cast<const std::byte*>(&values[i]);
      }
      float result = 0;
      std::byte* target = reinterpret_cast<std::byte*>(&result);
      dtrain::backend::shared_memory::reduce(kernels_for(DType::f32, op), 4, sources, std::span(&target, 1), 1);
      CHECK(std::isnan(result));
    }
  }
}

TEST_CASE("there is no kernel for other element types") {
  for (const DType dtype : {DType::f16, DType::bf16, DType::i64, DType::i32, DType::u8}) {
    CHECK((kernels_for(dtype, ReduceOp::sum).combine == nullptr));
  }
}

TEST_CASE("slices are whole cache lines and cover every element once") {
  for (int ranks = 1; ranks <= 64; ++ranks) {
    for (const std::size_t count : {0U, 1U, 63U, 64U, 65U, 1000U, 4096U, 100'001U}) {
      std::size_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const Slice slice = slice_of(count, ranks, rank);
        CHECK(slice.begin == next);
        CHECK((slice.begin % 64 == 0 || slice.begin == count));
        CHECK(slice.end >= slice.begin);
        next = slice.end;
      }
      CHECK(next == count);
    }
  }
}

}  // namespace
