// The norm of gradients in device memory: its bits, and those of the factors that clip and unscale.

#include "dtrain/stream/cuda/kernels/norm_kernels.hpp"

#include "dtrain/ddp/precision/loss_scaler.hpp"
#include "dtrain/ddp/sharded/sharded_work.hpp"
#include "unit/cuda/prelude.hpp"

namespace {

using dtrain::GradientNorm;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// Loaded kernels, with a norm in device memory, its copy, and a scale.
struct Kernels {
  DeviceBuffer memory{sizeof(DeviceNorm) + sizeof(DeviceScale)};
  PinnedBuffer copies{sizeof(DeviceNorm)};
  DeviceNorm* norm = reinterpret_cast<DeviceNorm*>(memory.data());
  DeviceNorm* copy = reinterpret_cast<DeviceNorm*>(copies.data());
  DeviceScale* scale = reinterpret_cast<DeviceScale*>(memory.data() + sizeof(DeviceNorm));
  Stream stream;
  NormKernels kernels;
  UnscaleKernel unscale;

  Kernels() {
    REQUIRE(kernels.load(norm, copy, stream.ref()));
    REQUIRE(unscale.load(norm, copy, scale, stream.ref()));
    REQUIRE(completes(stream.ref()));
  }

  /// Blocking: what is in device memory, which equals the copy.
  DeviceNorm read() {
    REQUIRE(completes(stream.ref()));
    const DeviceNorm value = support::on_host<DeviceNorm>(memory.data(), 1).front();
    CHECK(std::memcmp(&value, copy, sizeof(value)) == 0);
    CHECK(value.is_written == 1);
    return value;
  }

  DeviceNorm measure(const std::vector<double>& sums) {
    const DeviceBuffer values = support::on_device(sums);
    kernels.measure(norm, copy, reinterpret_cast<const double*>(values.data()), sums.size(), stream.ref());
    return read();
  }

  DeviceNorm rescale(double factor, double max_norm) {
    kernels.rescale(norm, copy, factor, max_norm, stream.ref());
    return read();
  }
};

/// In the kernel's order.
double sum_of(const std::vector<double>& sums) {
  std::vector<double> threads(norm_threads, 0.0);
  for (std::size_t i = 0; i < sums.size(); ++i)
    threads[i % norm_threads] += sums[i];
  for (std::size_t half = norm_threads / 2; half != 0; half /= 2) {
    for (std::size_t thread = 0; thread < half; ++thread)
      threads[thread] += threads[thread + half];
  }
  return threads[0];
}

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof(a)) == 0 || (std::isnan(a) && std::isnan(b));
}

}  // namespace

TEST_CASE("the norm on a device has the bits of a fixed order of additions, and is the host's root") {
  Kernels kernels;
  std::mt19937 random(1);
  std::lognormal_distribution<double> any(0, 4);
  for (const std::size_t count : {0u, 1u, 2u, 511u, 512u, 513u, 5000u}) {
    CAPTURE(count);
    std::vector<double> sums(count);
    double in_order = 0;
    for (double& sum : sums)
      in_order += sum = any(random);
    const DeviceNorm norm = kernels.measure(sums);
    CHECK(norm.norm == std::sqrt(sum_of(sums)));
    CHECK(norm.before_clipping == norm.norm);
    CHECK(norm.factor == 1);
    CHECK(norm.found_inf == 0);
    CHECK(std::abs(norm.norm - std::sqrt(in_order)) <= 1e-14 * norm.norm);
  }
}

TEST_CASE("one sum that is not finite is found, wherever it is, and forgotten by the next norm") {
  Kernels kernels;
  for (const std::size_t at : {0u, 1u, 511u, 512u, 1999u}) {
    for (const double bad : {infinity, not_a_number}) {
      std::vector<double> sums(2000, 1.0);
      sums[at] = bad;
      const DeviceNorm norm = kernels.measure(sums);
      CHECK(norm.found_inf == 1);
      CHECK_FALSE(norm.norm < infinity);
      CHECK(kernels.rescale(1, 0.5).factor == 1);  // is not clipped
      CHECK(kernels.rescale(0.25, infinity).factor == 0.25);
    }
  }
  CHECK(kernels.measure({4.0}).found_inf == 0);
}

TEST_CASE("the factor that clips on a device has the bits of the host's formula") {
  Kernels kernels;
  std::mt19937 random(2);
  std::lognormal_distribution<double> any(0, 8);
  int clipped = 0;
  for (int k = 0; k < 300; ++k) {
    const double first = any(random);
    const double max_norm = any(random);
    const double factor = (k % 3 - 1) * any(random);
    GradientNorm expected = GradientNorm::of_squares(first);
    CHECK(same_bits(kernels.measure({first}).norm, expected.norm));
    const double clipping = dtrain::ddp::clipping_factor(expected, max_norm);
    clipped += clipping < 1 ? 1 : 0;
    DeviceNorm norm = kernels.rescale(1, max_norm);
    CHECK(same_bits(norm.factor, clipping));
    CHECK(same_bits(norm.norm, expected.norm * clipping));
    CHECK(same_bits(norm.before_clipping, expected.norm));
    const GradientNorm scaled = GradientNorm{norm.norm, true, norm.before_clipping}.times(factor);
    norm = kernels.rescale(factor, infinity);
    CHECK(same_bits(norm.factor, factor));
    CHECK(same_bits(norm.norm, scaled.norm));
    CHECK(same_bits(norm.before_clipping, scaled.before_clipping));
  }
  CHECK(clipped > 50);
  CHECK(clipped < 250);
  for (const double small : {0.0, 9e-12, 1e-300}) {  // where 1e-6 counts
    const GradientNorm norm = GradientNorm::of_squares(small);
    kernels.measure({small});
    CHECK(same_bits(kernels.rescale(1, 2e-6).factor, dtrain::ddp::clipping_factor(norm, 2e-6)));
  }
}

TEST_CASE("the scale on a device changes as the host's, and the factor is its reciprocal") {
  Kernels kernels;
  const auto expect_scales = [&](const dtrain::LossScalerOptions& options, std::string_view overflows) {
    dtrain::LossScaler expected(options);
    const DeviceScale initial{options.initial_scale, 0, 0};
    check(cudaMemcpy(kernels.scale, &initial, sizeof(initial), cudaMemcpyHostToDevice), "cudaMemcpy");
    int step = 0;
    for (const char mark : overflows) {
      CAPTURE(step);
      ++step;
      kernels.measure({mark == 'x' ? infinity : 7.25});
      const double measured = kernels.read().norm;
      const double next = expected.next_factor(mark != 'x');
      CHECK((next == 0) == (mark == 'x'));
      const double factor = mark == 'x' ? 1 : next;  // the device's factor is of gradients that stay
      kernels.unscale.enqueue(kernels.norm, kernels.copy, kernels.scale,
                              {options.growth_factor, options.backoff_factor, options.growth_interval}, infinity,
                              kernels.stream.ref());
      const DeviceNorm norm = kernels.read();
      const auto scale = support::on_host<DeviceScale>(reinterpret_cast<std::byte*>(kernels.scale), 1).front();
      CHECK(same_bits(norm.factor, factor));
      CHECK(same_bits(norm.norm, GradientNorm{measured}.times(factor).norm));
      CHECK((norm.found_inf == 1) == (mark == 'x'));
      CHECK(scale.scale == expected.scale());
    }
  };
  expect_scales({.growth_interval = 4}, ".x..xx.......x...........x.xx....................");
  expect_scales({.initial_scale = 1e-44F, .growth_interval = 2}, "xxxxxx...x..");                   // stays positive
  expect_scales({.initial_scale = 1e38F, .growth_factor = 3, .growth_interval = 1}, "....x.x...");  // stays finite
  expect_scales({.initial_scale = 3, .growth_factor = 1.1F, .backoff_factor = 0.7F, .growth_interval = 3},
                "...x......x");
}

TEST_CASE("a norm is clipped behind the division by the scale, with the bits of the host's product of both") {
  Kernels kernels;
  std::mt19937 random(4);
  std::lognormal_distribution<double> any(0, 4);
  int clipped = 0;
  for (int k = 0; k < 100; ++k) {
    CAPTURE(k);
    const DeviceScale scale{static_cast<float>(any(random)), 0, 0};
    const double max_norm = any(random);
    check(cudaMemcpy(kernels.scale, &scale, sizeof(scale), cudaMemcpyHostToDevice), "cudaMemcpy");
    dtrain::LossScaler scaler({.initial_scale = scale.scale});
    const dtrain::StepOptions options{.clip_norm = max_norm, .scaler = &scaler};
    dtrain::ddp::StepDecision expected =
        dtrain::ddp::decide_step(options, GradientNorm{kernels.measure({any(random)}).norm});
    CHECK(expected.updates);
    expected.clip(options.clip_norm);
    kernels.unscale.enqueue(kernels.norm, kernels.copy, kernels.scale, {2, 0.5F, 2000}, max_norm, kernels.stream.ref());
    const DeviceNorm seen = kernels.read();
    CHECK(same_bits(seen.factor, expected.factor));
    CHECK(same_bits(seen.norm, expected.norm.norm));
    CHECK(same_bits(seen.before_clipping, expected.norm.before_clipping));
    clipped += expected.factor != 1.0 / static_cast<double>(scale.scale) ? 1 : 0;
  }
  CHECK(clipped > 20);
  CHECK(clipped < 80);
}

TEST_CASE("a scale that is no finite positive number divides nothing, is reported as an overflow, and stays") {
  Kernels kernels;
  for (const double bad : {0.0, -0.0, -8.0, infinity, -infinity, not_a_number}) {
    CAPTURE(bad);
    const DeviceScale loaded{static_cast<float>(bad), 0, 5};
    check(cudaMemcpy(kernels.scale, &loaded, sizeof(loaded), cudaMemcpyHostToDevice), "cudaMemcpy");
    kernels.measure({16.0});
    kernels.unscale.enqueue(kernels.norm, kernels.copy, kernels.scale, {2, 0.5F, 6}, 0.5, kernels.stream.ref());
    const DeviceNorm norm = kernels.read();
    CHECK(norm.found_inf == 1);
    CHECK(norm.factor == 1);
    CHECK(norm.norm == 4);
    CHECK(norm.before_clipping == 4);
    CHECK(kernels.rescale(1, 0.5).factor == 1);  // is not clipped
    const auto after = support::on_host<DeviceScale>(reinterpret_cast<std::byte*>(kernels.scale), 1).front();
    CHECK(std::memcmp(&after.scale, &loaded.scale, sizeof(float)) == 0);
    CHECK(after.finite_steps == 0);
  }
}

TEST_CASE_TEMPLATE("a factor in device memory multiplies arrays to the host's bits, and 1 leaves all bits", T, double,
                   float, float16, bfloat16) {
  constexpr DType dtype = dtrain::dtype_of<T>::value;
  const Stream stream;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const std::size_t count : {1u, 7u, 8u, 8192u, 8193u, 20'003u}) {
    std::vector<T> values(count);
    for (T& value : values)
      value = T(normal(random));
    values.back() = T(std::numeric_limits<float>::quiet_NaN());
    for (const double factor : {0.3, 1e-3, 1.0, 1.0 - 1e-16}) {
      CAPTURE(count);
      CAPTURE(factor);
      const DeviceBuffer array = support::on_device(values);
      const DeviceBuffer stored = support::on_device(std::vector<double>{factor});
      const auto* const address = reinterpret_cast<const double*>(stored.data());
      REQUIRE(ScaledCopyBatch::load_in_place(dtype, address, stream.ref()));
      ScaledCopyBatch batch(dtype, dtype);
      batch.add(array.data(), array.data(), count);
      batch.enqueue_in_place(address, stream.ref());
      REQUIRE(completes(stream.ref(), 60s));
      const std::vector<T> scaled = support::on_host<T>(array.data(), count);
      std::vector<T> expected = values;
      if (factor != 1) dtrain::ddp::multiply_elements(dtrain::buffer_view(std::span(expected)), factor);
      CHECK(std::memcmp(scaled.data(), expected.data(), (count - 1) * sizeof(T)) == 0);
      const bool keeps = factor == 1;
      CHECK((!keeps || std::memcmp(&scaled.back(), &values.back(), sizeof(T)) == 0));
      CHECK(std::isnan(static_cast<double>(static_cast<float>(scaled.back()))));
    }
  }
}

TEST_CASE("the toolkit's assembler accepts the kernels of norms and factors for each GPU that it knows") {
  const support::Ptxas ptxas;
  if (!ptxas.is_there()) {
    MESSAGE("left out: no ptxas on the path or in /usr/local/cuda/bin");
    return;
  }
  REQUIRE_FALSE(ptxas.accepts(norm_text() + "nonsense", 80));
  const std::vector<int> architectures = ptxas.architectures();
  for (const int architecture : architectures) {
    CAPTURE(architecture);
    CHECK(ptxas.accepts(norm_text(), architecture));
    CHECK(ptxas.accepts(rescale_text(), architecture));
    CHECK(ptxas.accepts(unscale_text(), architecture));
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::bf16})
      CHECK(ptxas.accepts(scale_kernel_text(dtype, dtype, FactorSource::device_memory), architecture));
  }
  CHECK(architectures.size() >= 3);
}
