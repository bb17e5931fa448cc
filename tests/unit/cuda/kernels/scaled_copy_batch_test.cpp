#include <bit>

#include "unit/cuda/prelude.hpp"

namespace {

void wait(StreamRef stream) {
  REQUIRE(completes(stream, 60s));
}

template <class T>
using Bits =
    std::conditional_t<sizeof(T) == 8, std::uint64_t, std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>>;

/// The host's arithmetic: in f32, or f64 for f64, rounded once; a copy for a factor of 1.
template <class To, class From>
To scaled(From value, double factor) {
  if constexpr (std::is_same_v<From, To>) {
    if (factor == 1) return value;
  }
  if constexpr (std::is_same_v<From, double>) {
    return value * factor;
  } else {
    return To(static_cast<float>(value) * static_cast<float>(factor));
  }
}

template <class T>
bool is_nan(T value) {
  if constexpr (std::is_same_v<T, double>) {
    return std::isnan(value);
  } else {
    return std::isnan(static_cast<float>(value));
  }
}

/// All patterns of bits alike: zeros, subnormals, infinities and NaNs among them.
template <class T>
std::vector<T> any_values(std::size_t count, unsigned seed) {
  std::mt19937_64 random(seed);
  std::vector<T> values(count);
  for (T& value : values) {
    auto bits = static_cast<Bits<T>>(random());
    if (random() % 8 == 0) {
      const auto low_half = static_cast<Bits<T>>((std::uint64_t{1} << (4 * sizeof(T))) - 1);
      bits = static_cast<Bits<T>>(random() % 3 == 0 ? 0 : bits & low_half);
    }
    value = std::bit_cast<T>(bits);
  }
  return values;
}

/// Elements that an array's source and target lie behind a multiple of 16 bytes; at most 16.
struct Shifts {
  std::size_t source = 0;
  std::size_t target = 0;
};

/// Copies arrays of these sizes and compares each bit; what lies between the arrays stays as it was.
template <class From, class To>
void expect_copies(const std::vector<std::size_t>& sizes, Shifts shifts, double factor) {
  constexpr std::size_t gap = 16;
  const auto room = [](std::size_t size) { return (size + 3 * gap - 1) / gap * gap; };
  std::size_t count = 0;
  for (const std::size_t size : sizes)
    count += room(size);
  const std::vector<From> values = any_values<From>(count, 7);
  const To untouched = To(42.0F);
  const DeviceBuffer from = support::on_device(values);
  const DeviceBuffer to = support::on_device(std::vector<To>(count, untouched));
  const Stream stream;
  const DType from_type = dtrain::dtype_of<From>::value;
  const DType to_type = dtrain::dtype_of<To>::value;
  REQUIRE(ScaledCopyBatch::load(from_type, to_type, stream.ref()));
  ScaledCopyBatch batch(from_type, to_type);
  batch.reserve(sizes.size());
  std::vector<To> expected(count, untouched);
  std::size_t begin = 0;
  for (const std::size_t size : sizes) {
    const std::size_t source = begin + shifts.source;
    const std::size_t target = begin + shifts.target;
    batch.add(to.data() + target * sizeof(To), from.data() + source * sizeof(From), size);
    for (std::size_t i = 0; i < size; ++i)
      expected[target + i] = scaled<To>(values[source + i], factor);
    begin += room(size);
  }
  batch.enqueue(factor, stream.ref());
  CHECK(batch.empty());
  wait(stream.ref());
  const std::vector<To> result = support::on_host<To>(to.data(), count);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const bool is_same = std::bit_cast<Bits<To>>(result[i]) == std::bit_cast<Bits<To>>(expected[i]);
    const bool is_copied = std::is_same_v<From, To> && factor == 1;
    wrong += is_same || (!is_copied && is_nan(result[i]) && is_nan(expected[i])) ? 0 : 1;
  }
  CHECK(wrong == 0);
}

template <class A, class B>
struct Types {
  using From = A;
  using To = B;
};

}  // namespace

#if DTRAIN_EMULATED_CUDA
TEST_CASE("a driver that does not load the kernel is no error, and is asked again") {
  // A kernel that dtrain does not use, and so no earlier test of this process has loaded.
  const auto find = [] { return ScaleKernel::find(DType::f32, DType::bf16, FactorSource::device_memory); };
  emulation::fail("cuLibraryLoadData", 1, 209);  // CUDA_ERROR_NO_BINARY_FOR_GPU
  CHECK_FALSE(find());
  CHECK(find());
}
#endif

TEST_CASE("a thread whose first call is the kernel's launch has the device's context") {
  const DeviceBuffer from = support::on_device(std::vector<float>{1, 2, 3, 4});
  const DeviceBuffer to = support::on_device(std::vector<float>(4, 0));
  const Stream stream;
  REQUIRE(ScaledCopyBatch::load(DType::f32, DType::f32, stream.ref()));
  std::string error;
  std::thread([&] {
    try {
      ScaledCopyBatch batch(DType::f32, DType::f32);
      batch.add(to.data(), from.data(), 4);
      batch.enqueue(2, stream.ref());
    } catch (const dtrain::Error& thrown) {
      error = thrown.what();
    }
  }).join();
  CHECK(error.empty());
  wait(stream.ref());
  CHECK(support::on_host<float>(to.data(), 4) == std::vector<float>{2, 4, 6, 8});
}

TEST_CASE("there are kernels for f32, f16 and bf16 with each other, for f64 with itself, and no others") {
  CHECK(ScaleKernel::find(DType::f64, DType::f64));
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::f8e4m3, DType::f8e5m2, DType::f64}) {
    CHECK_FALSE(ScaleKernel::find(dtype, DType::f32));
    CHECK_FALSE(ScaleKernel::find(DType::f32, dtype));
  }
}

TEST_CASE_TEMPLATE(
    "scaled copies have the bits of the host's arithmetic, at every size and alignment, and write nothing else", Way,
    Types<double, double>, Types<float, float>, Types<float, float16>, Types<float, bfloat16>, Types<float16, float>,
    Types<float16, float16>, Types<float16, bfloat16>, Types<bfloat16, float>, Types<bfloat16, float16>,
    Types<bfloat16, bfloat16>) {
  using From = typename Way::From;
  using To = typename Way::To;
  const std::vector<std::size_t> sizes{1, 2, 7, 8, 9, 15, 16, 17, 255, 256, 257};
  for (const double factor : {1.0, 1.0 / 3.0, 4096.0}) {
    expect_copies<From, To>({1, 2, 7, 8, 9, 255, 256, 257, 2049}, {}, factor);
    expect_copies<From, To>(sizes, {1, 1}, factor);
  }
  for (const Shifts shifts : {Shifts{0, 1}, Shifts{1, 0}, Shifts{0, 2}, Shifts{4, 0}, Shifts{8, 8}, Shifts{8, 4}}) {
    CAPTURE(shifts.source);
    CAPTURE(shifts.target);
    expect_copies<From, To>(sizes, shifts, 1);
  }
  expect_copies<From, To>({8191, 8192, 8193, 3, 20'000}, {}, 1.0 / 7.0);
  expect_copies<From, To>(std::vector<std::size_t>(300, 5), {}, 0.1);  // three launches
}

TEST_CASE("elements of 16 bits move 16 bytes at a time, as those of 32 and 64 do") {
  for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const std::string scale = scale_kernel_text(dtype, dtype);
    const std::string squares = dtrain::stream::cuda::square_sum_text(dtype);
    const std::string vector = dtype == DType::f64 ? "v2.f64" : dtype == DType::f32 ? "v4.f32" : "v4.b32";
    CAPTURE(vector);
    CHECK(support::contains(scale, "ld.global." + vector + " "));
    CHECK(support::contains(scale, "st.global." + vector + " "));
    CHECK(support::contains(squares, "ld.global." + vector + " "));
  }
}

TEST_CASE("an array is scaled in its own place") {
  std::vector<float> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = static_cast<float>(i);
  const DeviceBuffer memory = support::on_device(values);
  const Stream stream;
  ScaledCopyBatch batch(DType::f32, DType::f32);
  batch.add(memory.data(), memory.data(), values.size());
  batch.enqueue(0.5, stream.ref());
  wait(stream.ref());
  for (float& value : values)
    value *= 0.5F;
  CHECK(support::on_host<float>(memory.data(), values.size()) == values);
}

TEST_CASE("a graph replays scaled copies, with the addresses of the capture and the values of the replay") {
  const DeviceBuffer from = support::on_device(std::vector<float>(100, 1.0F));
  const DeviceBuffer to = support::on_device(std::vector<float>(100, 0.0F));
  const Stream stream;
  ScaledCopyBatch batch(DType::f32, DType::f32);
  batch.add(to.data(), from.data(), 100);
  support::check(cudaStreamBeginCapture(stream.ref().native(), cudaStreamCaptureModeThreadLocal), "begin");
  batch.enqueue(3.0, stream.ref());
  cudaGraph_t graph = nullptr;
  support::check(cudaStreamEndCapture(stream.ref().native(), &graph), "end");
  cudaGraphExec_t executable = nullptr;
  support::check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  CHECK(support::on_host<float>(to.data(), 100) == std::vector<float>(100, 0.0F));
  for (const float value : {1.0F, 2.0F}) {
    support::write(from.data(), std::vector<float>(100, value));
    support::check(cudaGraphLaunch(executable, stream.ref().native()), "launch");
    wait(stream.ref());
    CHECK(support::on_host<float>(to.data(), 100) == std::vector<float>(100, 3.0F * value));
  }
  support::check(cudaGraphExecDestroy(executable), "destroy");
  support::check(cudaGraphDestroy(graph), "destroy");
}

TEST_CASE("the toolkit's assembler accepts each kernel for each GPU that it knows") {
  const support::Ptxas ptxas;
  if (!ptxas.is_there()) {
    MESSAGE("left out: no ptxas on the path or in /usr/local/cuda/bin");
    return;
  }
  const std::string sample = scale_kernel_text(DType::f32, DType::f32);
  REQUIRE_FALSE(ptxas.accepts(sample + "nonsense", 80));
  const std::vector<int> architectures = ptxas.architectures();
  for (const int architecture : architectures) {
    for (const DType from : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
      for (const DType to : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
        CAPTURE(architecture);
        CHECK((!can_scale(from, to) || ptxas.accepts(scale_kernel_text(from, to), architecture)));
      }
    }
  }
  CHECK(architectures.size() >= 3);
}
