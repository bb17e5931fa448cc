#pragma once
/// @file
/// ScaledCopyBatch: many copies within a CUDA device that convert and scale elements, enqueued together. ScaleKernel:
/// their kernel in PTX.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// One array, as the kernel reads it from its parameters.
struct ScaleKernelEntry {
  std::uint64_t target;
  std::uint64_t source;
  std::uint32_t elements;
  std::uint32_t first_block;  ///< the array's first block; entries are sorted by it
};

/// Entries of one launch. Their 3 KiB fit into the 4 KiB of a kernel's parameters, so that the launch copies them: no
/// memory must outlive it, and a graph stores them.
inline constexpr std::size_t max_scale_entries = 128;
inline constexpr std::uint32_t scale_block_threads = 256;
inline constexpr std::uint32_t scale_block_elements = 8192;  ///< elements of one array; a power of two
inline constexpr const char* scale_kernel_name = "dtrain_scale";

/// Where a launch finds its factor.
enum class FactorSource { parameter, device_memory };

/// Element types between which the kernel converts: f32, f16 and bf16 with each other, f64 with itself.
constexpr bool can_scale(DType from, DType to) noexcept {
  const auto is_short = [](DType dtype) { return dtype == DType::f32 || dtype == DType::f16 || dtype == DType::bf16; };
  return (is_short(from) && is_short(to)) || (from == DType::f64 && to == DType::f64);
}

namespace ptx {

/// Converts element `i` to the type of the product, multiplies, and rounds it once to the target's type.
inline std::string scaled_element(DType from, DType to, unsigned i) {
  if (from == DType::f64) {
    return format_text("mul.rn.f64 {}, {}, %factor;\n", {registers(to, 't', i, 1), registers(from, 's', i, 1)});
  }
  return widen_element(from, i) + "mul.rn.f32 %value, %value, %factor;\n" + narrow_element(to, "%value", i);
}

/// scaled_element(), but with %copies the bits of the source, which a product of a NaN would not have.
inline std::string scale_element(DType from, DType to, unsigned i) {
  const std::string source = registers(from, 's', i, 1);
  const std::string target = registers(to, 't', i, 1);
  return scaled_element(from, to, i) +
         (from != to ? "" : format_text("selp.{} {}, {}, {}, %copies;\n", {memory_type(to), target, source, target}));
}

/// A loop of one thread over elements from %index to `end`, `count` at a time.
inline std::string loop(DType from, DType to, const std::string& label, const char* end, unsigned count) {
  std::string text = format_text(
      "{}:\n"
      "setp.ge.u32 %is_done, %index, {};\n"
      "@%is_done bra {}_DONE;\n"
      "mad.wide.u32 %read, %index, {}, %source;\n"
      "mad.wide.u32 %written, %index, {}, %target;\n{}",
      {label, end, label, size_bytes(from), size_bytes(to), transfer(from, 's', "ld", "%read", count)});
  for (unsigned i = 0; i < count; ++i) {
    text += scale_element(from, to, i);
  }
  return text + format_text("{}add.u32 %index, %index, {};\nbra {};\n{}_DONE:\n",
                            {transfer(to, 't', "st", "%written", count), count * scale_block_threads, label, label});
}

/// Sets %factor to the f64 at the address in the parameter, and goes to the label END for the factor 1.
inline std::string factor_at_address(DType dtype) {
  return std::string(
             ".reg .f64 %stored;\n"
             "ld.param.u64 %read, [factor];\n"
             "cvta.to.global.u64 %read, %read;\n"
             "ld.global.f64 %stored, [%read+0];\n"
             "setp.eq.f64 %is_done, %stored, 0d3FF0000000000000;\n"
             "@%is_done bra END;\n") +
         (dtype == DType::f64 ? "mov.f64 %factor, %stored;\n" : "cvt.rn.f32.f64 %factor, %stored;\n");
}

}  // namespace ptx

/// The kernel `scale_kernel_name`(entries, number of entries, factor): each element of each target becomes the source's
/// element times the factor, computed in f32 (f64 for f64) and rounded once to nearest even. Subnormals are kept, NaNs
/// stay NaNs. Between equal types the factor 1 copies all bits, also a NaN's. One array of `n` elements takes ceil(n /
/// scale_block_elements) blocks of scale_block_threads threads. A block finds its entry by binary search. Where both
/// addresses are multiples of 16 bytes, a thread moves 16 or 32 bytes at a time. Target and source are the same memory
/// or disjoint.
/// @param source device_memory: the factor is the f64 at an address, rounded to f32 except for f64; each target is its
/// source, and for the factor 1 a block reads and writes no element
inline std::string scale_kernel_text(DType from, DType to, FactorSource source = FactorSource::parameter) {
  const bool by_address = source == FactorSource::device_memory;
  const std::string float_type = from == DType::f64 ? "f64" : "f32";
  const unsigned at_a_time = from == DType::f64 ? 2 : size_bytes(from) == 4 && size_bytes(to) == 4 ? 4 : 8;
  return ptx::header + std::string(".visible .entry ") + scale_kernel_name + "(\n.param .align 8 .b8 entries[" +
         std::to_string(max_scale_entries * sizeof(ScaleKernelEntry)) + "],\n.param .u32 entry_count,\n.param ." +
         (by_address ? "u64" : float_type) +
         " factor)\n{\n"
         ".reg .pred %is_nan, %copies;\n"
         ".reg .u32 %whole, %index, %bits, %odd;\n"
         ".reg .u64 %source, %target, %read, %written, %misaligned;\n"
         ".reg .f32 %value;\n" +
         ptx::entry_registers + ".reg ." + float_type + " %factor;\n" + ptx::declaration(from, 's', at_a_time) +
         ptx::declaration(to, 't', at_a_time) +
         (by_address ? ptx::factor_at_address(from) : "ld.param." + float_type + " %factor, [factor];\n") +
         format_text("setp.eq.{} %copies, %factor, {};\n",
                     {float_type, from == DType::f64 ? "0d3FF0000000000000" : "0f3F800000"}) +
         ptx::find_entry(sizeof(ScaleKernelEntry), offsetof(ScaleKernelEntry, elements), scale_block_elements) +
         "ld.param.u64 %target, [%entry+0];\n"
         "ld.param.u64 %source, [%entry+8];\n"
         "cvta.to.global.u64 %target, %target;\n"
         "cvta.to.global.u64 %source, %source;\n"
         "or.b64 %misaligned, %target, %source;\n"
         "and.b64 %misaligned, %misaligned, 15;\n"
         "setp.ne.u64 %is_done, %misaligned, 0;\n"
         "mov.u32 %whole, %begin;\n"
         "@%is_done bra VECTOR_DONE;\n"
         "and.b32 %whole, %end, " +
         std::to_string(~(at_a_time - 1U)) +  // begin is also a multiple
         ";\n"
         "mad.lo.u32 %index, %thread, " +
         std::to_string(at_a_time) + ", %begin;\n" + ptx::loop(from, to, "VECTOR", "%whole", at_a_time) +
         "add.u32 %index, %whole, %thread;\n" + ptx::loop(from, to, "SINGLE", "%end", 1) + "END:\nret;\n}\n";
}

/// The kernel of scale_kernel_text(), for one pair of types. Trivially copyable; valid until the process ends.
class ScaleKernel {
 public:
  /// The kernel for these types, or none if can_scale() is false or the driver does not load it. The driver may compile
  /// the text as late as at the first launch, and fail then: see ScaledCopyBatch::load. Threads: any.
  static ScaleKernel find(DType from, DType to, FactorSource source = FactorSource::parameter) {
    static DriverKernel kept[2][types][types];
    ScaleKernel kernel;
    if (can_scale(from, to)) {
      kernel.kernel_ = DriverKernel::load_once(
          kept[static_cast<std::size_t>(source)][static_cast<std::size_t>(from)][static_cast<std::size_t>(to)],
          [&] { return scale_kernel_text(from, to, source); }, scale_kernel_name);
      kernel.is_double_ = from == DType::f64;
    }
    return kernel;
  }

  explicit operator bool() const noexcept { return static_cast<bool>(kernel_); }

  /// Enqueues a launch on the stream's device. Requires: 1 <= count <= max_scale_entries.
  /// @param blocks of all entries @throws Error (cuda)
  void launch(const ScaleKernelEntry* entries, std::size_t count, std::uint32_t blocks, double factor,
              StreamRef stream) const {
    auto single = static_cast<float>(factor);
    launch_with(entries, count, blocks, is_double_ ? static_cast<void*>(&factor) : &single, stream);
  }

  /// The same for a kernel with its factor in device memory.
  void launch(const ScaleKernelEntry* entries, std::size_t count, std::uint32_t blocks, const double* factor,
              StreamRef stream) const {
    launch_with(entries, count, blocks, &factor, stream);
  }

 private:
  /// Enumerators up to the last that can_scale() takes.
  static constexpr std::size_t types = static_cast<std::size_t>(DType::bf16) + 1;

  void launch_with(const ScaleKernelEntry* entries, std::size_t count, std::uint32_t blocks, void* factor,
                   StreamRef stream) const {
    ScaleKernelEntry parameter[max_scale_entries] = {};
    std::copy_n(entries, count, parameter);
    auto entry_count = static_cast<std::uint32_t>(count);
    void* arguments[] = {parameter, &entry_count, factor};
    kernel_.launch(blocks, scale_block_threads, arguments, stream);
  }

  DriverKernel kernel_;
  bool is_double_ = false;
};

/// Collects copies of one pair of element types, then enqueues them, 128 arrays a launch. The copies are unordered: no
/// copy may read or write what another one writes; a copy onto itself is allowed. Allocates nothing for as many copies
/// as were reserved. Threads: one at a time.
class ScaledCopyBatch {
 public:
  /// Most elements of one entry; longer copies are cut.
  static constexpr std::size_t max_entry_elements = std::size_t{1} << 31U;

  /// Precondition of add(): load(from, to, stream).
  ScaledCopyBatch(DType from, DType to)
      : kernel_(ScaleKernel::find(from, to)), from_(from), from_bytes_(size_bytes(from)), to_bytes_(size_bytes(to)) {}

  /// Launches the kernel for no elements. @returns whether the driver has loaded the kernel for the device. The driver
  /// loads a kernel at its first launch, and cannot if it has no compiler for PTX.
  static bool load(DType from, DType to, StreamRef stream) { return loads(ScaleKernel::find(from, to), 1.0, stream); }

  /// The same for enqueue_in_place(). @param factor any f64 in device memory
  static bool load_in_place(DType dtype, const double* factor, StreamRef stream) {
    return loads(ScaleKernel::find(dtype, dtype, FactorSource::device_memory), factor, stream);
  }

  void reserve(std::size_t copies) { entries_.reserve(copies); }

  void add(std::byte* to, const std::byte* from, std::size_t elements) {
    while (elements != 0) {
      const std::size_t some = std::min(elements, max_entry_elements);
      entries_.push_back({reinterpret_cast<std::uintptr_t>(to), reinterpret_cast<std::uintptr_t>(from),
                          static_cast<std::uint32_t>(some), 0});
      to += some * to_bytes_;
      from += some * from_bytes_;
      elements -= some;
    }
  }

  bool empty() const noexcept { return entries_.empty(); }

  /// Enqueues the copies, and empties the batch. Each target element becomes the source's element times `factor`, see
  /// scale_kernel_text(). Lifetime: the memory outlives the work, the batch need not.
  /// @throws Error (cuda); some copies may be enqueued in spite of it
  void enqueue(double factor, StreamRef stream) { launch_all(kernel_, factor, stream); }

  /// Enqueues the multiplication of arrays that were added as copies onto themselves, by the f64 that device memory has
  /// at `factor` when the work runs; for 1 the arrays are neither read nor written. Requires: load_in_place(). Lifetime
  /// and @throws as enqueue.
  void enqueue_in_place(const double* factor, StreamRef stream) {
    launch_all(ScaleKernel::find(from_, from_, FactorSource::device_memory), factor, stream);
  }

 private:
  template <class Factor>
  static bool loads(const ScaleKernel& kernel, Factor factor, StreamRef stream) {
    const ScaleKernelEntry nothing{};
    return kernel && launches([&] { kernel.launch(&nothing, 1, 1, factor, stream); });
  }

  template <class Factor>
  void launch_all(const ScaleKernel& kernel, Factor factor, StreamRef stream) {
    launch_entries(entries_, max_scale_entries, scale_block_elements,
                   [&](const ScaleKernelEntry* entries, std::size_t count, std::uint32_t blocks) {
                     kernel.launch(entries, count, blocks, factor, stream);
                   });
  }

  ScaleKernel kernel_;
  DType from_;
  std::size_t from_bytes_;
  std::size_t to_bytes_;
  std::vector<ScaleKernelEntry> entries_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
