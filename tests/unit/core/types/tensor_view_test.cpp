#include "dtrain/core/types/tensor_view.hpp"
#include "unit/core/prelude.hpp"

namespace {

constexpr std::int64_t huge = std::int64_t{1} << 60;

TEST_CASE("a shape's element count is the product of its extents") {
  CHECK(Shape{}.element_count() == 1);
  CHECK(Shape{784, 256}.element_count() == 784 * 256);
  CHECK(Shape{3, 0, 5}.element_count() == 0);
  CHECK(Shape{1, 1, 1, 1, 1, 1, 1, 8}.element_count() == 8);
}

TEST_CASE("shapes are equal when all their extents are") {
  CHECK(Shape{2, 3} == Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{3, 2});
  CHECK(Shape{6} != Shape{2, 3});
  CHECK(Shape{2, 3} != Shape{2, 3, 1});
}

TEST_CASE("a shape prints as its extents") {
  CHECK(to_string(Shape{}) == "[]");
  CHECK(to_string(Shape{7}) == "[7]");
  CHECK(to_string(Shape{784, 256}) == "[784, 256]");
}

TEST_CASE("a shape holds 2^60 elements, whose bytes can be counted, and not one extent more") {
  CHECK(dtrain::TensorView{nullptr, {huge}, dtrain::DType::f64}.bytes() == static_cast<std::size_t>(huge) * 8);
  CHECK(Shape{huge}.element_count() == static_cast<std::size_t>(huge));
  CHECK(Shape{huge / 2, 2}.element_count() == static_cast<std::size_t>(huge));
  CHECK_THROWS_AS((Shape{huge, 2}), dtrain::Error);
  CHECK_THROWS_AS((Shape{huge + 1}), dtrain::Error);
  CHECK_THROWS_AS((Shape{INT64_MAX, INT64_MAX}), dtrain::Error);
}

TEST_CASE("a shape refuses a negative extent and a ninth one, and says which") {
  CHECK_THROWS_WITH((Shape{4, -1}), "extent -1 of a shape is negative or makes it too large");
  CHECK_THROWS_WITH((Shape{1, 1, 1, 1, 1, 1, 1, 1, 1}), "a shape has 9 extents; at most 8 are possible");
}

TEST_CASE("a shape takes integers of any types, and refuses one that std::int64_t does not hold") {
  const std::vector<float> samples(5);
  enum { columns = 3 };
  CHECK(Shape{samples.size(), columns, 2U, short{4}} == Shape{5, 3, 2, 4});
  CHECK(Shape{std::integral_constant<int, 7>{}, std::integral_constant<std::size_t, 7>{}} == Shape{7, 7});
  CHECK_THROWS_WITH((Shape{0, SIZE_MAX}), "extent -1 of a shape is negative or makes it too large");
  CHECK_THROWS_WITH((Shape{std::size_t{INT64_MAX} + 1}),
                    "extent -9223372036854775808 of a shape is negative or makes it too large");
  CHECK_THROWS_WITH(Shape{short{-1}}, "extent -1 of a shape is negative or makes it too large");
}

template <class... N>
constexpr bool is_shape = requires(N... numbers) {
  Shape{numbers...};
};
template <class N>
struct Counted {
  operator N() const { return 7; }
};
__extension__ using Wide = __int128;

static_assert(is_shape<int, std::size_t> && !is_shape<int, double> && !is_shape<float*>);
static_assert(is_shape<Counted<std::size_t>> && !is_shape<Counted<double>>, "a double would lose its fraction");
static_assert(!is_shape<Wide>, "its upper half would be lost");

TEST_CASE("a view of host memory reads and writes that memory") {
  std::vector<float> values(6, 1.0F);
  const dtrain::TensorView view = dtrain::tensor_view(values.data(), {std::size_t{2}, 3});
  CHECK(view.bytes() == 6 * sizeof(float));
  CHECK(view.flat().count == 6);
  view.as<float>()[5] = 2.0F;
  CHECK(values[5] == 2.0F);
}

template <class Values>
constexpr bool can_be_viewed = requires(Values&& values) {
  dtrain::tensor_view(std::forward<Values>(values));
};
static_assert(can_be_viewed<std::vector<float>&> && can_be_viewed<std::span<float>>);
static_assert(!can_be_viewed<std::vector<float>>, "the view would outlive the memory");
static_assert(!can_be_viewed<float*&> && !can_be_viewed<std::vector<bool>&>, "neither has a span");
// Elements that are const or have no DType: tests/compile_fail/tensor_of_const.cpp, tensor_of_unsigned.cpp.

TEST_CASE("a container and a span are viewed whole, with one extent") {
  std::vector<float> values(6, 1.0F);
  const dtrain::TensorView view = dtrain::tensor_view(values);
  CHECK(view.data == reinterpret_cast<std::byte*>(values.data()));
  CHECK(view.shape == Shape{6});
  CHECK(view.dtype == dtrain::DType::f32);

  std::array<double, 3> array{};
  std::int32_t plain[4] = {};
  const std::span<float> all(values);
  CHECK(dtrain::tensor_view(array).as<double>().data() == array.data());
  CHECK(dtrain::tensor_view(array).shape == Shape{3});
  CHECK(dtrain::tensor_view(plain).as<std::int32_t>().data() == plain);
  CHECK(dtrain::tensor_view(plain).shape == Shape{4});
  CHECK(dtrain::tensor_view(all).shape == Shape{6});
  CHECK(dtrain::tensor_view(all.subspan(2)).as<float>().data() == values.data() + 2);
  CHECK(dtrain::tensor_view(all.first<2>()).shape == Shape{2});
  CHECK(dtrain::tensor_view(std::span<float>()).shape == Shape{0});
}

TEST_CASE("a view read as another type, or on the host while it is elsewhere, says so") {
  std::vector<float> values(6);
  dtrain::TensorView view = dtrain::tensor_view(values.data(), {6});
  CHECK_THROWS_WITH(view.as<double>(), "a view of f32 on host was read as f64 on host");
  view.device = {dtrain::DeviceKind::cuda, 1};
  CHECK_THROWS_WITH(view.as<float>(), "a view of f32 on cuda:1 was read as f32 on host");
}

}  // namespace
