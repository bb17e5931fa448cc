#include "unit/cuda/prelude.hpp"

namespace {

template <class T>
std::vector<T> normal_values(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<T> values(count);
  for (T& value : values)
    value = T(normal(random));
  return values;
}

/// The kernel's sums for these values, `shift` elements behind the begin of device memory. What lies behind the sums is
/// as it was.
template <class T>
std::vector<double> sums_of(const std::vector<T>& values, std::size_t shift = 0) {
  std::vector<T> shifted(shift);
  shifted.insert(shifted.end(), values.begin(), values.end());
  const DeviceBuffer memory = support::on_device(shifted);
  const BufferView array{memory.data() + shift * sizeof(T),
                         values.size(),
                         dtrain::dtype_of<T>::value,
                         {dtrain::DeviceKind::cuda, memory.device()}};
  const std::size_t blocks = square_sum_blocks(array.bytes());
  const PinnedBuffer sums((blocks + 1) * sizeof(double));
  auto* const first = reinterpret_cast<double*>(sums.data());
  std::fill_n(first, blocks + 1, -1.0);
  const Stream stream;
  SquareSumKernel::find(array.dtype).enqueue(array, first, stream.ref());
  REQUIRE(completes(stream.ref(), 60s));
  CHECK(first[blocks] == -1.0);
  return {first, first + blocks};
}

double total(const std::vector<double>& sums) {
  double sum = 0;
  for (const double each : sums)
    sum += each;
  return sum;
}

template <class T>
double on_the_host(const std::vector<T>& values) {
  return dtrain::kernels::sum_of_squares(dtrain::dtype_of<T>::value, reinterpret_cast<const std::byte*>(values.data()),
                                         values.size());
}

}  // namespace

TEST_CASE_TEMPLATE("the sum of squares on a device is the host's, at every size", T, double, float, float16, bfloat16) {
  constexpr std::size_t step = 16 / sizeof(T);
  for (const std::size_t count : {step, 3 * step, 255 * step, 256 * step, 257 * step, 5000 * step, 70'000 * step}) {
    CAPTURE(count);
    const std::vector<T> values = normal_values<T>(count, 3);
    CHECK(std::abs(total(sums_of(values)) / on_the_host(values) - 1) < 1e-12);
    const std::vector<T> whole(count, T(3.0F));
    CHECK(total(sums_of(whole)) == 9.0 * static_cast<double>(count));  // exact in any order
  }
}

TEST_CASE_TEMPLATE("equal values give equal bits wherever they lie", T, double, float, float16, bfloat16) {
  const std::vector<T> values = normal_values<T>(40'000, 5);
  const std::vector<double> sums = sums_of(values);
  CHECK(sums.size() > 1);
  CHECK(sums_of(values, 64 / sizeof(T)) == sums);
  CHECK(sums_of(values, 4096) == sums);
}

TEST_CASE_TEMPLATE("an infinity or a NaN anywhere makes the sum not finite, and the largest values do not", T, float,
                   float16, bfloat16) {
  const std::size_t count = 20'000;
  for (const std::size_t at : {std::size_t{0}, std::size_t{7}, count / 2, count - 1}) {
    CAPTURE(at);
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<T> values(count, T(1.0F));
      values[at] = T(bad);
      CHECK_FALSE(dtrain::kernels::is_finite(total(sums_of(values))));
    }
  }
  const float largest = std::is_same_v<T, float16> ? 65504.0F : 3e38F;
  CHECK(dtrain::kernels::is_finite(total(sums_of(std::vector<T>(count, T(largest))))));
}

TEST_CASE("subnormal values count") {
  const std::vector<float> values(1024, std::numeric_limits<float>::denorm_min());
  CHECK(total(sums_of(values)) == 1024 * std::pow(2.0, -298));
}

TEST_CASE("the number of blocks depends on the bytes alone and has a bound") {
  CHECK(square_sum_blocks(0) == 0);
  CHECK(square_sum_blocks(16) == 1);
  CHECK(square_sum_blocks(32'768) == 1);
  CHECK(square_sum_blocks(32'784) == 2);
  CHECK(square_sum_blocks(std::size_t{1} << 40) == 512);
}

TEST_CASE("there are kernels for f64, f32, f16 and bf16, and no others") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
    CHECK(SquareSumKernel::find(dtype));
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::f8e4m3, DType::f8e5m2})
    CHECK_FALSE(SquareSumKernel::find(dtype));
}

TEST_CASE("the toolkit's assembler accepts each kernel of squares for each GPU that it knows") {
  const support::Ptxas ptxas;
  if (!ptxas.is_there()) {
    MESSAGE("left out: no ptxas on the path or in /usr/local/cuda/bin");
    return;
  }
  REQUIRE_FALSE(ptxas.accepts(square_sum_text(DType::f32) + "nonsense", 80));
  const std::vector<int> architectures = ptxas.architectures();
  for (const int architecture : architectures) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      CAPTURE(architecture);
      CHECK(ptxas.accepts(square_sum_text(dtype), architecture));
    }
  }
  CHECK(architectures.size() >= 3);
}
