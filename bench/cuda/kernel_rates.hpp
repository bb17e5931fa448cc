#pragma once
/// @file
/// The kernels of dtrain/stream/cuda/kernels at work on arrays in device memory, each timed beside copies of as many
/// bytes. kernel_rates_bench prints their rates.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "bench/result_rows.hpp"
#include "dtrain/core/deadline.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/ddp/sharded/device_rule.hpp"
#include "dtrain/ddp/sharded/optimizers.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_buffer.hpp"
#include "dtrain/stream/cuda/event.hpp"
#include "dtrain/stream/cuda/kernels/norm_kernels.hpp"
#include "dtrain/stream/cuda/kernels/scaled_copy_batch.hpp"
#include "dtrain/stream/cuda/kernels/square_sum_kernel.hpp"
#include "dtrain/stream/cuda/kernels/update_kernel.hpp"
#include "dtrain/stream/cuda/stream.hpp"

namespace bench {

namespace cuda = dtrain::stream::cuda;

/// Enqueues one launch on arrays that are placed in `memory`.
using EnqueueLaunch = std::function<void(std::byte* memory, cuda::StreamRef stream)>;

/// A kernel with its arrays.
struct MeasuredKernel {
  std::string what;
  std::size_t memory_bytes = 0;   ///< of a launch's arrays
  std::uint64_t moved_bytes = 0;  ///< read and written, of all arrays
  EnqueueLaunch enqueue{};
};

struct KernelRate {
  double seconds = 0;      ///< of a launch
  double rate = 0;         ///< bytes read and written, of a second
  double copied_rate = 0;  ///< the same of copies within the device
};

/// The next array's place.
constexpr std::size_t placed(std::size_t bytes) noexcept {
  return (bytes + 255) / 256 * 256;
}

/// Times launches by events of CUDA, on the thread's current device. Launch after launch goes on to the next arrays in
/// one block of memory, so that a small array is not in the device's cache.
class KernelTimer {
 public:
  /// @param memory_bytes at least those of a launch's arrays @param launches of a sample @throws Error (cuda)
  KernelTimer(std::size_t memory_bytes, int samples, int launches)
      : memory_(memory_bytes), samples_(samples), launches_(launches) {
    // In f32 and in bf16 0.0115 everywhere: a positive number, as sums of squares are.
    cuda::check(cudaMemsetAsync(memory_.data(), 0x3c, memory_.bytes(), stream_.ref().native()), "cudaMemsetAsync");
    for (TimedEvent* const event : {&begin_, &end_}) {
      cudaEvent_t made = nullptr;
      cuda::check(cudaEventCreate(&made), "cudaEventCreate");
      event->reset(made);
    }
  }

  /// For what a kernel needs before it is timed.
  cuda::StreamRef stream() const noexcept { return stream_.ref(); }

  /// Blocking: medians. Samples of the kernel and of copies alternate, after a warm-up of each.
  /// @throws Error (cuda, timeout)
  KernelRate measure_blocking(const MeasuredKernel& kernel) {
    const std::size_t half = std::min<std::size_t>(kernel.moved_bytes / 2, memory_.bytes() / 512 * 256);
    const MeasuredKernel copy{
        "", 2 * placed(half), 2 * half, [half](std::byte* memory, cuda::StreamRef stream) {
          cuda::check(cudaMemcpyAsync(memory + placed(half), memory, half, cudaMemcpyDeviceToDevice, stream.native()),
                      "cudaMemcpyAsync");
        }};
    std::vector<double> seconds, copied;
    for (int sample = 0; sample <= samples_; ++sample) {
      const double of_kernel = sample_blocking(kernel, sample > 0);
      const double of_copy = sample_blocking(copy, sample > 0);
      if (sample == 0) continue;
      seconds.push_back(of_kernel);
      copied.push_back(of_copy);
    }
    const double launch = median(seconds);
    return {launch, static_cast<double>(kernel.moved_bytes) / launch,
            static_cast<double>(copy.moved_bytes) / median(copied)};
  }

 private:
  using TimedEvent = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, cuda::ReleasedBy<cudaEventDestroy>>;
  using Gate = std::shared_ptr<std::atomic<bool>>;
  static constexpr std::chrono::seconds longest_sample{20};

  /// Seconds of one launch. @param is_held the stream begins when all launches of the sample are enqueued: the host,
  /// which enqueues more slowly than small kernels run, is not timed. Not at first: to load code, the driver may wait
  /// for the device.
  double sample_blocking(const MeasuredKernel& kernel, bool is_held) {
    constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30U;
    const auto fitting = static_cast<int>(std::min<std::uint64_t>(most_bytes / kernel.moved_bytes, 1U << 20U));
    const int launches = std::max(std::min(launches_, fitting), std::min(launches_, 4));
    const cudaStream_t stream = stream_.ref().native();
    const OpenedAtEnd gate{hold_stream()};
    if (!is_held) gate.open();
    cuda::check(cudaEventRecord(begin_.get(), stream), "cudaEventRecord");
    for (int i = 0; i < launches; ++i) {
      kernel.enqueue(next(kernel.memory_bytes), stream_.ref());
    }
    cuda::check(cudaEventRecord(end_.get(), stream), "cudaEventRecord");
    stream_.ref().record(done_);
    gate.open();
    if (done_.block_until_complete(dtrain::Deadline::after(longest_sample)) != dtrain::stream::WaitResult::complete) {
      throw dtrain::Error(dtrain::Errc::timeout, kernel.what + ": a sample did not end within " +
                                                     std::to_string(longest_sample.count()) + " s");
    }
    float milliseconds = 0;
    cuda::check(cudaEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "cudaEventElapsedTime");
    return static_cast<double>(milliseconds) / 1e3 / launches;
  }

  /// Also where a launch has failed: the stream must end.
  struct OpenedAtEnd {
    Gate is_open;
    ~OpenedAtEnd() { open(); }
    void open() const noexcept { is_open->store(true); }
  };

  /// Enqueued: waits for the gate, for longest_sample at most.
  Gate hold_stream() const {
    const auto wait = [](void* argument) {
      const std::unique_ptr<Gate> gate(static_cast<Gate*>(argument));
      const dtrain::Deadline deadline = dtrain::Deadline::after(longest_sample);
      while (!(*gate)->load() && !deadline.passed()) {
        std::this_thread::sleep_for(std::chrono::microseconds(10));
      }
    };
    Gate gate = std::make_shared<std::atomic<bool>>(false);
    auto given = std::make_unique<Gate>(gate);
    cuda::check(cudaLaunchHostFunc(stream_.ref().native(), wait, given.get()), "cudaLaunchHostFunc");
    static_cast<void>(given.release());  // `wait` frees it
    return gate;
  }

  std::byte* next(std::size_t bytes) {
    if (at_ + bytes > memory_.bytes()) at_ = 0;
    std::byte* const place = memory_.data() + at_;
    at_ += placed(bytes);
    return place;
  }

  cuda::DeviceBuffer memory_;
  std::size_t at_ = 0;
  int samples_;
  int launches_;
  cuda::Stream stream_;
  cuda::Event done_;
  TimedEvent begin_;
  TimedEvent end_;
};

/// @throws Error (unsupported) unless the driver has loaded the kernel
inline void require_loaded(bool is_loaded, const std::string& what) {
  if (!is_loaded) {
    throw dtrain::Error(dtrain::Errc::unsupported,
                        what + ": the CUDA driver does not load the kernel; see its warning");
  }
}

/// Copies that convert, and with a factor other than 1 multiply.
inline MeasuredKernel scaled_copy(const std::string& what, dtrain::DType from, dtrain::DType to, std::size_t elements,
                                  double factor, cuda::StreamRef stream) {
  require_loaded(cuda::ScaledCopyBatch::load(from, to, stream), what);
  const std::size_t read = elements * dtrain::size_bytes(from);
  const std::size_t written = elements * dtrain::size_bytes(to);
  return {what, placed(read) + placed(written), read + written, [=](std::byte* memory, cuda::StreamRef on) {
            cuda::ScaledCopyBatch batch(from, to);
            batch.add(memory + placed(read), memory, elements);
            batch.enqueue(factor, on);
          }};
}

/// A multiplication in place by a factor in device memory. Lifetime: that memory outlives the launches.
inline MeasuredKernel scale_in_place(const std::string& what, dtrain::DType dtype, std::size_t elements,
                                     const double* factor, cuda::StreamRef stream) {
  require_loaded(cuda::ScaledCopyBatch::load_in_place(dtype, factor, stream), what);
  const std::size_t bytes = elements * dtrain::size_bytes(dtype);
  return {what, placed(bytes), 2 * bytes, [=](std::byte* memory, cuda::StreamRef on) {
            cuda::ScaledCopyBatch batch(dtype, dtype);
            batch.add(memory, memory, elements);
            batch.enqueue_in_place(factor, on);
          }};
}

/// @param sums in device memory, as many as square_sum_blocks() has at most Lifetime: they outlive the launches
inline MeasuredKernel square_sums(const std::string& what, dtrain::DType dtype, std::size_t elements, double* sums,
                                  cuda::StreamRef stream) {
  require_loaded(cuda::SquareSumKernel::load(dtype, sums, stream), what);
  const std::size_t bytes = elements * dtrain::size_bytes(dtype);
  return {what, placed(bytes), bytes + cuda::square_sum_blocks(bytes) * sizeof(double),
          [=](std::byte* memory, cuda::StreamRef on) {
            cuda::SquareSumKernel::find(dtype).enqueue(
                {memory, elements, dtype, {dtrain::DeviceKind::cuda, on.device().index}}, sums, on);
          }};
}

/// The update of a ShardedOptimizer, whose new weights take the place of the gradients.
inline MeasuredKernel adamw_update(const std::string& what, dtrain::DType dtype, std::size_t elements,
                                   cuda::StreamRef stream) {
  require_loaded(cuda::UpdateKernel::load(cuda::Update::adam, dtype, stream), what);
  const std::size_t gradients = elements * dtrain::size_bytes(dtype);
  const std::size_t floats = elements * sizeof(float);
  // Gradients and three f32 arrays are read; the states and the new weights are written, of 16 bits also in f32.
  const std::size_t written = gradients + 2 * floats + (dtrain::size_bytes(dtype) == 2 ? floats : 0);
  return {
      what, placed(gradients) + 3 * placed(floats), gradients + 3 * floats + written,
      [=](std::byte* memory, cuda::StreamRef on) {
        std::byte* const weights = memory + placed(gradients);
        cuda::UpdateArguments given{dtrain::ddp::detail::update_numbers(dtrain::optimizers::AdamW{.rate = 1e-4F}, 3)};
        given.states = {reinterpret_cast<float*>(weights + placed(floats)),
                        reinterpret_cast<float*>(weights + 2 * placed(floats))};
        cuda::UpdateBatch batch(cuda::Update::adam, dtype);
        batch.add({memory, memory, weights}, 0, elements);
        batch.enqueue(given, on);
      }};
}

/// Measures kernels one after the other.
class KernelRates {
 public:
  struct Options {
    std::size_t largest_bytes;  ///< of the arrays that are given to each()
    int samples = 7;
    int launches = 32;   ///< of a sample, fewer if they would move more than 1 GiB
    std::string only{};  ///< part of the names of the kernels that are measured; empty: all
  };

  /// @throws Error (cuda)
  explicit KernelRates(Options options)
      : options_(std::move(options)),
        timer_(memory_bytes(options_.largest_bytes), options_.samples, options_.launches),
        small_(placed(sizeof(double)) + norm_sums * sizeof(double)) {
    const double factor = 0.999;
    cuda::check(cudaMemsetAsync(small_.data(), 0x3c, small_.bytes(), timer_.stream().native()), "cudaMemsetAsync");
    cuda::check(
        cudaMemcpyAsync(small_.data(), &factor, sizeof factor, cudaMemcpyHostToDevice, timer_.stream().native()),
        "cudaMemcpyAsync");
    cuda::check(cudaStreamSynchronize(timer_.stream().native()), "cudaStreamSynchronize");
  }

  /// Bytes of device memory for arrays of at most so many: a gradient of 16 bits has 12 bytes of f32 beside it.
  static constexpr std::size_t memory_bytes(std::size_t largest_bytes) noexcept { return 7 * placed(largest_bytes); }

  /// Blocking: measures the kernels with arrays of so many bytes. A kernel that converts, or has f32 states, has more.
  /// @param bytes at most largest_bytes @param use gets each MeasuredKernel and its KernelRate
  /// @throws Error (cuda, timeout, unsupported)
  template <class Use>
  void each_blocking(dtrain::DType dtype, std::size_t bytes, Use use) {
    constexpr double third = 1.0 / 3;
    const bool is_f32 = dtype == dtrain::DType::f32;
    const dtrain::DType other = is_f32 ? dtrain::DType::bf16 : dtrain::DType::f32;
    const std::string name = is_f32 ? "f32" : "bf16";
    const std::size_t elements = std::max<std::size_t>(bytes / 16, 1) * 16 / dtrain::size_bytes(dtype);
    const auto* const factor = reinterpret_cast<const double*>(small_.data());
    const auto measure = [&](const std::string& what, auto make) {
      if (what.find(options_.only) == std::string::npos) return;
      const MeasuredKernel kernel = make(what, timer_.stream());
      use(kernel, timer_.measure_blocking(kernel));
    };
    measure("copy " + name,
            [&](const auto& what, auto on) { return scaled_copy(what, dtype, dtype, elements, 1, on); });
    measure("scale " + name,
            [&](const auto& what, auto on) { return scaled_copy(what, dtype, dtype, elements, third, on); });
    measure(is_f32 ? "f32 to bf16" : "bf16 to f32",
            [&](const auto& what, auto on) { return scaled_copy(what, dtype, other, elements, 1, on); });
    measure("scale in place " + name,
            [&](const auto& what, auto on) { return scale_in_place(what, dtype, elements, factor, on); });
    measure("square sums " + name,
            [&](const auto& what, auto on) { return square_sums(what, dtype, elements, sums(), on); });
    measure("AdamW " + name, [&](const auto& what, auto on) { return adamw_update(what, dtype, elements, on); });
  }

  /// Blocking: measures the kernels of one block, whose times do not depend on the gradients' bytes. As
  /// each_blocking().
  template <class Use>
  void single_blocks_blocking(Use use) {
    const double unlimited = std::numeric_limits<double>::infinity();
    const auto measure = [&](const char* what, std::uint64_t moved, auto enqueue) {
      if (std::string(what).find(options_.only) == std::string::npos) return;
      const MeasuredKernel kernel{what, 3 * placed(sizeof(cuda::DeviceNorm)), moved, enqueue};
      use(kernel, timer_.measure_blocking(kernel));
    };
    const auto norm_at = [](std::byte* memory, std::size_t i) {
      return reinterpret_cast<cuda::DeviceNorm*>(memory + i * placed(sizeof(cuda::DeviceNorm)));
    };
    const auto scale_at = [](std::byte* memory) {
      return reinterpret_cast<cuda::DeviceScale*>(memory + 2 * placed(sizeof(cuda::DeviceNorm)));
    };
    const cuda::DeviceBuffer first(3 * placed(sizeof(cuda::DeviceNorm)));
    cuda::NormKernels norms;
    cuda::UnscaleKernel unscale;
    require_loaded(norms.load(norm_at(first.data(), 0), norm_at(first.data(), 1), timer_.stream()), "norm");
    require_loaded(
        unscale.load(norm_at(first.data(), 0), norm_at(first.data(), 1), scale_at(first.data()), timer_.stream()),
        "unscale");
    measure("norm of sums", norm_sums * sizeof(double) + 2 * sizeof(cuda::DeviceNorm),
            [&](std::byte* memory, cuda::StreamRef on) {
              norms.measure(norm_at(memory, 0), norm_at(memory, 1), sums(), norm_sums, on);
            });
    measure("rescale", 3 * sizeof(cuda::DeviceNorm), [&](std::byte* memory, cuda::StreamRef on) {
      norms.rescale(norm_at(memory, 0), norm_at(memory, 1), 1, unlimited, on);
    });
    measure("unscale", 3 * sizeof(cuda::DeviceNorm) + 2 * sizeof(cuda::DeviceScale),
            [&](std::byte* memory, cuda::StreamRef on) {
              unscale.enqueue(norm_at(memory, 0), norm_at(memory, 1), scale_at(memory), {2, 0.5F, 2000}, unlimited, on);
            });
  }

 private:
  /// Those of 16 buckets with as many blocks as square_sum_blocks() has at most.
  static constexpr std::size_t norm_sums = std::size_t{16} * 512;

  double* sums() const noexcept { return reinterpret_cast<double*>(small_.data() + placed(sizeof(double))); }

  Options options_;
  KernelTimer timer_;
  cuda::DeviceBuffer small_;  ///< the factor of scale_in_place(), then sums of squares
};

}  // namespace bench
