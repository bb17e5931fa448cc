// A model whose gradients have every element type is reduced with the semantics that the README states.

#include "unit/public_interface/prelude.hpp"

namespace {

constexpr int ranks = 3;
constexpr std::size_t elements = 1001;

/// One tensor of each type, interleaved so that neighbours differ; a second f16 one behind them.
struct Mixed {
  template <class T>
  struct Tensor {
    std::vector<T> value = std::vector<T>(elements);
    std::vector<T> gradient = std::vector<T>(elements);
  };

  template <class T>
  static dtrain::Parameter parameter(const char* name, Tensor<T>& tensor) {
    const dtrain::Shape shape{static_cast<std::int64_t>(elements)};
    return {name, dtrain::tensor_view(tensor.value.data(), shape), dtrain::tensor_view(tensor.gradient.data(), shape)};
  }

  std::vector<dtrain::Parameter> parameters() {
    std::vector<dtrain::Parameter> list{parameter("f16", f16),     parameter("f64", f64), parameter("bf16", bf16),
                                        parameter("i32", i32),     parameter("f32", f32), parameter("i64", i64),
                                        parameter("again", again), parameter("u8", u8)};
    for (std::size_t i = 0; i < list.size() && !bound.empty(); ++i)
      list[i].gradient = bound[i];
    return list;
  }

  Tensor<float16> f16, again;
  Tensor<bfloat16> bf16;
  Tensor<double> f64;
  Tensor<float> f32;
  Tensor<std::int32_t> i32;
  Tensor<std::int64_t> i64;
  Tensor<std::uint8_t> u8;
  std::vector<dtrain::TensorView> bound;
};

struct BindingMixed : Mixed {
  void bind_gradient(std::size_t i, const dtrain::TensorView& view) {
    places.resize(8);
    places[i] = view;
    if (i == 7) bound = places;
  }
  std::vector<dtrain::TensorView> places;
};

/// What each rank gives to a tensor, and what comes out, by sum and by average.
template <class T>
struct Example {
  T of_rank[ranks];
  T sum;
  T average;
};

template <class T>
void fill(const dtrain::Parameter& parameter, const Example<T>& example, int rank) {
  for (T& element : parameter.gradient.as<T>())
    element = example.of_rank[rank];
}

template <class T>
int wrong_in(const dtrain::Parameter& parameter, const Example<T>& example, ReduceOp op) {
  const T expected = op == ReduceOp::sum ? example.sum : example.average;
  for (const T& element : parameter.gradient.as<T>()) {
    if (std::memcmp(&element, &expected, sizeof(T)) != 0) return 1;
  }
  return 0;
}

const float third = 1.0F / 3.0F;
// 2048 + 1 is no float16 and 256 + 1 no bfloat16: only a sum in f32, rounded once, sees the ones.
const Example<float16> halves{{float16(2048), float16(1), float16(1)}, float16(2050), float16(2050 * third)};
const Example<bfloat16> bfloats{{bfloat16(256), bfloat16(1), bfloat16(1)}, bfloat16(258), bfloat16(258 * third)};
const Example<float16> large{{float16(60000), float16(60000), float16(-60000)}, float16(60000), float16(60000 * third)};
const Example<double> doubles{{1, 0x1p-40, 2}, 3 + 0x1p-40, (3 + 0x1p-40) * (1.0 / 3.0)};
const Example<float> floats{{1, std::numeric_limits<float>::quiet_NaN(), 2},
                            std::numeric_limits<float>::quiet_NaN(),
                            std::numeric_limits<float>::quiet_NaN()};
const Example<std::int32_t> ints{{std::numeric_limits<std::int32_t>::max(), 1, 0},
                                 std::numeric_limits<std::int32_t>::min(),  // it wraps
                                 715827882};                                // the exact sum divided, toward zero
const Example<std::int64_t> longs{{-7, -1, 0}, -8, -2};
const Example<std::uint8_t> bytes{{200, 100, 0}, 44, 100};

template <class Model>
int wrong_steps(const Group& group, ReduceOp op, std::size_t bucket_bytes, dtrain::stream::host::Progress progress) {
  Model model;
  dtrain::DistributedDataParallel ddp{
      model, group, {.bucket_bytes = bucket_bytes, .first_bucket_bytes = 0, .reduce_op = op, .progress = progress}};
  int wrong = ddp.plan().buckets.size() >= 7 ? 0 : 1;  // one type in each
  const std::vector<dtrain::Parameter> p = model.parameters();
  for (int step = 0; step < 3; ++step) {
    ddp.backward([&](dtrain::Ready ready) {
      fill(p[0], halves, group.rank());
      fill(p[1], doubles, group.rank());
      fill(p[2], bfloats, group.rank());
      fill(p[3], ints, group.rank());
      fill(p[4], floats, group.rank());
      fill(p[5], longs, group.rank());
      fill(p[6], large, group.rank());
      fill(p[7], bytes, group.rank());
      all_ready(ready, p.size());
    });
    wrong += wrong_in(p[0], halves, op) + wrong_in(p[1], doubles, op) + wrong_in(p[2], bfloats, op) +
             wrong_in(p[3], ints, op) + wrong_in(p[4], floats, op) + wrong_in(p[5], longs, op) +
             wrong_in(p[6], large, op) + wrong_in(p[7], bytes, op);
  }
  return wrong;
}

}  // namespace

TEST_CASE("gradients of every element type are reduced, in buckets of one type each, copied or bound") {
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::average}) {
    for (const std::size_t bucket_bytes : {std::size_t{0}, std::size_t{25} << 20}) {
      for (const auto progress : {dtrain::stream::host::Progress::caller, dtrain::stream::host::Progress::thread}) {
        CAPTURE(dtrain::name(op));
        CAPTURE(bucket_bytes);
        run_well(ranks, [&](const Group& group) {
          CHECK(wrong_steps<Mixed>(group, op, bucket_bytes, progress) == 0);
          CHECK(wrong_steps<BindingMixed>(group, op, bucket_bytes, progress) == 0);
        });
      }
    }
  }
}

TEST_CASE("a group reduces spans of half types too") {
  run_well(ranks, [](const Group& group) {
    std::vector<float16> values(3, float16(group.rank() == 0 ? 2048.0F : 1.0F));
    group.all_reduce(values, ReduceOp::sum);
    CHECK(static_cast<float>(values[2]) == 2050);
    std::vector<bfloat16> all(ranks);
    const bfloat16 mine(static_cast<float>(group.rank()));
    group.all_gather(std::span(&mine, 1), all);
    CHECK(static_cast<float>(all[2]) == 2);
  });
}
