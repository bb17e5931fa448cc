// The sum of squares of every float type, against a plain f64 loop, at every rest and alignment.

#include <initializer_list>

#include "dtrain/kernels/sum_of_squares.hpp"
#include "unit/kernels/prelude.hpp"

using dtrain::bfloat16;
using dtrain::dtype_of;
using dtrain::float16;

namespace {

double value_of(double element) {
  return element;
}
template <class T>
double value_of(T element) {
  return static_cast<double>(static_cast<float>(element));
}

template <class T>
std::vector<T> random_values(std::size_t count, double size) {
  std::mt19937_64 random(count);
  std::normal_distribution<double> normal(0, size);
  std::vector<T> values;
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, double>) {
      values.push_back(normal(random));
    } else {
      values.push_back(T(static_cast<float>(normal(random))));
    }
  }
  return values;
}

/// In the order that the function documents.
template <class T>
double reference(const T* values, std::size_t count) {
  std::array<double, 16> partial{};
  for (std::size_t i = 0; i < count; ++i) {
    const volatile double square = value_of(values[i]) * value_of(values[i]);
    partial[i % 16] += square;
  }
  double sum = 0;
  for (const double part : partial)
    sum += part;
  return sum;
}

template <class T>
double sum(const T* values, std::size_t count, Isa isa) {
  return sum_of_squares(dtype_of<T>::value, reinterpret_cast<const std::byte*>(values), count, isa);
}

}  // namespace

TEST_CASE_TEMPLATE("every processor gives the documented sum, bit for bit", T, double, float, float16, bfloat16) {
  for (const double size : {1e-6, 1.0, 1e3}) {
    const std::vector<T> values = random_values<T>(5003, size);
    for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 15, 16, 17, 255, 256, 257, 1000, 5000}) {
      for (const std::size_t begin : std::initializer_list<std::size_t>{0, 1, 3}) {
        CAPTURE(count);
        const double expected = reference(values.data() + begin, count);
        CHECK(sum(values.data() + begin, count, Isa::baseline) == expected);
        if (dtrain::kernels::runs_on_this_machine(Isa::avx2)) {
          CHECK(sum(values.data() + begin, count, Isa::avx2) == expected);
        }
      }
    }
  }
}

TEST_CASE_TEMPLATE("one infinity or NaN anywhere shows, the largest finite values do not", T, float, float16,
                   bfloat16) {
  const float largest = std::is_same_v<T, float16>    ? 65504.0F
                        : std::is_same_v<T, bfloat16> ? 3.3895314e38F
                                                      : std::numeric_limits<float>::max();
  for (const Isa isa : {Isa::baseline, dtrain::kernels::best_isa()}) {
    std::vector<T> values(300, T(largest));
    CHECK(dtrain::kernels::is_finite(sum(values.data(), values.size(), isa)));
    for (const std::size_t at : std::initializer_list<std::size_t>{0, 17, 255, 256, 299}) {
      for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()}) {
        values[at] = T(bad);
        CHECK_FALSE(dtrain::kernels::is_finite(sum(values.data(), values.size(), isa)));
        values[at] = T(1.0F);
      }
    }
  }
}

TEST_CASE("squares of f64 beyond the largest value are an infinite sum") {
  const std::vector<double> values{1, 1e200};
  CHECK_FALSE(dtrain::kernels::is_finite(sum(values.data(), 2, dtrain::kernels::best_isa())));
}
