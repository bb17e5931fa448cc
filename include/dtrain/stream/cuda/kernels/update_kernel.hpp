#pragma once
/// @file
/// UpdateKernel: the update of an optimizer for arrays of f32 in device memory, with the bits of the host's rule; its
/// PTX text. The rules of a ShardedOptimizer launch it.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Formulas of update_text().
enum class Update : std::uint8_t { sgd, momentum, adam };

/// The factors of a formula, in the order that update_text() names; unused ones are 0.
using UpdateNumbers = std::array<float, 8>;

inline constexpr std::uint32_t update_threads = 256;
inline constexpr const char* update_name = "dtrain_update";

/// Arrays of a formula: weights, gradients, states.
constexpr std::size_t update_arrays(Update update) noexcept {
  return update == Update::sgd ? 2 : update == Update::momentum ? 3 : 4;
}

namespace ptx {

/// New weight %a0 and states %a2, %a3, from the gradient %a1 and the numbers %n. Each operation is rounded to f32, in
/// the order of the host's rule; nothing is fused.
/// - sgd: rate, weight_decay
/// - momentum: rate, momentum, weight_decay, factor of the gradient, factor of the velocity
/// - adam: factor of the weight, factor of the weight in the gradient, 1 - beta1, beta2, 1 - beta2, step size, root of
/// 1 - beta2^t, epsilon
inline const char* update_formula(Update update) {
  switch (update) {
    case Update::sgd:
      return "mul.rn.f32 %x, %n1, %a0;\n"
             "add.rn.f32 %x, %a1, %x;\n"
             "mul.rn.f32 %x, %n0, %x;\n"
             "sub.rn.f32 %a0, %a0, %x;\n";
    case Update::momentum:
      return "mul.rn.f32 %x, %n2, %a0;\n"
             "add.rn.f32 %x, %a1, %x;\n"
             "mul.rn.f32 %y, %n1, %a2;\n"
             "add.rn.f32 %a2, %y, %x;\n"
             "mul.rn.f32 %x, %n3, %x;\n"
             "mul.rn.f32 %y, %n4, %a2;\n"
             "add.rn.f32 %x, %x, %y;\n"
             "mul.rn.f32 %x, %n0, %x;\n"
             "sub.rn.f32 %a0, %a0, %x;\n";
    case Update::adam:
      return "mul.rn.f32 %a0, %a0, %n0;\n"
             "mul.rn.f32 %x, %n1, %a0;\n"
             "add.rn.f32 %a1, %a1, %x;\n"
             "sub.rn.f32 %x, %a1, %a2;\n"
             "mul.rn.f32 %x, %x, %n2;\n"
             "add.rn.f32 %a2, %a2, %x;\n"
             "mul.rn.f32 %x, %n3, %a3;\n"
             "mul.rn.f32 %y, %n4, %a1;\n"
             "mul.rn.f32 %y, %y, %a1;\n"
             "add.rn.f32 %a3, %x, %y;\n"
             "sqrt.rn.f32 %x, %a3;\n"
             "div.rn.f32 %x, %x, %n6;\n"
             "add.rn.f32 %x, %x, %n7;\n"
             "mul.rn.f32 %y, %n5, %a2;\n"
             "div.rn.f32 %y, %y, %x;\n"
             "sub.rn.f32 %a0, %a0, %y;\n";
  }
  return "";
}

}  // namespace ptx

/// The kernel `update_name`(bytes of an array, address of found_inf or 0, address of the numbers or 0, numbers,
/// array...): computes update_formula() for each element, in place, unless the f32 at found_inf is not 0. The numbers
/// are read from device memory if there is an address. Thread t of block b computes element b * update_threads + t, and
/// each further multiple of all threads.
inline std::string update_text(Update update) {
  const std::size_t arrays = update_arrays(update);
  std::string parameters, given, addresses, places, loads, stores;
  for (std::size_t i = 0; i < UpdateNumbers().size(); ++i) {
    given += format_text("ld.param.f32 %n{}, [given+{}];\n", {i, 4 * i});
  }
  for (std::size_t i = 0; i < arrays; ++i) {
    parameters += format_text(",\n.param .u64 array{}", {i});
    addresses +=
        format_text("ld.param.u64 %array{}, [array{}];\ncvta.to.global.u64 %array{}, %array{};\n", {i, i, i, i});
    places += format_text("add.u64 %place{}, %array{}, %at;\n", {i, i});
    loads += format_text("ld.global.f32 %a{}, [%place{}+0];\n", {i, i});
    if (i != 1) stores += format_text("st.global.f32 [%place{}+0], %a{};\n", {i, i});
  }
  return ptx::header +
         format_text(
             ".visible .entry {}(\n.param .u64 bytes,\n.param .u64 found_inf,\n.param .u64 numbers,\n"
             ".param .align 4 .b8 given[{}]{})\n"
             "{\n"
             ".reg .pred %is_done;\n"
             ".reg .u32 %block, %blocks, %thread, %index;\n"
             ".reg .u64 %at, %end, %step, %numbers, %array<{}>, %place<{}>;\n"
             ".reg .f32 %n<8>, %a<{}>, %x, %y;\n",
             {update_name, sizeof(UpdateNumbers), parameters, arrays, arrays, arrays}) +
         given +
         "ld.param.u64 %numbers, [found_inf];\n"
         "setp.ne.u64 %is_done, %numbers, 0;\n"
         "@!%is_done bra FINITE;\n"
         "cvta.to.global.u64 %numbers, %numbers;\n"
         "ld.global.f32 %x, [%numbers+0];\n"
         "setp.eq.f32 %is_done, %x, 0f00000000;\n"
         "@!%is_done bra DONE;\n"
         "FINITE:\n"
         "ld.param.u64 %numbers, [numbers];\n"
         "setp.ne.u64 %is_done, %numbers, 0;\n"
         "@!%is_done bra READY;\n"
         "cvta.to.global.u64 %numbers, %numbers;\n"
         "ld.global.v4.f32 {%n0, %n1, %n2, %n3}, [%numbers+0];\n"
         "ld.global.v4.f32 {%n4, %n5, %n6, %n7}, [%numbers+16];\n"
         "READY:\n"
         "mov.u32 %block, %ctaid.x;\n"
         "mov.u32 %blocks, %nctaid.x;\n"
         "mov.u32 %thread, %tid.x;\n"
         "ld.param.u64 %end, [bytes];\n" +
         addresses +
         format_text(
             "mad.lo.u32 %index, %block, {}, %thread;\n"
             "mul.wide.u32 %at, %index, 4;\n"
             "mul.wide.u32 %step, %blocks, {};\n",
             {update_threads, 4 * update_threads}) +
         "UPDATE:\n"
         "setp.ge.u64 %is_done, %at, %end;\n"
         "@%is_done bra DONE;\n" +
         places + loads + ptx::update_formula(update) + stores +
         "add.u64 %at, %at, %step;\n"
         "bra UPDATE;\n"
         "DONE:\n"
         "ret;\n}\n";
}

/// The kernel of update_text(), for one formula. Trivially copyable; valid until the process ends.
class UpdateKernel {
 public:
  /// The kernel for this formula, or none if the driver does not load it: see load(). Threads: any.
  static UpdateKernel find(Update update) {
    static DriverKernel kept[static_cast<std::size_t>(Update::adam) + 1];
    UpdateKernel kernel;
    kernel.kernel_ = DriverKernel::load_once(
        kept[static_cast<std::size_t>(update)], [&] { return update_text(update); }, update_name);
    return kernel;
  }

  /// Launches the kernel for no elements. @returns whether the driver has loaded the kernel for the stream's device, as
  /// it does at the first launch there
  static bool load(Update update, StreamRef stream) {
    const UpdateKernel kernel = find(update);
    return kernel && launches([&] { kernel.enqueue({}, 0, {}, nullptr, nullptr, stream); });
  }

  explicit operator bool() const noexcept { return static_cast<bool>(kernel_); }

  /// Enqueued: updates `count` elements of each array. Requires: a kernel. Lifetime: the arrays, `live` and `found_inf`
  /// outlive the work.
  /// @param arrays weights, gradients, states @param live numbers in device memory, at a multiple of 16 bytes, in place
  /// of `numbers`; or null @param found_inf in device memory: the kernel changes nothing unless it is 0 then; or null
  /// @throws Error (cuda)
  void enqueue(std::array<float*, 4> arrays, std::uint64_t count, UpdateNumbers numbers, const float* live,
               const float* found_inf, StreamRef stream) const {
    constexpr std::uint64_t most_blocks = 4096;  // keeps every GPU busy
    const std::uint64_t blocks = (count + update_threads - 1) / update_threads;
    std::uint64_t bytes = count * sizeof(float);
    void* arguments[] = {&bytes, &found_inf, &live, &numbers, &arrays[0], &arrays[1], &arrays[2], &arrays[3]};
    kernel_.launch(static_cast<std::uint32_t>(std::clamp<std::uint64_t>(blocks, 1, most_blocks)), update_threads,
                   arguments, stream);
  }

 private:
  DriverKernel kernel_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
