#pragma once
/// @file
/// SquareSumKernel: CUDA kernel that sums an array's squares, one sum for each block of threads, in an order fixed by
/// its size.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/core/config.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/buffer_view.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

inline constexpr std::uint32_t square_sum_threads = 256;  ///< a power of two
inline constexpr const char* square_sum_name = "dtrain_square_sums";

/// Bytes that a thread reads at a time; the array's address and size are multiples of them.
inline constexpr std::size_t square_sum_bytes = 16;

/// Bytes of a block of threads: 8 reads for each thread.
inline constexpr std::size_t square_sum_block_bytes = 8 * square_sum_bytes * square_sum_threads;

/// Blocks for an array of so many bytes, at most as many as keep a large GPU busy. The number depends on the bytes
/// only, so that all ranks add in the same order.
constexpr std::uint32_t square_sum_blocks(std::size_t bytes) noexcept {
  const std::size_t blocks = bytes / square_sum_block_bytes + (bytes % square_sum_block_bytes != 0 ? 1 : 0);
  return static_cast<std::uint32_t>(std::min<std::size_t>(blocks, 512));
}

/// The kernel `square_sum_name`(array, its bytes, sums): block b writes its sum of squares to sums[b], in f64. Thread t
/// of block b reads 16 bytes at index b * square_sum_threads + t, and at each further multiple of all threads. The
/// threads' sums are added pairwise, by halves. Equal arrays therefore give equal bits. Squares are exact, except of
/// f64.
inline std::string square_sum_text(DType dtype) {
  const auto count = static_cast<unsigned>(square_sum_bytes / size_bytes(dtype));
  std::string add;
  for (unsigned i = 0; i < count; ++i) {
    add += dtype == DType::f64 ? "mov.f64 %wide, " + ptx::registers(dtype, 's', i, 1) + ";\n"
                               : ptx::widen_element(dtype, i) + "cvt.f64.f32 %wide, %value;\n";
    add += "fma.rn.f64 %sum, %wide, %wide, %sum;\n";
  }
  return ptx::header + std::string(".visible .entry ") + square_sum_name +
         format_text(
             "(\n.param .u64 array,\n.param .u64 bytes,\n.param .u64 sums)\n"
             "{\n"
             ".reg .pred %is_done;\n"
             ".reg .u32 %block, %blocks, %thread, %index, %slot, %other, %half, %bits;\n"
             ".reg .u64 %read, %end, %step, %written;\n"
             ".reg .f32 %value;\n"
             ".reg .f64 %sum, %wide;\n"
             "{}"
             ".shared .align 8 .b8 partial[{}];\n",
             {ptx::declaration(dtype, 's', count), 8 * square_sum_threads}) +
         format_text(
             "mov.u32 %block, %ctaid.x;\n"
             "mov.u32 %blocks, %nctaid.x;\n"
             "mov.u32 %thread, %tid.x;\n"
             "ld.param.u64 %read, [array];\n"
             "ld.param.u64 %end, [bytes];\n"
             "cvta.to.global.u64 %read, %read;\n"
             "add.u64 %end, %read, %end;\n"
             "mad.lo.u32 %index, %block, {}, %thread;\n"
             "mad.wide.u32 %read, %index, {}, %read;\n"
             "mul.wide.u32 %step, %blocks, {};\n"
             "mov.f64 %sum, 0d0000000000000000;\n"
             "READ:\n"
             "setp.ge.u64 %is_done, %read, %end;\n"
             "@%is_done bra READ_DONE;\n"
             "{}{}"
             "add.u64 %read, %read, %step;\n"
             "bra READ;\n"
             "READ_DONE:\n",
             {square_sum_threads, square_sum_bytes, square_sum_threads * square_sum_bytes,
              ptx::transfer(dtype, 's', "ld", "%read", count), add}) +
         ptx::add_over_block(square_sum_threads) +
         "ld.param.u64 %written, [sums];\n"
         "cvta.to.global.u64 %written, %written;\n"
         "mad.wide.u32 %written, %block, 8, %written;\n"
         "st.global.f64 [%written+0], %sum;\n"
         "END:\n"
         "ret;\n}\n";
}

/// The kernel of square_sum_text(), for one type. Trivially copyable; valid until the process ends.
class SquareSumKernel {
 public:
  /// The kernel for this type, or none if is_float() is false or the driver does not load it: see load(). Threads: any.
  static SquareSumKernel find(DType dtype) {
    static DriverKernel kept[types];
    SquareSumKernel kernel;
    if (is_float(dtype)) {
      kernel.kernel_ = DriverKernel::load_once(
          kept[static_cast<std::size_t>(dtype)], [&] { return square_sum_text(dtype); }, square_sum_name);
    }
    return kernel;
  }

  /// Launches the kernel for no elements; it writes one sum, of 0, to `sums`. @returns whether the driver has loaded
  /// the kernel for the stream's device, as it does at the first launch there
  static bool load(DType dtype, double* sums, StreamRef stream) {
    const SquareSumKernel kernel = find(dtype);
    return kernel && launches([&] { kernel.launch(nullptr, 0, 1, sums, stream); });
  }

  explicit operator bool() const noexcept { return static_cast<bool>(kernel_); }

  /// Enqueued: writes square_sum_blocks(bytes of `array`) sums, at least one. Requires: a kernel of the array's type;
  /// address and bytes are multiples of square_sum_bytes. Lifetime: the memory outlives the work.
  /// @param sums pinned or device memory @throws Error (cuda)
  void enqueue(const BufferView& array, double* sums, StreamRef stream) const {
    launch(array.data, array.bytes(), square_sum_blocks(array.bytes()), sums, stream);
  }

 private:
  /// Enumerators up to the last that is_float() takes.
  static constexpr std::size_t types = static_cast<std::size_t>(DType::bf16) + 1;

  void launch(const std::byte* array, std::uint64_t bytes, std::uint32_t blocks, double* sums, StreamRef stream) const {
    void* arguments[] = {&array, &bytes, &sums};
    kernel_.launch(blocks, square_sum_threads, arguments, stream);
  }

  DriverKernel kernel_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
