#pragma once
/// @file
/// UpdateBatch: updates of many arrays in device memory by an optimizer's formula, with the bits of the host's rule.
/// UpdateKernel: its PTX.

#include "dtrain/core/config.hpp"

#if DTRAIN_WITH_CUDA

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dtrain/core/text/format_text.hpp"
#include "dtrain/core/types/dtype.hpp"
#include "dtrain/stream/cuda/kernels/driver_kernel.hpp"
#include "dtrain/stream/cuda/stream_ref.hpp"

namespace DTRAIN_NAMESPACE::stream::cuda {

/// Formulas of update_text().
enum class Update : std::uint8_t { sgd, momentum, adam };

/// The factors of a formula, in the order that update_text() names; unused ones are 0.
using UpdateNumbers = std::array<float, 8>;

/// Number of f32 arrays that a formula keeps.
constexpr std::size_t update_states(Update update) noexcept {
  return update == Update::sgd ? 0 : update == Update::momentum ? 1 : 2;
}

/// Neighbouring elements of one parameter, as the kernel reads them from its parameters.
struct UpdateEntry {
  std::uint64_t target;    ///< the new weights, in the gradients' type; may be the memory of the gradients
  std::uint64_t gradient;  ///< f32, f16 or bf16
  std::uint64_t weight;    ///< f32; a 16-bit gradient also becomes the new weight
  std::uint64_t state;     ///< bytes from the beginning of each state array
  std::uint32_t elements;
  std::uint32_t first_block;  ///< first block, see launch_entries()
};

/// Entries of one launch, which with the 88 bytes of other parameters fit into 4 KiB.
inline constexpr std::size_t max_update_entries = 96;
static_assert(max_update_entries * sizeof(UpdateEntry) + 88 <= 4096);
static_assert(offsetof(UpdateEntry, first_block) == offsetof(UpdateEntry, elements) + 4);  // find_entry() reads them so
inline constexpr std::uint32_t update_threads = 256;
inline constexpr std::uint32_t update_block_elements = 2048;
inline constexpr const char* update_name = "dtrain_update";

/// Parameters of a launch without its entries.
struct UpdateArguments {
  UpdateNumbers numbers{};
  const float* live = nullptr;         ///< numbers in device memory, at a multiple of 16 bytes, in place of `numbers`
  const float* found_inf = nullptr;    ///< an f32 in device memory: unless it is 0, weights and states stay as they are
  float factor = 1;                    ///< factor of the gradients
  const double* multiplier = nullptr;  ///< a second factor, in device memory; it is rounded to f32
  std::array<float*, 2> states{};
};

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

/// Letters of the registers of the state arrays.
inline constexpr char update_letters[] = {'m', 'v'};

/// Sets element `i` of the weights, the states and the targets.
inline std::string updated_element(Update update, DType dtype, unsigned i) {
  std::string read, written;
  for (std::size_t k = 0; k < update_states(update); ++k) {
    const std::string state = registers(DType::f32, update_letters[k], i, 1);
    read += format_text("mov.f32 %a{}, {};\n", {2 + k, state});
    written += format_text("mov.f32 {}, %a{};\n", {state, 2 + k});
  }
  const std::string weight = registers(DType::f32, 'w', i, 1);
  return widen_element(dtype, i) +
         "mul.rn.f32 %a1, %value, %factor;\n"
         "mul.rn.f32 %a1, %a1, %multiplier;\n" +
         format_text("mov.f32 %a0, {};\n{}", {weight, read}) + update_formula(update) +
         format_text("selp.f32 {}, %a0, {}, %is_finite;\n", {weight, weight}) + written +
         narrow_element(dtype, weight.c_str(), i);
}

/// A loop of one thread over elements from %index to `end`, `count` at a time.
inline std::string update_loop(Update update, DType dtype, const std::string& label, const char* end, unsigned count) {
  const std::string kept = "@%is_finite ";
  std::string loads = transfer(DType::f32, 'w', "ld", "%place0", count) + transfer(dtype, 's', "ld", "%place1", count);
  std::string places, elements, stores;
  for (std::size_t k = 0; k < update_states(update); ++k) {
    const std::string place = format_text("%place{}", {2 + k});
    places += format_text("mad.wide.u32 {}, %index, 4, %array{};\n", {place, 2 + k});
    loads += transfer(DType::f32, update_letters[k], "ld", place.c_str(), count);
    stores += kept + transfer(DType::f32, update_letters[k], "st", place.c_str(), count);
  }
  if (size_bytes(dtype) == 2) stores += kept + transfer(DType::f32, 'w', "st", "%place0", count);
  for (unsigned i = 0; i < count; ++i) {
    elements += updated_element(update, dtype, i);
  }
  return format_text(
             "{}:\n"
             "setp.ge.u32 %is_done, %index, {};\n"
             "@%is_done bra {}_DONE;\n"
             "mad.wide.u32 %place0, %index, 4, %weight;\n"
             "mad.wide.u32 %place1, %index, {}, %gradient;\n",
             {label, end, label, size_bytes(dtype)}) +
         places + loads + elements + stores +
         format_text(
             "mad.wide.u32 %place1, %index, {}, %target;\n{}"
             "add.u32 %index, %index, {};\n"
             "bra {};\n"
             "{}_DONE:\n",
             {size_bytes(dtype), transfer(dtype, 't', "st", "%place1", count), count * update_threads, label, label});
}

}  // namespace ptx

/// The kernel `update_name`(entries, number of entries, address of found_inf or 0, address of the multiplier or 0,
/// factor, address of the numbers or 0, numbers, state array...): widens each gradient to f32, multiplies it by factor
/// and multiplier, computes update_formula(), and rounds the new weight to the gradients' type. Where the f32 at
/// found_inf is not 0, the present weight is the new one, and states stay. One entry of `n` elements takes ceil(n /
/// update_block_elements) blocks of update_threads threads. Where the addresses of all its arrays are multiples of 4
/// elements, a thread moves as many at a time.
/// @param dtype of gradients and targets
inline std::string update_text(Update update, DType dtype) {
  constexpr unsigned at_a_time = 4;  // 16 bytes of f32
  std::string parameters, given, addresses, registers, misaligned;
  for (std::size_t i = 0; i < UpdateNumbers().size(); ++i) {
    given += format_text("ld.param.f32 %n{}, [given+{}];\n", {i, 4 * i});
  }
  for (std::size_t k = 0; k < update_states(update); ++k) {
    const std::size_t i = 2 + k;
    parameters += format_text(",\n.param .u64 array{}", {i});
    addresses += format_text(
        "ld.param.u64 %array{}, [array{}];\ncvta.to.global.u64 %array{}, %array{};\n"
        "add.u64 %array{}, %array{}, %state;\n",
        {i, i, i, i, i, i});
    misaligned += format_text("or.b64 %misaligned, %misaligned, %array{};\n", {i});
    registers += ptx::declaration(DType::f32, ptx::update_letters[k], at_a_time);
  }
  return ptx::header +
         format_text(".visible .entry {}(\n.param .align 8 .b8 entries[{}],\n.param .u32 entry_count,\n",
                     {update_name, max_update_entries * sizeof(UpdateEntry)}) +
         format_text(
             ".param .u64 found_inf,\n.param .u64 multiplier,\n.param .f32 factor,\n.param .u64 numbers,\n"
             ".param .align 4 .b8 given[{}]{})\n",
             {sizeof(UpdateNumbers), parameters}) +
         "{\n" + ptx::entry_registers +
         ".reg .pred %is_finite, %is_nan;\n"
         ".reg .u32 %whole, %index, %bits, %odd;\n"
         ".reg .u64 %address, %target, %gradient, %weight, %state, %misaligned, %array<4>, %place<4>;\n"
         ".reg .f32 %n<8>, %a<4>, %x, %y, %value, %factor, %multiplier;\n"
         ".reg .f64 %wide;\n" +
         registers + ptx::declaration(DType::f32, 'w', at_a_time) + ptx::declaration(dtype, 's', at_a_time) +
         ptx::declaration(dtype, 't', at_a_time) + given +
         "ld.param.f32 %factor, [factor];\n"
         "mov.f32 %multiplier, 0f3F800000;\n"
         "ld.param.u64 %address, [multiplier];\n"
         "setp.ne.u64 %is_done, %address, 0;\n"
         "@!%is_done bra MULTIPLIED;\n"
         "cvta.to.global.u64 %address, %address;\n"
         "ld.global.f64 %wide, [%address+0];\n"
         "cvt.rn.f32.f64 %multiplier, %wide;\n"
         "MULTIPLIED:\n"
         "mov.f32 %x, 0f00000000;\n"
         "ld.param.u64 %address, [found_inf];\n"
         "setp.ne.u64 %is_done, %address, 0;\n"
         "@!%is_done bra FINITE;\n"
         "cvta.to.global.u64 %address, %address;\n"
         "ld.global.f32 %x, [%address+0];\n"
         "FINITE:\n"
         "setp.eq.f32 %is_finite, %x, 0f00000000;\n"
         "ld.param.u64 %address, [numbers];\n"
         "setp.ne.u64 %is_done, %address, 0;\n"
         "@!%is_done bra READY;\n"
         "cvta.to.global.u64 %address, %address;\n"
         "ld.global.v4.f32 {%n0, %n1, %n2, %n3}, [%address+0];\n"
         "ld.global.v4.f32 {%n4, %n5, %n6, %n7}, [%address+16];\n"
         "READY:\n" +
         ptx::find_entry(sizeof(UpdateEntry), offsetof(UpdateEntry, elements), update_block_elements) +
         "ld.param.u64 %target, [%entry+0];\n"
         "ld.param.u64 %gradient, [%entry+8];\n"
         "ld.param.u64 %weight, [%entry+16];\n"
         "ld.param.u64 %state, [%entry+24];\n"
         "cvta.to.global.u64 %target, %target;\n"
         "cvta.to.global.u64 %gradient, %gradient;\n"
         "cvta.to.global.u64 %weight, %weight;\n" +
         addresses + "or.b64 %misaligned, %target, %gradient;\n" +
         (size_bytes(dtype) == 2 ? "add.u64 %misaligned, %misaligned, %misaligned;\n" : "") +  // multiples of 8 will do
         "or.b64 %misaligned, %misaligned, %weight;\n" + misaligned +
         "and.b64 %misaligned, %misaligned, 15;\n"
         "setp.ne.u64 %is_done, %misaligned, 0;\n"
         "mov.u32 %whole, %begin;\n"
         "@%is_done bra VECTOR_DONE;\n" +
         format_text(
             "and.b32 %whole, %end, {};\n"
             "mad.lo.u32 %index, %thread, {}, %begin;\n",
             {~(at_a_time - 1), at_a_time}) +  // begin is also a multiple
         ptx::update_loop(update, dtype, "VECTOR", "%whole", at_a_time) +
         "add.u32 %index, %whole, %thread;\n" + ptx::update_loop(update, dtype, "SINGLE", "%end", 1) + "ret;\n}\n";
}

/// The kernel of update_text(), for one formula and type. Trivially copyable; valid until the process ends.
class UpdateKernel {
 public:
  /// The kernel, or none if the driver does not load it: see load(). @param dtype f32, f16 or bf16 Threads: any.
  static UpdateKernel find(Update update, DType dtype) {
    static DriverKernel kept[static_cast<std::size_t>(Update::adam) + 1][static_cast<std::size_t>(DType::bf16) + 1];
    UpdateKernel kernel;
    kernel.kernel_ = DriverKernel::load_once(
        kept[static_cast<std::size_t>(update)][static_cast<std::size_t>(dtype)],
        [&] { return update_text(update, dtype); }, update_name);
    return kernel;
  }

  /// Launches the kernel for no elements. @returns whether the driver has loaded the kernel for the stream's device, as
  /// it does at the first launch there
  static bool load(Update update, DType dtype, StreamRef stream) {
    const UpdateEntry nothing{};
    const UpdateKernel kernel = find(update, dtype);
    return kernel && launches([&] { kernel.launch(&nothing, 1, 1, {}, stream); });
  }

  explicit operator bool() const noexcept { return static_cast<bool>(kernel_); }

  /// Enqueues a launch on the stream's device. Requires: a kernel, and 1 <= count <= max_update_entries.
  /// @param blocks of all entries @throws Error (cuda)
  void launch(const UpdateEntry* entries, std::size_t count, std::uint32_t blocks, UpdateArguments given,
              StreamRef stream) const {
    UpdateEntry parameter[max_update_entries] = {};
    std::copy_n(entries, count, parameter);
    auto entry_count = static_cast<std::uint32_t>(count);
    void* arguments[] = {parameter,   &entry_count,   &given.found_inf, &given.multiplier, &given.factor,
                         &given.live, &given.numbers, &given.states[0], &given.states[1]};
    kernel_.launch(blocks, update_threads, arguments, stream);
  }

 private:
  DriverKernel kernel_;
};

/// Collects arrays, then enqueues their updates, max_update_entries arrays a launch. No update may write what another
/// one reads or writes. Allocates nothing for as many arrays as were reserved. Threads: one at a time.
class UpdateBatch {
 public:
  /// Memory of an update. @see UpdateEntry
  struct Addresses {
    std::byte* target;
    const std::byte* gradient;
    std::byte* weight;
  };

  /// @pre before enqueue(): UpdateKernel::load(update, dtype, stream)
  UpdateBatch(Update update, DType dtype)
      : kernel_(UpdateKernel::find(update, dtype)), element_bytes_(size_bytes(dtype)) {}

  void reserve(std::size_t arrays) { entries_.reserve(arrays); }

  /// @param first_state index of the first element's state
  void add(Addresses at, std::size_t first_state, std::size_t elements) {
    constexpr std::size_t most = std::size_t{1} << 31U;
    for (std::size_t done = 0; done < elements; done += most) {
      entries_.push_back({reinterpret_cast<std::uintptr_t>(at.target + done * element_bytes_),
                          reinterpret_cast<std::uintptr_t>(at.gradient + done * element_bytes_),
                          reinterpret_cast<std::uintptr_t>(at.weight + done * sizeof(float)),
                          (first_state + done) * sizeof(float),
                          static_cast<std::uint32_t>(std::min(elements - done, most)), 0});
    }
  }

  /// Enqueues the updates, and empties the batch. Lifetime: the memory outlives the work, the batch need not.
  /// @throws Error (cuda); some updates may be enqueued in spite of it
  void enqueue(const UpdateArguments& given, StreamRef stream) {
    launch_entries(entries_, max_update_entries, update_block_elements,
                   [&](const UpdateEntry* entries, std::size_t count, std::uint32_t blocks) {
                     kernel_.launch(entries, count, blocks, given, stream);
                   });
  }

 private:
  UpdateKernel kernel_;
  std::size_t element_bytes_;
  std::vector<UpdateEntry> entries_;
};

}  // namespace DTRAIN_NAMESPACE::stream::cuda

#endif  // DTRAIN_WITH_CUDA
