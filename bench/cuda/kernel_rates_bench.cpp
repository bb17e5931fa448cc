// The rates of dtrain's kernels, beside those of cudaMemcpyAsync within the device. Counted are the bytes that a kernel
// reads and writes; a copy within the device moves as many. Small arrays show what a launch takes.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "bench/cuda/kernel_rates.hpp"
#include "bench/cuda/machine.hpp"
#include "bench/goal.hpp"
#include "bench/options.hpp"
#include "bench/result_rows.hpp"

namespace {

constexpr const char* bench_name = "kernel_rates_bench";
constexpr const char* usage_line =
    "[--bytes=1048576,..., of the arrays] [--only=PART, of a kernel's name] [--samples=N] [--json=FILE]";
constexpr int mib = 1 << 20;
constexpr int usual_samples = 7;

void measure(const bench::Options& options) {
  const bench::CudaMachine machine = bench::CudaMachine::look();
  const std::vector<int> sizes =
      options.bytes.empty() ? std::vector<int>{mib, 6 * mib, 25 * mib, 500 * mib} : options.bytes;
  const int samples = options.samples > 0 ? options.samples : usual_samples;
  const auto largest = static_cast<std::size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::printf("%s, %s; launch after launch goes on to the next arrays in %.0f MB\n", machine.device.c_str(),
              machine.versions.c_str(), static_cast<double>(bench::KernelRates::memory_bytes(largest)) / 1e6);
  std::printf("%-32s %10s %12s %11s %8s\n", "kernel", "GB/s", "copied GB/s", "a launch", "ratio");
  bench::ResultRows rows;
  const auto add = [&](const std::string& what, const bench::MeasuredKernel& kernel, const bench::KernelRate& rate) {
    const double ratio = rate.rate / rate.copied_rate;
    std::printf("%-32s %10.1f %12.1f %8.1f us %8.3f\n", what.c_str(), rate.rate / 1e9, rate.copied_rate / 1e9,
                rate.seconds * 1e6, ratio);
    bench::Row row{bench_name, "dtrain",           what,         1,
                   1,          kernel.moved_bytes, rate.seconds, static_cast<std::size_t>(samples)};
    row.with("gb_per_second", rate.rate / 1e9)
        .with("copied_gb_per_second", rate.copied_rate / 1e9)
        .with("ratio", ratio);
    rows.keep(machine.describe(row));
  };
  bench::KernelRates rates({.largest_bytes = largest, .samples = samples, .only = options.only});
  for (const int bytes : sizes) {
    const std::string size = ", " + bench::bytes_text(static_cast<unsigned long long>(bytes));
    for (const dtrain::DType dtype : {dtrain::DType::f32, dtrain::DType::bf16}) {
      rates.each_blocking(dtype, static_cast<std::size_t>(bytes),
                          [&](const bench::MeasuredKernel& kernel, const bench::KernelRate& rate) {
                            add(kernel.what + size, kernel, rate);
                          });
    }
    rows.write_json(options.json);  // what has ended stays if a time limit ends this program
  }
  rates.single_blocks_blocking(
      [&](const bench::MeasuredKernel& kernel, const bench::KernelRate& rate) { add(kernel.what, kernel, rate); });
  rows.write_json(options.json);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_benchmark(bench_name, usage_line, argc, argv, [&] {
    measure(bench::Options::parse(argc, argv, {}, {"--bytes", "--only"}));
  });
}
