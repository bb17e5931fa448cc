// The bench of kernels, bench/cuda/kernel_rates.hpp, with arrays that the emulation has time for.

#include "bench/cuda/kernel_rates.hpp"
#include "unit/cuda/prelude.hpp"

namespace kernel_rates_test {

/// The names of the kernels, each with the bytes that a launch moves.
std::vector<std::string> measured(const std::string& only = "") {
  constexpr std::size_t bytes = 4096;
  bench::KernelRates rates({.largest_bytes = bytes, .samples = 1, .launches = 2, .only = only});
  std::vector<std::string> seen;
  const auto use = [&](const bench::MeasuredKernel& kernel, const bench::KernelRate& rate) {
    CAPTURE(kernel.what);
    CHECK(rate.seconds > 0);
    CHECK(rate.rate * rate.seconds == doctest::Approx(static_cast<double>(kernel.moved_bytes)));
    CHECK(rate.copied_rate > 0);
    seen.push_back(kernel.what + ": " + std::to_string(kernel.moved_bytes));
  };
  rates.each_blocking(DType::f32, bytes, use);
  rates.each_blocking(DType::bf16, bytes, use);
  rates.single_blocks_blocking(use);
  return seen;
}

TEST_CASE("the bench of kernels measures each of them, and counts the bytes that it reads and writes") {
  const std::vector<std::string> expected{"copy f32: 8192",
                                          "scale f32: 8192",
                                          "f32 to bf16: 6144",
                                          "scale in place f32: 8192",
                                          "square sums f32: 4104",  // one block's sum
                                          "AdamW f32: 28672",
                                          "copy bf16: 8192",
                                          "scale bf16: 8192",
                                          "bf16 to f32: 12288",
                                          "scale in place bf16: 8192",
                                          "square sums bf16: 4104",
                                          "AdamW bf16: 57344",
                                          "norm of sums: 65600",
                                          "rescale: 96",
                                          "unscale: 128"};
  const std::vector<std::string> seen = measured();
  REQUIRE(seen.size() == expected.size());
  for (std::size_t i = 0; i < seen.size(); ++i)
    CHECK(seen[i] == expected[i]);
}

TEST_CASE("the bench of kernels measures those alone whose name has the given part") {
  CHECK(measured("AdamW") == std::vector<std::string>{"AdamW f32: 28672", "AdamW bf16: 57344"});
  CHECK(measured("no such kernel").empty());
}

TEST_CASE("a kernel that the driver does not load ends the bench of kernels with a sentence") {
  CHECK_THROWS_WITH_AS(bench::require_loaded(false, "AdamW f32"),
                       "AdamW f32: the CUDA driver does not load the kernel; see its warning", Error);
}

}  // namespace kernel_rates_test
