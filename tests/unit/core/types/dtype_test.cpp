#include "dtrain/core/types/dtype.hpp"

#include "unit/core/prelude.hpp"

namespace {

constexpr DType all_dtypes[] = {DType::f64, DType::f32,    DType::f16,    DType::bf16, DType::i64, DType::i32,
                                DType::u8,  DType::f8e4m3, DType::f8e5m2, DType::u32,  DType::u64};

TEST_CASE("a C++ type's DType has the C++ type's size") {
  CHECK(dtrain::size_bytes(dtrain::dtype_of<double>::value) == sizeof(double));
  CHECK(dtrain::size_bytes(dtrain::dtype_of<float>::value) == sizeof(float));
  CHECK(dtrain::size_bytes(dtrain::dtype_of<std::int64_t>::value) == sizeof(std::int64_t));
  CHECK(dtrain::size_bytes(dtrain::dtype_of<std::int32_t>::value) == sizeof(std::int32_t));
  CHECK(dtrain::size_bytes(dtrain::dtype_of<std::uint8_t>::value) == sizeof(std::uint8_t));
  CHECK(dtrain::dtype_of<std::uint32_t>::value == DType::u32);
  CHECK(dtrain::dtype_of<unsigned long long>::value == DType::u64);
  CHECK(dtrain::size_bytes(DType::u32) == 4);
  CHECK(dtrain::size_bytes(DType::u64) == 8);
  CHECK(dtrain::size_bytes(DType::f16) == 2);
  CHECK(dtrain::size_bytes(DType::bf16) == 2);
  CHECK(dtrain::size_bytes(DType::f8e4m3) == 1);
  CHECK(dtrain::size_bytes(DType::f8e5m2) == 1);
}

TEST_CASE("every DType has a size and a name of its own") {
  std::set<std::string> names;
  for (const DType dtype : all_dtypes) {
    CHECK(dtrain::size_bytes(dtype) > 0);
    names.insert(dtrain::name(dtype));
  }
  CHECK(names.size() == std::size(all_dtypes));
  CHECK(names.count("unknown dtype") == 0);
}

TEST_CASE("the numbers of the DTypes, which files have, stay what they are") {
  for (std::size_t i = 0; i < std::size(all_dtypes); ++i)
    CHECK(static_cast<std::size_t>(all_dtypes[i]) == i + 1);
}

TEST_CASE("a number that is no DType, as it could come from outside, has no size") {
  CHECK(dtrain::size_bytes(static_cast<DType>(200)) == 0);
  CHECK(std::string(dtrain::name(static_cast<DType>(200))) == "unknown dtype");
}

TEST_CASE("only types that dtrain knows are elements") {
  static_assert(dtrain::Element<float>);
  static_assert(dtrain::Element<std::uint8_t>);
  static_assert(dtrain::Element<unsigned char>);
  static_assert(dtrain::Element<long>);
  static_assert(dtrain::Element<long long>);
  static_assert(dtrain::Element<std::size_t>);
  static_assert(dtrain::Element<unsigned long> && dtrain::Element<unsigned long long>);
  CHECK(dtrain::size_bytes(dtrain::dtype_of<long>::value) == sizeof(long));
  CHECK(dtrain::size_bytes(dtrain::dtype_of<long long>::value) == sizeof(long long));
  static_assert(!dtrain::Element<std::int8_t>);  // its average, minimum and maximum are not those of u8
  static_assert(!dtrain::Element<bool>);
  static_assert(!dtrain::Element<const float>);
  static_assert(!dtrain::Element<std::uint16_t>);
}

}  // namespace
