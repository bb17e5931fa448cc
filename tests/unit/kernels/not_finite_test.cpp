#include "dtrain/kernels/not_finite.hpp"

#include <cstring>
#include <limits>
#include <vector>

#include "unit/kernels/prelude.hpp"

namespace {

using dtrain::DType;

/// Bits of each float type: largest finite, infinity, the NaN with the least bits; the sign is set by the test.
struct FloatType {
  DType dtype;
  std::uint64_t largest;
  std::uint64_t infinity;
};

constexpr FloatType types[] = {{DType::f64, 0x7fefffffffffffffU, 0x7ff0000000000000U},
                               {DType::f32, 0x7f7fffffU, 0x7f800000U},
                               {DType::f16, 0x7bffU, 0x7c00U},
                               {DType::bf16, 0x7f7fU, 0x7f80U}};

}  // namespace

TEST_CASE("the first element that is infinite or NaN is found at every place, at any alignment") {
  for (const FloatType& type : types) {
    const std::size_t size = dtrain::size_bytes(type.dtype);
    CAPTURE(size);
    const std::uint64_t sign = std::uint64_t{1} << (8 * size - 1);
    for (const std::size_t count :
         {std::size_t{1}, std::size_t{7}, 4096 / size, 4096 / size + 1, 3 * 4096 / size + 5}) {
      for (const std::size_t offset : {std::size_t{0}, std::size_t{1}}) {
        std::vector<std::byte> memory(offset + count * size);
        std::byte* const from = memory.data() + offset;
        const auto write = [&](std::size_t i, std::uint64_t bits) { std::memcpy(from + i * size, &bits, size); };
        for (std::size_t i = 0; i < count; ++i)
          write(i, (i % 2 == 0 ? sign : 0) | (i % 3 == 0 ? type.largest : i));
        CHECK(dtrain::kernels::first_not_finite(type.dtype, from, count) == count);
        CHECK(dtrain::kernels::first_not_finite(type.dtype, from, 0) == 0);
        for (const std::size_t at : {std::size_t{0}, count / 2, count - 1}) {
          std::vector<std::byte> before(from + at * size, from + (at + 1) * size);
          for (const std::uint64_t bits : {type.infinity, sign | type.infinity, type.infinity + 1, sign | (sign - 1)}) {
            write(at, bits);
            CHECK(dtrain::kernels::first_not_finite(type.dtype, from, count) == at);
            CHECK(dtrain::kernels::is_nan(type.dtype, from + at * size) == ((bits & (sign - 1)) != type.infinity));
          }
          std::memcpy(from + at * size, before.data(), size);
        }
      }
    }
  }
}

TEST_CASE("whole numbers are finite") {
  const std::vector<std::byte> ones(64, std::byte{0xff});
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::u32, DType::u64})
    CHECK(dtrain::kernels::first_not_finite(dtype, ones.data(), 8) == 8);
}
