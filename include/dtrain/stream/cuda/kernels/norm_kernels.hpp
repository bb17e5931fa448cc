#pragma once
/// @file
/// NormKernels, UnscaleKernel: CUDA kernels that keep the gradients' norm, and the factor that clips or unscales them,
/// in device memory.

#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

/// The norm of gradients, as kernels read and write it in device memory, with a copy in pinned memory for the host.
struct DeviceNorm {
  double norm = 0;
  double before_clipping = 0;    ///< the norm without the factors of clipping
  double factor = 1;             ///< next multiplier of the gradients
  float found_inf = 0;           ///< 1 if the sum of the squares is not finite, else 0
  std::uint32_t is_written = 0;  ///< 1 after a kernel has written
};
static_assert(sizeof(DeviceNorm) == 32);

/// The scale of a DeviceLossScaler, in device memory.
struct DeviceScale {
  float scale = 0;
  std::uint32_t unused = 0;
  std::int64_t finite_steps = 0;  ///< since the scale changed
};
static_assert(sizeof(DeviceScale) == 16);

/// How a scale changes: see LossScalerOptions.
struct ScaleRule {
  float growth_factor;
  float backoff_factor;
  std::int64_t growth_interval;
};

inline constexpr std::uint32_t norm_threads = 512;  ///< threads of the kernel that adds sums; a power of two
inline constexpr const char* norm_name = "dtrain_norm";
inline constexpr const char* rescale_name = "dtrain_rescale";
inline constexpr const char* unscale_name = "dtrain_unscale";

namespace ptx {

/// Begins a kernel of one thread, or of the threads of add_over_block().
/// @param parameters further ones, after the addresses of the norm and of its copy
inline std::string norm_header(const char* name, const char* parameters) {
  return header + format_text(
                      ".visible .entry {}(\n.param .u64 norm,\n.param .u64 copy{})\n"
                      "{\n"
                      ".reg .pred %is_finite, %is_less;\n"
                      ".reg .u32 %written;\n"
                      ".reg .u64 %state, %copied;\n"
                      ".reg .f32 %found;\n"
                      ".reg .f64 %norm, %before, %factor;\n"
                      "ld.param.u64 %state, [norm];\n"
                      "ld.param.u64 %copied, [copy];\n"
                      "cvta.to.global.u64 %state, %state;\n"
                      "cvta.to.global.u64 %copied, %copied;\n"
                      "mov.u32 %written, 1;\n",
                      {name, parameters});
}

/// Reads a DeviceNorm, without its factor.
inline std::string load_norm() {
  return "ld.global.f64 %norm, [%state+0];\n"
         "ld.global.f64 %before, [%state+8];\n"
         "ld.global.f32 %found, [%state+24];\n"
         "setp.eq.f32 %is_finite, %found, 0f00000000;\n";
}

/// Writes a DeviceNorm and its copy.
inline std::string store_norm() {
  std::string text;
  for (const char* const to : {"%state", "%copied"}) {
    text += format_text(
        "st.global.f64 [{}+0], %norm;\n"
        "st.global.f64 [{}+8], %before;\n"
        "st.global.f64 [{}+16], %factor;\n"
        "st.global.f32 [{}+24], %found;\n"
        "st.global.u32 [{}+28], %written;\n",
        {to, to, to, to, to});
  }
  return text;
}

/// Multiplies the norm and the factor by min(1, max_norm / (norm + 1e-6)) if the gradients are finite, with the bits of
/// clip_gradients.
inline std::string clip_norm() {
  return ".reg .f64 %clipping, %most;\n"
         "ld.param.f64 %most, [max_norm];\n"
         "add.rn.f64 %clipping, %norm, 0d3EB0C6F7A0B5ED8D;\n"  // 1e-6
         "div.rn.f64 %clipping, %most, %clipping;\n"
         "setp.lt.f64 %is_less, %clipping, 0d3FF0000000000000;\n"
         "and.pred %is_less, %is_less, %is_finite;\n"
         "selp.f64 %clipping, %clipping, 0d3FF0000000000000, %is_less;\n"
         "mul.rn.f64 %norm, %norm, %clipping;\n"
         "mul.rn.f64 %factor, %factor, %clipping;\n";
}

}  // namespace ptx

/// The kernel `norm_name`(norm, copy, sums, their bytes): the root of the sum of all sums. Thread t adds the sums t,
/// t + norm_threads, and so on; the threads' sums are added pairwise. Equal sums therefore give equal bits.
inline std::string norm_text() {
  return ptx::norm_header(norm_name, ",\n.param .u64 sums,\n.param .u64 bytes") +
         format_text(
             ".reg .pred %is_done;\n"
             ".reg .u32 %thread, %slot, %other, %half;\n"
             ".reg .u64 %read, %end;\n"
             ".reg .f64 %sum, %wide;\n"
             ".shared .align 8 .b8 partial[{}];\n"
             "mov.u32 %thread, %tid.x;\n"
             "ld.param.u64 %read, [sums];\n"
             "ld.param.u64 %end, [bytes];\n"
             "cvta.to.global.u64 %read, %read;\n"
             "add.u64 %end, %read, %end;\n"
             "mad.wide.u32 %read, %thread, 8, %read;\n"
             "mov.f64 %sum, 0d0000000000000000;\n"
             "READ:\n"
             "setp.ge.u64 %is_done, %read, %end;\n"
             "@%is_done bra READ_DONE;\n"
             "ld.global.f64 %wide, [%read+0];\n"
             "add.rn.f64 %sum, %sum, %wide;\n"
             "add.u64 %read, %read, {};\n"
             "bra READ;\n"
             "READ_DONE:\n",
             {8 * norm_threads, 8 * norm_threads}) +
         ptx::add_over_block(norm_threads) +
         "sqrt.rn.f64 %norm, %sum;\n"
         "mov.f64 %before, %norm;\n"
         "mov.f64 %factor, 0d3FF0000000000000;\n"
         "setp.lt.f64 %is_finite, %sum, 0d7FF0000000000000;\n"
         "selp.f32 %found, 0f00000000, 0f3F800000, %is_finite;\n" +
         ptx::store_norm() + "END:\nret;\n}\n";
}

/// The kernel `rescale_name`(norm, copy, factor, max_norm), of one thread: multiplies the norm by `factor`, then by
/// min(1, max_norm / (norm + 1e-6)) if the gradients are finite, with the bits of GradientNorm::times and
/// clip_gradients. The new factor is the product of both.
inline std::string rescale_text() {
  return ptx::norm_header(rescale_name, ",\n.param .f64 factor,\n.param .f64 max_norm") + ptx::load_norm() +
         ".reg .u64 %bits;\n"
         ".reg .f64 %magnitude;\n"
         "ld.param.f64 %factor, [factor];\n"
         "mov.b64 %bits, %factor;\n"
         "and.b64 %bits, %bits, 9223372036854775807;\n"  // clears the sign
         "mov.b64 %magnitude, %bits;\n"
         "mul.rn.f64 %norm, %norm, %magnitude;\n"
         "mul.rn.f64 %before, %before, %magnitude;\n" +
         ptx::clip_norm() + ptx::store_norm() + "ret;\n}\n";
}

/// The kernel `unscale_name`(norm, copy, scale, growth_factor, backoff_factor, growth_interval, max_norm), of one
/// thread: divides the norm by the scale if the gradients are finite, clips it, and changes the scale, with the bits of
/// LossScaler and clip_gradients. The factor is the product of 1 / scale and of clipping, or 1. By a scale that is no
/// finite positive number nothing is divided: it stays, and found_inf becomes 1.
inline std::string unscale_text() {
  return ptx::norm_header(unscale_name,
                          ",\n.param .u64 scale,\n.param .f32 growth,\n.param .f32 backoff,\n.param .u64 interval,\n"
                          ".param .f64 max_norm") +
         ptx::load_norm() +
         ".reg .pred %grows, %is_positive;\n"
         ".reg .u64 %place, %steps, %interval;\n"
         ".reg .f32 %scale, %next, %smaller, %growth, %backoff;\n"
         ".reg .f64 %wide;\n"
         "ld.param.u64 %place, [scale];\n"
         "ld.param.f32 %growth, [growth];\n"
         "ld.param.f32 %backoff, [backoff];\n"
         "ld.param.u64 %interval, [interval];\n"
         "cvta.to.global.u64 %place, %place;\n"
         "ld.global.f32 %scale, [%place+0];\n"
         "ld.global.u64 %steps, [%place+8];\n"
         "cvt.f64.f32 %wide, %scale;\n"
         "setp.lt.f64 %is_positive, 0d0000000000000000, %wide;\n"
         "setp.lt.f64 %is_less, %wide, 0d7FF0000000000000;\n"
         "and.pred %is_positive, %is_positive, %is_less;\n"
         "and.pred %is_finite, %is_finite, %is_positive;\n"
         "selp.f32 %found, %found, 0f3F800000, %is_positive;\n"
         "div.rn.f64 %factor, 0d3FF0000000000000, %wide;\n"
         "selp.f64 %factor, %factor, 0d3FF0000000000000, %is_finite;\n"
         "mul.rn.f64 %norm, %norm, %factor;\n"
         "mul.rn.f64 %before, %before, %factor;\n" +
         ptx::clip_norm() + ptx::store_norm() +
         "add.u64 %steps, %steps, 1;\n"
         "setp.ge.u64 %grows, %steps, %interval;\n"
         "mul.rn.f32 %next, %scale, %growth;\n"
         "selp.f32 %next, %next, %scale, %grows;\n"
         "selp.b64 %steps, 0, %steps, %grows;\n"
         "mul.rn.f32 %smaller, %scale, %backoff;\n"
         "selp.f32 %next, %next, %smaller, %is_finite;\n"
         "selp.b64 %steps, %steps, 0, %is_finite;\n"
         "cvt.f64.f32 %wide, %next;\n"
         "setp.lt.f64 %is_positive, 0d0000000000000000, %wide;\n"
         "setp.lt.f64 %is_less, %wide, 0d7FF0000000000000;\n"
         "and.pred %is_positive, %is_positive, %is_less;\n"
         "selp.f32 %next, %next, %scale, %is_positive;\n"
         "st.global.f32 [%place+0], %next;\n"
         "st.global.u64 [%place+8], %steps;\n"
         "ret;\n}\n";
}

/// The kernels of norm_text() and rescale_text(). Each function enqueues a launch, and throws Error (cuda). Trivially
/// copyable; valid until the process ends. Lifetime: the memory outlives the work.
class NormKernels {
 public:
  /// Loads the kernels, and launches each once. Writes `norm` and `copy`. Call load() before other functions.
  /// @returns false if the driver has not loaded the kernels for the stream's device, which is logged
  bool load(DeviceNorm* norm, DeviceNorm* copy, StreamRef stream) {
    static DriverKernel norm_kernel;
    static DriverKernel rescale_kernel;
    norm_ = DriverKernel::load_once(norm_kernel, norm_text, norm_name);
    rescale_ = DriverKernel::load_once(rescale_kernel, rescale_text, rescale_name);
    return norm_ && rescale_ && launches([&] {
             measure(norm, copy, nullptr, 0, stream);
             rescale(norm, copy, 1, 1, stream);
           });
  }

  /// Writes the norm of gradients that have these sums of squares. @param sums in device memory
  void measure(DeviceNorm* norm, DeviceNorm* copy, const double* sums, std::size_t count, StreamRef stream) const {
    std::uint64_t bytes = count * sizeof(double);
    void* arguments[] = {&norm, &copy, &sums, &bytes};
    norm_.launch(1, norm_threads, arguments, stream);
  }

  /// Multiplies by `factor`, then clips. @param max_norm infinity: does not clip
  void rescale(DeviceNorm* norm, DeviceNorm* copy, double factor, double max_norm, StreamRef stream) const {
    void* arguments[] = {&norm, &copy, &factor, &max_norm};
    rescale_.launch(1, 1, arguments, stream);
  }

 private:
  DriverKernel norm_;
  DriverKernel rescale_;
};

/// The kernel of unscale_text(); see NormKernels.
class UnscaleKernel {
 public:
  /// Loads the kernel, and launches it once; writes all three.
  bool load(DeviceNorm* norm, DeviceNorm* copy, DeviceScale* scale, StreamRef stream) {
    static DriverKernel kernel;
    kernel_ = DriverKernel::load_once(kernel, unscale_text, unscale_name);
    return kernel_ && launches([&] { enqueue(norm, copy, scale, {2, 0.5F, 1}, 1, stream); });
  }

  /// Divides by the scale, then clips, and changes the scale. @param max_norm infinity: does not clip
  void enqueue(DeviceNorm* norm, DeviceNorm* copy, DeviceScale* scale, ScaleRule rule, double max_norm,
               StreamRef stream) const {
    void* arguments[] = {&norm,    &copy, &scale, &rule.growth_factor, &rule.backoff_factor, &rule.growth_interval,
                         &max_norm};
    kernel_.launch(1, 1, arguments, stream);
  }

 private:
  DriverKernel kernel_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
