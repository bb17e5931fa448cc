#pragma once
/// @file
/// DriverKernel: a kernel that the CUDA driver loads from PTX text; the texts that all such kernels share.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "dtrain/core/config.hpp"
#include "dtrain/core/error.hpp"
#include "dtrain/core/log.hpp"
#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/check.hpp"
#include "dtrain/stream/cuda/device_guard.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

#if DTRAIN_WITH_CUDA

namespace DTRAIN_NAMESPACE::stream::cuda {

namespace driver {

using LibraryLoadData = int (*)(void** library, const void* text, int* options, void** values, unsigned int count,
                                int* library_options, void** library_values, unsigned int library_count);
using LibraryGetKernel = int (*)(void** kernel, void* library, const char* name);
using LaunchKernel = int (*)(void* kernel, unsigned int blocks_x, unsigned int blocks_y, unsigned int blocks_z,
                             unsigned int threads_x, unsigned int threads_y, unsigned int threads_z,
                             unsigned int shared_bytes, cudaStream_t stream, void** parameters, void** extra);

}  // namespace driver

/// Logs why the driver did not load a kernel, unless that reason was logged last: later kernels have the same reason.
/// Threads: any.
inline void log_unloaded_kernel(const std::string& why) {
  static std::mutex mutex;
  static std::string& last = *new std::string;  // threads may log until the process ends
  const std::lock_guard lock(mutex);
  if (why != last) {
    last = why;
    log(LogLevel::warning,
        format_text(
            "the CUDA driver does not load dtrain's kernels ({}): averages are left to NCCL, unbound gradients "
            "are copied one by one, and measure_norm, DeviceLossScaler, hooks::Cast, hooks::Widen and ShardedOptimizer "
            "are refused on this device",
            {why}));
  }
}

/// Calls `launch`, a kernel's first launch on a device, when the driver loads the kernel. @returns false if it throws
/// Error, which is logged
template <class Launch>
bool launches(Launch launch) {
  try {
    launch();
  } catch (const Error& error) {
    log_unloaded_kernel(error.what());
    return false;
  }
  return true;
}

/// A kernel of the driver. Trivially copyable; valid until the process ends.
class DriverKernel {
 public:
  /// `kept`, a static variable that gets the entry `name` of the text `text()` at the first call; none if the driver
  /// does not load it, which is logged: the next call tries again. The driver may compile the text as late as at the
  /// first launch on a device, and fail then. Threads: any.
  template <class Text>
  static DriverKernel load_once(DriverKernel& kept, Text text, const char* name) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (!kept) kept = load(text(), name);
    return kept;
  }

  explicit operator bool() const noexcept { return kernel_ != nullptr; }

  /// Enqueues a launch on the stream's device. Requires: a kernel.
  /// @param arguments addresses of the parameters, which the launch copies @throws Error (cuda)
  void launch(std::uint32_t blocks, std::uint32_t threads, void** arguments, StreamRef stream) const {
    const DeviceGuard guard(stream.device().index);
    // The runtime makes the device's context the driver's current one only at a thread's first call that needs the
    // device. A function of the driver that is called earlier fails (201, invalid device context).
    check(cudaSetDevice(stream.device().index), "cudaSetDevice");
    const int code = launch_(kernel_, blocks, 1, 1, threads, 1, 1, 0, stream.native(), arguments, nullptr);
    check(static_cast<cudaError_t>(code), "cuLaunchKernel");  // the numbers are the same
  }

 private:
  /// @returns none if the driver does not load the text, which is logged
  static DriverKernel load(const std::string& text, const char* name) {
    constexpr unsigned int version = 12000;
    const auto load_data = reinterpret_cast<driver::LibraryLoadData>(driver_function("cuLibraryLoadData", version));
    const auto get_kernel = reinterpret_cast<driver::LibraryGetKernel>(driver_function("cuLibraryGetKernel", version));
    const auto launch = reinterpret_cast<driver::LaunchKernel>(driver_function("cuLaunchKernel", 4000));
    DriverKernel kernel;
    if (load_data == nullptr || get_kernel == nullptr || launch == nullptr) {
      log_unloaded_kernel("it is older than CUDA 12");
      return kernel;
    }
    void* library = nullptr;
    void* loaded = nullptr;
    if (const int code = load_data(&library, text.c_str(), nullptr, nullptr, 0, nullptr, nullptr, 0)) {
      log_unloaded_kernel(cuda_error(static_cast<cudaError_t>(code), "cuLibraryLoadData").what());
    } else if (const int missing = get_kernel(&loaded, library, name)) {
      log_unloaded_kernel(cuda_error(static_cast<cudaError_t>(missing), "cuLibraryGetKernel").what());
    } else {
      kernel.kernel_ = loaded;
      kernel.launch_ = launch;
    }
    return kernel;
  }

  void* kernel_ = nullptr;
  driver::LaunchKernel launch_ = nullptr;
};

/// Enqueues launches for the entries, at most `most` in each, and empties the list. Entry::first_block becomes the sum
/// of the blocks of the launch's entries before it; an entry of `n` elements has ceil(n / block_elements).
/// @param launch gets the address of its first entry, the number of entries and that of blocks @throws what it throws
template <class Entry, class Launch>
void launch_entries(std::vector<Entry>& entries, std::size_t most, std::uint32_t block_elements, Launch launch) {
  for (std::size_t begin = 0; begin < entries.size(); begin += most) {
    const std::size_t count = std::min(entries.size() - begin, most);
    std::uint32_t blocks = 0;
    for (std::size_t i = begin; i < begin + count; ++i) {
      entries[i].first_block = blocks;
      blocks += (entries[i].elements - 1) / block_elements + 1;
    }
    launch(&entries[begin], count, blocks);
  }
  entries.clear();
}

/// The text is for PTX 6.0 and sm_70; the driver compiles it for the device (PTX ISA, "PTX Module Directives").
namespace ptx {

inline constexpr const char* header = ".version 6.0\n.target sm_70\n.address_size 64\n";

/// Type of a register that memory is read to and written from.
inline std::string memory_type(DType dtype) {
  return dtype == DType::f64 ? "f64" : dtype == DType::f32 ? "f32" : "b16";
}

/// "{%sw0, %sw1}": the registers `prefix`, `first` and following.
inline std::string numbered(const std::string& prefix, unsigned first, unsigned count) {
  std::string text;
  for (unsigned i = first; i < first + count; ++i) {
    text += (text.empty() ? "%" : ", %") + prefix + std::to_string(i);
  }
  return count == 1 ? text : "{" + text + "}";
}

/// "sf" of f32, "sb" of 16 bits, for the letter s.
inline std::string prefix(DType dtype, char letter) {
  return std::string(1, letter) + memory_type(dtype)[0];
}

/// The registers of elements `first` and following.
inline std::string registers(DType dtype, char letter, unsigned first, unsigned count) {
  return numbered(prefix(dtype, letter), first, count);
}

/// Declares registers for `count` elements, and for transfer() of them.
inline std::string declaration(DType dtype, char letter, unsigned count) {
  const bool in_words = size_bytes(dtype) == 2 && count > 1;
  const std::string words = in_words ? format_text(".reg .b32 %{}w<{}>;\n", {std::string(1, letter), count / 2}) : "";
  return format_text(".reg .{} %{}<{}>;\n{}", {memory_type(dtype), prefix(dtype, letter), count, words});
}

/// Reads ("ld") or writes ("st") `count` elements at `address`, 16 bytes at a time if there are as many. Two elements
/// of 16 bits become one word of 32, with the first element in the lower half: an instruction moves four registers at
/// most.
inline std::string transfer(DType dtype, char letter, const char* instruction, const char* address, unsigned count) {
  const bool loads = instruction[0] == 'l';
  const bool in_words = size_bytes(dtype) == 2 && count > 1;
  const auto bytes = static_cast<unsigned>(in_words ? 4 : size_bytes(dtype));
  const unsigned moved = in_words ? count / 2 : count;
  const unsigned width = std::min(moved, 16 / bytes);
  std::string halves;
  for (unsigned i = 0; in_words && i < moved; ++i) {
    const std::string word = numbered(std::string(1, letter) + "w", i, 1);
    const std::string pair = registers(dtype, letter, 2 * i, 2);
    halves += format_text("mov.b32 {}, {};\n", {loads ? pair : word, loads ? word : pair});
  }
  std::string moves;
  for (unsigned first = 0; first < moved; first += width) {
    const std::string names = numbered(in_words ? std::string(1, letter) + "w" : prefix(dtype, letter), first, width);
    const std::string place = format_text("[{}+{}]", {address, first * bytes});
    moves += format_text("{}.global{}.{} {}, {};\n",
                         {instruction, width == 1 ? "" : ".v" + std::to_string(width),
                          in_words ? "b32" : memory_type(dtype), loads ? names : place, loads ? place : names});
  }
  return loads ? moves + halves : halves + moves;
}

/// Sets %value to element `i` of f32, f16 or bf16; uses %bits.
inline std::string widen_element(DType dtype, unsigned i) {
  const std::string source = registers(dtype, 's', i, 1);
  return dtype == DType::f32 ? "mov.f32 %value, " + source + ";\n"
         : dtype == DType::f16
             ? "cvt.f32.f16 %value, " + source + ";\n"
             : "cvt.u32.u16 %bits, " + source + ";\nshl.b32 %bits, %bits, 16;\nmov.b32 %value, %bits;\n";
}

/// Sets element `i` of the f32, f16 or bf16 array to the f32 register `value`, rounded to nearest even; a NaN stays
/// one. Uses %bits, %odd and %is_nan: integers round to bf16, because sm_70 and sm_75 have no instruction for bf16.
inline std::string narrow_element(DType dtype, const char* value, unsigned i) {
  const std::string target = registers(dtype, 't', i, 1);
  if (dtype == DType::f32) return format_text("mov.f32 {}, {};\n", {target, value});
  if (dtype == DType::f16) return format_text("cvt.rn.f16.f32 {}, {};\n", {target, value});
  return format_text(
      "mov.b32 %bits, {};\n"
      "shr.u32 %odd, %bits, 16;\n"
      "and.b32 %odd, %odd, 1;\n"
      "add.u32 %bits, %bits, 32767;\n"
      "add.u32 %bits, %bits, %odd;\n"
      "shr.u32 %bits, %bits, 16;\n"
      "setp.nan.f32 %is_nan, {}, {};\n"
      "selp.b32 %bits, 32704, %bits, %is_nan;\n"  // 0x7fc0
      "cvt.u16.u32 {}, %bits;\n",
      {value, value, value, target});
}

/// The registers of find_entry().
inline constexpr const char* entry_registers =
    ".reg .pred %is_done;\n"
    ".reg .u32 %block, %thread, %low, %high, %middle, %first, %elements, %begin, %end;\n"
    ".reg .u64 %table, %entry;\n";

/// Sets %entry to the address of the entry of this block, among the parameters `entries` and `entry_count` of
/// launch_entries(), by binary search; %begin and %end to this block's elements of the entry's array; %block and
/// %thread.
/// @param elements_at place of Entry::elements, a u32, which Entry::first_block follows
inline std::string find_entry(std::size_t entry_bytes, std::size_t elements_at, std::uint32_t block_elements) {
  return format_text(
      "ld.param.u32 %high, [entry_count];\n"
      "mov.b64 %table, entries;\n"
      "mov.u32 %block, %ctaid.x;\n"
      "mov.u32 %thread, %tid.x;\n"
      "mov.u32 %low, 0;\n"
      "SEARCH:\n"  // the block's entry is in [low, high)
      "add.u32 %middle, %low, 1;\n"
      "setp.ge.u32 %is_done, %middle, %high;\n"
      "@%is_done bra FOUND;\n"
      "add.u32 %middle, %low, %high;\n"
      "shr.u32 %middle, %middle, 1;\n"
      "mad.wide.u32 %entry, %middle, {}, %table;\n"
      "ld.param.u32 %first, [%entry+{}];\n"
      "setp.gt.u32 %is_done, %first, %block;\n"
      "@%is_done mov.u32 %high, %middle;\n"
      "@!%is_done mov.u32 %low, %middle;\n"
      "bra SEARCH;\n"
      "FOUND:\n"
      "mad.wide.u32 %entry, %low, {}, %table;\n"
      "ld.param.u32 %elements, [%entry+{}];\n"
      "ld.param.u32 %first, [%entry+{}];\n"
      "sub.u32 %begin, %block, %first;\n"
      "mul.lo.u32 %begin, %begin, {};\n"
      "sub.u32 %end, %elements, %begin;\n"
      "min.u32 %end, %end, {};\n"
      "add.u32 %end, %begin, %end;\n",
      {entry_bytes, elements_at + 4, entry_bytes, elements_at, elements_at + 4, block_elements, block_elements});
}

/// Adds the %sum of all threads of a block pairwise, by halves, in f64. Afterwards thread 0 has the result; the other
/// threads go to the label END. Uses shared memory `partial` of 8 bytes a thread, u32 registers %thread, %slot, %other
/// and %half, the f64 register %wide and the predicate %is_done.
/// @param threads a power of two
inline std::string add_over_block(unsigned threads) {
  return format_text(
      "mov.u32 %slot, partial;\n"
      "mad.lo.u32 %slot, %thread, 8, %slot;\n"
      "st.shared.f64 [%slot+0], %sum;\n"
      "mov.u32 %half, {};\n"
      "ADD:\n"
      "bar.sync 0;\n"
      "setp.ge.u32 %is_done, %thread, %half;\n"
      "@%is_done bra ADDED;\n"
      "mad.lo.u32 %other, %half, 8, %slot;\n"
      "ld.shared.f64 %wide, [%other+0];\n"
      "add.rn.f64 %sum, %sum, %wide;\n"
      "st.shared.f64 [%slot+0], %sum;\n"
      "ADDED:\n"
      "shr.u32 %half, %half, 1;\n"
      "setp.ne.u32 %is_done, %half, 0;\n"
      "@%is_done bra ADD;\n"
      "setp.ne.u32 %is_done, %thread, 0;\n"
      "@%is_done bra END;\n",
      {threads / 2});
}

}  // namespace ptx

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
